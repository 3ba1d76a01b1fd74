//! When a requester asks for an ACK (rules R-REQ-11 and R-REQ-49).
//!
//! Who waits for a completion asks at once. A request that nobody waits for need not: an ACK takes as long to send and to
//! receive as a small message. What is left unasked is asked for soon after, so that nothing stays unanswered.

use wire::{Duration, Instant, Psn};

use super::Requester;
use crate::ports::Ctx;
use crate::segment::NextPacket;
use crate::wqe::{SendFlags, SendOp, SendWqe};

/// How long nothing is sent until what has not been asked for is.
pub(super) const ASK_AFTER: Duration = Duration::from_millis(1);
/// Least wait for an ACK that leaves time for that.
const LEAST_PATIENCE: Duration = Duration::from_millis(8);
/// Packets of 4 KiB that segmentation offload sends at once.
const BATCH: u32 = 15;

/// What has been asked for, and what not.
#[derive(Debug, Default)]
pub(super) struct Asking {
    /// Packets sent since one asked.
    since: u32,
    /// The newest that asked.
    asked: Option<Psn>,
    /// When the first and the newest message left that did not ask with its last packet, and none has asked since.
    put_off: Option<(Instant, Instant)>,
}

impl Asking {
    /// A packet whose last PSN is `psn` asks.
    fn asks(psn: Psn) -> Self {
        Self { asked: Some(psn), ..Self::default() }
    }

    /// A packet is sent whose last PSN is `psn`, and which asks or does not.
    pub(super) fn on_sent(&mut self, now: Instant, psn: Psn, asks: bool, is_last: bool) {
        if asks {
            *self = Self::asks(psn);
            return;
        }
        self.since += 1;
        if is_last {
            let first = self.put_off.map_or(now, |(first, _)| first);
            self.put_off = Some((first, now));
        }
    }

    /// Nothing waits for an answer.
    pub(super) fn forget(&mut self) {
        self.put_off = None;
    }

    /// Whether the packet sent last asked.
    pub(super) const fn has_asked(&self) -> bool {
        self.since == 0
    }

    /// When it is to be asked for what was put off.
    pub(super) fn due(&self) -> Option<Instant> {
        self.put_off.map(|(_, newest)| newest + ASK_AFTER)
    }
}

impl Requester {
    /// Whether a message has left that did not ask, and none has asked since.
    #[must_use]
    pub const fn has_put_off(&self) -> bool {
        self.asking.put_off.is_some()
    }

    /// The packet written last is to ask for an ACK after all, since what is in flight keeps others from sending; false
    /// where one that asks will be answered for all of it.
    pub fn asks_again(&mut self) -> bool {
        let asks = Asking::asks(self.snd.wrapping_sub(1));
        self.in_flight() > 0 && !core::mem::replace(&mut self.asking, asks).has_asked()
    }

    /// Rule R-REQ-11: the last packet of a message asks for an ACK, and so does one now and then in a long
    /// message, one that closes the window, and one that is sent again. Profiles leave some of it out.
    pub(super) fn asks_for_ack(&self, ctx: &Ctx<'_>, next: &NextPacket) -> bool {
        let (params, behaviour) = (ctx.params, ctx.params.behaviour);
        let every = behaviour.ack_req_every.unwrap_or(now_and_then(params.window)).max(1);
        let followed = behaviour.ack_req_when_idle && self.is_followed(ctx);
        next.last && !followed && !self.puts_off(ctx)
            || self.is_repeating() && behaviour.ack_req_on_repeats
            || self.in_flight() + next.span >= params.window
            || self.asking.since + 1 >= every
    }

    /// Whether the request at `cur` and the one behind it are SENDs or WRITEs, and nothing keeps the latter
    /// from leaving next, nor from asking where somebody waits: then the ACK that it asks for answers for both.
    fn is_followed(&self, ctx: &Ctx<'_>) -> bool {
        let messages = |index: usize| self.sq.get(index).filter(|wqe| wqe.op.segments().is_some());
        let (Some(_), Some(next)) = (messages(self.cur), messages(self.cur + 1)) else { return false };
        let free = !self.draining && !next.flags.contains(SendFlags::FENCE);
        let is_told = |wqe: &SendWqe| wqe.flags.contains(SendFlags::SIGNALED);
        let asks = is_told(next) || !is_told(&self.sq[self.cur]);
        free && asks && next.is_readable(ctx.memory, ctx.params.pd)
    }

    /// Rule R-REQ-49: whether the request at `cur` need not ask yet: nobody is told when it completes, a quarter of the
    /// send queue at most is kept by such requests, and the ACK timeout leaves time to ask for them later.
    fn puts_off(&self, ctx: &Ctx<'_>) -> bool {
        let (params, wqe) = (ctx.params, &self.sq[self.cur]);
        let first = self.asking.put_off.map_or(ctx.now, |(first, _)| first);
        !params.behaviour.ack_req_if_unsignaled
            && !wqe.flags.contains(SendFlags::SIGNALED)
            && wqe.op.segments().is_some()
            && !self.draining
            && !self.is_repeating()
            && self.asking.since + 1 < now_and_then(params.window).min(params.max_send_wr / 4)
            && !self.sq.get(self.cur + 1).is_some_and(|next| matches!(next.op, SendOp::Local(_)))
            && params.retransmission_timeout(0).is_none_or(|wait| {
                wait >= LEAST_PATIENCE && ctx.now.since(first).as_nanos() < wait.as_nanos() / 4
            })
    }

    /// The time for asking has come, unless something else is about to leave, which will ask in its turn, or who asked
    /// before has no answer yet: the peer is at work.
    pub(super) fn ask_in_time(&mut self, now: Instant) {
        self.skip_finished();
        let awaits = self.asking.asked.is_some_and(|psn| psn.diff(self.una) >= 0);
        let goes_on = self.local_error.is_none()
            && self.sq.get(self.cur).is_some_and(|next| {
                next.psns.is_some() || !self.draining && !matches!(next.op, SendOp::Local(_))
            });
        match &mut self.asking.put_off {
            Some((_, newest)) if goes_on || awaits => *newest = now,
            _ => _ = self.asks_for_what_was_put_off(),
        }
    }

    /// Goes back to the last packet of the newest message, so that it asks for all that was put off; false where nothing
    /// was.
    pub fn asks_for_what_was_put_off(&mut self) -> bool {
        if self.asking.put_off.take().is_none() || self.in_flight() == 0 || self.is_repeating() {
            return false;
        }
        self.skip_finished();
        let is_message = |index: &usize| self.sq[*index].psns.is_some_and(|(_, span)| span > 0);
        let newest = (0..self.cur).rev().find(is_message);
        let Some((index, psn)) = newest.and_then(|index| Some((index, self.sq[index].last_psn()?))) else {
            return false;
        };
        (self.cur, self.snd) = (index, psn);
        true
    }
}

/// Packets of a long message of which one asks for an ACK: a quarter of the window, but where that is little as many as
/// a batch of segmentation offload holds, so that what an ACK lets go makes a full batch.
fn now_and_then(window: u32) -> u32 {
    (window / 4).max((window / 2).min(BATCH))
}

#[cfg(test)]
mod tests;
