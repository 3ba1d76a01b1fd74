//! AF_XDP sockets: set-up, the kick, and what they have lost.

use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use libc::{c_int, c_void, socklen_t};

use super::Mapping;
use super::socket::check;

#[expect(clippy::cast_possible_truncation, reason = "sizes of small structs")]
const fn len_of<T>() -> socklen_t {
    size_of::<T>() as socklen_t
}

/// Where the parts of a ring lie in its mapping.
pub(crate) type RingOffsets = libc::xdp_ring_offset;

/// A new AF_XDP socket.
pub(crate) fn xdp_socket() -> io::Result<OwnedFd> {
    // SAFETY: takes no pointers.
    let fd = check(unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: the call gave this descriptor to us, and nobody else knows of it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Makes `area` the packet memory of the socket, in chunks of `chunk` bytes. The kernel holds on to the pages as long
/// as it uses them, whatever becomes of the mapping.
pub(crate) fn register_packet_memory(fd: BorrowedFd<'_>, area: &Mapping, chunk: u32) -> io::Result<()> {
    // SAFETY: plain old data, all zero is a legal value.
    let mut request: libc::xdp_umem_reg = unsafe { zeroed() };
    request.addr = area.address();
    request.len = area.len() as u64;
    request.chunk_size = chunk;
    // SAFETY: the pointer and the length describe `request`, which lives through the call; the kernel only reads it.
    // The memory it names is mapped, and no reference to any of it exists, so the kernel may write there.
    check(unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_XDP,
            libc::XDP_UMEM_REG,
            (&raw const request).cast(),
            len_of::<libc::xdp_umem_reg>(),
        )
    })
    .map(drop)
}

/// Reads a socket option of plain old data that is valid whatever the kernel writes, and at first all zero.
fn option<T>(fd: BorrowedFd<'_>, name: c_int, mut value: T) -> io::Result<T> {
    let mut len = len_of::<T>();
    let place: *mut c_void = (&raw mut value).cast();
    // SAFETY: the pointer and the length describe `value`, which lives through the call. Callers are those of this
    // file, with structs of integers.
    check(unsafe { libc::getsockopt(fd.as_raw_fd(), libc::SOL_XDP, name, place, &raw mut len) })?;
    Ok(value)
}

/// Where the parts of the socket's rings lie: receive, send, fill and completion.
pub(crate) fn ring_offsets(fd: BorrowedFd<'_>) -> io::Result<[RingOffsets; 4]> {
    // SAFETY: plain old data, all zero is a legal value.
    let none: libc::xdp_mmap_offsets = unsafe { zeroed() };
    let offsets = option(fd, libc::XDP_MMAP_OFFSETS, none)?;
    Ok([offsets.rx, offsets.tx, offsets.fr, offsets.cr])
}

/// Packets that arrived for the socket and were lost: no free chunk, a full ring, or longer than it can take.
pub(crate) fn lost_by_xdp(fd: BorrowedFd<'_>) -> io::Result<u64> {
    // SAFETY: plain old data, all zero is a legal value.
    let none: libc::xdp_statistics = unsafe { zeroed() };
    let all = option(fd, libc::XDP_STATISTICS, none)?;
    Ok(all.rx_dropped + all.rx_ring_full)
}

/// Binds the socket to a receive queue of an interface, for packets of several pieces.
pub(crate) fn bind_xdp(fd: BorrowedFd<'_>, interface: u32, queue: u32) -> io::Result<()> {
    // SAFETY: plain old data, all zero is a legal value.
    let mut address: libc::sockaddr_xdp = unsafe { zeroed() };
    address.sxdp_family = libc::sa_family_t::try_from(libc::AF_XDP).unwrap_or_default();
    address.sxdp_flags = libc::XDP_USE_SG;
    address.sxdp_ifindex = interface;
    address.sxdp_queue_id = queue;
    // SAFETY: the pointer and the length describe `address`, which lives through the call; the kernel only reads it.
    check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len_of::<libc::sockaddr_xdp>()) })
        .map(drop)
}

/// Makes the kernel take from the send ring. It takes some at a time, and says `WouldBlock` where more are left.
pub(crate) fn kick_xdp(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: no bytes and no address are given.
    let sent = unsafe { libc::sendto(fd.as_raw_fd(), ptr::null(), 0, libc::MSG_DONTWAIT, ptr::null(), 0) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
