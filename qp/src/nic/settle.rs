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
            self.update_timer(qpn);
            if more {
                self.schedule(qpn);
            }
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
        self.check_drained(qpn);
        self.update_timer(qpn);
        self.schedule(qpn);
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

    fn check_drained(&mut self, qpn: Qpn) {
        let Some(pair) = self.qps.get_mut(qpn) else { return };
        if pair.state() == QpState::Sqd && !pair.drained && pair.engines.is_drained() {
            pair.drained = true;
            if pair.attr.en_sqd_async_notify {
                self.events.push_back(Event::Async(AsyncEvent::SqDrained(qpn)));
            }
        }
    }

    pub(super) fn schedule(&mut self, qpn: Qpn) {
        let Some(pair) = self.qps.get_mut(qpn) else { return };
        let has_work = pair.engines.has_replies() || pair.engines.sends() > 0;
        if !pair.queued && has_work {
            pair.queued = true;
            self.ready.push(qpn, pair.lane());
        }
    }

    fn update_timer(&mut self, qpn: Qpn) {
        let Some(pair) = self.qps.get_mut(qpn) else { return };
        // A deadline that moved back is found out when the old one comes.
        if let Some(due) = pair.engines.poll_timeout()
            && pair.timer.is_none_or(|at| due < at)
        {
            if let Some(at) = pair.timer.replace(due) {
                self.timers.remove(at, qpn);
            }
            self.timers.insert(due, qpn);
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
