//! The message that is arriving at a connected queue pair, reliable or not: what is known of it from packet to packet.
//!
//! The responder and the unreliable receiver keep one each. What becomes of a message that breaks a rule is for them
//! to say; nothing here answers or drops anything.

use wire::{Packet, RKey, VirtAddr};

use crate::completion::{Completion, WcOpcode};
use crate::ports::{Access, AccessError, Ctx};
use crate::sge::scatter;
use crate::wqe::RecvWqe;

/// The message that is arriving.
#[derive(Debug)]
pub(crate) enum Message {
    None,
    /// A SEND, the receive it took, and the bytes that are in place.
    Send {
        wqe: RecvWqe,
        received: u64,
    },
    Write(Write),
}

/// Why a packet of a SEND was not put in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendError {
    /// No SEND is arriving.
    NoSend,
    /// The receive is too small.
    TooLong,
    /// The memory of the receive cannot be written.
    Local,
}

impl Message {
    /// Ends the message; gives back the receive of a SEND.
    pub(crate) fn end(&mut self) -> Option<RecvWqe> {
        match core::mem::replace(self, Self::None) {
            Self::Send { wqe, .. } => Some(wqe),
            Self::None | Self::Write(_) => None,
        }
    }

    /// Puts the next bytes of a SEND into its receive; returns how many it has now.
    pub(crate) fn take_in(&mut self, ctx: &mut Ctx<'_>, data: &[u8]) -> Result<u32, SendError> {
        let Self::Send { wqe, received } = self else { return Err(SendError::NoSend) };
        let total = *received + data.len() as u64;
        // Rule R-RSP-14.
        if total > wqe.capacity() {
            ctx.out.counters.resp_local_length_error += 1;
            return Err(SendError::TooLong);
        }
        scatter(ctx.memory, wqe.pd, &wqe.sges, *received, data).map_err(|_| SendError::Local)?;
        *received = total;
        Ok(u32::try_from(total).unwrap_or(u32::MAX))
    }
}

/// What is still to come of a WRITE, and where it goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Write {
    va: VirtAddr,
    rkey: RKey,
    /// Bytes to come.
    pub(crate) remaining: u32,
    /// Bytes of the whole message.
    pub(crate) total: u32,
}

impl Write {
    /// The WRITE that `packet` begins, or that it goes on with.
    pub(crate) fn of(packet: &Packet<'_>, message: &Message) -> Option<Self> {
        match (packet.reth(), message) {
            (Some(reth), _) => {
                let total = reth.dma_len();
                Some(Self { va: reth.va(), rkey: reth.rkey(), remaining: total, total })
            }
            (None, Message::Write(write)) => Some(*write),
            (None, _) => None,
        }
    }

    /// Whether its peer may write all of it.
    pub(crate) fn check(&self, ctx: &Ctx<'_>) -> Result<(), AccessError> {
        // Rules F4 and R-RSP-23: without a byte to write, key and address say nothing. Rule R-RSP-15.
        if self.total == 0 {
            return Ok(());
        }
        let (via, len) = (ctx.params.via(), u64::from(self.total));
        ctx.memory.check_remote(via, self.rkey, self.va, len, Access::REMOTE_WRITE)
    }

    /// Rule R-RSP-13: the payloads add up to the announced length, exactly at the end.
    pub(crate) const fn adds_up(&self, length: u32, ends: bool) -> bool {
        if ends { length == self.remaining } else { length < self.remaining }
    }

    /// Writes the payload of its next packet.
    pub(crate) fn place(&self, ctx: &mut Ctx<'_>, data: &[u8]) -> Result<(), AccessError> {
        if data.is_empty() {
            return Ok(());
        }
        ctx.memory.write_remote(ctx.params.via(), self.rkey, self.va, data)
    }

    /// What is arriving after a packet of `length` bytes, no more than remain, that may be the last.
    pub(crate) const fn after(self, length: u32, last: bool) -> Message {
        if last {
            return Message::None;
        }
        let (va, remaining) = (self.va.wrapping_add(length as u64), self.remaining - length);
        Message::Write(Self { va, remaining, ..self })
    }
}

/// Completes the receive of a message that `packet` ended.
pub(crate) fn complete_receive(
    ctx: &mut Ctx<'_>,
    wqe: &RecvWqe,
    opcode: WcOpcode,
    byte_len: u32,
    packet: &Packet<'_>,
) {
    let wc = Completion::receive(wqe.wr_id, opcode, byte_len, packet, ctx.params.qpn, ctx.params.dest_qpn);
    ctx.out.completions.push((wqe.side, wc));
}
