//! The data path: packets in, time passing, packets out.

use transport::{Ctx, DropReason, RecvQueue};
use wire::batch::{HeaderKnowledge, RxBurst, TxBatch};
use wire::ext::Xrceth;
use wire::ip::Ecn;
use wire::opcode::Kind;
use wire::{Instant, NetHeader, Packet, Qpn};

use super::Nic;
use super::fill::{Filled, Sending};
use crate::cc::Budget;
use crate::demux;
use crate::event::{AsyncEvent, Event, TraceEvent};
use crate::pair::QueuePair;
use crate::srq::Missing;
use crate::state::QpState;

impl Nic {
    /// Takes packets that arrived. Each is accepted, or dropped under exactly one reason (rule R-ADM-10).
    pub fn handle_burst(&mut self, now: Instant, burst: &RxBurst) {
        let malformed = u64::from(burst.malformed());
        self.out.counters.rcvd_pkts += malformed;
        self.drops.count(DropReason::Malformed, malformed);
        for (rx, body) in burst.iter() {
            self.out.counters.rcvd_pkts += 1;
            if let Err((qpn, reason)) = self.handle_packet(now, &rx.net, rx.knowledge, body) {
                self.drops.count(reason, 1);
                if reason == DropReason::BadIcrc {
                    self.out.counters.rx_icrc_encapsulated += 1;
                }
                if let Some(tracer) = &mut self.tracer {
                    tracer.event(now, &TraceEvent::Dropped { qpn, reason });
                }
            }
        }
    }

    fn handle_packet(
        &mut self,
        now: Instant,
        net: &NetHeader,
        knowledge: HeaderKnowledge,
        body: &[u8],
    ) -> Result<(), (Option<Qpn>, DropReason)> {
        let packet = Packet::parse_body(*net, body).map_err(|error| (None, demux::unparsable(error)))?;
        let qpn = packet.bth().dest_qp();
        self.dispatch(now, knowledge, &packet, qpn).map_err(|reason| (Some(qpn), reason))
    }

    fn dispatch(
        &mut self,
        now: Instant,
        knowledge: HeaderKnowledge,
        packet: &Packet<'_>,
        qpn: Qpn,
    ) -> Result<(), DropReason> {
        // Rule R-WIR-15.
        if packet.bth().tver() != 0 {
            return Err(DropReason::BadVersion);
        }
        if qpn == Qpn::MULTICAST {
            return self.dispatch_group(now, knowledge, packet);
        }
        // Rules R-ADM-2, R-ADM-3 and R-ADM-9. What follows touches this queue pair alone (rule R-ADM-13).
        let pair = self.qps.get(qpn).ok_or(DropReason::NoSuchQp)?;
        if packet.info().kind == Kind::Cnp {
            // A CNP need not come from the peer, and its sender need not be in its partition: the queue pair
            // it names decides alone (rules R-ADR-10 and R-ADM-8).
            if !pair.state().takes_requests() {
                return Err(DropReason::QpState);
            }
            demux::check_icrc(packet, knowledge, &mut self.out.counters)?;
            self.note_admitted(now, packet);
            self.take_cnp(now, qpn);
            return Ok(());
        }
        // Rule R-WIR-32: the ICRC is checked before anything comes of the packet.
        demux::admit(pair, &self.config.gids, packet)?;
        demux::check_icrc(packet, knowledge, &mut self.out.counters)?;
        self.note_admitted(now, packet);
        self.answer_mark(now, packet);
        self.give(now, packet, qpn)
    }

    /// Tells the tracer and the counters of a packet that has passed all checks.
    pub(super) fn note_admitted(&mut self, now: Instant, packet: &Packet<'_>) {
        if let Some(tracer) = &mut self.tracer {
            tracer.event(now, &TraceEvent::Received(packet));
        }
        if packet.net.ecn() == Ecn::Ce {
            self.out.counters.np_ecn_marked_roce_packets += 1;
        }
    }

    /// Lets a queue pair work on a packet that has passed all checks.
    pub(super) fn give(&mut self, now: Instant, packet: &Packet<'_>, qpn: Qpn) -> Result<(), DropReason> {
        let pair = self.qps.get_mut(qpn).ok_or(DropReason::NoSuchQp)?;
        if packet.info().kind.is_request()
            && pair.init.qp_type.is_connected()
            && pair.attr.state == QpState::Rtr
            && !pair.comm_est
        {
            // Rule R-RSP-36.
            pair.comm_est = true;
            self.events.push_back(Event::Async(AsyncEvent::CommEst(qpn)));
        }
        let named = pair.init.xrcd.and_then(|_| packet.xrceth().map(Xrceth::srqn));
        let srqn = pair.init.srq.or(named);
        let mut missing = Missing;
        let recv: &mut dyn RecvQueue = match (pair.init.srq, pair.init.xrcd) {
            (None, None) => &mut pair.rq,
            (Some(srqn), _) => self.srqs.get_mut(srqn).map_or(&mut missing, |srq| srq),
            (None, Some(xrcd)) => match named.and_then(|srqn| self.srqs.of_domain(srqn, xrcd)) {
                Some(srq) => {
                    // Rule R-RSP-45: its domain is what counts.
                    pair.params.pd = srq.pd;
                    srq
                }
                None => &mut missing,
            },
        };
        let may_open_gap = self.notifier.answers_gaps() && !pair.engines.is_in_gap();
        let mut ctx = Ctx { now, params: &pair.params, memory: &mut self.memory, out: &mut self.out };
        let result = pair.engines.on_packet(&mut ctx, recv, packet);
        if let Some(cc) = &mut pair.cc
            && packet.info().kind.is_response()
        {
            cc.on_answer(now, &pair.engines, pair.params.mtu_bytes());
        }
        let opens_gap = may_open_gap && pair.engines.is_in_gap();
        self.settle(now, qpn);
        if opens_gap {
            self.answer_gap(now, packet);
        }
        if let Some(srqn) = srqn {
            self.tell_limit(srqn);
        }
        result
    }

    /// Does what is due at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.answer_due_marks(now);
        while let Some(qpn) = self.timers.pop_due(now) {
            let Some(pair) = self.qps.get_mut(qpn) else { continue };
            pair.timer = None;
            if pair.engines.poll_timeout().is_some_and(|due| due <= now) {
                let mut ctx = Ctx { now, params: &pair.params, memory: &mut self.memory, out: &mut self.out };
                pair.engines.handle_timeout(&mut ctx);
            }
            if let Some(cc) = &mut pair.cc {
                cc.handle_timeout(now, &pair.engines);
            }
            self.settle(now, qpn);
        }
    }

    /// Fills `batch` with packets of one flow and one lane, sealed and ready to send; false where nobody has any. Queue
    /// pairs take turns of so many bytes; those whose packets go the same way and are of equal size share a batch.
    ///
    /// CNPs leave before everything else, and no rate holds them back.
    pub fn poll_transmit(&mut self, now: Instant, batch: &mut TxBatch) -> bool {
        if self.transmit_cnps(now, batch) {
            self.finish(batch);
            return true;
        }
        while let Some(qpn) = self.ready.pop() {
            let Some(pair) = self.turn(qpn) else { continue };
            let Some(net) = pair.engines.next_header(pair.net) else {
                pair.turn.goes_on(0, false);
                self.end_turn(qpn);
                continue;
            };
            let lane = pair.lane();
            batch.begin(net, &self.config.caps, self.ip_id);
            let mut full = self.take_turn(now, qpn, (&net, lane), batch);
            if batch.is_empty() {
                continue;
            }
            let shares = self.config.caps.src_port.is_some();
            while shares
                && !full
                && let Some(qpn) = self.ready.pop_same_lane()
            {
                let Some(pair) = self.turn(qpn) else { continue };
                let its_lane = pair.lane();
                full = if pair.engines.next_header(pair.net) == Some(net) && its_lane == lane {
                    self.take_turn(now, qpn, (&net, lane), batch)
                } else {
                    pair.queued = true;
                    self.ready.push_front(qpn, its_lane);
                    true
                };
            }
            self.finish(batch);
            return true;
        }
        batch.clear();
        false
    }

    /// Makes a batch ready to be sent.
    fn finish(&mut self, batch: &mut TxBatch) {
        batch.seal();
        #[expect(clippy::cast_possible_truncation, reason = "identifications count modulo 2^16")]
        let sent = batch.len() as u16;
        self.ip_id = self.ip_id.wrapping_add(sent);
        self.out.counters.sent_pkts += u64::from(sent);
    }

    /// The queue pair `qpn`, which is first in the queue, where it may send now.
    fn turn(&mut self, qpn: Qpn) -> Option<&mut QueuePair> {
        let pair = self.qps.get_mut(qpn)?;
        if !pair.turn.comes(self.quantum) {
            self.ready.push(qpn, pair.place());
            return None;
        }
        pair.queued = false;
        Some(pair)
    }

    /// The turn of `qpn` is over: who waits for credit may be next.
    pub(super) fn end_turn(&mut self, qpn: Qpn) {
        self.credit.turn_ends(qpn);
        if self.credit.is_awaited() {
            self.grant_credit();
        }
    }

    /// Lets a queue pair add its packets for `way` to `batch`; true where the batch takes no more.
    fn take_turn(&mut self, now: Instant, qpn: Qpn, way: (&NetHeader, usize), batch: &mut TxBatch) -> bool {
        let (packets, bytes) = (batch.len(), batch.bytes().len());
        let Some(pair) = self.qps.get_mut(qpn) else { return false };
        let share = self.credit.share(qpn, pair.held);
        let mut budget = match &mut pair.cc {
            None => Budget::UNLIMITED,
            Some(cc) => cc.budget(now, way.0, pair.params.ack_timeout()),
        };
        let mut ctx = Ctx { now, params: &pair.params, memory: &mut self.memory, out: &mut self.out };
        let mut sending = Sending {
            engines: &mut pair.engines,
            state: pair.attr.state,
            first: &mut pair.first,
            share,
            budget: &mut budget,
        };
        let filled = sending.fill(&mut ctx, way, &self.config.caps, batch);
        let packets = batch.len() - packets;
        let bytes = batch.bytes().len() - bytes + packets * way.0.len();
        let more = matches!(filled, Filled::Full | Filled::Elsewhere);
        if let Some(cc) = &mut pair.cc {
            cc.sent(now, &budget, &pair.engines, more);
        }
        if pair.turn.goes_on(bytes, more) {
            pair.queued = true;
            self.ready.push_front(qpn, pair.place());
        } else {
            self.credit.turn_ends(qpn);
        }
        if filled == Filled::NoCredit && pair.in_line.is_none() {
            pair.in_line = Some(pair.engines.next_span());
            self.credit.line_up(qpn);
        }
        self.settle_after_send(now, qpn, more);
        if packets > 0
            && let Some(tracer) = &mut self.tracer
        {
            tracer.event(now, &TraceEvent::Sent { qpn, packets });
            self.trace_rate(now, qpn);
        }
        filled == Filled::Full
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`Nic::handle_timeout`] has to be called at the latest.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let timer = self.timers.next();
        match self.notifier.poll_timeout() {
            None => timer,
            Some(mark) => Some(timer.map_or(mark, |timer| timer.min(mark))),
        }
    }

    /// Whether [`Nic::poll_transmit`] may have something.
    #[must_use]
    pub fn wants_transmit(&self) -> bool {
        !self.ready.is_empty() || self.notifier.has_cnps()
    }
}
