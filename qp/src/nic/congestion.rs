//! Congestion notification: CNPs out for marks that came in, and rates that CNPs from elsewhere change.
//!
//! Which marks are answered [`dcqcn::Np`] decides; what a CNP does, the queue pair's controller. Here CNPs are built and
//! wait for the next batch, in front of everything else.

use std::collections::VecDeque;

use dcqcn::{CcConfig, Marked, Np, Rate};
use wire::batch::TxBatch;
use wire::ext::CnpReserved;
use wire::icrc::ICRC_LEN;
use wire::{Bth, Instant, NetHeader, Packet, Qpn};
use zerocopy::IntoBytes;

use super::Nic;
use crate::cc::CcState;
use crate::event::TraceEvent;
use crate::state::{AddressVector, QpState, QpType};

/// CNPs that wait to be sent at most. Whoever sends marks faster than the port takes CNPs gets no more: a CNP that is
/// late is worth little, and the next mark makes another.
const MAX_WAITING: usize = 1024;

/// BTH to ICRC of a CNP.
const CNP_LEN: usize = Bth::SIZE + size_of::<CnpReserved>() + ICRC_LEN;

/// The notification point of the port, and CNPs that wait.
#[derive(Debug)]
pub(super) struct Notifier {
    /// There is none where nobody wants marks to be answered.
    np: Option<Box<Np>>,
    /// Traffic class of CNPs.
    class: u8,
    /// Header, and the queue pair whose rate it is about.
    waiting: VecDeque<(NetHeader, Qpn)>,
}

impl Notifier {
    pub(super) fn new(cc: &CcConfig) -> Self {
        Self {
            np: cc.algorithm.uses_ecn().then(|| Box::new(Np::new(&cc.params))),
            class: cc.params.cnp_traffic_class(),
            waiting: VecDeque::new(),
        }
    }

    /// Whether CNPs wait to be sent.
    pub(super) fn has_cnps(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// When a mark is to be answered that has not been.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.np.as_ref()?.poll_timeout()
    }

    /// Whether a NAK of a gap comes with a CNP.
    pub(super) fn answers_gaps(&self) -> bool {
        self.np.as_ref().is_some_and(|np| np.answers_gaps())
    }
}

impl Nic {
    /// Answers the mark of a packet that has passed all checks, if it has one (rule R-CNP-2).
    pub(super) fn answer_mark(&mut self, now: Instant, packet: &Packet<'_>) {
        let mark = self.notifier.np.as_mut().and_then(|np| np.on_packet(now, packet));
        if let Some(mark) = mark {
            self.queue_cnp(&mark);
        }
    }

    /// A packet revealed a gap, and its sender is told.
    pub(super) fn answer_gap(&mut self, now: Instant, packet: &Packet<'_>) {
        let mark = self.notifier.np.as_mut().and_then(|np| np.on_out_of_sequence(now, packet));
        if let Some(mark) = mark {
            self.queue_cnp(&mark);
        }
    }

    /// Answers marks whose time has come.
    pub(super) fn answer_due_marks(&mut self, now: Instant) {
        while let Some(mark) = self.notifier.np.as_mut().and_then(|np| np.poll_cnp(now)) {
            self.queue_cnp(&mark);
        }
    }

    fn queue_cnp(&mut self, mark: &Marked) {
        if self.notifier.waiting.len() >= MAX_WAITING {
            return;
        }
        if let Some((net, dest)) = self.cnp_way(mark) {
            // Rule R-CNP-8.
            self.notifier.waiting.push_back((net.with_traffic_class(self.notifier.class), dest));
        }
    }

    /// Where the CNP for a mark goes, and for which queue pair; none where the receiver has gone.
    fn cnp_way(&self, mark: &Marked) -> Option<(NetHeader, Qpn)> {
        let pair = self.qps.get(mark.local)?;
        let Some(sender) = mark.sender else {
            // Rule R-CNP-2: the peer, which is who sent it.
            return Some((pair.net?, pair.params.dest_qpn));
        };
        if pair.init.qp_type == QpType::Gsi {
            return None;
        }
        let sgid_index = u8::try_from(self.config.gids.iter().position(|gid| *gid == mark.to)?).ok()?;
        let addr = AddressVector { dgid: mark.from, sgid_index, ..AddressVector::default() };
        let net = self.route(QpType::Ud, [mark.local, sender], &addr).ok()?;
        Some((net, sender))
    }

    /// Takes a CNP for `qpn`. It needs no mark before it, and to do nothing is allowed (rules R-CNP-6 and R-CNP-7).
    pub(super) fn take_cnp(&mut self, now: Instant, qpn: Qpn) {
        let Some(pair) = self.qps.get_mut(qpn) else { return };
        let handled = pair.cc.as_mut().is_some_and(|cc| cc.on_cnp(now));
        if handled {
            self.out.counters.rp_cnp_handled += 1;
        } else {
            self.out.counters.rp_cnp_ignored += 1;
        }
        if let Some(tracer) = &mut self.tracer {
            tracer.event(now, &TraceEvent::Notified { qpn, handled });
        }
        self.trace_rate(now, qpn);
    }

    /// Fills `batch` with CNPs that go one way; false where none wait.
    pub(super) fn transmit_cnps(&mut self, now: Instant, batch: &mut TxBatch) -> bool {
        let Some(&(way, first)) = self.notifier.waiting.front() else { return false };
        let lane = TxBatch::lane(first);
        batch.begin(way, &self.config.caps, self.ip_id);
        while let Some(&(net, dest)) = self.notifier.waiting.front()
            && net == way
            && TxBatch::lane(dest) == lane
            && batch.accepts(CNP_LEN, &self.config.caps)
        {
            self.notifier.waiting.pop_front();
            // Rule R-CNP-1.
            let body = batch.push(CNP_LEN);
            body[..Bth::SIZE].copy_from_slice(Bth::cnp(dest).as_bytes());
            body[Bth::SIZE..].fill(0);
            self.out.counters.np_cnp_sent += 1;
            if let Some(tracer) = &mut self.tracer {
                tracer.event(now, &TraceEvent::Notifies { to: net.dst_gid(), dest });
            }
        }
        true
    }

    /// Tells whoever watches of a rate that has changed.
    pub(super) fn trace_rate(&mut self, now: Instant, qpn: Qpn) {
        if let Some(tracer) = &mut self.tracer
            && let Some(state) =
                self.qps.get_mut(qpn).and_then(|pair| pair.cc.as_mut()).and_then(|cc| cc.news(now))
        {
            tracer.event(now, &TraceEvent::Rate { qpn, state });
        }
    }

    /// What congestion control thinks of a queue pair at `now`; `None` where there is no such queue pair, or none for it.
    #[must_use]
    pub fn cc_state(&self, now: Instant, qpn: Qpn) -> Option<CcState> {
        self.qps.get(qpn)?.cc.as_ref().map(|cc| cc.state(now))
    }

    /// Every queue pair with its state and what congestion control thinks of it.
    pub fn cc_states(&self, now: Instant) -> impl Iterator<Item = (Qpn, QpState, Option<CcState>)> {
        self.qps.iter().map(move |pair| {
            let state = pair.cc.as_ref().map(|cc| cc.state(now));
            (pair.qpn, pair.state(), state)
        })
    }

    /// Lets a connected queue pair begin at the rate `current`, with `target` to go back to, as if congestion had brought
    /// it there: for simulations that start apart. False where there is no such queue pair, or no control of its rate.
    pub fn start_at_rate(&mut self, now: Instant, qpn: Qpn, current: Rate, target: Rate) -> bool {
        let cc = self.qps.get_mut(qpn).and_then(|pair| pair.cc.as_mut());
        cc.map(|cc| cc.start_at(now, current, target)).is_some()
    }
}
