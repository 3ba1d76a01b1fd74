//! Socket options, interface requests and a bounded wait.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::time::Duration;

use libc::{c_int, socklen_t};

#[expect(clippy::cast_possible_truncation, reason = "the size of an int")]
const INT_LEN: socklen_t = size_of::<c_int>() as socklen_t;

/// Turns the -1 of a system call into its error.
pub(super) fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Sets an integer socket option.
pub(crate) fn set_option(fd: impl AsFd, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    let fd = fd.as_fd();
    // SAFETY: the pointer and the length describe `value`, which lives through the call; the kernel only
    // reads it.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const value).cast(), INT_LEN) })
        .map(drop)
}

/// Makes `program` choose which of the sockets that are bound to the same address and port gets a packet: by its
/// result, in the order of their binding.
pub(crate) fn choose_socket_by(fd: impl AsFd, program: &mut [libc::sock_filter]) -> io::Result<()> {
    let len = u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let program = libc::sock_fprog { len, filter: program.as_mut_ptr() };
    #[expect(clippy::cast_possible_truncation, reason = "the size of a small structure")]
    let size = size_of::<libc::sock_fprog>() as socklen_t;
    // SAFETY: the pointer and the length describe `program`, whose own pointer and length describe a slice; both live
    // through the call, and the kernel copies what it reads.
    check(unsafe {
        libc::setsockopt(
            fd.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            (&raw const program).cast(),
            size,
        )
    })
    .map(drop)
}

/// Waits until `fd` can be read or `limit` has passed; says whether it can.
pub(crate) fn wait_readable(fd: BorrowedFd<'_>, limit: Duration) -> io::Result<bool> {
    let mut entry = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let millis = c_int::try_from(limit.as_millis()).unwrap_or(c_int::MAX);
    // SAFETY: one entry, which lives through the call.
    match check(unsafe { libc::poll(&raw mut entry, 1, millis) }) {
        Ok(ready) => Ok(ready > 0),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(false),
        Err(error) => Err(error),
    }
}

/// Waits until something that `poll` watches is ready or `limit` has passed, and says whether anything is, which stays to
/// be fetched from the poll. Polls count milliseconds; this does not.
pub(crate) fn wait_precisely(poll: &impl AsRawFd, limit: Duration) -> io::Result<bool> {
    let mut entry = libc::pollfd { fd: poll.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let limit = libc::timespec {
        tv_sec: limit.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_nsec: limit.subsec_nanos().into(),
    };
    // SAFETY: one entry and one time, which live through the call; no signal mask.
    check(unsafe { libc::ppoll(&raw mut entry, 1, &raw const limit, ptr::null()) }).map(|ready| ready > 0)
}

/// Lets waits of the calling thread end when they are to, rather than up to 50 microseconds later together with others'.
pub(crate) fn wake_in_time() {
    // SAFETY: takes no pointers. Where it fails, waits are as long as ever.
    let _ = unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong, 0, 0, 0) };
}

/// A descriptor that is readable while what was written to it is more than what was read: each write adds a number,
/// each read takes one away, and none of them waits.
pub(crate) fn event_counter() -> io::Result<File> {
    // SAFETY: takes no pointers.
    let fd =
        check(unsafe { libc::eventfd(0, libc::EFD_SEMAPHORE | libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
    // SAFETY: the call gave this descriptor to us, and nobody else knows of it.
    Ok(File::from(unsafe { OwnedFd::from_raw_fd(fd) }))
}

/// An interface request that names `interface` and is otherwise zero.
fn interface_request(interface: &str) -> io::Result<libc::ifreq> {
    // SAFETY: an ifreq is plain old data, all zero is a legal value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays zero: the kernel wants a terminated name.
    if interface.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *to = from.cast_signed();
    }
    Ok(request)
}

/// MTU of an interface: the largest IP packet it carries.
pub(crate) fn interface_mtu(fd: impl AsFd, interface: &str) -> io::Result<u32> {
    let mut request = interface_request(interface)?;
    // SAFETY: the request lives through the call, is of the type that this ioctl reads and writes, and holds
    // a terminated name.
    check(unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), libc::SIOCGIFMTU as _, &raw mut request) })?;
    // SAFETY: a successful SIOCGIFMTU wrote this member of the union.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    u32::try_from(mtu).map_err(|_| io::ErrorKind::InvalidData.into())
}
