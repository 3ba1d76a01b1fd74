//! Maps, programs and links of the kernel's packet filter machine, through `bpf(2)`.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

/// One instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Instruction {
    /// Class, operation and kind of operand.
    pub(crate) code: u8,
    /// Destination register, and source register times 16.
    pub(crate) registers: u8,
    /// Jump distance, or offset in memory.
    pub(crate) offset: i16,
    /// Constant.
    pub(crate) constant: i32,
}

const MAP_CREATE: u32 = 0;
const MAP_UPDATE_ELEM: u32 = 2;
const PROG_LOAD: u32 = 5;
const LINK_CREATE: u32 = 28;
const MAP_TYPE_XSKMAP: u32 = 17;
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
const HAS_FRAGS: u32 = 1 << 5;

/// Where an XDP program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpMode {
    /// In the driver.
    Native,
    /// In the kernel's receive path, with any driver.
    Generic,
}

#[derive(Default)]
#[repr(C)]
struct MapAttr {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    flags: u32,
}

#[derive(Default)]
#[repr(C)]
struct UpdateAttr {
    map: u32,
    pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[derive(Default)]
#[repr(C)]
struct LoadAttr {
    prog_type: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    ifindex: u32,
    attach_type: u32,
}

#[derive(Default)]
#[repr(C)]
struct LinkAttr {
    program: u32,
    interface: u32,
    attach_type: u32,
    flags: u32,
}

/// Calls `bpf(2)` with `attr`, whose addresses must be those of live memory of the sizes that it says.
fn call<T>(command: u32, attr: &mut T) -> io::Result<i32> {
    // SAFETY: the size is that of the attributes, which the kernel takes as the first part of its union and copies.
    // Callers are those of this file: the addresses in their attributes are of memory that they borrow through the
    // call.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attr), size_of::<T>()) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    i32::try_from(result).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// As [`call`], for the commands that give a descriptor.
fn call_for_descriptor<T>(command: u32, attr: &mut T) -> io::Result<OwnedFd> {
    let fd = call(command, attr)?;
    // SAFETY: the kernel gave this descriptor to us, and nobody else knows of it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn number(fd: impl AsFd) -> u32 {
    fd.as_fd().as_raw_fd().cast_unsigned()
}

/// A map from receive queues to AF_XDP sockets.
pub(crate) fn socket_map(queues: u32) -> io::Result<OwnedFd> {
    let attr =
        MapAttr { map_type: MAP_TYPE_XSKMAP, key_size: 4, value_size: 4, max_entries: queues, flags: 0 };
    call_for_descriptor(MAP_CREATE, &mut { attr })
}

/// Puts `socket` into `map` for `queue`.
pub(crate) fn set_socket(map: impl AsFd, queue: u32, socket: impl AsFd) -> io::Result<()> {
    let value = number(socket);
    let mut attr = UpdateAttr {
        map: number(map),
        key: (&raw const queue).expose_provenance() as u64,
        value: (&raw const value).expose_provenance() as u64,
        ..UpdateAttr::default()
    };
    call(MAP_UPDATE_ELEM, &mut attr).map(drop)
}

/// Loads an XDP program that takes packets of several pieces.
pub(crate) fn load_xdp(instructions: &[Instruction], license: &CStr) -> io::Result<OwnedFd> {
    let count = u32::try_from(instructions.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut attr = LoadAttr {
        prog_type: PROG_TYPE_XDP,
        count,
        instructions: instructions.as_ptr().expose_provenance() as u64,
        license: license.as_ptr().expose_provenance() as u64,
        flags: HAS_FRAGS,
        attach_type: ATTACH_XDP,
        name: *b"ferroce_redirect",
        ..LoadAttr::default()
    };
    // The kernel wants the name terminated.
    attr.name[15] = 0;
    call_for_descriptor(PROG_LOAD, &mut attr)
}

/// Attaches `program` to `interface` until what is returned is closed, or the process ends.
pub(crate) fn attach_xdp(program: impl AsFd, interface: u32, mode: XdpMode) -> io::Result<OwnedFd> {
    let flags = match mode {
        XdpMode::Generic => 1 << 1,
        XdpMode::Native => 1 << 2,
    };
    let mut attr = LinkAttr { program: number(program), interface, attach_type: ATTACH_XDP, flags };
    call_for_descriptor(LINK_CREATE, &mut attr)
}
