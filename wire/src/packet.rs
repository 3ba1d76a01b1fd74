//! One parse checks every length of a packet; after it, no accessor can fail.

use zerocopy::FromBytes;

use crate::bth::Bth;
use crate::ext::{Aeth, AtomicAckEth, AtomicEth, Deth, Ext, Feth, Ieth, ImmDt, Reth, Xrceth};
use crate::icrc::{self, ICRC_LEN};
use crate::ip::NetHeader;
use crate::opcode::{ExtHeader, Info, Opcode};

/// Why bytes are no RoCE packet that can be processed. Never an error of the receiver's user: the packet is
/// dropped and counted (rule R-WIR-16).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseError {
    /// No RoCE packet at all: another protocol or port, a fragment, IP options.
    #[error("not a RoCE packet")]
    NotRoce,
    /// Shorter than its headers, or than its headers say.
    #[error("shorter than its headers say")]
    TooShort,
    /// The IP and the UDP header do not agree on the length.
    #[error("IP and UDP lengths disagree")]
    LengthMismatch,
    /// No transport has this opcode.
    #[error("unknown opcode {0:?}")]
    UnknownOpcode(Opcode),
    /// More pad than there is payload.
    #[error("pad count exceeds the payload")]
    BadPad,
}

/// A parsed packet, borrowing its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// Network headers.
    pub net: NetHeader,
    info: &'static Info,
    bth: &'a Bth,
    /// BTH to ICRC.
    body: &'a [u8],
    payload_end: usize,
}

macro_rules! accessor {
    ($(#[$doc:meta])* $name:ident, $ty:ty, $header:ident) => {
        $(#[$doc])*
        #[must_use]
        pub fn $name(&self) -> Option<&'a $ty> {
            let at = self.info.offset_of(ExtHeader::$header)?;
            <$ty>::ref_from_prefix(self.body.get(at..)?).ok().map(|(header, _)| header)
        }
    };
}

impl<'a> Packet<'a> {
    /// Parses an IP packet that holds RoCE v2.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse_ip(packet: &'a [u8]) -> Result<Self, ParseError> {
        let (net, body) = NetHeader::parse_ip(packet)?;
        Self::parse_body(net, body)
    }

    /// Parses `body`, the bytes from BTH to ICRC, that came behind `net`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse_body(net: NetHeader, body: &'a [u8]) -> Result<Self, ParseError> {
        let (bth, rest) = Bth::ref_from_prefix(body).map_err(|_| ParseError::TooShort)?;
        // Rule R-WIR-14: an unknown opcode is dropped before its length means anything.
        let info = bth.opcode().info().ok_or(ParseError::UnknownOpcode(bth.opcode()))?;
        // Rule R-WIR-13: nothing is subtracted before the length is known to allow it.
        let with_pad = rest.len().checked_sub(info.headers_len + ICRC_LEN).ok_or(ParseError::TooShort)?;
        // Rule R-WIR-12.
        let payload = with_pad.checked_sub(bth.pad_count()).ok_or(ParseError::BadPad)?;
        Ok(Self { net, info, bth, body, payload_end: Bth::SIZE + info.headers_len + payload })
    }

    /// Base transport header.
    #[must_use]
    pub const fn bth(&self) -> &'a Bth {
        self.bth
    }

    /// Row of the opcode table.
    #[must_use]
    pub const fn info(&self) -> &'static Info {
        self.info
    }

    /// All bytes from BTH to ICRC.
    #[must_use]
    pub const fn body(&self) -> &'a [u8] {
        self.body
    }

    /// Payload without pad.
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        &self.body[Bth::SIZE + self.info.headers_len..self.payload_end]
    }

    /// The pad bytes: 0 to 3 of them.
    #[must_use]
    pub fn pad(&self) -> &'a [u8] {
        &self.body[self.payload_end..self.body.len() - ICRC_LEN]
    }

    /// The ICRC as it came.
    #[must_use]
    pub fn icrc(&self) -> u32 {
        self.body.last_chunk::<ICRC_LEN>().map_or(0, |raw| u32::from_le_bytes(*raw))
    }

    /// Whether the ICRC is right, given that `net` is what was on the wire.
    #[must_use]
    pub fn icrc_ok(&self) -> bool {
        icrc::verify(&self.net, self.body)
    }

    /// The headers between BTH and payload, in wire order.
    pub fn ext_headers(&self) -> impl Iterator<Item = Ext> + use<'a> {
        let (info, body) = (self.info, self.body);
        let mut at = Bth::SIZE;
        info.headers.iter().filter_map(move |kind| {
            let header = Ext::read(*kind, body.get(at..)?)?;
            at += kind.size();
            Some(header)
        })
    }

    accessor!(
        /// RETH, of opcodes that carry one.
        reth, Reth, Reth
    );
    accessor!(
        /// AETH, of opcodes that carry one.
        aeth, Aeth, Aeth
    );
    accessor!(
        /// AtomicETH, of opcodes that carry one.
        atomic_eth, AtomicEth, AtomicEth
    );
    accessor!(
        /// AtomicAckETH, of opcodes that carry one.
        atomic_ack_eth, AtomicAckEth, AtomicAckEth
    );
    accessor!(
        /// Immediate data, of opcodes that carry it.
        imm_dt, ImmDt, ImmDt
    );
    accessor!(
        /// IETH, of opcodes that carry one.
        ieth, Ieth, Ieth
    );
    accessor!(
        /// DETH, of opcodes that carry one.
        deth, Deth, Deth
    );
    accessor!(
        /// XRCETH, of opcodes that carry one.
        xrceth, Xrceth, Xrceth
    );
    accessor!(
        /// FETH, of opcodes that carry one.
        feth, Feth, Feth
    );
}

#[cfg(test)]
mod tests;
