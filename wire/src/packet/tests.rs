use proptest::prelude::*;

use super::*;
use crate::eth::Frame;
use crate::opcode::Operation;
use crate::repr::strategy::{nets, packets};
use crate::{Psn, Qpn, vectors};

fn net() -> NetHeader {
    NetHeader::v2([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 0xC000, 0, 64).unwrap()
}

/// `len` bytes that begin with a BTH of this opcode and pad count.
fn body(opcode: Opcode, pad: usize, len: usize) -> Vec<u8> {
    let bth = Bth::new(opcode, Qpn::new(0xFF_FFFF), Psn::new(0)).with_pad_count(pad);
    let mut out = zerocopy::IntoBytes::as_bytes(&bth).to_vec();
    out.resize(len, 0);
    out
}

fn error(body: &[u8]) -> ParseError {
    Packet::parse_body(net(), body).unwrap_err()
}

#[test]
fn malformed_packets_of_the_field() {
    // Rules R-WIR-12 to R-WIR-14 and F2.
    let unknown = Opcode::from_byte(0xFF);
    assert_eq!(error(&body(unknown, 0, 48)), ParseError::UnknownOpcode(unknown));
    assert_eq!(error(&[0xFF; 48]), ParseError::UnknownOpcode(unknown));
    assert_eq!(error(&body(Opcode::rc(Operation::SendOnly), 3, 16)), ParseError::BadPad);
    assert_eq!(error(&body(Opcode::rc(Operation::ReadRequest), 0, 20)), ParseError::TooShort);
    for len in [0, 1, 11, 12, 15] {
        assert_eq!(error(&body(Opcode::rc(Operation::SendOnly), 0, 12)[..len.min(12)]), ParseError::TooShort);
        assert_eq!(error(&vec![0; len]), ParseError::TooShort, "{len} bytes");
    }
}

#[test]
fn every_opcode_at_the_limit_of_its_length() {
    for opcode in Opcode::all() {
        let least = Bth::SIZE + opcode.info().unwrap().headers_len + ICRC_LEN;
        assert_eq!(error(&body(opcode, 0, least - 1)), ParseError::TooShort, "{opcode}");
        assert_eq!(error(&body(opcode, 1, least)), ParseError::BadPad, "{opcode}");
        let exact = body(opcode, 0, least);
        let packet = Packet::parse_body(net(), &exact).unwrap();
        assert!(packet.payload().is_empty() && packet.pad().is_empty(), "{opcode}");
        let only_pad = body(opcode, 3, least + 3);
        let packet = Packet::parse_body(net(), &only_pad).unwrap();
        assert_eq!((packet.payload().len(), packet.pad().len()), (0, 3), "{opcode}");
    }
}

#[test]
fn accessors_give_the_headers_that_the_opcode_has() {
    use ExtHeader as H;
    for opcode in Opcode::all() {
        let info = opcode.info().unwrap();
        let raw = body(opcode, 0, Bth::SIZE + info.headers_len + 8 + ICRC_LEN);
        let packet = Packet::parse_body(net(), &raw).unwrap();
        let given = [
            (H::Reth, packet.reth().is_some()),
            (H::Aeth, packet.aeth().is_some()),
            (H::AtomicEth, packet.atomic_eth().is_some()),
            (H::AtomicAckEth, packet.atomic_ack_eth().is_some()),
            (H::ImmDt, packet.imm_dt().is_some()),
            (H::Ieth, packet.ieth().is_some()),
            (H::Deth, packet.deth().is_some()),
            (H::Xrceth, packet.xrceth().is_some()),
            (H::Feth, packet.feth().is_some()),
        ];
        for (header, given) in given {
            assert_eq!(given, info.headers.contains(&header), "{opcode} {header:?}");
        }
        let listed: Vec<_> = packet.ext_headers().map(|header| header.kind()).collect();
        assert_eq!(listed, info.headers, "{opcode}");
        assert_eq!(packet.payload().len(), 8, "{opcode}");
    }
}

#[test]
fn a_vector_taken_apart() {
    let bytes = vectors::bytes(vectors::H);
    let packet = Packet::parse_ip(&bytes[14..]).unwrap();
    assert_eq!(packet.info().name, "RC_CMP_SWAP");
    assert_eq!((packet.bth().dest_qp().value(), packet.bth().psn().value()), (0x12, 0xABF));
    let atomic = packet.atomic_eth().unwrap();
    assert_eq!(atomic.swap_or_add(), 0x1122_3344_5566_7788);
    assert_eq!(atomic.compare(), 0x99AA_BBCC_DDEE_FF00);
    assert_eq!(packet.icrc().to_le_bytes(), [0xAF, 0xBC, 0x98, 0xD7]);
    assert!(packet.icrc_ok());

    let bytes = vectors::bytes(vectors::A);
    let packet = Packet::parse_ip(&bytes[14..]).unwrap();
    assert_eq!(packet.payload(), b"hello, roce!\n");
    assert_eq!(packet.pad(), [0; 3]);
    assert_eq!(packet.body(), &bytes[42..]);
}

#[test]
fn ethernet_padding_is_not_payload() {
    // Rule R-WIR-5: an empty SEND over IPv4 is 58 bytes, and 60 on the wire.
    let opcode = Opcode::rc(Operation::SendOnly);
    let mut bytes = vec![0; 28];
    net().with_transport_len(16).emit(&mut bytes);
    bytes.extend(body(opcode, 0, 16));
    bytes.extend_from_slice(&[0, 0]);
    assert_eq!(Packet::parse_ip(&bytes).unwrap().payload(), []);
}

proptest! {
    #[test]
    fn any_bytes_are_parsed_or_refused(net in nets(), body in prop::collection::vec(any::<u8>(), 0..96)) {
        if let Ok(packet) = Packet::parse_body(net, &body) {
            let ext: Vec<u8> = packet.ext_headers().flat_map(|header| header.as_bytes().to_vec()).collect();
            let parts = [
                zerocopy::IntoBytes::as_bytes(packet.bth()), &ext, packet.payload(), packet.pad(),
                &packet.icrc().to_le_bytes(),
            ]
            .concat();
            prop_assert_eq!(parts, body);
        }
    }

    #[test]
    fn any_ip_packet_is_parsed_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..128)) {
        let _ = Packet::parse_ip(&bytes);
        let _ = NetHeader::parse_grh(&bytes);
    }

    #[test]
    fn damaged_packets_are_parsed_or_refused(
        packet in packets(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = vec![0; 14];
        crate::EthHeader::new(crate::Mac([2; 6]), crate::Mac([4; 6]), &packet.net).emit(&mut bytes);
        packet.emit(&mut bytes);
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        bytes.truncate(cut.index(bytes.len() * 2).min(bytes.len()));
        if let Ok(frame) = Frame::parse(&bytes) {
            prop_assert!(frame.len() == bytes.len());
            if let Ok(packet) = Packet::parse_body(frame.net, frame.body) {
                prop_assert!(packet.pad().len() <= 3);
                let _ = packet.icrc_ok();
            }
        }
    }
}
