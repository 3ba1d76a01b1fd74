//! The responder: takes requests in PSN order, executes them (rule R-RSP-34), and queues the answers.
//!
//! A request packet passes named steps: check_psn, check_op_seq, check_resource, check_length, check_rkey,
//! execute, complete, acknowledge (rule R-RSP-9). The first step that refuses it decides the answer. Answers leave in
//! PSN order through one queue, so no ACK can overtake a READ response.

use std::collections::VecDeque;

use wire::ext::Xrceth;
use wire::opcode::{Kind, Transport};
use wire::{Msn, NakCode, Operation, Packet, Psn, Srqn, Syndrome};

use crate::completion::{WcOpcode, WcStatus, fail_receive};
use crate::drop::DropReason;
use crate::local::LocalOp;
use crate::message::{Message, SendError, Write, complete_receive};
use crate::params::RcParams;
use crate::ports::{Access, AccessError, AtomicOp, Ctx, RecvQueue};
use crate::replay::{Answer, Replay};
use crate::segment::length_fits;
use crate::wqe::{Placement, RecvWqe};

mod repeat;
mod reply;
#[cfg(test)]
mod tests;

use reply::Reply;

/// Longest message a RETH may announce: 2^31 bytes (rule R-WIR-31).
pub const MAX_MESSAGE: u32 = 1 << 31;

/// The responder of one reliable connection.
#[derive(Debug)]
pub struct Responder {
    epsn: Psn,
    msn: Msn,
    message: Message,
    /// The shared receive queue that its first packet named, at an XRC target.
    srqn: Option<Srqn>,
    gap: Gap,
    replies: VecDeque<Reply>,
    /// Replies that answer READs and atomics seen for the first time.
    open_reads: u32,
    replay: Replay,
    /// A NAK has ended the connection; what is queued up to it may still leave.
    failed: bool,
}

/// Whether the peer has been told to go back (rules R-RSP-2 and R-RSP-3).
#[derive(Debug, PartialEq, Eq)]
enum Gap {
    None,
    Told,
}

/// Why a request is answered with a NAK.
#[derive(Debug)]
struct Refusal {
    nak: NakCode,
    /// Status of the receive work request in use, if there is one.
    status: WcStatus,
}

impl Refusal {
    const INVALID: Self = Self { nak: NakCode::InvalidRequest, status: WcStatus::RemInvReqErr };
    const ACCESS: Self = Self { nak: NakCode::RemoteAccessError, status: WcStatus::RemAccessErr };
    /// Rule R-RSP-17.
    const LOCAL: Self = Self { nak: NakCode::RemoteOperationalError, status: WcStatus::LocProtErr };
}

impl Refusal {
    /// A SEND that is not put in its receive; one that the receive cannot hold by rule R-RSP-14.
    const fn of_send(params: &RcParams, error: SendError) -> Self {
        match error {
            SendError::NoSend => Self::INVALID,
            SendError::TooLong => {
                let (nak, status) = params.behaviour.send_too_long;
                Self { nak, status }
            }
            SendError::Local => Self::LOCAL,
        }
    }

    /// A READ or WRITE that is longer than any message (rule R-WIR-31).
    const fn beyond_any(params: &RcParams) -> Self {
        Self { nak: params.behaviour.range_too_long, ..Self::INVALID }
    }
}

impl From<AccessError> for Refusal {
    fn from(_: AccessError) -> Self {
        Self::ACCESS
    }
}

/// What becomes of a request that was not refused.
enum Outcome {
    /// Executed; an ACK is due if the packet asks for one.
    Done,
    /// Executed, and its answer is queued, whether the packet asks for one or not (rule R-RSP-27).
    Answered,
    /// No receive is posted.
    NotReady,
    /// A SEND is executed, but the key to invalidate is none that can be: its receive fails.
    BadKey(RecvWqe),
}

impl Responder {
    /// A responder that expects `rq_psn` first.
    #[must_use]
    pub fn new(params: &RcParams) -> Self {
        Self {
            epsn: params.rq_psn,
            msn: Msn::new(0),
            message: Message::None,
            srqn: None,
            gap: Gap::None,
            replies: VecDeque::new(),
            open_reads: 0,
            replay: Replay::default(),
            failed: false,
        }
    }

    /// The PSN expected next.
    #[must_use]
    pub const fn expected_psn(&self) -> Psn {
        self.epsn
    }

    /// Messages completed (rule R-RSP-24).
    #[must_use]
    pub const fn msn(&self) -> Msn {
        self.msn
    }

    /// Whether answers are waiting to be sent.
    #[must_use]
    pub fn has_replies(&self) -> bool {
        !self.replies.is_empty()
    }

    /// Whether the next answer is data that was asked for, rather than the acknowledgement of something.
    #[must_use]
    pub fn answers_with_data(&self) -> bool {
        matches!(self.replies.front(), Some(Reply::Read { .. }))
    }

    /// Whether a packet is missing, and its sender has been told.
    #[must_use]
    pub fn is_in_gap(&self) -> bool {
        self.gap == Gap::Told
    }

    /// Gives back the receive work request of a message that will not be finished.
    pub fn take_unfinished(&mut self) -> Option<RecvWqe> {
        self.message.end()
    }

    /// Forgets answers; used when the queue pair is reset or destroyed.
    pub fn stop(&mut self) {
        self.replies.clear();
        self.open_reads = 0;
        self.failed = true;
    }

    /// Forgets answers that a NAK has not yet been queued behind: the queue pair has failed for another
    /// reason than one the peer is to be told.
    pub fn abandon(&mut self) {
        if !self.failed {
            self.stop();
        }
    }

    /// Handles a request packet of the peer, ICRC and addresses checked.
    ///
    /// # Errors
    /// Why it had no effect.
    pub fn on_request(
        &mut self,
        ctx: &mut Ctx<'_>,
        recv: &mut dyn RecvQueue,
        packet: &Packet<'_>,
    ) -> Result<(), DropReason> {
        if self.failed {
            return Err(DropReason::QpState);
        }
        let psn = packet.bth().psn();
        // Rule R-RSP-1.
        let ahead = psn.diff(self.epsn);
        if ahead > 0 {
            return self.on_early(ctx);
        }
        if ahead < 0 {
            ctx.out.counters.duplicate_request += 1;
            return self.on_duplicate(ctx, recv, packet, psn);
        }
        self.gap = Gap::None;
        if recv.is_missing() {
            // Rule R-RSP-45: an event says so even where a receive in use reports that the connection has ended.
            self.refuse(ctx, psn, &Refusal::INVALID);
            ctx.out.unreported = Some(NakCode::RemoteAccessError);
            return Ok(());
        }
        match self.execute(ctx, recv, packet) {
            Ok(Outcome::Done) => {
                // Rule R-RSP-32.
                self.epsn = psn.wrapping_add(1);
                if packet.bth().ack_req() {
                    self.queue_ack(ctx.params, psn, Syndrome::ACK);
                }
            }
            Ok(Outcome::Answered) => {}
            Ok(Outcome::BadKey(wqe)) => {
                // Rule R-RSP-21: the peer is told that all went well.
                self.epsn = psn.wrapping_add(1);
                self.queue_ack(ctx.params, psn, Syndrome::ACK);
                self.message = Message::Send { wqe, received: 0 };
                self.fail(ctx, &Refusal::INVALID);
            }
            Ok(Outcome::NotReady) => {
                ctx.out.counters.out_of_buffer += 1;
                // Rule R-RSP-18: nothing else has changed.
                ctx.out.counters.send_rnr_err += 1;
                // Rule R-RSP-3.
                self.gap = if ctx.params.behaviour.nak_behind_rnr { Gap::None } else { Gap::Told };
                self.queue_ack(ctx.params, psn, Syndrome::RnrNak(ctx.params.min_rnr_timer));
            }
            Err(refusal) => self.refuse(ctx, psn, &refusal),
        }
        Ok(())
    }

    /// A packet from the future: one before it was lost (rule R-RSP-2, field case F10).
    fn on_early(&mut self, ctx: &mut Ctx<'_>) -> Result<(), DropReason> {
        ctx.out.counters.out_of_sequence += 1;
        if self.gap == Gap::Told {
            return Err(DropReason::OutOfSequence);
        }
        self.gap = Gap::Told;
        self.queue_ack(ctx.params, self.epsn, Syndrome::Nak(NakCode::PsnSequenceError));
        Ok(())
    }

    fn execute(
        &mut self,
        ctx: &mut Ctx<'_>,
        recv: &mut dyn RecvQueue,
        packet: &Packet<'_>,
    ) -> Result<Outcome, Refusal> {
        self.check_op_seq(packet)?;
        match packet.info().kind {
            Kind::Send => self.on_send(ctx, recv, packet),
            Kind::Write => self.on_write(ctx, recv, packet),
            Kind::Read => self.on_read(ctx, packet),
            Kind::Atomic => self.on_atomic(ctx, packet),
            Kind::AtomicWrite => self.on_atomic_write(ctx, packet),
            Kind::Flush => self.on_flush(ctx, packet),
            _ => Err(Refusal::INVALID),
        }
    }

    /// Rule R-RSP-10: a message's packets follow each other, with nothing between.
    fn check_op_seq(&mut self, packet: &Packet<'_>) -> Result<(), Refusal> {
        let info = packet.info();
        let srqn = if info.transport == Transport::Xrc { packet.xrceth().map(Xrceth::srqn) } else { None };
        let fits = match self.message {
            Message::None => info.position.starts(),
            Message::Send { .. } => info.kind == Kind::Send && !info.position.starts(),
            Message::Write(_) => info.kind == Kind::Write && !info.position.starts(),
        };
        // Rule R-RSP-62: and all for one shared receive queue.
        if !fits || !info.position.starts() && srqn != self.srqn {
            return Err(Refusal::INVALID);
        }
        self.srqn = srqn;
        Ok(())
    }

    fn on_send(
        &mut self,
        ctx: &mut Ctx<'_>,
        recv: &mut dyn RecvQueue,
        packet: &Packet<'_>,
    ) -> Result<Outcome, Refusal> {
        let info = packet.info();
        if info.position.starts() {
            // Rule R-RSP-19.
            let Some(wqe) = recv.take() else { return Ok(Outcome::NotReady) };
            self.message = Message::Send { wqe, received: 0 };
        }
        if ctx.params.behaviour.checks_lengths && !length_fits(ctx.params, packet) {
            return Err(Refusal::INVALID);
        }
        let placed = self.message.take_in(ctx, packet.payload());
        let length = placed.map_err(|error| Refusal::of_send(ctx.params, error))?;
        if info.position.ends()
            && let Some(wqe) = self.message.end()
        {
            self.msn = self.msn.next();
            if let Some(ieth) = packet.ieth() {
                let invalidate = LocalOp::Invalidate { rkey: ieth.rkey() };
                if ctx.memory.execute(ctx.params.via(), &invalidate).is_err() {
                    return Ok(Outcome::BadKey(wqe));
                }
            }
            complete_receive(ctx, &wqe, WcOpcode::Recv, length, packet);
        }
        Ok(Outcome::Done)
    }

    fn on_write(
        &mut self,
        ctx: &mut Ctx<'_>,
        recv: &mut dyn RecvQueue,
        packet: &Packet<'_>,
    ) -> Result<Outcome, Refusal> {
        let info = packet.info();
        let data = packet.payload();
        if let Some(reth) = packet.reth() {
            if !ctx.params.access.contains(Access::REMOTE_WRITE) {
                return Err(Refusal::INVALID);
            }
            if reth.dma_len() > MAX_MESSAGE {
                return Err(Refusal::beyond_any(ctx.params));
            }
        }
        // Rule R-RSP-20: the packet with the immediate takes a receive; without one, nothing of it is done.
        if packet.imm_dt().is_some() && recv.is_empty() {
            return Ok(Outcome::NotReady);
        }
        let strict = ctx.params.behaviour.checks_lengths;
        if strict && !length_fits(ctx.params, packet) {
            return Err(Refusal::INVALID);
        }
        let write = Write::of(packet, &self.message).ok_or(Refusal::INVALID)?;
        let length = u32::try_from(data.len()).map_err(|_| Refusal::INVALID)?;
        let ends = info.position.ends();
        let fits = if strict {
            write.adds_up(length, ends)
        } else {
            length == write.remaining.min(ctx.params.mtu_bytes())
        };
        if !fits {
            return Err(Refusal::INVALID);
        }
        if info.position.starts() {
            ctx.out.counters.rx_write_requests += 1;
            write.check(ctx)?;
        }
        write.place(ctx, data)?;
        self.message = write.after(length, ends);
        if ends {
            self.msn = self.msn.next();
            if packet.imm_dt().is_some()
                && let Some(wqe) = recv.take()
            {
                complete_receive(ctx, &wqe, WcOpcode::RecvRdmaWithImm, write.total, packet);
            }
        }
        Ok(Outcome::Done)
    }

    fn on_read(&mut self, ctx: &mut Ctx<'_>, packet: &Packet<'_>) -> Result<Outcome, Refusal> {
        let reth = packet.reth().ok_or(Refusal::INVALID)?;
        let (va, rkey, len) = (reth.va(), reth.rkey(), reth.dma_len());
        self.check_resource(ctx.params, Access::REMOTE_READ)?;
        if len > MAX_MESSAGE {
            return Err(Refusal::beyond_any(ctx.params));
        }
        if !packet.payload().is_empty() {
            return Err(Refusal::INVALID);
        }
        if len > 0 {
            ctx.memory.check_remote(ctx.params.via(), rkey, va, u64::from(len), Access::REMOTE_READ)?;
        }
        ctx.out.counters.rx_read_requests += 1;
        let (psn, span) = (packet.bth().psn(), ctx.params.packets(len));
        self.epsn = psn.wrapping_add(span);
        self.msn = self.msn.next();
        self.replay.remember(psn, span, Answer::Read { va, rkey, len }, ctx.params.max_dest_rd_atomic);
        self.open_reads += 1;
        let msn = self.msn;
        self.replies.push_back(Reply::Read {
            psn,
            via: ctx.params.via(),
            va,
            rkey,
            remaining: len,
            first: true,
            msn,
            repeat: false,
        });
        Ok(Outcome::Answered)
    }

    fn on_atomic(&mut self, ctx: &mut Ctx<'_>, packet: &Packet<'_>) -> Result<Outcome, Refusal> {
        let eth = packet.atomic_eth().ok_or(Refusal::INVALID)?;
        self.check_resource(ctx.params, Access::REMOTE_ATOMIC)?;
        // Rule R-RSP-16.
        if eth.va().value() % 8 != 0 || !packet.payload().is_empty() {
            return Err(Refusal::INVALID);
        }
        let op = if packet.info().operation == Operation::CmpSwap {
            AtomicOp::CmpSwap { compare: eth.compare(), swap: eth.swap_or_add() }
        } else {
            AtomicOp::FetchAdd { add: eth.swap_or_add() }
        };
        let original = ctx.memory.atomic_remote(ctx.params.via(), eth.rkey(), eth.va(), op)?;
        ctx.out.counters.rx_atomic_requests += 1;
        let psn = packet.bth().psn();
        self.epsn = psn.wrapping_add(1);
        self.msn = self.msn.next();
        self.replay.remember(psn, 1, Answer::Atomic { original }, ctx.params.max_dest_rd_atomic);
        self.open_reads += 1;
        self.replies.push_back(Reply::Atomic { psn, original, msn: self.msn, repeat: false });
        Ok(Outcome::Answered)
    }

    /// Rules R-RSP-57 and R-RSP-58: right of the queue pair, then form, then key, then one store.
    fn on_atomic_write(&mut self, ctx: &mut Ctx<'_>, packet: &Packet<'_>) -> Result<Outcome, Refusal> {
        let reth = packet.reth().ok_or(Refusal::INVALID)?;
        self.check_resource(ctx.params, Access::REMOTE_WRITE)?;
        let data: [u8; 8] = packet.payload().try_into().map_err(|_| Refusal::INVALID)?;
        if reth.dma_len() != 8 || reth.va().value() % 8 != 0 {
            return Err(Refusal::INVALID);
        }
        ctx.memory.atomic_write_remote(ctx.params.via(), reth.rkey(), reth.va(), data)?;
        let psn = packet.bth().psn();
        self.epsn = psn.wrapping_add(1);
        self.msn = self.msn.next();
        self.replay.remember(psn, 1, Answer::AtomicWrite, ctx.params.max_dest_rd_atomic);
        self.open_reads += 1;
        self.replies.push_back(Reply::Done { psn, msn: self.msn, repeat: false });
        Ok(Outcome::Answered)
    }

    /// Rules R-RSP-59 to R-RSP-61. Every WRITE before it has been executed, since requests are in PSN order.
    fn on_flush(&mut self, ctx: &mut Ctx<'_>, packet: &Packet<'_>) -> Result<Outcome, Refusal> {
        let (feth, reth) = (packet.feth().ok_or(Refusal::INVALID)?, packet.reth().ok_or(Refusal::INVALID)?);
        let placement = Placement::from_bits(feth.placement()).filter(|placement| !placement.is_empty());
        let need = placement.ok_or(Refusal::INVALID)?.rights();
        if !ctx.params.access.contains(need) || !packet.payload().is_empty() {
            return Err(Refusal::INVALID);
        }
        let range = match feth.selectivity() {
            0 if reth.dma_len() > MAX_MESSAGE => return Err(Refusal::INVALID),
            0 => Some((reth.va(), u64::from(reth.dma_len()))),
            1 => None,
            _ => return Err(Refusal::INVALID),
        };
        ctx.memory.flush_remote(ctx.params.via(), reth.rkey(), range, need)?;
        let psn = packet.bth().psn();
        self.epsn = psn.wrapping_add(1);
        self.msn = self.msn.next();
        self.replay.remember_flush(psn);
        self.queue_flushed(psn);
        Ok(Outcome::Answered)
    }

    /// Rules R-RSP-8, R-RSP-11, R-MEM-9 and F31: the queue pair must allow the access, and have room for one more
    /// answer.
    fn check_resource(&self, params: &RcParams, need: Access) -> Result<(), Refusal> {
        if params.access.contains(need) && self.open_reads < u32::from(params.max_dest_rd_atomic) {
            Ok(())
        } else {
            Err(Refusal::INVALID)
        }
    }

    /// Rule R-RSP-22: the PSN at fault, the count as it was, and nothing more after it.
    fn refuse(&mut self, ctx: &mut Ctx<'_>, psn: Psn, refusal: &Refusal) {
        self.queue_ack(ctx.params, psn, Syndrome::Nak(refusal.nak));
        self.fail(ctx, refusal);
    }

    fn fail(&mut self, ctx: &mut Ctx<'_>, refusal: &Refusal) {
        if refusal.nak == NakCode::RemoteAccessError {
            ctx.out.counters.resp_remote_access_errors += 1;
        }
        if let Some(wqe) = self.take_unfinished() {
            fail_receive(ctx, &wqe, refusal.status);
        } else {
            ctx.out.unreported = Some(refusal.nak);
        }
        self.failed = true;
        ctx.out.fatal = true;
    }
}
