//! Where devices of one user find each other: a directory that is theirs alone, with a socket for each address.
//!
//! The owner of an address holds a lock as long as it lives, so what a dead one has left behind is told from what is in
//! use. Whoever sends to an address connects to its socket and hands over the memory that it will write to.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use socket2::{Domain, SockAddr, Socket, Type};

use super::records::{Reader, Writer};
use crate::backend::OpenError;
use crate::sys;

/// First bytes of a greeting; the last counts changes of the format.
const MAGIC: [u8; 8] = *b"FERROCE\x01";

/// Bytes of a greeting: the magic and the sender's address, an IPv4 one mapped to IPv6.
const GREETING: usize = MAGIC.len() + 16;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// An address that is held: its socket, which is removed when this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) listener: Socket,
    path: PathBuf,
    /// Holds the lock.
    _lock: File,
}

impl Place {
    /// Takes `address`, which a dead owner may have left.
    pub(super) fn take(directory: &Path, address: IpAddr) -> Result<Self, OpenError> {
        let failed = OpenError::io("make a socket for devices of this user");
        let open = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(directory.join(format!("{address}.lock")));
        let lock = open.map_err(OpenError::io("open a lock file"))?;
        if !sys::try_lock(&lock).map_err(OpenError::io("lock a file"))? {
            return Err(OpenError::AddressInMemory { address });
        }
        let path = directory.join(address.to_string());
        // The lock is ours, so whoever bound it is gone.
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        let listener = Socket::new(Domain::UNIX, Type::SEQPACKET, None).map_err(&failed)?;
        listener.set_nonblocking(true).map_err(&failed)?;
        listener.bind(&SockAddr::unix(&path).map_err(&failed)?).map_err(&failed)?;
        listener.listen(BACKLOG).map_err(&failed)?;
        Ok(Self { listener, path, _lock: lock })
    }

    /// The next device that has connected, if there is one.
    pub(super) fn accept(&self) -> Option<Socket> {
        let (socket, _) = self.listener.accept().ok()?;
        socket.set_nonblocking(true).ok()?;
        Some(socket)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::debug!(%error, "the socket of a device is gone already");
        }
    }
}

/// Connects the device at `own` to that at `to`, and hands it new memory to read from.
pub(super) fn connect(directory: &Path, own: IpAddr, to: IpAddr) -> io::Result<(Socket, Writer)> {
    let socket = Socket::new(Domain::UNIX, Type::SEQPACKET, None)?;
    socket.set_nonblocking(true)?;
    socket.connect(&SockAddr::unix(directory.join(to.to_string()))?)?;
    let (writer, file) = Writer::new()?;
    let mut greeting = [0; GREETING];
    greeting[..MAGIC.len()].copy_from_slice(&MAGIC);
    let mapped = match own {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    greeting[MAGIC.len()..].copy_from_slice(&mapped.octets());
    sys::send_with_descriptor(&socket, &greeting, file)?;
    Ok((socket, writer))
}

/// Reads the greeting of a device that has connected: its address and what it writes to. `None` where it has not come
/// yet.
pub(super) fn greeting(socket: &Socket) -> io::Result<Option<(IpAddr, Reader)>> {
    let mut bytes = [0; GREETING + 1];
    let (len, passed) = match sys::receive_with_descriptor(socket, &mut bytes) {
        Ok(got) => got,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
        Err(error) => return Err(error),
    };
    let strange =
        || io::Error::other("a device greets in a way that is not understood; is it of another version?");
    let (magic, address) = bytes[..len].split_first_chunk().ok_or_else(strange)?;
    let address: [u8; 16] = address.try_into().map_err(|_| strange())?;
    if *magic != MAGIC {
        return Err(strange());
    }
    let reader = Reader::new(passed.ok_or_else(strange)?)?;
    Ok(Some((Ipv6Addr::from(address).to_canonical(), reader)))
}
