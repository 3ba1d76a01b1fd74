use std::collections::BTreeMap;

use super::*;

/// The opcodes once more, written down by hand: byte, name, bytes of the headers after the BTH.
const LIST: &[(u8, &str, usize)] = &[
    (0x00, "RC_SEND_FIRST", 0),
    (0x01, "RC_SEND_MIDDLE", 0),
    (0x02, "RC_SEND_LAST", 0),
    (0x03, "RC_SEND_LAST_IMM", 4),
    (0x04, "RC_SEND_ONLY", 0),
    (0x05, "RC_SEND_ONLY_IMM", 4),
    (0x06, "RC_WRITE_FIRST", 16),
    (0x07, "RC_WRITE_MIDDLE", 0),
    (0x08, "RC_WRITE_LAST", 0),
    (0x09, "RC_WRITE_LAST_IMM", 4),
    (0x0A, "RC_WRITE_ONLY", 16),
    (0x0B, "RC_WRITE_ONLY_IMM", 20),
    (0x0C, "RC_READ_REQUEST", 16),
    (0x0D, "RC_READ_RESP_FIRST", 4),
    (0x0E, "RC_READ_RESP_MIDDLE", 0),
    (0x0F, "RC_READ_RESP_LAST", 4),
    (0x10, "RC_READ_RESP_ONLY", 4),
    (0x11, "RC_ACKNOWLEDGE", 4),
    (0x12, "RC_ATOMIC_ACKNOWLEDGE", 12),
    (0x13, "RC_CMP_SWAP", 28),
    (0x14, "RC_FETCH_ADD", 28),
    (0x16, "RC_SEND_LAST_INV", 4),
    (0x17, "RC_SEND_ONLY_INV", 4),
    (0x1C, "RC_FLUSH", 20),
    (0x1D, "RC_ATOMIC_WRITE", 16),
    (0x20, "UC_SEND_FIRST", 0),
    (0x21, "UC_SEND_MIDDLE", 0),
    (0x22, "UC_SEND_LAST", 0),
    (0x23, "UC_SEND_LAST_IMM", 4),
    (0x24, "UC_SEND_ONLY", 0),
    (0x25, "UC_SEND_ONLY_IMM", 4),
    (0x26, "UC_WRITE_FIRST", 16),
    (0x27, "UC_WRITE_MIDDLE", 0),
    (0x28, "UC_WRITE_LAST", 0),
    (0x29, "UC_WRITE_LAST_IMM", 4),
    (0x2A, "UC_WRITE_ONLY", 16),
    (0x2B, "UC_WRITE_ONLY_IMM", 20),
    (0x64, "UD_SEND_ONLY", 8),
    (0x65, "UD_SEND_ONLY_IMM", 12),
    (0x81, "CNP", 16),
    (0xA0, "XRC_SEND_FIRST", 4),
    (0xA1, "XRC_SEND_MIDDLE", 4),
    (0xA2, "XRC_SEND_LAST", 4),
    (0xA3, "XRC_SEND_LAST_IMM", 8),
    (0xA4, "XRC_SEND_ONLY", 4),
    (0xA5, "XRC_SEND_ONLY_IMM", 8),
    (0xA6, "XRC_WRITE_FIRST", 20),
    (0xA7, "XRC_WRITE_MIDDLE", 4),
    (0xA8, "XRC_WRITE_LAST", 4),
    (0xA9, "XRC_WRITE_LAST_IMM", 8),
    (0xAA, "XRC_WRITE_ONLY", 20),
    (0xAB, "XRC_WRITE_ONLY_IMM", 24),
    (0xAC, "XRC_READ_REQUEST", 20),
    (0xAD, "XRC_READ_RESP_FIRST", 4),
    (0xAE, "XRC_READ_RESP_MIDDLE", 0),
    (0xAF, "XRC_READ_RESP_LAST", 4),
    (0xB0, "XRC_READ_RESP_ONLY", 4),
    (0xB1, "XRC_ACKNOWLEDGE", 4),
    (0xB2, "XRC_ATOMIC_ACKNOWLEDGE", 12),
    (0xB3, "XRC_CMP_SWAP", 32),
    (0xB4, "XRC_FETCH_ADD", 32),
    (0xB6, "XRC_SEND_LAST_INV", 8),
    (0xB7, "XRC_SEND_ONLY_INV", 8),
    (0xBC, "XRC_FLUSH", 24),
    (0xBD, "XRC_ATOMIC_WRITE", 20),
];

/// Rules R-ADM-14, R-RSP-42.
#[test]
fn the_table_is_the_list() {
    // Rule R-WIR-17.
    let list: BTreeMap<u8, (&str, usize)> =
        LIST.iter().map(|(byte, name, len)| (*byte, (*name, *len))).collect();
    assert_eq!(list.len(), LIST.len());
    for byte in 0..=u8::MAX {
        let opcode = Opcode::from_byte(byte);
        let row = opcode.info().map(|info| (info.name, info.headers_len));
        assert_eq!(row, list.get(&byte).copied(), "{byte:#04x}");
        assert_eq!(opcode.byte(), byte);
    }
    assert_eq!(Opcode::all().count(), LIST.len());
}

/// Headers in wire order, payload rule and position of every operation, by hand; XRC's follow from them.
#[test]
fn headers_payload_and_position_of_each_operation() {
    // Rules R-WIR-18 to R-WIR-20, R-WIR-22, R-WIR-23 and R-WIR-29.
    use ExtHeader as H;
    use PayloadRule as P;
    use Position::{First, Last, Middle, Only};
    let list: [(&str, Position, PayloadRule, &[ExtHeader]); 25] = [
        ("SEND_FIRST", First, P::Full, &[]),
        ("SEND_MIDDLE", Middle, P::Full, &[]),
        ("SEND_LAST", Last, P::Some, &[]),
        ("SEND_LAST_IMM", Last, P::Some, &[H::ImmDt]),
        ("SEND_ONLY", Only, P::Any, &[]),
        ("SEND_ONLY_IMM", Only, P::Any, &[H::ImmDt]),
        ("WRITE_FIRST", First, P::Full, &[H::Reth]),
        ("WRITE_MIDDLE", Middle, P::Full, &[]),
        ("WRITE_LAST", Last, P::Some, &[]),
        ("WRITE_LAST_IMM", Last, P::Some, &[H::ImmDt]),
        ("WRITE_ONLY", Only, P::Any, &[H::Reth]),
        ("WRITE_ONLY_IMM", Only, P::Any, &[H::Reth, H::ImmDt]),
        ("READ_REQUEST", Only, P::None, &[H::Reth]),
        ("READ_RESP_FIRST", First, P::Full, &[H::Aeth]),
        ("READ_RESP_MIDDLE", Middle, P::Full, &[]),
        ("READ_RESP_LAST", Last, P::Some, &[H::Aeth]),
        ("READ_RESP_ONLY", Only, P::Any, &[H::Aeth]),
        ("ACKNOWLEDGE", Only, P::None, &[H::Aeth]),
        ("ATOMIC_ACKNOWLEDGE", Only, P::None, &[H::Aeth, H::AtomicAckEth]),
        ("CMP_SWAP", Only, P::None, &[H::AtomicEth]),
        ("FETCH_ADD", Only, P::None, &[H::AtomicEth]),
        ("SEND_LAST_INV", Last, P::Some, &[H::Ieth]),
        ("SEND_ONLY_INV", Only, P::Any, &[H::Ieth]),
        ("FLUSH", Only, P::None, &[H::Feth, H::Reth]),
        ("ATOMIC_WRITE", Only, P::Eight, &[H::Reth]),
    ];
    for opcode in Opcode::all().filter(|opcode| *opcode != Opcode::CNP) {
        let info = opcode.info().unwrap();
        let name = info.name.split_once('_').unwrap().1;
        assert_eq!(info.operation_name(), name);
        let (_, position, payload, headers) =
            list.iter().find(|row| row.0 == name).copied().unwrap_or_else(|| panic!("{name}"));
        let mut expected = headers.to_vec();
        match info.transport {
            // Rule R-WIR-27: in every request, in no response.
            Transport::Xrc if info.kind.is_request() => expected.insert(0, H::Xrceth),
            // Rule R-WIR-28.
            Transport::Ud => expected.insert(0, H::Deth),
            _ => {}
        }
        assert_eq!(info.headers, expected, "{opcode}");
        assert_eq!((info.position, info.payload), (position, payload), "{opcode}");
    }
    let cnp = Opcode::CNP.info().unwrap();
    assert_eq!((cnp.headers, cnp.payload), (&[H::CnpReserved][..], P::None));
    assert_eq!(cnp.operation_name(), "CNP");
}

#[test]
fn kinds() {
    let of = |name: &str| match name {
        _ if name.starts_with("SEND") => Kind::Send,
        _ if name.starts_with("WRITE") => Kind::Write,
        _ if name.starts_with("READ_RESP") => Kind::ReadResponse,
        "READ_REQUEST" => Kind::Read,
        "CMP_SWAP" | "FETCH_ADD" => Kind::Atomic,
        "ACKNOWLEDGE" => Kind::Acknowledge,
        "ATOMIC_ACKNOWLEDGE" => Kind::AtomicAcknowledge,
        "FLUSH" => Kind::Flush,
        "ATOMIC_WRITE" => Kind::AtomicWrite,
        "CNP" => Kind::Cnp,
        _ => panic!("{name}"),
    };
    for opcode in Opcode::all() {
        let info = opcode.info().unwrap();
        assert_eq!(info.kind, of(info.operation_name()), "{opcode}");
        // What is no request and no response is a congestion notification.
        assert_eq!(info.kind.is_request(), !info.kind.is_response() && info.kind != Kind::Cnp, "{opcode}");
    }
}

#[test]
fn opcode_of_transport_and_operation() {
    for opcode in Opcode::all() {
        let info = opcode.info().unwrap();
        assert_eq!(Opcode::new(info.transport, info.operation), Some(opcode));
    }
    assert_eq!(Opcode::new(Transport::Uc, Operation::ReadRequest), None);
    assert_eq!(Opcode::new(Transport::Ud, Operation::WriteOnly), None);
    assert_eq!(Opcode::new(Transport::Rc, Operation::Cnp), None);
    assert_eq!(Opcode::new(Transport::Cnp, Operation::SendMiddle), None);
    assert_eq!(Opcode::rc(Operation::CmpSwap).byte(), 0x13);
}

#[test]
fn offsets_follow_the_headers_before() {
    let offset = |byte, header| Opcode::from_byte(byte).info().unwrap().offset_of(header);
    assert_eq!(offset(0x0B, ExtHeader::Reth), Some(12));
    assert_eq!(offset(0x0B, ExtHeader::ImmDt), Some(28));
    assert_eq!(offset(0xAB, ExtHeader::ImmDt), Some(32));
    assert_eq!(offset(0x65, ExtHeader::ImmDt), Some(20));
    assert_eq!(offset(0x12, ExtHeader::AtomicAckEth), Some(16));
    assert_eq!(offset(0xBC, ExtHeader::Reth), Some(20));
    assert_eq!(offset(0x04, ExtHeader::Reth), None);
}

#[test]
fn segments_of_a_message() {
    use SegmentKind as S;
    // Kind, first of several, middle, last of several, only.
    let list = [
        (S::Send, 0x00, 0x01, 0x02, 0x04),
        (S::SendImm, 0x00, 0x01, 0x03, 0x05),
        (S::SendInv, 0x00, 0x01, 0x16, 0x17),
        (S::Write, 0x06, 0x07, 0x08, 0x0A),
        (S::WriteImm, 0x06, 0x07, 0x09, 0x0B),
        (S::ReadResponse, 0x0D, 0x0E, 0x0F, 0x10),
    ];
    for (kind, first, middle, last, only) in list {
        let byte = |starts, ends| Opcode::rc(segment(kind, starts, ends)).byte();
        assert_eq!(
            [byte(true, false), byte(false, false), byte(false, true), byte(true, true)],
            [first, middle, last, only],
            "{kind:?}"
        );
    }
}

#[test]
fn unknown_opcodes_print_their_byte() {
    assert_eq!(Opcode::from_byte(0x15).to_string(), "OPCODE_0x15");
    assert_eq!(Opcode::from_byte(0x80).info(), None);
}
