//! One request packet: which operation it is, what it carries, and its bytes.
//!
//! The requesters of all transports cut their messages here, and nowhere else.

use wire::ext::{AtomicEth, Deth, Feth, Ieth, ImmDt, Reth, Xrceth};
use wire::icrc::ICRC_LEN;
use wire::opcode::{ExtHeader, Info, Operation, PayloadRule, Transport, segment};
use wire::{Bth, Opcode, Packet, Psn, Qpn};
use zerocopy::IntoBytes;

use crate::params::RcParams;
use crate::ports::{AccessError, Ctx};
use crate::sge::gather;
use crate::wqe::{SendFlags, SendOp, SendWqe};

/// One packet as it will be sent.
#[derive(Debug)]
pub(crate) struct NextPacket {
    pub(crate) transport: Transport,
    pub(crate) operation: Operation,
    /// Where in the message its payload, or the data it asks for, begins.
    pub(crate) offset: u32,
    pub(crate) payload: u32,
    /// Length in its RETH.
    pub(crate) dma_len: u32,
    /// PSNs it takes.
    pub(crate) span: u32,
    /// Whether the request ends with it.
    pub(crate) last: bool,
    /// Whether it counts against the READ depth.
    pub(crate) opens_read: bool,
}

impl NextPacket {
    /// Packet `index` of the `n` of a SEND or WRITE; `None` for other requests. Which packet it is follows from its
    /// PSN alone, so a message resumes anywhere (rule R-REQ-27); without a byte it is one ONLY packet (rule
    /// R-REQ-14).
    pub(crate) fn of_message(
        transport: Transport,
        wqe: &SendWqe,
        index: u32,
        n: u32,
        params: &RcParams,
    ) -> Option<Self> {
        let kind = wqe.op.segments()?;
        let (mtu, last) = (params.mtu_bytes(), index + 1 == n);
        let offset = index * mtu;
        Some(Self {
            transport,
            operation: segment(kind, index == 0, last),
            offset,
            payload: (wqe.length - offset).min(mtu),
            dma_len: wqe.length,
            span: 1,
            last,
            opens_read: false,
        })
    }

    /// Length from BTH to ICRC.
    pub(crate) fn body_len(&self) -> usize {
        let headers = self.info().map_or(0, |info| info.headers_len);
        Bth::SIZE + headers + self.payload as usize + self.pad() + ICRC_LEN
    }

    /// Writes it into `body`, the ICRC left out.
    ///
    /// # Errors
    /// Where local memory cannot be read.
    pub(crate) fn write(
        &self,
        ctx: &mut Ctx<'_>,
        wqe: &SendWqe,
        dest_qpn: Qpn,
        psn: Psn,
        ack_req: bool,
        body: &mut [u8],
    ) -> Result<(), AccessError> {
        let opcode = Opcode::new(self.transport, self.operation).unwrap_or(Opcode::rc(self.operation));
        // Rule R-REQ-13.
        let solicited = self.last && wqe.flags.contains(SendFlags::SOLICITED) && wakes_receiver(&wqe.op);
        let bth = Bth::new(opcode, dest_qpn, psn)
            .with_pkey(ctx.params.pkey)
            .with_migreq(ctx.params.behaviour.migreq)
            .with_pad_count(self.pad())
            .with_ack_req(ack_req)
            .with_solicited(solicited);
        let mut at = put(body, 0, bth.as_bytes());
        at = self.write_headers(ctx.params, body, at, wqe);
        let payload = &mut body[at..at + self.payload as usize];
        match &wqe.inline {
            Some(data) => {
                let from = self.offset as usize;
                payload.copy_from_slice(&data[from..from + payload.len()]);
                Ok(())
            }
            None => gather(ctx.memory, ctx.params.pd, &wqe.sges, u64::from(self.offset), payload),
        }
    }

    fn info(&self) -> Option<&'static Info> {
        Opcode::new(self.transport, self.operation)?.info()
    }

    const fn pad(&self) -> usize {
        (self.payload.wrapping_neg() & 3) as usize
    }

    /// Writes the headers after the BTH; returns where the payload goes.
    fn write_headers(&self, params: &RcParams, body: &mut [u8], mut at: usize, wqe: &SendWqe) -> usize {
        for header in self.info().map_or(&[][..], |info| info.headers) {
            at = match (header, wqe.op) {
                (ExtHeader::Reth, SendOp::Write { va, rkey, .. }) => {
                    // Rule R-REQ-32: the length of the whole message.
                    put(body, at, Reth::new(va, rkey, wqe.length).as_bytes())
                }
                (ExtHeader::Reth, SendOp::Read { va, rkey }) => {
                    let va = va.wrapping_add(u64::from(self.offset));
                    put(body, at, Reth::new(va, rkey, self.dma_len).as_bytes())
                }
                (ExtHeader::Reth, SendOp::AtomicWrite { va, rkey }) => {
                    put(body, at, Reth::new(va, rkey, wqe.length).as_bytes())
                }
                (ExtHeader::Reth, SendOp::Flush { va, rkey, length, .. }) => {
                    put(body, at, Reth::new(va, rkey, length).as_bytes())
                }
                (ExtHeader::Feth, SendOp::Flush { placement, whole, .. }) => {
                    put(body, at, Feth::new(placement.bits(), whole).as_bytes())
                }
                // Rule R-REQ-38.
                (ExtHeader::Ieth, SendOp::SendInv { rkey }) => put(body, at, Ieth::new(rkey).as_bytes()),
                (ExtHeader::AtomicEth, SendOp::CmpSwap { va, rkey, compare, swap }) => {
                    put(body, at, AtomicEth::new(va, rkey, swap, compare).as_bytes())
                }
                (ExtHeader::AtomicEth, SendOp::FetchAdd { va, rkey, add }) => {
                    put(body, at, AtomicEth::new(va, rkey, add, 0).as_bytes())
                }
                // Rule R-WIR-27: in every packet of a request.
                // Rule R-REQ-36.
                (ExtHeader::Xrceth, _) => {
                    put(body, at, Xrceth::new(wqe.remote_srqn.unwrap_or_default()).as_bytes())
                }
                (ExtHeader::ImmDt, op) => put(body, at, ImmDt::new(op.imm().unwrap_or_default()).as_bytes()),
                (ExtHeader::Deth, _) => {
                    let qkey = wqe.datagram.as_ref().map_or(params.qkey, |to| to.qkey_on_wire(params.qkey));
                    put(body, at, Deth::new(qkey, params.qpn).as_bytes())
                }
                // Headers that no request of these operations has; what they leave out must not be old bytes.
                (other, _) => {
                    body[at..at + other.size()].fill(0);
                    at + other.size()
                }
            };
        }
        at
    }
}

/// Rules R-RSP-12 and R-WIR-21: whether a request packet's payload is what its opcode and the path MTU allow.
pub(crate) fn length_fits(params: &RcParams, packet: &Packet<'_>) -> bool {
    let (len, mtu) = (packet.payload().len(), params.mtu_bytes() as usize);
    match packet.info().payload {
        PayloadRule::None => len == 0,
        PayloadRule::Full => len == mtu && packet.bth().pad_count() == 0,
        PayloadRule::Some => (1..=mtu).contains(&len),
        PayloadRule::Any => len <= mtu,
        PayloadRule::Eight => len == 8,
    }
}

fn put(body: &mut [u8], at: usize, bytes: &[u8]) -> usize {
    body[at..at + bytes.len()].copy_from_slice(bytes);
    at + bytes.len()
}

/// Rule F28: a solicited event is asked for only where the peer gets a receive completion.
const fn wakes_receiver(op: &SendOp) -> bool {
    matches!(op, SendOp::Send { .. } | SendOp::SendInv { .. } | SendOp::Write { imm: Some(_), .. })
}
