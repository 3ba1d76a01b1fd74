use proptest::prelude::*;
use zerocopy::transmute;

use super::*;
use crate::opcode::Operation;

fn bytes(bth: Bth) -> [u8; 12] {
    transmute!(bth)
}

fn blank() -> Bth {
    transmute!([0_u8; 12])
}

#[test]
fn every_field_has_its_place() {
    let ones = [
        (blank().with_opcode(Opcode::from_byte(0xFF)), 0, 0xFF),
        (blank().with_solicited(true), 1, 0x80),
        (blank().with_migreq(true), 1, 0x40),
        (blank().with_pad_count(3), 1, 0x30),
        (blank().with_tver(0xF), 1, 0x0F),
        (blank().with_congestion(true, false), 4, 0x80),
        (blank().with_congestion(false, true), 4, 0x40),
        (blank().with_ack_req(true), 8, 0x80),
    ];
    for (bth, at, mask) in ones {
        let mut expected = [0; 12];
        expected[at] = mask;
        assert_eq!(bytes(bth), expected);
    }
    let wide =
        blank().with_pkey(PKey::new(0x0123)).with_dest_qp(Qpn::new(0x45_6789)).with_psn(Psn::new(0xAB_CDEF));
    assert_eq!(bytes(wide), [0, 0, 0x01, 0x23, 0, 0x45, 0x67, 0x89, 0, 0xAB, 0xCD, 0xEF]);
}

#[test]
fn new_sends_migreq_and_the_default_partition() {
    // Rules R-WIR-34 and R-ADR-4.
    let bth = Bth::new(Opcode::rc(Operation::SendOnly), Qpn::new(0x12), Psn::new(7));
    assert_eq!(bytes(bth), [0x04, 0x40, 0xFF, 0xFF, 0, 0, 0, 0x12, 0, 0, 0, 7]);
}

#[test]
fn congestion_notification() {
    // Rule R-CNP-1.
    assert_eq!(bytes(Bth::cnp(Qpn::new(0x118))), [0x81, 0, 0xFF, 0xFF, 0x40, 0, 1, 0x18, 0, 0, 0, 0]);
}

#[test]
fn numbers_too_large_lose_their_high_bits() {
    assert_eq!(blank().with_pad_count(7).pad_count(), 3);
    assert_eq!(bytes(blank().with_pad_count(4)), [0; 12]);
    assert_eq!(bytes(blank().with_tver(0x10)), [0; 12]);
}

proptest! {
    #[test]
    fn setters_change_their_field_and_no_other(raw in any::<[u8; 12]>(), on: bool, other: bool, n: u32) {
        let bth: Bth = transmute!(raw);
        let untouched = |changed: Bth, fields: &[(usize, u8)]| {
            let mut after = bytes(changed);
            for (at, mask) in fields {
                after[*at] = after[*at] & !mask | raw[*at] & mask;
            }
            after == raw
        };
        let bits = (n & 3) as usize;
        prop_assert!(untouched(bth.with_solicited(on), &[(1, 0x80)]));
        prop_assert!(untouched(bth.with_migreq(on), &[(1, 0x40)]));
        prop_assert!(untouched(bth.with_pad_count(bits), &[(1, 0x30)]));
        prop_assert!(untouched(bth.with_congestion(on, other), &[(4, 0xC0)]));
        prop_assert!(untouched(bth.with_ack_req(on), &[(8, 0x80)]));
        prop_assert!(untouched(bth.with_dest_qp(Qpn::new(n)), &[(5, 0xFF), (6, 0xFF), (7, 0xFF)]));
        prop_assert!(untouched(bth.with_psn(Psn::new(n)), &[(9, 0xFF), (10, 0xFF), (11, 0xFF)]));

        prop_assert_eq!(bth.with_solicited(on).solicited(), on);
        prop_assert_eq!(bth.with_migreq(on).migreq(), on);
        prop_assert_eq!(bth.with_pad_count(bits).pad_count(), bits);
        let congestion = bth.with_congestion(on, other);
        prop_assert_eq!((congestion.fecn(), congestion.becn()), (on, other));
        prop_assert_eq!(bth.with_ack_req(on).ack_req(), on);
        prop_assert_eq!(bth.with_dest_qp(Qpn::new(n)).dest_qp(), Qpn::new(n));
        prop_assert_eq!(bth.with_psn(Psn::new(n)).psn(), Psn::new(n));
        prop_assert_eq!(bth.reserved6(), raw[4] & 0x3F);
        prop_assert_eq!(bth.reserved7(), raw[8] & 0x7F);
    }
}
