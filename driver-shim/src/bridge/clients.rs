//! The clients of a bridge's socket: devices, each with its addresses.
//!
//! A client says hello for each address that it has, and from then on gets the packets to it. What is no packet between
//! addresses of clients is dropped and counted.

use std::collections::{HashMap, VecDeque};
use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use fabric::ETHERNET_OVERHEAD;
use mio::event::Event;
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use socket2::{Domain, SockAddr, Socket, Type};
use wire::{Instant, NetHeader};

use super::hello::{self, Answer, LONGEST};
use super::switch::{Carried, Switch};
use super::{BridgeError, PORTS, Ports};
use crate::backend::BURST;
use crate::backend::send_buffer;
use crate::sys::Inbox;

const LISTENER: usize = PORTS;
/// Tokens of clients begin here.
const FIRST: usize = PORTS + 1;

/// Room for one message: one byte more than the longest packet, so that a longer one is seen to be.
const PLACE: usize = LONGEST + 1;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;
/// Most clients at a time.
const MOST_CLIENTS: usize = 1024;
/// Most addresses that a bridge knows beside those that share a queue. Beyond, new ones take the places of those that
/// nobody has any more.
const MOST_ADDRESSES: usize = 1024;
/// Most addresses of one client.
const MOST_OF_ONE: usize = 64;
/// Packets that wait for a client that does not read, as in the ring of a network card.
const RING: usize = 1024;
/// Send buffer asked for.
const SEND_BUFFER: i32 = 1 << 20;

#[derive(Debug)]
pub(super) struct Clients {
    listener: Socket,
    path: PathBuf,
    /// Which file it has made there.
    made: Option<(u64, u64)>,
    registry: Registry,
    rate: u64,
    clients: HashMap<usize, Client>,
    next: usize,
    /// Those that may have something to be read, in turn.
    ready: VecDeque<usize>,
    /// Addresses that share a queue, and which that is.
    shared: Vec<IpAddr>,
    shared_output: Option<usize>,
    places: Vec<Place>,
    by_address: HashMap<IpAddr, usize>,
    inbox: Inbox,
    room: Vec<u8>,
}

/// An address that a client has or had.
#[derive(Debug)]
struct Place {
    output: usize,
    owner: Option<usize>,
}

#[derive(Debug)]
struct Client {
    socket: Socket,
    addresses: Vec<IpAddr>,
    is_ready: bool,
    /// What its socket had no room for.
    ring: VecDeque<Vec<u8>>,
}

impl Clients {
    /// Makes the socket.
    pub(super) fn listen(
        path: &Path,
        rate: u64,
        shared: &[IpAddr],
        registry: &Registry,
    ) -> Result<Self, BridgeError> {
        let listener = listen_at(path)?;
        // From here on the path is removed whatever happens.
        let clients = Self {
            listener,
            path: path.to_owned(),
            made: file_at(path),
            registry: registry.try_clone().map_err(BridgeError::io("prepare to wait"))?,
            rate,
            clients: HashMap::new(),
            next: FIRST,
            ready: VecDeque::new(),
            shared: shared.to_vec(),
            shared_output: None,
            places: Vec::new(),
            by_address: HashMap::new(),
            inbox: Inbox::new(),
            room: vec![0; PLACE * BURST],
        };
        let fd = clients.listener.as_raw_fd();
        registry
            .register(&mut SourceFd(&fd), Token(LISTENER), Interest::READABLE)
            .map_err(BridgeError::io("wait for clients"))?;
        Ok(clients)
    }

    fn accept(&mut self) {
        loop {
            let socket = match self.listener.accept() {
                Ok((socket, _)) => socket,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    tracing::debug!(%error, "a client was not let in");
                    return;
                }
            };
            if self.clients.len() >= MOST_CLIENTS {
                continue;
            }
            let token = self.next;
            let watched = socket
                .set_nonblocking(true)
                .and_then(|()| send_buffer(&socket, SEND_BUFFER))
                .and_then(|()| {
                    let interest = Interest::READABLE | Interest::WRITABLE;
                    self.registry.register(&mut SourceFd(&socket.as_raw_fd()), Token(token), interest)
                });
            match watched {
                Ok(()) => {
                    self.next += 1;
                    self.ready.push_back(token);
                    let client =
                        Client { socket, addresses: Vec::new(), is_ready: true, ring: VecDeque::new() };
                    self.clients.insert(token, client);
                }
                Err(error) => tracing::debug!(%error, "a client was not let in"),
            }
        }
    }

    /// Reads a burst from the client of `token`; true where there may be more.
    fn read(&mut self, now: Instant, token: usize, switch: &mut Switch) -> bool {
        let Some(client) = self.clients.get_mut(&token) else { return false };
        let count = match self.inbox.receive(client.socket.as_fd(), &mut self.room, PLACE) {
            Ok(count) => count,
            Err(error) => {
                tracing::debug!(%error, "a client is gone");
                self.forget(token);
                return false;
            }
        };
        let messages: Vec<_> = self.inbox.iter().map(|got| (got.at, got.truncated)).collect();
        for (at, truncated) in messages {
            if at.is_empty() {
                // The end of what it has sent.
                self.forget(token);
                return false;
            }
            if truncated || at.len() > LONGEST {
                switch.lost.malformed += 1;
            } else if let Some(address) = hello::asked_for(&self.room[at.clone()]) {
                self.greet(now, token, address, switch);
            } else {
                self.forward(now, token, &self.room[at], switch);
            }
        }
        if count < BURST
            && let Some(client) = self.clients.get_mut(&token)
        {
            client.is_ready = false;
        }
        count == BURST
    }

    /// Gives the client of `token` the address that it asks for, or says why not.
    fn greet(&mut self, now: Instant, token: usize, address: IpAddr, switch: &mut Switch) {
        let Some(client) = self.clients.get(&token) else { return };
        let place = self.by_address.get(&address).copied();
        let owner = place.and_then(|place| self.places[place].owner);
        let has_room = client.addresses.len() < MOST_OF_ONE;
        let answer = if !hello::is_of_a_host(address) {
            Answer::NoHost
        } else if owner == Some(token) {
            self.welcome()
        } else if owner.is_some() {
            Answer::Taken
        } else if has_room && let Some(place) = place.or_else(|| self.add_place(now, address, switch)) {
            self.places[place].owner = Some(token);
            if let Some(client) = self.clients.get_mut(&token) {
                client.addresses.push(address);
            }
            self.welcome()
        } else {
            Answer::Full
        };
        if let Some(client) = self.clients.get_mut(&token)
            && !client.send(answer.emit().to_vec())
        {
            tracing::debug!("a client does not read what it is answered");
        }
    }

    fn welcome(&self) -> Answer {
        Answer::Welcome { mtu: u32::try_from(LONGEST).unwrap_or(u32::MAX), rate: self.rate }
    }

    /// Makes a place for `address`, or gives it one whose address nobody has any more; `None` where there is none.
    fn add_place(&mut self, now: Instant, address: IpAddr, switch: &mut Switch) -> Option<usize> {
        let name = address.to_string();
        if self.shared.contains(&address) {
            let output = match self.shared_output {
                Some(output) => {
                    switch.add_name(output, name);
                    output
                }
                None => switch.add_output(now, name),
            };
            self.shared_output = Some(output);
            return Some(self.push_place(address, output));
        }
        if self.places.len() < MOST_ADDRESSES + self.shared.len() {
            let output = switch.add_output(now, name);
            return Some(self.push_place(address, output));
        }
        let place = self.places.iter().position(|place| {
            place.owner.is_none() && Some(place.output) != self.shared_output && switch.is_idle(place.output)
        })?;
        switch.renew_output(now, self.places[place].output, name);
        self.by_address.retain(|_, of| *of != place);
        self.by_address.insert(address, place);
        Some(place)
    }

    fn push_place(&mut self, address: IpAddr, output: usize) -> usize {
        let place = self.places.len();
        self.places.push(Place { output, owner: None });
        self.by_address.insert(address, place);
        place
    }

    /// A packet of the client of `token`.
    fn forward(&self, now: Instant, token: usize, packet: &[u8], switch: &mut Switch) {
        let owner =
            |address: IpAddr| self.by_address.get(&address).map(|place| (*place, &self.places[*place]));
        match NetHeader::parse_ip(packet) {
            Ok((net, body)) if net.len() + body.len() == packet.len() => {
                if owner(net.src()).is_none_or(|(_, place)| place.owner != Some(token)) {
                    switch.lost.foreign += 1;
                } else if let Some((to, place)) = owner(net.dst()).filter(|(_, place)| place.owner.is_some())
                {
                    let len = (ETHERNET_OVERHEAD + packet.len()) as u64;
                    switch.offer(now, place.output, Carried::new(packet.to_vec(), Some(0), len, to));
                } else {
                    switch.lost.unroutable += 1;
                }
            }
            _ => switch.lost.malformed += 1,
        }
    }

    fn forget(&mut self, token: usize) {
        let Some(client) = self.clients.remove(&token) else { return };
        for address in &client.addresses {
            if let Some(place) = self.by_address.get(address) {
                self.places[*place].owner = None;
            }
        }
    }
}

impl Client {
    /// Sends `bytes`, now or when there is room; false where there is no room for more.
    fn send(&mut self, bytes: Vec<u8>) -> bool {
        if self.ring.is_empty() && self.try_send(&bytes) {
            return true;
        }
        if self.ring.len() >= RING {
            return false;
        }
        self.ring.push_back(bytes);
        true
    }

    /// False where there is no room. What cannot be sent for another reason is lost: reading tells that the other end is
    /// gone.
    fn try_send(&self, bytes: &[u8]) -> bool {
        match self.socket.send_with_flags(bytes, libc::MSG_NOSIGNAL) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
            Err(error) => {
                tracing::debug!(%error, "a client takes no packet");
                true
            }
            Ok(_) => true,
        }
    }

    fn flush(&mut self) {
        while self.ring.front().is_some_and(|bytes| self.try_send(bytes)) {
            self.ring.pop_front();
        }
    }
}

impl Ports for Clients {
    fn handle(&mut self, _now: Instant, event: &Event, _switch: &mut Switch) {
        let Token(token) = event.token();
        if token == LISTENER {
            self.accept();
            return;
        }
        let Some(client) = self.clients.get_mut(&token) else { return };
        client.flush();
        if (event.is_readable() || event.is_read_closed()) && !client.is_ready {
            client.is_ready = true;
            self.ready.push_back(token);
        }
    }

    fn receive(&mut self, now: Instant, switch: &mut Switch) -> bool {
        for _ in 0..self.ready.len() {
            let Some(token) = self.ready.pop_front() else { break };
            if self.read(now, token, switch) {
                self.ready.push_back(token);
            }
        }
        !self.ready.is_empty()
    }

    fn deliver(&mut self, to: usize, bytes: Vec<u8>) -> bool {
        let owner = self.places.get(to).and_then(|place| place.owner);
        owner.and_then(|token| self.clients.get_mut(&token)).is_some_and(|client| client.send(bytes))
    }

    fn frame_at(&self) -> Option<usize> {
        None
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        if self.made != file_at(&self.path) {
            tracing::debug!("another has made a socket in the place of the bridge's");
        } else if let Err(error) = fs::remove_file(&self.path) {
            tracing::debug!(%error, "the bridge's socket is gone already");
        }
    }
}

/// Which file is at `path`: its device and number.
fn file_at(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|is| (is.dev(), is.ino()))
}

/// A listening socket at `path`, in place of one that nobody listens at any more.
fn listen_at(path: &Path) -> Result<Socket, BridgeError> {
    let failed = |source| BridgeError::Path { path: path.to_owned(), source };
    let address = SockAddr::unix(path).map_err(failed)?;
    let socket = || Socket::new(Domain::UNIX, Type::SEQPACKET, None).map_err(failed);
    let listener = socket()?;
    listener.set_nonblocking(true).map_err(failed)?;
    match listener.bind(&address) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            if !fs::symlink_metadata(path).is_ok_and(|is| is.file_type().is_socket()) {
                return Err(BridgeError::NoSocket { path: path.to_owned() });
            }
            let probe = socket()?;
            probe.set_nonblocking(true).map_err(failed)?;
            match probe.connect(&address) {
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                Err(error) if error.raw_os_error() == Some(libc::EPROTOTYPE) => {
                    return Err(BridgeError::OtherSocket { path: path.to_owned() });
                }
                // Somebody is there, whoever it is.
                _ => return Err(BridgeError::PathInUse { path: path.to_owned() }),
            }
            fs::remove_file(path).map_err(failed)?;
            listener.bind(&address).map_err(failed)?;
        }
        Err(error) => return Err(failed(error)),
    }
    listener.listen(BACKLOG).map_err(failed)?;
    Ok(listener)
}
