use etherparse::{IpNumber, NetSlice, SlicedPacket, TransportSlice};
use proptest::prelude::*;

use super::*;
use crate::repr::strategy::nets;
use crate::vectors;

const SRC: [u8; 4] = [10, 0, 0, 1];
const DST: [u8; 4] = [10, 0, 0, 2];

fn v4() -> NetHeader {
    NetHeader::v2(SRC.into(), DST.into(), 0xC123, 0x02, 64).unwrap()
}

fn v6() -> NetHeader {
    let address = |last| IpAddr::from(Ipv6Addr::new(0x2001, 0xDB8, 0, 0, 0, 0, 0, last));
    NetHeader::v2(address(1), address(2), 0xC123, 0x02, 64).unwrap()
}

/// `net` with `body` behind it, lengths set.
fn packet(net: NetHeader, body: &[u8]) -> Vec<u8> {
    let net = net.with_transport_len(body.len());
    let mut out = vec![0; net.len()];
    assert_eq!(net.emit(&mut out), net.len());
    out.extend_from_slice(body);
    out
}

#[test]
fn a_new_header_has_the_fields_roce_sends() {
    // Rules R-WIR-6, R-WIR-8 and R-ADR-12.
    let NetHeader::V4(ip, udp) = v4().with_transport_len(32) else { panic!("IPv4") };
    assert_eq!((ip.tos, ip.id, ip.flags, ip.ttl), (2, 0, DONT_FRAGMENT, 64));
    assert_eq!((ip.total_len, udp.len), (60, 40));
    assert_eq!((udp.src_port, udp.dst_port, udp.checksum), (0xC123, 4791, 0));
    let NetHeader::V6(ip, udp) = v6().with_transport_len(32) else { panic!("IPv6") };
    assert_eq!((ip.traffic_class, ip.flow_label, ip.hop_limit), (2, 0, 64));
    assert_eq!((ip.payload_len, udp.len), (40, 40));
    assert_eq!(NetHeader::v2(v4().src(), v6().dst(), 0, 0, 64), None);
}

#[test]
fn source_ports() {
    // Rules R-ADR-6 and F6: flow label, the two QPNs, port.
    let list = [
        (0, 0x11, 0x12, 0xC132),
        (0, 0x01_2345, 0x0A_BCDE, 0xC2B9),
        (0, 0xFF_FFFF, 0xFF_FFFE, 0xFF12),
        (0x1_2345, 0, 0, 0xE341),
        (0, 0x20, 0x21, 50208),
        (0, 0x1B, 0x1D, 49935),
        (0, 0x1C, 0x1D, 49964),
        (0x7_0BBD, 1, 2, 52129),
        (0xFF3B, 1, 2, 65336),
        // Bits beyond the label do not count.
        (0x10_0000, 0x11, 0x12, 0xC132),
    ];
    for (label, local, remote, port) in list {
        assert_eq!(source_port(label, local, remote), port, "{label:#x} {local:#x} {remote:#x}");
        assert_eq!(source_port(label, remote, local), port, "the other way");
    }
}

#[test]
fn f6_source_ports_of_the_own_qpn_alone() {
    for (qpn, port) in [(1, 55_410), (0x11, 57_236), (0x11, 0xDF94)] {
        assert_eq!(source_port_of_qpn(qpn), port, "{qpn:#x}");
    }
}

#[test]
fn any_source_port_is_roce() {
    // Rules R-WIR-4 and F5.
    for port in [0, 69, 72, 4791, 65535] {
        for net in [v4(), v6()] {
            let net = match net {
                NetHeader::V4(ip, udp) => NetHeader::V4(ip, UdpHeader { src_port: port, ..udp }),
                NetHeader::V6(ip, udp) => NetHeader::V6(ip, UdpHeader { src_port: port, ..udp }),
                NetHeader::V1(_) => panic!("RoCE v2"),
            };
            let bytes = packet(net, &[1, 2, 3, 4]);
            let (parsed, body) = NetHeader::parse_ip(&bytes).unwrap();
            assert_eq!(parsed.udp().unwrap().src_port, port);
            assert_eq!(body, [1, 2, 3, 4]);
        }
    }
}

#[test]
fn other_packets_are_no_roce() {
    let changed = |net, changes: &[(usize, u8)]| {
        let mut bytes = packet(net, &[0; 16]);
        for (at, value) in changes {
            bytes[*at] = *value;
        }
        NetHeader::parse_ip(&bytes).map(|(net, _)| net)
    };
    let no_roce = Err(ParseError::NotRoce);
    assert_eq!(changed(v4(), &[(0, 0x46)]), no_roce, "options");
    assert_eq!(changed(v4(), &[(0, 0x55)]), no_roce, "version 5");
    assert_eq!(changed(v4(), &[(6, 0x60)]), no_roce, "more fragments");
    assert_eq!(changed(v4(), &[(7, 0x01)]), no_roce, "fragment offset");
    assert_eq!(changed(v4(), &[(9, 6)]), no_roce, "TCP");
    assert_eq!(changed(v4(), &[(23, 0xB8)]), no_roce, "another port");
    assert_eq!(changed(v6(), &[(6, 0)]), no_roce, "IPv6 extension header");
    assert_eq!(changed(v6(), &[(6, 0x1B)]), no_roce, "a GRH is only behind its Ethernet type");
    assert_eq!(changed(v6(), &[(43, 0xB8)]), no_roce, "another port");
    // Not even where a length is wrong as well.
    assert_eq!(changed(v4(), &[(23, 0xB8), (2, 0xFF)]), no_roce);
    assert_eq!(changed(v6(), &[(43, 0xB8), (4, 0xFF)]), no_roce);
    assert_eq!(changed(v6(), &[(6, 6), (4, 0xFF)]), no_roce);

    let grh = vectors::bytes(vectors::F);
    assert!(NetHeader::parse_grh(&grh[14..]).is_ok());
    assert_eq!(NetHeader::parse_grh(&packet(v6(), &[0; 16])), Err(ParseError::NotRoce));
    assert_eq!(NetHeader::parse_grh(&packet(v4(), &[0; 16])), Err(ParseError::NotRoce));
}

#[test]
fn wrong_lengths_are_malformed() {
    // Rule R-WIR-7.
    let with = |net, at: usize, value: u16| {
        let mut bytes = packet(net, &[0; 16]);
        bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
        NetHeader::parse_ip(&bytes).map(|(_, body)| body.len())
    };
    // IPv4 total length: 44; UDP length: 24; IPv6 payload length: 24.
    assert_eq!(with(v4(), 2, 44), Ok(16));
    assert_eq!(with(v4(), 2, 45), Err(ParseError::TooShort));
    assert_eq!(with(v4(), 2, 43), Err(ParseError::LengthMismatch));
    assert_eq!(with(v4(), 2, 27), Err(ParseError::TooShort));
    assert_eq!(with(v4(), 2, 19), Err(ParseError::LengthMismatch));
    assert_eq!(with(v4(), 2, 0), Err(ParseError::LengthMismatch));
    assert_eq!(with(v4(), 24, 25), Err(ParseError::LengthMismatch));
    assert_eq!(with(v4(), 24, 7), Err(ParseError::LengthMismatch));
    assert_eq!(with(v6(), 4, 24), Ok(16));
    assert_eq!(with(v6(), 4, 25), Err(ParseError::TooShort));
    assert_eq!(with(v6(), 4, 23), Err(ParseError::LengthMismatch));
    assert_eq!(with(v6(), 4, 0), Err(ParseError::TooShort));
    assert_eq!(with(v6(), 44, 0), Err(ParseError::LengthMismatch));
    assert_eq!(NetHeader::parse_ip(&[]), Err(ParseError::TooShort));
    assert_eq!(NetHeader::parse_grh(&[]), Err(ParseError::TooShort));
}

#[test]
fn ecn_bits() {
    let list = [(0x00, Ecn::NotEct), (0x01, Ecn::Ect1), (0xC2, Ecn::Ect0), (0x6B, Ecn::Ce)];
    for (class, ecn) in list {
        for net in [v4(), v6()] {
            let net = net.with_traffic_class(class);
            assert_eq!((net.traffic_class(), net.ecn()), (class, ecn));
        }
    }
}

#[test]
fn addresses_as_gids() {
    assert_eq!(v4().src_gid(), Gid::from(Ipv4Addr::from(SRC)));
    assert_eq!(v4().dst_gid(), Gid::from(Ipv4Addr::from(DST)));
    assert_eq!(v6().dst_gid().to_string(), "2001:db8::2");
    assert_eq!(v4().to_string(), "10.0.0.1 > 10.0.0.2");
}

/// The header checksum that etherparse computes for the IPv4 header at the start of `bytes`.
fn checksum_by_etherparse(bytes: &[u8]) -> u16 {
    etherparse::Ipv4Header::from_slice(bytes).unwrap().0.calc_header_checksum()
}

proptest! {
    #[test]
    fn etherparse_reads_what_we_write(net in nets(), body in prop::collection::vec(any::<u8>(), 0..64)) {
        let bytes = packet(net, &body);
        let net = net.with_transport_len(body.len());
        match &net {
            NetHeader::V4(ip, udp) => {
                let sliced = SlicedPacket::from_ip(&bytes).unwrap();
                let Some(NetSlice::Ipv4(theirs)) = &sliced.net else { panic!("IPv4") };
                let header = theirs.header();
                prop_assert_eq!(header.dcp().value() << 2 | header.ecn().value(), ip.tos);
                prop_assert_eq!(header.total_len(), ip.total_len);
                prop_assert_eq!(header.identification(), ip.id);
                prop_assert_eq!(header.dont_fragment(), ip.flags & DONT_FRAGMENT != 0);
                prop_assert_eq!(header.ttl(), ip.ttl);
                prop_assert_eq!(header.protocol(), IpNumber::UDP);
                prop_assert_eq!((header.source_addr(), header.destination_addr()), (ip.src, ip.dst));
                if ip.flags & 0x8000 == 0 {
                    // etherparse has no place for the reserved bit, so its sum is another with it.
                    prop_assert_eq!(header.header_checksum(), checksum_by_etherparse(&bytes));
                }
                udp_agrees(&sliced, udp, &body)?;
            }
            NetHeader::V6(ip, udp) => {
                let sliced = SlicedPacket::from_ip(&bytes).unwrap();
                let Some(NetSlice::Ipv6(theirs)) = &sliced.net else { panic!("IPv6") };
                ipv6_agrees(&theirs.header().to_header(), ip, IpNumber::UDP)?;
                udp_agrees(&sliced, udp, &body)?;
            }
            NetHeader::V1(grh) => {
                let (theirs, rest) = etherparse::Ipv6Header::from_slice(&bytes).unwrap();
                ipv6_agrees(&theirs, grh, IpNumber(0x1B))?;
                prop_assert_eq!(rest, &body);
            }
        }
    }

    #[test]
    fn what_is_written_reads_back(net in nets(), body in prop::collection::vec(any::<u8>(), 0..64)) {
        let net = net.with_transport_len(body.len());
        let bytes = packet(net, &body);
        let back = match net {
            NetHeader::V1(_) => NetHeader::parse_grh(&bytes),
            _ => NetHeader::parse_ip(&bytes),
        };
        prop_assert_eq!(back, Ok((net, body.as_slice())));
        prop_assert_eq!(net.transport_len(), body.len());
    }

    #[test]
    fn setters_keep_the_checksum_right(net in nets(), id: u16, class: u8) {
        let changed = net.with_transport_len(20).with_id(id).with_traffic_class(class);
        if let NetHeader::V4(ip, _) = changed {
            prop_assert_eq!(ip.id, id);
            // The sum of a right header over its own checksum is 0.
            let mut raw = [0; 28];
            changed.emit(&mut raw);
            let sum: u32 = raw[..20].chunks(2).map(|pair| u32::from(be16(pair, 0))).sum();
            prop_assert_eq!((sum & 0xFFFF) + (sum >> 16), 0xFFFF);
        }
    }
}

fn udp_agrees(sliced: &SlicedPacket<'_>, udp: &UdpHeader, body: &[u8]) -> Result<(), TestCaseError> {
    let Some(TransportSlice::Udp(theirs)) = &sliced.transport else { panic!("UDP") };
    prop_assert_eq!((theirs.source_port(), theirs.destination_port()), (udp.src_port, ROCE_V2_PORT));
    prop_assert_eq!((theirs.length(), theirs.checksum()), (udp.len, udp.checksum));
    prop_assert_eq!(theirs.payload(), body);
    Ok(())
}

fn ipv6_agrees(
    theirs: &etherparse::Ipv6Header,
    ours: &Ipv6Header,
    next: IpNumber,
) -> Result<(), TestCaseError> {
    prop_assert_eq!(theirs.traffic_class, ours.traffic_class);
    prop_assert_eq!(theirs.flow_label.value(), ours.flow_label);
    prop_assert_eq!(theirs.payload_length, ours.payload_len);
    prop_assert_eq!(theirs.next_header, next);
    prop_assert_eq!(theirs.hop_limit, ours.hop_limit);
    prop_assert_eq!((theirs.source_addr(), theirs.destination_addr()), (ours.src, ours.dst));
    Ok(())
}

proptest! {
    #[test]
    fn marking_bytes_is_marking_the_header(net in nets(), id: u16, body in prop::collection::vec(any::<u8>(), 16..64)) {
        prop_assume!(!matches!(net, NetHeader::V1(_)));
        let net = net.with_id(id);
        let mut bytes = packet(net, &body);
        prop_assert_eq!(ecn(&bytes), Some(net.ecn()));
        set_ce(&mut bytes);
        // With the checksum, and nothing else.
        prop_assert_eq!(bytes, packet(net.with_traffic_class(net.traffic_class() | 3), &body));
    }

    #[test]
    fn marking_takes_any_bytes_and_mends_no_checksum(mut bytes in prop::collection::vec(any::<u8>(), 0..48)) {
        let (before, was) = (bytes.clone(), ecn(&bytes));
        set_ce(&mut bytes);
        prop_assert_eq!(ecn(&bytes), was.map(|_| Ecn::Ce));
        let changed: Vec<usize> = (0..bytes.len()).filter(|i| bytes[*i] != before[*i]).collect();
        prop_assert!(changed.iter().all(|i| [1, 10, 11].contains(i)));
        if before.first().is_some_and(|first| first >> 4 == 4) && was.is_some() {
            let sum = |bytes: &[u8]| bytes[..20].chunks(2).map(|pair| u64::from(be16(pair, 0))).sum::<u64>() % 0xFFFF;
            prop_assert_eq!(sum(&bytes), sum(&before));
        }
    }
}
