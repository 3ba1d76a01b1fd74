//! Work requests as they wait in a queue pair.

use bytes::Bytes;
use smallvec::SmallVec;
use wire::opcode::SegmentKind;
use wire::{LKey, NetHeader, Psn, QKey, Qpn, RKey, Srqn, VirtAddr, WrId};

use crate::completion::{Completion, WcOpcode, WcStatus};
use crate::local::LocalOp;
use crate::ports::{Access, Memory, PdId, Side};

/// A piece of local memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sge {
    /// First byte.
    pub addr: VirtAddr,
    /// Bytes.
    pub length: u32,
    /// Key of the region it lies in.
    pub lkey: LKey,
}

/// Scatter/gather list.
pub type SgeList = SmallVec<[Sge; 2]>;

bitflags::bitflags! {
    /// Flags of a send work request, with the numbers of verbs.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct SendFlags: u32 {
        /// Wait until earlier READs and atomics have completed.
        const FENCE = 1;
        /// Give a completion also on success.
        const SIGNALED = 1 << 1;
        /// Wake a receiver that waits for solicited events only.
        const SOLICITED = 1 << 2;
        /// The data was copied when the request was posted.
        const INLINE = 1 << 3;
    }
}

bitflags::bitflags! {
    /// Where a FLUSH brings data, with the numbers of verbs and of the wire.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Placement: u32 {
        /// Other readers of the peer's host see them.
        const GLOBAL = 1;
        /// They outlast a power failure.
        const PERSISTENT = 1 << 1;
    }
}

impl Placement {
    /// The rights it needs.
    #[must_use]
    pub fn rights(self) -> Access {
        let mut need = Access::empty();
        need.set(Access::FLUSH_GLOBAL, self.contains(Self::GLOBAL));
        need.set(Access::FLUSH_PERSISTENT, self.contains(Self::PERSISTENT));
        need
    }
}

/// What a send work request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// SEND, with immediate data or without.
    Send {
        /// Immediate data, in wire order.
        imm: Option<[u8; 4]>,
    },
    /// RDMA WRITE, with immediate data or without.
    Write {
        /// Remote address.
        va: VirtAddr,
        /// Remote key.
        rkey: RKey,
        /// Immediate data, in wire order.
        imm: Option<[u8; 4]>,
    },
    /// RDMA READ.
    Read {
        /// Remote address.
        va: VirtAddr,
        /// Remote key.
        rkey: RKey,
    },
    /// Compare and swap of eight bytes.
    CmpSwap {
        /// Remote address, a multiple of eight.
        va: VirtAddr,
        /// Remote key.
        rkey: RKey,
        /// Expected value.
        compare: u64,
        /// New value.
        swap: u64,
    },
    /// Fetch and add of eight bytes.
    FetchAdd {
        /// Remote address, a multiple of eight.
        va: VirtAddr,
        /// Remote key.
        rkey: RKey,
        /// Summand.
        add: u64,
    },
    /// SEND with invalidate: the peer takes back a key of its own, of a fast-registered region or type 2 window.
    SendInv {
        /// The peer's key.
        rkey: RKey,
    },
    /// ATOMIC WRITE: a WRITE of eight bytes in one store.
    AtomicWrite {
        /// Remote address, a multiple of eight.
        va: VirtAddr,
        /// Remote key.
        rkey: RKey,
    },
    /// FLUSH: earlier WRITEs reach the places named before it completes.
    Flush {
        /// Remote address.
        va: VirtAddr,
        /// Remote key.
        rkey: RKey,
        /// Bytes.
        length: u32,
        /// Where to.
        placement: Placement,
        /// All of the region, whatever `va` and `length` say.
        whole: bool,
    },
    /// A local operation on keys.
    Local(LocalOp),
}

impl SendOp {
    /// Opcode of its completion.
    #[must_use]
    pub const fn wc_opcode(&self) -> WcOpcode {
        match self {
            Self::Send { .. } | Self::SendInv { .. } => WcOpcode::Send,
            Self::Write { .. } => WcOpcode::RdmaWrite,
            Self::Read { .. } => WcOpcode::RdmaRead,
            Self::CmpSwap { .. } => WcOpcode::CompSwap,
            Self::FetchAdd { .. } => WcOpcode::FetchAdd,
            Self::AtomicWrite { .. } => WcOpcode::AtomicWrite,
            Self::Flush { .. } => WcOpcode::Flush,
            Self::Local(op) => op.wc_opcode(),
        }
    }

    /// Whether the peer answers it with data: READ and atomics.
    #[must_use]
    pub const fn has_response_data(&self) -> bool {
        matches!(self, Self::Read { .. } | Self::CmpSwap { .. } | Self::FetchAdd { .. })
    }

    /// Whether it counts against the READ depth: READ, atomics and ATOMIC WRITE (rule R-REQ-8).
    #[must_use]
    pub const fn takes_depth(&self) -> bool {
        self.has_response_data() || matches!(self, Self::AtomicWrite { .. })
    }

    /// Whether an answer of its own completes it, and no ACK: what counts against the READ depth, and FLUSH.
    #[must_use]
    pub const fn has_own_response(&self) -> bool {
        self.takes_depth() || matches!(self, Self::Flush { .. })
    }

    /// Whether its data can be inline: SEND, WRITE and ATOMIC WRITE, with all that may go along.
    #[must_use]
    pub const fn carries_data(&self) -> bool {
        self.segments().is_some() || matches!(self, Self::AtomicWrite { .. })
    }

    /// Whether it is an atomic.
    #[must_use]
    pub const fn is_atomic(&self) -> bool {
        matches!(self, Self::CmpSwap { .. } | Self::FetchAdd { .. })
    }

    /// How its packets are cut, for SEND and WRITE.
    #[must_use]
    pub const fn segments(&self) -> Option<SegmentKind> {
        Some(match self {
            Self::Send { imm: None } => SegmentKind::Send,
            Self::Send { imm: Some(_) } => SegmentKind::SendImm,
            Self::SendInv { .. } => SegmentKind::SendInv,
            Self::Write { imm: None, .. } => SegmentKind::Write,
            Self::Write { imm: Some(_), .. } => SegmentKind::WriteImm,
            _ => return None,
        })
    }

    /// Its immediate data.
    #[must_use]
    pub const fn imm(&self) -> Option<[u8; 4]> {
        match self {
            Self::Send { imm } | Self::Write { imm, .. } => *imm,
            _ => None,
        }
    }
}

/// A send work request in the queue.
#[derive(Clone, Debug)]
pub struct SendWqe {
    /// The caller's mark.
    pub wr_id: WrId,
    /// What to do.
    pub op: SendOp,
    /// Local memory: gathered from, or for READ and atomics scattered to.
    pub sges: SgeList,
    /// The data itself where it was posted inline.
    pub inline: Option<Bytes>,
    /// Flags.
    pub flags: SendFlags,
    /// Bytes of the message.
    pub length: u32,
    /// Where a datagram goes; `None` on connections, whose queues are so much the smaller for the box.
    pub datagram: Option<Box<Datagram>>,
    /// Shared receive queue that every packet of it names, on an XRC initiator.
    pub remote_srqn: Option<Srqn>,
    /// First PSN and number of PSNs, once it has started; a local operation takes none.
    pub psns: Option<(Psn, u32)>,
}

/// Where a datagram goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Network header of the way there.
    pub net: NetHeader,
    /// Queue pair there.
    pub qpn: Qpn,
    /// Its queue key; with bit 31 set, the sender's own is sent instead.
    pub qkey: QKey,
}

impl Datagram {
    /// The queue key that goes out (rule R-REQ-35).
    #[must_use]
    pub const fn qkey_on_wire(&self, own: QKey) -> QKey {
        if self.qkey.value() >> 31 == 1 { own } else { self.qkey }
    }
}

impl SendWqe {
    /// Whether its local memory may be used as it asks for. Pieces without a byte are not looked at (rule R-MEM-11).
    #[must_use]
    pub fn is_readable(&self, memory: &dyn Memory, pd: PdId) -> bool {
        let need = if self.op.has_response_data() { Access::LOCAL_WRITE } else { Access::empty() };
        self.inline.is_some()
            || self
                .sges
                .iter()
                .filter(|sge| sge.length > 0)
                .all(|sge| memory.check_local(pd, sge.lkey, sge.addr, u64::from(sge.length), need).is_ok())
    }

    /// Its completion with this status.
    #[must_use]
    pub fn completion(&self, status: WcStatus, qpn: Qpn) -> Completion {
        let error = Completion::error(self.wr_id, status, self.op.wc_opcode(), qpn);
        if status == WcStatus::Success {
            Completion { byte_len: self.length, solicited: false, ..error }
        } else {
            error
        }
    }

    /// Last PSN, once it has started; the one before its first where it takes none.
    #[must_use]
    pub fn last_psn(&self) -> Option<Psn> {
        self.psns.map(|(first, n)| first.wrapping_add(n).wrapping_sub(1))
    }
}

/// A receive work request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecvWqe {
    /// The caller's mark.
    pub wr_id: WrId,
    /// Where the message goes.
    pub sges: SgeList,
    /// Domain that the pieces are of: the queue pair's, or that of a shared receive queue.
    pub pd: PdId,
    /// Where it completes.
    pub side: Side,
}

impl RecvWqe {
    /// Bytes it can take.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.sges.iter().map(|sge| u64::from(sge.length)).sum()
    }
}
