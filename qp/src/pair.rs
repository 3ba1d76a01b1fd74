//! One queue pair: its attributes, its engines, and the receive work that waits.

use std::collections::VecDeque;

use transport::{Completion, Ctx, Effects, RcParams, RecvQueue, RecvWqe, WcOpcode, WcStatus};
use wire::batch::TxBatch;
use wire::{Gid, Instant, NetHeader, PKey, QKey, Qpn, Srqn};

use crate::cc::Cc;
use crate::cq::CqId;
use crate::engines::Engines;
use crate::mr::MrTable;
use crate::nic::NicConfig;
use crate::sched::{First, Ready, Turn};
use crate::srq::XrcdId;
use crate::state::{QpAttr, QpState, QpType};
use crate::timer::TimerId;
use crate::wr::QpCap;

/// Most PSNs that may be outstanding: fewer than half the circle, so that before and after stay apart (rule
/// R-REQ-6).
const MAX_WINDOW: u32 = (1 << 23) - 1;

/// The queue key of the general services queue pair, known to all (rule R-ADR-21).
const GSI_QKEY: QKey = QKey::new(0x8001_0000);

/// What a queue pair is made of, fixed when it is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpInit {
    /// Transport service.
    pub qp_type: QpType,
    /// Protection domain.
    pub pd: transport::PdId,
    /// Where sends complete.
    pub send_cq: CqId,
    /// Where receives complete.
    pub recv_cq: CqId,
    /// Sizes; they are kept as given (rule R-CQE-16).
    pub cap: QpCap,
    /// Every send completes visibly, signalled or not.
    pub sq_sig_all: bool,
    /// Where receives come from instead of a queue of its own; their sizes in `cap` then mean nothing (field case
    /// F27). Take such a queue pair to ERR and wait for [`LastWqeReached`](crate::AsyncEvent::LastWqeReached) before
    /// it is reset or destroyed: else a receive that it has in use is lost.
    pub srq: Option<Srqn>,
    /// XRC domain, of an XRC target only.
    pub xrcd: Option<XrcdId>,
}

impl QpInit {
    /// A queue pair of the default sizes, with a receive queue of its own.
    #[must_use]
    pub fn new(qp_type: QpType, pd: transport::PdId, send_cq: CqId, recv_cq: CqId) -> Self {
        Self {
            qp_type,
            pd,
            send_cq,
            recv_cq,
            cap: QpCap::default(),
            sq_sig_all: false,
            srq: None,
            xrcd: None,
        }
    }

    /// An XRC initiator: it sends only, to the shared receive queue that each work request names.
    #[must_use]
    pub fn xrc_initiator(pd: transport::PdId, send_cq: CqId) -> Self {
        Self::new(QpType::XrcIni, pd, send_cq, CqId::NONE)
    }

    /// An XRC target: it receives only, into the shared receive queues of `xrcd` that its peer names. It has neither
    /// protection domain nor completion queues; those of the shared receive queue count (rule R-RSP-45).
    #[must_use]
    pub fn xrc_target(xrcd: XrcdId) -> Self {
        let none = transport::PdId(u32::MAX);
        Self { xrcd: Some(xrcd), ..Self::new(QpType::XrcTgt, none, CqId::NONE, CqId::NONE) }
    }

    /// With what means nothing for its type left out: receive sizes where receives are shared (field case F27), and
    /// what an XRC queue pair does not have.
    pub(crate) fn normalized(mut self) -> Self {
        let is_xrc = matches!(self.qp_type, QpType::XrcIni | QpType::XrcTgt);
        if self.srq.is_some() || is_xrc {
            (self.cap.max_recv_wr, self.cap.max_recv_sge) = (0, 0);
        }
        if is_xrc {
            self.recv_cq = CqId::NONE;
        }
        match self.qp_type {
            QpType::XrcTgt => {
                self.send_cq = CqId::NONE;
                self.pd = transport::PdId(u32::MAX);
                self.cap = QpCap {
                    max_send_wr: 0,
                    max_recv_wr: 0,
                    max_send_sge: 0,
                    max_recv_sge: 0,
                    max_inline_data: 0,
                };
            }
            _ => self.xrcd = None,
        }
        self
    }
}

/// Receives that were posted: used, and so completed, in order (rule R-CQE-14).
#[derive(Debug, Default)]
pub(crate) struct RecvRing(VecDeque<RecvWqe>);

impl RecvQueue for RecvRing {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn take(&mut self) -> Option<RecvWqe> {
        self.0.pop_front()
    }
}

impl RecvRing {
    pub(crate) fn push(&mut self, wqe: RecvWqe) {
        self.0.push_back(wqe);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

/// A queue pair of the device.
#[derive(Debug)]
pub(crate) struct QueuePair {
    pub(crate) qpn: Qpn,
    pub(crate) init: QpInit,
    pub(crate) attr: QpAttr,
    pub(crate) params: RcParams,
    pub(crate) engines: Engines,
    pub(crate) rq: RecvRing,
    /// Addresses of its packets, once connected.
    pub(crate) net: Option<NetHeader>,
    /// It waits in the scheduler's queue.
    pub(crate) queued: bool,
    /// What it may still send before others.
    pub(crate) turn: Turn,
    /// Packets of other queue pairs may go the same way.
    pub(crate) shares_batches: bool,
    /// Of the device's credit, what it had in flight when that was last counted.
    pub(crate) held: u32,
    /// PSNs of the packet for which it stands in line for credit.
    pub(crate) in_line: Option<u32>,
    /// Its entry among the device's timers.
    pub(crate) timer: Option<(Instant, TimerId)>,
    pub(crate) comm_est: bool,
    pub(crate) drained: bool,
    /// Multicast groups it is a member of; while there are any, it cannot be destroyed.
    pub(crate) groups: Vec<Gid>,
    /// What of it goes first into the next batch.
    pub(crate) first: First,
    /// Its congestion control, where there is one; from when it can receive, since that is when READs may ask it to send.
    pub(crate) cc: Option<Box<Cc>>,
}

impl QueuePair {
    pub(crate) fn new(qpn: Qpn, init: QpInit, config: &NicConfig) -> Self {
        let attr = QpAttr::default();
        let params = params(qpn, &init, &attr, config);
        Self {
            qpn,
            init,
            attr,
            engines: Engines::new(init.qp_type, &params),
            params,
            rq: RecvRing::default(),
            net: None,
            queued: false,
            turn: Turn::default(),
            shares_batches: config.caps.src_port.is_some(),
            held: 0,
            in_line: None,
            timer: None,
            comm_est: false,
            drained: false,
            groups: Vec::new(),
            first: First::default(),
            cc: None,
        }
    }

    pub(crate) const fn state(&self) -> QpState {
        self.attr.state
    }

    /// Lane of the queue pair that it sends to next.
    pub(crate) fn lane(&self) -> usize {
        TxBatch::lane(self.engines.next_dest().unwrap_or(self.params.dest_qpn))
    }

    /// Where it waits for its turn: with those of its lane, where their packets can go the same way. Where each connection
    /// has a source port of its own they do not, and the order of the queue is kinder to caches.
    pub(crate) fn place(&self) -> usize {
        if self.shares_batches { self.lane() } else { 0 }
    }

    /// Takes its place among those with something to send, where it has something.
    pub(crate) fn join(&mut self, ready: &mut Ready) {
        let waits = self.cc.as_ref().is_some_and(|cc| cc.waits());
        let has_work = if waits {
            self.engines.has_replies() && !self.engines.answers_with_data()
        } else {
            self.engines.has_replies() || self.engines.sends() > 0
        };
        if !self.queued && has_work {
            self.queued = true;
            ready.push(self.qpn, self.place());
        }
    }

    /// Takes over attributes that were checked, and does what the transition asks for. Leaving SQD lets requests
    /// start again (rule R-QPS-20).
    pub(crate) fn apply(&mut self, attr: QpAttr, net: Option<NetHeader>, config: &NicConfig) {
        let from = self.attr.state;
        self.attr = if attr.state == QpState::Reset { QpAttr::default() } else { attr };
        let repeats = |params: &RcParams| (params.retry_cnt, params.rnr_retry);
        let before = repeats(&self.params);
        self.params = params(self.qpn, &self.init, &self.attr, config);
        if repeats(&self.params) != before {
            self.engines.reload_retries(&self.params);
        }
        match (from, attr.state) {
            (_, QpState::Reset) => {
                // Rule R-QPS-13.
                self.rq = RecvRing::default();
                self.engines = Engines::new(self.init.qp_type, &self.params);
                self.net = None;
                self.comm_est = false;
                self.cc = None;
            }
            (QpState::Init, QpState::Rtr) => {
                self.engines.start_receiving(&self.params);
                let controller = config.controller(self.init.qp_type, self.attr.addr.traffic_class);
                self.cc = controller.map(|controller| Box::new(Cc::new(controller)));
            }
            (QpState::Rtr, QpState::Rts) => self.engines.start_sending(&self.params),
            _ => {}
        }
        if net.is_some() {
            self.net = net;
        }
        // Changing attributes within SQD does not drain it anew.
        self.drained &= from == QpState::Sqd;
        self.engines.set_draining(attr.state == QpState::Sqd);
    }

    /// Entering ERR: completes all work with a flush error, in order per queue (rule R-CQE-2).
    pub(crate) fn enter_error(&mut self, now: Instant, memory: &mut MrTable, out: &mut Effects) {
        self.attr.state = QpState::Err;
        self.attr.cur_state = QpState::Err;
        let mut ctx = Ctx { now, params: &self.params, memory, out };
        self.engines.flush_sends(&mut ctx);
        let unfinished = self.engines.abandon();
        for wqe in unfinished.into_iter().chain(self.rq.0.drain(..)) {
            flush_receive(self.qpn, &wqe, out);
        }
    }

    /// The send queue of an unreliable queue pair fails: its work is flushed, receives go on (rule R-QPS-8).
    pub(crate) fn enter_sqe(&mut self, now: Instant, memory: &mut MrTable, out: &mut Effects) {
        self.attr.state = QpState::Sqe;
        self.attr.cur_state = QpState::Sqe;
        let mut ctx = Ctx { now, params: &self.params, memory, out };
        self.engines.flush_sends(&mut ctx);
    }

    /// Receives of the queue pair that have been posted and not completed.
    pub(crate) fn receives(&self) -> usize {
        self.rq.len()
    }
}

/// Completes a receive that will not be used.
pub(crate) fn flush_receive(qpn: Qpn, wqe: &RecvWqe, out: &mut Effects) {
    out.counters.resp_cqe_flush_error += 1;
    let wc = Completion::error(wqe.wr_id, WcStatus::WrFlushErr, WcOpcode::Recv, qpn);
    out.completions.push((wqe.side, wc));
}

fn params(qpn: Qpn, init: &QpInit, attr: &QpAttr, config: &NicConfig) -> RcParams {
    // A datagram is as long as the port allows, whatever path MTU anyone set (field case F37).
    let mtu = if init.qp_type.is_connected() { attr.path_mtu } else { config.active_mtu };
    RcParams {
        qpn,
        dest_qpn: attr.dest_qpn,
        transport: init.qp_type.transport(),
        pd: init.pd,
        access: attr.access,
        pkey: PKey::DEFAULT,
        mtu,
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        max_send_wr: init.cap.max_send_wr,
        window: config.caps.window.min(config.caps.credit).clamp(1, MAX_WINDOW),
        qkey: if init.qp_type == QpType::Gsi { GSI_QKEY } else { attr.qkey },
        sq_psn: attr.sq_psn,
        rq_psn: attr.rq_psn,
        behaviour: config.profile.behaviour(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rule R-REQ-6.
    #[test]
    fn the_window_stays_within_half_the_circle_of_psns_and_the_credit() {
        let cq = CqId(0);
        let init = QpInit::new(QpType::Rc, transport::PdId(0), cq, cq);
        for (given, kept) in [(0, 1), (1, 1), (64, 64), (u32::MAX, (1 << 23) - 1)] {
            let mut config = crate::kit::config(1);
            config.caps.window = given;
            assert_eq!(QueuePair::new(Qpn::new(0x11), init, &config).params.window, kept);
            config.caps.credit = 48;
            assert_eq!(QueuePair::new(Qpn::new(0x11), init, &config).params.window, kept.min(48));
        }
    }
}
