use proptest::prelude::*;

use super::strategy::{nets, packets};
use super::*;
use crate::eth::{EthHeader, Frame};
use crate::ext::{AtomicEth, Reth};
use crate::num::{RKey, VirtAddr};
use crate::vectors;

/// The network header of `net`'s flow with nothing that a constructor must set.
fn bare(net: NetHeader) -> NetHeader {
    match net.with_transport_len(0) {
        NetHeader::V4(ip, udp) => NetHeader::V4(crate::ip::Ipv4Header { checksum: 0, ..ip }, udp),
        other => other,
    }
}

fn vector(hex: &str) -> (EthHeader, NetHeader, Vec<u8>) {
    let bytes = vectors::bytes(hex);
    let frame = Frame::parse(&bytes).unwrap();
    (frame.eth, frame.net, bytes)
}

/// The frame of `packet` behind `eth`.
fn framed(eth: EthHeader, packet: &PacketRepr) -> Vec<u8> {
    let mut out = vec![0; eth.len()];
    eth.emit(&mut out);
    packet.emit(&mut out);
    out
}

fn bth(opcode: Operation, psn: u32) -> Bth {
    Bth::new(Opcode::rc(opcode), Qpn::new(0x12), Psn::new(psn)).with_ack_req(true)
}

#[test]
fn vectors_are_built_byte_for_byte() {
    let va = VirtAddr::new(0x7F00_1234_5678);
    let rkey = RKey::new(0x1234);
    let made = |hex, packet: &dyn Fn(NetHeader) -> PacketRepr| {
        let (eth, net, bytes) = vector(hex);
        assert_eq!(framed(eth, &packet(bare(net))), bytes);
    };
    let new = |net, bth, ext: Vec<Ext>, payload: &[u8]| PacketRepr::new(net, bth, ext, payload).unwrap();

    let hello = b"hello, roce!\n";
    let send = bth(Operation::SendOnly, 0xABC).with_solicited(true);
    made(vectors::A, &|net| new(net, send, vec![], hello));
    made(vectors::F, &|net| new(net, send, vec![], hello));
    let ramp: Vec<u8> = (0..=255).collect();
    let first = bth(Operation::WriteFirst, 0xFF_FFFF).with_ack_req(false);
    made(vectors::B, &|net| new(net, first, vec![Reth::new(va, rkey, 1024).into()], &ramp));
    let (ack_to, nak) = (Qpn::new(0x11), Syndrome::from_byte(0x60));
    made(vectors::C, &|net| PacketRepr::ack(net, ack_to, Psn::new(0xABC), Syndrome::ACK, Msn::new(1)));
    made(vectors::D, &|net| PacketRepr::ack(net, ack_to, Psn::new(0xABD), nak, Msn::new(1)));
    let read = bth(Operation::ReadRequest, 0xABD);
    made(vectors::G, &|net| new(net, read, vec![Reth::new(va, rkey, 512).into()], &[]));
    let (swap, compare) = (0x1122_3344_5566_7788, 0x99AA_BBCC_DDEE_FF00);
    let atomic = AtomicEth::new(va, rkey, swap, compare);
    made(vectors::H, &|net| new(net, bth(Operation::CmpSwap, 0xABF), vec![atomic.into()], &[]));
}

#[test]
fn congestion_notifications_are_built_byte_for_byte() {
    // Rule R-CNP-1; the second is what a ConnectX-4 Lx sent.
    for (hex, dest_qp) in [(vectors::E, 0x11), (vectors::R1, 0x118)] {
        let (eth, net, bytes) = vector(hex);
        assert_eq!(framed(eth, &PacketRepr::cnp(bare(net), Qpn::new(dest_qp))), bytes);
    }
}

#[test]
fn vectors_come_back_byte_for_byte() {
    for (name, hex) in vectors::ALL {
        let (eth, net, bytes) = vector(hex);
        let packet = PacketRepr::parse_body(net, Frame::parse(&bytes).unwrap().body).unwrap();
        assert_eq!(framed(eth, &packet), bytes, "{name}");
    }
}

#[test]
fn a_write_of_33_bytes_has_three_pad_bytes() {
    // Rules R-WIR-11 and F1.
    let (_, net, _) = vector(vectors::A);
    let reth = Reth::new(VirtAddr::new(0), RKey::new(1), 33);
    let packet = PacketRepr::new(net, bth(Operation::WriteOnly, 1), [reth.into()], [7; 33]).unwrap();
    assert_eq!(packet.bth.pad_count(), 3);
    assert_eq!(packet.pad, [0; 3]);
    assert_eq!(packet.body_len(), 12 + 16 + 36 + 4);
    assert_eq!(packet.net.transport_len(), packet.body_len());
    let mut bytes = Vec::new();
    packet.emit(&mut bytes);
    let parsed = Packet::parse_ip(&bytes).unwrap();
    assert!(parsed.icrc_ok());
    assert_eq!(parsed.payload(), [7; 33]);
}

#[test]
fn wrong_headers_are_refused() {
    let (_, net, _) = vector(vectors::A);
    let write = bth(Operation::WriteOnlyImm, 1);
    let reth = Ext::from(Reth::new(VirtAddr::new(0), RKey::new(1), 0));
    let imm = Ext::from(crate::ext::ImmDt::new([1, 2, 3, 4]));
    let new = |ext: &[Ext]| PacketRepr::new(net, write, ext, []);
    assert!(new(&[reth, imm]).is_ok());
    for wrong in [&[][..], &[reth], &[imm, reth], &[reth, imm, imm]] {
        assert_eq!(new(wrong), Err(ReprError::WrongHeaders(write.opcode())));
    }
    let unknown = write.with_opcode(Opcode::from_byte(0x15));
    assert_eq!(PacketRepr::new(net, unknown, [reth], []), Err(ReprError::WrongHeaders(unknown.opcode())));
}

#[test]
fn too_long_for_the_length_fields() {
    let (_, net, _) = vector(vectors::A);
    let send = bth(Operation::SendOnly, 1);
    let longest = 65535 - 28 - 12 - 4 - 3;
    assert!(PacketRepr::new(net, send, [], vec![0; longest]).is_ok());
    assert_eq!(PacketRepr::new(net, send, [], vec![0; longest + 1]), Err(ReprError::TooLong));
}

#[test]
fn unknown_opcodes_are_kept() {
    let (eth, net, _) = vector(vectors::A);
    let unknown = bth(Operation::SendOnly, 1).with_opcode(Opcode::from_byte(0xFF)).with_pad_count(3);
    let packet = PacketRepr::new(net, unknown, [], [1; 5]).unwrap();
    assert_eq!(packet.bth.pad_count(), 3);
    let bytes = framed(eth, &packet);
    let frame = Frame::parse(&bytes).unwrap();
    assert!(icrc::verify(&frame.net, frame.body));
    assert_eq!(PacketRepr::parse_body(frame.net, frame.body), Ok(packet));
}

#[test]
fn refilling_the_icrc_changes_nothing_else() {
    let (_, net, bytes) = vector(vectors::H);
    let right = PacketRepr::parse_body(net, Frame::parse(&bytes).unwrap().body).unwrap();
    let mut changed = right.clone();
    changed.bth = changed.bth.with_pad_count(2);
    changed.icrc = 0;
    let before = changed.clone();
    changed.refill_icrc();
    assert_ne!(changed.icrc, right.icrc);
    assert_eq!(PacketRepr { icrc: 0, ..changed }, before);
}

proptest! {
    /// Rule R-WIR-30.
    #[test]
    fn what_is_written_reads_back(packet in packets()) {
        let mut bytes = Vec::new();
        packet.emit(&mut bytes);
        let back = match packet.net {
            NetHeader::V1(_) => {
                let (net, body) = NetHeader::parse_grh(&bytes).unwrap();
                PacketRepr::parse_body(net, body)
            }
            _ => PacketRepr::parse_ip(&bytes),
        };
        prop_assert_eq!(back, Ok(packet));
    }

    #[test]
    fn what_is_read_is_written_back(net in nets(), body in prop::collection::vec(any::<u8>(), 0..128)) {
        let net = net.with_transport_len(body.len());
        if let Ok(packet) = PacketRepr::parse_body(net, &body) {
            let mut out = Vec::new();
            packet.emit_body(&mut out);
            prop_assert_eq!(out, body);
        }
    }
}
