//! Errors of the verbs: one enum per operation. All are the caller's to mend.

use wire::Gid;

use crate::state::{ModifyError, QpType};
use crate::wr::QpCap;

const EINVAL: i32 = 22;
const EBUSY: i32 = 16;
const ENOMEM: i32 = 12;

/// Why an object was not created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CreateError {
    /// No such protection domain.
    #[error("there is no such protection domain")]
    NoPd,
    /// No such completion queue.
    #[error("there is no such completion queue")]
    NoCq,
    /// A completion queue of this depth cannot be made.
    #[error("a completion queue holds 1 to {max} completions, not {given}")]
    CqDepth {
        /// What was asked for.
        given: usize,
        /// What is possible.
        max: usize,
    },
    /// A size of the queue pair is too large.
    #[error("queue pair sizes are at most {max:?}")]
    Cap {
        /// What is possible.
        max: QpCap,
    },
    /// No such shared receive queue.
    #[error("there is no such shared receive queue")]
    NoSrq,
    /// This shared receive queue is for XRC targets.
    #[error("a shared receive queue for XRC serves XRC targets only, whose peers name it")]
    XrcSrq,
    /// XRC queue pairs are made without receives.
    #[error("an XRC queue pair is made without a shared receive queue: requests name theirs")]
    XrcReceives,
    /// No such XRC domain.
    #[error("there is no such XRC domain; an XRC target needs one")]
    NoXrcd,
    /// A shared receive queue of this size cannot be made.
    #[error("a shared receive queue holds 1 to {max_wr} receives of at most {max_sge} pieces each")]
    SrqSize {
        /// Most receives.
        max_wr: u32,
        /// Most pieces of a receive.
        max_sge: u32,
    },
    /// No shared receive queue number is left.
    #[error("the device has no shared receive queue number left")]
    SrqTableFull,
    /// There is one general services queue pair; of several lanes, the first one has it.
    #[error("queue pair 1 is in use, or of another lane: there is one GSI queue pair, in lane 0")]
    GsiTaken,
    /// No queue pair number is left.
    #[error("the device has no queue pair number left")]
    TableFull,
}

impl CreateError {
    /// The error number verbs would give.
    #[must_use]
    pub const fn errno(&self) -> i32 {
        match self {
            Self::TableFull | Self::SrqTableFull => ENOMEM,
            _ => EINVAL,
        }
    }
}

/// Why a queue pair was not modified. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ModifyQpError {
    /// No such queue pair.
    #[error("there is no such queue pair")]
    NoSuchQp,
    /// No such protection domain.
    #[error("there is no such protection domain")]
    NoPd,
    /// The transition, its attributes or a value.
    #[error(transparent)]
    Attr(#[from] ModifyError),
    /// That entry of the GID table is unused.
    #[error("GID index {0} of this device is empty")]
    EmptyGid(u8),
    /// The peer's GID is missing.
    #[error("the destination GID is all zero: give the peer's GID (-g on both ends)")]
    NoDestination,
    /// A connection has one peer.
    #[error("{0} is a multicast group: only datagrams can be sent there")]
    Multicast(Gid),
    /// One GID is IPv4 and the other is not.
    #[error("own GID {sgid} and peer's GID {dgid} are not of one address family")]
    Family {
        /// Own GID.
        sgid: Gid,
        /// The peer's GID.
        dgid: Gid,
    },
}

impl ModifyQpError {
    /// The error number verbs would give.
    #[must_use]
    pub const fn errno(&self) -> i32 {
        EINVAL
    }
}

/// Why a completion queue was not resized. It is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ResizeCqError {
    /// No such completion queue.
    #[error("there is no such completion queue")]
    NoSuchCq,
    /// A completion queue cannot have this depth.
    #[error("a completion queue holds 1 to {max} completions, not {given}")]
    Depth {
        /// What was asked for.
        given: usize,
        /// What is possible.
        max: usize,
    },
    /// What waits would not fit.
    #[error("{waiting} completions wait to be polled and would not fit in {given}")]
    TooSmall {
        /// What was asked for.
        given: usize,
        /// Completions that wait.
        waiting: usize,
    },
}

impl ResizeCqError {
    /// The error number verbs would give.
    #[must_use]
    pub const fn errno(&self) -> i32 {
        EINVAL
    }
}

/// Why a queue pair was not attached to a multicast group, or detached from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum McastError {
    /// No such queue pair.
    #[error("there is no such queue pair")]
    NoSuchQp,
    /// Only datagrams are sent to groups.
    #[error("{0} queue pairs cannot join a multicast group; UD can")]
    QpType(QpType),
    /// The GID names one host.
    #[error("{0} is no multicast group; groups are ff00::/8 and ::ffff:224.0.0.0/100")]
    NotAGroup(Gid),
    /// The port has no address of the group's family.
    #[error("the port has no GID of the address family of {0}")]
    Family(Gid),
    /// It is not a member.
    #[error("the queue pair is not attached to {0}")]
    NotAttached(Gid),
}

impl McastError {
    /// The error number verbs would give.
    #[must_use]
    pub const fn errno(&self) -> i32 {
        EINVAL
    }
}

/// Why an object was not destroyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DestroyError {
    /// It does not exist.
    #[error("there is no such object")]
    NoSuchObject,
    /// Others still use it.
    #[error("the object is still in use")]
    Busy,
}

impl DestroyError {
    /// The error number verbs would give.
    #[must_use]
    pub const fn errno(&self) -> i32 {
        match self {
            Self::NoSuchObject => EINVAL,
            Self::Busy => EBUSY,
        }
    }
}
