//! Work requests as a program posts them, and the checks before they are taken.

use bytes::Bytes;
use transport::ports::Side;
use transport::wqe::{Placement, SendFlags, SendOp, SendWqe, Sge, SgeList};
use transport::{Access, LocalOp, PdId, RecvWqe, responder};
use wire::{LKey, Mtu, QKey, Qpn, RKey, Srqn, VirtAddr, WrId};

use crate::state::QpType;

/// Sizes of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpCap {
    /// Send work requests that may wait.
    pub max_send_wr: u32,
    /// Receive work requests that may wait.
    pub max_recv_wr: u32,
    /// Pieces of a send.
    pub max_send_sge: u32,
    /// Pieces of a receive.
    pub max_recv_sge: u32,
    /// Bytes of an inline send.
    pub max_inline_data: u32,
}

impl Default for QpCap {
    fn default() -> Self {
        Self { max_send_wr: 128, max_recv_wr: 128, max_send_sge: 4, max_recv_sge: 4, max_inline_data: 236 }
    }
}

impl QpCap {
    /// The largest sizes of a queue pair.
    pub const MAX: Self = Self {
        max_send_wr: 16_384,
        max_recv_wr: 16_384,
        max_send_sge: 32,
        max_recv_sge: 32,
        max_inline_data: 1024,
    };

    /// Whether no size is larger than in `limit`.
    #[must_use]
    pub const fn fits(&self, limit: &Self) -> bool {
        self.max_send_wr <= limit.max_send_wr
            && self.max_recv_wr <= limit.max_recv_wr
            && self.max_send_sge <= limit.max_send_sge
            && self.max_recv_sge <= limit.max_recv_sge
            && self.max_inline_data <= limit.max_inline_data
    }
}

/// The local end of a send.
#[derive(Clone, Debug)]
pub enum SendData {
    /// Pieces of registered memory.
    Sges(SgeList),
    /// The bytes themselves, free for the caller to change once posted.
    Inline(Bytes),
}

/// A send work request.
#[derive(Clone, Debug)]
pub struct SendWr {
    /// The caller's mark.
    pub wr_id: WrId,
    /// What to do.
    pub op: SendOp,
    /// Local memory.
    pub data: SendData,
    /// Flags; [`SendFlags::INLINE`] follows from `data` and need not be set.
    pub flags: SendFlags,
    /// Where it goes, on a queue pair of datagrams.
    pub to: Option<SendTo>,
    /// The peer's shared receive queue whose domain and receives it is for, on an XRC initiator.
    pub remote_srqn: Option<Srqn>,
}

/// An address handle of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AhId(pub(crate) u32);

/// Where a datagram goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendTo {
    /// The way there.
    pub ah: AhId,
    /// Queue pair there.
    pub qpn: Qpn,
    /// Its queue key; with bit 31 set, the sender's own is sent instead (rule R-REQ-35).
    pub qkey: QKey,
}

/// What a memory window opens on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MwRange {
    /// Key of the region.
    pub mr: LKey,
    /// First byte, as the region numbers it.
    pub va: VirtAddr,
    /// Bytes; none for a type 1 window unbinds it.
    pub length: u64,
    /// Rights for peers, and [`Access::ZERO_BASED`].
    pub access: Access,
}

/// What a send is held against.
pub(crate) struct SendLimits<'a> {
    pub(crate) qp_type: QpType,
    pub(crate) cap: &'a QpCap,
    pub(crate) sq_sig_all: bool,
    /// Longest datagram.
    pub(crate) port_mtu: Mtu,
}

impl SendWr {
    /// `op` on the pieces of `sges`, without flags.
    #[must_use]
    pub fn new(wr_id: u64, op: SendOp, sges: &[Sge]) -> Self {
        let data = SendData::Sges(SgeList::from_slice(sges));
        Self { wr_id: WrId::new(wr_id), op, data, flags: SendFlags::empty(), to: None, remote_srqn: None }
    }

    /// `op` on inline data, without flags.
    #[must_use]
    pub fn inline(wr_id: u64, op: SendOp, data: impl Into<Bytes>) -> Self {
        Self {
            wr_id: WrId::new(wr_id),
            op,
            data: SendData::Inline(data.into()),
            flags: SendFlags::empty(),
            to: None,
            remote_srqn: None,
        }
    }

    /// `op` on inline data gathered from `pieces`, which are free to change once this returns (field case F25).
    ///
    /// # Errors
    /// Where all together are more than any queue pair takes; then nothing is copied (rule R-REQ-16).
    pub fn inline_gather(wr_id: u64, op: SendOp, pieces: &[&[u8]]) -> Result<Self, PostError> {
        let max = QpCap::MAX.max_inline_data;
        let given = pieces.iter().map(|piece| piece.len() as u64).sum::<u64>();
        if given > u64::from(max) {
            return Err(PostError::TooMuchInline {
                given: usize::try_from(given).unwrap_or(usize::MAX),
                max,
            });
        }
        Ok(Self::inline(wr_id, op, pieces.concat()))
    }

    /// A SEND.
    #[must_use]
    pub fn send(wr_id: u64, sges: &[Sge]) -> Self {
        Self::new(wr_id, SendOp::Send { imm: None }, sges)
    }

    /// A SEND with immediate data, in wire order.
    #[must_use]
    pub fn send_imm(wr_id: u64, sges: &[Sge], imm: [u8; 4]) -> Self {
        Self::new(wr_id, SendOp::Send { imm: Some(imm) }, sges)
    }

    /// A WRITE to `va` under `rkey`.
    #[must_use]
    pub fn write(wr_id: u64, sges: &[Sge], va: VirtAddr, rkey: RKey) -> Self {
        Self::new(wr_id, SendOp::Write { va, rkey, imm: None }, sges)
    }

    /// A WRITE with immediate data, in wire order.
    #[must_use]
    pub fn write_imm(wr_id: u64, sges: &[Sge], va: VirtAddr, rkey: RKey, imm: [u8; 4]) -> Self {
        Self::new(wr_id, SendOp::Write { va, rkey, imm: Some(imm) }, sges)
    }

    /// A READ from `va` under `rkey`.
    #[must_use]
    pub fn read(wr_id: u64, sges: &[Sge], va: VirtAddr, rkey: RKey) -> Self {
        Self::new(wr_id, SendOp::Read { va, rkey }, sges)
    }

    /// A compare-and-swap; the value found goes to the eight bytes of `sge`.
    #[must_use]
    pub fn cmp_swap(wr_id: u64, sge: Sge, va: VirtAddr, rkey: RKey, compare: u64, swap: u64) -> Self {
        Self::new(wr_id, SendOp::CmpSwap { va, rkey, compare, swap }, &[sge])
    }

    /// A fetch-and-add; the value found goes to the eight bytes of `sge`.
    #[must_use]
    pub fn fetch_add(wr_id: u64, sge: Sge, va: VirtAddr, rkey: RKey, add: u64) -> Self {
        Self::new(wr_id, SendOp::FetchAdd { va, rkey, add }, &[sge])
    }

    /// A SEND after which the peer's key `rkey` is valid no more: one of a fast-registered region or type 2 window.
    /// Fence it behind a READ of that key: the READ may still be under way when the key goes (rule R-REQ-10).
    #[must_use]
    pub fn send_inv(wr_id: u64, sges: &[Sge], rkey: RKey) -> Self {
        Self::new(wr_id, SendOp::SendInv { rkey }, sges)
    }

    /// A WRITE of the eight bytes of `sge` in one store; `va` is a multiple of eight.
    #[must_use]
    pub fn atomic_write(wr_id: u64, sge: Sge, va: VirtAddr, rkey: RKey) -> Self {
        Self::new(wr_id, SendOp::AtomicWrite { va, rkey }, &[sge])
    }

    /// A FLUSH of `length` bytes at `va`: it completes when earlier WRITEs to them have reached `placement`.
    #[must_use]
    pub fn flush(wr_id: u64, va: VirtAddr, rkey: RKey, length: u32, placement: Placement) -> Self {
        Self::new(wr_id, SendOp::Flush { va, rkey, length, placement, whole: false }, &[])
    }

    /// A FLUSH of the whole region or window of `rkey`.
    #[must_use]
    pub fn flush_region(wr_id: u64, rkey: RKey, placement: Placement) -> Self {
        let (va, length) = (VirtAddr::new(0), 0);
        Self::new(wr_id, SendOp::Flush { va, rkey, length, placement, whole: true }, &[])
    }

    /// LOCAL_INV: the key of an own fast-registered region or type 2 window is valid no more.
    #[must_use]
    pub fn local_inv(wr_id: u64, rkey: RKey) -> Self {
        Self::new(wr_id, SendOp::Local(LocalOp::Invalidate { rkey }), &[])
    }

    /// REG_MR: registers the first `length` bytes of region `mr`, made by [`crate::Nic::alloc_mr`], at `iova`. Its
    /// key gets the low byte `variant`.
    #[must_use]
    pub fn reg_mr(wr_id: u64, mr: LKey, variant: u8, iova: VirtAddr, length: u64, access: Access) -> Self {
        Self::new(wr_id, SendOp::Local(LocalOp::Register { mr, variant, iova, length, access }), &[])
    }

    /// BIND_MW: opens type 2 window `mw` on `range` of a region. Its key gets the low byte `variant`.
    #[must_use]
    pub fn bind_mw(wr_id: u64, mw: RKey, variant: u8, range: &MwRange) -> Self {
        let &MwRange { mr, va, length, access } = range;
        Self::new(wr_id, SendOp::Local(LocalOp::Bind { mw, variant, mr, va, length, access }), &[])
    }

    /// With a completion also on success.
    #[must_use]
    pub fn signaled(self) -> Self {
        self.with(SendFlags::SIGNALED)
    }

    /// Started only after earlier READs and atomics have completed.
    #[must_use]
    pub fn fenced(self) -> Self {
        self.with(SendFlags::FENCE)
    }

    /// Waking a receiver that waits for solicited completions only.
    #[must_use]
    pub fn solicited(self) -> Self {
        self.with(SendFlags::SOLICITED)
    }

    /// Sent as a datagram to queue pair `qpn` with queue key `qkey`, the way of `ah`.
    #[must_use]
    pub fn to(mut self, ah: AhId, qpn: Qpn, qkey: QKey) -> Self {
        self.to = Some(SendTo { ah, qpn, qkey });
        self
    }

    /// For the peer's shared receive queue `srqn`, on an XRC initiator.
    #[must_use]
    pub const fn for_srq(mut self, srqn: Srqn) -> Self {
        self.remote_srqn = Some(srqn);
        self
    }

    fn with(mut self, flag: SendFlags) -> Self {
        self.flags |= flag;
        self
    }

    /// Checks it against the sizes of its queue pair (field cases F23 to F25).
    pub(crate) fn check(self, limits: &SendLimits<'_>) -> Result<SendWqe, PostError> {
        let &SendLimits { qp_type, cap, sq_sig_all, port_mtu } = limits;
        let possible = match qp_type {
            QpType::Uc => matches!(self.op, SendOp::Send { .. } | SendOp::Write { .. } | SendOp::Local(_)),
            QpType::Ud | QpType::Gsi => matches!(self.op, SendOp::Send { .. }),
            QpType::XrcTgt => false,
            _ => true,
        };
        if !possible {
            return Err(PostError::WrongType(qp_type));
        }
        let is_local = matches!(self.op, SendOp::Local(_));
        if qp_type == QpType::XrcIni && !is_local && self.remote_srqn.is_none() {
            return Err(PostError::NoRemoteSrq);
        }
        let (sges, inline, total) = match self.data {
            SendData::Sges(sges) => {
                if sges.len() > cap.max_send_sge as usize {
                    return Err(PostError::TooManySges { given: sges.len(), max: cap.max_send_sge });
                }
                let total = sges.iter().map(|sge| u64::from(sge.length)).sum::<u64>();
                (sges, None, total)
            }
            SendData::Inline(data) => {
                // Rule R-REQ-16.
                if !self.op.carries_data() {
                    return Err(PostError::NotInline);
                }
                if data.len() > cap.max_inline_data as usize {
                    return Err(PostError::TooMuchInline { given: data.len(), max: cap.max_inline_data });
                }
                let total = data.len() as u64;
                (SgeList::new(), Some(data), total)
            }
        };
        match self.op {
            SendOp::CmpSwap { .. } | SendOp::FetchAdd { .. } | SendOp::AtomicWrite { .. } if total != 8 => {
                return Err(PostError::AtomicLength(total));
            }
            SendOp::Flush { .. } | SendOp::Local(_) if !sges.is_empty() => return Err(PostError::NoData),
            SendOp::Flush { placement, .. } if placement.is_empty() => return Err(PostError::NoPlacement),
            SendOp::Flush { length, .. } if length > responder::MAX_MESSAGE => {
                return Err(PostError::TooLong(u64::from(length)));
            }
            _ => {}
        }
        // Rule R-REQ-34.
        if !qp_type.is_connected() && total > u64::from(port_mtu.bytes()) {
            return Err(PostError::DatagramTooLong { given: total, max: port_mtu.bytes() });
        }
        let length = u32::try_from(total).ok().filter(|length| *length <= responder::MAX_MESSAGE);
        let mut flags = self.flags;
        flags.set(SendFlags::INLINE, inline.is_some());
        flags.set(SendFlags::SIGNALED, sq_sig_all || flags.contains(SendFlags::SIGNALED));
        Ok(SendWqe {
            wr_id: self.wr_id,
            op: self.op,
            sges,
            inline,
            flags,
            length: length.ok_or(PostError::TooLong(total))?,
            datagram: None,
            remote_srqn: self.remote_srqn,
            psns: None,
        })
    }
}

/// A receive work request.
#[derive(Clone, Debug)]
pub struct RecvWr {
    /// The caller's mark.
    pub wr_id: WrId,
    /// Where the message goes; none at all is fine for a WRITE with immediate.
    pub sges: SgeList,
}

impl RecvWr {
    /// A receive into the pieces of `sges`.
    #[must_use]
    pub fn new(wr_id: u64, sges: &[Sge]) -> Self {
        Self { wr_id: WrId::new(wr_id), sges: SgeList::from_slice(sges) }
    }

    /// Checks it against the sizes of its queue, whose domain is `pd` and which completes on `side`.
    pub(crate) fn check(self, max_sge: u32, pd: PdId, side: Side) -> Result<RecvWqe, PostError> {
        if self.sges.len() > max_sge as usize {
            return Err(PostError::TooManySges { given: self.sges.len(), max: max_sge });
        }
        Ok(RecvWqe { wr_id: self.wr_id, sges: self.sges, pd, side })
    }
}

/// Why a work request was not taken. The caller's doing, always.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostError {
    /// There is no such queue pair.
    #[error("there is no such queue pair")]
    NoSuchQp,
    /// There is no such shared receive queue.
    #[error("there is no such shared receive queue")]
    NoSuchSrq,
    /// The queue pair has no receives of its own.
    #[error("the queue pair's receives come from a shared receive queue: post them there")]
    SharedReceives,
    /// The state does not take it.
    #[error("a queue pair in {0} does not take this work request")]
    State(crate::state::QpState),
    /// The queue is full.
    #[error("the queue is full: {0} work requests wait")]
    QueueFull(u32),
    /// Too many pieces.
    #[error("{given} scatter/gather entries, but the queue was made for {max}")]
    TooManySges {
        /// Pieces given.
        given: usize,
        /// Pieces possible.
        max: u32,
    },
    /// Too many inline bytes.
    #[error("{given} inline bytes, but the queue pair was made for {max}")]
    TooMuchInline {
        /// Bytes given.
        given: usize,
        /// Bytes possible.
        max: u32,
    },
    /// Only SEND, WRITE and ATOMIC WRITE can be inline.
    #[error("only SEND, WRITE and ATOMIC WRITE can carry inline data")]
    NotInline,
    /// An atomic's result, and what an ATOMIC WRITE stores, has eight bytes.
    #[error("an atomic needs exactly 8 bytes of local memory, not {0}")]
    AtomicLength(u64),
    /// FLUSH and work requests on keys have no data.
    #[error("FLUSH and work requests on keys take no local memory")]
    NoData,
    /// A FLUSH has to say where to.
    #[error("a FLUSH needs a placement: GLOBAL, PERSISTENT or both")]
    NoPlacement,
    /// No such memory window.
    #[error("there is no memory window with this key")]
    NoSuchWindow,
    /// A type 1 window is bound by a verb, a type 2 window by a work request.
    #[error("a type 1 window is bound by bind_mw, a type 2 window by a BIND_MW work request")]
    WindowType,
    /// Longer than a message can be.
    #[error("{0} bytes are more than the longest message, 2^31")]
    TooLong(u64),
    /// A datagram is one packet.
    #[error("{given} bytes are more than a datagram holds on this port, {max}")]
    DatagramTooLong {
        /// Bytes given.
        given: u64,
        /// Bytes possible.
        max: u32,
    },
    /// The queue pair's type cannot do this.
    #[error("{0} queue pairs cannot do this operation")]
    WrongType(QpType),
    /// A datagram without a destination.
    #[error("a datagram needs an address handle, a queue pair number and a queue key")]
    NoAddress,
    /// An XRC request without a shared receive queue.
    #[error("an XRC initiator needs the number of the peer's shared receive queue in each work request")]
    NoRemoteSrq,
    /// No such address handle in the queue pair's protection domain.
    #[error("the queue pair's protection domain has no such address handle")]
    NoSuchAh,
    /// The queue pair has no READ depth.
    #[error("max_rd_atomic is 0: the queue pair cannot do READs or atomics")]
    NoReadDepth,
}

impl PostError {
    /// The error number verbs would give (rule R-CQE-11).
    #[must_use]
    pub const fn errno(&self) -> i32 {
        match self {
            Self::QueueFull(_) => 12,
            _ => 22,
        }
    }
}

/// The first work request of a list that was not taken. Those before it are posted, those behind it are not
/// (field case F24).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("work request {index} of the list: {error}")]
pub struct BadWr {
    /// Its place in the list, from 0.
    pub index: usize,
    /// Why.
    pub error: PostError,
}

impl BadWr {
    /// The error number verbs would give.
    #[must_use]
    pub const fn errno(&self) -> i32 {
        self.error.errno()
    }
}

#[cfg(test)]
mod tests;
