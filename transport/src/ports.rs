//! What the engines need of the world: memory, receive work, and a place for what they cause.

use wire::{Instant, LKey, NakCode, Qpn, RKey, Srqn, VirtAddr};

use crate::completion::Completion;
use crate::counters::Counters;
use crate::local::{KeyError, LocalOp};
use crate::params::RcParams;
use crate::wqe::RecvWqe;

bitflags::bitflags! {
    /// Access rights of a memory region or queue pair, with the numbers of verbs (rule R-MEM-14).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct Access: u32 {
        /// The NIC may write it for its owner.
        const LOCAL_WRITE = 1;
        /// Peers may write it.
        const REMOTE_WRITE = 1 << 1;
        /// Peers may read it.
        const REMOTE_READ = 1 << 2;
        /// Peers may do atomics on it.
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound to it.
        const MW_BIND = 1 << 4;
        /// Addresses are offsets from its start.
        const ZERO_BASED = 1 << 5;
        /// Pages may come and go.
        const ON_DEMAND = 1 << 6;
        /// Huge pages.
        const HUGETLB = 1 << 7;
        /// Peers may flush it to global visibility.
        const FLUSH_GLOBAL = 1 << 8;
        /// Peers may flush it to persistence.
        const FLUSH_PERSISTENT = 1 << 9;
        /// Writes may be reordered.
        const RELAXED_ORDERING = 1 << 20;
    }
}

/// Protection domain: queue pairs reach only regions of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PdId(pub u32);

/// The queue pair through which a peer reaches memory. Regions are of a protection domain; a window may be for
/// one queue pair alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Via {
    /// Protection domain that counts: the queue pair's, or that of the shared receive queue of an XRC target.
    pub pd: PdId,
    /// The queue pair on this device that the request arrived at.
    pub qpn: Qpn,
}

/// Why memory may not be touched. To a peer it is always the same NAK; the distinction is for traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AccessError {
    /// No region has this key.
    #[error("no memory region has this key")]
    UnknownKey,
    /// The region is of another protection domain.
    #[error("the memory region is of another protection domain")]
    WrongPd,
    /// The window is bound for another queue pair.
    #[error("the memory window is bound for another queue pair")]
    WrongQp,
    /// The region does not give this right.
    #[error("the memory region does not give this right")]
    NoRight,
    /// The range is not inside the region.
    #[error("the range is not inside the memory region")]
    OutOfBounds,
}

/// An atomic on eight bytes, as numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    /// Store `swap` if the memory holds `compare`.
    CmpSwap {
        /// Expected value.
        compare: u64,
        /// New value.
        swap: u64,
    },
    /// Add modulo 2^64.
    FetchAdd {
        /// Summand.
        add: u64,
    },
}

impl AtomicOp {
    /// The value that takes the place of `original`.
    #[must_use]
    pub const fn apply(self, original: u64) -> u64 {
        match self {
            Self::CmpSwap { compare, swap } => {
                if original == compare {
                    swap
                } else {
                    original
                }
            }
            Self::FetchAdd { add } => original.wrapping_add(add),
        }
    }
}

/// Registered memory, addressed by keys. Every call checks key, domain, right and bounds, without overflow,
/// before it touches a byte (rule F3).
pub trait Memory {
    /// Whether a peer may use `len` bytes at `va` with the rights `need`.
    ///
    /// # Errors
    /// The first check that fails.
    fn check_remote(
        &self,
        via: Via,
        rkey: RKey,
        va: VirtAddr,
        len: u64,
        need: Access,
    ) -> Result<(), AccessError>;

    /// Copies from memory that peers may read.
    ///
    /// # Errors
    /// As [`Memory::check_remote`]; then nothing is copied.
    fn read_remote(&self, via: Via, rkey: RKey, va: VirtAddr, out: &mut [u8]) -> Result<(), AccessError>;

    /// Copies into memory that peers may write.
    ///
    /// # Errors
    /// As [`Memory::check_remote`]; then nothing is copied.
    fn write_remote(&mut self, via: Via, rkey: RKey, va: VirtAddr, data: &[u8]) -> Result<(), AccessError>;

    /// Does an atomic on the eight bytes at `va`, in the byte order of the host; gives the value found (rules
    /// R-RSP-33 and R-RSP-51).
    ///
    /// # Errors
    /// As [`Memory::check_remote`]; then nothing changes.
    fn atomic_remote(&mut self, via: Via, rkey: RKey, va: VirtAddr, op: AtomicOp)
    -> Result<u64, AccessError>;

    /// Stores eight bytes at `va` at once, in the order they came in (ATOMIC WRITE).
    ///
    /// # Errors
    /// As [`Memory::check_remote`]; then nothing changes.
    fn atomic_write_remote(
        &mut self,
        via: Via,
        rkey: RKey,
        va: VirtAddr,
        data: [u8; 8],
    ) -> Result<(), AccessError>;

    /// Brings what was written to `range`, or to all of the region or window, to where `need` says: other readers
    /// of the host ([`Access::FLUSH_GLOBAL`]), storage ([`Access::FLUSH_PERSISTENT`]).
    ///
    /// # Errors
    /// As [`Memory::check_remote`].
    fn flush_remote(
        &mut self,
        via: Via,
        rkey: RKey,
        range: Option<(VirtAddr, u64)>,
        need: Access,
    ) -> Result<(), AccessError>;

    /// Carries out a local operation of a queue pair, or the invalidation that its peer asks for.
    ///
    /// # Errors
    /// Why not; then nothing has changed.
    fn execute(&mut self, via: Via, op: &LocalOp) -> Result<(), KeyError>;

    /// Whether the owner may use `len` bytes at `va` with the rights `need`.
    ///
    /// # Errors
    /// The first check that fails.
    fn check_local(
        &self,
        pd: PdId,
        lkey: LKey,
        va: VirtAddr,
        len: u64,
        need: Access,
    ) -> Result<(), AccessError>;

    /// Copies from the owner's memory.
    ///
    /// # Errors
    /// As [`Memory::check_local`]; then nothing is copied.
    fn read_local(&self, pd: PdId, lkey: LKey, va: VirtAddr, out: &mut [u8]) -> Result<(), AccessError>;

    /// Copies into the owner's memory; needs [`Access::LOCAL_WRITE`].
    ///
    /// # Errors
    /// As [`Memory::check_local`]; then nothing is copied.
    fn write_local(&mut self, pd: PdId, lkey: LKey, va: VirtAddr, data: &[u8]) -> Result<(), AccessError>;
}

/// Where a responder takes its receive work requests from.
pub trait RecvQueue {
    /// Whether there is none.
    fn is_empty(&self) -> bool;

    /// Takes the oldest.
    fn take(&mut self) -> Option<RecvWqe>;

    /// Whether other queue pairs take from it as well. What one of them has taken and cannot use is then not kept
    /// for its next message, but completes in error.
    fn is_shared(&self) -> bool {
        false
    }

    /// Whether there is no such queue at all: an XRC request named one that the target does not know.
    fn is_missing(&self) -> bool {
        false
    }
}

/// Which completion queue: one of a queue pair's two, or that of a shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The one for sends.
    Send,
    /// The one for receives.
    Recv,
    /// That of this shared receive queue, whose receives XRC targets take.
    Srq(Srqn),
}

/// What the engines cause besides packets: the owner of the queue pair carries it out.
#[derive(Debug, Default)]
pub struct Effects {
    /// Completions, oldest first.
    pub completions: Vec<(Side, Completion)>,
    /// The queue pair must go to the error state.
    pub fatal: bool,
    /// The send queue must stop (SQE); receives go on. Of unreliable queue pairs only.
    pub send_failed: bool,
    /// What a peer was refused for where no receive reports it: an asynchronous event does (rule R-RSP-38).
    pub unreported: Option<NakCode>,
    /// Counters of the device.
    pub counters: Counters,
}

/// All that an engine may use during one call.
pub struct Ctx<'a> {
    /// The time.
    pub now: Instant,
    /// Attributes of the queue pair.
    pub params: &'a RcParams,
    /// Registered memory of the device.
    pub memory: &'a mut dyn Memory,
    /// What the engines cause.
    pub out: &'a mut Effects,
}
