//! The base transport header: the twelve bytes every InfiniBand packet has.

use core::fmt;

use zerocopy::byteorder::big_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::num::{PKey, Psn, Qpn};
use crate::opcode::Opcode;

/// Base transport header, as it lies on the wire. Reserved bits are kept as they came (rule R-WIR-30).
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Bth {
    opcode: u8,
    flags: u8,
    pkey: U16,
    congestion: u8,
    dest_qp: [u8; 3],
    ack: u8,
    psn: [u8; 3],
}

impl Bth {
    /// Size on the wire.
    pub const SIZE: usize = 12;

    const SE: u8 = 0x80;
    const MIGREQ: u8 = 0x40;
    const FECN: u8 = 0x80;
    const BECN: u8 = 0x40;
    const ACKREQ: u8 = 0x80;

    /// A header with the default P_Key (rule R-ADR-4), MigReq 1 as hardware sends it (rule R-WIR-34), and no other
    /// flag: not asking for an ACK (rule R-REQ-12), nor with FECN or BECN (rule R-WIR-33).
    #[must_use]
    pub fn new(opcode: Opcode, dest_qp: Qpn, psn: Psn) -> Self {
        Self {
            opcode: opcode.byte(),
            flags: Self::MIGREQ,
            pkey: U16::new(PKey::DEFAULT.value()),
            congestion: 0,
            dest_qp: be24(dest_qp.value()),
            ack: 0,
            psn: be24(psn.value()),
        }
    }

    /// The header of a congestion notification for `dest_qp`: BECN set, no other flag, PSN 0 (rule R-CNP-1).
    #[must_use]
    pub fn cnp(dest_qp: Qpn) -> Self {
        Self::new(Opcode::CNP, dest_qp, Psn::new(0)).with_migreq(false).with_congestion(false, true)
    }

    /// The opcode byte.
    #[must_use]
    pub const fn opcode(&self) -> Opcode {
        Opcode::from_byte(self.opcode)
    }

    /// Solicited event.
    #[must_use]
    pub const fn solicited(&self) -> bool {
        self.flags & Self::SE != 0
    }

    /// MigReq: the sender's path is in the MIGRATED state.
    #[must_use]
    pub const fn migreq(&self) -> bool {
        self.flags & Self::MIGREQ != 0
    }

    /// How many pad bytes follow the payload: 0 to 3.
    #[must_use]
    pub const fn pad_count(&self) -> usize {
        (self.flags >> 4 & 3) as usize
    }

    /// Transport header version; 0 is the only one.
    #[must_use]
    pub const fn tver(&self) -> u8 {
        self.flags & 0x0F
    }

    /// Partition key.
    #[must_use]
    pub fn pkey(&self) -> PKey {
        PKey::new(self.pkey.get())
    }

    /// Forward congestion bit.
    #[must_use]
    pub const fn fecn(&self) -> bool {
        self.congestion & Self::FECN != 0
    }

    /// Backward congestion bit: set in CNPs.
    #[must_use]
    pub const fn becn(&self) -> bool {
        self.congestion & Self::BECN != 0
    }

    /// The six reserved bits beside FECN and BECN.
    #[must_use]
    pub const fn reserved6(&self) -> u8 {
        self.congestion & 0x3F
    }

    /// Destination queue pair.
    #[must_use]
    pub const fn dest_qp(&self) -> Qpn {
        Qpn::new(u24(self.dest_qp))
    }

    /// The sender wants an acknowledgement of this packet.
    #[must_use]
    pub const fn ack_req(&self) -> bool {
        self.ack & Self::ACKREQ != 0
    }

    /// The seven reserved bits beside AckReq.
    #[must_use]
    pub const fn reserved7(&self) -> u8 {
        self.ack & 0x7F
    }

    /// Packet sequence number.
    #[must_use]
    pub const fn psn(&self) -> Psn {
        Psn::new(u24(self.psn))
    }

    /// With this opcode byte.
    #[must_use]
    pub const fn with_opcode(mut self, opcode: Opcode) -> Self {
        self.opcode = opcode.byte();
        self
    }

    /// With this solicited-event bit.
    #[must_use]
    pub const fn with_solicited(mut self, on: bool) -> Self {
        self.flags = if on { self.flags | Self::SE } else { self.flags & !Self::SE };
        self
    }

    /// With this MigReq bit.
    #[must_use]
    pub const fn with_migreq(mut self, on: bool) -> Self {
        self.flags = if on { self.flags | Self::MIGREQ } else { self.flags & !Self::MIGREQ };
        self
    }

    /// With this pad count; only its low two bits count.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "two bits are left")]
    pub const fn with_pad_count(mut self, pad: usize) -> Self {
        self.flags = (self.flags & !0x30) | ((pad & 3) as u8) << 4;
        self
    }

    /// With this transport version; only its low four bits count.
    #[must_use]
    pub const fn with_tver(mut self, tver: u8) -> Self {
        self.flags = (self.flags & 0xF0) | (tver & 0x0F);
        self
    }

    /// With this partition key.
    #[must_use]
    pub fn with_pkey(mut self, pkey: PKey) -> Self {
        self.pkey = U16::new(pkey.value());
        self
    }

    /// With these congestion bits.
    #[must_use]
    pub const fn with_congestion(mut self, fecn: bool, becn: bool) -> Self {
        self.congestion = self.reserved6() | (fecn as u8) << 7 | (becn as u8) << 6;
        self
    }

    /// With this destination queue pair.
    #[must_use]
    pub const fn with_dest_qp(mut self, qpn: Qpn) -> Self {
        self.dest_qp = be24(qpn.value());
        self
    }

    /// With this AckReq bit.
    #[must_use]
    pub const fn with_ack_req(mut self, on: bool) -> Self {
        self.ack = self.reserved7() | (on as u8) << 7;
        self
    }

    /// With this PSN.
    #[must_use]
    pub const fn with_psn(mut self, psn: Psn) -> Self {
        self.psn = be24(psn.value());
        self
    }
}

impl fmt::Debug for Bth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bth")
            .field("opcode", &self.opcode())
            .field("solicited", &self.solicited())
            .field("migreq", &self.migreq())
            .field("pad_count", &self.pad_count())
            .field("tver", &self.tver())
            .field("pkey", &self.pkey())
            .field("fecn", &self.fecn())
            .field("becn", &self.becn())
            .field("reserved6", &self.reserved6())
            .field("dest_qp", &self.dest_qp())
            .field("ack_req", &self.ack_req())
            .field("reserved7", &self.reserved7())
            .field("psn", &self.psn())
            .finish()
    }
}

/// Big-endian 24-bit field.
pub(crate) const fn be24(value: u32) -> [u8; 3] {
    let [_, a, b, c] = value.to_be_bytes();
    [a, b, c]
}

/// Value of a big-endian 24-bit field.
pub(crate) const fn u24(raw: [u8; 3]) -> u32 {
    u32::from_be_bytes([0, raw[0], raw[1], raw[2]])
}

#[cfg(test)]
mod tests;
