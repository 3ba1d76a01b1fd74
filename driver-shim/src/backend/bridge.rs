//! Packets over a Unix socket to a bridge: a slow link with marks and losses, between processes that need no privileges.
//!
//! Each message is one IP packet. The bridge ([`crate::bridge`]) knows who has which address by the hello that each client
//! begins with.

use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use socket2::{Domain, SockAddr, Socket, Type};
use wire::batch::{Caps, HeaderKnowledge, RxBurst, TxBatch};
use wire::{Mac, NetHeader, ParseError};

use super::local::{InFlight, Local, send_buffer};
use super::{BURST, Backend, IoCounters, OpenError, send_all};
use crate::bridge::hello::{Answer, LONGEST, hello};
use crate::interfaces::GidTable;
use crate::sys::{Inbox, Outgoing, send_many};

/// How long a bridge may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Room for one message: one byte more than the longest packet, so that a longer one is seen to be.
const PLACE: usize = LONGEST + 1;
/// Messages that there is room for with each call.
const PLACES: usize = 16;
/// Send buffer asked for.
const SEND_BUFFER: i32 = 1 << 20;

/// The bridge back end: one address, on a bridge.
#[derive(Debug)]
pub struct BridgePort {
    socket: Socket,
    table: GidTable,
    rate: u64,
    inbox: Inbox,
    counters: IoCounters,
}

impl BridgePort {
    /// Takes the address that `local` says on the bridge whose socket is at `path`. It is free again when what is returned
    /// is dropped.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(path: &Path, local: &Local) -> Result<Self, OpenError> {
        let socket = connect(path)?;
        let (address, rate) = match local {
            Local::Address(address) => {
                let address = address.to_canonical();
                let rate = ask(&socket, path, address)?;
                (address, rate.ok_or(OpenError::AddressOnBridge { address, path: path.to_owned() })?)
            }
            Local::FreeLoopback => free_address(&socket, path)?,
            Local::Interface(name) => {
                return Err(OpenError::Interface {
                    name: name.clone(),
                    reason: "is not what the bridge back end uses; bind an address",
                });
            }
        };
        socket.set_nonblocking(true).map_err(OpenError::io("set up a socket"))?;
        let mtu = u32::try_from(LONGEST).unwrap_or(u32::MAX);
        // Rather too fast than too slow: marks take down what is too fast.
        let speed = u32::try_from(rate.div_ceil(1_000_000)).ok();
        Ok(Self {
            socket,
            table: GidTable::new(&[address], Mac::default(), mtu).with_speed(speed),
            rate,
            inbox: Inbox::new(),
            counters: IoCounters::default(),
        })
    }

    /// Bits per second of the bridge's outputs, Ethernet's bytes with preamble and gap included.
    #[must_use]
    pub const fn rate(&self) -> u64 {
        self.rate
    }
}

fn connect(path: &Path) -> Result<Socket, OpenError> {
    let failed = OpenError::io("set up a socket");
    let no_bridge = |source| OpenError::NoBridge { path: path.to_owned(), source };
    let socket = Socket::new(Domain::UNIX, Type::SEQPACKET, None).map_err(&failed)?;
    socket.set_write_timeout(Some(PATIENCE)).map_err(&failed)?;
    socket.set_read_timeout(Some(PATIENCE)).map_err(&failed)?;
    send_buffer(&socket, SEND_BUFFER).map_err(&failed)?;
    socket.connect(&SockAddr::unix(path).map_err(no_bridge)?).map_err(no_bridge)?;
    Ok(socket)
}

/// The first loopback address that nobody has.
fn free_address(socket: &Socket, path: &Path) -> Result<(IpAddr, u64), OpenError> {
    for last in 2..=254 {
        let address = Ipv4Addr::new(127, 0, 0, last).into();
        if let Some(rate) = ask(socket, path, address)? {
            return Ok((address, rate));
        }
    }
    Err(OpenError::NoFreeAddressOnBridge { path: path.to_owned() })
}

/// Asks for `address`; returns the rate of the way to it, or `None` where another has it.
fn ask(socket: &Socket, path: &Path, address: IpAddr) -> Result<Option<u64>, OpenError> {
    let no_bridge = |source| OpenError::NoBridge { path: path.to_owned(), source };
    let strange = |what| no_bridge(io::Error::other(what));
    let full = |many| OpenError::BridgeFull { path: path.to_owned(), many };
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::WouldBlock => strange("who listens there does not answer"),
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
            full("as many clients as it can, or has just ended")
        }
        _ => no_bridge(error),
    };
    socket.send_with_flags(&hello(address), libc::MSG_NOSIGNAL).map_err(failed)?;
    let mut bytes = [0; 64];
    let len = match (&mut &*socket).read(&mut bytes).map_err(failed)? {
        0 => return Err(failed(io::ErrorKind::BrokenPipe.into())),
        len => len,
    };
    match Answer::parse(&bytes[..len]) {
        Some(Answer::Welcome { rate, .. }) => Ok(Some(rate)),
        Some(Answer::Taken) => Ok(None),
        Some(Answer::Full) => Err(full("as many addresses as it can")),
        Some(Answer::NoHost) => Err(OpenError::NoHostAddress { address }),
        None => Err(strange("what listens there is no bridge of this version")),
    }
}

/// Nothing goes here any more.
fn ended() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "the bridge has ended")
}

/// `error`, or that the bridge has ended. A bridge that ended with packets unread resets the socket; which call meets that
/// first is chance.
fn named(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => ended(),
        _ => error,
    }
}

impl Backend for BridgePort {
    fn name(&self) -> &'static str {
        "bridge"
    }

    fn caps(&self) -> Caps {
        InFlight { window: 256, credit: 1 << 14 }.of_whole_packets()
    }

    fn addresses(&self) -> &GidTable {
        &self.table
    }

    fn recv_burst(&mut self, rx: &mut RxBurst) -> io::Result<usize> {
        let room = rx.room(PLACE * PLACES);
        let count = self.inbox.receive(self.socket.as_fd(), room, PLACE).map_err(named)?;
        for got in self.inbox.iter() {
            if got.at.is_empty() {
                return Err(ended());
            }
            match NetHeader::parse_ip(&rx.lent()[got.at.clone()]) {
                Ok((net, body)) if !got.truncated => {
                    let start = got.at.start + net.len();
                    let body = start..start + body.len();
                    rx.record(net, HeaderKnowledge::Seen, body);
                }
                Err(ParseError::NotRoce) => self.counters.rx_lost += 1,
                _ => rx.add_malformed(1),
            }
        }
        Ok(count)
    }

    fn send_batch(&mut self, tx: &TxBatch, from: usize) -> io::Result<usize> {
        let Self { socket, counters, .. } = self;
        send_all(tx.len(), from, &mut counters.tx_lost, |at| {
            let mut heads = [[0; NetHeader::MAX_LEN]; BURST];
            let mut lens = [0; BURST];
            for (((net, _), head), len) in tx.iter_from(at).zip(&mut heads).zip(&mut lens) {
                *len = net.emit(head);
            }
            let packets = tx.bodies_from(at).zip(heads.iter().zip(lens)).map(|(body, (head, len))| {
                Outgoing { parts: [&head[..len], body, &[]], to: None, control: None }
            });
            send_many(socket.as_fd(), packets).map_err(named)
        })
    }

    fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        registry.register(&mut SourceFd(&self.socket.as_raw_fd()), token, Interest::READABLE)
    }

    fn counters(&self) -> IoCounters {
        self.counters
    }
}

#[cfg(test)]
#[path = "bridge_tests.rs"]
mod tests;
