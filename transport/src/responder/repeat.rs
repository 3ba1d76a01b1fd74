//! Requests that the responder has executed before: what it still knows of each decides whether it is answered again.
//!
//! The responder comes here with every request of the past. Nothing here executes anything, or ends the connection.

use wire::opcode::Kind;
use wire::{Packet, Psn, Syndrome};

use super::reply::Reply;
use super::{MAX_MESSAGE, Responder};
use crate::drop::DropReason;
use crate::ports::{Access, Ctx, RecvQueue};

impl Responder {
    /// A packet of the past: it is answered again, never executed again (rules R-RSP-4 to R-RSP-7).
    pub(super) fn on_duplicate(
        &mut self,
        ctx: &mut Ctx<'_>,
        recv: &dyn RecvQueue,
        packet: &Packet<'_>,
        psn: Psn,
    ) -> Result<(), DropReason> {
        match packet.info().kind {
            Kind::Send | Kind::Write => {
                self.queue_ack(ctx.params, self.epsn.wrapping_sub(1), Syndrome::ACK);
                Ok(())
            }
            Kind::Atomic => {
                let original = self.replay.atomic(psn).ok_or(DropReason::DuplicateUnknown)?;
                if self.is_queued(psn, ctx.params) {
                    return Err(DropReason::DuplicatePending);
                }
                self.queue_repeat(ctx.params, Reply::Atomic { psn, original, msn: self.msn, repeat: true });
                Ok(())
            }
            // The domain that its memory would have to be of has gone with the queue.
            Kind::Read if recv.is_missing() => Err(DropReason::DuplicateUnknown),
            Kind::Read => {
                let reth = packet.reth().ok_or(DropReason::Malformed)?;
                let (va, rkey, len) = (reth.va(), reth.rkey(), reth.dma_len());
                if len > MAX_MESSAGE || !self.replay.covers_read(psn, ctx.params.packets(len), va, rkey, len)
                {
                    return Err(DropReason::DuplicateUnknown);
                }
                if self.is_queued(psn, ctx.params) {
                    return Err(DropReason::DuplicatePending);
                }
                let (via, need) = (ctx.params.via(), Access::REMOTE_READ);
                if len > 0 && ctx.memory.check_remote(via, rkey, va, u64::from(len), need).is_err() {
                    return Err(DropReason::DuplicateUnknown);
                }
                // Rule R-RSP-30.
                let first = !ctx.params.behaviour.goes_on_with_reads || self.replay.begins_read(psn);
                let msn = self.msn;
                let again = Reply::Read { psn, via, va, rkey, remaining: len, first, msn, repeat: true };
                self.queue_repeat(ctx.params, again);
                Ok(())
            }
            Kind::AtomicWrite if self.replay.atomic_write(psn) => self.repeat_done(ctx, psn),
            Kind::Flush if self.replay.flush(psn) => self.repeat_done(ctx, psn),
            _ => Err(DropReason::DuplicateUnknown),
        }
    }

    /// Answers an ATOMIC WRITE or FLUSH again (rule R-RSP-6).
    fn repeat_done(&mut self, ctx: &Ctx<'_>, psn: Psn) -> Result<(), DropReason> {
        if self.is_queued(psn, ctx.params) {
            return Err(DropReason::DuplicatePending);
        }
        self.queue_repeat(ctx.params, Reply::Done { psn, msn: self.msn, repeat: true });
        Ok(())
    }
}
