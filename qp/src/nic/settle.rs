//! What a call into the engines of a queue pair caused, carried out: completions, errors, timers, turns.

use transport::ports::Side;
use wire::{Instant, NakCode, Qpn};

use super::Nic;
use crate::cq::Pushed;
use crate::event::{AsyncEvent, Event, TraceEvent};
use crate::pair::QueuePair;
use crate::state::QpState;

impl Nic {
    /// Carries out what filling a batch caused; `more` says that it was too small for all there is.
    pub(super) fn settle_after_send(&mut self, now: Instant, qpn: Qpn, more: bool) {
        if self.out.fatal || self.out.send_failed || !self.out.completions.is_empty() {
            self.settle(now, qpn);
        } else {
            self.follow_up(qpn, more);
        }
    }

    /// Carries out what a call into the engines of `qpn` caused. A queue pair that ends by itself says so in the
    /// completion of the work request at fault (rule R-QPS-21).
    pub(super) fn settle(&mut self, now: Instant, qpn: Qpn) {
        let unreported = self.out.unreported.take();
        if core::mem::take(&mut self.out.fatal)
            && self.fail_pair(now, qpn)
            && let Some(nak) = unreported
        {
            // Rule R-RSP-38.
            let event = match nak {
                NakCode::RemoteAccessError => AsyncEvent::QpAccessErr(qpn),
                _ => AsyncEvent::QpReqErr(qpn),
            };
            self.events.push_back(Event::Async(event));
        }
        if core::mem::take(&mut self.out.send_failed) {
            self.fail_sends(now, qpn);
        }
        self.deliver(now);
        self.follow_up(qpn, true);
    }

    /// Looks what the queue pair needs now that its engines have worked: a timer, a turn where it `wants` one, room for
    /// what it has in flight.
    fn follow_up(&mut self, qpn: Qpn, wants: bool) {
        let Some(pair) = self.qps.get_mut(qpn) else { return };
        self.credit.count(&mut pair.held, pair.engines.in_flight());
        if pair.state() == QpState::Sqd && !pair.drained && pair.engines.is_drained() {
            pair.drained = true;
            if pair.attr.en_sqd_async_notify {
                self.events.push_back(Event::Async(AsyncEvent::SqDrained(qpn)));
            }
        }
        // A deadline that moved back is found out when the old one comes.
        let wait = pair.cc.as_ref().and_then(|cc| cc.poll_timeout());
        if let Some(due) = pair.engines.poll_timeout().into_iter().chain(wait).min()
            && pair.timer.is_none_or(|(at, _)| due < at)
        {
            if let Some((_, id)) = pair.timer {
                self.timers.remove(id);
            }
            pair.timer = Some((due, self.timers.insert(due, qpn)));
        }
        if wants {
            pair.join(&mut self.ready);
        }
        if self.credit.is_awaited() {
            self.grant_credit();
        }
    }

    /// Gives a turn to who is first in line for credit, where there is enough (rule R-REQ-48).
    pub(super) fn grant_credit(&mut self) {
        let qps = &mut self.qps;
        let granted = self.credit.grant(|qpn| {
            let pair = qps.get_mut(qpn)?;
            let still = pair.state().continues_requests() && pair.engines.sends() > 0;
            pair.in_line = pair.in_line.filter(|_| still);
            pair.in_line
        });
        let Some(pair) = granted.and_then(|qpn| self.qps.get_mut(qpn)) else { return };
        pair.in_line = None;
        if !pair.queued {
            pair.queued = true;
            self.ready.push_front(pair.qpn, pair.place());
        }
    }

    /// Puts a queue pair into the error state; false where it was there.
    fn fail_pair(&mut self, now: Instant, qpn: Qpn) -> bool {
        let Some(from) = self.qps.get(qpn).map(QueuePair::state).filter(|state| *state != QpState::Err)
        else {
            return false;
        };
        self.enter_error(now, qpn);
        self.trace_state(now, qpn, from, QpState::Err);
        true
    }

    /// Takes a queue pair to ERR. With a shared receive queue it has no receives to flush but the one in use; that
    /// there will be no more is said once (rule R-CQE-12).
    pub(super) fn enter_error(&mut self, now: Instant, qpn: Qpn) {
        let Some(pair) = self.qps.get_mut(qpn) else { return };
        let enters = pair.state() != QpState::Err;
        pair.enter_error(now, &mut self.memory, &mut self.out);
        self.credit.count(&mut pair.held, pair.engines.in_flight());
        if enters && pair.init.srq.is_some() {
            self.events.push_back(Event::Async(AsyncEvent::LastWqeReached(qpn)));
        }
    }

    /// Stops the send queue of an unreliable queue pair.
    fn fail_sends(&mut self, now: Instant, qpn: Qpn) {
        let Some(pair) = self.qps.get_mut(qpn) else { return };
        let from = pair.state();
        if from == QpState::Err {
            return;
        }
        pair.enter_sqe(now, &mut self.memory, &mut self.out);
        self.trace_state(now, qpn, from, QpState::Sqe);
    }

    /// Moves completions to their queues. One that overruns ends every queue pair that completes there (rules
    /// R-CQE-9 and R-CQE-17); what those flush may be told elsewhere, so it takes its turn.
    fn deliver(&mut self, now: Instant) {
        while !self.out.completions.is_empty() {
            let mut failed: Vec<Qpn> = Vec::new();
            for (side, wc) in self.out.completions.drain(..) {
                let id = match side {
                    Side::Send => self.qps.get(wc.qp_num).map(|pair| pair.init.send_cq),
                    Side::Recv => self.qps.get(wc.qp_num).map(|pair| pair.init.recv_cq),
                    Side::Srq(srqn) => self.srqs.get(srqn).and_then(|srq| srq.xrc).map(|xrc| xrc.cq),
                };
                let Some((id, queue)) = id.and_then(|id| Some((id, self.cqs.get_mut(id.0)?))) else {
                    continue;
                };
                match queue.push(wc) {
                    Pushed::Stored => {}
                    Pushed::Notify => self.events.push_back(Event::CqReady(id)),
                    Pushed::Overrun => {
                        self.events.push_back(Event::Async(AsyncEvent::CqErr(id)));
                        failed.extend(&queue.users);
                        // An XRC target does not complete here but through its shared receive queue.
                        failed.push(wc.qp_num);
                    }
                    // All others failed when it overran; this one has begun anew since.
                    Pushed::Lost => failed.push(wc.qp_num),
                }
            }
            for qpn in failed {
                if self.qps.get(qpn).is_some_and(|pair| pair.state() != QpState::Reset)
                    && self.fail_pair(now, qpn)
                {
                    // The queue that would say so is of no more use (rule R-QPS-21).
                    self.events.push_back(Event::Async(AsyncEvent::QpFatal(qpn)));
                }
            }
        }
    }

    pub(super) fn schedule(&mut self, qpn: Qpn) {
        if let Some(pair) = self.qps.get_mut(qpn) {
            pair.join(&mut self.ready);
        }
    }

    pub(super) fn trace_state(&mut self, now: Instant, qpn: Qpn, from: QpState, to: QpState) {
        if let Some(tracer) = &mut self.tracer
            && from != to
        {
            tracer.event(now, &TraceEvent::State { qpn, from, to });
        }
    }
}
