//! Many datagrams with one system call, with their ancillary data.

#![expect(
    clippy::cast_possible_truncation,
    clippy::unnecessary_cast,
    reason = "sizes of C types and counts up to 64, in fields whose types differ between C libraries"
)]

use std::fmt;
use std::io;
use std::mem::{MaybeUninit, zeroed};
use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6};
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use libc::{c_int, c_void, iovec, mmsghdr, msghdr};
use socket2::SockAddr;

/// Most datagrams of one call.
pub(crate) const BURST: usize = 64;

/// 8-byte words of ancillary data per datagram: room for every option that a back end switches on.
const CONTROL_WORDS: usize = 32;
const CONTROL_LEN: usize = CONTROL_WORDS * 8;

/// Ancillary data to send, built item by item.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ControlBuf {
    words: [u64; 9],
    len: usize,
}

impl ControlBuf {
    /// Adds an integer item. There is room for three items, and a fourth is a mistake of the caller.
    pub(crate) fn push(&mut self, level: c_int, kind: c_int, value: c_int) {
        self.push_value(level, kind, value);
    }

    /// Adds the item that makes the kernel send a datagram as several of `len` bytes each, the last perhaps shorter.
    pub(crate) fn push_segment_len(&mut self, len: u16) {
        self.push_value(libc::SOL_UDP, libc::UDP_SEGMENT, len);
    }

    /// Adds an item whose value is an integer, up to four bytes.
    fn push_value<T: Copy>(&mut self, level: c_int, kind: c_int, value: T) {
        const { assert!(size_of::<T>() <= size_of::<c_int>()) };
        let len = size_of::<T>() as u32;
        // SAFETY: pure arithmetic on a constant.
        let (space, cmsg_len) = unsafe { (libc::CMSG_SPACE(len) as usize, libc::CMSG_LEN(len) as usize) };
        assert!(self.len + space <= size_of_val(&self.words), "room for the item");
        // SAFETY: all zero is a legal cmsghdr.
        let mut header: libc::cmsghdr = unsafe { zeroed() };
        header.cmsg_len = cmsg_len as _;
        header.cmsg_level = level;
        header.cmsg_type = kind;
        let at = self.words.as_mut_ptr().cast::<u8>();
        // SAFETY: `len + space` is within `words` (asserted above), and `len` is a sum of CMSG_SPACEs, so
        // the header is aligned as the words are and the value follows it at the place that CMSG_DATA names.
        unsafe {
            let item = at.add(self.len);
            item.cast::<libc::cmsghdr>().write(header);
            libc::CMSG_DATA(item.cast::<libc::cmsghdr>()).cast::<T>().write_unaligned(value);
        }
        self.len += space;
    }
}

/// A datagram to send: its parts are sent as one.
#[derive(Clone, Copy)]
pub(crate) struct Outgoing<'a> {
    /// Bytes, in order; may be empty.
    pub(crate) parts: [&'a [u8]; 3],
    /// Where to; `None` for a socket that knows.
    pub(crate) to: Option<&'a SockAddr>,
    /// Ancillary data.
    pub(crate) control: Option<&'a ControlBuf>,
}

/// Sends up to [`BURST`] of `messages` and returns how many the kernel took. An error is that of the first.
pub(crate) fn send_many<'a>(
    fd: BorrowedFd<'_>,
    messages: impl Iterator<Item = Outgoing<'a>>,
) -> io::Result<usize> {
    // Written as far as they are used: most calls send one.
    let mut headers = [const { MaybeUninit::<mmsghdr>::uninit() }; BURST];
    let mut parts = [const { MaybeUninit::<[iovec; 3]>::uninit() }; BURST];
    let mut count = 0;
    for ((message, header), parts) in messages.zip(&mut headers).zip(&mut parts) {
        let part = |bytes: &[u8]| iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let parts = parts.write(message.parts.map(part));
        // SAFETY: plain old data, all zero is a legal value.
        let header = &mut header.write(unsafe { zeroed() }).msg_hdr;
        header.msg_iov = parts.as_mut_ptr();
        header.msg_iovlen = parts.len() as _;
        if let Some(to) = message.to {
            header.msg_name = to.as_ptr().cast_mut().cast::<c_void>();
            header.msg_namelen = to.len();
        }
        if let Some(control) = message.control.filter(|control| control.len > 0) {
            header.msg_control = control.words.as_ptr().cast_mut().cast();
            header.msg_controllen = control.len as _;
        }
        count += 1;
    }
    if count == 0 {
        return Ok(0);
    }
    let headers = headers.as_mut_ptr().cast::<mmsghdr>();
    // SAFETY: the first `count` headers were written above and point to parts, addresses and ancillary data
    // that are borrowed for 'a or are locals, so all live through the call; the kernel only reads what they
    // point to.
    let sent = unsafe { libc::sendmmsg(fd.as_raw_fd(), headers, count, libc::MSG_DONTWAIT as _) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// What came with the datagrams received last: senders and ancillary data. Their bytes are where the caller said.
pub(crate) struct Inbox {
    control: Vec<[u64; CONTROL_WORDS]>,
    names: Vec<libc::sockaddr_storage>,
    got: Vec<Got>,
}

/// Sizes of what was written for one datagram.
#[derive(Clone, Copy)]
struct Got {
    start: usize,
    len: usize,
    control_len: usize,
    truncated: bool,
}

/// One received datagram.
pub(crate) struct Incoming<'a> {
    /// Where its bytes are in the room that was given.
    pub(crate) at: Range<usize>,
    /// Whether it was longer than its place.
    pub(crate) truncated: bool,
    name: &'a libc::sockaddr_storage,
    control: &'a [u64],
    control_len: usize,
}

/// One item of ancillary data.
pub(crate) struct Control<'a> {
    /// Protocol level.
    pub(crate) level: c_int,
    /// Kind, unique within the level.
    pub(crate) kind: c_int,
    /// Value.
    pub(crate) data: &'a [u8],
}

impl Control<'_> {
    /// Whether it is of this level and kind.
    pub(crate) fn is(&self, level: c_int, kind: c_int) -> bool {
        (self.level, self.kind) == (level, kind)
    }

    /// The value as a number: the kernel writes one byte or a native integer.
    pub(crate) fn number(&self) -> Option<u32> {
        match self.data {
            [byte] => Some(u32::from(*byte)),
            [a, b, c, d, ..] => Some(u32::from_ne_bytes([*a, *b, *c, *d])),
            _ => None,
        }
    }
}

impl fmt::Debug for Inbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbox").field("got", &self.got.len()).finish()
    }
}

impl Inbox {
    /// An inbox for up to [`BURST`] datagrams a call.
    pub(crate) fn new() -> Self {
        Self {
            control: vec![[0; CONTROL_WORDS]; BURST],
            // SAFETY: all zero is a legal address of no family.
            names: vec![unsafe { zeroed() }; BURST],
            got: Vec::with_capacity(BURST),
        }
    }

    /// Receives datagrams without waiting, each into `size` bytes of `room`, at most [`BURST`]; forgets those of
    /// the call before. Returns how many; 0 when there are none.
    pub(crate) fn receive(&mut self, fd: BorrowedFd<'_>, room: &mut [u8], size: usize) -> io::Result<usize> {
        self.got.clear();
        // Written as far as they are used.
        let mut headers = [const { MaybeUninit::<mmsghdr>::uninit() }; BURST];
        let mut parts = [const { MaybeUninit::<iovec>::uninit() }; BURST];
        let slots = room.chunks_exact_mut(size).zip(&mut self.control).zip(&mut self.names);
        let mut slot_count = 0;
        for (((data, control), name), (header, part)) in slots.zip(headers.iter_mut().zip(&mut parts)) {
            let part = part.write(iovec { iov_base: data.as_mut_ptr().cast(), iov_len: data.len() });
            // SAFETY: plain old data, all zero is a legal value.
            let header = header.write(unsafe { zeroed() });
            header.msg_hdr = msghdr {
                msg_name: ptr::from_mut(name).cast(),
                msg_namelen: size_of::<libc::sockaddr_storage>() as _,
                msg_iov: part,
                msg_iovlen: 1,
                msg_control: control.as_mut_ptr().cast(),
                msg_controllen: CONTROL_LEN as _,
                ..header.msg_hdr
            };
            slot_count += 1;
        }
        // SAFETY: the first `slot_count` headers were written above with pointers to places in `room` and
        // `self` that do not overlap and to locals, each with its true size; all live through the call and
        // nothing else refers to them.
        let count = unsafe {
            libc::recvmmsg(
                fd.as_raw_fd(),
                headers.as_mut_ptr().cast::<mmsghdr>(),
                slot_count,
                libc::MSG_DONTWAIT as _,
                ptr::null_mut(),
            )
        };
        let Ok(count) = usize::try_from(count) else {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(0),
                _ => Err(error),
            };
        };
        self.got.extend(headers[..count.min(slot_count as usize)].iter().enumerate().map(|(i, header)| {
            // SAFETY: of the headers that the kernel filled, each was written before.
            let header = unsafe { header.assume_init_ref() };
            Got {
                start: i * size,
                len: (header.msg_len as usize).min(size),
                control_len: (header.msg_hdr.msg_controllen as usize).min(CONTROL_LEN),
                truncated: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
            }
        }));
        Ok(count)
    }

    /// The datagrams of the last call.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Incoming<'_>> {
        let slots = self.control.iter().zip(&self.names);
        self.got.iter().zip(slots).map(|(got, (control, name))| Incoming {
            at: got.start..got.start + got.len,
            truncated: got.truncated,
            name,
            control,
            control_len: got.control_len,
        })
    }
}

impl<'a> Incoming<'a> {
    /// Sender, where the socket speaks IP.
    pub(crate) fn sender(&self) -> Option<SocketAddr> {
        match c_int::from(self.name.ss_family) {
            libc::AF_INET => {
                // SAFETY: a sockaddr_storage is larger than, and aligned for, any socket address; the family
                // says that the kernel wrote one of this kind.
                let name = unsafe { &*ptr::from_ref(self.name).cast::<libc::sockaddr_in>() };
                let addr = name.sin_addr.s_addr.to_ne_bytes().into();
                Some(SocketAddr::V4(SocketAddrV4::new(addr, u16::from_be(name.sin_port))))
            }
            libc::AF_INET6 => {
                // SAFETY: as above.
                let name = unsafe { &*ptr::from_ref(self.name).cast::<libc::sockaddr_in6>() };
                let port = u16::from_be(name.sin6_port);
                let addr = name.sin6_addr.s6_addr.into();
                Some(SocketAddr::V6(SocketAddrV6::new(addr, port, name.sin6_flowinfo, name.sin6_scope_id)))
            }
            _ => None,
        }
    }

    /// Ancillary data.
    pub(crate) fn control(&self) -> impl Iterator<Item = Control<'a>> {
        // SAFETY: any bytes of the words are initialized, and the length is theirs.
        let mut rest = unsafe { std::slice::from_raw_parts(self.control.as_ptr().cast::<u8>(), CONTROL_LEN) };
        rest = &rest[..self.control_len];
        std::iter::from_fn(move || {
            let header = rest.get(..size_of::<libc::cmsghdr>())?;
            // SAFETY: the slice has the size of a cmsghdr, of which any bytes are a legal value.
            let header = unsafe { header.as_ptr().cast::<libc::cmsghdr>().read_unaligned() };
            // SAFETY: pure arithmetic on a constant.
            let data_at = unsafe { libc::CMSG_LEN(0) } as usize;
            let len = header.cmsg_len as usize;
            let data = rest.get(data_at..len)?;
            // SAFETY: pure arithmetic; the slice above shows that `len` is at most the buffer's.
            let space = unsafe { libc::CMSG_SPACE((len - data_at) as u32) } as usize;
            rest = rest.get(space..).unwrap_or_default();
            Some(Control { level: header.cmsg_level, kind: header.cmsg_type, data })
        })
    }
}
