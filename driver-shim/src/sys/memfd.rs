//! Memory that is handed from one process to another: files without a name, and descriptors sent over a socket.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::mem::zeroed;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use libc::{c_int, c_void};

use super::socket::check;

/// Length of one descriptor as ancillary data.
#[expect(clippy::cast_possible_truncation, reason = "the size of an int")]
const FD_LEN: u32 = size_of::<c_int>() as u32;

/// Words of ancillary data that hold one descriptor.
const CONTROL_WORDS: usize = 4;

/// A file in memory of `len` bytes, all zero, that nobody can make shorter or longer.
pub(crate) fn sealed_memory(name: &CStr, len: u64) -> io::Result<File> {
    // SAFETY: the name is terminated and lives through the call.
    let fd =
        check(unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) })?;
    // SAFETY: the call gave this descriptor to us, and nobody else knows of it.
    let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    file.set_len(len)?;
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    // SAFETY: takes no pointers.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) })?;
    Ok(file)
}

/// Whether nobody can make `file` shorter. False for what is no file in memory.
pub(crate) fn is_sealed_against_shrinking(file: impl AsFd) -> bool {
    // SAFETY: takes no pointers.
    let seals = unsafe { libc::fcntl(file.as_fd().as_raw_fd(), libc::F_GET_SEALS) };
    seals >= 0 && seals & libc::F_SEAL_SHRINK != 0
}

/// Sends `bytes` and the descriptor `passed` as one message, without waiting.
pub(crate) fn send_with_descriptor(socket: impl AsFd, bytes: &[u8], passed: impl AsFd) -> io::Result<()> {
    let mut control = [0u64; CONTROL_WORDS];
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: plain old data, all zero is a legal value.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast::<c_void>();
    // SAFETY: pure arithmetic on a constant.
    let (space, len) = unsafe { (libc::CMSG_SPACE(FD_LEN), libc::CMSG_LEN(FD_LEN)) };
    debug_assert!(space as usize <= size_of_val(&control), "room for one descriptor");
    message.msg_controllen = space as _;
    // SAFETY: the ancillary data is `control`, aligned and long enough for one item of one descriptor, so the first
    // item exists and its value lies within.
    unsafe {
        let item = libc::CMSG_FIRSTHDR(&raw const message);
        (*item).cmsg_level = libc::SOL_SOCKET;
        (*item).cmsg_type = libc::SCM_RIGHTS;
        (*item).cmsg_len = len as _;
        libc::CMSG_DATA(item).cast::<c_int>().write_unaligned(passed.as_fd().as_raw_fd());
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the message points to locals and to `bytes`, which live through the call; the kernel only reads them.
    let sent = unsafe { libc::sendmsg(socket.as_fd().as_raw_fd(), &raw const message, flags) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Receives a message into `bytes`, without waiting: its length, and the first descriptor that came with it. Others are
/// closed.
pub(crate) fn receive_with_descriptor(
    socket: impl AsFd,
    bytes: &mut [u8],
) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut control = [0u64; CONTROL_WORDS];
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: plain old data, all zero is a legal value.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast::<c_void>();
    message.msg_controllen = size_of_val(&control) as _;
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the message points to locals and to `bytes` with their true sizes; all live through the call.
    let got = unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &raw mut message, flags) };
    let got = usize::try_from(got).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: pure arithmetic on a constant.
    let data_at = unsafe { libc::CMSG_LEN(0) } as usize;
    let mut passed = Vec::new();
    // SAFETY: the kernel wrote `msg_controllen` bytes of whole items to `control`, which lives on; the first and the
    // next of them are found by its own macros.
    let mut item = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    while !item.is_null() {
        // SAFETY: `item` is one that the kernel wrote.
        let header = unsafe { item.read_unaligned() };
        if (header.cmsg_level, header.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            let count = (header.cmsg_len as usize).saturating_sub(data_at) / size_of::<c_int>();
            for i in 0..count {
                // SAFETY: the item holds `count` descriptors, which the kernel has given to this process with this
                // call; nobody else knows of them.
                passed.push(unsafe {
                    let fd = libc::CMSG_DATA(item).cast::<c_int>().add(i).read_unaligned();
                    OwnedFd::from_raw_fd(fd)
                });
            }
        }
        // SAFETY: as for the first.
        item = unsafe { libc::CMSG_NXTHDR(&raw const message, item) };
    }
    Ok((got, passed.into_iter().next()))
}

/// Locks `file` against other openings of it, until it is closed; false where another has it locked.
pub(crate) fn try_lock(file: &File) -> io::Result<bool> {
    // SAFETY: takes no pointers.
    match check(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) }) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error),
    }
}

/// The user that this process acts as.
pub(crate) fn effective_user() -> u32 {
    // SAFETY: takes no pointers and cannot fail.
    unsafe { libc::geteuid() }
}

#[cfg(test)]
mod tests {
    use socket2::{Domain, Socket, Type};

    use super::*;
    use crate::sys::Mapping;

    #[test]
    fn memory_reaches_the_other_end_of_a_socket_and_cannot_be_shortened() {
        let (near, far) = Socket::pair(Domain::UNIX, Type::SEQPACKET, None).expect("sockets");
        let file = sealed_memory(c"test", 8192).expect("memory");
        assert!(is_sealed_against_shrinking(&file) && file.set_len(4096).is_err());
        assert!(!is_sealed_against_shrinking(&near));
        send_with_descriptor(&near, b"here", &file).expect("sends");
        let mut bytes = [0; 16];
        let (len, passed) = receive_with_descriptor(&far, &mut bytes).expect("receives");
        assert_eq!(&bytes[..len], b"here");
        let ours = Mapping::shared(&file, 8192, 0).expect("maps");
        let theirs = Mapping::shared(passed.expect("a descriptor"), 8192, 0).expect("maps");
        assert!(ours.write(8000, &[7; 3]));
        let mut out = [0; 3];
        assert!(theirs.read(8000, &mut out));
        assert_eq!(out, [7; 3]);
        near.send(b"no more").expect("sends");
        let (len, passed) = receive_with_descriptor(&far, &mut bytes).expect("receives");
        assert!(len == 7 && passed.is_none());
    }
}
