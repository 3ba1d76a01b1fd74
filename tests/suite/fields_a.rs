//! Field cases F1 to F9: wire format and parsing, as real peers have met it. Public captures are read where
//! `FERROCE_CAPTURES` says they are.

use qp::{Access, MwRange, MwType, QpType, RecvWr, SendWr, Sge};
use trace::{CapturedFrame, FrameKind, IcrcCheck, Summary, dissect};
use transport::{DropReason, WcOpcode, WcStatus};
use wire::opcode::Transport;
use wire::{LKey, NakCode, NetHeader, Opcode, Operation, Packet, Psn, Qpn, RKey, Syndrome, VirtAddr};

use crate::captures;
use crate::harness::{Conn, Crafted, Lone, Sent};

const ACCESS_NAK: Syndrome = Syndrome::Nak(NakCode::RemoteAccessError);

/// What is in the public capture `name`; `None` where there are no public captures.
fn public(name: &str) -> Option<Summary> {
    let mut summary = Summary::default();
    captures::each_frame(&captures::public(name)?.join(name), |frame| summary.add(frame, &dissect(frame)));
    Some(summary)
}

fn opcode(transport: Transport, operation: Operation) -> Opcode {
    Opcode::new(transport, operation).expect("the transport has it")
}

/// The sum of Ethernet, bit by bit, over what the ICRC covers: another way than the product's.
fn icrc_bit_by_bit(net: &NetHeader, body: &[u8]) -> u32 {
    let mut header = [0; NetHeader::MAX_LEN];
    let len = net.emit(&mut header);
    // IPv4: TOS, TTL, header checksum, UDP checksum.
    for at in [1, 8, 10, 11, 26, 27] {
        header[at] = 0xFF;
    }
    let mut covered = [&[0xFF; 8][..], &header[..len], &body[..body.len() - 4]].concat();
    covered[8 + len + 4] = 0xFF;
    let step = |crc: u32| if crc & 1 == 1 { crc >> 1 ^ 0xEDB8_8320 } else { crc >> 1 };
    !covered.iter().fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc)))
}

// ---- F1 ----

/// Rules R-WIR-9, R-WIR-11.
#[test]
fn f1_pad_bytes_are_inside_the_icrc() {
    for (len, pad) in [(33, 3), (32, 0), (34, 2), (35, 1)] {
        let mut lone = Lone::new(Conn::default());
        lone.bytes(0, 64).fill(0x5A);
        lone.post(SendWr::write(1, &[lone.sge(0, len)], VirtAddr::new(0x1000), RKey::new(7)));
        let (net, body) = lone.sent_raw().remove(0);
        let packet = Packet::parse_body(net, &body).expect("well formed");
        assert_eq!((packet.info().operation, packet.bth().pad_count()), (Operation::WriteOnly, pad));
        assert_eq!((packet.payload().len(), packet.pad()), (len as usize, &[0, 0, 0][..pad]));
        assert_eq!(packet.reth().expect("a RETH").dma_len(), len);
        let icrc = icrc_bit_by_bit(&net, &body);
        assert_eq!(body[body.len() - 4..], icrc.to_le_bytes(), "{len} bytes");
    }
    // And the other way: padded requests are taken, their pad is not.
    let mut lone = Lone::new(Conn::default());
    for (n, len) in [(0, 33), (1, 32)] {
        let write = Crafted::rc(Operation::WriteOnly, lone.qpn, Lone::psn(n)).ack_req();
        let write = write.reth(lone.va(u64::from(n) * 64), lone.mr.rkey, len).payload(&vec![9; len as usize]);
        assert_eq!(lone.answer(&[write])[0].aeth, Some((Syndrome::ACK, n + 1)));
        let right = [vec![9; len as usize], vec![0; 64 - len as usize]].concat();
        assert_eq!(lone.bytes(n as usize * 64, 64), right);
    }
}

#[test]
fn f1_a_real_packet_with_three_pad_bytes_is_right() {
    let Some(summary) = public("rxe-write-1329.pcapng") else { return };
    assert_eq!((summary.pad.get(&3), summary.icrc.get(&IcrcCheck::Bad)), (Some(&1), None));
}

// ---- F2 ----

/// Rules R-WIR-12 to R-WIR-14, R-WIR-16, R-ADM-13.
#[test]
fn f2_what_cannot_be_parsed_is_counted_and_harms_nobody() {
    let mut lone = Lone::new(Conn::default());
    lone.post_recv(1, 64);
    let bth = |opcode: Opcode, to: Qpn| wire::Bth::new(opcode, to, Lone::psn(0));
    let bytes = |bth: &wire::Bth, len: usize| {
        let mut body = zerocopy::IntoBytes::as_bytes(bth).to_vec();
        body.resize(len, 0xA5);
        body
    };
    let send_only = bth(Opcode::rc(Operation::SendOnly), lone.qpn);
    let cases = [
        (bytes(&bth(Opcode::from_byte(0xFF), Qpn::new(0xFF_FFFF)), 48), DropReason::UnknownOpcode),
        (bytes(&send_only.with_pad_count(3), 16), DropReason::Malformed),
        (bytes(&bth(Opcode::rc(Operation::ReadRequest), lone.qpn), 20), DropReason::Malformed),
        (bytes(&send_only, 0), DropReason::Malformed),
        (bytes(&send_only, 1), DropReason::Malformed),
        (bytes(&send_only, 11), DropReason::Malformed),
        (bytes(&send_only, 12), DropReason::Malformed),
        (bytes(&send_only, 15), DropReason::Malformed),
    ];
    for (body, reason) in cases {
        let (before, total) = (lone.nic.drops().get(reason), lone.nic.drops().total());
        let net = lone.peer_header.with_transport_len(body.len());
        lone.inject_raw(net, &body);
        let drops = lone.nic.drops();
        assert_eq!((drops.get(reason), drops.total()), (before + 1, total + 1), "{} bytes", body.len());
        assert_eq!(lone.sent(), [], "nothing is answered");
    }
    let good = Crafted::rc(Operation::SendOnly, lone.qpn, Lone::psn(0)).ack_req().payload(b"data");
    assert_eq!(lone.answer(&[good])[0].aeth, Some((Syndrome::ACK, 1)));
    assert_eq!(lone.completed(), [0]);
}

// ---- F3 ----

/// Rules R-MEM-4, R-RSP-15, R-RSP-47.
#[test]
fn f3_bounds_checks_cannot_wrap() {
    let far = 0xFFFF_FFFF_FFFF_FC00_u64;
    let request = |lone: &Lone, operation: Operation| {
        let packet = Crafted::rc(operation, lone.qpn, Lone::psn(0)).ack_req();
        match operation {
            Operation::FetchAdd => packet.atomic(far, lone.mr.rkey, 1, 0),
            Operation::ReadRequest => packet.reth(far, lone.mr.rkey, 0x400),
            _ => packet.reth(far, lone.mr.rkey, 0x400).payload(&[9; 0x400]),
        }
    };
    for operation in [Operation::WriteOnly, Operation::ReadRequest, Operation::FetchAdd] {
        let mut lone = Lone::new(Conn::default());
        let sent = lone.answer(&[request(&lone, operation)]);
        assert_eq!((sent.len(), sent[0].aeth, ACCESS_NAK.byte()), (1, Some((ACCESS_NAK, 0)), 0x62));
        assert!(lone.bytes(0, Lone::MR_LEN).iter().all(|byte| *byte == 0), "{operation:?} wrote");
        // The same PSN again finds a queue pair that has ended.
        assert_eq!(lone.answer(&[request(&lone, operation)]), []);
        assert_eq!(lone.nic.drops().get(DropReason::QpState), 1);
    }
}

/// Rule R-MEM-8.
#[test]
fn f3_the_last_byte_is_inside_and_one_more_is_not() {
    let last = Lone::MR_LEN as u64 - 1;
    let mut lone = Lone::new(Conn::default());
    let write = |lone: &Lone, n, len: u32| {
        let packet = Crafted::rc(Operation::WriteOnly, lone.qpn, Lone::psn(n)).ack_req();
        packet.reth(lone.va(last), lone.mr.rkey, len).payload(&vec![7; len as usize])
    };
    let read = Crafted::rc(Operation::ReadRequest, lone.qpn, Lone::psn(1)).ack_req();
    let read = read.reth(lone.va(last), lone.mr.rkey, 1);
    let sent = lone.answer(&[write(&lone, 0, 1), read]);
    assert_eq!(
        sent.iter().map(|sent| sent.aeth).collect::<Vec<_>>(),
        [1, 2].map(|n| Some((Syndrome::ACK, n)))
    );
    assert_eq!(sent[1].payload, [7]);
    assert_eq!(lone.answer(&[write(&lone, 2, 2)])[0].aeth, Some((ACCESS_NAK, 2)));
}

#[test]
fn f3_a_repeated_read_cannot_wrap_either() {
    let mut lone = Lone::new(Conn::default());
    let read = |lone: &Lone, va: u64, len: u32| {
        Crafted::rc(Operation::ReadRequest, lone.qpn, Lone::psn(0)).ack_req().reth(va, lone.mr.rkey, len)
    };
    assert_eq!(lone.answer(&[read(&lone, lone.va(0), 0x400)]).len(), 1);
    for (va, len) in
        [(0xFFFF_FFFF_FFFF_FC00, 0x400), (u64::MAX, 1), (lone.va(1), 0x400), (lone.va(0), u32::MAX)]
    {
        assert_eq!(lone.answer(&[read(&lone, va, len)]), [], "{va:#x}, {len}");
    }
    assert_eq!(lone.nic.drops().get(DropReason::DuplicateUnknown), 4);
}

/// Rule R-MEM-10.
#[test]
fn f3_local_pieces_cannot_wrap() {
    let pieces = |lone: &Lone| {
        [(u64::MAX - 7, 16), (0xFFFF_FFFF_FFFF_FC00, 0x400), (lone.va(Lone::MR_LEN as u64 - 1), 2)]
            .map(|(va, length)| Sge { addr: VirtAddr::new(va), length, lkey: lone.mr.lkey })
    };
    for n in 0..3 {
        let mut lone = Lone::new(Conn::default());
        lone.post(SendWr::send(1, &[pieces(&lone)[n]]));
        assert_eq!(lone.sent(), []);
        assert_eq!(lone.completions()[0].status, WcStatus::LocProtErr);
        let mut lone = Lone::new(Conn::default());
        let wr = RecvWr::new(2, &[pieces(&lone)[n]]);
        lone.nic.post_recv(lone.now, lone.qpn, wr).expect("the post");
        let send = Crafted::rc(Operation::SendOnly, lone.qpn, Lone::psn(0)).ack_req().payload(b"xy");
        lone.inject(&[send]);
        assert_eq!(lone.completions()[0].status, WcStatus::LocProtErr);
    }
}

/// Rules R-MEM-4, R-MEM-15.
#[test]
fn f3_windows_cannot_wrap() {
    let bind = |lone: &mut Lone, va: u64, length: u64| {
        let pd = lone.nic.query_qp(lone.qpn).expect("the queue pair").1.pd;
        let mw = lone.nic.alloc_mw(pd, MwType::Type2).expect("a window");
        let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
        let range = MwRange { mr: lone.mr.lkey, va: VirtAddr::new(va), length, access };
        lone.post(SendWr::bind_mw(1, mw, 0x5A, &range));
        assert_eq!(lone.sent(), []);
        (mw.with_variant(0x5A), lone.completions()[0].status)
    };
    let end = Lone::new(Conn::default()).va(Lone::MR_LEN as u64);
    for (va, length) in
        [(0xFFFF_FFFF_FFFF_FC00, 0x400), (u64::MAX, 2), (end - 16, u64::MAX), (end - 16, 17), (end, 1)]
    {
        let mut lone = Lone::new(Conn::default());
        assert_eq!(bind(&mut lone, va, length).1, WcStatus::MwBindErr, "{va:#x}, {length}");
    }
    // Through a window to the last sixteen bytes.
    for (va, len, right) in [
        (end - 16, 16_u32, Syndrome::ACK),
        (end - 1, 1, Syndrome::ACK),
        (end - 1, 2, ACCESS_NAK),
        (end - 17, 1, ACCESS_NAK),
        (end, 1, ACCESS_NAK),
        (0xFFFF_FFFF_FFFF_FC00, 0x400, ACCESS_NAK),
        (u64::MAX, 1, ACCESS_NAK),
    ] {
        let mut lone = Lone::new(Conn::default());
        let (rkey, status) = bind(&mut lone, end - 16, 16);
        assert_eq!(status, WcStatus::Success);
        let write = Crafted::rc(Operation::WriteOnly, lone.qpn, Lone::psn(0)).ack_req();
        let sent = lone.answer(&[write.reth(va, rkey, len).payload(&vec![9; len as usize])]);
        assert_eq!(sent[0].aeth.map(|(syndrome, _)| syndrome), Some(right), "{va:#x}, {len}");
        let written = lone.bytes(0, Lone::MR_LEN).iter().filter(|byte| **byte == 9).count();
        assert_eq!(written, if right == ACCESS_NAK { 0 } else { len as usize });
    }
}

// ---- F4 ----

fn nothing(lone: &Lone, operation: Operation, n: u32) -> Crafted {
    Crafted::rc(operation, lone.qpn, Lone::psn(n)).ack_req().reth(1, RKey::new(0xDEAD_BEEF), 0)
}

/// Rule R-RSP-23.
#[test]
fn f4_no_bytes_need_neither_key_nor_address() {
    let mut lone = Lone::new(Conn::default());
    lone.post_recv(1, 64);
    // The answers are lost once, so each request comes twice.
    for _ in 0..2 {
        let sent = lone.answer(&[nothing(&lone, Operation::ReadRequest, 0)]);
        let [only] = &sent[..] else { panic!("{sent:?}") };
        assert_eq!((only.operation, only.psn), (Operation::ReadResponseOnly, Lone::psn(0)));
        assert_eq!((only.aeth, &only.payload[..]), (Some((Syndrome::ACK, 1)), &[][..]));
    }
    for (operation, n) in [(Operation::WriteOnly, 1), (Operation::WriteOnlyImm, 2)] {
        for _ in 0..2 {
            let packet = nothing(&lone, operation, n);
            let packet = if operation == Operation::WriteOnlyImm { packet.imm([1, 2, 3, 4]) } else { packet };
            assert_eq!(lone.answer(&[packet])[0].aeth, Some((Syndrome::ACK, n + 1)), "{operation:?}");
        }
    }
    let completions = lone.completions();
    let [wc] = &completions[..] else { panic!("{completions:?}") };
    assert_eq!((wc.opcode, wc.byte_len, wc.imm), (WcOpcode::RecvRdmaWithImm, 0, Some([1, 2, 3, 4])));
    assert_eq!(lone.nic.counters().duplicate_request, 3);
}

/// Rules R-REQ-4, R-REQ-14.
#[test]
fn f4_requests_of_no_bytes_succeed_also_when_they_are_repeated() {
    let mut lone = Lone::new(Conn::default());
    let (va, rkey) = (VirtAddr::new(1), RKey::new(0xDEAD_BEEF));
    lone.post(SendWr::read(0, &[], va, rkey));
    lone.post(SendWr::write(1, &[], va, rkey));
    lone.post(SendWr::write_imm(2, &[], va, rkey, [0; 4]));
    let sent = lone.sent();
    let psns: Vec<_> = sent.iter().map(|sent| sent.psn.steps_from(Psn::new(Lone::SQ_PSN))).collect();
    assert_eq!((psns, sent.iter().all(|sent| sent.payload.is_empty())), (vec![0, 1, 2], true));
    assert!(sent.iter().all(|sent| sent.reth == Some((1, 0xDEAD_BEEF, 0))));
    // Nothing comes back, and all is sent again just so.
    let due = lone.nic.poll_timeout().expect("the ACK timer");
    let again: Vec<Sent> = lone.pass(due.since(lone.now)).into_iter().map(|(_, sent)| sent).collect();
    assert_eq!(again, sent);
    let answer = Crafted::rc(Operation::ReadResponseOnly, lone.qpn, sent[0].psn).aeth(Syndrome::ACK, 1);
    lone.inject(&[answer, Crafted::acknowledge(lone.qpn, sent[2].psn, Syndrome::ACK, 3)]);
    assert_eq!(lone.completed(), [0, 1, 2]);
}

#[test]
fn f4_real_peers_send_writes_of_no_bytes() {
    let mut zero = 0;
    for node in ["rxe-nccl-node1.pcap", "rxe-nccl-ring2-node0.pcap"] {
        let Some(folder) = captures::public(node) else { return };
        captures::each_frame(&folder.join(node), |frame| {
            let write = dissect(frame).roce.and_then(|packet| packet.reth().map(|reth| reth.dma_len()));
            zero += u32::from(write == Some(0));
        });
    }
    assert!(zero > 0);
}

// ---- F5 ----

/// Rule R-WIR-4.
#[test]
fn f5_every_source_port_is_heard() {
    let mut lone = Lone::new(Conn::default());
    for (n, port) in (0..).zip([0, 69, 72, 4791, u16::MAX]) {
        if let NetHeader::V4(_, udp) = &mut lone.peer_header {
            udp.src_port = port;
        }
        let packet = nothing(&lone, Operation::WriteOnly, n);
        assert_eq!(lone.answer(&[packet])[0].aeth, Some((Syndrome::ACK, n + 1)), "port {port}");
    }
}

/// Rule R-WIR-4.
#[test]
fn f5_real_hardware_sends_from_any_port() {
    let from = |summary: &Summary, port: u16| {
        let flows = summary.flows.iter().filter(|flow| flow.udp_sport.contains(&port));
        flows.map(|flow| flow.opcodes.values().sum::<u64>()).sum::<u64>()
    };
    let Some(hns) = public("hns-hw-send-imm.pcap") else { return };
    assert_eq!((hns.kinds[&FrameKind::Roce2], hns.icrc.get(&IcrcCheck::Bad)), (105, None));
    assert_eq!(from(&hns, 69), 37);
    let Some(cnp) = public("cx4lx-cnp.pcap") else { return };
    assert_eq!((cnp.kinds[&FrameKind::Roce2], cnp.opcodes.get("CNP"), from(&cnp, 0)), (1, Some(&1), 1));
}

// ---- F6 ----

/// Rule R-ADR-6.
#[test]
fn f6_the_source_port_is_made_of_the_flow_label_or_the_queue_pairs() {
    for (qpns, port) in [((0x20, 0x21), 50_208), ((0x1B, 0x1D), 49_935), ((0x1C, 0x1D), 49_964)] {
        assert_eq!(wire::ip::source_port(0, qpns.0, qpns.1), port);
        assert_eq!(wire::ip::source_port(0, qpns.1, qpns.0), port, "the same in both directions");
    }
    for (label, port) in [(0x7_0BBD, 52_129), (0xFF3B, 65_336)] {
        assert_eq!(wire::ip::source_port(label, 0x20, 0x21), port);
    }
    // As rdma_rxe once did.
    for (qpn, port) in [(1, 55_410), (17, 57_236)] {
        assert_eq!(wire::ip::source_port_of_qpn(qpn), port);
    }
}

/// Rules R-ADR-6, R-REQ-40.
#[test]
fn f6_all_packets_of_a_queue_pair_leave_from_one_port() {
    let mut lone = Lone::new(Conn::default());
    lone.post(SendWr::send(1, &[lone.sge(0, 3000)]));
    lone.post(SendWr::read(2, &[lone.sge(0, 16)], VirtAddr::new(0), RKey::new(7)));
    lone.inject(&[nothing(&lone, Operation::WriteOnly, 0), nothing(&lone, Operation::ReadRequest, 1)]);
    let mut sent = lone.sent_raw();
    // Repeats as well.
    lone.now = lone.nic.poll_timeout().expect("the ACK timer");
    lone.nic.handle_timeout(lone.now);
    sent.extend(lone.sent_raw());
    assert_eq!(sent.len(), 2 * 4 + 2);
    let port = wire::ip::source_port(0, lone.qpn.value(), Lone::PEER.value());
    for (net, _) in sent {
        assert_eq!(net.udp().expect("UDP").src_port, port);
    }
}

// ---- F7 ----

/// Rule R-REQ-12.
#[test]
fn f7_unreliable_packets_neither_ask_for_an_ack_nor_get_one() {
    for (qp_type, transport) in [(QpType::Uc, Transport::Uc), (QpType::Ud, Transport::Ud)] {
        let mut lone = Lone::of_type(qp_type, Conn::default());
        lone.post_recv(1, 100);
        let packet = Crafted::of(opcode(transport, Operation::SendOnly), lone.qpn, Lone::psn(0)).ack_req();
        let packet = if qp_type == QpType::Ud { packet.deth(Lone::QKEY, Lone::PEER) } else { packet };
        assert_eq!(lone.answer(&[packet.payload(b"data")]), []);
        assert_eq!(lone.completed(), [0]);
        let wr = SendWr::send(7, &[lone.sge(0, 8)]);
        let wr = if qp_type == QpType::Ud { wr.to(lone.ah, Lone::PEER, Lone::QKEY) } else { wr };
        lone.post(wr);
        let sent = lone.sent();
        assert_eq!((sent.len(), sent[0].ack_req), (1, false));
    }
}

/// Rule R-REQ-12.
#[test]
fn f7_real_datagrams_that_ask_for_an_ack_are_datagrams() {
    let Some(summary) = public("rxe-rping.pcap") else { return };
    let to_gsi = || summary.flows.iter().filter(|flow| flow.dest_qp == 1);
    assert_eq!(to_gsi().map(|flow| flow.ack_req).sum::<u64>(), 5);
    assert!(to_gsi().all(|flow| flow.aeth.is_empty()));
}

// ---- F8 ----

/// Rule R-WIR-34.
#[test]
fn f8_migreq_is_sent_as_1_and_taken_as_either() {
    let mut lone = Lone::new(Conn::default());
    lone.post(SendWr::send(1, &[lone.sge(0, 3000)]));
    for (n, migreq) in [(0, false), (1, true)] {
        let packet = nothing(&lone, Operation::WriteOnly, n).with(|bth| bth.with_migreq(migreq));
        lone.inject(&[packet]);
    }
    assert_eq!(lone.nic.drops().total(), 0);
    let sent = lone.sent_raw();
    assert_eq!(sent.len(), 4, "three packets and an ACK of both");
    for (net, body) in &sent {
        assert!(Packet::parse_body(*net, body).expect("well formed").bth().migreq());
    }
}

#[test]
fn f8_real_peers_send_migreq_as_0_or_1() {
    let Some(rxe) = public("rxe-rping.pcap") else { return };
    assert_eq!(rxe.migreq.into_iter().collect::<Vec<_>>(), [(0, 65)]);
    let Some(hns) = public("hns-hw-send-imm.pcap") else { return };
    assert_eq!(hns.migreq.into_iter().collect::<Vec<_>>(), [(1, 105)]);
}

// ---- F9 ----

/// The frames of a capture whose mirror has rewritten the destination port of RoCE to `port`, read with that port.
fn with_rewritten_port(file: &std::path::Path, port: u16) -> Summary {
    let mut summary = Summary::default();
    captures::each_frame(file, |frame| {
        let mut data = frame.data.to_vec();
        // Ethernet and IPv4 without options: UDP begins at 34.
        if data[12..14] == [8, 0] && data[36..38] == 4791_u16.to_be_bytes() {
            data[36..38].copy_from_slice(&port.to_be_bytes());
        }
        let frame = CapturedFrame { data: &data, ..*frame };
        assert!(dissect(&frame).roce.is_none(), "without the option it is nobody's");
        summary.add(&frame, &trace::dissect_port(&frame, port));
    });
    summary
}

/// Rule R-WIR-9.
#[test]
fn f9_a_rewritten_port_decodes_and_its_icrc_is_that_of_4791() {
    let files = captures::vectors("rxe");
    let file = files.iter().find(|file| file.ends_with("rc_mix.pcap")).expect("the recording");
    let summary = with_rewritten_port(file, 9741);
    let packets = summary.kinds[&FrameKind::Roce2];
    assert!(packets > 10);
    assert_eq!((summary.icrc[&IcrcCheck::Bad], summary.icrc_right_for_4791), (packets, packets));
}

#[test]
fn f9_the_capture_of_the_case() {
    let Some(folder) = captures::public("F9") else { return };
    let summary = with_rewritten_port(&folder.join("rxe-rping.pcap"), 9741);
    assert_eq!((summary.frames, summary.kinds[&FrameKind::Roce2]), (65, 65));
    assert_eq!((summary.icrc[&IcrcCheck::Bad], summary.icrc_right_for_4791), (65, 65));
}

/// The key of a local piece is not looked at where it has no byte.
#[test]
fn f4_an_empty_local_piece_is_not_looked_at() {
    let mut lone = Lone::new(Conn::default());
    let nowhere = Sge { addr: VirtAddr::new(1), length: 0, lkey: LKey::new(0xDEAD_BEEF) };
    lone.post(SendWr::send(1, &[nowhere]));
    assert_eq!(lone.sent().len(), 1);
}
