//! Packet sockets: binding them to an interface, and its promiscuous mode.

use std::io;
use std::mem::zeroed;
use std::os::fd::{AsFd, AsRawFd};

use libc::{c_int, socklen_t};

use super::socket::check;

#[expect(clippy::cast_possible_truncation, reason = "sizes of small structs")]
const fn len_of<T>() -> socklen_t {
    size_of::<T>() as socklen_t
}

fn index(interface: u32) -> io::Result<c_int> {
    c_int::try_from(interface).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// Binds a packet socket to `interface`; from now on it receives every frame that passes its filter.
pub(crate) fn bind_link(fd: impl AsFd, interface: u32) -> io::Result<()> {
    // SAFETY: plain old data, all zero is a legal value.
    let mut address: libc::sockaddr_ll = unsafe { zeroed() };
    address.sll_family = libc::sa_family_t::try_from(libc::AF_PACKET).unwrap_or_default();
    address.sll_protocol = u16::try_from(libc::ETH_P_ALL).unwrap_or_default().to_be();
    address.sll_ifindex = index(interface)?;
    // SAFETY: the pointer and the length describe `address`, which lives through the call; the kernel only
    // reads it.
    check(unsafe {
        libc::bind(fd.as_fd().as_raw_fd(), (&raw const address).cast(), len_of::<libc::sockaddr_ll>())
    })
    .map(drop)
}

/// Makes `interface` pass on frames to any Ethernet address, until the socket is closed.
pub(crate) fn join_promiscuous(fd: impl AsFd, interface: u32) -> io::Result<()> {
    membership(fd, libc::PACKET_ADD_MEMBERSHIP, interface, libc::PACKET_MR_PROMISC, [0; 6])
}

/// Makes `interface` pass on frames to a group's Ethernet address, until the socket is closed.
pub(crate) fn join_ethernet_group(fd: impl AsFd, interface: u32, group: [u8; 6]) -> io::Result<()> {
    membership(fd, libc::PACKET_ADD_MEMBERSHIP, interface, libc::PACKET_MR_MULTICAST, group)
}

/// Undoes [`join_ethernet_group`].
pub(crate) fn leave_ethernet_group(fd: impl AsFd, interface: u32, group: [u8; 6]) -> io::Result<()> {
    membership(fd, libc::PACKET_DROP_MEMBERSHIP, interface, libc::PACKET_MR_MULTICAST, group)
}

fn membership(fd: impl AsFd, option: c_int, interface: u32, kind: c_int, mac: [u8; 6]) -> io::Result<()> {
    // SAFETY: plain old data, all zero is a legal value.
    let mut request: libc::packet_mreq = unsafe { zeroed() };
    request.mr_ifindex = index(interface)?;
    request.mr_type = u16::try_from(kind).unwrap_or_default();
    request.mr_alen = 6;
    request.mr_address[..6].copy_from_slice(&mac);
    // SAFETY: the pointer and the length describe `request`, which lives through the call; the kernel only
    // reads it.
    check(unsafe {
        libc::setsockopt(
            fd.as_fd().as_raw_fd(),
            libc::SOL_PACKET,
            option,
            (&raw const request).cast(),
            len_of::<libc::packet_mreq>(),
        )
    })
    .map(drop)
}
