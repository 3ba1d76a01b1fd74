//! The requester: cuts work requests into packets, keeps the window, goes back when told to.
//!
//! Three PSNs describe it: `una`, the oldest not yet acknowledged; `snd`, the next to send; `high`, one past
//! the newest ever sent. `snd` is behind `high` while packets are being sent again. Answers are handled in
//! [`crate::completer`], which moves `una`.

mod asking;

use std::collections::VecDeque;

use wire::opcode::Operation;
use wire::{Instant, Psn};

use self::asking::Asking;
use crate::completion::{Completion, WcStatus};
use crate::local::LocalOp;
use crate::params::RcParams;
use crate::ports::{Ctx, Side};
use crate::segment::NextPacket;
use crate::wqe::{SendFlags, SendOp, SendWqe};

/// The requester of one reliable connection.
#[derive(Debug)]
pub struct Requester {
    /// Posted and not complete, oldest first: the order in which they leave (rule R-REQ-7). `una` lies in the first,
    /// if that has started.
    pub(crate) sq: VecDeque<SendWqe>,
    /// Index of the request that `snd` lies in, or that starts next.
    cur: usize,
    pub(crate) una: Psn,
    snd: Psn,
    pub(crate) high: Psn,
    /// Last PSNs of the requests that are open and count against the READ depth.
    open_reads: VecDeque<Psn>,
    retry_left: u8,
    rnr_left: u8,
    ack_deadline: Option<Instant>,
    /// ACK timeouts in a row, and when the first of these waits began.
    timeouts: u8,
    waiting_since: Option<Instant>,
    rnr_until: Option<Instant>,
    /// An ACK timeout has passed, and nothing has been heard of the peer since.
    silent: bool,
    /// `una` is being sent again because an answer said so; more such answers change nothing (rule R-CMP-25).
    pub(crate) recovering: bool,
    asking: Asking,
    /// The packet written last is of a SEND or WRITE and was sent for the first time.
    is_new_message: bool,
    /// The request with this index cannot be carried out; it fails once all before it are done.
    local_error: Option<(usize, WcStatus)>,
    /// No new request may start (SQD).
    draining: bool,
    /// What [`Requester::prepare`] announced.
    prepared: Option<NextPacket>,
}

/// What kind of failure makes packets be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    SequenceNak,
    ImpliedNak,
    Timeout,
}

impl Requester {
    /// A requester whose first packet has PSN `sq_psn` (rule R-REQ-2).
    #[must_use]
    pub fn new(params: &RcParams) -> Self {
        Self {
            sq: VecDeque::new(),
            cur: 0,
            una: params.sq_psn,
            snd: params.sq_psn,
            high: params.sq_psn,
            open_reads: VecDeque::new(),
            retry_left: params.retry_cnt,
            rnr_left: params.rnr_retry,
            ack_deadline: None,
            timeouts: 0,
            waiting_since: None,
            rnr_until: None,
            silent: false,
            recovering: false,
            asking: Asking::default(),
            is_new_message: false,
            local_error: None,
            draining: false,
            prepared: None,
        }
    }

    /// Adds a work request.
    pub fn post(&mut self, wqe: SendWqe) {
        self.sq.push_back(wqe);
    }

    /// Work requests that have not completed.
    #[must_use]
    pub fn len(&self) -> usize {
        self.sq.len()
    }

    /// Whether no work request is waiting.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sq.is_empty()
    }

    /// The numbers of repeats have changed: counts from the new ones on.
    pub fn reload_retries(&mut self, params: &RcParams) {
        self.retry_left = params.retry_cnt;
        self.rnr_left = params.rnr_retry;
    }

    /// Stops or goes on starting new requests (SQD). Started ones always finish.
    pub fn set_draining(&mut self, draining: bool) {
        self.draining = draining;
    }

    /// Whether no started request is unfinished.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.sq.front().is_none_or(|wqe| wqe.psns.is_none())
    }

    /// Next PSN that a new packet would get.
    #[must_use]
    pub const fn next_psn(&self) -> Psn {
        self.high
    }

    /// Oldest PSN that has no answer.
    #[must_use]
    pub const fn oldest_unacknowledged(&self) -> Psn {
        self.una
    }

    /// PSNs that have been sent and wait for an answer: requests, and READ responses that were asked for. What is to be
    /// sent again is not counted: it did not arrive.
    #[must_use]
    pub const fn in_flight(&self) -> u32 {
        self.snd.steps_from(self.una)
    }

    /// PSNs that the packet takes which [`Requester::prepare`] announced.
    #[must_use]
    pub fn next_span(&self) -> u32 {
        self.prepared.as_ref().map_or(0, |next| next.span)
    }

    /// Whether something is in flight to a peer that did not answer in time: it may be gone.
    #[must_use]
    pub const fn is_in_doubt(&self) -> bool {
        self.silent && self.in_flight() > 0
    }

    /// One past the PSN of the packet written last, where it is a SEND or WRITE that was sent for the first time and asks
    /// for an ACK: the time until that is a round trip.
    #[must_use]
    pub fn asked(&self) -> Option<Psn> {
        let is_out = !self.is_repeating() && self.in_flight() > 0;
        (is_out && self.is_new_message && self.asking.has_asked()).then_some(self.snd)
    }

    /// Whether packets are being sent again.
    #[must_use]
    pub fn is_repeating(&self) -> bool {
        self.snd != self.high
    }

    /// Completes everything that is posted with a flush error, in order (rule F21).
    pub fn flush(&mut self, ctx: &mut Ctx<'_>) {
        for wqe in self.sq.drain(..) {
            ctx.out.counters.req_cqe_flush_error += 1;
            ctx.out.completions.push((Side::Send, wqe.completion(WcStatus::WrFlushErr, ctx.params.qpn)));
        }
        self.stop();
    }

    /// Forgets work and timers; sends nothing more.
    pub fn stop(&mut self) {
        self.sq.clear();
        self.open_reads.clear();
        self.cur = 0;
        self.una = self.high;
        self.snd = self.high;
        self.end_wait();
        self.asking.forget();
        self.rnr_until = None;
        self.local_error = None;
    }

    /// Length of the next packet to send, BTH to ICRC; `None` where nothing may be sent now.
    pub fn prepare(&mut self, ctx: &mut Ctx<'_>) -> Option<usize> {
        self.prepared = None;
        // A request that has failed just now takes those behind it along (rule R-REQ-41).
        if ctx.out.fatal || self.rnr_until.is_some() {
            return None;
        }
        loop {
            self.skip_finished();
            if self.local_error.is_some_and(|(index, _)| index == self.cur) {
                return None;
            }
            let (psns, op) = self.sq.get(self.cur).map(|wqe| (wqe.psns, wqe.op))?;
            match (psns, op) {
                (Some(_), _) => break,
                // It may wait for what nobody has asked for, and it may take away what would have to be sent again.
                (None, SendOp::Local(_)) if self.asks_for_what_was_put_off() => {}
                (None, SendOp::Local(op)) if !self.run_local(ctx, &op) => return None,
                (None, SendOp::Local(_)) => {}
                (None, _) if !self.start(ctx) => return None,
                (None, _) => break,
            }
        }
        let next = self.next_packet(ctx.params)?;
        // Rule R-REQ-6.
        let in_flight = self.in_flight();
        if in_flight != 0 && in_flight + next.span > ctx.params.window {
            return None;
        }
        let fresh = self.snd == self.high;
        // Rule R-REQ-8: the queue stalls, in order.
        if fresh && next.opens_read && self.open_reads.len() >= usize::from(ctx.params.max_rd_atomic) {
            return None;
        }
        let len = next.body_len();
        self.prepared = Some(next);
        Some(len)
    }

    /// Writes the packet that [`Requester::prepare`] announced into `body`; the ICRC is left out. Returns
    /// false where local memory could not be read: then nothing is sent.
    pub fn write(&mut self, ctx: &mut Ctx<'_>, body: &mut [u8]) -> bool {
        let Some(next) = self.prepared.take() else { return false };
        let ack_req = self.asks_for_ack(ctx, &next);
        let wqe = &self.sq[self.cur];
        let is_new_message = wqe.op.segments().is_some() && !self.is_repeating();
        if next.write(ctx, wqe, ctx.params.dest_qpn, self.snd, ack_req, body).is_err() {
            self.fail_in_order(ctx, WcStatus::LocProtErr);
            return false;
        }
        let last = self.snd.wrapping_add(next.span).wrapping_sub(1);
        self.asking.on_sent(ctx.now, last, ack_req, next.last);
        self.is_new_message = is_new_message;
        self.advance(ctx, next.span, next.opens_read);
        true
    }

    /// When [`Requester::handle_timeout`] has to be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.rnr_until.or_else(|| self.ack_deadline.into_iter().chain(self.asking.due()).min())
    }

    /// Carries out what is due.
    pub fn handle_timeout(&mut self, ctx: &mut Ctx<'_>) {
        if let Some(until) = self.rnr_until {
            // Rule F14: nothing cuts the RNR wait short.
            if until <= ctx.now {
                self.rnr_until = None;
            }
        } else if self.ack_deadline.is_some_and(|deadline| deadline <= ctx.now) {
            self.recovering = false;
            if self.in_flight() == 0 {
                // What is to be sent again has not been: nobody can have answered it (rule R-REQ-48). The wait begins
                // when it is.
                self.ack_deadline = None;
            } else {
                self.silent = true;
                self.retry(ctx, Cause::Timeout);
            }
        } else if self.asking.due().is_some_and(|due| due <= ctx.now) {
            self.ask_in_time(ctx.now);
        }
    }

    /// Begins the request at `cur` where the rules let it; false where it has to wait or has failed.
    fn start(&mut self, ctx: &mut Ctx<'_>) -> bool {
        let wqe = &self.sq[self.cur];
        // Rule R-REQ-10; nothing else waits for a READ (rules R-REQ-39 and R-REQ-42).
        let fenced = wqe.flags.contains(SendFlags::FENCE) && !self.open_reads.is_empty();
        if self.draining || fenced {
            return false;
        }
        if wqe.op.takes_depth() && ctx.params.max_rd_atomic == 0 {
            // Rule R-REQ-9: the depth was taken away after it was posted.
            self.fail_in_order(ctx, WcStatus::LocQpOpErr);
            return false;
        }
        // Rule R-REQ-15.
        if !wqe.is_readable(ctx.memory, ctx.params.pd) {
            self.fail_in_order(ctx, WcStatus::LocProtErr);
            return false;
        }
        // Rules R-REQ-3 to R-REQ-5.
        let span = if wqe.op.is_atomic() { 1 } else { ctx.params.packets(wqe.length) };
        self.sq[self.cur].psns = Some((self.high, span));
        true
    }

    /// Carries out the local operation at `cur` where the rules let it; false where it has to wait or has failed.
    /// It takes no PSN, so that going back passes over it (rule R-REQ-46).
    fn run_local(&mut self, ctx: &mut Ctx<'_>, op: &LocalOp) -> bool {
        let fenced = self.sq[self.cur].flags.contains(SendFlags::FENCE);
        // Rule R-REQ-47.
        let open = if op.waits_for_all() { self.cur != 0 } else { !self.open_reads.is_empty() };
        if self.draining || fenced && open {
            return false;
        }
        if ctx.memory.execute(ctx.params.via(), op).is_err() {
            self.fail_in_order(ctx, op.failure());
            return false;
        }
        self.sq[self.cur].psns = Some((self.high, 0));
        self.complete_local(ctx);
        true
    }

    /// Moves `cur` past requests whose packets have all been sent.
    fn skip_finished(&mut self) {
        while let Some(last) = self.sq.get(self.cur).and_then(SendWqe::last_psn) {
            if self.snd.diff(last) <= 0 {
                break;
            }
            self.cur += 1;
        }
    }

    /// The packet at `snd`, which lies in the started request `cur`.
    fn next_packet(&self, params: &RcParams) -> Option<NextPacket> {
        let wqe = self.sq.get(self.cur)?;
        let (first, n) = wqe.psns?;
        let index = self.snd.steps_from(first);
        if let Some(next) = NextPacket::of_message(params.transport, wqe, index, n, params) {
            return Some(next);
        }
        let mtu = params.mtu_bytes();
        let offset = index * mtu;
        let mut next = NextPacket {
            transport: params.transport,
            operation: Operation::ReadRequest,
            offset,
            payload: 0,
            dma_len: wqe.length,
            span: 1,
            last: true,
            opens_read: true,
        };
        match wqe.op {
            SendOp::CmpSwap { .. } => next.operation = Operation::CmpSwap,
            SendOp::FetchAdd { .. } => next.operation = Operation::FetchAdd,
            SendOp::AtomicWrite { .. } => {
                next.operation = Operation::AtomicWrite;
                next.payload = wqe.length;
            }
            SendOp::Flush { .. } => {
                next.operation = Operation::Flush;
                next.opens_read = false;
            }
            _ => {
                // Rule R-REQ-28: from the PSN that is missing on.
                let end = read_request_end(index, n, params.window);
                next.span = end - index;
                next.dma_len = (wqe.length - offset).min(next.span * mtu);
            }
        }
        Some(next)
    }

    fn advance(&mut self, ctx: &mut Ctx<'_>, span: u32, opens_read: bool) {
        self.snd = self.snd.wrapping_add(span);
        if self.snd.diff(self.high) > 0 {
            self.high = self.snd;
            if opens_read {
                self.open_reads.push_back(self.snd.wrapping_sub(1));
            }
        }
        if self.ack_deadline.is_none() {
            self.arm(ctx);
        }
    }

    fn arm(&mut self, ctx: &Ctx<'_>) {
        self.ack_deadline = ctx.params.retransmission_timeout(self.timeouts).map(|t| ctx.now + t);
        self.waiting_since.get_or_insert(ctx.now);
    }

    /// Nothing waits for an answer, or the peer has given a sign of life.
    fn end_wait(&mut self) {
        self.ack_deadline = None;
        self.silent = false;
        self.timeouts = 0;
        self.waiting_since = None;
    }

    /// Takes everything before `psn` as answered. The caller has seen to it that it is. Only what moves `una` reloads
    /// the retry counters and the timer (rules R-CMP-17, R-CMP-18 and R-REQ-21).
    pub(crate) fn progress(&mut self, ctx: &mut Ctx<'_>, psn: Psn) {
        if psn == self.una {
            return;
        }
        self.una = psn;
        // An answer to a packet sent earlier may arrive while it is being sent again.
        if self.snd.diff(self.una) < 0 {
            self.snd = self.una;
        }
        while self.open_reads.front().is_some_and(|last| last.diff(self.una) < 0) {
            self.open_reads.pop_front();
        }
        self.reload_retries(ctx.params);
        self.recovering = false;
        self.end_wait();
        if self.snd == self.una {
            self.asking.forget();
        } else if self.rnr_until.is_none() {
            self.arm(ctx);
        }
    }

    /// Completes the oldest request with success, and local operations behind it that have been carried out: requests
    /// complete in the order of posting (rule R-CMP-23), each once (rule R-CQE-6), and unsignalled ones in silence
    /// (rule R-REQ-37).
    pub(crate) fn complete_oldest(&mut self, ctx: &mut Ctx<'_>) {
        self.complete_one(ctx);
        self.complete_local(ctx);
    }

    fn complete_one(&mut self, ctx: &mut Ctx<'_>) {
        let Some(wqe) = self.pop_oldest() else { return };
        if wqe.flags.contains(SendFlags::SIGNALED) {
            ctx.out.completions.push((Side::Send, wqe.completion(WcStatus::Success, ctx.params.qpn)));
        }
    }

    /// Completes the local operations that have been carried out and have nothing older before them.
    fn complete_local(&mut self, ctx: &mut Ctx<'_>) {
        while let Some(SendWqe { op: SendOp::Local(_), psns: Some(_), .. }) = self.sq.front() {
            self.complete_one(ctx);
        }
    }

    fn pop_oldest(&mut self) -> Option<SendWqe> {
        let wqe = self.sq.pop_front()?;
        self.cur = self.cur.saturating_sub(1);
        // Where the request that cannot be repeated turns out to have arrived, nothing is wrong any more.
        self.local_error = self.local_error.and_then(|(index, status)| Some((index.checked_sub(1)?, status)));
        Some(wqe)
    }

    /// Sends again from `una` on; gives up where no retry is left (rule R-REQ-24).
    pub(crate) fn retry(&mut self, ctx: &mut Ctx<'_>, cause: Cause) {
        if self.recovering {
            return;
        }
        if !self.takes_retry(ctx, cause) {
            ctx.out.counters.req_transport_retries_exceeded += 1;
            self.fail(ctx, WcStatus::RetryExcErr, 0);
            return;
        }
        let counters = &mut ctx.out.counters;
        match cause {
            Cause::SequenceNak => counters.packet_seq_err += 1,
            Cause::ImpliedNak => counters.implied_nak_seq_err += 1,
            Cause::Timeout => counters.local_ack_timeout_err += 1,
        }
        self.recovering = cause != Cause::Timeout;
        self.rewind();
        if self.rnr_until.is_none() {
            self.arm(ctx);
        }
    }

    /// Takes one of the retries that are left; false where there is none.
    fn takes_retry(&mut self, ctx: &Ctx<'_>, cause: Cause) -> bool {
        let (params, behaviour) = (ctx.params, ctx.params.behaviour);
        if cause == Cause::Timeout && behaviour.adaptive.is_some() {
            // Rule R-REQ-45: how long it has lasted counts, not how often it was tried.
            self.timeouts = self.timeouts.saturating_add(1);
            let lasted = self.waiting_since.map(|since| ctx.now.since(since));
            return lasted.zip(params.give_up_after()).is_none_or(|(lasted, most)| lasted < most);
        }
        if behaviour.retries_forever && params.retry_cnt == RcParams::RETRY_CNT_FOREVER {
            return true;
        }
        let left = self.retry_left.checked_sub(1);
        self.retry_left = left.unwrap_or(0);
        left.is_some()
    }

    /// Waits out an RNR NAK, then sends again from `una` on (rules R-CMP-12, R-REQ-25).
    pub(crate) fn receiver_not_ready(&mut self, ctx: &mut Ctx<'_>, timer: wire::RnrTimer) {
        if self.rnr_until.is_some() {
            return;
        }
        if ctx.params.rnr_retry != RcParams::RNR_RETRY_FOREVER {
            if self.rnr_left == 0 {
                ctx.out.counters.req_rnr_retries_exceeded += 1;
                self.fail(ctx, WcStatus::RnrRetryExcErr, 0);
                return;
            }
            self.rnr_left -= 1;
        }
        ctx.out.counters.rnr_nak_retry_err += 1;
        self.rewind();
        self.recovering = false;
        self.end_wait();
        self.rnr_until = Some(ctx.now + timer.duration());
    }

    /// Whether an RNR NAK's timer is running.
    pub(crate) const fn is_waiting_for_receiver(&self) -> bool {
        self.rnr_until.is_some()
    }

    /// Goes back: everything from `una` on is sent again under its old PSN (rules R-REQ-26, R-REQ-29).
    fn rewind(&mut self) {
        self.snd = self.una;
        self.cur = 0;
    }

    /// Completes the oldest request with an error; the queue pair goes to the error state. What was acknowledged
    /// before it has completed already (rule R-CQE-3).
    pub(crate) fn fail(&mut self, ctx: &mut Ctx<'_>, status: WcStatus, vendor_err: u32) {
        if let Some(wqe) = self.pop_oldest() {
            ctx.out.counters.req_cqe_error += 1;
            let wc = Completion { vendor_err, ..wqe.completion(status, ctx.params.qpn) };
            ctx.out.completions.push((Side::Send, wc));
        }
        ctx.out.fatal = true;
    }

    /// The request at `cur` cannot go on: it fails once all before it have completed.
    fn fail_in_order(&mut self, ctx: &mut Ctx<'_>, status: WcStatus) {
        self.local_error = Some((self.cur, status));
        self.fail_local_if_oldest(ctx);
    }

    /// Fails the oldest request where it is the one that cannot be carried out; true then.
    pub(crate) fn fail_local_if_oldest(&mut self, ctx: &mut Ctx<'_>) -> bool {
        let Some((0, status)) = self.local_error else { return false };
        self.fail(ctx, status, 0);
        true
    }
}

/// Index one past the last PSN that one READ request from PSN `index` on asks for, of `n` in all.
///
/// A READ longer than half the window is asked for in pieces, each a READ of its own on the wire, so that its
/// answer cannot overrun the receive buffer. Pieces begin at fixed places, so that a repeated one lies inside
/// the one the responder remembers.
pub(crate) fn read_request_end(index: u32, n: u32, window: u32) -> u32 {
    let piece = (window / 2).max(1);
    ((index / piece + 1).saturating_mul(piece)).min(n)
}

#[cfg(test)]
mod extension_tests;
#[cfg(test)]
mod invariants;
#[cfg(test)]
mod retry_tests;
#[cfg(test)]
mod tests;
