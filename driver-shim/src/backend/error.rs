//! Why a back end did not open: one line each, with what would be right.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use super::owner::{self, PortOwner};
use crate::interfaces::Interface;

/// Why a back end did not open.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another program holds the RoCE port on this address.
    #[error("UDP port 4791 on {address} is in use by {owner}; bind another address, or end that program")]
    PortInUse {
        /// Address that was asked for.
        address: IpAddr,
        /// Who most likely holds it.
        owner: PortOwner,
    },
    /// The process lacks a capability.
    #[error(
        "no permission for the {backend} back end: it needs {needs} (run as root, or give them to the program \
         with `setcap`); the udp back end needs none"
    )]
    NoPermission {
        /// Back end that was asked for.
        backend: &'static str,
        /// Capabilities that it needs, some of which are missing.
        needs: &'static str,
    },
    /// Another program has the receive queue.
    #[error("receive queue {queue} of {name} is in use by another AF_XDP program; end that program first")]
    QueueInUse {
        /// Name of the interface.
        name: String,
        /// Receive queue that was asked for.
        queue: u32,
    },
    /// The interface has fewer receive queues.
    #[error("{name} has no receive queue {queue}; `ethtool -l {name}` shows how many it has, counted from 0")]
    NoSuchQueue {
        /// Name of the interface.
        name: String,
        /// Receive queue that was asked for.
        queue: u32,
    },
    /// Another XDP program is attached to the interface, in this mode or in another.
    #[error(
        "{name} has an XDP program already, and two do not go together; detach it (`ip link set {name} xdp off`) or \
         end the program that attached it, or use the packet back end"
    )]
    ProgramInUse {
        /// Name of the interface.
        name: String,
    },
    /// The host does not hold this address.
    #[error("{address} is no address of this host; take one that `ip address` shows")]
    NoSuchAddress {
        /// Address that was asked for.
        address: IpAddr,
    },
    /// No host can have this address.
    #[error(
        "{address} is no address that a device can have; bind that of one host, such as 10.0.0.1 or fd00::1"
    )]
    NoHostAddress {
        /// Address that was asked for.
        address: IpAddr,
    },
    /// So many lanes cannot share an address.
    #[error("{count} lanes cannot share an address: choose 1, 2, 4 or 8")]
    NoSuchLanes {
        /// How many were asked for.
        count: u32,
    },
    /// There is no such interface.
    #[error("there is no interface {name}; there are: {}", .known.join(", "))]
    NoSuchInterface {
        /// Name that was asked for.
        name: String,
        /// Names that exist.
        known: Vec<String>,
    },
    /// The interface cannot carry what was asked for.
    #[error("interface {name} {reason}")]
    Interface {
        /// Name of the interface.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// No address was given and none of the loopback addresses is free.
    #[error("no loopback address from 127.0.0.2 to 127.0.0.254 has UDP port 4791 free; bind one explicitly")]
    NoFreeAddress,
    /// The address of a loopback hub is taken.
    #[error("{address} is already attached to this hub")]
    AddressTaken {
        /// Address that was asked for.
        address: IpAddr,
    },
    /// Another device of this user has the address, in shared memory.
    #[error(
        "{address} is in use by another shm device of this user; bind another address, or end that program"
    )]
    AddressInMemory {
        /// Address that was asked for.
        address: IpAddr,
    },
    /// No bridge listens at this path.
    #[error("no bridge at {}: {source}; start one with `ferroce bridge {} --rate 200M`", .path.display(), .path.display())]
    NoBridge {
        /// Path that was asked for.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A bridge takes no more.
    #[error("the bridge {} takes no more: it has {many}; end some of its devices", .path.display())]
    BridgeFull {
        /// Path of the bridge.
        path: PathBuf,
        /// What it has as many of as it can.
        many: &'static str,
    },
    /// No address to choose from is free on this bridge.
    #[error("127.0.0.2 to 127.0.0.254 are all in use on the bridge {}; bind another address", .path.display())]
    NoFreeAddressOnBridge {
        /// Path of the bridge.
        path: PathBuf,
    },
    /// Another device has the address, on this bridge.
    #[error("{address} is in use by another device on the bridge {}; bind another address", .path.display())]
    AddressOnBridge {
        /// Address that was asked for.
        address: IpAddr,
        /// Path of the bridge.
        path: PathBuf,
    },
    /// The kernel does not send what the ICRC needs.
    #[error("the udp back end's self-test on {address} failed: {reason}")]
    SelfTest {
        /// Address that was tested.
        address: IpAddr,
        /// What happened, and what to do.
        reason: &'static str,
    },
    /// A system call failed.
    #[error("cannot {what}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

impl OpenError {
    /// The error number of the system that comes closest.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::PortInUse { .. }
            | Self::AddressTaken { .. }
            | Self::AddressInMemory { .. }
            | Self::AddressOnBridge { .. }
            | Self::NoFreeAddressOnBridge { .. }
            | Self::NoFreeAddress => libc::EADDRINUSE,
            Self::BridgeFull { .. } => libc::ENOSPC,
            Self::NoPermission { .. } => libc::EPERM,
            Self::NoSuchAddress { .. } | Self::NoHostAddress { .. } => libc::EADDRNOTAVAIL,
            Self::NoSuchInterface { .. } => libc::ENODEV,
            Self::QueueInUse { .. } | Self::ProgramInUse { .. } => libc::EBUSY,
            Self::Interface { .. } | Self::NoSuchLanes { .. } | Self::NoSuchQueue { .. } => libc::EINVAL,
            Self::SelfTest { .. } => libc::EOPNOTSUPP,
            Self::Io { source, .. } | Self::NoBridge { source, .. } => {
                source.raw_os_error().unwrap_or(libc::EIO)
            }
        }
    }

    /// An [`OpenError::Io`] for what was tried, to map an error with.
    pub(crate) fn io(what: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| Self::Io { what, source }
    }

    /// The interface called `name`, or the error that says which there are.
    pub(crate) fn interface(name: &str) -> Result<Interface, Self> {
        let mut all = Interface::all().map_err(Self::io("list the interfaces"))?;
        match all.iter().position(|interface| interface.name == name) {
            Some(i) => Ok(all.swap_remove(i)),
            None => {
                let known = all.into_iter().map(|interface| interface.name).collect();
                Err(Self::NoSuchInterface { name: name.into(), known })
            }
        }
    }

    /// The error of opening a socket that needs a capability.
    pub(crate) fn privileged(backend: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| match source.kind() {
            io::ErrorKind::PermissionDenied => Self::NoPermission { backend, needs: "CAP_NET_RAW" },
            _ => Self::Io { what: "open a raw socket", source },
        }
    }

    /// The error of binding the RoCE port on `address`.
    pub(super) fn bind(address: IpAddr) -> impl Fn(io::Error) -> Self {
        move |source| match source.kind() {
            io::ErrorKind::AddrInUse => Self::PortInUse { address, owner: owner::of_port(address) },
            io::ErrorKind::AddrNotAvailable => Self::NoSuchAddress { address },
            _ => Self::Io { what: "bind UDP port 4791", source },
        }
    }
}

/// Why a multicast group was not joined.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// This back end has no groups.
    #[error("the {backend} back end carries no multicast; udp, raw, packet, xdp and loopback do")]
    Unsupported {
        /// Name of the back end.
        backend: &'static str,
    },
    /// The device has no address of the group's family.
    #[error("the device has no address of the family of {group}")]
    NoAddress {
        /// Group that was asked for.
        group: IpAddr,
    },
    /// The group's port could not be had.
    #[error("cannot open multicast group {group}: {source}")]
    Open {
        /// Group that was asked for.
        group: IpAddr,
        /// What failed.
        source: OpenError,
    },
    /// The kernel refused the membership.
    #[error("cannot join multicast group {group}: {source}")]
    Membership {
        /// Group that was asked for.
        group: IpAddr,
        /// What the kernel said.
        source: io::Error,
    },
}

impl JoinError {
    /// The error number verbs would give.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::Unsupported { .. } => libc::EOPNOTSUPP,
            Self::NoAddress { .. } => libc::EADDRNOTAVAIL,
            Self::Open { source, .. } => source.errno(),
            Self::Membership { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        }
    }
}
