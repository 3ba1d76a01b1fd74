//! Unreliable connection: packets in sequence, no answers. What is broken is dropped, message by message.

use std::collections::VecDeque;

use wire::opcode::{Kind, Transport};
use wire::{Packet, Psn};

use crate::completion::{WcOpcode, WcStatus, fail_receive};
use crate::drop::DropReason;
use crate::message::{Message, SendError, Write, complete_receive};
use crate::params::RcParams;
use crate::ports::{Access, Ctx, RecvQueue, Side};
use crate::responder::MAX_MESSAGE;
use crate::segment::{NextPacket, length_fits};
use crate::wqe::{RecvWqe, SendFlags, SendOp, SendWqe};

/// The sending half of an unreliable queue pair, connected or not: a request is done when its last packet is
/// handed over (rules R-REQ-33, R-REQ-34).
#[derive(Debug)]
pub struct Sender {
    transport: Transport,
    sq: VecDeque<SendWqe>,
    psn: Psn,
    /// Next packet of the oldest request; 0 where it has not begun.
    index: u32,
    draining: bool,
}

impl Sender {
    /// A sender of `transport` whose first packet has PSN `sq_psn`.
    #[must_use]
    pub fn new(transport: Transport, params: &RcParams) -> Self {
        Self { transport, sq: VecDeque::new(), psn: params.sq_psn, index: 0, draining: false }
    }

    /// Adds a work request.
    pub fn post(&mut self, wqe: SendWqe) {
        self.sq.push_back(wqe);
    }

    /// The oldest work request that has not completed.
    #[must_use]
    pub fn oldest(&self) -> Option<&SendWqe> {
        self.sq.front()
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

    /// Stops or goes on starting new requests (SQD).
    pub fn set_draining(&mut self, draining: bool) {
        self.draining = draining;
    }

    /// Whether no started request is unfinished.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.index == 0
    }

    /// Completes everything that is posted with a flush error, in order.
    pub fn flush(&mut self, ctx: &mut Ctx<'_>) {
        self.index = 0;
        for wqe in self.sq.drain(..) {
            ctx.out.counters.req_cqe_flush_error += 1;
            ctx.out.completions.push((Side::Send, wqe.completion(WcStatus::WrFlushErr, ctx.params.qpn)));
        }
    }

    /// Length of the next packet to send, BTH to ICRC.
    pub fn prepare(&mut self, ctx: &mut Ctx<'_>) -> Option<usize> {
        if ctx.out.send_failed || self.index == 0 && self.draining {
            return None;
        }
        while let Some(&SendWqe { op: SendOp::Local(op), .. }) = self.sq.front() {
            if ctx.memory.execute(ctx.params.via(), &op).is_err() {
                self.fail(ctx, op.failure());
                return None;
            }
            self.complete_oldest(ctx);
        }
        let wqe = self.sq.front()?;
        if self.index == 0 && !wqe.is_readable(ctx.memory, ctx.params.pd) {
            self.fail(ctx, WcStatus::LocProtErr);
            return None;
        }
        self.next_packet(ctx.params).map(|next| next.body_len())
    }

    /// Writes the packet that [`Sender::prepare`] announced into `body`; the ICRC is left out. Returns false
    /// where local memory could not be read: then nothing is sent.
    pub fn write(&mut self, ctx: &mut Ctx<'_>, body: &mut [u8]) -> bool {
        let (Some(next), Some(wqe)) = (self.next_packet(ctx.params), self.sq.front()) else { return false };
        let dest = wqe.datagram.as_ref().map_or(ctx.params.dest_qpn, |to| to.qpn);
        if next.write(ctx, wqe, dest, self.psn, false, body).is_err() {
            self.fail(ctx, WcStatus::LocProtErr);
            return false;
        }
        self.psn = self.psn.wrapping_add(1);
        self.index += 1;
        if next.last {
            self.index = 0;
            self.complete_oldest(ctx);
        }
        true
    }

    fn complete_oldest(&mut self, ctx: &mut Ctx<'_>) {
        if let Some(wqe) = self.sq.pop_front()
            && wqe.flags.contains(SendFlags::SIGNALED)
        {
            ctx.out.completions.push((Side::Send, wqe.completion(WcStatus::Success, ctx.params.qpn)));
        }
    }

    fn next_packet(&self, params: &RcParams) -> Option<NextPacket> {
        let wqe = self.sq.front()?;
        NextPacket::of_message(self.transport, wqe, self.index, params.packets(wqe.length), params)
    }

    /// The oldest request cannot be sent: the send queue stops (SQE); the receive queue goes on.
    fn fail(&mut self, ctx: &mut Ctx<'_>, status: WcStatus) {
        self.index = 0;
        if let Some(wqe) = self.sq.pop_front() {
            ctx.out.counters.req_cqe_error += 1;
            ctx.out.completions.push((Side::Send, wqe.completion(status, ctx.params.qpn)));
        }
        ctx.out.send_failed = true;
    }
}

/// The receiving half of an unreliable connection (rules R-RSP-40 to R-RSP-42).
#[derive(Debug)]
pub struct Receiver {
    epsn: Psn,
    /// None between messages, and within one that is dropped.
    message: Message,
    /// A receive whose message was dropped: the next message takes it.
    kept: Option<RecvWqe>,
}

impl Receiver {
    /// A receiver that expects `rq_psn` first.
    #[must_use]
    pub fn new(params: &RcParams) -> Self {
        Self { epsn: params.rq_psn, message: Message::None, kept: None }
    }

    /// Gives back the receive work request of a message that will not be finished.
    pub fn take_unfinished(&mut self) -> Option<RecvWqe> {
        self.message.end().or_else(|| self.kept.take())
    }

    /// Handles a packet of the peer, ICRC and addresses checked.
    ///
    /// # Errors
    /// Why it had no effect.
    pub fn on_packet(
        &mut self,
        ctx: &mut Ctx<'_>,
        recv: &mut dyn RecvQueue,
        packet: &Packet<'_>,
    ) -> Result<(), DropReason> {
        let (info, psn) = (packet.info(), packet.bth().psn());
        let expected = psn == self.epsn;
        self.epsn = psn.wrapping_add(1);
        if info.position.starts() {
            // A message that was under way lacks its end.
            self.abandon(ctx, recv, WcStatus::RemInvReqErr);
        } else if !expected || matches!(self.message, Message::None) {
            self.abandon(ctx, recv, WcStatus::RemInvReqErr);
            ctx.out.counters.out_of_sequence += u64::from(!expected);
            return Err(DropReason::OutOfSequence);
        }
        let result = match info.kind {
            Kind::Send => self.on_send(ctx, recv, packet),
            _ => self.on_write(ctx, recv, packet),
        };
        if result.is_err() {
            self.abandon(ctx, recv, WcStatus::RemInvReqErr);
        }
        result
    }

    /// Drops the message under way. Its receive waits for the next one (rule R-RSP-41); but one of a shared queue
    /// completes with `status`, since the next message may come to another queue pair (rule R-RSP-55).
    fn abandon(&mut self, ctx: &mut Ctx<'_>, recv: &dyn RecvQueue, status: WcStatus) {
        let Some(wqe) = self.message.end() else { return };
        if recv.is_shared() {
            fail_receive(ctx, &wqe, status);
        } else {
            self.kept = Some(wqe);
        }
    }

    fn take_receive(&mut self, recv: &mut dyn RecvQueue) -> Option<RecvWqe> {
        self.kept.take().or_else(|| recv.take())
    }

    fn on_send(
        &mut self,
        ctx: &mut Ctx<'_>,
        recv: &mut dyn RecvQueue,
        packet: &Packet<'_>,
    ) -> Result<(), DropReason> {
        let info = packet.info();
        if info.position.starts() {
            let Some(wqe) = self.take_receive(recv) else {
                ctx.out.counters.out_of_buffer += 1;
                return Err(DropReason::NoReceive);
            };
            self.message = Message::Send { wqe, received: 0 };
        }
        if !length_fits(ctx.params, packet) {
            return Err(DropReason::BadRequest);
        }
        let length = match self.message.take_in(ctx, packet.payload()) {
            Ok(length) => length,
            Err(SendError::NoSend) => return Err(DropReason::BadRequest),
            Err(SendError::TooLong) => {
                self.abandon(ctx, recv, WcStatus::LocLenErr);
                return Err(DropReason::BadRequest);
            }
            Err(SendError::Local) => {
                // Rule R-RSP-53.
                if let Some(wqe) = self.message.end() {
                    fail_receive(ctx, &wqe, WcStatus::LocProtErr);
                }
                ctx.out.fatal = true;
                return Ok(());
            }
        };
        if info.position.ends()
            && let Some(wqe) = self.message.end()
        {
            complete_receive(ctx, &wqe, WcOpcode::Recv, length, packet);
        }
        Ok(())
    }

    fn on_write(
        &mut self,
        ctx: &mut Ctx<'_>,
        recv: &mut dyn RecvQueue,
        packet: &Packet<'_>,
    ) -> Result<(), DropReason> {
        let (info, data) = (packet.info(), packet.payload());
        let write = Write::of(packet, &self.message).ok_or(DropReason::BadRequest)?;
        if info.position.starts() {
            if !ctx.params.access.contains(Access::REMOTE_WRITE) || write.total > MAX_MESSAGE {
                return Err(DropReason::BadRequest);
            }
            write.check(ctx).map_err(|_| DropReason::BadRequest)?;
            ctx.out.counters.rx_write_requests += 1;
        }
        let length = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let ends = info.position.ends();
        if !write.adds_up(length, ends) || !length_fits(ctx.params, packet) {
            return Err(DropReason::BadRequest);
        }
        if packet.imm_dt().is_some() && self.kept.is_none() && recv.is_empty() {
            ctx.out.counters.out_of_buffer += 1;
            return Err(DropReason::NoReceive);
        }
        write.place(ctx, data).map_err(|_| DropReason::BadRequest)?;
        self.message = write.after(length, ends);
        if packet.imm_dt().is_some()
            && let Some(wqe) = self.take_receive(recv)
        {
            complete_receive(ctx, &wqe, WcOpcode::RecvRdmaWithImm, write.total, packet);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
