//! The completer: what each answer means for the requests that are open.
//!
//! Answers are handled in PSN order. Whatever an answer at PSN P implies for the PSNs before P is done first:
//! SENDs and WRITEs before it are complete, and a READ, atomic, ATOMIC WRITE or FLUSH before it that has no answer
//! of its own is missing one, which is an implied NAK.

use wire::opcode::Kind;
use wire::{NakCode, Operation, Packet, Psn, Syndrome};

use crate::completion::WcStatus;
use crate::drop::DropReason;
use crate::ports::Ctx;
use crate::requester::{Cause, Requester, read_request_end};
use crate::sge::scatter;
use crate::wqe::{SendOp, SendWqe};

/// How far the answers before a PSN reach.
#[derive(PartialEq, Eq)]
enum Passed {
    /// Everything before it is answered.
    All,
    /// A request before it lacks an answer of its own.
    Blocked,
    /// What is before it ended the connection.
    Failed,
}

impl Requester {
    /// Handles a response packet of the peer, ICRC and addresses checked.
    ///
    /// # Errors
    /// Why it had no effect.
    pub fn on_response(&mut self, ctx: &mut Ctx<'_>, packet: &Packet<'_>) -> Result<(), DropReason> {
        let psn = packet.bth().psn();
        // Rules R-CMP-1 and R-CMP-24: only what is outstanding can be answered. The MSN is not looked at (R-CMP-19).
        if !psn.in_window(self.una, self.high.steps_from(self.una)) {
            return Err(DropReason::GhostResponse);
        }
        match packet.info().kind {
            Kind::Acknowledge => self.on_acknowledge(ctx, packet, psn),
            Kind::ReadResponse => self.on_read_response(ctx, packet, psn),
            _ => self.on_atomic_acknowledge(ctx, packet, psn),
        }
    }

    fn on_acknowledge(&mut self, ctx: &mut Ctx<'_>, packet: &Packet<'_>, psn: Psn) -> Result<(), DropReason> {
        let Some(aeth) = packet.aeth() else { return Err(DropReason::Malformed) };
        if !packet.payload().is_empty() {
            self.fail(ctx, WcStatus::BadRespErr, 0);
            return Ok(());
        }
        let syndrome = aeth.syndrome();
        // Rule R-CMP-10: a NAK acknowledges what is before it.
        let end = if syndrome.is_ack() { psn.wrapping_add(1) } else { psn };
        match self.acknowledge_before(ctx, end) {
            // What the answer says of its own PSN has to wait: it will be said again.
            Passed::Blocked if !self.ends_oldest(syndrome, psn) => return self.implied_nak(ctx),
            Passed::Failed => return Ok(()),
            Passed::All | Passed::Blocked => {}
        }
        match syndrome {
            Syndrome::Ack(_) => {}
            Syndrome::Nak(NakCode::PsnSequenceError) => self.on_sequence_nak(ctx),
            Syndrome::RnrNak(timer) => self.receiver_not_ready(ctx, timer),
            Syndrome::Nak(code) => {
                let status = Self::count_fatal_nak(ctx, code);
                self.fail(ctx, status, u32::from(syndrome.byte()));
            }
            // Rule R-CMP-13.
            Syndrome::Reserved(byte) => self.fail(ctx, WcStatus::BadRespErr, u32::from(byte)),
        }
        Ok(())
    }

    /// Whether a NAK that nothing can mend lies within the oldest request: then it fails, whatever else of its
    /// answer is missing. The peer that sent it will answer nothing more (rule R-CMP-26).
    fn ends_oldest(&self, syndrome: Syndrome, psn: Psn) -> bool {
        let fatal = matches!(syndrome, Syndrome::Nak(code) if code != NakCode::PsnSequenceError);
        let last = self.sq.front().and_then(SendWqe::last_psn);
        fatal && last.is_some_and(|last| psn.diff(last) <= 0)
    }

    fn on_read_response(
        &mut self,
        ctx: &mut Ctx<'_>,
        packet: &Packet<'_>,
        psn: Psn,
    ) -> Result<(), DropReason> {
        match self.acknowledge_before(ctx, psn) {
            Passed::All => {}
            Passed::Blocked => return self.implied_nak(ctx),
            Passed::Failed => return Ok(()),
        }
        let params = ctx.params;
        let Some(wqe) = self.sq.front() else { return Err(DropReason::GhostResponse) };
        // Rule R-CMP-16.
        let (first, n) = match (wqe.psns, wqe.op) {
            (Some(psns), SendOp::Read { .. }) => psns,
            (Some(_), SendOp::AtomicWrite { .. } | SendOp::Flush { .. }) => {
                self.on_done(ctx, packet, psn);
                return Ok(());
            }
            _ => {
                self.fail(ctx, WcStatus::BadRespErr, 0);
                return Ok(());
            }
        };
        let index = psn.steps_from(first);
        let offset = index * params.mtu_bytes();
        let expected = (wqe.length - offset).min(params.mtu_bytes());
        // Rule R-CMP-8: a resumed answer may begin with any opcode, but its end is known (rule R-CMP-21), as is what
        // each packet holds (rule R-CMP-7).
        let ends = index + 1 == read_request_end(index, n, params.window);
        // Rule R-CMP-14.
        let positive = packet.aeth().is_none_or(|aeth| aeth.syndrome().is_ack());
        if !positive || packet.info().position.ends() != ends || packet.payload().len() != expected as usize {
            self.fail(ctx, WcStatus::BadRespErr, 0);
            return Ok(());
        }
        // Rules R-CMP-5 and R-CMP-20.
        if scatter(ctx.memory, params.pd, &wqe.sges, u64::from(offset), packet.payload()).is_err() {
            self.fail(ctx, WcStatus::LocProtErr, 0);
            return Ok(());
        }
        self.progress(ctx, psn.wrapping_add(1));
        if index + 1 == n {
            self.complete_oldest(ctx);
            self.fail_local_if_oldest(ctx);
        }
        Ok(())
    }

    /// An ATOMIC WRITE or FLUSH is answered by READ response ONLY without payload (rules R-WIR-29 and R-CMP-28).
    fn on_done(&mut self, ctx: &mut Ctx<'_>, packet: &Packet<'_>, psn: Psn) {
        let positive = packet.aeth().is_some_and(|aeth| aeth.syndrome().is_ack());
        let only = packet.info().operation == Operation::ReadResponseOnly;
        if !positive || !only || !packet.payload().is_empty() {
            self.fail(ctx, WcStatus::BadRespErr, 0);
            return;
        }
        self.progress(ctx, psn.wrapping_add(1));
        self.complete_oldest(ctx);
        self.fail_local_if_oldest(ctx);
    }

    fn on_atomic_acknowledge(
        &mut self,
        ctx: &mut Ctx<'_>,
        packet: &Packet<'_>,
        psn: Psn,
    ) -> Result<(), DropReason> {
        let (Some(aeth), Some(value)) = (packet.aeth(), packet.atomic_ack_eth()) else {
            return Err(DropReason::Malformed);
        };
        match self.acknowledge_before(ctx, psn) {
            Passed::All => {}
            Passed::Blocked => return self.implied_nak(ctx),
            Passed::Failed => return Ok(()),
        }
        let Some(wqe) = self.sq.front() else { return Err(DropReason::GhostResponse) };
        if !wqe.op.is_atomic() || !aeth.syndrome().is_ack() || !packet.payload().is_empty() {
            self.fail(ctx, WcStatus::BadRespErr, 0);
            return Ok(());
        }
        // The value is a number; it lies in memory in the byte order of the host (rule R-CMP-15).
        let original = value.original().to_ne_bytes();
        if scatter(ctx.memory, ctx.params.pd, &wqe.sges, 0, &original).is_err() {
            self.fail(ctx, WcStatus::LocProtErr, 0);
            return Ok(());
        }
        self.progress(ctx, psn.wrapping_add(1));
        self.complete_oldest(ctx);
        self.fail_local_if_oldest(ctx);
        Ok(())
    }

    /// Takes SENDs and WRITEs before `end` as answered, completing those that end there (rule R-CMP-2). Stops
    /// at a request that only its own response answers.
    fn acknowledge_before(&mut self, ctx: &mut Ctx<'_>, end: Psn) -> Passed {
        let passed = self.pass(ctx, end);
        if self.fail_local_if_oldest(ctx) { Passed::Failed } else { passed }
    }

    fn pass(&mut self, ctx: &mut Ctx<'_>, end: Psn) -> Passed {
        while self.una != end {
            let Some(wqe) = self.sq.front() else { return Passed::All };
            let Some(last) = wqe.last_psn() else { return Passed::All };
            if wqe.op.has_own_response() {
                return Passed::Blocked;
            }
            if end.diff(last) > 0 {
                self.progress(ctx, last.wrapping_add(1));
                self.complete_oldest(ctx);
            } else {
                // Rule R-CMP-4.
                self.progress(ctx, end);
            }
        }
        Passed::All
    }

    /// An answer has passed over a READ or atomic (rules R-CMP-3, R-CMP-6 and R-CMP-22, field case F11).
    fn implied_nak(&mut self, ctx: &mut Ctx<'_>) -> Result<(), DropReason> {
        if self.recovering {
            return Err(DropReason::ResponseOutOfOrder);
        }
        self.retry(ctx, Cause::ImpliedNak);
        Ok(())
    }

    /// Rule R-CMP-11.
    fn on_sequence_nak(&mut self, ctx: &mut Ctx<'_>) {
        // Rule R-REQ-23: some responders send one behind an RNR NAK; the wait goes on.
        if self.is_waiting_for_receiver() {
            return;
        }
        self.retry(ctx, Cause::SequenceNak);
    }

    /// Counts a NAK that ends the connection and gives its completion status (rule R-CMP-9).
    fn count_fatal_nak(ctx: &mut Ctx<'_>, code: NakCode) -> WcStatus {
        match code {
            NakCode::InvalidRequest => {
                ctx.out.counters.req_remote_invalid_request += 1;
                WcStatus::RemInvReqErr
            }
            NakCode::RemoteAccessError => {
                ctx.out.counters.req_remote_access_errors += 1;
                WcStatus::RemAccessErr
            }
            NakCode::RemoteOperationalError => WcStatus::RemOpErr,
            NakCode::InvalidRdRequest => WcStatus::RemInvRdReqErr,
            NakCode::PsnSequenceError | NakCode::Reserved(_) => WcStatus::BadRespErr,
        }
    }
}

#[cfg(test)]
mod tests;
