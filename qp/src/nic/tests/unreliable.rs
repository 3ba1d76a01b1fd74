//! Unreliable connections and datagrams: what arrives, what is dropped, and that nobody is told.

use transport::DropReason;
use wire::{PacketRepr, QKey, Qpn};

use super::*;
use crate::kit::{Host, join, statuses};
use crate::state::{AddressVector, QpType};
use crate::wr::AhId;

pub(super) const QKEY: QKey = QKey::new(0x1111_1111);

/// Two hosts with unreliable connections in RTS.
fn uc() -> (Host, Host) {
    let make = |number| Host::with(number, |init| init.qp_type = QpType::Uc);
    uc_with(make(1), make(2))
}

pub(super) fn uc_with(mut a: Host, mut b: Host) -> (Host, Host) {
    let (of_a, of_b) = (a.attr(&b), b.attr(&a));
    for (host, attr) in [(&mut a, &of_a), (&mut b, &of_b)] {
        host.bring(QpState::Rts, attr);
    }
    (a, b)
}

/// Two hosts with datagram queue pairs in RTS, and the first one's way to the second.
pub(super) fn ud(qp_type: QpType) -> (Host, Host, AhId) {
    let make = |number| Host::with(number, |init| init.qp_type = qp_type);
    ud_with(make(1), make(2))
}

pub(super) fn ud_with(mut a: Host, mut b: Host) -> (Host, Host, AhId) {
    for host in [&mut a, &mut b] {
        host.bring(QpState::Rts, &QpAttr { qkey: QKEY, ..QpAttr::default() });
    }
    let addr = AddressVector { dgid: b.gid, ..AddressVector::default() };
    let ah = a.nic.create_ah(a.pd, addr).unwrap();
    (a, b, ah)
}

pub(super) fn carry(a: &mut Host, b: &mut Host) -> Vec<PacketRepr> {
    let packets = a.transmit();
    b.take(&packets);
    packets
}

/// Rule R-REQ-33.
#[test]
fn uc_moves_messages_and_completes_when_they_are_sent() {
    let (mut a, mut b) = uc();
    b.recv(RecvWr::new(1, &[b.sge(0, 4096)]));
    b.recv(RecvWr::new(2, &[]));
    a.send(SendWr::send_imm(3, &[a.sge(0, 3000)], [9, 8, 7, 6]).signaled());
    a.send(SendWr::write_imm(4, &[a.sge(0, 2048)], b.va(0x5000), b.mr.rkey, [1, 2, 3, 4]).signaled());
    let packets = carry(&mut a, &mut b);
    assert_eq!(packets.len(), 5);
    assert!(packets.iter().all(|packet| !packet.bth.ack_req()), "rule R-REQ-12");
    assert_eq!(statuses(&a.sends_done()), [(3, WcStatus::Success), (4, WcStatus::Success)]);
    let received = b.receives_done();
    assert_eq!(
        received.iter().map(|wc| (wc.byte_len, wc.imm)).collect::<Vec<_>>(),
        [(3000, Some([9, 8, 7, 6])), (2048, Some([1, 2, 3, 4]))]
    );
    assert_eq!(b.nic.mr_bytes(b.mr.lkey, 0, 3000).unwrap(), [1; 3000]);
    assert_eq!(b.nic.mr_bytes(b.mr.lkey, 0x5000, 2049).unwrap(), [&[1; 2048][..], &[2]].concat());
    assert!(b.transmit().is_empty(), "nothing is ever answered");
}

/// Rules R-RSP-40, R-RSP-41.
#[test]
fn uc_loses_the_message_that_lacks_a_packet_and_takes_the_next() {
    for lost in 0..3 {
        let (mut a, mut b) = uc();
        b.recv(RecvWr::new(1, &[b.sge(0, 4096)]));
        a.send(SendWr::send(2, &[a.sge(0, 3000)]));
        a.send(SendWr::send(3, &[a.sge(0, 100)]));
        let mut packets = a.transmit();
        packets.remove(lost);
        b.take(&packets);
        let received = b.receives_done();
        assert_eq!(received.iter().map(|wc| (wc.wr_id.value(), wc.byte_len)).collect::<Vec<_>>(), [(1, 100)]);
        assert_eq!(b.state(), QpState::Rts);
        assert!(b.transmit().is_empty());
    }
}

#[test]
fn uc_drops_what_has_no_receive_or_breaks_a_rule_and_lives_on() {
    let (mut a, mut b) = uc();
    a.send(SendWr::send(1, &[a.sge(0, 2048)]));
    carry(&mut a, &mut b);
    assert_eq!(b.dropped(), [(DropReason::OutOfSequence, 1), (DropReason::NoReceive, 1)]);
    b.recv(RecvWr::new(2, &[b.sge(0, 10)]));
    a.send(SendWr::send(3, &[a.sge(0, 11)]));
    a.send(SendWr::write(4, &[a.sge(0, 8)], b.va(0), RKey::new(0xBAD)));
    a.send(SendWr::send(5, &[a.sge(0, 10)]));
    carry(&mut a, &mut b);
    assert_eq!(b.receives_done()[0].byte_len, 10);
    assert!(b.dropped().contains(&(DropReason::BadRequest, 2)));
}

#[test]
fn uc_cannot_read_or_do_atomics() {
    let (mut a, b) = uc();
    for wr in [
        SendWr::read(1, &[a.sge(0, 8)], b.va(0), b.mr.rkey),
        SendWr::fetch_add(2, a.sge(0, 8), b.va(0), b.mr.rkey, 1),
    ] {
        let error = a.nic.post_send(Instant::ZERO, a.qpn, wr).unwrap_err();
        assert_eq!((error, error.errno()), (PostError::WrongType(QpType::Uc), 22));
    }
}

#[test]
fn a_bad_key_of_the_sender_stops_an_unreliable_send_queue_only() {
    let (mut a, mut b) = uc();
    let mut bad = a.sge(0, 8);
    bad.lkey = LKey::new(0xBAD);
    a.recv(RecvWr::new(9, &[a.sge(0, 64)]));
    a.send(SendWr::send(1, &[bad]));
    a.send(SendWr::send(2, &[a.sge(0, 8)]));
    assert!(carry(&mut a, &mut b).is_empty());
    assert_eq!(statuses(&a.sends_done()), [(1, WcStatus::LocProtErr), (2, WcStatus::WrFlushErr)]);
    assert_eq!(a.state(), QpState::Sqe);
    // The receive queue goes on, and the send queue can be started again (rule R-QPS-19).
    b.send(SendWr::send(3, &[b.sge(0, 5)]));
    carry(&mut b, &mut a);
    assert_eq!(a.receives_done()[0].byte_len, 5);
    a.go(QpState::Rts);
    b.recv(RecvWr::new(4, &[b.sge(0, 64)]));
    a.send(SendWr::send(5, &[a.sge(0, 8)]).signaled());
    carry(&mut a, &mut b);
    assert_eq!(statuses(&a.sends_done()), [(5, WcStatus::Success)]);
}

/// Rule R-RSP-43.
#[test]
fn f36_a_datagram_lies_behind_its_network_header() {
    let (mut a, mut b, ah) = ud(QpType::Ud);
    b.recv(RecvWr::new(1, &[b.sge(0, 200)]));
    a.send(SendWr::send_imm(2, &[a.sge(0, 33)], [1, 2, 3, 4]).to(ah, b.qpn, QKEY).signaled());
    let packets = carry(&mut a, &mut b);
    assert_eq!(statuses(&a.sends_done()), [(2, WcStatus::Success)]);
    let wc = b.receives_done()[0];
    assert_eq!((wc.byte_len, wc.src_qp, wc.imm, wc.grh), (73, a.qpn, Some([1, 2, 3, 4]), true));
    let bytes = b.nic.mr_bytes(b.mr.lkey, 0, 74).unwrap();
    let mut header = [0; 48];
    packets[0].net.emit(&mut header);
    assert_eq!(&bytes[..20], [0; 20]);
    assert_eq!(&bytes[20..40], &header[..20], "the IPv4 header, checksum included");
    assert_eq!(&bytes[40..], [&[1; 33][..], &[2]].concat());
}

/// Rules R-RSP-44, R-REQ-34.
#[test]
fn f37_a_datagram_that_does_not_fit_is_lost_and_no_more() {
    let (mut a, mut b, ah) = ud(QpType::Ud);
    b.recv(RecvWr::new(1, &[b.sge(0, 56)]));
    a.send(SendWr::send(2, &[a.sge(0, 17)]).to(ah, b.qpn, QKEY));
    a.send(SendWr::send(3, &[a.sge(0, 16)]).to(ah, b.qpn, QKEY));
    carry(&mut a, &mut b);
    assert_eq!(b.receives_done()[0].byte_len, 56);
    assert_eq!((b.state(), b.dropped()), (QpState::Rts, vec![(DropReason::BadRequest, 1)]));
    let wr = SendWr::send(4, &[a.sge(0, 4097)]).to(ah, b.qpn, QKEY);
    let error = a.nic.post_send(Instant::ZERO, a.qpn, wr).unwrap_err();
    assert_eq!((error, error.errno()), (PostError::DatagramTooLong { given: 4097, max: 4096 }, 22));
}

/// Rules R-ADM-15, R-REQ-35.
#[test]
fn datagrams_need_the_queue_key_and_bit_31_sends_ones_own() {
    let (mut a, mut b, ah) = ud(QpType::Ud);
    for (id, qkey) in [(1, QKey::new(5)), (2, QKey::new(0x8000_0000)), (3, QKEY)] {
        b.recv(RecvWr::new(id, &[b.sge(0, 64)]));
        a.send(SendWr::send(id, &[a.sge(0, 8)]).to(ah, b.qpn, qkey));
    }
    carry(&mut a, &mut b);
    assert_eq!(b.receives_done().len(), 2);
    assert_eq!(b.dropped(), [(DropReason::QKeyMismatch, 1)]);
}

/// Rule R-ADR-8.
#[test]
fn datagrams_go_each_its_way() {
    let (mut a, mut b, ah) = ud(QpType::Ud);
    let elsewhere = AddressVector { dgid: Host::new(3).gid, ..AddressVector::default() };
    let other = a.nic.create_ah(a.pd, elsewhere).unwrap();
    for (id, ah) in [(1, ah), (2, other), (3, ah), (4, ah)] {
        a.send(SendWr::send(id, &[a.sge(0, 8)]).to(ah, b.qpn, QKEY).signaled());
        b.recv(RecvWr::new(id, &[b.sge(0, 64)]));
    }
    let packets = carry(&mut a, &mut b);
    assert_eq!(packets.len(), 4);
    assert_eq!(statuses(&a.sends_done()).len(), 4);
    assert_eq!(b.receives_done().len(), 3);
    assert_eq!(b.dropped(), [(DropReason::WrongAddress, 1)]);
}

#[test]
fn datagrams_are_refused_without_a_way() {
    let (mut a, b, ah) = ud(QpType::Ud);
    let mut post = |wr| a.nic.post_send(Instant::ZERO, a.qpn, wr).unwrap_err();
    assert_eq!(post(SendWr::send(1, &[])), PostError::NoAddress);
    let write = SendWr::write(2, &[], wire::VirtAddr::new(0), RKey::new(0)).to(ah, b.qpn, QKEY);
    assert_eq!(post(write), PostError::WrongType(QpType::Ud));
    a.nic.destroy_ah(ah).unwrap();
    let gone = SendWr::send(3, &[]).to(ah, b.qpn, QKEY);
    assert_eq!(a.nic.post_send(Instant::ZERO, a.qpn, gone), Err(PostError::NoSuchAh));
    assert!(a.nic.destroy_ah(ah).is_err());
}

/// Rule R-ADR-21.
#[test]
fn the_general_services_pair_is_number_1_and_its_key_is_known() {
    let (mut a, mut b, ah) = ud(QpType::Gsi);
    assert_eq!((a.qpn, b.qpn), (Qpn::GSI, Qpn::GSI));
    b.recv(RecvWr::new(1, &[b.sge(0, 300)]));
    a.send(SendWr::send(2, &[a.sge(0, 256)]).to(ah, Qpn::GSI, QKey::new(0x8001_0000)));
    let packets = carry(&mut a, &mut b);
    assert_eq!(packets[0].bth.dest_qp(), Qpn::GSI);
    assert_eq!(b.receives_done()[0].byte_len, 296);
    let error = a.nic.create_qp(a.init).unwrap_err();
    assert_eq!(error, crate::error::CreateError::GsiTaken);
    a.nic.destroy_qp(Qpn::GSI).unwrap();
    a.nic.create_qp(a.init).unwrap();
}

/// Rule R-ADM-4.
#[test]
fn packets_of_another_transport_find_nobody() {
    let (mut rc, _) = join(Host::new(1), Host::new(2), |_| {});
    let (mut a, mut b) = uc();
    a.send(SendWr::send(1, &[a.sge(0, 8)]));
    let packets = carry(&mut a, &mut b);
    rc.take(&packets);
    assert_eq!(rc.dropped(), [(DropReason::WrongTransport, 1)]);
}

#[test]
fn a_drained_queue_of_datagrams_waits_and_goes_on() {
    let (mut a, mut b, ah) = ud(QpType::Ud);
    a.go(QpState::Sqd);
    b.recv(RecvWr::new(1, &[b.sge(0, 64)]));
    a.send(SendWr::send(2, &[a.sge(0, 8)]).to(ah, b.qpn, QKEY).signaled());
    assert!(carry(&mut a, &mut b).is_empty());
    a.go(QpState::Rts);
    carry(&mut a, &mut b);
    assert_eq!(statuses(&a.sends_done()), [(2, WcStatus::Success)]);
    assert_eq!(b.receives_done().len(), 1);
}

/// Rule R-RSP-53.
#[test]
fn a_bad_piece_of_an_unreliable_receive_is_told_here_only() {
    let bad = |host: &Host| Sge { lkey: LKey::new(0xBAD), ..host.sge(0, 64) };
    let (mut a, mut b) = uc();
    b.recv(RecvWr::new(1, &[bad(&b)]));
    b.recv(RecvWr::new(2, &[]));
    a.send(SendWr::send(3, &[a.sge(0, 8)]));
    carry(&mut a, &mut b);
    assert_eq!(statuses(&b.receives_done()), [(1, WcStatus::LocProtErr), (2, WcStatus::WrFlushErr)]);
    assert_eq!((b.state(), b.transmit()), (QpState::Err, vec![]));
    let (mut a, mut b, ah) = ud(QpType::Ud);
    b.recv(RecvWr::new(1, &[bad(&b)]));
    a.send(SendWr::send(3, &[a.sge(0, 8)]).to(ah, b.qpn, QKEY));
    carry(&mut a, &mut b);
    assert_eq!(statuses(&b.receives_done()), [(1, WcStatus::LocProtErr)]);
    assert_eq!((b.state(), b.transmit()), (QpState::Err, vec![]));
}

/// Rule R-RSP-54.
#[test]
fn a_datagram_may_have_any_psn() {
    let (mut a, mut b, ah) = ud(QpType::Ud);
    a.send(SendWr::send(1, &[a.sge(0, 8)]).to(ah, b.qpn, QKEY));
    let packet = a.transmit().remove(0);
    for (id, psn) in (0..).zip([0, 5, 5, 0xFF_FFFF, 1]) {
        b.recv(RecvWr::new(id, &[b.sge(0, 64)]));
        let mut packet = packet.clone();
        packet.bth = packet.bth.with_psn(Psn::new(psn));
        packet.refill_icrc();
        b.take(&[packet]);
        assert_eq!(statuses(&b.receives_done()), [(id, WcStatus::Success)]);
    }
}

/// Rule R-RSP-41.
#[test]
fn what_a_broken_unreliable_write_has_placed_stays() {
    let (mut a, mut b) = uc();
    a.send(SendWr::write(1, &[a.sge(0, 3000)], b.va(0), b.mr.rkey));
    let packets = a.transmit();
    b.take(&[packets[0].clone(), packets[2].clone()]);
    assert_eq!(b.nic.mr_bytes(b.mr.lkey, 0, 3000).unwrap(), [vec![1; 1024], vec![2; 1976]].concat());
}
