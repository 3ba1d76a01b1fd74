//! The pcapng blocks that hold packets: their fixed fields, and what their timestamps mean.
//!
//! The reader above takes blocks apart from the file; this looks only at those with packets, and only at
//! what is needed of them.

use pcap_file::PcapError;
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::blocks::{ENHANCED_PACKET_BLOCK, PACKET_BLOCK, SIMPLE_PACKET_BLOCK};
use wire::Instant;

/// What the fixed fields of a packet block say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PacketHead {
    /// Index of the interface in the section.
    pub(super) interface: u32,
    /// Timestamp in units of the interface; simple packet blocks have none.
    pub(super) units: Option<u64>,
    /// Bytes on the wire.
    pub(super) wire_len: u32,
}

impl PacketHead {
    /// Reads `body`, the body of a block of type `block_type`: the head and the packet's bytes, or `None` for
    /// a block that holds no packet.
    pub(super) fn parse(
        block_type: u32,
        body: &[u8],
        big_endian: bool,
    ) -> Result<Option<(Self, &[u8])>, PcapError> {
        const SHORT: PcapError = PcapError::InvalidField("a packet block is shorter than it says");
        let word = |at: usize| {
            let raw = *body.get(at..).and_then(<[u8]>::first_chunk::<4>).ok_or(SHORT)?;
            Ok::<_, PcapError>(if big_endian { u32::from_be_bytes(raw) } else { u32::from_le_bytes(raw) })
        };
        let (head, at, captured) = match block_type {
            ENHANCED_PACKET_BLOCK | PACKET_BLOCK => {
                let first = word(0)?;
                // The older block has a 16-bit interface and a drop count in the place of the interface.
                let interface = match (block_type, big_endian) {
                    (ENHANCED_PACKET_BLOCK, _) => first,
                    (_, true) => first >> 16,
                    (_, false) => first & 0xFFFF,
                };
                let units = u64::from(word(4)?) << 32 | u64::from(word(8)?);
                (Self { interface, units: Some(units), wire_len: word(16)? }, 20, word(12)?)
            }
            SIMPLE_PACKET_BLOCK => {
                let wire_len = word(0)?;
                let room = u32::try_from(body.len() - 4).unwrap_or(u32::MAX);
                (Self { interface: 0, units: None, wire_len }, 4, wire_len.min(room))
            }
            _ => return Ok(None),
        };
        let data = body.get(at..).and_then(|rest| rest.get(..captured as usize)).ok_or(SHORT)?;
        Ok(Some((head, data)))
    }
}

/// The time of a packet with this timestamp on `interface`.
pub(super) fn time(interface: &InterfaceDescriptionBlock<'_>, units: u64) -> Instant {
    let mut resolution = 6;
    let mut offset = 0;
    for option in &interface.options {
        match option {
            InterfaceDescriptionOption::IfTsResol(value) => resolution = *value,
            InterfaceDescriptionOption::IfTsOffset(seconds) => offset = *seconds,
            _ => {}
        }
    }
    let nanos = u128::from(units) * 1_000_000_000 / units_per_second(resolution);
    let nanos = u64::try_from(nanos).unwrap_or(u64::MAX);
    Instant::from_nanos(nanos.saturating_add(offset.saturating_mul(1_000_000_000)))
}

/// Units in a second: a power of two where the top bit is set, else of ten. Finer ones than any 64-bit
/// timestamp can tell apart count as the finest that fits.
fn units_per_second(resolution: u8) -> u128 {
    let exponent = u32::from(resolution & 0x7F);
    let base: u128 = if resolution & 0x80 == 0 { 10 } else { 2 };
    base.checked_pow(exponent).unwrap_or(u128::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolutions_are_powers_of_ten_or_of_two() {
        assert_eq!(units_per_second(0), 1);
        assert_eq!(units_per_second(6), 1_000_000);
        assert_eq!(units_per_second(0x80 | 10), 1024);
        assert_eq!(units_per_second(0x7F), u128::MAX);
    }

    #[test]
    fn a_block_that_announces_more_than_it_holds_is_refused() {
        let mut body = vec![0; 24];
        body[12] = 5;
        assert!(PacketHead::parse(ENHANCED_PACKET_BLOCK, &body, false).is_err());
        body[12] = 4;
        let (head, data) = PacketHead::parse(ENHANCED_PACKET_BLOCK, &body, false).unwrap().unwrap();
        assert_eq!((head.interface, head.units, data.len()), (0, Some(0), 4));
    }

    #[test]
    fn the_obsolete_packet_block_has_a_short_interface_number() {
        let mut body = vec![0; 20];
        body[..4].copy_from_slice(&[0, 7, 0, 9]);
        let (head, _) = PacketHead::parse(PACKET_BLOCK, &body, true).unwrap().unwrap();
        assert_eq!(head.interface, 7);
    }
}
