//! Ethernet: the frame around a RoCE packet, with up to two VLAN tags.
//!
//! Capture readers and the packet back ends call it. The ICRC covers nothing of this layer, so nothing here
//! is ever checked against it. The frame check sequence is not part of a [`Frame`]: cards strip it.

use core::fmt;

use crate::ip::NetHeader;
use crate::num::Mac;
use crate::packet::ParseError;

/// What Ethernet adds to an IP packet on the wire: header, frame check, preamble and gap.
pub const ETHERNET_OVERHEAD: usize = 38;

/// What an Ethernet frame holds: the two bytes before its payload.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct EtherType(pub u16);

impl EtherType {
    /// IPv4.
    pub const IPV4: Self = Self(0x0800);
    /// ARP.
    pub const ARP: Self = Self(0x0806);
    /// IPv6.
    pub const IPV6: Self = Self(0x86DD);
    /// RoCE v1: a GRH follows.
    pub const ROCE_V1: Self = Self(0x8915);
    /// A customer VLAN tag (802.1Q).
    pub const VLAN: Self = Self(0x8100);
    /// A service VLAN tag (802.1ad).
    pub const SERVICE_VLAN: Self = Self(0x88A8);

    /// Whether four bytes of VLAN tag follow, and then another Ethernet type.
    #[must_use]
    pub const fn is_vlan(self) -> bool {
        matches!(self, Self::VLAN | Self::SERVICE_VLAN)
    }

    /// The type of a frame that carries `net`.
    #[must_use]
    pub const fn of(net: &NetHeader) -> Self {
        match net {
            NetHeader::V4(..) => Self::IPV4,
            NetHeader::V6(..) => Self::IPV6,
            NetHeader::V1(_) => Self::ROCE_V1,
        }
    }
}

impl fmt::Display for EtherType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::IPV4 => f.write_str("IPv4"),
            Self::ARP => f.write_str("ARP"),
            Self::IPV6 => f.write_str("IPv6"),
            Self::ROCE_V1 => f.write_str("RoCE"),
            Self::VLAN => f.write_str("802.1Q"),
            Self::SERVICE_VLAN => f.write_str("802.1ad"),
            Self(other) => write!(f, "{other:#06x}"),
        }
    }
}

impl fmt::Debug for EtherType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EtherType({:#06x})", self.0)
    }
}

/// A VLAN tag: its protocol and its control information, every bit kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VlanTag {
    /// [`EtherType::VLAN`] or [`EtherType::SERVICE_VLAN`].
    pub protocol: EtherType,
    /// Priority (3 bits), drop eligibility (1 bit), VLAN ID (12 bits).
    pub control: u16,
}

impl VlanTag {
    /// Size on the wire.
    pub const SIZE: usize = 4;

    /// An 802.1Q tag. `priority` counts modulo 8, `id` modulo 4096.
    #[must_use]
    pub const fn new(priority: u8, id: u16) -> Self {
        Self { protocol: EtherType::VLAN, control: ((priority & 7) as u16) << 13 | id & 0x0FFF }
    }

    /// Priority code point, 0 to 7.
    #[must_use]
    pub const fn priority(self) -> u8 {
        (self.control >> 13) as u8
    }

    /// Whether a switch may drop the frame first.
    #[must_use]
    pub const fn drop_eligible(self) -> bool {
        self.control & 0x1000 != 0
    }

    /// VLAN ID, 0 to 4095; 0 is a priority tag without VLAN.
    #[must_use]
    pub const fn id(self) -> u16 {
        self.control & 0x0FFF
    }
}

/// The VLAN tags of a frame (rule R-WIR-3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum VlanTags {
    /// No tag.
    #[default]
    None,
    /// One tag.
    One(VlanTag),
    /// Two tags, the outer one first.
    Two(VlanTag, VlanTag),
}

impl VlanTags {
    /// The tags in wire order.
    pub fn iter(self) -> impl Iterator<Item = VlanTag> {
        let (outer, inner) = match self {
            Self::None => (None, None),
            Self::One(tag) => (Some(tag), None),
            Self::Two(outer, inner) => (Some(outer), Some(inner)),
        };
        outer.into_iter().chain(inner)
    }

    /// How many tags there are.
    #[must_use]
    pub const fn count(self) -> usize {
        match self {
            Self::None => 0,
            Self::One(_) => 1,
            Self::Two(..) => 2,
        }
    }

    /// With `tag` inside the ones there are; `None` where there are two already.
    const fn with_inner(self, tag: VlanTag) -> Option<Self> {
        match self {
            Self::None => Some(Self::One(tag)),
            Self::One(outer) => Some(Self::Two(outer, tag)),
            Self::Two(..) => None,
        }
    }
}

/// Ethernet header with its VLAN tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EthHeader {
    /// Receiver.
    pub dst: Mac,
    /// Sender.
    pub src: Mac,
    /// VLAN tags.
    pub vlan: VlanTags,
    /// What follows.
    pub ether_type: EtherType,
}

impl EthHeader {
    /// Length without tags.
    pub const MIN_LEN: usize = 14;
    /// Length with two tags.
    pub const MAX_LEN: usize = Self::MIN_LEN + 2 * VlanTag::SIZE;

    /// An untagged header for a packet with the network header `net`.
    #[must_use]
    pub const fn new(src: Mac, dst: Mac, net: &NetHeader) -> Self {
        Self { dst, src, vlan: VlanTags::None, ether_type: EtherType::of(net) }
    }

    /// Reads the header of any Ethernet frame; returns it with all that follows it. A third VLAN tag is not
    /// read: it shows as the frame's type.
    ///
    /// # Errors
    /// [`ParseError::TooShort`] where the frame ends within its header.
    pub fn parse(frame: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        let (dst, rest) = take::<6>(frame)?;
        let (src, rest) = take::<6>(rest)?;
        let (ether_type, mut rest) = take_u16(rest)?;
        let mut header =
            Self { dst: Mac(dst), src: Mac(src), vlan: VlanTags::None, ether_type: EtherType(ether_type) };
        while header.ether_type.is_vlan() {
            let (control, after_tag) = take_u16(rest)?;
            let tag = VlanTag { protocol: header.ether_type, control };
            let Some(vlan) = header.vlan.with_inner(tag) else { break };
            let (ether_type, after_type) = take_u16(after_tag)?;
            header.vlan = vlan;
            header.ether_type = EtherType(ether_type);
            rest = after_type;
        }
        Ok((header, rest))
    }

    /// Length on the wire.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a header is never empty")]
    pub const fn len(&self) -> usize {
        Self::MIN_LEN + self.vlan.count() * VlanTag::SIZE
    }

    /// Writes the header to the start of `out` and returns how many bytes it took.
    ///
    /// # Panics
    /// Where `out` is shorter than [`EthHeader::len`].
    pub fn emit(&self, out: &mut [u8]) -> usize {
        out[..6].copy_from_slice(&self.dst.0);
        out[6..12].copy_from_slice(&self.src.0);
        let mut at = 12;
        for tag in self.vlan.iter() {
            out[at..at + 2].copy_from_slice(&tag.protocol.0.to_be_bytes());
            out[at + 2..at + 4].copy_from_slice(&tag.control.to_be_bytes());
            at += VlanTag::SIZE;
        }
        out[at..at + 2].copy_from_slice(&self.ether_type.0.to_be_bytes());
        at + 2
    }
}

/// A frame that holds a RoCE packet, taken apart so far that it can be written again byte for byte. Whether
/// the transport part makes sense is for [`Packet::parse_body`](crate::Packet::parse_body) to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Ethernet header.
    pub eth: EthHeader,
    /// Network headers.
    pub net: NetHeader,
    /// BTH to ICRC.
    pub body: &'a [u8],
    /// What lies beyond the length that `net` states: Ethernet padding.
    pub trailer: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Takes a frame apart.
    ///
    /// # Errors
    /// [`ParseError::NotRoce`] for a frame of another protocol, and the length errors of
    /// [`NetHeader::parse_ip`].
    pub fn parse(frame: &'a [u8]) -> Result<Self, ParseError> {
        let (eth, packet) = EthHeader::parse(frame)?;
        let (net, body) = match eth.ether_type {
            EtherType::ROCE_V1 => NetHeader::parse_grh(packet)?,
            EtherType::IPV4 | EtherType::IPV6 => NetHeader::parse_ip(packet)?,
            _ => return Err(ParseError::NotRoce),
        };
        if EtherType::of(&net) != eth.ether_type {
            return Err(ParseError::NotRoce);
        }
        let trailer = &packet[net.len() + body.len()..];
        Ok(Self { eth, net, body, trailer })
    }

    /// Length of the whole frame, without frame check sequence.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a frame is never empty")]
    pub const fn len(&self) -> usize {
        self.eth.len() + self.net.len() + self.body.len() + self.trailer.len()
    }

    /// Appends the frame to `out`, as [`Frame::parse`] found it.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.reserve(self.len());
        let mut head = [0; EthHeader::MAX_LEN + NetHeader::MAX_LEN];
        let mut at = self.eth.emit(&mut head);
        at += self.net.emit(&mut head[at..]);
        out.extend_from_slice(&head[..at]);
        out.extend_from_slice(self.body);
        out.extend_from_slice(self.trailer);
    }
}

/// Splits the first `N` bytes off.
fn take<const N: usize>(bytes: &[u8]) -> Result<([u8; N], &[u8]), ParseError> {
    bytes.split_first_chunk::<N>().map(|(head, rest)| (*head, rest)).ok_or(ParseError::TooShort)
}

/// Splits a big-endian 16-bit field off.
fn take_u16(bytes: &[u8]) -> Result<(u16, &[u8]), ParseError> {
    take::<2>(bytes).map(|(raw, rest)| (u16::from_be_bytes(raw), rest))
}

#[cfg(test)]
mod tests;
