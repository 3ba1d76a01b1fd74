//! A packet by value: what is read can be changed and written again.
//!
//! For everything that makes single packets and does not count nanoseconds: injectors, replays, tests, tools.
//! The engines write their packets straight into a [`TxBatch`](crate::batch::TxBatch) instead. Nothing here
//! decides whether a packet is allowed; wrong ones are wanted, to be sent to those who must refuse them.

use zerocopy::{FromBytes, IntoBytes};

use crate::bth::Bth;
use crate::ext::{Aeth, CnpReserved, Ext};
use crate::icrc::{self, ICRC_LEN};
use crate::ip::NetHeader;
use crate::num::{Msn, Psn, Qpn};
use crate::opcode::{ExtHeader, Opcode, Operation};
use crate::packet::{Packet, ParseError};
use crate::syndrome::Syndrome;

/// Why a packet cannot be made of its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReprError {
    /// The headers are not those that the opcode has, in their order.
    #[error("{0} does not have these headers")]
    WrongHeaders(Opcode),
    /// The packet would be longer than the length fields of its network header can say.
    #[error("longer than an IP packet can be")]
    TooLong,
}

/// A packet by value, from the network header on.
///
/// Every field is what is on the wire; nothing is worked out when it is written. A packet that came from
/// [`PacketRepr::new`] or from parsing reads back equal after [`PacketRepr::emit`], reserved bits, pad and a
/// wrong ICRC included. After changing fields call [`PacketRepr::finish`], or [`PacketRepr::refill_icrc`] to
/// keep lengths and pad as they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketRepr {
    /// Network headers.
    pub net: NetHeader,
    /// Base transport header.
    pub bth: Bth,
    /// Headers after the BTH, in wire order.
    pub ext: Vec<Ext>,
    /// Payload without pad. Of an unknown opcode, all between BTH and ICRC.
    pub payload: Vec<u8>,
    /// Pad bytes, as many as the BTH says. Of an unknown opcode, none.
    pub pad: Vec<u8>,
    /// ICRC, as a number.
    pub icrc: u32,
}

impl PacketRepr {
    /// A packet of these parts, with pad, lengths, IPv4 checksum and ICRC set. Of an opcode that nobody knows
    /// the pad count stays as it is, and there are no headers.
    ///
    /// # Errors
    /// [`ReprError::WrongHeaders`] where `ext` is not what the opcode has; [`ReprError::TooLong`].
    pub fn new(
        net: NetHeader,
        bth: Bth,
        ext: impl Into<Vec<Ext>>,
        payload: impl Into<Vec<u8>>,
    ) -> Result<Self, ReprError> {
        let packet = Self { net, bth, ext: ext.into(), payload: payload.into(), pad: Vec::new(), icrc: 0 };
        if !packet.ext.iter().map(Ext::kind).eq(headers(bth.opcode()).iter().copied()) {
            return Err(ReprError::WrongHeaders(bth.opcode()));
        }
        let longest_pad = 3;
        if packet.net.len() + packet.body_len() + longest_pad > usize::from(u16::MAX) {
            return Err(ReprError::TooLong);
        }
        Ok(packet.finished())
    }

    /// A congestion notification for `dest_qp`; `net` says from where to where, and with which traffic class
    /// (rule R-CNP-1).
    #[must_use]
    pub fn cnp(net: NetHeader, dest_qp: Qpn) -> Self {
        let ext = vec![CnpReserved::ZERO.into()];
        Self { net, bth: Bth::cnp(dest_qp), ext, payload: Vec::new(), pad: Vec::new(), icrc: 0 }.finished()
    }

    /// An RC acknowledgement of `psn`, positive or negative as `syndrome` says.
    #[must_use]
    pub fn ack(net: NetHeader, dest_qp: Qpn, psn: Psn, syndrome: Syndrome, msn: Msn) -> Self {
        let bth = Bth::new(Opcode::rc(Operation::Acknowledge), dest_qp, psn);
        let ext = vec![Aeth::new(syndrome, msn).into()];
        Self { net, bth, ext, payload: Vec::new(), pad: Vec::new(), icrc: 0 }.finished()
    }

    /// Reads an IP packet that holds RoCE v2.
    ///
    /// # Errors
    /// As [`Packet::parse_ip`], but an unknown opcode is none.
    pub fn parse_ip(packet: &[u8]) -> Result<Self, ParseError> {
        let (net, body) = NetHeader::parse_ip(packet)?;
        Self::parse_body(net, body)
    }

    /// Reads `body`, the bytes from BTH to ICRC, that came behind `net`.
    ///
    /// # Errors
    /// As [`Packet::parse_body`], but an unknown opcode is none.
    pub fn parse_body(net: NetHeader, body: &[u8]) -> Result<Self, ParseError> {
        match Packet::parse_body(net, body) {
            Ok(packet) => Ok(Self::from(&packet)),
            Err(ParseError::UnknownOpcode(_)) => {
                let (bth, rest) = Bth::read_from_prefix(body).map_err(|_| ParseError::TooShort)?;
                let (payload, icrc) = rest.split_last_chunk::<ICRC_LEN>().ok_or(ParseError::TooShort)?;
                let icrc = u32::from_le_bytes(*icrc);
                Ok(Self { net, bth, ext: Vec::new(), payload: payload.to_vec(), pad: Vec::new(), icrc })
            }
            Err(error) => Err(error),
        }
    }

    /// Appends the packet to `out`, from the network header to the ICRC.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let mut head = [0; NetHeader::MAX_LEN];
        let len = self.net.emit(&mut head);
        out.extend_from_slice(&head[..len]);
        self.emit_body(out);
    }

    /// Appends the bytes from BTH to ICRC to `out`.
    pub fn emit_body(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.bth.as_bytes());
        for header in &self.ext {
            out.extend_from_slice(header.as_bytes());
        }
        out.extend_from_slice(&self.payload);
        out.extend_from_slice(&self.pad);
        out.extend_from_slice(&self.icrc.to_le_bytes());
    }

    /// Bytes from BTH to ICRC.
    #[must_use]
    pub fn body_len(&self) -> usize {
        let headers: usize = self.ext.iter().map(|header| header.kind().size()).sum();
        Bth::SIZE + headers + self.payload.len() + self.pad.len() + ICRC_LEN
    }

    /// Sets all that follows from the rest: pad and its count, lengths, IPv4 checksum, ICRC.
    pub fn finish(&mut self) {
        if self.bth.opcode().info().is_some() {
            // Rule R-WIR-11.
            let pad = self.payload.len().wrapping_neg() & 3;
            self.pad = vec![0; pad];
            self.bth = self.bth.with_pad_count(pad);
        }
        self.net = self.net.with_transport_len(self.body_len());
        self.refill_icrc();
    }

    /// Sets the ICRC that fits everything else, and changes nothing else.
    pub fn refill_icrc(&mut self) {
        let mut body = Vec::with_capacity(self.body_len());
        self.emit_body(&mut body);
        body.truncate(body.len() - ICRC_LEN);
        self.icrc = icrc::compute(&self.net, &body);
    }

    fn finished(mut self) -> Self {
        self.finish();
        self
    }
}

impl From<&Packet<'_>> for PacketRepr {
    fn from(packet: &Packet<'_>) -> Self {
        Self {
            net: packet.net,
            bth: *packet.bth(),
            ext: packet.ext_headers().collect(),
            payload: packet.payload().to_vec(),
            pad: packet.pad().to_vec(),
            icrc: packet.icrc(),
        }
    }
}

/// The headers of an opcode; none of an unknown one.
fn headers(opcode: Opcode) -> &'static [ExtHeader] {
    opcode.info().map_or(&[], |info| info.headers)
}

#[cfg(test)]
pub(crate) mod strategy;
#[cfg(test)]
mod tests;
