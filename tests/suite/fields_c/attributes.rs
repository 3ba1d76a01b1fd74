//! F31 to F33: depths, queries, and which attribute may change when.

use qp::{AttrMask, ModifyQpError, PostError, QpAttr, QpState, SendWr};
use transport::{Access, WcStatus};
use wire::{NakCode, Operation, Psn, QKey, RKey, RnrTimer, Syndrome, VirtAddr};

use super::*;
use crate::harness::{Crafted, Lone};

// ---- F31 ----

/// READ requests of the peer, at once; the answers.
fn reads_at_once(max_dest_rd_atomic: u8, count: u32) -> Vec<(Operation, Psn, Option<Syndrome>)> {
    let mut lone = Lone::new(Conn { max_dest_rd_atomic, ..Conn::default() });
    let (va, rkey) = (lone.va(0), lone.mr.rkey);
    let read = |n| Crafted::rc(Operation::ReadRequest, lone.qpn, Lone::psn(n)).ack_req().reth(va, rkey, 8);
    let requests: Vec<_> = (0..count).map(read).collect();
    let answers = lone.answer(&requests);
    answers.iter().map(|sent| (sent.operation, sent.psn, sent.aeth.map(|aeth| aeth.0))).collect()
}

/// Rule R-RSP-8.
#[test]
fn f31_as_responder_as_many_reads_as_agreed_and_not_one_more() {
    let nak = Some(Syndrome::Nak(NakCode::InvalidRequest));
    assert_eq!(Syndrome::Nak(NakCode::InvalidRequest).byte(), 0x61);
    for (depth, count, refused) in [(16, 16, None), (8, 9, Some(8)), (0, 1, Some(0))] {
        let answers = reads_at_once(depth, count);
        let good = answers.iter().filter(|(op, ..)| *op == Operation::ReadResponseOnly).count();
        assert_eq!(u32::try_from(good).unwrap(), refused.unwrap_or(count), "depth {depth}");
        match refused {
            Some(n) => assert_eq!(answers.last(), Some(&(Operation::Acknowledge, Lone::psn(n), nak))),
            None => assert_eq!(answers.len(), good),
        }
    }
}

/// Rules R-REQ-8, R-REQ-9.
#[test]
fn f31_as_requester_one_at_a_time_and_all_complete() {
    let mut lone = Lone::new(Conn { max_rd_atomic: 1, ..Conn::default() });
    for id in 0..8 {
        lone.post(SendWr::read(id, &[lone.sge(id * 8, 8)], VirtAddr::new(0), RKey::new(7)));
    }
    for n in 0..8 {
        let sent = lone.sent();
        assert_eq!((sent.len(), sent[0].operation), (1, Operation::ReadRequest));
        let psn = Psn::new(Lone::SQ_PSN).wrapping_add(n);
        assert_eq!(sent[0].psn, psn);
        let response = Crafted::rc(Operation::ReadResponseOnly, lone.qpn, psn).aeth(Syndrome::ACK, n + 1);
        lone.inject(&[response.payload(&[9; 8])]);
    }
    assert_eq!(lone.completed(), (0..8).collect::<Vec<_>>());
    let mut ends = ends("f31", Conn { max_rd_atomic: 1, max_dest_rd_atomic: 1, ..Conn::default() });
    for id in 0..8 {
        let (near, va, key) = (ends.near(id * 8, 8), ends.mrs[1].addr, ends.mrs[1].rkey);
        ends.post(SendWr::read(id, &[near], va, key).signaled());
    }
    assert_eq!(statuses(&ends.drive()), (0..8).map(|id| (id, WcStatus::Success)).collect::<Vec<_>>());
}

/// Rule R-QPS-14.
#[test]
fn f31_depth_0_is_legal_and_above_the_device_is_not() {
    let mut ends = ends("f31-limits", Conn { max_rd_atomic: 0, max_dest_rd_atomic: 0, ..Conn::default() });
    let (a, now) = (ends.a, ends.world.now);
    let read = SendWr::read(1, &[ends.near(0, 8)], ends.mrs[1].addr, ends.mrs[1].rkey);
    let refused = ends.world.nic(a).post_send(now, a.qpn, read).unwrap_err();
    assert_eq!((refused, refused.errno()), (PostError::NoReadDepth, 22));
    let limits = ends.world.nic(a).modify_limits();
    ends.go(a, QpState::Sqd);
    for (mask, attr) in [
        (AttrMask::MAX_QP_RD_ATOMIC, QpAttr { max_rd_atomic: limits.max_rd_atomic + 1, ..QpAttr::default() }),
        (
            AttrMask::MAX_DEST_RD_ATOMIC,
            QpAttr { max_dest_rd_atomic: limits.max_dest_rd_atomic + 1, ..QpAttr::default() },
        ),
    ] {
        let before = ends.world.nic(a).query_qp(a.qpn);
        let refused = ends.world.nic(a).modify_qp(now, a.qpn, &attr, mask).unwrap_err();
        assert_eq!(refused.errno(), 22, "{refused}");
        assert_eq!(ends.world.nic(a).query_qp(a.qpn), before);
        let most = QpAttr {
            max_rd_atomic: limits.max_rd_atomic,
            max_dest_rd_atomic: limits.max_dest_rd_atomic,
            ..attr
        };
        ends.world.nic(a).modify_qp(now, a.qpn, &most, mask).unwrap();
    }
}

// ---- F32 ----

/// Rule R-QPS-16.
#[test]
fn f32_a_query_gives_what_was_set_after_three_retries_too() {
    let mut lone = Lone::new(Conn { retry_cnt: 5, rnr_retry: 6, ..Conn::default() });
    let before = lone.nic.query_qp(lone.qpn).unwrap();
    lone.post(SendWr::send(1, &[lone.sge(0, 8)]));
    assert_eq!(lone.sent().len(), 1);
    for _ in 0..3 {
        let due = lone.nic.poll_timeout().unwrap();
        assert_eq!(lone.pass(due - lone.now).len(), 1, "sent again");
    }
    let rnr = Syndrome::RnrNak(RnrTimer::new(1).unwrap());
    lone.inject(&[Crafted::acknowledge(lone.qpn, Psn::new(Lone::SQ_PSN), rnr, 0)]);
    assert_eq!((lone.nic.counters().local_ack_timeout_err, lone.nic.counters().rnr_nak_retry_err), (3, 1));
    let after = lone.nic.query_qp(lone.qpn).unwrap();
    assert_eq!(after, before);
    assert_eq!((after.0.retry_cnt, after.0.rnr_retry, after.0.port), (5, 6, 1));
    assert_eq!((after.1.sq_sig_all, after.1.cap.max_send_wr), (true, 128));
}

#[test]
fn f32_a_query_tells_of_a_failure_and_gives_an_address_that_can_be_used_again() {
    let mut ends = ends("f32", Conn::default());
    let (a, now) = (ends.a, ends.world.now);
    let bad = RKey::new(ends.mrs[1].rkey.value() ^ 1);
    let queried = ends.world.nic(a).query_qp(a.qpn).unwrap().0;
    ends.post(SendWr::write(1, &[ends.near(0, 8)], ends.mrs[1].addr, bad));
    assert_eq!(statuses(&ends.drive()), [(1, WcStatus::RemAccessErr)]);
    assert_eq!(ends.state(a), QpState::Err);
    // All that it says is enough to be connected again.
    ends.reconnect();
    ends.go(a, QpState::Reset);
    let peer = (ends.world.hosts[1].gid, ends.b.qpn);
    for (step, mask) in ends.conn.steps(QpType::Rc, peer, queried.sq_psn, queried.rq_psn) {
        let attr = QpAttr { state: step.state, ..queried };
        ends.world.nic(a).modify_qp(now, a.qpn, &attr, mask).unwrap();
    }
    assert_eq!(ends.world.nic(a).query_qp(a.qpn).unwrap().0, queried);
    ends.post(SendWr::write(2, &[ends.near(0, 8)], ends.mrs[1].addr, ends.mrs[1].rkey).signaled());
    assert_eq!(statuses(&ends.drive()), [(2, WcStatus::Success)]);
    // The queue key of datagrams.
    let ud = QpInit { qp_type: QpType::Ud, ..ends.init() };
    let ud = ends.world.nic(a).create_qp(ud).unwrap();
    let attr = QpAttr { state: QpState::Init, qkey: QKey::new(0x77), ..QpAttr::default() };
    let mask = AttrMask::to_enter(QpType::Ud, QpState::Init);
    ends.world.nic(a).modify_qp(now, ud, &attr, mask).unwrap();
    assert_eq!(ends.world.nic(a).query_qp(ud).unwrap().0.qkey, QKey::new(0x77));
}

// ---- F33 ----

/// Rules R-QPS-2, R-QPS-7.
#[test]
fn f33_a_live_connection_takes_these_attributes_and_no_others() {
    let mut ends = ends("f33", Conn::default());
    let (a, now) = (ends.a, ends.world.now);
    let before = ends.world.nic(a).query_qp(a.qpn).unwrap();
    let new = QpAttr {
        access: Access::REMOTE_READ,
        min_rnr_timer: RnrTimer::new(3).unwrap(),
        cur_state: QpState::Rts,
        alt_addr: before.0.addr,
        alt_port: 1,
        timeout: 3,
        ..before.0
    };
    let taken = [
        AttrMask::ACCESS_FLAGS,
        AttrMask::MIN_RNR_TIMER,
        AttrMask::CUR_STATE,
        AttrMask::ALT_PATH,
        AttrMask::PATH_MIG_STATE,
    ];
    for bit in AttrMask::all().iter().filter(|bit| *bit != AttrMask::STATE && !taken.contains(bit)) {
        let refused = ends.world.nic(a).modify_qp(now, a.qpn, &new, bit).unwrap_err();
        assert!(matches!(refused, ModifyQpError::Attr(_)) && refused.errno() == 22, "{bit}: {refused}");
        assert_eq!(ends.world.nic(a).query_qp(a.qpn).unwrap(), before, "{bit}");
    }
    for bit in taken {
        ends.world.nic(a).modify_qp(now, a.qpn, &new, bit).unwrap();
    }
    let after = ends.world.nic(a).query_qp(a.qpn).unwrap().0;
    assert_eq!((after.access, after.min_rnr_timer.code(), after.timeout), (Access::REMOTE_READ, 3, 14));
    assert_eq!((after.alt_addr, after.state), (before.0.addr, QpState::Rts));
}

#[test]
fn f33_a_new_rnr_timer_is_that_of_the_next_nak() {
    let mut lone = Lone::new(Conn { min_rnr_timer: 12, ..Conn::default() });
    let send = Crafted::rc(Operation::SendOnly, lone.qpn, Lone::psn(0)).ack_req();
    for code in [12, 3, 0] {
        let timer = RnrTimer::new(code).unwrap();
        let attr = QpAttr { min_rnr_timer: timer, ..QpAttr::default() };
        lone.modify(&attr, AttrMask::MIN_RNR_TIMER).unwrap();
        let answers = lone.answer(std::slice::from_ref(&send));
        assert_eq!(answers[0].aeth.map(|aeth| aeth.0), Some(Syndrome::RnrNak(timer)));
    }
    let refused = lone.modify(&QpAttr { timeout: 5, ..QpAttr::default() }, AttrMask::TIMEOUT).unwrap_err();
    assert_eq!((refused.errno(), lone.nic.query_qp(lone.qpn).unwrap().0.timeout), (22, 14));
}
