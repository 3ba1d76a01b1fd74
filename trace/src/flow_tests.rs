use wire::ext::{AtomicEth, Deth, Ext, ImmDt, Reth};
use wire::opcode::{Opcode, Transport};
use wire::repr::PacketRepr;
use wire::syndrome::RnrTimer;
use wire::{Msn, NetHeader, QKey, Qpn, RKey, VirtAddr};

use super::*;
use crate::capture::CapturedFrame;
use crate::summary::Summary;

fn net() -> NetHeader {
    NetHeader::v2([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 0xC000, 2, 64).unwrap()
}

fn packet(opcode: Opcode, psn: u32, ext: &[Ext], payload: usize) -> PacketRepr {
    let bth = Bth::new(opcode, Qpn::new(0x12), Psn::new(psn));
    PacketRepr::new(net(), bth, ext, vec![0; payload]).unwrap()
}

fn rc(operation: Operation, psn: u32, ext: &[Ext], payload: usize) -> PacketRepr {
    packet(Opcode::rc(operation), psn, ext, payload)
}

fn count(packets: &[PacketRepr]) -> Summary {
    let mut summary = Summary::default();
    for (number, packet) in (1..).zip(packets) {
        let mut data = Vec::new();
        packet.emit(&mut data);
        let wire_len = u32::try_from(data.len()).unwrap();
        let frame = CapturedFrame { number, time: None, link_type: 101, data: &data, wire_len };
        summary.add(&frame, &crate::dissect(&frame));
    }
    summary
}

fn reth(len: u32) -> Ext {
    Reth::new(VirtAddr::new(0x1000), RKey::new(5), len).into()
}

#[test]
fn requests_count_at_their_ends_and_with_repeats() {
    let summary = count(&[
        rc(Operation::WriteFirst, 0xFF_FFFF, &[reth(1029)], 1024),
        rc(Operation::WriteLast, 0, &[], 5),
        rc(Operation::WriteLast, 0, &[], 5),
        rc(Operation::SendOnlyImm, 1, &[ImmDt::new([1, 2, 3, 4]).into()], 3),
        rc(Operation::ReadRequest, 2, &[reth(9000)], 0),
        rc(Operation::ReadRequest, 4, &[reth(7000)], 0),
        rc(Operation::CmpSwap, 11, &[AtomicEth::new(VirtAddr::new(8), RKey::new(5), 1, 2).into()], 0),
        rc(Operation::FetchAdd, 12, &[AtomicEth::new(VirtAddr::new(8), RKey::new(5), 1, 0).into()], 0),
        rc(Operation::SendOnlyInv, 3, &[wire::ext::Ieth::new(RKey::new(9)).into()], 0),
    ]);
    let [flow] = summary.flows.as_slice() else { panic!("{} flows", summary.flows.len()) };
    let messages =
        [("CMP_SWAP", 1), ("FETCH_ADD", 1), ("READ", 2), ("SEND_IMM", 1), ("SEND_INV", 1), ("WRITE", 2)];
    assert_eq!(flow.messages, BTreeMap::from(messages));
    assert_eq!(flow.request_payload, 1024 + 5 + 5 + 3);
    assert_eq!((flow.psn_first, flow.psn_last), (Some(0xFF_FFFF), Some(3)));
    assert_eq!(flow.repeated_psn, 1);
    assert_eq!(flow.read_lengths, [9000, 7000]);
    assert_eq!((flow.ack_psn, flow.msn), (None, None));
    assert_eq!(flow.udp_sport, BTreeSet::from([0xC000]));
    assert_eq!(summary.pad, BTreeMap::from([(0, 6), (1, 1), (3, 2)]));
    assert_eq!((summary.tos, summary.migreq), (BTreeMap::from([(2, 9)]), BTreeMap::from([(1, 9)])));
}

#[test]
fn answers_are_told_by_what_they_say() {
    let answer =
        |psn, syndrome, msn| PacketRepr::ack(net(), Qpn::new(0x12), Psn::new(psn), syndrome, Msn::new(msn));
    let aeth = Ext::from(Aeth::new(Syndrome::ACK, Msn::new(9)));
    let summary = count(&[
        answer(5, Syndrome::ACK, 1),
        answer(6, Syndrome::RnrNak(RnrTimer::new(12).unwrap()), 1),
        answer(6, Syndrome::Nak(NakCode::PsnSequenceError), 1),
        answer(6, Syndrome::Nak(NakCode::RemoteAccessError), 2),
        answer(6, Syndrome::Nak(NakCode::Reserved(9)), 2),
        answer(6, Syndrome::Reserved(0x80), 2),
        rc(Operation::ReadResponseFirst, 7, &[aeth], 1024),
        rc(Operation::ReadResponseMiddle, 8, &[], 1024),
    ]);
    let flow = &summary.flows[0];
    let expected = ["ACK", "NAK_9", "NAK_PSN_SEQUENCE", "NAK_REMOTE_ACCESS", "RNR_NAK", "SYNDROME_0x80"];
    assert!(flow.aeth.keys().map(String::as_str).eq(expected), "{:?}", flow.aeth);
    assert_eq!(flow.aeth["ACK"], 2);
    assert_eq!((flow.ack_psn, flow.msn), (Some([5, 7]), Some([1, 9])));
    assert_eq!((flow.read_response_payload, flow.request_payload), (2048, 0));
    assert_eq!((flow.psn_first, flow.messages.len()), (None, 0));
}

#[test]
fn datagrams_congestion_notifications_and_unknown_opcodes() {
    let deth = Ext::from(Deth::new(QKey::new(1), Qpn::new(0x55)));
    let ud = Opcode::new(Transport::Ud, Operation::SendOnly).unwrap();
    let summary = count(&[
        packet(ud, 1, &[deth], 4),
        PacketRepr::cnp(net(), Qpn::new(0x13)),
        packet(Opcode::from_byte(0x1F), 2, &[], 4),
    ]);
    let [datagrams, cnp] = summary.flows.as_slice() else { panic!("{} flows", summary.flows.len()) };
    assert_eq!(datagrams.ud_src_qp, BTreeSet::from([0x55]));
    assert_eq!(datagrams.messages, BTreeMap::from([("SEND", 1)]));
    assert!(datagrams.opcodes.keys().eq(["OPCODE_0x1f", "UD_SEND_ONLY"]));
    assert_eq!((cnp.dest_qp, cnp.psn_first, cnp.messages.len()), (0x13, None, 0));
    assert_eq!(summary.opcodes["OPCODE_0x1f"], 1);
}
