//! What `ibv_rc_pingpong` and its kin tell each other over TCP before the first packet.
//!
//! Each end sends one line of fixed width, `LID:QPN:PSN:GID` in hexadecimal with a final NUL; the client then
//! says `done`. The stock tools read each message with one `read`, so each is written with one `write`; but
//! `ibv_srq_pingpong` sends a line for each of 256 queue pairs, and reads them as a stream.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use wire::{Gid, Psn, Qpn};

use crate::queue_pair::Endpoint;

pub mod perftest;

/// TCP port of the exchange where none is given.
pub const DEFAULT_PORT: u16 = 18515;

const MESSAGE: usize = 4 + 1 + 6 + 1 + 6 + 1 + 32 + 1;
const DONE: &[u8; 5] = b"done\0";
/// Queue pairs that the exchange of `ibv_srq_pingpong` always tells of, used or not.
pub const MANY: usize = 256;
/// The peer may be a person typing the other command.
const CONNECT_TRIES: u32 = 50;
const CONNECT_PAUSE: Duration = Duration::from_millis(100);
/// How long a host may take to answer that it is there at all.
const CONNECT_TIME: Duration = Duration::from_secs(5);
/// How long the other end's host may be silent before the connection counts as broken.
const VANISHED: Duration = Duration::from_secs(10);
const PROBE_AFTER: Duration = Duration::from_secs(5);
const PROBE_EVERY: Duration = Duration::from_secs(1);

/// Why the exchange failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OobError {
    /// The server's name or address means nothing.
    #[error("{host}: {source}; give the address or name of the other end")]
    Resolve {
        /// What was given.
        host: String,
        /// What the resolver said.
        source: io::Error,
    },
    /// Nobody answers there.
    #[error("cannot connect to {address}: {source}; is the other end started, without a host name?")]
    Connect {
        /// Where.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The port cannot be listened on.
    #[error("cannot listen on TCP port {port}: {source}; choose another with -p")]
    Listen {
        /// The port.
        port: u16,
        /// What the system said.
        source: io::Error,
    },
    /// The connection broke.
    #[error("the other end closed the exchange early ({0}): has it ended, or do the command lines differ?")]
    Closed(io::Error),
    /// What came is not the exchange.
    #[error("the other end does not speak this exchange: it said {0:?}")]
    Garbled(String),
    /// The connection is there, and nothing comes.
    #[error("the other end has connected, but says nothing: does it run the same command?")]
    Silent,
    /// Whoever waited for the other end has stopped waiting.
    #[error("interrupted while waiting for the other end")]
    Interrupted,
}

impl OobError {
    /// The error number of the system that comes closest.
    #[must_use]
    pub fn errno(&self) -> i32 {
        let of = |source: &io::Error, otherwise| source.raw_os_error().unwrap_or(otherwise);
        match self {
            Self::Resolve { .. } => libc::EHOSTUNREACH,
            Self::Connect { source, .. } => of(source, libc::ECONNREFUSED),
            Self::Listen { source, .. } => of(source, libc::EADDRINUSE),
            Self::Closed(source) => of(source, libc::ECONNRESET),
            Self::Garbled(_) => libc::EPROTO,
            Self::Silent => libc::ETIMEDOUT,
            Self::Interrupted => libc::EINTR,
        }
    }
}

/// The connection, and whose turn it is.
#[derive(Debug)]
pub struct Exchange {
    stream: TcpStream,
    role: Role,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Server,
    Client,
}

impl Exchange {
    /// Waits for one client on `port`. The port is closed once it is there.
    ///
    /// # Errors
    /// Where the port cannot be had.
    pub fn listen(port: u16) -> Result<Self, OobError> {
        Ok(Self { stream: accept_one(port)?, role: Role::Server })
    }

    /// Connects to a server, which may still be starting.
    ///
    /// # Errors
    /// Where the name means nothing, or nobody answers for five seconds.
    pub fn connect(host: &str, port: u16) -> Result<Self, OobError> {
        Ok(Self { stream: connect_to(host, port)?, role: Role::Client })
    }

    /// Address of the other end.
    ///
    /// # Errors
    /// Where the connection is gone.
    pub fn peer(&self) -> io::Result<SocketAddr> {
        self.stream.peer_addr()
    }

    /// Tells the other end about `mine` and gives what it said. `connect` is called with the peer's endpoint
    /// before the server answers: from then on the client may send.
    ///
    /// # Errors
    /// Where the connection breaks or the other end says something else, and what `connect` says.
    pub fn swap<T, E: From<OobError>>(
        self,
        mine: &Endpoint,
        connect: impl FnOnce(Endpoint) -> Result<T, E>,
    ) -> Result<(Endpoint, T), E> {
        let (theirs, connected) = self.swap_lines(&[*mine], |theirs| connect(theirs[0]))?;
        Ok((theirs[0], connected))
    }

    /// As [`Exchange::swap`], for up to [`MANY`] queue pairs at once: that many are told of, the rest as zeros. Gives
    /// as many of the other end's as there are of `mine`.
    ///
    /// # Errors
    /// As [`Exchange::swap`].
    pub fn swap_many<T, E: From<OobError>>(
        self,
        mine: &[Endpoint],
        connect: impl FnOnce(&[Endpoint]) -> Result<T, E>,
    ) -> Result<(Vec<Endpoint>, T), E> {
        let mut all = [Endpoint { qpn: Qpn::new(0), psn: Psn::new(0), gid: Gid::ZERO }; MANY];
        let used = mine.len().min(MANY);
        all[..used].copy_from_slice(&mine[..used]);
        let (mut theirs, connected) = self.swap_lines(&all, |theirs| connect(&theirs[..used]))?;
        theirs.truncate(used);
        Ok((theirs, connected))
    }

    fn swap_lines<T, E: From<OobError>>(
        mut self,
        mine: &[Endpoint],
        connect: impl FnOnce(&[Endpoint]) -> Result<T, E>,
    ) -> Result<(Vec<Endpoint>, T), E> {
        let lines: String = mine.iter().map(format).collect();
        match self.role {
            Role::Server => {
                let theirs = self.receive(mine.len())?;
                let connected = connect(&theirs)?;
                self.send(lines.as_bytes())?;
                let mut done = [0; DONE.len()];
                self.stream.read_exact(&mut done).map_err(OobError::Closed)?;
                Ok((theirs, connected))
            }
            Role::Client => {
                self.send(lines.as_bytes())?;
                let theirs = self.receive(mine.len())?;
                self.send(DONE)?;
                let connected = connect(&theirs)?;
                Ok((theirs, connected))
            }
        }
    }

    fn send(&mut self, message: &[u8]) -> Result<(), OobError> {
        self.stream.write_all(message).map_err(OobError::Closed)
    }

    fn receive(&mut self, count: usize) -> Result<Vec<Endpoint>, OobError> {
        let mut one = || {
            let mut message = [0; MESSAGE];
            self.stream.read_exact(&mut message).map_err(OobError::Closed)?;
            parse(&message).ok_or_else(|| OobError::Garbled(String::from_utf8_lossy(&message).into_owned()))
        };
        (0..count).map(|_| one()).collect()
    }
}

/// Waits for one client on `port`, which is closed once it is there.
fn accept_one(port: u16) -> Result<TcpStream, OobError> {
    let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
    let failed = |source| OobError::Listen { port, source };
    let (stream, _) = TcpListener::bind(any).map_err(failed)?.accept().map_err(failed)?;
    prepare(&stream)?;
    Ok(stream)
}

/// Messages leave at once, and a host that vanishes is noticed.
fn prepare(stream: &TcpStream) -> Result<(), OobError> {
    let probes = TcpKeepalive::new().with_time(PROBE_AFTER).with_interval(PROBE_EVERY);
    let socket = SockRef::from(stream);
    stream
        .set_nodelay(true)
        .and_then(|()| socket.set_tcp_keepalive(&probes))
        .and_then(|()| socket.set_tcp_user_timeout(Some(VANISHED)))
        .map_err(OobError::Closed)
}

/// Connects to a server, which may still be starting.
fn connect_to(host: &str, port: u16) -> Result<TcpStream, OobError> {
    let resolve = |source| OobError::Resolve { host: host.to_owned(), source };
    let mut addresses: Vec<SocketAddr> = (host, port).to_socket_addrs().map_err(resolve)?.collect();
    // The stock tools listen on IPv4 only.
    addresses.sort_by_key(|address| matches!(address.ip(), IpAddr::V6(_)));
    let Some(&address) = addresses.first() else {
        return Err(resolve(io::Error::from(io::ErrorKind::AddrNotAvailable)));
    };
    let mut tries = 0;
    loop {
        match TcpStream::connect_timeout(&address, CONNECT_TIME) {
            Ok(stream) => {
                prepare(&stream)?;
                return Ok(stream);
            }
            Err(source) if tries >= CONNECT_TRIES || source.kind() != io::ErrorKind::ConnectionRefused => {
                return Err(OobError::Connect { address, source });
            }
            Err(_) => pause(),
        }
        tries += 1;
    }
}

#[expect(clippy::disallowed_methods, reason = "a real server is waited for in real time")]
fn pause() {
    std::thread::sleep(CONNECT_PAUSE);
}

fn format(end: &Endpoint) -> String {
    let gid: String = end.gid.raw().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{:04x}:{:06x}:{:06x}:{gid}\0", 0, end.qpn.value(), end.psn.value())
}

fn parse(message: &[u8]) -> Option<Endpoint> {
    let text = std::str::from_utf8(message.strip_suffix(b"\0")?).ok()?;
    let mut fields = text.split(':');
    let lid = fields.next()?;
    let (qpn, psn, gid) = (fields.next()?, fields.next()?, fields.next()?);
    if fields.next().is_some() || lid.len() != 4 || qpn.len() != 6 || psn.len() != 6 || gid.len() != 32 {
        return None;
    }
    u16::from_str_radix(lid, 16).ok()?;
    Some(Endpoint {
        qpn: Qpn::new(u32::from_str_radix(qpn, 16).ok()?),
        psn: Psn::new(u32::from_str_radix(psn, 16).ok()?),
        gid: Gid::new(u128::from_str_radix(gid, 16).ok()?.to_be_bytes()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_is_what_the_stock_tool_sends() {
        let line = b"0000:000011:91333b:00000000000000000000ffff0a4d0002\0";
        let end = parse(line).expect("a captured line");
        assert_eq!(end.gid, Gid::from(Ipv4Addr::new(10, 77, 0, 2)));
        assert_eq!((end.qpn.value(), end.psn.value()), (0x11, 0x91_333b));
        assert_eq!(format(&end).as_bytes(), line);
    }

    #[test]
    fn other_lines_are_refused() {
        for line in [
            &b"0000:000011:91333b:00000000000000000000ffff0a4d0002"[..],
            b"0000:000011:91333b:00000000000000000000ffff0a4d000g\0",
            b"0000:00011:091333b:00000000000000000000ffff0a4d0002\0",
            b"\0",
            b"\xff\0",
        ] {
            assert_eq!(parse(line), None, "{line:?}");
        }
    }
}
