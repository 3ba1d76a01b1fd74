//! Shared receive queues: several queue pairs on one, and what of it outlives them.

use transport::DropReason;
use wire::Srqn;

use super::unreliable::{self, uc_with, ud_with};
use super::*;
use crate::error::{CreateError, DestroyError};
use crate::pair::QpInit;
use crate::srq::{SrqAttr, SrqInit, SrqMask};
use crate::state::QpType;

/// A shared receive queue of a host, of its domain.
fn shared(host: &mut Host, max_wr: u32) -> Srqn {
    host.nic.create_srq(SrqInit::new(host.pd, max_wr, 2)).unwrap()
}

/// Gives the host a queue pair on `srq` in place of the one it has.
fn on(host: &mut Host, srq: Srqn) {
    host.nic.destroy_qp(host.qpn).unwrap();
    host.init.srq = Some(srq);
    host.qpn = host.nic.create_qp(host.init).unwrap();
}

fn post(host: &mut Host, srq: Srqn, wr: RecvWr) {
    host.nic.post_srq_recv(srq, wr).unwrap();
}

/// Two connected hosts, the second with a shared receive queue.
fn connected_to_shared(qp_type: QpType) -> (Host, Host, Srqn) {
    let make = |number| Host::with(number, |init| init.qp_type = qp_type);
    let (a, mut b) = (make(1), make(2));
    let srq = shared(&mut b, 8);
    on(&mut b, srq);
    let (a, b) = if qp_type == QpType::Uc { uc_with(a, b) } else { join(a, b, |_| {}) };
    (a, b, srq)
}

#[test]
fn f27_sizes_of_its_own_receive_queue_mean_nothing_where_there_is_none() {
    let mut a = Host::new(1);
    let srq = shared(&mut a, 4);
    let cap = QpCap { max_recv_wr: 0xFFFF_FFFF, max_recv_sge: 0xFFFF_FFFF, ..QpCap::default() };
    assert!(matches!(a.nic.create_qp(QpInit { cap, ..a.init }), Err(CreateError::Cap { .. })));
    let qpn = a.nic.create_qp(QpInit { cap, srq: Some(srq), ..a.init }).unwrap();
    let kept = a.nic.query_qp(qpn).unwrap().1;
    assert_eq!((kept.srq, kept.cap.max_recv_wr, kept.cap.max_recv_sge), (Some(srq), 0, 0));
    let error = a.nic.post_recv(NOW, qpn, RecvWr::new(1, &[])).unwrap_err();
    assert_eq!((error, error.errno()), (PostError::SharedReceives, 22));
}

#[test]
fn what_cannot_be_is_refused() {
    let mut a = Host::new(1);
    let init = SrqInit::new(a.pd, 1, 0);
    for (init, error) in [
        (SrqInit { pd: transport::PdId(77), ..init }, CreateError::NoPd),
        (SrqInit { max_wr: 0, ..init }, CreateError::SrqSize { max_wr: 1 << 20, max_sge: 32 }),
        (SrqInit { max_wr: (1 << 20) + 1, ..init }, CreateError::SrqSize { max_wr: 1 << 20, max_sge: 32 }),
        (SrqInit { max_sge: 33, ..init }, CreateError::SrqSize { max_wr: 1 << 20, max_sge: 32 }),
    ] {
        assert_eq!(a.nic.create_srq(init), Err(error));
        assert_eq!(error.errno(), 22);
    }
    let none = Srqn::new(9);
    let error = a.nic.create_qp(QpInit { srq: Some(none), ..a.init }).unwrap_err();
    assert_eq!((error, error.errno()), (CreateError::NoSrq, 22));
    let error = a.nic.post_srq_recv(none, RecvWr::new(1, &[])).unwrap_err();
    assert_eq!((error, error.errno()), (PostError::NoSuchSrq, 22));
    let srq = shared(&mut a, 2);
    let error = a.nic.post_srq_recv_list(srq, (0..3).map(|id| RecvWr::new(id, &[]))).unwrap_err();
    assert_eq!((error.index, error.error, a.nic.srq_len(srq)), (2, PostError::QueueFull(2), 2), "F24");
    let error = a.nic.modify_srq(none, &SrqAttr::default(), SrqMask::empty()).unwrap_err();
    assert_eq!((error, a.nic.query_srq(none)), (crate::ModifySrqError::NoSuchSrq, None));
    assert_eq!(a.nic.destroy_srq(none), Err(DestroyError::NoSuchObject));
}

#[test]
fn it_cannot_go_before_its_queue_pairs_nor_its_domain_before_it() {
    let mut a = Host::new(1);
    let pd = a.nic.alloc_pd();
    let srq = a.nic.create_srq(SrqInit::new(pd, 4, 1)).unwrap();
    post(&mut a, srq, RecvWr::new(1, &[]));
    let qpns = [(); 2].map(|()| a.nic.create_qp(QpInit { srq: Some(srq), ..a.init }).unwrap());
    for qpn in qpns {
        assert_eq!(a.nic.destroy_srq(srq), Err(DestroyError::Busy));
        a.nic.destroy_qp(qpn).unwrap();
    }
    assert_eq!(a.nic.srq_len(srq), 1);
    assert_eq!(a.nic.dealloc_pd(pd), Err(DestroyError::Busy));
    a.nic.destroy_srq(srq).unwrap();
    a.nic.dealloc_pd(pd).unwrap();
}

/// Rules R-CQE-14, R-RSP-46.
#[test]
fn queue_pairs_take_in_turns_what_was_posted_and_the_limit_is_told() {
    let (mut a, mut b, srq) = connected_to_shared(QpType::Rc);
    let (mut c, mut d) = (Host::new(3), b);
    let first = d.qpn;
    d.qpn = d.nic.create_qp(d.init).unwrap();
    let (of_c, of_d) = (c.attr(&d), d.attr(&c));
    c.bring(QpState::Rts, &of_c);
    d.bring(QpState::Rts, &of_d);
    for id in 0..6 {
        let sge = d.sge(id * 100, 100);
        post(&mut d, srq, RecvWr::new(id, &[sge]));
    }
    d.nic.modify_srq(srq, &SrqAttr { limit: 3, ..SrqAttr::default() }, SrqMask::LIMIT).unwrap();
    for round in 0..2 {
        for sender in [&mut a, &mut c] {
            sender.send(SendWr::send(round, &[sender.sge(0, 50)]));
            drive(sender, &mut d);
        }
    }
    let received: Vec<_> = d.receives_done().iter().map(|wc| (wc.wr_id.value(), wc.qp_num)).collect();
    assert_eq!(received, [(0, first), (1, d.qpn), (2, first), (3, d.qpn)]);
    assert_eq!(d.events(), [Event::Async(AsyncEvent::SrqLimitReached(srq))]);
    assert_eq!((d.nic.srq_len(srq), d.nic.query_srq(srq).unwrap().limit), (2, 0));
    b = d;
    assert_eq!(b.nic.mr_bytes(b.mr.lkey, 100, 51).unwrap(), [&[3; 50][..], &[2]].concat());
}

/// Rule R-RSP-56.
#[test]
fn receives_are_held_against_the_domain_of_the_shared_queue() {
    for own_domain in [false, true] {
        let (mut a, mut b) = (Host::new(1), Host::new(2));
        let pd = b.nic.alloc_pd();
        let other = b.nic.reg_mr(pd, vec![0; 64], ALL).unwrap();
        let srq = b.nic.create_srq(SrqInit::new(pd, 4, 1)).unwrap();
        on(&mut b, srq);
        let (a2, b2) = join(a, b, |_| {});
        (a, b) = (a2, b2);
        let sge =
            if own_domain { b.sge(0, 64) } else { Sge { addr: other.addr, length: 64, lkey: other.lkey } };
        post(&mut b, srq, RecvWr::new(1, &[sge]));
        a.send(SendWr::send(2, &[a.sge(0, 64)]).signaled());
        drive(&mut a, &mut b);
        let (sent, received) = match own_domain {
            false => (WcStatus::Success, WcStatus::Success),
            true => (WcStatus::RemOpErr, WcStatus::LocProtErr),
        };
        assert_eq!(statuses(&a.sends_done()), [(2, sent)]);
        assert_eq!(statuses(&b.receives_done()), [(1, received)]);
    }
}

/// Rule R-RSP-18.
#[test]
fn an_empty_one_answers_not_ready_until_something_is_posted() {
    let (mut a, mut b, srq) = connected_to_shared(QpType::Rc);
    a.send(SendWr::send(1, &[a.sge(0, 10)]).signaled());
    drive(&mut a, &mut b);
    assert!(a.sends_done().is_empty());
    assert_eq!(b.nic.counters().out_of_buffer, 1);
    let sge = b.sge(0, 10);
    post(&mut b, srq, RecvWr::new(7, &[sge]));
    let due = a.nic.poll_timeout().unwrap();
    a.nic.handle_timeout(due);
    drive_at(due, &mut a, &mut b);
    assert_eq!(statuses(&a.sends_done()), [(1, WcStatus::Success)]);
    assert_eq!(statuses(&b.receives_done()), [(7, WcStatus::Success)]);
}

/// Rule R-CQE-12: what waits there stays, what is in use is flushed, and the event comes once.
#[test]
fn f21_err_leaves_shared_receives_alone_and_says_that_the_last_one_is_done() {
    for by_peer in [false, true] {
        let (mut a, mut b, srq) = connected_to_shared(QpType::Rc);
        for id in 1..=3 {
            let sge = b.sge(0, 5000);
            post(&mut b, srq, RecvWr::new(id, &[sge]));
        }
        a.send(SendWr::send(1, &[a.sge(0, 5000)]));
        let packets = a.transmit();
        b.take(&packets[..2]);
        let status = if by_peer {
            // Between two packets of a SEND, nothing but the next of them may come.
            let mut wrong = packets[0].clone();
            wrong.bth = wrong.bth.with_psn(Psn::new(2));
            wrong.refill_icrc();
            b.take(&[wrong]);
            WcStatus::RemInvReqErr
        } else {
            b.go(QpState::Err);
            WcStatus::WrFlushErr
        };
        assert_eq!(statuses(&b.receives_done()), [(1, status)]);
        assert_eq!(b.events(), [Event::Async(AsyncEvent::LastWqeReached(b.qpn))]);
        b.go(QpState::Err);
        b.take(&packets[2..3]);
        assert!(b.events().is_empty() && b.receives_done().is_empty());
        assert_eq!(b.nic.srq_len(srq), 2, "another queue pair may have them");
        // Set up again, it uses them.
        b.go(QpState::Reset);
        let (mut a, mut b) = join(Host::new(1), b, |_| {});
        a.send(SendWr::send(9, &[a.sge(0, 5)]));
        drive(&mut a, &mut b);
        assert_eq!(statuses(&b.receives_done()), [(2, WcStatus::Success)]);
    }
}

/// A queue pair with a receive queue of its own says nothing of a last receive.
#[test]
fn f21_only_those_with_a_shared_queue_tell_of_the_last_receive() {
    let (mut a, _b) = connected();
    a.go(QpState::Err);
    assert_eq!(a.events(), []);
}

/// Rule R-RSP-55.
#[test]
fn uc_completes_in_error_the_shared_receive_of_a_message_that_it_drops() {
    let (mut a, mut b, srq) = connected_to_shared(QpType::Uc);
    for id in 1..=5 {
        let sge = b.sge(0, 2048);
        post(&mut b, srq, RecvWr::new(id, &[sge]));
    }
    // Its second packet of three is lost; one that is too long; one that is whole; one that lacks its end.
    a.send(SendWr::send(1, &[a.sge(0, 2050)]));
    a.send(SendWr::send(2, &[a.sge(0, 2050)]));
    a.send(SendWr::send(3, &[a.sge(0, 2000)]));
    a.send(SendWr::send(4, &[a.sge(0, 2000)]));
    let mut packets = a.transmit();
    packets.remove(1);
    packets.pop();
    b.take(&packets);
    a.send(SendWr::send(5, &[a.sge(0, 5)]));
    let packets = a.transmit();
    b.take(&packets);
    assert_eq!(
        statuses(&b.receives_done()),
        [
            (1, WcStatus::RemInvReqErr),
            (2, WcStatus::LocLenErr),
            (3, WcStatus::Success),
            (4, WcStatus::RemInvReqErr),
            (5, WcStatus::Success)
        ]
    );
    assert_eq!((b.state(), b.nic.srq_len(srq)), (QpState::Rts, 0));
    assert_eq!(b.nic.counters().resp_cqe_error, 3);
}

/// Rule R-RSP-55.
#[test]
fn a_datagram_that_does_not_fit_completes_its_shared_receive_in_error() {
    let make = |number| Host::with(number, |init| init.qp_type = QpType::Ud);
    let (a, mut b) = (make(1), make(2));
    let srq = shared(&mut b, 8);
    on(&mut b, srq);
    let (mut a, mut b, ah) = ud_with(a, b);
    for (id, room) in [(1, 49), (2, 50)] {
        let sge = b.sge(0, room);
        post(&mut b, srq, RecvWr::new(id, &[sge]));
    }
    for id in 0..3 {
        a.send(SendWr::send(id, &[a.sge(0, 10)]).to(ah, b.qpn, unreliable::QKEY));
    }
    let packets = a.transmit();
    b.take(&packets);
    assert_eq!(statuses(&b.receives_done()), [(1, WcStatus::LocLenErr), (2, WcStatus::Success)]);
    assert_eq!(b.dropped(), [(DropReason::NoReceive, 1), (DropReason::BadRequest, 1)]);
    assert_eq!(b.state(), QpState::Rts);
}
