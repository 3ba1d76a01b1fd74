//! The answers that wait to be sent, and how each becomes packets.
//!
//! One queue keeps them in PSN order (rules R-RSP-28 and R-RSP-50). An ACK that follows another takes its place;
//! nothing else is merged.

use wire::ext::{Aeth, AtomicAckEth};
use wire::icrc::ICRC_LEN;
use wire::opcode::{SegmentKind, segment};
use wire::{Bth, Msn, NakCode, Operation, Psn, RKey, Syndrome, VirtAddr};
use zerocopy::IntoBytes;

use super::{Refusal, Responder};
use crate::params::RcParams;
use crate::ports::{Access, Ctx, Via};

/// Answers that may wait at the same time. A peer that asks on and on without taking answers loses the rest,
/// as if the network had (rule R-RSP-48).
const MAX_REPLIES: usize = 512;

#[derive(Debug)]
pub(super) enum Reply {
    // `repeat`: it does not count among those that `open_reads` does.
    Ack { psn: Psn, syndrome: Syndrome, msn: Msn },
    Read { psn: Psn, via: Via, va: VirtAddr, rkey: RKey, remaining: u32, first: bool, msn: Msn, repeat: bool },
    Atomic { psn: Psn, original: u64, msn: Msn, repeat: bool },
    // Of an ATOMIC WRITE or FLUSH: READ response ONLY without payload (rule R-WIR-29).
    Done { psn: Psn, msn: Msn, repeat: bool },
}

impl Responder {
    /// Length of the next answer to send, BTH to ICRC.
    pub fn prepare(&mut self, ctx: &mut Ctx<'_>) -> Option<usize> {
        let mtu = ctx.params.mtu_bytes();
        while let Some(&Reply::Read { via, va, rkey, remaining, .. }) = self.replies.front() {
            let len = u64::from(remaining.min(mtu));
            if len == 0 || ctx.memory.check_remote(via, rkey, va, len, Access::REMOTE_READ).is_ok() {
                break;
            }
            self.lose_read(ctx);
        }
        self.replies.front().map(|reply| {
            let (operation, payload) = reply.shape(mtu);
            let headers = ctx.params.opcode(operation).info().map_or(0, |info| info.headers_len);
            Bth::SIZE + headers + payload as usize + pad(payload) + ICRC_LEN
        })
    }

    /// Writes the answer that [`Responder::prepare`] announced into `body`; the ICRC is left out. Returns
    /// false where there is none, or where its memory has gone; ask [`Responder::prepare`] again.
    pub fn write(&mut self, ctx: &mut Ctx<'_>, body: &mut [u8]) -> bool {
        let mtu = ctx.params.mtu_bytes();
        let Some(reply) = self.replies.front_mut() else { return false };
        let (operation, payload) = reply.shape(mtu);
        // Rule R-RSP-35.
        let bth = Bth::new(ctx.params.opcode(operation), ctx.params.dest_qpn, reply.psn())
            .with_pkey(ctx.params.pkey)
            .with_migreq(ctx.params.behaviour.migreq)
            .with_pad_count(pad(payload));
        let mut at = put(body, 0, bth.as_bytes());
        let done = match reply {
            Reply::Ack { syndrome, msn, .. } => {
                put(body, at, Aeth::new(*syndrome, *msn).as_bytes());
                true
            }
            Reply::Done { msn, .. } => {
                put(body, at, Aeth::new(Syndrome::ACK, *msn).as_bytes());
                true
            }
            Reply::Atomic { original, msn, .. } => {
                at = put(body, at, Aeth::new(Syndrome::ACK, *msn).as_bytes());
                put(body, at, AtomicAckEth::new(*original).as_bytes());
                true
            }
            Reply::Read { psn, via, va, rkey, remaining, first, msn, .. } => {
                if operation != Operation::ReadResponseMiddle {
                    at = put(body, at, Aeth::new(Syndrome::ACK, *msn).as_bytes());
                }
                let out = &mut body[at..at + payload as usize];
                if !out.is_empty() && ctx.memory.read_remote(*via, *rkey, *va, out).is_err() {
                    self.lose_read(ctx);
                    return false;
                }
                // Rule R-RSP-29.
                *psn = psn.wrapping_add(1);
                *va = va.wrapping_add(u64::from(payload));
                *remaining -= payload;
                *first = false;
                *remaining == 0
            }
        };
        if done
            && let Some(
                Reply::Read { repeat: false, .. }
                | Reply::Atomic { repeat: false, .. }
                | Reply::Done { repeat: false, .. },
            ) = self.replies.pop_front()
        {
            self.open_reads -= 1;
        }
        true
    }

    /// The memory of the READ that is being answered has gone: a NAK takes the place of its next response, and
    /// of all that was to follow (rule R-RSP-31). Not so where the READ is a repeat: its requester may have had
    /// the answer long ago, and given the memory back since (rule R-RSP-5).
    fn lose_read(&mut self, ctx: &mut Ctx<'_>) {
        let Some(&Reply::Read { psn, msn, repeat, .. }) = self.replies.front() else { return };
        if repeat {
            self.replies.pop_front();
            return;
        }
        let syndrome = Syndrome::Nak(NakCode::RemoteAccessError);
        self.replies.clear();
        self.replies.push_back(Reply::Ack { psn, syndrome, msn });
        self.fail(ctx, &Refusal::ACCESS);
    }

    /// Queues an ACK or NAK, with the count of this moment (rule R-RSP-25). A positive one takes the place of one
    /// that waits right before it, since it covers what that one covers (rule R-RSP-26).
    pub(super) fn queue_ack(&mut self, params: &RcParams, psn: Psn, syndrome: Syndrome) {
        let msn = self.msn;
        if params.behaviour.coalesces_acks
            && let Some(Reply::Ack { psn: last, syndrome: Syndrome::Ack(_), msn: old }) =
                self.replies.back_mut()
            && syndrome.is_ack()
        {
            *last = psn;
            *old = msn;
            return;
        }
        let last_word = matches!(syndrome, Syndrome::Nak(code) if code != NakCode::PsnSequenceError);
        if last_word || self.replies.len() < MAX_REPLIES {
            self.replies.push_back(Reply::Ack { psn, syndrome, msn });
        }
    }

    /// Queues the answer to a repeat before those to later requests, so that these do not pass it over, and in
    /// place of what is left of an earlier answer that it says again (rule R-RSP-50).
    pub(super) fn queue_repeat(&mut self, params: &RcParams, mut reply: Reply) {
        if let Reply::Read { psn, remaining, repeat, .. } = &mut reply {
            let (from, span) = (*psn, params.packets(*remaining));
            self.replies.retain(|other| {
                let &Reply::Read { psn, remaining, repeat: counted_out, .. } = other else { return true };
                let skipped = psn.steps_from(from);
                let said_again = skipped < span && params.packets(remaining) <= span - skipped;
                *repeat &= !said_again || counted_out;
                !said_again
            });
        }
        let later = self.replies.iter().position(|other| other.psn().diff(reply.psn()) > 0);
        self.replies.insert(later.unwrap_or(self.replies.len()), reply);
    }

    /// Queues the answer to a FLUSH. No READ resource bounds how many wait; one that is lost is asked for again
    /// (rules R-RSP-48 and R-RSP-60).
    pub(super) fn queue_flushed(&mut self, psn: Psn) {
        if self.replies.len() < MAX_REPLIES {
            self.replies.push_back(Reply::Done { psn, msn: self.msn, repeat: true });
        }
    }

    /// Whether the answer at `psn` is still to be sent, so that a repeated request needs no other; or so many
    /// wait that a peer which asks on and on is not to be humoured.
    pub(super) fn is_queued(&self, psn: Psn, params: &RcParams) -> bool {
        self.replies.len() >= MAX_REPLIES
            || self.replies.iter().any(|reply| match *reply {
                Reply::Read { psn: next, remaining, .. } => psn.in_window(next, params.packets(remaining)),
                Reply::Atomic { psn: at, .. } | Reply::Done { psn: at, .. } => at == psn,
                Reply::Ack { .. } => false,
            })
    }
}

impl Reply {
    const fn psn(&self) -> Psn {
        match *self {
            Self::Ack { psn, .. }
            | Self::Read { psn, .. }
            | Self::Atomic { psn, .. }
            | Self::Done { psn, .. } => psn,
        }
    }

    /// Operation and payload length of its next packet. A repeated READ begins as one of its own (rule R-RSP-30).
    fn shape(&self, mtu: u32) -> (Operation, u32) {
        match *self {
            Self::Ack { .. } => (Operation::Acknowledge, 0),
            Self::Atomic { .. } => (Operation::AtomicAcknowledge, 0),
            Self::Done { .. } => (Operation::ReadResponseOnly, 0),
            Self::Read { remaining, first, .. } => {
                (segment(SegmentKind::ReadResponse, first, remaining <= mtu), remaining.min(mtu))
            }
        }
    }
}

const fn pad(payload: u32) -> usize {
    (payload.wrapping_neg() & 3) as usize
}

fn put(body: &mut [u8], at: usize, bytes: &[u8]) -> usize {
    body[at..at + bytes.len()].copy_from_slice(bytes);
    at + bytes.len()
}
