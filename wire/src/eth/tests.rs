use std::net::Ipv4Addr;

use etherparse::{LinkHeader, PacketBuilder, PacketHeaders, VlanHeader};
use proptest::prelude::*;

use super::*;
use crate::vectors;

fn reemit(frame: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    Frame::parse(frame).unwrap().emit(&mut out);
    out
}

/// `frame` with these VLAN tags (protocol, control) put in, the outer one first.
fn tagged(frame: &[u8], tags: &[(u16, u16)]) -> Vec<u8> {
    let mut out = frame[..12].to_vec();
    for (protocol, control) in tags {
        out.extend_from_slice(&protocol.to_be_bytes());
        out.extend_from_slice(&control.to_be_bytes());
    }
    out.extend_from_slice(&frame[12..]);
    out
}

#[test]
fn every_vector_comes_back_byte_for_byte() {
    for (name, hex) in vectors::ALL {
        let bytes = vectors::bytes(hex);
        assert_eq!(reemit(&bytes), bytes, "{name}");
    }
}

#[test]
fn padding_beyond_the_ip_length_is_kept_apart() {
    // Rule R-WIR-5. A SEND_ONLY of no bytes is 58 bytes long and padded to 60: the padding is not the ICRC.
    let mut bytes = vectors::bytes(vectors::C);
    let length = bytes.len();
    bytes.extend_from_slice(&[0xEE; 3]);
    let frame = Frame::parse(&bytes).unwrap();
    assert_eq!(frame.trailer, [0xEE; 3]);
    assert_eq!(frame.body, &bytes[42..length]);
    assert_eq!(frame.len(), bytes.len());
    assert_eq!(reemit(&bytes), bytes);
}

#[test]
fn up_to_two_vlan_tags_are_read() {
    // Rule R-WIR-3.
    let bare = vectors::bytes(vectors::A);
    let one = tagged(&bare, &[(0x8100, 0x6064)]);
    let two = tagged(&bare, &[(0x88A8, 0x1001), (0x8100, 0x6064)]);

    let inner = VlanTag::new(3, 100);
    assert_eq!(Frame::parse(&one).unwrap().eth.vlan, VlanTags::One(inner));
    let frame = Frame::parse(&two).unwrap();
    let VlanTags::Two(outer, second) = frame.eth.vlan else { panic!("two tags") };
    assert_eq!(outer.protocol, EtherType::SERVICE_VLAN);
    assert_eq!((outer.priority(), outer.drop_eligible(), outer.id()), (0, true, 1));
    assert_eq!(second, inner);
    assert_eq!(frame.eth.len(), EthHeader::MAX_LEN);
    assert_eq!(frame.eth.vlan.iter().collect::<Vec<_>>(), [outer, inner]);

    assert_eq!(reemit(&one), one);
    assert_eq!(reemit(&two), two);
}

#[test]
fn a_third_tag_is_no_roce() {
    let tag = (0x8100, 1);
    let bytes = tagged(&vectors::bytes(vectors::A), &[tag, tag, tag]);
    assert_eq!(Frame::parse(&bytes), Err(ParseError::NotRoce));
    let (header, rest) = EthHeader::parse(&bytes).unwrap();
    assert_eq!(header.ether_type, EtherType::VLAN);
    assert_eq!(&rest[..4], [0, 1, 0x08, 0x00]);
}

#[test]
fn other_protocols_are_no_roce() {
    let mut arp = vectors::bytes(vectors::A);
    arp[12..14].copy_from_slice(&[0x08, 0x06]);
    assert_eq!(Frame::parse(&arp), Err(ParseError::NotRoce));
    // The Ethernet type and the version in the IP header must agree.
    let mut liar = vectors::bytes(vectors::A);
    liar[12..14].copy_from_slice(&[0x86, 0xDD]);
    assert_eq!(Frame::parse(&liar), Err(ParseError::NotRoce));
    // An 802.3 length instead of a type.
    let mut llc = vectors::bytes(vectors::A);
    llc[12..14].copy_from_slice(&[0, 60]);
    assert_eq!(Frame::parse(&llc), Err(ParseError::NotRoce));
}

#[test]
fn a_frame_cut_anywhere_is_too_short() {
    let bytes = tagged(&vectors::bytes(vectors::B), &[(0x88A8, 1), (0x8100, 2)]);
    for end in 0..bytes.len() {
        assert_eq!(Frame::parse(&bytes[..end]), Err(ParseError::TooShort), "{end} bytes");
    }
}

#[test]
fn headers_agree_with_etherparse() {
    let net = NetHeader::v2([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 0xC123, 0x6A, 64).unwrap();
    let net = net.with_transport_len(16);
    let (src, dst) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);

    let mut ip =
        etherparse::Ipv4Header::new(0, 64, etherparse::IpNumber::UDP, [10, 0, 0, 1], [10, 0, 0, 2]).unwrap();
    ip.dscp = (0x6A_u8 >> 2).try_into().unwrap();
    ip.ecn = (0x6A_u8 & 3).try_into().unwrap();
    let body = [0x5A; 16];
    let single = |priority: u8, id: u16| etherparse::SingleVlanHeader {
        pcp: priority.try_into().unwrap(),
        drop_eligible_indicator: false,
        vlan_id: id.try_into().unwrap(),
        ether_type: etherparse::EtherType::IPV4,
    };
    let builder = PacketBuilder::ethernet2(src, dst)
        .vlan(VlanHeader::Single(single(5, 0xABC)))
        .ip(etherparse::IpHeaders::Ipv4(ip, etherparse::Ipv4Extensions::default()))
        .udp(0xC123, 4791);
    let mut expected = Vec::new();
    builder.write(&mut expected, &body).unwrap();

    let mut eth = EthHeader::new(Mac(src), Mac(dst), &net);
    eth.vlan = VlanTags::One(VlanTag::new(5, 0xABC));
    let mut ours = Vec::new();
    Frame { eth, net, body: &body, trailer: &[] }.emit(&mut ours);
    // etherparse fills the UDP checksum; RoCE sends none (rule R-WIR-8).
    let udp_checksum = eth.len() + 26;
    expected[udp_checksum..udp_checksum + 2].fill(0);
    assert_eq!(ours, expected);
}

#[test]
fn etherparse_reads_our_double_tags() {
    let mut eth = EthHeader::new(Mac([2; 6]), Mac([4; 6]), &v4());
    eth.vlan = VlanTags::Two(
        VlanTag { protocol: EtherType::SERVICE_VLAN, ..VlanTag::new(1, 7) },
        VlanTag::new(6, 4095),
    );
    let mut bytes = Vec::new();
    let net = v4().with_transport_len(16);
    Frame { eth, net, body: &[0; 16], trailer: &[] }.emit(&mut bytes);

    let headers = PacketHeaders::from_ethernet_slice(&bytes).unwrap();
    let Some(LinkHeader::Ethernet2(link)) = &headers.link else { panic!("Ethernet II") };
    assert_eq!((link.source, link.destination), ([2; 6], [4; 6]));
    let Some(VlanHeader::Double(tags)) = headers.vlan() else { panic!("two tags") };
    assert_eq!((tags.outer.pcp.value(), tags.outer.vlan_id.value()), (1, 7));
    assert_eq!((tags.inner.pcp.value(), tags.inner.vlan_id.value()), (6, 4095));
    assert_eq!(tags.inner.ether_type, etherparse::EtherType::IPV4);
}

fn v4() -> NetHeader {
    NetHeader::v2(Ipv4Addr::LOCALHOST.into(), Ipv4Addr::LOCALHOST.into(), 0xC000, 0, 64).unwrap()
}

proptest! {
    #[test]
    fn any_bytes_parse_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..128)) {
        let _ = Frame::parse(&bytes);
    }

    #[test]
    fn what_parses_comes_back(
        which in 0..vectors::ALL.len(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        trailer in prop::collection::vec(any::<u8>(), 0..4),
    ) {
        let mut bytes = vectors::bytes(vectors::ALL[which].1);
        bytes.extend_from_slice(&trailer);
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Ok(frame) = Frame::parse(&bytes) {
            let mut out = Vec::new();
            frame.emit(&mut out);
            prop_assert_eq!(out, bytes);
        }
    }
}
