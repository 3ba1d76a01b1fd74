//! Local operations: work requests on keys. They send nothing and take no PSN, and take effect in the order of
//! the send queue (rule R-REQ-46).

use wire::{LKey, RKey, VirtAddr};

use crate::completion::{WcOpcode, WcStatus};
use crate::ports::Access;

/// What a local operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalOp {
    /// LOCAL_INV: a fast-registered region or a type 2 window can be used no more until it is registered or
    /// bound anew.
    Invalidate {
        /// Its key.
        rkey: RKey,
    },
    /// REG_MR: a region made for fast registration gets an address, a length and rights.
    Register {
        /// The key it was given when it was made.
        mr: LKey,
        /// Low byte of its key from then on.
        variant: u8,
        /// Address of its first byte.
        iova: VirtAddr,
        /// Bytes of it, from the first on, that can be used.
        length: u64,
        /// Rights.
        access: Access,
    },
    /// BIND_MW: a window opens on part of a region.
    Bind {
        /// The key the window was given when it was made.
        mw: RKey,
        /// Low byte of its key from then on.
        variant: u8,
        /// Key of the region.
        mr: LKey,
        /// Where in the region it begins.
        va: VirtAddr,
        /// Bytes. None for a type 1 window unbinds it.
        length: u64,
        /// Remote rights, and [`Access::ZERO_BASED`].
        access: Access,
    },
}

impl LocalOp {
    /// Opcode of its completion.
    #[must_use]
    pub const fn wc_opcode(&self) -> WcOpcode {
        match self {
            Self::Invalidate { .. } => WcOpcode::LocalInv,
            Self::Register { .. } => WcOpcode::RegMr,
            Self::Bind { .. } => WcOpcode::BindMw,
        }
    }

    /// How it completes where it cannot be done (rule R-CMP-27).
    #[must_use]
    pub const fn failure(&self) -> WcStatus {
        match self {
            Self::Bind { .. } => WcStatus::MwBindErr,
            Self::Invalidate { .. } | Self::Register { .. } => WcStatus::LocQpOpErr,
        }
    }

    /// Whether a fence in front of it waits for all earlier work, not just for READs and atomics (rule
    /// R-REQ-47).
    #[must_use]
    pub const fn waits_for_all(&self) -> bool {
        matches!(self, Self::Invalidate { .. })
    }
}

/// Why a key was not registered, bound or invalidated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// Nothing has this key, or nothing of this kind.
    #[error("no region or window of the kind has this key")]
    UnknownKey,
    /// It is of another protection domain than the queue pair.
    #[error("the key is of another protection domain than the queue pair")]
    WrongPd,
    /// The window is bound through another queue pair.
    #[error("the window is bound through another queue pair")]
    WrongQp,
    /// Ordinary regions and type 1 windows cannot be invalidated.
    #[error("only fast-registered regions and type 2 windows can be invalidated")]
    NotInvalidatable,
    /// It has to be invalidated first.
    #[error("the key is in use: it has to be invalidated first")]
    NotFree,
    /// It is invalid already.
    #[error("the key is not valid")]
    NotValid,
    /// Windows are bound to the region.
    #[error("windows are bound to the region")]
    WindowsBound,
    /// The region does not take windows.
    #[error("the region lacks the MW_BIND right")]
    NoBindRight,
    /// Remote write or atomic rights need the local write right.
    #[error("REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE on the region")]
    NoLocalWrite,
    /// A right that such a key cannot have.
    #[error("access flags {0:#x} are not possible here")]
    BadAccess(u32),
    /// The range is not inside the region.
    #[error("the range is not inside the region")]
    OutOfBounds,
    /// No window can be bound to a zero-based region, nor a type 1 window be zero-based.
    #[error("zero-based is not possible here")]
    ZeroBased,
    /// A type 2 window has at least one byte.
    #[error("a type 2 window needs at least one byte")]
    Empty,
}
