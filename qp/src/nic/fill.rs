//! Filling a batch: which answers and requests of one queue pair join it, and why no more do.
//!
//! [`Nic::poll_transmit`](super::Nic::poll_transmit) comes here with every turn of a queue pair. Nothing here says whose
//! turn it is.

use transport::Ctx;
use wire::batch::{Caps, IpIdRule, TxBatch};
use wire::{Bth, NetHeader};
use zerocopy::FromBytes;

use crate::cc::Budget;
use crate::credit::Share;
use crate::engines::Engines;
use crate::sched::First;
use crate::state::QpState;

/// What of a queue pair filling a batch works on.
pub(super) struct Sending<'a> {
    pub(super) engines: &'a mut Engines,
    pub(super) state: QpState,
    pub(super) first: &'a mut First,
    pub(super) share: Share,
    pub(super) budget: &'a mut Budget,
}

/// How filling a batch ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Filled {
    /// The queue pair has nothing more to send now, or what it has is held back until its rate allows it.
    All,
    /// What it has goes another way.
    Elsewhere,
    /// It may not have more in flight beside what others have.
    NoCredit,
    /// The batch takes no more, or none of the length that is next.
    Full,
}

impl Sending<'_> {
    /// Fills `batch`, which goes the way `net` to queue pairs of `lane`, with answers and requests for as long as they
    /// fit.
    ///
    /// Answers go first, unless one is to share the batch of longer requests, which it can only behind them: what the
    /// program just posted leaves with the acknowledgement that was due, in one batch instead of two. Where the kernel
    /// makes a run of a batch, a lone request leaves at once, and the answer right behind it: it is the message that
    /// somebody waits for, and such a run of two takes longer to get through than one packet. Neither keeps the other
    /// for longer than a batch: who was kept waiting goes first in the next.
    pub(super) fn fill(
        &mut self,
        ctx: &mut Ctx<'_>,
        way: (&NetHeader, usize),
        caps: &Caps,
        batch: &mut TxBatch,
    ) -> Filled {
        let before = batch.len();
        let goes_alone = caps.ip_id == IpIdRule::Index;
        let mut filled = Filled::All;
        let answers_first = match *self.first {
            First::Answers => true,
            First::Requests => false,
            First::Longer => !self.answer_fits_behind_request(ctx, way),
        };
        for answers in [answers_first, !answers_first] {
            let is_lone = goes_alone && !answers_first && batch.len() == before + 1;
            if answers && is_lone && self.engines.prepare_reply(ctx).is_some() {
                *self.first = First::Answers;
                return Filled::Full;
            }
            let ended = if answers {
                self.add_answers(ctx, caps, batch)
            } else if self.state.continues_requests() {
                self.add_requests(ctx, way, caps, batch)
            } else {
                Filled::All
            };
            if ended == Filled::Full {
                if batch.len() > before {
                    *self.first = if answers { First::Requests } else { First::Answers };
                }
                return Filled::Full;
            }
            if ended != Filled::All {
                filled = ended;
            }
        }
        if !self.budget.is_held() {
            *self.first = First::Longer;
        } else if self.budget.is_touched() {
            // Who goes first takes what the rate lets pass: the others do so in the next turn, or never would.
            *self.first = if answers_first { First::Requests } else { First::Answers };
        }
        if filled == Filled::All
            && batch.len() > before
            && !self.budget.is_held()
            && self.engines.next_dest().is_some()
        {
            // Datagrams that go another way fill a batch of their own.
            return Filled::Elsewhere;
        }
        filled
    }

    fn answer_fits_behind_request(&mut self, ctx: &mut Ctx<'_>, (net, lane): (&NetHeader, usize)) -> bool {
        self.state.continues_requests()
            && self.budget.allows()
            && self.engines.prepare_reply(ctx).is_some_and(|answer| {
                self.engines.prepare_send(ctx, net, lane).is_some_and(|request| answer < request)
            })
    }

    fn add_answers(&mut self, ctx: &mut Ctx<'_>, caps: &Caps, batch: &mut TxBatch) -> Filled {
        while let Some(len) = self.engines.prepare_reply(ctx) {
            // Data that was asked for keeps this end's rate; what acknowledges something never waits (rule R-CNP-9).
            let is_data = self.budget.is_limited() && self.engines.answers_with_data();
            if is_data && !self.budget.allows() {
                return Filled::All;
            }
            if !batch.accepts(len, caps) {
                return Filled::Full;
            }
            if !self.engines.write_reply(ctx, batch.push(len)) {
                batch.cancel_last();
            } else if is_data {
                self.budget.spend(len);
            }
        }
        Filled::All
    }

    fn add_requests(
        &mut self,
        ctx: &mut Ctx<'_>,
        (net, lane): (&NetHeader, usize),
        caps: &Caps,
        batch: &mut TxBatch,
    ) -> Filled {
        let mut last_is_ours = false;
        let ended = loop {
            let Some(len) = self.engines.prepare_send(ctx, net, lane) else { break Filled::All };
            let scarce = self.share.is_scarce(self.engines.in_flight());
            if scarce && self.engines.is_in_doubt() {
                // Rule R-REQ-48: it asks with one packet whether its peer is there, until that answers or time is up.
                break Filled::All;
            } else if !self.share.allows(self.engines.in_flight(), self.engines.next_span()) {
                // Rule R-REQ-49: it holds credit that nobody has been asked to give back.
                if last_is_ours || !self.engines.asks_for_what_was_put_off() {
                    break Filled::NoCredit;
                }
            } else if !self.budget.allows() {
                break Filled::All;
            } else if !batch.accepts(len, caps) {
                break Filled::Full;
            } else {
                last_is_ours = self.engines.write_send(ctx, batch.push(len));
                if last_is_ours {
                    self.budget.spend(len);
                } else {
                    batch.cancel_last();
                }
            }
        };
        // Rule R-REQ-48: where little is left for others, an ACK is to come soon for what is in flight. Rule R-CNP-10: where
        // the rate is low, one comes before the timeout does. Rule R-REQ-49: nothing is put off where a
        // rate holds it back, or where others are at work.
        let soon = self.budget.asks
            || self.share.is_scarce(self.engines.in_flight())
            || (self.budget.is_limited() || self.share.is_shared()) && self.engines.has_put_off();
        if last_is_ours && soon && self.engines.asks_again() {
            ask_for_ack(batch);
        }
        ended
    }
}

/// Sets AckReq of the packet written last.
fn ask_for_ack(batch: &mut TxBatch) {
    if let Some((bth, _)) = batch.last_mut().and_then(|body| Bth::mut_from_prefix(body).ok()) {
        *bth = bth.with_ack_req(true);
    }
}
