use proptest::prelude::*;

use super::*;
use crate::eth::Frame;
use crate::repr::PacketRepr;
use crate::repr::strategy::packets;
use crate::vectors;

const ORACLE: crc::Crc<u32, crc::Table<16>> = crc::Crc::<u32, crc::Table<16>>::new(&crc::CRC_32_ISO_HDLC);

/// Rule R-WIR-9 once more, bit by bit on the bytes of a packet: `packet` from the network header to the last
/// byte before the ICRC.
fn by_the_rule(net: &NetHeader, packet: &[u8]) -> u32 {
    let (variant_bytes, header): (&[usize], usize) = match net {
        NetHeader::V4(..) => (&[1, 8, 10, 11, 26, 27], 28),
        NetHeader::V6(..) => (&[1, 2, 3, 7, 46, 47], 48),
        NetHeader::V1(_) => (&[1, 2, 3, 7], 40),
    };
    let mut masked = packet.to_vec();
    for at in variant_bytes {
        masked[*at] = 0xFF;
    }
    if !matches!(net, NetHeader::V4(..)) {
        masked[0] |= 0x0F;
    }
    masked[header + 4] = 0xFF;
    let mut digest = ORACLE.digest();
    digest.update(&[0xFF; 8]);
    digest.update(&masked);
    digest.finalize()
}

#[test]
fn the_oracle_gives_the_known_values_of_the_vectors() {
    for (name, hex) in vectors::ALL {
        let bytes = vectors::bytes(hex);
        let frame = Frame::parse(&bytes).unwrap();
        let (packet, icrc) = bytes[14..].split_last_chunk::<4>().unwrap();
        assert_eq!(by_the_rule(&frame.net, packet).to_le_bytes(), *icrc, "{name}");
    }
}

#[test]
fn every_vector_verifies_and_no_spoiled_one() {
    for (name, hex) in vectors::ALL {
        let bytes = vectors::bytes(hex);
        let frame = Frame::parse(&bytes).unwrap();
        assert!(verify(&frame.net, frame.body), "{name}");

        let mut filled = frame.body.to_vec();
        let at = filled.len() - ICRC_LEN;
        filled[at..].fill(0);
        assert!(!verify(&frame.net, &filled), "{name} without ICRC");
        fill(&frame.net, &mut filled);
        assert_eq!(filled, frame.body, "{name}");
    }
}

#[test]
fn the_worked_example() {
    let bytes = vectors::bytes(vectors::A);
    let frame = Frame::parse(&bytes).unwrap();
    assert_eq!(compute(&frame.net, &frame.body[..frame.body.len() - 4]), 0x15E0_A948);
}

#[test]
fn pad_is_covered() {
    // Rule F1: right without the pad is wrong.
    let bytes = vectors::bytes(vectors::A);
    let frame = Frame::parse(&bytes).unwrap();
    let mut body = frame.body.to_vec();
    let pad = body.len() - ICRC_LEN - 3;
    let without = compute(&frame.net, &body[..pad]);
    body[pad + 3..].copy_from_slice(&without.to_le_bytes());
    assert!(!verify(&frame.net, &body));
    let mut other_pad = frame.body.to_vec();
    other_pad[pad] = 1;
    assert!(!verify(&frame.net, &other_pad));
}

/// Every bit of a packet is either covered or not: flips each and compares with the list of the uncovered.
#[test]
fn exactly_the_variant_fields_are_uncovered() {
    let cases: [(&str, &[(usize, u8)]); 3] = [
        // TOS, TTL, header checksum, UDP checksum, BTH byte 4.
        (vectors::A, &[(1, 0xFF), (8, 0xFF), (10, 0xFF), (11, 0xFF), (26, 0xFF), (27, 0xFF), (32, 0xFF)]),
        // Traffic class, flow label, hop limit, UDP checksum, BTH byte 4.
        (
            vectors::B,
            &[(0, 0x0F), (1, 0xFF), (2, 0xFF), (3, 0xFF), (7, 0xFF), (46, 0xFF), (47, 0xFF), (52, 0xFF)],
        ),
        (vectors::F, &[(0, 0x0F), (1, 0xFF), (2, 0xFF), (3, 0xFF), (7, 0xFF), (44, 0xFF)]),
    ];
    for (hex, uncovered) in cases {
        let bytes = vectors::bytes(hex);
        for at in 0..bytes.len() - 14 {
            for bit in 0..8 {
                let mut flipped = bytes.clone();
                flipped[14 + at] ^= 1 << bit;
                // Other versions, protocols, ports and lengths are no RoCE packet at all.
                let Ok(frame) = Frame::parse(&flipped) else { continue };
                let free = uncovered.iter().any(|(byte, mask)| *byte == at && mask >> bit & 1 == 1);
                assert_eq!(verify(&frame.net, frame.body), free, "byte {at} bit {bit}");
            }
        }
    }
}

#[test]
fn too_short_for_an_icrc() {
    let net = Frame::parse(&vectors::bytes(vectors::A)).unwrap().net;
    assert!(!verify(&net, &[]));
    assert!(!verify(&net, &[0; 3]));
    assert_eq!(solve_id(&net, &[0; 3]), None);
}

#[test]
fn the_identification_is_found() {
    let bytes = vectors::bytes(vectors::B);
    let payload = Frame::parse(&bytes).unwrap().body;
    let net = Frame::parse(&vectors::bytes(vectors::A)).unwrap().net.with_transport_len(payload.len());
    let mut body = payload.to_vec();
    for id in [0xBEEF, 0, 1, 0xFF, 0x100, 0xFFFF] {
        fill(&net.with_id(id), &mut body);
        assert_eq!(solve_id(&net, &body), Some(id));
        // What the header holds as its identification is a guess at most.
        assert_eq!(solve_id(&net.with_id(0x1234), &body), Some(id));
    }
    body[20] ^= 1;
    assert_eq!(solve_id(&net, &body), None);
}

#[test]
fn only_ipv4_has_an_identification() {
    for hex in [vectors::B, vectors::F] {
        let bytes = vectors::bytes(hex);
        let frame = Frame::parse(&bytes).unwrap();
        assert_eq!(solve_id(&frame.net, frame.body), None);
    }
}

proptest! {
    #[test]
    fn agrees_with_the_oracle(mut packet in packets()) {
        packet.refill_icrc();
        let mut bytes = Vec::new();
        packet.emit(&mut bytes);
        let (covered, icrc) = bytes.split_last_chunk::<4>().unwrap();
        prop_assert_eq!(by_the_rule(&packet.net, covered), u32::from_le_bytes(*icrc));
    }

    #[test]
    fn any_identification_is_found(packet in packets(), id in any::<u16>()) {
        let mut sent = PacketRepr { net: packet.net.with_id(id), ..packet };
        sent.finish();
        let mut body = Vec::new();
        sent.emit_body(&mut body);
        let found = solve_id(&sent.net.with_id(0), &body);
        match sent.net {
            NetHeader::V4(..) => prop_assert_eq!(found, Some(id)),
            _ => prop_assert_eq!(found, None),
        }
    }

    #[test]
    fn damage_of_one_byte_never_yields_the_identification(
        packet in packets(), at in any::<prop::sample::Index>(), change in 1..=u8::MAX,
    ) {
        let sent_id = 0x5A5A;
        prop_assume!(matches!(packet.net, NetHeader::V4(..)));
        let mut sent = PacketRepr { net: packet.net.with_id(sent_id), ..packet };
        sent.finish();
        let mut body = Vec::new();
        sent.emit_body(&mut body);
        let at = at.index(body.len());
        body[at] ^= change;
        let found = solve_id(&sent.net.with_id(0), &body);
        // Byte 4 of the BTH is not covered.
        prop_assert_eq!(found == Some(sent_id), at == 4);
    }
}
