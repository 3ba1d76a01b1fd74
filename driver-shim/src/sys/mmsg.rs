//! Many datagrams with one system call, with their ancillary data.

#![expect(
    clippy::cast_possible_truncation,
    clippy::unnecessary_cast,
    reason = "sizes of C types and counts up to 64, in fields whose types differ between C libraries"
)]

use std::fmt;
use std::io;
use std::mem::zeroed;
use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6};
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
    words: [u64; 8],
    len: usize,
}

impl ControlBuf {
    /// Adds an integer item. There is room for two, and a third is a mistake of the caller.
    pub(crate) fn push(&mut self, level: c_int, kind: c_int, value: c_int) {
        // SAFETY: pure arithmetic on a constant.
        let (space, cmsg_len) =
            unsafe { (libc::CMSG_SPACE(INT_LEN) as usize, libc::CMSG_LEN(INT_LEN) as usize) };
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
            libc::CMSG_DATA(item.cast::<libc::cmsghdr>()).cast::<c_int>().write_unaligned(value);
        }
        self.len += space;
    }
}

const INT_LEN: u32 = size_of::<c_int>() as u32;

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
    // SAFETY: both are plain old data, all zero is a legal value.
    let (mut headers, mut parts): ([mmsghdr; BURST], [[iovec; 3]; BURST]) = unsafe { (zeroed(), zeroed()) };
    let mut count = 0;
    for ((message, header), parts) in messages.zip(&mut headers).zip(&mut parts) {
        for (part, bytes) in parts.iter_mut().zip(message.parts) {
            *part = iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        }
        let header = &mut header.msg_hdr;
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
    // SAFETY: the first `count` headers point to parts, addresses and ancillary data that are borrowed for
    // 'a or are locals, so all live through the call; the kernel only reads what they point to.
    let sent =
        unsafe { libc::sendmmsg(fd.as_raw_fd(), headers.as_mut_ptr(), count, libc::MSG_DONTWAIT as _) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Buffers for [`BURST`] datagrams, and the datagrams received last.
pub(crate) struct Inbox {
    size: usize,
    data: Vec<u8>,
    control: Vec<[u64; CONTROL_WORDS]>,
    names: Vec<libc::sockaddr_storage>,
    got: Vec<Got>,
}

/// Sizes of what was written for one datagram.
#[derive(Clone, Copy)]
struct Got {
    len: usize,
    control_len: usize,
    truncated: bool,
}

/// One received datagram.
pub(crate) struct Incoming<'a> {
    /// Its bytes.
    pub(crate) data: &'a [u8],
    /// Whether it was longer than the buffer.
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
        f.debug_struct("Inbox").field("size", &self.size).field("got", &self.got.len()).finish()
    }
}

impl Inbox {
    /// Buffers for datagrams of up to `size` bytes.
    pub(crate) fn new(size: usize) -> Self {
        Self {
            size,
            data: vec![0; size * BURST],
            control: vec![[0; CONTROL_WORDS]; BURST],
            // SAFETY: all zero is a legal address of no family.
            names: vec![unsafe { zeroed() }; BURST],
            got: Vec::with_capacity(BURST),
        }
    }

    /// Receives up to `limit` datagrams without waiting; forgets those of the call before. Returns how many;
    /// 0 when there are none.
    pub(crate) fn receive(&mut self, fd: BorrowedFd<'_>, limit: usize) -> io::Result<usize> {
        self.got.clear();
        let limit = limit.min(BURST);
        // SAFETY: both are plain old data, all zero is a legal value.
        let (mut headers, mut parts): ([mmsghdr; BURST], [iovec; BURST]) = unsafe { (zeroed(), zeroed()) };
        let buffers = self.data.chunks_exact_mut(self.size);
        let slots = buffers.zip(&mut self.control).zip(&mut self.names);
        for (((data, control), name), (header, part)) in slots.zip(headers.iter_mut().zip(&mut parts)) {
            *part = iovec { iov_base: data.as_mut_ptr().cast(), iov_len: data.len() };
            header.msg_hdr = msghdr {
                msg_name: ptr::from_mut(name).cast(),
                msg_namelen: size_of::<libc::sockaddr_storage>() as _,
                msg_iov: part,
                msg_iovlen: 1,
                msg_control: control.as_mut_ptr().cast(),
                msg_controllen: CONTROL_LEN as _,
                ..header.msg_hdr
            };
        }
        // SAFETY: `limit` is at most BURST, and the first BURST headers were filled above with pointers to
        // buffers of `self` and to locals, each with its true size; all live through the call and nothing
        // else refers to them.
        let count = unsafe {
            libc::recvmmsg(
                fd.as_raw_fd(),
                headers.as_mut_ptr(),
                limit as _,
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
        self.got.extend(headers[..count].iter().map(|header| Got {
            len: (header.msg_len as usize).min(self.size),
            control_len: (header.msg_hdr.msg_controllen as usize).min(CONTROL_LEN),
            truncated: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
        }));
        Ok(count)
    }

    /// The datagrams of the last call.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Incoming<'_>> {
        let slots = self.data.chunks_exact(self.size).zip(&self.control).zip(&self.names);
        self.got.iter().zip(slots).map(|(got, ((data, control), name))| Incoming {
            data: &data[..got.len],
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
