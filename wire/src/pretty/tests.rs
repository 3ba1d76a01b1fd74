use super::*;
use crate::eth::Frame;
use crate::ext::{Aeth, AtomicAckEth, AtomicEth, Deth, Feth, Ieth, ImmDt, Reth, Xrceth};
use crate::num::{Msn, PKey, Psn, QKey, Qpn, RKey, Srqn, VirtAddr};
use crate::opcode::{ExtHeader, Opcode, Operation, Transport};
use crate::syndrome::{NakCode, RnrTimer, Syndrome};
use crate::{Bth, Ext, NetHeader, vectors};

fn line_of(hex: &str) -> String {
    let bytes = vectors::bytes(hex);
    let frame = Frame::parse(&bytes).unwrap();
    line(&frame.net, frame.body).to_string()
}

fn net() -> NetHeader {
    NetHeader::v2([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 0xC000, 0, 64).unwrap()
}

fn body(bth: Bth, headers: &[Ext], payload: &[u8]) -> Vec<u8> {
    let mut out = zerocopy::IntoBytes::as_bytes(&bth).to_vec();
    for header in headers {
        out.extend_from_slice(header.as_bytes());
    }
    out.extend_from_slice(payload);
    out.resize(out.len() + bth.pad_count(), 0);
    out.extend_from_slice(&[0; 4]);
    out
}

/// The line of an RC packet, without the addresses.
fn rc(operation: Operation, headers: &[Ext], payload: &[u8]) -> String {
    packet(Bth::new(Opcode::rc(operation), Qpn::new(0x12), Psn::new(7)), headers, payload)
}

fn packet(bth: Bth, headers: &[Ext], payload: &[u8]) -> String {
    let pad = payload.len().wrapping_neg() & 3;
    let text = line(&net(), &body(bth.with_pad_count(pad), headers, payload)).to_string();
    text.strip_prefix("10.0.0.1 > 10.0.0.2 ").unwrap().to_owned()
}

#[test]
fn lines_of_the_vectors() {
    let expected = [
        (vectors::A, "192.0.2.1 > 192.0.2.2 RC SEND_ONLY qp=0x12 psn=2748 len=13 se ack"),
        (
            vectors::B,
            "2001:db8::1 > 2001:db8::2 RC WRITE_FIRST qp=0x12 psn=16777215 va=0x7f0012345678 \
             rkey=0x00001234 dmalen=1024 len=256",
        ),
        (vectors::C, "192.0.2.1 > 192.0.2.2 RC ACK qp=0x11 psn=2748 ack msn=1"),
        (vectors::D, "192.0.2.1 > 192.0.2.2 RC ACK qp=0x11 psn=2749 nak=psn_sequence msn=1"),
        (vectors::E, "192.0.2.1 > 192.0.2.2 CNP qp=0x11"),
        (vectors::F, "fe80::ff:fe00:1 > fe80::ff:fe00:2 v1 RC SEND_ONLY qp=0x12 psn=2748 len=13 se ack"),
        (
            vectors::G,
            "192.0.2.1 > 192.0.2.2 RC READ_REQUEST qp=0x12 psn=2749 va=0x7f0012345678 rkey=0x00001234 \
             dmalen=512 ack",
        ),
        (
            vectors::H,
            "192.0.2.1 > 192.0.2.2 RC CMP_SWAP qp=0x12 psn=2751 va=0x7f0012345678 rkey=0x00001234 \
             swap=0x1122334455667788 compare=0x99aabbccddeeff00 ack",
        ),
        (vectors::R1, "10.0.17.1 > 10.0.18.1 CNP qp=0x118"),
        (vectors::R2, "192.168.0.7 > 192.168.0.7 UC SEND_ONLY qp=0xd3 psn=13571856 len=18"),
    ];
    for (hex, text) in expected {
        assert_eq!(line_of(hex), text);
    }
}

#[test]
fn lines_of_the_other_headers() {
    let reth = Ext::from(Reth::new(VirtAddr::new(0x1000), RKey::new(0xAB), 8));
    let imm = Ext::from(ImmDt::new([0x11, 0x22, 0x33, 0x44]));
    let aeth = |syndrome| Ext::from(Aeth::new(syndrome, Msn::new(3)));
    assert_eq!(
        rc(Operation::WriteOnlyImm, &[reth, imm], &[0; 8]),
        "RC WRITE_ONLY_IMM qp=0x12 psn=7 va=0x1000 rkey=0x000000ab dmalen=8 imm=0x11223344 len=8"
    );
    assert_eq!(
        rc(Operation::SendOnlyInv, &[Ieth::new(RKey::new(0xCD)).into()], &[]),
        "RC SEND_ONLY_INV qp=0x12 psn=7 inv_rkey=0x000000cd len=0"
    );
    assert_eq!(
        rc(Operation::FetchAdd, &[AtomicEth::new(VirtAddr::new(8), RKey::new(1), 5, 0).into()], &[]),
        "RC FETCH_ADD qp=0x12 psn=7 va=0x8 rkey=0x00000001 add=0x5"
    );
    assert_eq!(
        rc(Operation::AtomicAcknowledge, &[aeth(Syndrome::ACK), AtomicAckEth::new(9).into()], &[]),
        "RC ATOMIC_ACK qp=0x12 psn=7 ack msn=3 original=0x9"
    );
    assert_eq!(
        rc(Operation::ReadResponseLast, &[aeth(Syndrome::from_byte(6))], &[0; 33]),
        "RC READ_RESP_LAST qp=0x12 psn=7 ack credits=8 msn=3 len=33"
    );
    assert_eq!(
        rc(Operation::Acknowledge, &[aeth(Syndrome::RnrNak(RnrTimer::new(14).unwrap()))], &[]),
        "RC ACK qp=0x12 psn=7 rnr_nak timer=1.28ms msn=3"
    );
    assert_eq!(
        rc(Operation::Acknowledge, &[aeth(Syndrome::Nak(NakCode::RemoteAccessError))], &[]),
        "RC ACK qp=0x12 psn=7 nak=remote_access msn=3"
    );
    assert_eq!(
        rc(Operation::Flush, &[Feth::new(Feth::PERSISTENCE, true).into(), reth], &[]),
        "RC FLUSH qp=0x12 psn=7 placement=0x2 selectivity=1 va=0x1000 rkey=0x000000ab dmalen=8"
    );
    let ud = Bth::new(Opcode::new(Transport::Ud, Operation::SendOnlyImm).unwrap(), Qpn::GSI, Psn::new(0));
    assert_eq!(
        packet(ud, &[Deth::new(QKey::new(0x8001_0000), Qpn::GSI).into(), imm], &[0; 4]),
        "UD SEND_ONLY_IMM qp=0x1 psn=0 qkey=0x80010000 src_qp=0x1 imm=0x11223344 len=4"
    );
    let xrc = Bth::new(Opcode::new(Transport::Xrc, Operation::SendMiddle).unwrap(), Qpn::new(2), Psn::new(1));
    assert_eq!(
        packet(xrc, &[Xrceth::new(Srqn::new(0x77)).into()], &[0; 256]),
        "XRC SEND_MIDDLE qp=0x2 psn=1 srqn=0x77 len=256"
    );
}

#[test]
fn lines_say_what_is_unusual() {
    let bth = Bth::new(Opcode::rc(Operation::SendOnly), Qpn::new(1), Psn::new(2))
        .with_congestion(true, true)
        .with_pkey(PKey::new(0x7FFF))
        .with_tver(3)
        .with_pad_count(3);
    let marked = net().with_traffic_class(0x03);
    assert_eq!(
        line(&marked, &body(bth, &[], &[0; 4])).to_string(),
        "10.0.0.1 > 10.0.0.2 RC SEND_ONLY qp=0x1 psn=2 len=4 pad=3 ce fecn becn pkey=0x7fff tver=3"
    );
}

#[test]
fn broken_packets_print_what_can_be_read() {
    let unknown = Bth::new(Opcode::from_byte(0x15), Qpn::new(0xFF_FFFF), Psn::new(1));
    assert_eq!(packet(unknown, &[], &[0; 32]), "OPCODE_0x15 qp=0xffffff psn=1 len=32 unknown opcode");
    let read = Bth::new(Opcode::rc(Operation::ReadRequest), Qpn::new(1), Psn::new(1));
    assert_eq!(
        packet(read, &[], &[0; 4]),
        "RC_READ_REQUEST qp=0x1 psn=1 len=4 malformed: shorter than its headers say"
    );
    assert_eq!(
        line(&net(), &[0; 11]).to_string(),
        "10.0.0.1 > 10.0.0.2 malformed: shorter than its headers say bytes=11"
    );
}

#[test]
fn tree_of_a_send() {
    let mut bytes = vectors::bytes(vectors::A);
    bytes.splice(12..12, [0x81, 0x00, 0x60, 0x64]);
    bytes.extend_from_slice(&[0, 0]);
    let expected = "\
Ethernet II
    Destination: 02:00:00:00:00:02
    Source: 02:00:00:00:00:01
    VLAN tag: 802.1Q (0x8100), priority 3, drop eligible 0, ID 100
    Type: IPv4 (0x0800)
Internet Protocol Version 4
    Version: 4
    Header length: 20 bytes
    Type of service: 0x02 (DSCP 0, ECN 2 ECT(0))
    Total length: 60
    Identification: 0x0000 (0)
    Reserved bit: 0
    Don't fragment: 1
    More fragments: 0
    Fragment offset: 0
    Time to live: 64
    Protocol: UDP (17)
    Header checksum: 0xb6ab (right)
    Source: 192.0.2.1
    Destination: 192.0.2.2
User Datagram Protocol
    Source port: 49443
    Destination port: 4791 (RoCE v2)
    Length: 40
    Checksum: 0x0000 (none)
InfiniBand
    Base Transport Header
        Opcode: RC_SEND_ONLY (0x04)
        Solicited event: 1
        MigReq: 1
        Pad count: 3
        Transport header version: 0
        Partition key: 0xffff
        FECN: 0
        BECN: 0
        Reserved (6 bits): 0x00
        Destination queue pair: 0x000012 (18)
        Acknowledge request: 1
        Reserved (7 bits): 0x00
        Packet sequence number: 2748 (0x000abc)
    Payload: 13 bytes
        0000  68 65 6c 6c 6f 2c 20 72 6f 63 65 21 0a
    Pad: 3 bytes
        0000  00 00 00
    Invariant CRC (bytes as on the wire): 0x48a9e015 (right)
Ethernet padding
    Padding: 2 bytes
        0000  00 00";
    assert_eq!(tree(&Frame::parse(&bytes).unwrap()).to_string(), expected);
}

#[test]
fn tree_of_a_spoiled_roce_v1_packet() {
    let mut bytes = vectors::bytes(vectors::F);
    let last = bytes.len() - 1;
    bytes[last] ^= 0xFF;
    let text = tree(&Frame::parse(&bytes).unwrap()).to_string();
    for needle in [
        "Global Route Header (RoCE v1)",
        "    Next header: InfiniBand transport (0x1b)",
        "    Source GID: fe80::ff:fe00:1",
        "(bytes as on the wire): 0x9bc5df17 (wrong, should be 0x9bc5dfe8)",
    ] {
        assert!(text.contains(needle), "{needle}\nis not in\n{text}");
    }
    assert!(!text.contains("User Datagram"), "{text}");
}

#[test]
fn tree_of_each_opcode_names_its_headers() {
    let title = |header| match header {
        ExtHeader::Xrceth => "XRC Extended Transport Header",
        ExtHeader::Deth => "Datagram Extended Transport Header",
        ExtHeader::Feth => "Flush Extended Transport Header",
        ExtHeader::Reth => "RDMA Extended Transport Header",
        ExtHeader::AtomicEth => "Atomic Extended Transport Header",
        ExtHeader::Aeth => "ACK Extended Transport Header",
        ExtHeader::AtomicAckEth => "Atomic ACK Extended Transport Header",
        ExtHeader::ImmDt => "Immediate Data",
        ExtHeader::Ieth => "Invalidate Extended Transport Header",
        ExtHeader::CnpReserved => "Congestion Notification",
    };
    for opcode in Opcode::all() {
        let info = opcode.info().unwrap();
        let bth = Bth::new(opcode, Qpn::new(1), Psn::new(1));
        let text = tree_packet(&net(), &body(bth, &[], &vec![0; info.headers_len + 300])).to_string();
        let titles: Vec<_> = text
            .lines()
            .filter(|line| line.starts_with("    ") && !line.starts_with("     ") && !line.contains(':'))
            .map(str::trim)
            .collect();
        let mut expected = vec!["Base Transport Header"];
        expected.extend(info.headers.iter().map(|header| title(*header)));
        assert_eq!(titles, expected, "{opcode}");
        assert!(text.contains("    Payload: 300 bytes\n        0000  00"), "{text}");
        assert!(text.contains("\n        and 44 more\n"), "{text}");
    }
}

#[test]
fn any_cut_prints() {
    let bytes = vectors::bytes(vectors::H);
    let frame = Frame::parse(&bytes).unwrap();
    for end in 0..frame.body.len() {
        let body = &frame.body[..end];
        let text = tree_packet(&frame.net, body).to_string();
        let complaint = if end < Bth::SIZE { "Too short for a base transport header" } else { "Malformed" };
        assert!(text.contains(complaint), "{end}: {text}");
        assert!(line(&frame.net, body).to_string().contains("malformed"), "{end}");
    }
}
