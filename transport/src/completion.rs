//! Work completions, with the names and numbers of verbs.

use core::fmt;

use wire::{Packet, Qpn, RKey, WrId};

use crate::ports::Ctx;
use crate::wqe::RecvWqe;

/// How a work request ended (rule R-CQE-1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum WcStatus {
    /// Done.
    Success = 0,
    /// The local buffer is too short, or the message too long.
    LocLenErr = 1,
    /// The queue pair cannot do this.
    LocQpOpErr = 2,
    /// A local key or range is not valid.
    LocProtErr = 4,
    /// The queue pair went to the error state before it was done.
    WrFlushErr = 5,
    /// A memory window was not bound.
    MwBindErr = 6,
    /// The peer's answer makes no sense.
    BadRespErr = 7,
    /// The peer says: the request breaks a rule.
    RemInvReqErr = 9,
    /// The peer says: that memory may not be accessed so.
    RemAccessErr = 10,
    /// The peer says: it failed.
    RemOpErr = 11,
    /// No answer, for as often as was allowed.
    RetryExcErr = 12,
    /// The peer had no receive posted, for as often as was allowed.
    RnrRetryExcErr = 13,
    /// The peer says: invalid RD request.
    RemInvRdReqErr = 15,
}

impl WcStatus {
    /// The verbs name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Success => "SUCCESS",
            Self::LocLenErr => "LOC_LEN_ERR",
            Self::LocQpOpErr => "LOC_QP_OP_ERR",
            Self::LocProtErr => "LOC_PROT_ERR",
            Self::WrFlushErr => "WR_FLUSH_ERR",
            Self::MwBindErr => "MW_BIND_ERR",
            Self::BadRespErr => "BAD_RESP_ERR",
            Self::RemInvReqErr => "REM_INV_REQ_ERR",
            Self::RemAccessErr => "REM_ACCESS_ERR",
            Self::RemOpErr => "REM_OP_ERR",
            Self::RetryExcErr => "RETRY_EXC_ERR",
            Self::RnrRetryExcErr => "RNR_RETRY_EXC_ERR",
            Self::RemInvRdReqErr => "REM_INV_RD_REQ_ERR",
        }
    }
}

impl fmt::Display for WcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a completed work request was (rule R-CQE-8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum WcOpcode {
    /// SEND.
    Send = 0,
    /// RDMA WRITE.
    RdmaWrite = 1,
    /// RDMA READ.
    RdmaRead = 2,
    /// Compare and swap.
    CompSwap = 3,
    /// Fetch and add.
    FetchAdd = 4,
    /// A memory window was bound.
    BindMw = 5,
    /// A key was invalidated.
    LocalInv = 6,
    /// FLUSH.
    Flush = 8,
    /// ATOMIC WRITE.
    AtomicWrite = 9,
    /// A fast registration; the kernel's number, since the verbs of programs have none.
    RegMr = 10,
    /// A SEND arrived.
    Recv = 128,
    /// A WRITE with immediate data arrived.
    RecvRdmaWithImm = 129,
}

/// A work completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The mark of the work request.
    pub wr_id: WrId,
    /// How it ended.
    pub status: WcStatus,
    /// What it was.
    pub opcode: WcOpcode,
    /// Bytes transferred; 0 where it failed (rule R-CQE-7).
    pub byte_len: u32,
    /// Immediate data that arrived, in wire order.
    pub imm: Option<[u8; 4]>,
    /// The key that the peer's SEND invalidated.
    pub invalidated: Option<RKey>,
    /// The queue pair.
    pub qp_num: Qpn,
    /// The peer's queue pair, for receives.
    pub src_qp: Qpn,
    /// Implementation-defined detail of an error; for a NAK, its syndrome.
    pub vendor_err: u32,
    /// Whether it wakes a completion queue armed for solicited completions only.
    pub solicited: bool,
    /// Whether the receive begins with the 40 bytes of a network header.
    pub grh: bool,
}

impl Completion {
    /// The completion of a work request that failed (rule R-CQE-5).
    #[must_use]
    pub const fn error(wr_id: WrId, status: WcStatus, opcode: WcOpcode, qp_num: Qpn) -> Self {
        Self {
            wr_id,
            status,
            opcode,
            byte_len: 0,
            imm: None,
            invalidated: None,
            qp_num,
            src_qp: Qpn::new(0),
            vendor_err: 0,
            // Rule F28: errors always wake.
            solicited: true,
            grh: false,
        }
    }

    /// The completion of a receive that `packet` ended.
    #[must_use]
    pub fn receive(
        wr_id: WrId,
        opcode: WcOpcode,
        byte_len: u32,
        packet: &Packet<'_>,
        qp_num: Qpn,
        src_qp: Qpn,
    ) -> Self {
        Self {
            byte_len,
            imm: packet.imm_dt().map(wire::ext::ImmDt::bytes),
            invalidated: packet.ieth().map(wire::ext::Ieth::rkey),
            src_qp,
            // Rule R-RSP-37.
            solicited: packet.bth().solicited(),
            ..Self::error(wr_id, WcStatus::Success, opcode, qp_num)
        }
    }
}

/// Completes a receive that was taken and cannot be used.
pub(crate) fn fail_receive(ctx: &mut Ctx<'_>, wqe: &RecvWqe, status: WcStatus) {
    ctx.out.counters.resp_cqe_error += 1;
    let wc = Completion::error(wqe.wr_id, status, WcOpcode::Recv, ctx.params.qpn);
    ctx.out.completions.push((wqe.side, wc));
}
