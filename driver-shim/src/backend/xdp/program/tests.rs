use super::*;

#[test]
fn jumps_lead_to_their_labels() {
    let mut asm = Assembler::default();
    asm.jump(Label::Pass);
    asm.compare(JUMP_EQUAL, 7, Label::Take);
    asm.here(Label::Take);
    asm.put(EXIT, 0, 0, 0, 0);
    asm.here(Label::Pass);
    asm.put(EXIT, 0, 0, 0, 0);
    let offsets: Vec<i16> = asm.finish().iter().map(|instruction| instruction.offset).collect();
    assert_eq!(offsets, [2, 0, 0, 0]);
}

#[test]
#[should_panic(expected = "jumps lead forward")]
fn a_jump_to_nowhere_is_a_bug() {
    let mut asm = Assembler::default();
    asm.jump(Label::Pass);
    asm.finish();
}

#[test]
fn only_a_host_of_its_own_takes_address_resolution() {
    let addresses = ["10.0.0.1", "fd00::1"].map(|text| text.parse().expect("address"));
    let length = |neighbours| {
        let wanted = Wanted { addresses: &addresses, port: 4791, neighbours };
        instructions(&wanted, 3).len()
    };
    assert!(length(false) < length(true));
}
