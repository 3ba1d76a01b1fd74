//! F21 to F23, F29 and F30: how work requests end.

use qp::{
    AsyncEvent, AttrMask, Event, PostError, QpAttr, QpInit, QpState, QpType, RecvWr, SendOp, SendWr, SrqInit,
};
use transport::{DropReason, WcOpcode, WcStatus};
use wire::{LKey, Operation, RKey, RnrTimer, Syndrome, VirtAddr};

use super::*;
use crate::harness::{Crafted, Lone};

// ---- F21 ----

/// Rules R-CQE-2, R-CQE-4.
#[test]
fn f21_entering_err_flushes_ten_sends_and_ten_receives_and_what_is_posted_later() {
    let mut ends = ends("f21", Conn::default());
    let (write, key) = (ends.near(0, 8), ends.mrs[1].rkey);
    for id in 0..10 {
        ends.post(SendWr::write(id, &[write], ends.mrs[1].addr, key));
        let (now, a) = (ends.world.now, ends.a);
        ends.world.nic(a).post_recv(now, a.qpn, RecvWr::new(100 + id, &[])).unwrap();
    }
    let a = ends.a;
    ends.go(a, QpState::Err);
    assert_eq!(statuses(&ends.world.send_completions(a)), all_flushed(0..10));
    assert_eq!(statuses(&ends.world.recv_completions(a)), all_flushed(100..110));
    ends.post(SendWr::send(10, &[]));
    assert_eq!(statuses(&ends.world.send_completions(a)), all_flushed([10]));
    // Nothing left the queue pair, and nothing more comes of it.
    assert_eq!(ends.drive(), []);
    assert!(ends.world.recv_completions(a).is_empty());
}

/// Rule R-CQE-12.
#[test]
fn f21_with_a_shared_receive_queue_an_event_stands_for_the_receives() {
    let mut ends = ends("f21-srq", Conn::default());
    let a = ends.a;
    let init = ends.init();
    let nic = ends.world.nic(a);
    let srq = nic.create_srq(SrqInit::new(init.pd, 16, 1)).unwrap();
    let qpn = nic.create_qp(QpInit { srq: Some(srq), ..init }).unwrap();
    for id in 0..10 {
        nic.post_srq_recv(srq, RecvWr::new(id, &[])).unwrap();
    }
    let (peer, conn) = ((ends.world.hosts[1].gid, NOBODY), ends.conn);
    let now = ends.world.now;
    conn.establish(ends.world.nic(a), now, qpn, peer, [0, 0]).unwrap();
    let failed = QpAttr { state: QpState::Err, ..QpAttr::default() };
    ends.world.nic(a).modify_qp(now, qpn, &failed, AttrMask::STATE).unwrap();
    ends.world.drive();
    assert_eq!(ends.world.hosts[0].events, [Event::Async(AsyncEvent::LastWqeReached(qpn))]);
    assert_eq!((ends.world.send_completions(a), ends.world.nic(a).srq_len(srq)), (vec![], 10));
}

// ---- F22 ----

/// Rule R-CQE-5.
#[test]
fn f22_flushed_work_keeps_its_mark_its_queue_pair_and_its_opcode() {
    let mut ends = ends("f22", Conn::default());
    let (near, va, key, a) = (ends.near(0, 8), ends.mrs[1].addr, ends.mrs[1].rkey, ends.a);
    ends.post(SendWr::write(0, &[near], va, key));
    ends.post(SendWr::read(1, &[near], va, key));
    ends.post(SendWr::send(2, &[near]));
    ends.post(SendWr::cmp_swap(3, near, va, key, 1, 2));
    ends.post(SendWr::fetch_add(4, near, va, key, 1));
    let now = ends.world.now;
    ends.world.nic(a).post_recv(now, a.qpn, RecvWr::new(5, &[near])).unwrap();
    ends.go(a, QpState::Err);
    let mut done = ends.world.send_completions(a);
    done.extend(ends.world.recv_completions(a));
    assert_eq!(statuses(&done), all_flushed(0..6));
    use WcOpcode::{CompSwap, FetchAdd, RdmaRead, RdmaWrite, Recv, Send};
    assert_eq!(opcodes(&done), [RdmaWrite, RdmaRead, Send, CompSwap, FetchAdd, Recv]);
    for wc in done {
        assert_eq!((wc.qp_num, wc.byte_len, wc.vendor_err, wc.imm), (a.qpn, 0, 0, None));
    }
}

/// The one at fault says the same of itself.
#[test]
fn f22_a_refused_request_says_what_it_was() {
    let mut ends = ends("f22-refused", Conn::default());
    let (near, va, a) = (ends.near(0, 8), ends.mrs[1].addr, ends.a);
    let bad = RKey::new(ends.mrs[1].rkey.value() ^ 1);
    for (wr, opcode) in [
        (SendWr::write(7, &[near], va, bad), WcOpcode::RdmaWrite),
        (SendWr::read(7, &[near], va, bad), WcOpcode::RdmaRead),
        (SendWr::fetch_add(7, near, va, bad, 1), WcOpcode::FetchAdd),
    ] {
        ends.post(wr);
        let done = ends.drive();
        assert_eq!(statuses(&done), [(7, WcStatus::RemAccessErr)]);
        let wc = done[0];
        // The vendor error is the syndrome that refused it.
        assert_eq!((wc.opcode, wc.qp_num, wc.byte_len, wc.vendor_err), (opcode, a.qpn, 0, 0x62));
        ends.reconnect();
    }
}

// ---- F23 ----

/// Rule R-CQE-6.
#[test]
fn f23_five_rounds_of_a_wrong_key_are_five_completions() {
    let mut ends = ends("f23", Conn::default());
    let bad = RKey::new(ends.mrs[1].rkey.value() ^ 1);
    for round in 0..5 {
        ends.post(SendWr::write(round, &[ends.near(0, 8)], ends.mrs[1].addr, bad));
        assert_eq!(statuses(&ends.drive()), [(round, WcStatus::RemAccessErr)]);
        ends.reconnect();
    }
    assert_eq!(ends.bytes_at_far(0, 8), [2; 8]);
}

/// Rules R-REQ-15, R-MEM-10.
#[test]
fn f23_a_bad_local_key_or_range_is_a_local_protection_error() {
    let mut ends = ends("f23-local", Conn::default());
    let (near, va, key) = (ends.near(0, 8), ends.mrs[1].addr, ends.mrs[1].rkey);
    let wrong_key = Sge { lkey: LKey::new(near.lkey.value() ^ 1), ..near };
    let beyond = ends.near(ROOM as u64 - 7, 8);
    for sge in [wrong_key, beyond] {
        for wr in [
            SendWr::fetch_add(1, sge, va, key, 1),
            SendWr::write(1, &[sge], va, key),
            SendWr::read(1, &[sge], va, key),
            SendWr::send(1, &[sge]),
        ] {
            ends.post(wr);
            assert_eq!(statuses(&ends.drive()), [(1, WcStatus::LocProtErr)]);
            ends.reconnect();
        }
    }
    assert_eq!(ends.bytes_at_far(0, 8), [2; 8]);
}

#[test]
fn f23_what_is_too_long_or_not_allowed_is_told() {
    // A message that the receive has no room for.
    let mut ends = ends("f23-long", Conn::default());
    let b = ends.b;
    ends.post_recv(RecvWr::new(1, &[ends.far(0, 8)]));
    ends.post(SendWr::send(2, &[ends.near(0, 9)]));
    assert_eq!(statuses(&ends.drive()), [(2, WcStatus::RemInvReqErr)]);
    assert_eq!(statuses(&ends.world.recv_completions(b)), [(1, WcStatus::LocLenErr)]);
    // Longer than any message, and operations of another type: not posted at all.
    let (a, now, piece) = (ends.a, ends.world.now, ends.near(0, 0x4000_0000));
    ends.reconnect();
    let refused = ends.world.nic(a).post_send(now, a.qpn, SendWr::send(3, &[piece; 4])).unwrap_err();
    assert_eq!((refused, refused.errno()), (PostError::TooLong(1 << 32), 22));
    let init = QpInit { qp_type: QpType::Uc, ..ends.init() };
    let uc = ends.world.nic(a).create_qp(init).unwrap();
    let conn = ends.conn;
    conn.establish(ends.world.nic(a), now, uc, (Lone::peer_gid(), NOBODY), [0, 0]).unwrap();
    let read = SendWr::read(4, &[ends.near(0, 8)], VirtAddr::new(0), RKey::new(0));
    let refused = ends.world.nic(a).post_send(now, uc, read).unwrap_err();
    assert_eq!((refused, refused.errno()), (PostError::WrongType(QpType::Uc), 22));
    assert!(ends.drive().is_empty());
}

// ---- F29 ----

/// Rule R-WIR-25.
#[test]
fn f29_the_bytes_of_an_immediate_are_those_on_the_wire_and_at_the_receiver() {
    // As htonl(0x01020304) is stored.
    let imm = 0x0102_0304_u32.to_be_bytes();
    let mut lone = Lone::new(Conn::default());
    lone.post(SendWr::send_imm(1, &[lone.sge(0, 4)], imm));
    lone.post(SendWr::write_imm(2, &[lone.sge(0, 4)], VirtAddr::new(0), RKey::new(7), imm));
    let sent = lone.sent();
    assert_eq!(sent.iter().map(|sent| sent.imm).collect::<Vec<_>>(), [Some([1, 2, 3, 4]); 2]);
    let mut ends = ends("f29", Conn::default());
    for id in 0..2 {
        ends.post_recv(RecvWr::new(id, &[ends.far(0, 8)]));
    }
    ends.post(SendWr::send_imm(1, &[ends.near(0, 4)], imm));
    ends.post(SendWr::write_imm(2, &[ends.near(0, 4)], ends.mrs[1].addr, ends.mrs[1].rkey, imm));
    ends.drive();
    let b = ends.b;
    let received = ends.world.recv_completions(b);
    assert_eq!(received.iter().map(|wc| wc.imm).collect::<Vec<_>>(), [Some([1, 2, 3, 4]); 2]);
    assert_eq!(opcodes(&received), [WcOpcode::Recv, WcOpcode::RecvRdmaWithImm]);
}

// ---- F30 ----

/// Rule R-RSP-20.
#[test]
fn f30_a_write_with_immediate_takes_a_receive_and_leaves_its_buffers_alone() {
    let mut ends = ends("f30", Conn::default());
    let b = ends.b;
    ends.post_recv(RecvWr::new(1, &[]));
    ends.post_recv(RecvWr::new(2, &[ends.far(0, 4096)]));
    for id in 0..2 {
        let sges = [ends.near(0, 3000)];
        let va = ends.mrs[1].addr.wrapping_add(8192);
        ends.post(SendWr::new(id, SendOp::Write { va, rkey: ends.mrs[1].rkey, imm: Some([9; 4]) }, &sges));
    }
    ends.drive();
    let received = ends.world.recv_completions(b);
    assert_eq!(statuses(&received), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    assert_eq!(opcodes(&received), [WcOpcode::RecvRdmaWithImm; 2]);
    assert!(received.iter().all(|wc| wc.byte_len == 3000 && wc.imm == Some([9; 4])));
    assert_eq!(ends.bytes_at_far(0, 4096), [2; 4096], "the receive's buffer");
    assert_eq!(ends.bytes_at_far(8192, 3001), [vec![1; 3000], vec![2]].concat());
}

#[test]
fn f30_without_a_receive_the_last_packet_is_refused() {
    let mut lone = Lone::new(Conn { min_rnr_timer: 12, ..Conn::default() });
    let (va, rkey) = (lone.va(0), lone.mr.rkey);
    let rc = |operation, n| Crafted::rc(operation, lone.qpn, Lone::psn(n)).ack_req();
    let packets = [
        rc(Operation::WriteFirst, 0).reth(va, rkey, 3000).payload(&[1; 1024]),
        rc(Operation::WriteMiddle, 1).payload(&[2; 1024]),
        // With the four bytes of the immediate, which stand where an AETH has its own.
        rc(Operation::WriteLastImm, 2).aeth(Syndrome::ACK, 0).payload(&[3; 952]),
    ];
    let answers = lone.answer(&packets);
    let rnr = Syndrome::RnrNak(RnrTimer::new(12).unwrap());
    assert_eq!(answers.last().map(|nak| (nak.psn, nak.aeth)), Some((Lone::psn(2), Some((rnr, 0)))));
    assert_eq!(lone.bytes(2048, 952), [0; 952], "what the last packet carries waits for the receive");
    lone.post_recv(1, 0);
    let answers = lone.answer(&packets[2..]);
    assert_eq!(answers[0].aeth, Some((Syndrome::ACK, 1)));
    assert_eq!((lone.completions()[0].byte_len, lone.bytes(2048, 952)[0]), (3000, 3));
    assert_eq!(lone.nic.drops().get(DropReason::Malformed), 0);
}
