//! Network headers of a RoCE packet: IPv4 or IPv6 with UDP (RoCE v2), or a GRH (RoCE v1).

use core::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::num::Gid;
use crate::packet::ParseError;

/// UDP destination port of RoCE v2. It alone decides; every source port is legal (rule R-WIR-4).
pub const ROCE_V2_PORT: u16 = 4791;

/// IPv4 flags word with only "don't fragment" set.
pub const DONT_FRAGMENT: u16 = 0x4000;

const UDP: u8 = 17;
const GRH_NEXT_HEADER: u8 = 0x1B;
const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
const UDP_LEN: usize = 8;

/// IPv4 header without options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4Header {
    /// Type of service: DSCP and, in the low two bits, ECN.
    pub tos: u8,
    /// Bytes of the whole IP packet.
    pub total_len: u16,
    /// Identification. Covered by the ICRC.
    pub id: u16,
    /// Flags (top three bits) and fragment offset. Covered by the ICRC.
    pub flags: u16,
    /// Time to live.
    pub ttl: u8,
    /// Header checksum.
    pub checksum: u16,
    /// Sender.
    pub src: Ipv4Addr,
    /// Receiver.
    pub dst: Ipv4Addr,
}

/// IPv6 header, or the GRH of RoCE v1, which has the same layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6Header {
    /// Traffic class: DSCP and, in the low two bits, ECN.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Bytes after this header.
    pub payload_len: u16,
    /// Hop limit.
    pub hop_limit: u8,
    /// Sender.
    pub src: Ipv6Addr,
    /// Receiver.
    pub dst: Ipv6Addr,
}

/// UDP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpHeader {
    /// Source port: entropy only.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Bytes of header and payload.
    pub len: u16,
    /// Checksum; RoCE sends 0.
    pub checksum: u16,
}

/// Everything before the BTH of one packet, from the IP header on (rule R-WIR-1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetHeader {
    /// RoCE v2 over IPv4.
    V4(Ipv4Header, UdpHeader),
    /// RoCE v2 over IPv6.
    V6(Ipv6Header, UdpHeader),
    /// RoCE v1: the GRH.
    V1(Ipv6Header),
}

/// Congestion notification bits of an IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ecn {
    /// 00: the sender takes no part.
    NotEct,
    /// 01: ECT(1).
    Ect1,
    /// 10: ECT(0).
    Ect0,
    /// 11: congestion experienced.
    Ce,
}

impl Ecn {
    /// The low two bits of a TOS byte.
    #[must_use]
    pub const fn from_tos(tos: u8) -> Self {
        match tos & 3 {
            0 => Self::NotEct,
            1 => Self::Ect1,
            2 => Self::Ect0,
            _ => Self::Ce,
        }
    }
}

impl NetHeader {
    /// Length of the longest form: IPv6 and UDP.
    pub const MAX_LEN: usize = IPV6_LEN + UDP_LEN;

    /// A RoCE v2 header between two addresses of one family: DF, ID 0, UDP checksum 0 (rule R-WIR-8), flow label 0,
    /// and the lengths of a packet that ends with it. `None` where one is IPv4 and the other IPv6.
    #[must_use]
    pub fn v2(src: IpAddr, dst: IpAddr, src_port: u16, traffic_class: u8, hop_limit: u8) -> Option<Self> {
        let udp = UdpHeader { src_port, dst_port: ROCE_V2_PORT, len: 0, checksum: 0 };
        let header = match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let ip = Ipv4Header {
                    tos: traffic_class,
                    total_len: 0,
                    id: 0,
                    flags: DONT_FRAGMENT,
                    ttl: hop_limit,
                    checksum: 0,
                    src,
                    dst,
                };
                Self::V4(ip, udp)
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let ip = Ipv6Header { traffic_class, flow_label: 0, payload_len: 0, hop_limit, src, dst };
                Self::V6(ip, udp)
            }
            _ => return None,
        };
        Some(header.with_transport_len(0))
    }

    /// Reads the headers at the start of `packet`, an IP packet; returns them with the bytes from BTH to
    /// ICRC. Bytes beyond the length that the header states (Ethernet padding) are cut off (rule R-WIR-5).
    ///
    /// # Errors
    /// [`ParseError::NotRoce`] for what is no RoCE v2 packet, and the length errors.
    pub fn parse_ip(packet: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        match packet.first().ok_or(ParseError::TooShort)? >> 4 {
            4 => parse_v4(packet),
            6 => {
                let ip = parse_v6(packet, UDP)?;
                is_roce_port(packet, IPV6_LEN)?;
                let (udp, body) = parse_udp(v6_payload(packet, &ip)?)?;
                Ok((Self::V6(ip, udp), body))
            }
            _ => Err(ParseError::NotRoce),
        }
    }

    /// Reads the GRH at the start of `packet`, what follows the RoCE v1 Ethernet type (rule R-WIR-2).
    ///
    /// # Errors
    /// As [`NetHeader::parse_ip`].
    pub fn parse_grh(packet: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        if packet.first().ok_or(ParseError::TooShort)? >> 4 != 6 {
            return Err(ParseError::NotRoce);
        }
        let grh = parse_v6(packet, GRH_NEXT_HEADER)?;
        Ok((Self::V1(grh), v6_payload(packet, &grh)?))
    }

    /// Length of the headers themselves.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a header is never empty")]
    pub const fn len(&self) -> usize {
        match self {
            Self::V4(..) => IPV4_LEN + UDP_LEN,
            Self::V6(..) => IPV6_LEN + UDP_LEN,
            Self::V1(_) => IPV6_LEN,
        }
    }

    /// Bytes from BTH to ICRC, as the lengths in the headers say.
    #[must_use]
    pub const fn transport_len(&self) -> usize {
        match self {
            Self::V4(_, udp) | Self::V6(_, udp) => (udp.len as usize).saturating_sub(UDP_LEN),
            Self::V1(grh) => grh.payload_len as usize,
        }
    }

    /// The same header for `len` bytes from BTH to ICRC: lengths and the IPv4 checksum are set.
    #[must_use]
    pub fn with_transport_len(mut self, len: usize) -> Self {
        self.set_transport_len(len);
        self.set_checksum();
        self
    }

    /// The same header with this IPv4 identification (no effect on others).
    #[must_use]
    pub fn with_id(mut self, id: u16) -> Self {
        self.set_id(id);
        self.set_checksum();
        self
    }

    /// Sets the lengths for `len` bytes from BTH to ICRC; a checksum does not follow.
    #[expect(clippy::cast_possible_truncation, reason = "a RoCE packet is at most 4 KiB and its headers")]
    pub(crate) const fn set_transport_len(&mut self, len: usize) {
        match self {
            Self::V4(ip, udp) => {
                udp.len = (len + UDP_LEN) as u16;
                ip.total_len = (len + UDP_LEN + IPV4_LEN) as u16;
            }
            Self::V6(ip, udp) => {
                udp.len = (len + UDP_LEN) as u16;
                ip.payload_len = udp.len;
            }
            Self::V1(grh) => grh.payload_len = len as u16,
        }
    }

    /// Sets the IPv4 identification; the checksum does not follow.
    pub(crate) const fn set_id(&mut self, id: u16) {
        if let Self::V4(ip, _) = self {
            ip.id = id;
        }
    }

    /// Makes the IPv4 checksum right.
    pub(crate) fn set_checksum(&mut self) {
        if let Self::V4(ip, _) = self {
            ip.checksum = ipv4_checksum(ip);
        }
    }

    /// The same header with this TOS or traffic class.
    #[must_use]
    pub fn with_traffic_class(mut self, class: u8) -> Self {
        match &mut self {
            Self::V4(ip, _) => ip.tos = class,
            Self::V6(ip, _) | Self::V1(ip) => ip.traffic_class = class,
        }
        self.set_checksum();
        self
    }

    /// Sender's address.
    #[must_use]
    pub const fn src(&self) -> IpAddr {
        match self {
            Self::V4(ip, _) => IpAddr::V4(ip.src),
            Self::V6(ip, _) | Self::V1(ip) => IpAddr::V6(ip.src),
        }
    }

    /// Receiver's address.
    #[must_use]
    pub const fn dst(&self) -> IpAddr {
        match self {
            Self::V4(ip, _) => IpAddr::V4(ip.dst),
            Self::V6(ip, _) | Self::V1(ip) => IpAddr::V6(ip.dst),
        }
    }

    /// Sender's GID.
    #[must_use]
    pub fn src_gid(&self) -> Gid {
        self.src().into()
    }

    /// Receiver's GID.
    #[must_use]
    pub fn dst_gid(&self) -> Gid {
        self.dst().into()
    }

    /// TOS or traffic class.
    #[must_use]
    pub const fn traffic_class(&self) -> u8 {
        match self {
            Self::V4(ip, _) => ip.tos,
            Self::V6(ip, _) | Self::V1(ip) => ip.traffic_class,
        }
    }

    /// ECN bits.
    #[must_use]
    pub const fn ecn(&self) -> Ecn {
        Ecn::from_tos(self.traffic_class())
    }

    /// UDP header, where there is one.
    #[must_use]
    pub const fn udp(&self) -> Option<&UdpHeader> {
        match self {
            Self::V4(_, udp) | Self::V6(_, udp) => Some(udp),
            Self::V1(_) => None,
        }
    }

    /// Writes the headers to the start of `out` and returns how many bytes they took.
    ///
    /// # Panics
    /// Where `out` is shorter than [`NetHeader::len`].
    pub fn emit(&self, out: &mut [u8]) -> usize {
        match self {
            Self::V4(ip, udp) => {
                out[..IPV4_LEN].copy_from_slice(&emit_v4(ip));
                out[IPV4_LEN..IPV4_LEN + UDP_LEN].copy_from_slice(&emit_udp(udp));
            }
            Self::V6(ip, udp) => {
                out[..IPV6_LEN].copy_from_slice(&emit_v6(ip, UDP));
                out[IPV6_LEN..IPV6_LEN + UDP_LEN].copy_from_slice(&emit_udp(udp));
            }
            Self::V1(grh) => out[..IPV6_LEN].copy_from_slice(&emit_v6(grh, GRH_NEXT_HEADER)),
        }
        self.len()
    }
}

impl fmt::Display for NetHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} > {}", self.src(), self.dst())
    }
}

fn be16(raw: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([raw[at], raw[at + 1]])
}

fn octets<const N: usize>(raw: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&raw[at..at + N]);
    out
}

fn parse_v4(packet: &[u8]) -> Result<(NetHeader, &[u8]), ParseError> {
    if packet.len() < IPV4_LEN {
        return Err(ParseError::TooShort);
    }
    let flags = be16(packet, 6);
    // Rule R-WIR-6: options and fragments never occur, and the ICRC does not say how it would cover them.
    if packet[0] != 0x45 || packet[9] != UDP || flags & 0x3FFF != 0 {
        return Err(ParseError::NotRoce);
    }
    is_roce_port(packet, IPV4_LEN)?;
    let ip = Ipv4Header {
        tos: packet[1],
        total_len: be16(packet, 2),
        id: be16(packet, 4),
        flags,
        ttl: packet[8],
        checksum: be16(packet, 10),
        src: octets::<4>(packet, 12).into(),
        dst: octets::<4>(packet, 16).into(),
    };
    let whole = packet.get(..usize::from(ip.total_len)).ok_or(ParseError::TooShort)?;
    let (udp, body) = parse_udp(whole.get(IPV4_LEN..).ok_or(ParseError::LengthMismatch)?)?;
    Ok((NetHeader::V4(ip, udp), body))
}

fn parse_v6(packet: &[u8], next_header: u8) -> Result<Ipv6Header, ParseError> {
    if packet.len() < IPV6_LEN {
        return Err(ParseError::TooShort);
    }
    if packet[6] != next_header {
        return Err(ParseError::NotRoce);
    }
    let [first, second, ..] = octets::<4>(packet, 0);
    let word = u32::from_be_bytes(octets(packet, 0));
    Ok(Ipv6Header {
        traffic_class: first << 4 | second >> 4,
        flow_label: word & 0x000F_FFFF,
        payload_len: be16(packet, 4),
        hop_limit: packet[7],
        src: octets::<16>(packet, 8).into(),
        dst: octets::<16>(packet, 24).into(),
    })
}

/// What the length field of `ip`, the header at the start of `packet`, says follows it.
fn v6_payload<'a>(packet: &'a [u8], ip: &Ipv6Header) -> Result<&'a [u8], ParseError> {
    packet.get(IPV6_LEN..IPV6_LEN + usize::from(ip.payload_len)).ok_or(ParseError::TooShort)
}

/// Fails where the UDP header at `at` is for another port, so that lengths are only ever blamed on packets
/// that are RoCE's.
fn is_roce_port(packet: &[u8], at: usize) -> Result<(), ParseError> {
    match packet.get(at + 2..at + 4) {
        None => Err(ParseError::TooShort),
        Some(port) if be16(port, 0) == ROCE_V2_PORT => Ok(()),
        Some(_) => Err(ParseError::NotRoce),
    }
}

fn parse_udp(datagram: &[u8]) -> Result<(UdpHeader, &[u8]), ParseError> {
    if datagram.len() < UDP_LEN {
        return Err(ParseError::TooShort);
    }
    let udp = UdpHeader {
        src_port: be16(datagram, 0),
        dst_port: be16(datagram, 2),
        len: be16(datagram, 4),
        checksum: be16(datagram, 6),
    };
    // Rule R-WIR-7: the ICRC covers both lengths, so nobody could say which one is meant.
    if usize::from(udp.len) != datagram.len() {
        return Err(ParseError::LengthMismatch);
    }
    Ok((udp, &datagram[UDP_LEN..]))
}

fn emit_v4(ip: &Ipv4Header) -> [u8; IPV4_LEN] {
    let mut out = [0; IPV4_LEN];
    out[0] = 0x45;
    out[1] = ip.tos;
    out[2..4].copy_from_slice(&ip.total_len.to_be_bytes());
    out[4..6].copy_from_slice(&ip.id.to_be_bytes());
    out[6..8].copy_from_slice(&ip.flags.to_be_bytes());
    out[8] = ip.ttl;
    out[9] = UDP;
    out[10..12].copy_from_slice(&ip.checksum.to_be_bytes());
    out[12..16].copy_from_slice(&ip.src.octets());
    out[16..20].copy_from_slice(&ip.dst.octets());
    out
}

fn emit_v6(ip: &Ipv6Header, next_header: u8) -> [u8; IPV6_LEN] {
    let mut out = [0; IPV6_LEN];
    let word = 6 << 28 | u32::from(ip.traffic_class) << 20 | ip.flow_label & 0x000F_FFFF;
    out[..4].copy_from_slice(&word.to_be_bytes());
    out[4..6].copy_from_slice(&ip.payload_len.to_be_bytes());
    out[6] = next_header;
    out[7] = ip.hop_limit;
    out[8..24].copy_from_slice(&ip.src.octets());
    out[24..].copy_from_slice(&ip.dst.octets());
    out
}

fn emit_udp(udp: &UdpHeader) -> [u8; UDP_LEN] {
    let mut out = [0; UDP_LEN];
    out[..2].copy_from_slice(&udp.src_port.to_be_bytes());
    out[2..4].copy_from_slice(&udp.dst_port.to_be_bytes());
    out[4..6].copy_from_slice(&udp.len.to_be_bytes());
    out[6..].copy_from_slice(&udp.checksum.to_be_bytes());
    out
}

/// What the IP header at the start of `packet` says of congestion, whatever it carries; `None` where there is none.
#[must_use]
pub fn ecn(packet: &[u8]) -> Option<Ecn> {
    match packet.first()? >> 4 {
        4 if packet.len() >= IPV4_LEN => Some(Ecn::from_tos(packet[1])),
        6 if packet.len() >= IPV6_LEN => Some(Ecn::from_tos(packet[1] >> 4)),
        _ => None,
    }
}

/// Marks the IP header at the start of `packet` with congestion experienced, whatever it carries; where there is none
/// nothing happens. An IPv4 checksum that was right is right, and one that was wrong stays so. The ICRC covers no ECN
/// bits.
pub fn set_ce(packet: &mut [u8]) {
    match ecn(packet) {
        None | Some(Ecn::Ce) => {}
        Some(_) if packet[0] >> 4 == 6 => packet[1] |= 0x30,
        Some(_) => {
            let before = be16(packet, 0);
            packet[1] |= 3;
            // The checksum of a header of which one word has changed follows from the old one.
            let mut sum = u32::from(!be16(packet, 10)) + u32::from(!before) + u32::from(be16(packet, 0));
            sum = (sum & 0xFFFF) + (sum >> 16);
            sum = (sum & 0xFFFF) + (sum >> 16);
            #[expect(clippy::cast_possible_truncation, reason = "carried around twice, it has 16 bits")]
            packet[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
        }
    }
}

/// The right header checksum for `ip`, whatever its checksum field holds.
#[must_use]
#[expect(clippy::cast_possible_truncation, reason = "the loop ends when the sum has 16 bits")]
pub fn ipv4_checksum(ip: &Ipv4Header) -> u16 {
    let raw = emit_v4(&Ipv4Header { checksum: 0, ..*ip });
    let mut sum: u32 = raw.chunks_exact(2).map(|pair| u32::from(be16(pair, 0))).sum();
    while sum > 0xFFFF {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    !(sum as u16)
}

/// UDP source port of a connection (rule R-ADR-6): the flow label or, where that is 0, one made of the two
/// QPNs, folded into 0xC000 to 0xFFFF. Both ends of a connection get the same.
#[must_use]
#[expect(clippy::cast_possible_truncation, reason = "the port is made of 14 bits")]
pub fn source_port(flow_label: u32, local_qpn: u32, remote_qpn: u32) -> u16 {
    let mut label = flow_label & 0x000F_FFFF;
    if label == 0 {
        let mut v = u64::from(local_qpn) * u64::from(remote_qpn);
        v ^= v >> 20;
        v ^= v >> 40;
        label = (v & 0x000F_FFFF) as u32;
    }
    0xC000 | ((label & 0x3FFF) ^ (label >> 14)) as u16
}

/// UDP source port as rdma_rxe makes it of the own QPN alone (field case F6): the top 14 bits of the number's
/// multiplicative hash, above 0xC000. Older versions use it for all queue pairs, newer ones for datagrams.
#[must_use]
pub const fn source_port_of_qpn(qpn: u32) -> u16 {
    0xC000 + (qpn.wrapping_mul(0x61C8_8647) >> 18) as u16
}

#[cfg(test)]
mod tests;
