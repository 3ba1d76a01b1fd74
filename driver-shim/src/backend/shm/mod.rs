//! Packets through memory that processes of one user on one host share. Not RoCE on the wire: there is no wire, and
//! nothing but this back end understands it.
//!
//! Each pair of devices has a ring in each direction, made by the sender and handed over when it first sends. The
//! sockets that serve for that then tell a reader that sleeps of new packets, and each side of the other's end. While
//! both sides work, packets cost no system call.

use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token, Waker};
use socket2::Socket;
use wire::batch::{Caps, HeaderKnowledge, RxBurst, TxBatch};
use wire::{Duration, Gid, Instant, Mac, NetHeader, ParseError};

use self::place::Place;
use self::records::{LONGEST, Reader, Writer};
use super::local::{InFlight, Local};
use super::{BURST, Backend, IoCounters, OpenError, Reachability, Unreachable};
use crate::interfaces::GidTable;
use crate::private;
use crate::ring::Torn;

mod place;
mod records;

/// How often it is asked whether devices have come or gone while packets are being looked for anyway.
const LOOK_AROUND: Duration = Duration::from_millis(1);

/// How long a full ring is waited for. A reader that takes nothing for so long loses what is sent to it, so that it does
/// not hold up what is sent to others.
const PATIENCE: Duration = Duration::from_millis(20);

/// Most devices that may send to one.
const MOST_SENDERS: usize = 1024;

/// Most messages of a device that are read at a time; a good one sends few.
const MESSAGES: usize = 16;

/// The shared-memory back end: one address.
#[derive(Debug)]
pub struct Shm {
    place: Place,
    directory: PathBuf,
    address: IpAddr,
    table: GidTable,
    /// Devices that are sent to.
    to: HashMap<IpAddr, Receiver>,
    /// Where nobody was when that was last tried; forgotten with the next look around.
    absent: Vec<IpAddr>,
    /// Devices that send.
    from: Vec<Sender>,
    /// The one of those that is served first.
    first: usize,
    /// Where sockets are registered.
    poll: Option<(Registry, Token)>,
    waker: Option<Arc<Waker>>,
    /// Where something has been sent to since the last kick.
    untold: Vec<IpAddr>,
    now: Instant,
    look_around: Instant,
    counters: IoCounters,
}

/// A device that is sent to.
#[derive(Debug)]
struct Receiver {
    socket: Socket,
    writer: Writer,
    /// Since when there has been no room.
    full_since: Option<Instant>,
}

/// A device that sends.
#[derive(Debug)]
struct Sender {
    socket: Socket,
    /// Its address and where its packets come; `None` before its greeting has come.
    inbox: Option<(IpAddr, Reader)>,
    /// It has ended, though what it sent may still be there.
    gone: bool,
}

impl Shm {
    /// Takes the address that `local` says, which need not be one of the host's. It is free again when what is returned
    /// is dropped, and when the process ends.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(local: &Local) -> Result<Self, OpenError> {
        let directory =
            private::subdirectory("shm").map_err(OpenError::io("use the directory of shared memory"))?;
        match local {
            Local::Address(address) => Self::open_in(&directory, *address),
            Local::FreeLoopback => (2..=254)
                .map(|last| Self::open_in(&directory, Ipv4Addr::new(127, 0, 0, last).into()))
                .find(|opened| !matches!(opened, Err(OpenError::AddressInMemory { .. })))
                .unwrap_or(Err(OpenError::NoFreeAddress)),
            Local::Interface(name) => Err(OpenError::Interface {
                name: name.clone(),
                reason: "is not what the shm back end uses; bind an address",
            }),
        }
    }

    fn open_in(directory: &Path, address: IpAddr) -> Result<Self, OpenError> {
        let address = address.to_canonical();
        Ok(Self {
            place: Place::take(directory, address)?,
            directory: directory.to_owned(),
            address,
            table: GidTable::new(&[address], Mac::default(), LONGEST),
            to: HashMap::new(),
            absent: Vec::new(),
            from: Vec::new(),
            first: 0,
            poll: None,
            waker: None,
            untold: Vec::new(),
            now: Instant::ZERO,
            look_around: Instant::ZERO,
            counters: IoCounters::default(),
        })
    }

    /// The way to `dst`, made where there is none; `None` where nobody is.
    fn receiver(&mut self, dst: IpAddr) -> Option<&mut Receiver> {
        if !self.to.contains_key(&dst) {
            if self.absent.contains(&dst) {
                return None;
            }
            match place::connect(&self.directory, self.address, dst) {
                Ok((socket, writer)) => {
                    self.to.insert(dst, Receiver { socket, writer, full_since: None });
                }
                Err(error) => {
                    tracing::debug!(%error, %dst, "no device of this user is there");
                    self.absent.push(dst);
                }
            }
        }
        self.to.get_mut(&dst)
    }

    /// Learns who has come and who has gone, and reads what there is on sockets.
    fn look_around(&mut self) -> Found {
        self.look_around = self.now + LOOK_AROUND;
        self.absent.clear();
        let before = self.to.len();
        self.to.retain(|_, receiver| hear(&receiver.socket).is_some());
        let (mut changed, mut told) = (self.to.len() != before, false);
        while let Some(socket) = self.place.accept() {
            changed = true;
            if self.from.len() < MOST_SENDERS && watch(self.poll.as_ref(), socket.as_raw_fd()) {
                self.from.push(Sender { socket, inbox: None, gone: false });
            }
        }
        self.from.retain_mut(|sender| {
            if sender.inbox.is_none() {
                match place::greeting(&sender.socket) {
                    Ok(None) => return true,
                    Ok(greeting) => sender.inbox = greeting,
                    Err(error) => {
                        tracing::debug!(%error, "a device is not let in");
                        changed = true;
                        return false;
                    }
                }
                changed = true;
            }
            match hear(&sender.socket) {
                Some(heard) => told |= heard,
                None => {
                    changed |= !sender.gone;
                    sender.gone = true;
                }
            }
            true
        });
        Found { changed, told }
    }
}

/// What a look around has found.
struct Found {
    /// Somebody has come or gone.
    changed: bool,
    /// Somebody has told of packets.
    told: bool,
}

/// Reads what has come on `socket`, which only says that there are packets: whether anything has. `None` where the other
/// end is gone.
fn hear(socket: &Socket) -> Option<bool> {
    let mut bytes = [MaybeUninit::uninit(); 8];
    for heard in 0..MESSAGES {
        match socket.recv(&mut bytes) {
            Ok(0) => return None,
            Ok(_) => {}
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                return Some(heard > 0);
            }
            Err(_) => return None,
        }
    }
    Some(true)
}

/// Registers a sender's socket, where there is a poll yet.
fn watch(poll: Option<&(Registry, Token)>, socket: RawFd) -> bool {
    let Some((registry, token)) = poll else { return true };
    registry
        .register(&mut SourceFd(&socket), *token, Interest::READABLE)
        .inspect_err(|error| tracing::warn!(%error, "a device cannot be waited for"))
        .is_ok()
}

impl Sender {
    /// Takes up to `limit` packets into `rx`; the device at `own` is theirs.
    fn receive(
        &mut self,
        own: Gid,
        limit: usize,
        rx: &mut RxBurst,
        counters: &mut IoCounters,
    ) -> Result<usize, Torn> {
        let Some((address, reader)) = &mut self.inbox else { return Ok(0) };
        let sender = Gid::from(*address);
        reader.take(limit, |len, copy| {
            let packet = rx.room(len);
            copy(packet);
            match NetHeader::parse_ip(packet) {
                Ok((net, body)) if (net.src_gid(), net.dst_gid()) == (sender, own) => {
                    let body = net.len()..net.len() + body.len();
                    rx.record(net, HeaderKnowledge::Seen, body);
                }
                // Between others, or nothing of ours at all.
                Ok(_) | Err(ParseError::NotRoce) => counters.rx_lost += 1,
                Err(_) => rx.add_malformed(1),
            }
        })
    }
}

impl Receiver {
    /// Writes the packets of `tx` from index `from` on and returns how many were taken.
    fn send(&mut self, tx: &TxBatch, from: usize, now: Instant, lost: &mut u64) -> Result<usize, Torn> {
        let mut taken = 0;
        for (net, body) in tx.iter_from(from) {
            if net.len() + body.len() > LONGEST as usize {
                *lost += 1;
            } else if self.writer.push(&net, body)? {
                self.full_since = None;
            } else if now.since(*self.full_since.get_or_insert(now)) > PATIENCE {
                *lost += 1;
            } else {
                break;
            }
            taken += 1;
        }
        self.writer.publish();
        Ok(taken)
    }
}

impl Backend for Shm {
    fn name(&self) -> &'static str {
        "shm"
    }

    fn caps(&self) -> Caps {
        InFlight::new(records::packets(), 1, 256).of_whole_packets()
    }

    fn addresses(&self) -> &GidTable {
        &self.table
    }

    fn recv_burst(&mut self, rx: &mut RxBurst) -> io::Result<usize> {
        let (own, mut count, senders) = (Gid::from(self.address), 0, self.from.len());
        let mut ended = false;
        for i in 0..senders {
            if count >= BURST {
                break;
            }
            let sender = &mut self.from[(self.first + i) % senders];
            match sender.receive(own, BURST - count, rx, &mut self.counters) {
                Ok(0) => ended |= sender.gone,
                Ok(got) => count += got,
                Err(error) => {
                    tracing::debug!(%error, "a device is cut off");
                    sender.gone = true;
                    sender.inbox = None;
                    ended = true;
                }
            }
        }
        // Another first next time, so that none fills every burst.
        self.first = if senders > 0 { (self.first + 1) % senders } else { 0 };
        if ended && count == 0 {
            self.from.retain(|sender| !sender.gone);
            self.first = 0;
        }
        Ok(count)
    }

    fn send_batch(&mut self, tx: &TxBatch, from: usize) -> io::Result<usize> {
        let Some(dst) = tx.header(from).map(|net| net.dst()) else { return Ok(0) };
        let (all, now) = (tx.len() - from, self.now);
        let mut lost = 0;
        let sent = self.receiver(dst).map(|receiver| receiver.send(tx, from, now, &mut lost));
        let taken = match sent {
            Some(Ok(taken)) => {
                if taken > 0 && self.untold.last() != Some(&dst) {
                    self.untold.push(dst);
                }
                taken
            }
            Some(Err(error)) => {
                tracing::debug!(%error, %dst, "a device is cut off");
                self.to.remove(&dst);
                lost = all as u64;
                all
            }
            None => {
                lost = all as u64;
                all
            }
        };
        self.counters.tx_lost += lost;
        Ok(taken)
    }

    fn kick(&mut self) -> io::Result<()> {
        for dst in self.untold.drain(..) {
            if let Some(receiver) = self.to.get_mut(&dst)
                && receiver.writer.must_tell()
                && let Err(error) = receiver.socket.send(&[0])
            {
                // It is gone, which the next look around shows, or has not read what it was told before.
                tracing::debug!(%error, "a device is not told of packets");
            }
        }
        Ok(())
    }

    fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        let listener = self.place.listener.as_raw_fd();
        registry.register(&mut SourceFd(&listener), token, Interest::READABLE)?;
        let poll = self.poll.insert((registry.try_clone()?, token));
        self.from.retain(|sender| watch(Some(poll), sender.socket.as_raw_fd()));
        Ok(())
    }

    fn set_waker(&mut self, waker: Arc<Waker>) {
        self.waker = Some(waker);
    }

    fn before_wait(&mut self) -> bool {
        // First this: what comes after it makes a socket readable again.
        if self.look_around().changed {
            return false;
        }
        self.from.iter_mut().all(|sender| match &mut sender.inbox {
            // Cut off with the next burst.
            Some((_, reader)) => reader.sleep().unwrap_or(false),
            None => true,
        })
    }

    fn prepare(&mut self, now: Instant, dst: IpAddr) -> Reachability {
        self.now = now;
        match self.receiver(dst) {
            Some(_) => Reachability::Ready,
            None => Reachability::Unreachable(Unreachable::NoAnswer),
        }
    }

    fn poll(&mut self, now: Instant) {
        self.now = now;
        if self.look_around <= now
            && self.look_around().told
            && let Some(waker) = &self.waker
            // Whoever waits for the socket may not have seen yet what was just taken from it.
            && let Err(error) = waker.wake()
        {
            tracing::warn!(%error, "cannot wake the engine");
        }
    }

    fn counters(&self) -> IoCounters {
        self.counters
    }
}

#[cfg(test)]
mod tests;
