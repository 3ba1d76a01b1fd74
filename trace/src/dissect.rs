//! Says what one captured frame is, and takes a RoCE packet apart as far as it was captured.
//!
//! Unlike a receiver, which drops whatever is not right, this keeps looking: a packet that was cut when
//! captured, has an unknown opcode or lies about its lengths still has addresses, a queue pair and a PSN.

use core::fmt;

use etherparse::{
    EtherType as ParsedEtherType, IpNumber, Ipv6HeaderSlice, LaxIpv4Slice, LaxIpv6Slice, LaxNetSlice,
    LaxSlicedPacket, TransportSlice, UdpSlice,
};
use serde::Serialize;
use wire::bth::Bth;
use wire::ext::{Aeth, Deth, Reth};
use wire::icrc::{self, ICRC_LEN};
use wire::ip::{Ipv4Header, Ipv6Header, UdpHeader};
use wire::opcode::{ExtHeader, Info};
use wire::{EtherType, NetHeader, Packet, ParseError, ROCE_V2_PORT, pretty};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use crate::capture::CapturedFrame;

/// Next header of a GRH with a transport behind it.
const GRH_NEXT_HEADER: IpNumber = IpNumber(0x1B);
/// Size of a GRH.
const GRH_LEN: usize = 40;

/// Link types, as the registry of pcap link types numbers them.
mod link {
    pub(super) const ETHERNET: u32 = 1;
    /// IP without a link header: 101 in files, 12 and 14 where a system wrote its own number.
    pub(super) const RAW: [u32; 5] = [12, 14, 101, 228, 229];
    pub(super) const LINUX_SLL: u32 = 113;
    pub(super) const ERF: u32 = 197;
    pub(super) const INFINIBAND: u32 = 247;
    pub(super) const LINUX_SLL2: u32 = 276;
}

/// What kind of frame it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum FrameKind {
    /// Native InfiniBand; counted only.
    Ib,
    /// Nothing of the others.
    Other,
    /// RoCE v1: Ethernet type 0x8915.
    Roce1,
    /// RoCE v2: UDP to port 4791.
    Roce2,
    /// TCP.
    Tcp,
}

/// Whether the ICRC of a packet is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum IcrcCheck {
    /// It is not.
    Bad,
    /// It is.
    Ok,
    /// Nobody can say: bytes it covers were not captured, or the IP header has options.
    Unchecked,
}

/// A frame, taken apart.
#[derive(Clone, Debug)]
pub struct Dissection<'a> {
    /// What it is.
    pub kind: FrameKind,
    /// The RoCE packet, of the two RoCE kinds and where its network headers are whole.
    pub roce: Option<RocePacket<'a>>,
}

/// A RoCE packet, as far as it was captured.
#[derive(Clone, Copy, Debug)]
pub struct RocePacket<'a> {
    /// Network headers. IPv4 options and IPv6 extension headers are left out.
    pub net: NetHeader,
    /// BTH to ICRC, or as much of it as was captured.
    pub body: &'a [u8],
    /// Whether `body` is all of it.
    pub complete: bool,
    /// State of its ICRC.
    pub icrc: IcrcCheck,
    /// Whether its ICRC, wrong as it is, would be right with port 4791: a mirror has rewritten the port.
    pub icrc_right_for_4791: bool,
    /// Whether `net` is all there was before the body.
    plain: bool,
}

impl<'a> Dissection<'a> {
    const fn of_kind(kind: FrameKind) -> Self {
        Self { kind, roce: None }
    }
}

impl<'a> RocePacket<'a> {
    /// Base transport header, where it was captured.
    #[must_use]
    pub fn bth(&self) -> Option<&'a Bth> {
        self.header_at(0)
    }

    /// Row of the opcode table; `None` for an unknown opcode too.
    #[must_use]
    pub fn info(&self) -> Option<&'static Info> {
        self.bth()?.opcode().info()
    }

    /// RETH, where the opcode carries one and it was captured.
    #[must_use]
    pub fn reth(&self) -> Option<&'a Reth> {
        self.ext(ExtHeader::Reth)
    }

    /// AETH, where the opcode carries one and it was captured.
    #[must_use]
    pub fn aeth(&self) -> Option<&'a Aeth> {
        self.ext(ExtHeader::Aeth)
    }

    /// DETH, where the opcode carries one and it was captured.
    #[must_use]
    pub fn deth(&self) -> Option<&'a Deth> {
        self.ext(ExtHeader::Deth)
    }

    /// Bytes of payload without pad, on the wire; 0 where the opcode is unknown or the lengths do not add up.
    #[must_use]
    pub fn payload_len(&self) -> usize {
        let (Some(bth), Some(info)) = (self.bth(), self.info()) else { return 0 };
        let len = if self.complete { self.body.len() } else { self.net.transport_len() };
        len.saturating_sub(Bth::SIZE + info.headers_len + bth.pad_count() + ICRC_LEN)
    }

    /// The payload without pad, where all of it was captured.
    #[must_use]
    pub fn payload(&self) -> Option<&'a [u8]> {
        self.body.get(Bth::SIZE + self.info()?.headers_len..)?.get(..self.payload_len())
    }

    /// The packet as a receiver would read it.
    ///
    /// # Errors
    /// Why a receiver would drop it unread.
    pub fn parse(&self) -> Result<Packet<'a>, ParseError> {
        if !self.complete {
            return Err(ParseError::TooShort);
        }
        // Rule R-WIR-6.
        if !self.plain {
            return Err(ParseError::NotRoce);
        }
        if self.net.transport_len() != self.body.len() || !lengths_agree(&self.net) {
            return Err(ParseError::LengthMismatch);
        }
        Packet::parse_body(self.net, self.body)
    }

    fn ext<T: FromBytes + KnownLayout + Immutable + Unaligned>(&self, header: ExtHeader) -> Option<&'a T> {
        self.header_at(self.info()?.offset_of(header)?)
    }

    fn header_at<T: FromBytes + KnownLayout + Immutable + Unaligned>(&self, at: usize) -> Option<&'a T> {
        T::ref_from_prefix(self.body.get(at..)?).ok().map(|(header, _)| header)
    }
}

impl fmt::Display for RocePacket<'_> {
    /// The packet's line as [`wire::pretty`] writes it, and at its end what is wrong with the capture of it:
    /// `icrc=bad`, `icrc=unchecked`, `cut`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headers_len = self.info().map_or(0, |info| Bth::SIZE + info.headers_len);
        if self.complete || self.body.len() < headers_len {
            pretty::line(&self.net, self.body).fmt(f)?;
        } else {
            // Its headers are whole: what is missing of the payload changes no more than its length.
            let mut body = self.body.to_vec();
            body.resize(self.net.transport_len().max(body.len()), 0);
            pretty::line(&self.net, &body).fmt(f)?;
        }
        if let (true, Err(error @ ParseError::LengthMismatch)) = (self.complete, self.parse()) {
            write!(f, " malformed: {error}")?;
        }
        match (self.complete, self.icrc) {
            (false, _) => f.write_str(" cut"),
            (true, IcrcCheck::Ok) => Ok(()),
            (true, IcrcCheck::Bad) if self.icrc_right_for_4791 => {
                f.write_str(" icrc=bad (right for port 4791)")
            }
            (true, IcrcCheck::Bad) => f.write_str(" icrc=bad"),
            (true, IcrcCheck::Unchecked) => f.write_str(" icrc=unchecked"),
        }
    }
}

/// Whether the lengths in the IP and in the UDP header are of one packet (rule R-WIR-7).
fn lengths_agree(net: &NetHeader) -> bool {
    let again = net.with_transport_len(net.transport_len());
    match (net, again) {
        (NetHeader::V4(ip, _), NetHeader::V4(right, _)) => ip.total_len == right.total_len,
        (NetHeader::V6(ip, _), NetHeader::V6(right, _)) => ip.payload_len == right.payload_len,
        _ => true,
    }
}

/// Says what `frame` is.
#[must_use]
pub fn dissect<'a>(frame: &CapturedFrame<'a>) -> Dissection<'a> {
    dissect_port(frame, ROCE_V2_PORT)
}

/// Says what `frame` is, where RoCE v2 is also what goes to UDP port `port`: mirrors rewrite it (field case F9).
#[must_use]
pub fn dissect_port<'a>(frame: &CapturedFrame<'a>, port: u16) -> Dissection<'a> {
    let data = frame.data;
    // A frame that ends early although nothing was cut off is not cut: it lies about its length.
    let cut = data.len() < frame.wire_len as usize;
    match frame.link_type {
        link::ETHERNET => match LaxSlicedPacket::from_ethernet(data) {
            Ok(sliced) => from_ether(&sliced, cut, port),
            Err(_) => Dissection::of_kind(FrameKind::Other),
        },
        link::LINUX_SLL => from_cooked(data, 14, 16, cut, port),
        link::LINUX_SLL2 => from_cooked(data, 0, 20, cut, port),
        link if link::RAW.contains(&link) => match LaxSlicedPacket::from_ip(data) {
            Ok(sliced) => from_net(&sliced, cut, port),
            Err(_) => Dissection::of_kind(FrameKind::Other),
        },
        link::INFINIBAND => Dissection::of_kind(FrameKind::Ib),
        link::ERF if is_erf_infiniband(data) => Dissection::of_kind(FrameKind::Ib),
        _ => Dissection::of_kind(FrameKind::Other),
    }
}

/// Linux's cooked captures: an Ethernet type somewhere in a header of fixed length.
fn from_cooked(data: &[u8], type_at: usize, header_len: usize, cut: bool, port: u16) -> Dissection<'_> {
    let ether_type = data.get(type_at..).and_then(<[u8]>::first_chunk::<2>);
    match (ether_type, data.get(header_len..)) {
        (Some(raw), Some(rest)) => {
            let ether_type = ParsedEtherType(u16::from_be_bytes(*raw));
            from_ether(&LaxSlicedPacket::from_ether_type(ether_type, rest), cut, port)
        }
        _ => Dissection::of_kind(FrameKind::Other),
    }
}

/// Whether a record of an Endace card holds InfiniBand: its type is the ninth byte, without the top bit.
fn is_erf_infiniband(data: &[u8]) -> bool {
    const TYPE_INFINIBAND: u8 = 21;
    data.get(8).is_some_and(|byte| byte & 0x7F == TYPE_INFINIBAND)
}

fn from_ether<'a>(sliced: &LaxSlicedPacket<'a>, cut: bool, port: u16) -> Dissection<'a> {
    match sliced.ether_payload() {
        Some(payload) if payload.ether_type.0 == EtherType::ROCE_V1.0 => from_grh(payload.payload, cut),
        _ => from_net(sliced, cut, port),
    }
}

fn from_net<'a>(sliced: &LaxSlicedPacket<'a>, cut: bool, port: u16) -> Dissection<'a> {
    let (payload, net) = match &sliced.net {
        Some(LaxNetSlice::Ipv4(ip)) => (ip.payload(), Network::V4(ip)),
        Some(LaxNetSlice::Ipv6(ip)) => (ip.payload(), Network::V6(ip)),
        _ => return Dissection::of_kind(FrameKind::Other),
    };
    if payload.ip_number == IpNumber::TCP {
        return Dissection::of_kind(FrameKind::Tcp);
    }
    match &sliced.transport {
        // Rule R-WIR-4 and F5: the destination port alone decides.
        Some(TransportSlice::Udp(udp)) if [ROCE_V2_PORT, port].contains(&udp.destination_port()) => {
            let roce = from_udp(&net, udp, !(cut && payload.incomplete));
            Dissection { kind: FrameKind::Roce2, roce: Some(roce) }
        }
        _ => Dissection::of_kind(FrameKind::Other),
    }
}

enum Network<'s, 'a> {
    V4(&'s LaxIpv4Slice<'a>),
    V6(&'s LaxIpv6Slice<'a>),
}

fn from_udp<'a>(ip: &Network<'_, 'a>, udp: &UdpSlice<'a>, complete: bool) -> RocePacket<'a> {
    let udp_header = UdpHeader {
        src_port: udp.source_port(),
        dst_port: udp.destination_port(),
        len: udp.length(),
        checksum: udp.checksum(),
    };
    let (net, plain) = match ip {
        Network::V4(ip) => (NetHeader::V4(ipv4_header(ip), udp_header), ip.header().slice().len() == 20),
        Network::V6(ip) => {
            let header = ip.header();
            (NetHeader::V6(ipv6_header(&header), udp_header), header.next_header() == IpNumber::UDP)
        }
    };
    RocePacket::new(net, udp.payload(), complete, plain)
}

/// What follows the Ethernet type of RoCE v1 (rule R-WIR-2).
fn from_grh(packet: &[u8], cut: bool) -> Dissection<'_> {
    let kind = FrameKind::Roce1;
    let Ok(grh) = Ipv6HeaderSlice::from_slice(packet) else { return Dissection::of_kind(kind) };
    if grh.next_header() != GRH_NEXT_HEADER {
        return Dissection::of_kind(kind);
    }
    let net = NetHeader::V1(ipv6_header(&grh));
    let captured = &packet[GRH_LEN..];
    // Rule R-WIR-5: behind the length that the GRH states comes Ethernet padding.
    let (body, complete) = match captured.get(..net.transport_len()) {
        Some(body) => (body, true),
        None => (captured, !cut),
    };
    Dissection { kind, roce: Some(RocePacket::new(net, body, complete, true)) }
}

impl<'a> RocePacket<'a> {
    /// `plain` says that `net` is all there was before `body`.
    fn new(net: NetHeader, body: &'a [u8], complete: bool, plain: bool) -> Self {
        let icrc = match (complete && plain, body.len() >= Bth::SIZE + ICRC_LEN) {
            (false, _) => IcrcCheck::Unchecked,
            (true, true) if icrc::verify(&net, body) => IcrcCheck::Ok,
            (true, _) => IcrcCheck::Bad,
        };
        let icrc_right_for_4791 = icrc == IcrcCheck::Bad
            && body.len() >= Bth::SIZE + ICRC_LEN
            && for_roce_port(net).is_some_and(|net| icrc::verify(&net, body));
        Self { net, body, complete, icrc, icrc_right_for_4791, plain }
    }
}

/// The header as it was before a mirror rewrote the port; `None` where the port is that of RoCE v2.
fn for_roce_port(mut net: NetHeader) -> Option<NetHeader> {
    match &mut net {
        NetHeader::V4(_, udp) | NetHeader::V6(_, udp) if udp.dst_port != ROCE_V2_PORT => {
            udp.dst_port = ROCE_V2_PORT;
            Some(net)
        }
        _ => None,
    }
}

fn ipv4_header(ip: &LaxIpv4Slice<'_>) -> Ipv4Header {
    let header = ip.header();
    let raw = header.slice();
    Ipv4Header {
        tos: raw[1],
        total_len: header.total_len(),
        id: header.identification(),
        flags: u16::from_be_bytes([raw[6], raw[7]]),
        ttl: header.ttl(),
        checksum: header.header_checksum(),
        src: header.source_addr(),
        dst: header.destination_addr(),
    }
}

fn ipv6_header(header: &Ipv6HeaderSlice<'_>) -> Ipv6Header {
    Ipv6Header {
        traffic_class: header.traffic_class(),
        flow_label: header.flow_label().value(),
        payload_len: header.payload_length(),
        hop_limit: header.hop_limit(),
        src: header.source_addr(),
        dst: header.destination_addr(),
    }
}

#[cfg(test)]
#[path = "dissect/tests.rs"]
mod tests;
