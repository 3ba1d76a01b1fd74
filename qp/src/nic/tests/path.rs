//! Packets at the door, completion queues that are full, queue pairs that go, and timers.

use transport::DropReason;
use wire::batch::{HeaderKnowledge, RxBurst};
use wire::{Bth, Mtu, Opcode, Operation as Op, PKey, PacketRepr, Syndrome};

use super::*;
use crate::error::{CreateError, DestroyError};
use crate::pair::QpInit;

/// A SEND of nothing that `b` takes from `a`, with changes by `change`.
fn offered(b: &mut Host, a: &Host, change: impl FnOnce(&mut PacketRepr)) -> Vec<(DropReason, u64)> {
    let bth = Bth::new(Opcode::rc(Op::SendOnly), b.qpn, Psn::new(0));
    let mut packet = PacketRepr::new(reply_net(a, b), bth, [], []).unwrap();
    change(&mut packet);
    b.take(&[packet]);
    assert_eq!(b.transmit().len(), usize::from(b.dropped().is_empty()), "what is dropped is not answered");
    b.dropped()
}

/// Rules R-WIR-15, R-WIR-32, R-ADM-2, R-ADM-3, R-ADM-4, R-ADM-14, R-ADR-3.
#[test]
fn what_is_not_for_a_queue_pair_is_dropped_under_its_reason() {
    type Change = fn(&mut PacketRepr);
    let cases: [(Change, DropReason); 9] = [
        (|p| p.bth = p.bth.with_opcode(Opcode::from_byte(0x15)), DropReason::UnknownOpcode),
        (|p| p.bth = p.bth.with_pad_count(1), DropReason::Malformed),
        (|p| p.bth = p.bth.with_tver(1), DropReason::BadVersion),
        (|p| p.bth = p.bth.with_dest_qp(Qpn::new(0)), DropReason::NoSuchQp),
        (|p| p.bth = p.bth.with_dest_qp(Qpn::new(0xFF_FFFF)), DropReason::NoSuchQp),
        (|p| p.bth = p.bth.with_opcode(Opcode::from_byte(0x24)), DropReason::WrongTransport),
        (|p| p.bth = p.bth.with_pkey(PKey::new(1)), DropReason::PKeyMismatch),
        (|p| p.icrc ^= 1, DropReason::BadIcrc),
        (|p| p.bth = p.bth.with_psn(Psn::new(5)), DropReason::BadIcrc),
    ];
    for (change, reason) in cases {
        let (a, mut b) = connected();
        let found = offered(&mut b, &a, |packet| {
            change(packet);
            if reason != DropReason::BadIcrc {
                packet.refill_icrc();
            }
        });
        assert_eq!(found, [(reason, 1)]);
        assert_eq!(b.nic.counters().rx_icrc_encapsulated, u64::from(reason == DropReason::BadIcrc));
    }
    let (a, mut b) = connected();
    assert_eq!(offered(&mut b, &a, |_| {}), []);
}

/// Rule R-ADR-9.
#[test]
fn only_the_peer_is_heard() {
    let stranger = Host::new(9);
    let (a, mut b) = connected();
    let found = offered(&mut b, &stranger, |_| {});
    assert_eq!(found, [(DropReason::WrongAddress, 1)], "R-ADM-7");
    let (_, mut b) = (a, b);
    let found = offered(&mut b, &Host::new(1), |packet| {
        packet.net = reply_net(&Host::new(1), &stranger);
        packet.finish();
    });
    assert_eq!(found, [(DropReason::WrongAddress, 2)]);
}

/// Rules R-ADM-5, R-ADM-6.
#[test]
fn states_take_the_packets_they_should() {
    for (state, requests, responses) in [
        (QpState::Reset, false, false),
        (QpState::Init, false, false),
        (QpState::Rtr, true, false),
        (QpState::Rts, true, true),
        (QpState::Sqd, true, true),
        (QpState::Err, false, false),
    ] {
        let (a, mut b) = (Host::new(1), Host::new(2));
        let attr = b.attr(&a);
        match state {
            QpState::Sqd | QpState::Err => {
                b.bring(QpState::Rts, &attr);
                b.go(state);
            }
            _ => b.bring(state, &attr),
        }
        let net = reply_net(&a, &b);
        let bth = Bth::new(Opcode::rc(Op::SendOnly), b.qpn, Psn::new(0));
        b.take(&[PacketRepr::new(net, bth, [], []).unwrap()]);
        let refused = u64::from(!requests);
        assert_eq!(b.nic.drops().get(DropReason::QpState), refused, "requests in {state}");
        b.take(&[PacketRepr::ack(net, b.qpn, Psn::new(0), Syndrome::ACK, wire::Msn::new(0))]);
        let ghosts = b.nic.drops().get(DropReason::GhostResponse);
        assert_eq!(ghosts, u64::from(responses), "responses in {state}");
        // R-ADM-8.
        let before = b.nic.drops().get(DropReason::QpState);
        b.take(&[PacketRepr::cnp(net, b.qpn)]);
        assert_eq!(b.nic.drops().get(DropReason::QpState) - before, refused, "CNP in {state}");
        assert_eq!(b.nic.counters().rp_cnp_ignored, u64::from(requests));
    }
}

/// Rules R-ADR-10, R-ADM-9, R-CNP-6, R-CNP-7.
#[test]
fn a_cnp_may_come_from_anywhere_and_does_nothing_else() {
    let (_, mut b) = connected();
    let net = reply_net(&Host::new(9), &b);
    let mut bad = PacketRepr::cnp(net, b.qpn);
    bad.icrc ^= 1;
    b.take(&[PacketRepr::cnp(net, b.qpn), bad, PacketRepr::cnp(net, Qpn::new(5))]);
    assert_eq!(b.nic.counters().rp_cnp_ignored, 1);
    assert_eq!(b.dropped(), [(DropReason::NoSuchQp, 1), (DropReason::BadIcrc, 1)]);
    assert_eq!(b.transmit(), []);
}

/// Rule R-ADM-11.
#[test]
fn an_identification_nobody_saw_is_solved_for() {
    let (mut a, mut b) = connected();
    b.recv(RecvWr::new(1, &[b.sge(0, 8)]));
    a.send(SendWr::send(1, &[a.sge(0, 8)]));
    let packet = a.transmit().remove(0);
    let mut body = Vec::new();
    packet.emit_body(&mut body);
    let mut burst = RxBurst::new();
    burst.push(packet.net.with_id(0x5555), HeaderKnowledge::Unknown, &body);
    body[14] ^= 0xFF;
    burst.push(packet.net, HeaderKnowledge::Assumed, &body);
    b.nic.handle_burst(NOW, &burst);
    assert_eq!((b.receives_done().len(), b.dropped()), (1, vec![(DropReason::BadIcrc, 1)]));
    assert_eq!(b.nic.counters().rx_icrc_id_solved, 1);
}

/// Rule R-ADM-17.
#[test]
fn an_identification_known_within_bounds_is_solved_for_within_them() {
    let (mut a, mut b) = connected();
    for (sent, guess, arrives, solved) in
        [(0, 0, true, 0), (5, 5, true, 0), (63, 0, true, 1), (64, 0, false, 0)]
    {
        let before = b.nic.counters().rx_icrc_id_solved;
        b.recv(RecvWr::new(1, &[b.sge(0, 8)]));
        a.send(SendWr::send(1, &[a.sge(0, 8)]));
        let mut packet = a.transmit().remove(0);
        packet.net = packet.net.with_id(sent);
        packet.refill_icrc();
        let mut body = Vec::new();
        packet.emit_body(&mut body);
        let mut burst = RxBurst::new();
        burst.push(packet.net.with_id(guess), HeaderKnowledge::Near, &body);
        b.nic.handle_burst(NOW, &burst);
        assert_eq!(b.receives_done().len(), usize::from(arrives), "{sent}");
        assert_eq!(b.nic.counters().rx_icrc_id_solved - before, solved, "{sent}");
    }
    assert_eq!(b.dropped(), [(DropReason::BadIcrc, 1)]);
}

#[test]
fn the_first_request_in_rtr_establishes_communication_once() {
    let (mut a, mut b) = (Host::new(1), Host::new(2));
    let (of_a, of_b) = (a.attr(&b), b.attr(&a));
    a.bring(QpState::Rts, &of_a);
    b.bring(QpState::Rtr, &of_b);
    for id in 0..2 {
        a.send(SendWr::read(id, &[a.sge(0, 8)], b.va(0), b.mr.rkey).signaled());
    }
    drive(&mut a, &mut b);
    let established = [Event::Async(AsyncEvent::CommEst(b.qpn))];
    assert_eq!(b.events(), established, "R-RSP-36");
    assert_eq!(a.sends_done().len(), 2, "R-RSP-39");
    // Another connection, another time.
    for host in [&mut a, &mut b] {
        host.go(QpState::Reset);
    }
    a.bring(QpState::Rts, &of_a);
    b.bring(QpState::Rtr, &of_b);
    a.send(SendWr::read(2, &[a.sge(0, 8)], b.va(0), b.mr.rkey));
    drive(&mut a, &mut b);
    assert_eq!(b.events(), established);
}

/// Rule R-CQE-17.
#[test]
fn a_completion_queue_that_overruns_ends_its_queue_pairs() {
    let (mut a, b) = connected();
    let small = a.nic.create_cq(2).unwrap();
    // One pair sends into the small queue, another receives into it, a third has nothing to do with it.
    let init = QpInit { sq_sig_all: true, ..a.init };
    let one = a.nic.create_qp(QpInit { send_cq: small, ..init }).unwrap();
    let other = a.nic.create_qp(QpInit { recv_cq: small, ..init }).unwrap();
    let (third, peer) = (a.qpn, b.qpn);
    let attr = a.attr(&b);
    for qpn in [one, other] {
        a.qpn = qpn;
        a.bring(QpState::Rts, &attr);
    }
    let mut b = [b];
    let b = &mut b[0];
    a.qpn = one;
    a.recv(RecvWr::new(50, &[]));
    for id in 0..4 {
        a.send(SendWr::write(id, &[a.sge(0, 8)], b.va(0), b.mr.rkey));
    }
    a.qpn = other;
    a.send(SendWr::write(60, &[a.sge(0, 8)], b.va(0), b.mr.rkey));
    a.recv(RecvWr::new(61, &[]));
    let packets = a.transmit();
    let psn = packets.iter().filter(|p| p.bth.dest_qp() == peer).map(|p| p.bth.psn()).nth(2).unwrap();
    a.take(&[PacketRepr::ack(reply_net(b, &a), one, psn, Syndrome::ACK, wire::Msn::new(3))]);

    // Rules R-CQE-17 and R-QPS-21: each is said once.
    let said = [AsyncEvent::CqErr(small), AsyncEvent::QpFatal(one), AsyncEvent::QpFatal(other)];
    assert_eq!(a.events(), said.map(Event::Async));
    let states = [one, other, third].map(|qpn| a.nic.query_qp(qpn).unwrap().0.state);
    assert_eq!(states, [QpState::Err, QpState::Err, QpState::Rts]);
    let mut found = Vec::new();
    a.nic.poll_cq(small, 16, &mut found);
    assert_eq!(statuses(&found), [(0, WcStatus::Success), (1, WcStatus::Success)], "R-CQE-9");
    // What can be told is told.
    assert_eq!(statuses(&a.receives_done()), flushed([50]));
    assert_eq!(statuses(&a.sends_done()), flushed([60]));
    // The queue stays as it is; a pair that comes to it again ends again.
    a.qpn = one;
    a.go(QpState::Reset);
    a.bring(QpState::Rts, &attr);
    a.send(SendWr::write(9, &[a.sge(0, 8)], b.va(0), b.mr.rkey));
    a.transmit();
    a.take(&[PacketRepr::ack(reply_net(b, &a), one, Psn::new(0), Syndrome::ACK, wire::Msn::new(1))]);
    let said = vec![Event::Async(AsyncEvent::QpFatal(one))];
    assert_eq!((a.state(), a.nic.cq_len(small), a.events()), (QpState::Err, 0, said));
}

#[test]
fn a_queue_pair_destroyed_under_traffic_leaves_nothing_behind() {
    let (mut a, mut b) = connected();
    a.send(SendWr::write(1, &[a.sge(0, 8)], b.va(0), b.mr.rkey).signaled());
    drive(&mut a, &mut b);
    a.send(SendWr::read(2, &[a.sge(0, 3000)], b.va(0), b.mr.rkey));
    b.take(&a.transmit());
    a.send(SendWr::write(3, &[a.sge(0, 8)], b.va(0), b.mr.rkey));
    assert!(a.nic.wants_transmit() && a.nic.poll_timeout().is_some());
    assert_eq!(a.nic.destroy_cq(a.send_cq), Err(DestroyError::Busy));
    a.nic.destroy_qp(a.qpn).unwrap();
    assert_eq!(a.nic.destroy_qp(a.qpn), Err(DestroyError::NoSuchObject));
    assert_eq!(a.nic.poll_timeout(), None);
    assert_eq!(a.transmit(), []);
    a.take(&b.transmit());
    assert_eq!(a.dropped(), [(DropReason::NoSuchQp, 3)]);
    assert_eq!(a.sends_done(), [], "R-CQE-15");
    // Its number is not given to the next one, and its queues are free.
    let next = a.nic.create_qp(a.init).unwrap();
    assert_ne!(next, a.qpn);
    a.nic.destroy_qp(next).unwrap();
    a.nic.destroy_cq(a.send_cq).unwrap();
    a.nic.destroy_cq(a.recv_cq).unwrap();
    assert_eq!(a.nic.create_qp(a.init), Err(CreateError::NoCq));
    assert_eq!(a.nic.dealloc_pd(a.pd), Err(DestroyError::Busy));
    a.nic.dereg_mr(a.mr.lkey).unwrap();
    a.nic.dealloc_pd(a.pd).unwrap();
}

#[test]
fn many_rnr_waits_leave_one_timer() {
    // The ACK timer is 2.5 h: what a shorter wait pushed aside would pile up.
    let (mut a, mut b) = join(Host::new(1), Host::new(2), |attr| {
        (attr.timeout, attr.min_rnr_timer) = (31, RnrTimer::new(1).unwrap());
    });
    a.send(SendWr::send(1, &[]).signaled());
    let mut now = NOW;
    for _ in 0..1000 {
        drive_at(now, &mut a, &mut b);
        let due = a.nic.poll_timeout().unwrap();
        assert_eq!(due.since(now), Duration::from_micros(10));
        assert_eq!(a.nic.timers.len(), 1);
        now = due;
        a.nic.handle_timeout(now);
    }
    b.recv(RecvWr::new(1, &[]));
    drive_at(now, &mut a, &mut b);
    assert_eq!(a.sends_done().len(), 1);
}

#[test]
fn one_full_queue_pair_does_not_keep_another_from_sending() {
    let large = |attr: &mut QpAttr| attr.path_mtu = Mtu::B4096;
    let (mut a, b) = join(Host::new(1), Host::new(2), large);
    let second = a.nic.create_qp(a.init).unwrap();
    let (first, mut attr) = (a.qpn, a.attr(&b));
    large(&mut attr);
    a.qpn = second;
    a.bring(QpState::Rts, &attr);
    for (qpn, len) in [(first, 60_000), (second, 1)] {
        a.qpn = qpn;
        a.send(SendWr::write(1, &[a.sge(0, len)], b.va(0), b.mr.rkey));
    }
    let packets = a.transmit();
    // A turn is a batch of the largest packets, counted in whole batches: the second waits for FIRST and MIDDLE of the
    // first, which make a batch, and for eight more, not for its window.
    let turn = operations(&packets).iter().position(|op| *op == Op::WriteOnly);
    assert!(turn.unwrap() <= 10, "{turn:?}");
}

#[test]
fn a_queue_pair_waits_for_its_turn_once() {
    let (mut a, b) = connected();
    for id in 0..16 {
        a.send(SendWr::write(id, &[a.sge(0, 8)], b.va(0), b.mr.rkey));
    }
    assert_eq!(a.nic.ready.len(), 1);
    assert_eq!(a.transmit().len(), 16);
    assert!(!a.nic.wants_transmit());
}

#[test]
fn a_peer_that_reads_on_and_on_leaves_room_for_ones_own_requests() {
    let (mut a, mut b) = connected();
    // Answers of more packets than one batch holds, for longer than a few batches.
    for id in 0..4 {
        b.send(SendWr::read(id, &[b.sge(0, 16_384)], a.va(0), a.mr.rkey));
    }
    let asked = b.transmit();
    a.take(&asked);
    a.send(SendWr::write(9, &[a.sge(0, 8)], b.va(0), b.mr.rkey));
    let sent = a.transmit();
    let own = sent.iter().position(|packet| packet.bth.opcode() == Opcode::rc(Op::WriteOnly)).unwrap();
    assert!(own <= 2 * CAPS.max_segments, "only after {own} answers");
    assert!(own < sent.len() - 1, "there were not enough answers to tell");
}

/// Rule R-ADM-1: of several faults the first in order is the one that counts.
#[test]
fn the_first_fault_at_the_door_is_counted() {
    type Change = fn(&mut PacketRepr);
    let faults: [(Change, DropReason); 7] = [
        (|p| p.bth = p.bth.with_opcode(Opcode::from_byte(0x15)), DropReason::UnknownOpcode),
        (|p| p.bth = p.bth.with_tver(1), DropReason::BadVersion),
        (|p| p.bth = p.bth.with_dest_qp(Qpn::new(5)), DropReason::NoSuchQp),
        (|p| p.bth = p.bth.with_opcode(Opcode::from_byte(0x24)), DropReason::WrongTransport),
        (|p| p.net = reply_net(&Host::new(9), &Host::new(2)), DropReason::WrongAddress),
        (|p| p.bth = p.bth.with_pkey(PKey::new(1)), DropReason::PKeyMismatch),
        (|_| {}, DropReason::BadIcrc),
    ];
    for (first, (_, reason)) in faults.iter().enumerate() {
        let (a, mut b) = connected();
        let found = offered(&mut b, &a, |packet| {
            for (change, _) in faults[first..].iter().rev() {
                change(packet);
            }
            packet.net = packet.net.with_transport_len(packet.body_len());
            packet.refill_icrc();
            packet.icrc ^= 1;
        });
        assert_eq!(found, [(*reason, 1)]);
    }
}

/// Rule R-WIR-33.
#[test]
fn congestion_bits_of_a_request_are_not_looked_at() {
    for (fecn, becn) in [(true, false), (false, true), (true, true)] {
        let (a, mut b) = connected();
        assert_eq!(offered(&mut b, &a, |p| p.bth = p.bth.with_congestion(fecn, becn)), []);
        let counters = b.nic.counters();
        assert_eq!((counters.rp_cnp_ignored, counters.np_ecn_marked_roce_packets), (0, 0));
    }
    let (mut a, _) = connected();
    a.send(SendWr::send(1, &[a.sge(0, 3000)]));
    assert!(a.transmit().iter().all(|packet| !packet.bth.fecn() && !packet.bth.becn()));
}

/// Rules R-ADR-12 to R-ADR-14.
#[test]
fn packets_leave_as_the_address_vector_says() {
    for (hop_limit, hops) in [(0, 64), (1, 64), (2, 2), (255, 255)] {
        let (mut a, b) = join(Host::new(1), Host::new(2), |attr| {
            (attr.addr.hop_limit, attr.addr.traffic_class) = (hop_limit, 0x6B);
        });
        // A request of ours, and an answer.
        a.send(SendWr::send(1, &[]));
        let bth = Bth::new(Opcode::rc(Op::SendOnly), a.qpn, Psn::new(0));
        a.take(&[PacketRepr::new(reply_net(&b, &a), bth, [], []).unwrap()]);
        let sent = a.transmit();
        assert_eq!(sent.len(), 2);
        for packet in sent {
            let wire::NetHeader::V4(ip, _) = packet.net else { panic!("{packet:?} is not IPv4") };
            assert_eq!((ip.ttl, ip.tos), (hops, 0x6B), "hop limit {hop_limit}");
            assert_eq!((packet.net.src_gid(), packet.net.dst_gid()), (a.gid, b.gid));
        }
    }
}
