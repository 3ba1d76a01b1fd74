//! Queue pairs as a program sees them: posting, completing, states.

use transport::wqe::{SendFlags, SendOp, Sge};
use transport::{WcOpcode, WcStatus};
use wire::{Duration, Instant, LKey, Operation as Op, Psn, Qpn, RKey, RnrTimer, Syndrome};

use crate::event::{AsyncEvent, Event};
use crate::kit::*;
use crate::state::{AttrMask, QpAttr, QpState};
use crate::wr::{PostError, QpCap, RecvWr, SendWr};

mod batches;
mod congestion;
mod credit;
mod life;
mod limits;
mod mcast;
mod path;
mod sequences;
mod shared;
mod unreliable;
mod xrc;

const NOW: Instant = Instant::ZERO;

fn operations(packets: &[wire::PacketRepr]) -> Vec<Op> {
    packets.iter().map(|packet| packet.bth.opcode().info().unwrap().operation).collect()
}

fn flushed(ids: impl IntoIterator<Item = u64>) -> Vec<(u64, WcStatus)> {
    ids.into_iter().map(|id| (id, WcStatus::WrFlushErr)).collect()
}

#[test]
fn f21_entering_err_flushes_everything_once_and_in_order() {
    let (mut a, b) = connected();
    for id in 0..10 {
        a.send(SendWr::write(id, &[a.sge(0, 1)], b.va(0), b.mr.rkey));
        a.recv(RecvWr::new(100 + id, &[]));
    }
    a.go(QpState::Err);
    assert_eq!(statuses(&a.sends_done()), flushed(0..10));
    assert_eq!(statuses(&a.receives_done()), flushed(100..110));
    // R-CQE-4: taken, and flushed behind what was there.
    a.send(SendWr::send(10, &[]));
    a.recv(RecvWr::new(110, &[]));
    assert_eq!(statuses(&a.sends_done()), flushed([10]));
    assert_eq!(statuses(&a.receives_done()), flushed([110]));
    assert_eq!(a.transmit(), []);
    a.go(QpState::Err);
    assert!(a.sends_done().is_empty() && a.receives_done().is_empty());
    let counters = a.nic.counters();
    assert_eq!((counters.req_cqe_flush_error, counters.resp_cqe_flush_error), (11, 11));
}

#[test]
fn f21_a_receive_that_was_being_filled_is_flushed_first() {
    let (mut a, mut b) = connected();
    b.recv(RecvWr::new(1, &[b.sge(0, 5000)]));
    b.recv(RecvWr::new(2, &[]));
    a.send(SendWr::send(1, &[a.sge(0, 5000)]));
    let packets = a.transmit();
    b.take(&packets[..2]);
    b.go(QpState::Err);
    assert_eq!(statuses(&b.receives_done()), flushed([1, 2]));
}

/// Rule R-CQE-5.
#[test]
fn f22_error_completions_say_what_it_was() {
    let (mut a, b) = connected();
    let (near, far, key) = (a.sge(0, 8), b.va(0), b.mr.rkey);
    a.send(SendWr::write(0, &[near], far, key));
    a.send(SendWr::read(1, &[near], far, key));
    a.send(SendWr::send_imm(2, &[near], [0; 4]));
    a.send(SendWr::cmp_swap(3, near, far, key, 0, 0));
    a.send(SendWr::fetch_add(4, near, far, key, 0));
    a.recv(RecvWr::new(5, &[]));
    a.go(QpState::Err);
    let done = a.sends_done();
    let opcodes: Vec<_> = done.iter().map(|wc| wc.opcode).collect();
    use WcOpcode::{CompSwap, FetchAdd, RdmaRead, RdmaWrite, Recv, Send};
    assert_eq!(opcodes, [RdmaWrite, RdmaRead, Send, CompSwap, FetchAdd]);
    let received = a.receives_done()[0];
    assert_eq!(received.opcode, Recv);
    for wc in done.iter().chain([&received]) {
        assert_eq!((wc.byte_len, wc.qp_num, wc.solicited), (0, a.qpn, true));
    }
}

#[test]
fn f23_every_failure_is_told_round_after_round() {
    let (mut a, mut b) = connected();
    let bad = RKey::new(b.mr.rkey.value() ^ 1);
    for round in 0..5 {
        a.send(SendWr::write(round, &[a.sge(0, 8)], b.va(0), bad));
        drive(&mut a, &mut b);
        assert_eq!(statuses(&a.sends_done()), [(round, WcStatus::RemAccessErr)]);
        assert_eq!((a.state(), b.state()), (QpState::Err, QpState::Err));
        a.go(QpState::Reset);
        b.go(QpState::Reset);
        (a, b) = join(a, b, |_| {});
    }
    let atomic = Sge { lkey: LKey::new(0xBAD), ..a.sge(0, 8) };
    a.send(SendWr::fetch_add(9, atomic, b.va(0), b.mr.rkey, 1));
    drive(&mut a, &mut b);
    assert_eq!(statuses(&a.sends_done()), [(9, WcStatus::LocProtErr)]);
    assert_eq!(b.state(), QpState::Rts, "nothing of it left");
}

/// Rule R-REQ-41.
#[test]
fn f23_a_request_behind_a_bad_one_is_flushed_and_not_carried_out() {
    let (mut a, mut b) = connected();
    let bad = Sge { lkey: LKey::new(0xBAD), ..a.sge(0, 8) };
    a.send(SendWr::write(1, &[bad], b.va(0), b.mr.rkey));
    a.send(SendWr::write(2, &[a.sge(0, 8)], b.va(0), b.mr.rkey));
    drive(&mut a, &mut b);
    assert_eq!(statuses(&a.sends_done()), [(1, WcStatus::LocProtErr), (2, WcStatus::WrFlushErr)]);
    assert_eq!(b.nic.mr_bytes(b.mr.lkey, 0, 8).unwrap(), [2; 8]);
}

/// Rule R-CQE-11.
#[test]
fn f24_posting_too_much_is_refused_and_the_rest_stands() {
    let mut a = Host::with(1, |init| {
        init.cap =
            QpCap { max_send_wr: 3, max_recv_wr: 2, max_send_sge: 2, max_recv_sge: 1, max_inline_data: 8 };
    });
    let mut b = Host::new(2);
    let reset = PostError::State(QpState::Reset);
    assert_eq!(a.nic.post_send(NOW, a.qpn, SendWr::send(0, &[])), Err(reset));
    assert_eq!(a.nic.post_recv(NOW, a.qpn, RecvWr::new(0, &[])), Err(reset));
    (a, b) = join(a, b, |_| {});
    let piece = a.sge(0, 1);
    let wrs = (0..5).map(|id| SendWr::send(id, &[piece]).signaled());
    let results: Vec<_> = wrs.map(|wr| a.nic.post_send(NOW, a.qpn, wr)).collect();
    assert_eq!(results[..3], [Ok(()); 3]);
    let full = results[3].unwrap_err();
    assert_eq!((full, full.errno()), (PostError::QueueFull(3), 12));
    for id in 0..2 {
        a.recv(RecvWr::new(id, &[]));
    }
    assert_eq!(a.nic.post_recv(NOW, a.qpn, RecvWr::new(2, &[])), Err(PostError::QueueFull(2)));
    let refusals = [
        a.nic.post_recv(NOW, a.qpn, RecvWr::new(2, &[piece; 2])),
        a.nic.post_send(NOW, a.qpn, SendWr::send(2, &[piece; 3])),
        a.nic.post_send(NOW, a.qpn, SendWr::inline(2, SendOp::Send { imm: None }, vec![0; 9])),
        a.nic.post_send(NOW, Qpn::new(5), SendWr::send(2, &[])),
    ];
    let errors = [
        PostError::TooManySges { given: 2, max: 1 },
        PostError::TooManySges { given: 3, max: 2 },
        PostError::TooMuchInline { given: 9, max: 8 },
        PostError::NoSuchQp,
    ];
    for (refusal, error) in refusals.into_iter().zip(errors) {
        assert_eq!((refusal, error.errno()), (Err(error), 22));
    }
    for id in 0..3 {
        b.recv(RecvWr::new(id, &[b.sge(0, 1)]));
    }
    drive(&mut a, &mut b);
    assert_eq!(a.sends_done().len(), 3);
    // Room again.
    a.send(SendWr::send(3, &[]));
}

/// Rule R-REQ-9.
#[test]
fn f31_without_a_read_depth_reads_are_refused_at_posting() {
    let (mut a, b) = join(Host::new(1), Host::new(2), |attr| attr.max_rd_atomic = 0);
    let wr = SendWr::read(1, &[a.sge(0, 8)], b.va(0), b.mr.rkey);
    assert_eq!(a.nic.post_send(NOW, a.qpn, wr), Err(PostError::NoReadDepth));
}

#[test]
fn f32_query_gives_what_was_set_whatever_has_happened() {
    let (mut a, b) = join(Host::new(1), Host::new(2), |attr| (attr.retry_cnt, attr.rnr_retry) = (5, 6));
    let before = a.nic.query_qp(a.qpn).unwrap().0;
    a.send(SendWr::send(1, &[a.sge(0, 1)]));
    for _ in 0..3 {
        assert_eq!(a.transmit().len(), 1);
        let now = a.nic.poll_timeout().unwrap();
        a.nic.handle_timeout(now);
    }
    let sent = a.transmit();
    let rnr = Syndrome::RnrNak(RnrTimer::new(1).unwrap());
    let nak = wire::PacketRepr::ack(reply_net(&b, &a), a.qpn, sent[0].bth.psn(), rnr, wire::Msn::new(0));
    a.take(&[nak]);
    assert_eq!(a.nic.counters().rnr_nak_retry_err, 1);
    let (attr, init) = a.nic.query_qp(a.qpn).unwrap();
    assert_eq!((attr, init), (before, a.init));
    assert_eq!((attr.retry_cnt, attr.rnr_retry, attr.sq_psn), (5, 6, Psn::new(0)));
    assert_eq!(attr.addr.dgid, b.gid);
    a.go(QpState::Err);
    assert_eq!(a.state(), QpState::Err);
}

#[test]
fn f33_rts_takes_an_rnr_timer_for_the_next_nak_and_no_timeout() {
    let (mut a, mut b) = connected();
    let attr = QpAttr { timeout: 5, ..QpAttr::default() };
    let before = b.nic.query_qp(b.qpn);
    b.nic.modify_qp(NOW, b.qpn, &attr, AttrMask::TIMEOUT).unwrap_err();
    assert_eq!(b.nic.query_qp(b.qpn), before);
    let timer = RnrTimer::new(3).unwrap();
    let attr = QpAttr { min_rnr_timer: timer, ..QpAttr::default() };
    b.nic.modify_qp(NOW, b.qpn, &attr, AttrMask::MIN_RNR_TIMER).unwrap();
    a.send(SendWr::send(1, &[]));
    b.take(&a.transmit());
    let nak = b.transmit().remove(0);
    let [wire::Ext::Aeth(aeth)] = nak.ext[..] else { panic!("{nak:?} is no ACK") };
    assert_eq!(aeth.syndrome(), Syndrome::RnrNak(timer));
}

#[test]
fn work_is_taken_queued_or_flushed_as_the_state_says() {
    for (state, send, recv) in [
        (QpState::Reset, false, false),
        (QpState::Init, false, true),
        (QpState::Rtr, false, true),
        (QpState::Rts, true, true),
    ] {
        let (mut a, b) = (Host::new(1), Host::new(2));
        let attr = a.attr(&b);
        a.bring(state, &attr);
        let refused = Err(PostError::State(state));
        let expect = |taken| if taken { Ok(()) } else { refused };
        assert_eq!(a.nic.post_send(NOW, a.qpn, SendWr::send(1, &[])), expect(send), "{state}");
        assert_eq!(a.nic.post_recv(NOW, a.qpn, RecvWr::new(2, &[])), expect(recv), "{state}");
        assert!(a.sends_done().is_empty() && a.receives_done().is_empty(), "{state}");
    }
}

#[test]
fn sqd_finishes_what_was_begun_and_says_so_once() {
    let (mut a, mut b) = connected();
    let notify = QpAttr { en_sqd_async_notify: true, ..QpAttr::default() };
    a.send(SendWr::write(1, &[a.sge(0, 3000)], b.va(0), b.mr.rkey).signaled());
    let first = a.transmit();
    assert_eq!(first.len(), 3);
    a.send(SendWr::write(2, &[a.sge(0, 8)], b.va(0), b.mr.rkey).signaled());
    a.modify(QpState::Sqd, &notify, AttrMask::EN_SQD_ASYNC_NOTIFY);
    a.send(SendWr::write(3, &[a.sge(0, 8)], b.va(0), b.mr.rkey).signaled());
    assert_eq!((a.transmit(), a.events()), (vec![], vec![]));
    // Retries go on.
    let now = a.nic.poll_timeout().unwrap();
    a.nic.handle_timeout(now);
    assert_eq!(a.transmit_at(now).len(), 3);
    b.take(&first);
    a.take(&b.transmit());
    assert_eq!(statuses(&a.sends_done()), [(1, WcStatus::Success)]);
    assert_eq!(a.events(), [Event::Async(AsyncEvent::SqDrained(a.qpn))], "R-REQ-31");
    a.modify(QpState::Sqd, &QpAttr { retry_cnt: 3, ..notify }, AttrMask::RETRY_CNT);
    assert_eq!(a.events(), [], "it is drained once");
    a.go(QpState::Rts);
    drive(&mut a, &mut b);
    assert_eq!(statuses(&a.sends_done()), [(2, WcStatus::Success), (3, WcStatus::Success)], "R-QPS-20");
}

#[test]
fn sqd_of_an_idle_queue_is_drained_at_once() {
    let (mut a, _) = connected();
    let notify = QpAttr { en_sqd_async_notify: true, ..QpAttr::default() };
    for _ in 0..2 {
        a.modify(QpState::Sqd, &notify, AttrMask::EN_SQD_ASYNC_NOTIFY);
        assert_eq!(a.events(), [Event::Async(AsyncEvent::SqDrained(a.qpn))]);
        a.go(QpState::Rts);
    }
}

#[test]
fn sqd_answers_requests_still() {
    let (mut a, mut b) = connected();
    b.go(QpState::Sqd);
    a.send(SendWr::read(1, &[a.sge(0, 8)], b.va(0), b.mr.rkey).signaled());
    drive(&mut a, &mut b);
    assert_eq!(statuses(&a.sends_done()), [(1, WcStatus::Success)]);
}

/// Rule R-REQ-2.
#[test]
fn reset_forgets_all_in_silence_and_the_pair_can_begin_anew() {
    let (mut a, mut b) = connected();
    // Something done and not polled, something under way, and something still to be sent.
    a.recv(RecvWr::new(7, &[]));
    a.send(SendWr::write(1, &[a.sge(0, 8)], b.va(0), b.mr.rkey).signaled());
    drive(&mut a, &mut b);
    a.send(SendWr::write(2, &[a.sge(0, 8)], b.va(0), b.mr.rkey).signaled());
    a.transmit();
    a.send(SendWr::write(3, &[a.sge(0, 8)], b.va(0), b.mr.rkey).signaled());
    assert!(a.nic.wants_transmit());
    a.go(QpState::Reset);
    b.go(QpState::Reset);
    assert_eq!((a.transmit(), a.sends_done(), a.receives_done()), (vec![], vec![], vec![]), "R-QPS-13");
    assert_eq!(a.nic.query_qp(a.qpn).unwrap().0, QpAttr::default());
    // A deadline of the former life does nothing.
    if let Some(now) = a.nic.poll_timeout() {
        a.nic.handle_timeout(now);
    }
    assert_eq!(a.nic.poll_timeout(), None);
    let psns = |attr: &mut QpAttr| (attr.sq_psn, attr.rq_psn) = (Psn::new(77), Psn::new(77));
    (a, b) = join(a, b, psns);
    a.send(SendWr::write(4, &[a.sge(0, 8)], b.va(0), b.mr.rkey).signaled());
    let packets = a.transmit();
    assert_eq!(packets[0].bth.psn(), Psn::new(77));
    b.take(&packets);
    let answer = b.transmit();
    let [wire::Ext::Aeth(aeth)] = answer[0].ext[..] else { panic!("{answer:?} is no ACK") };
    assert_eq!(aeth.msn(), wire::Msn::new(1), "the count begins anew");
    a.take(&answer);
    assert_eq!(statuses(&a.sends_done()), [(4, WcStatus::Success)]);
}

#[test]
fn a_nak_leaves_though_the_pair_is_in_the_error_state() {
    let (mut a, mut b) = connected();
    a.send(SendWr::read(1, &[a.sge(0, 3000)], b.va(0), b.mr.rkey).signaled());
    a.send(SendWr::write(2, &[a.sge(0, 8)], b.va(0), RKey::new(1)));
    b.take(&a.transmit());
    assert_eq!(b.state(), QpState::Err);
    assert_eq!(b.events(), [Event::Async(AsyncEvent::QpAccessErr(b.qpn))], "R-RSP-38");
    // Also if the program goes there itself in between.
    b.go(QpState::Err);
    let answers = b.transmit();
    assert_eq!(
        operations(&answers),
        [Op::ReadResponseFirst, Op::ReadResponseMiddle, Op::ReadResponseLast, Op::Acknowledge]
    );
    a.take(&answers);
    assert_eq!(statuses(&a.sends_done()), [(1, WcStatus::Success), (2, WcStatus::RemAccessErr)]);
}

#[test]
fn a_second_trouble_of_a_failed_pair_is_no_news() {
    let (mut a, mut b) = connected();
    a.send(SendWr::read(1, &[a.sge(0, 3000)], b.va(0), b.mr.rkey));
    a.send(SendWr::write(2, &[a.sge(0, 8)], b.va(0), RKey::new(1)));
    b.take(&a.transmit());
    assert_eq!(b.events().len(), 1);
    // The memory of the READ goes before its answer has left: the NAK is for the READ now.
    b.nic.dereg_mr(b.mr.lkey).unwrap();
    let answers = b.transmit();
    assert_eq!((operations(&answers), answers[0].bth.psn()), (vec![Op::Acknowledge], Psn::new(0)));
    assert_eq!((b.events(), b.receives_done()), (vec![], vec![]));
    a.take(&answers);
    assert_eq!(statuses(&a.sends_done()), [(1, WcStatus::RemAccessErr), (2, WcStatus::WrFlushErr)]);
}

/// Rule R-QPS-21.
#[test]
fn a_receive_that_fails_reports_it_and_no_event_does() {
    let (mut a, mut b) = connected();
    b.recv(RecvWr::new(5, &[b.sge(0, 8)]));
    a.send(SendWr::send(1, &[a.sge(0, 9)]));
    drive(&mut a, &mut b);
    assert_eq!(statuses(&a.sends_done()), [(1, WcStatus::RemInvReqErr)]);
    assert_eq!(statuses(&b.receives_done()), [(5, WcStatus::LocLenErr)]);
    assert_eq!(b.events(), []);
    // An opcode out of turn has no receive.
    let (mut a, mut b) = connected();
    a.send(SendWr::send(1, &[a.sge(0, 3000)]));
    let mut packets = a.transmit();
    packets[1].bth = packets[1].bth.with_psn(Psn::new(0));
    packets[1].finish();
    b.take(&packets[1..2]);
    assert_eq!(b.events(), [Event::Async(AsyncEvent::QpReqErr(b.qpn))]);
}

#[test]
fn memory_deregistered_during_a_read_is_an_access_error() {
    let (mut a, mut b) = connected();
    a.send(SendWr::read(1, &[a.sge(0, 3000)], b.va(0), b.mr.rkey));
    b.take(&a.transmit());
    b.nic.dereg_mr(b.mr.lkey).unwrap();
    drive(&mut a, &mut b);
    assert_eq!(statuses(&a.sends_done()), [(1, WcStatus::RemAccessErr)], "R-MEM-12");
    assert_eq!(b.state(), QpState::Err);
}

#[test]
fn f25_inline_data_are_those_of_the_posting() {
    let (mut a, mut b) = connected();
    let mut buffer = vec![1, 2, 3, 4, 5];
    b.recv(RecvWr::new(1, &[b.sge(0, 2), b.sge(100, 8)]));
    a.send(SendWr::inline(1, SendOp::Send { imm: None }, buffer.clone()));
    buffer.fill(0);
    drive(&mut a, &mut b);
    assert_eq!(b.receives_done()[0].byte_len, 5);
    let found = [b.nic.mr_bytes(b.mr.lkey, 0, 2).unwrap(), b.nic.mr_bytes(b.mr.lkey, 100, 3).unwrap()];
    assert_eq!(found.concat(), [1, 2, 3, 4, 5]);
}

#[test]
fn f28_an_armed_queue_wakes_once_and_solicited_only_for_its_kind() {
    let (mut a, mut b) = connected();
    let cq = b.recv_cq;
    for id in 0..4 {
        b.recv(RecvWr::new(id, &[]));
    }
    let mut send = |b: &mut Host, flags: SendFlags| {
        let mut wr = SendWr::send(1, &[]);
        wr.flags = flags;
        a.send(wr);
        drive(&mut a, b);
        b.events()
    };
    send(&mut b, SendFlags::empty());
    b.nic.req_notify_cq(cq, false);
    assert_eq!(b.events(), [], "for later ones only");
    b.nic.req_notify_cq(cq, true);
    assert_eq!(send(&mut b, SendFlags::empty()), [Event::CqReady(cq)]);
    b.nic.req_notify_cq(cq, true);
    assert_eq!(send(&mut b, SendFlags::empty()), []);
    assert_eq!(send(&mut b, SendFlags::SOLICITED), [Event::CqReady(cq)]);
    b.recv(RecvWr::new(9, &[]));
    b.nic.req_notify_cq(cq, true);
    b.go(QpState::Err);
    assert_eq!(b.events(), [Event::CqReady(cq)], "an error wakes");
}

#[test]
fn signalling_is_by_request_or_for_all() {
    for (all, expected) in [(false, vec![1]), (true, vec![0, 1, 2])] {
        let (mut a, mut b) = join(Host::with(1, |init| init.sq_sig_all = all), Host::new(2), |_| {});
        for id in 0..3 {
            let wr = SendWr::write(id, &[a.sge(0, 8)], b.va(0), b.mr.rkey);
            a.send(if id == 1 { wr.signaled() } else { wr });
        }
        drive(&mut a, &mut b);
        let done: Vec<_> = a.sends_done().iter().map(|wc| wc.wr_id.value()).collect();
        assert_eq!(done, expected);
    }
}

#[test]
fn f16_a_receive_posted_late_is_found() {
    // min_rnr_timer 14 is 1.28 ms; the receive comes after 3 ms.
    let (mut a, mut b) = join(Host::new(1), Host::new(2), |attr| {
        attr.rnr_retry = 6;
        attr.timeout = 8;
        attr.min_rnr_timer = RnrTimer::new(14).unwrap();
    });
    a.send(SendWr::send(1, &[a.sge(0, 8)]).signaled());
    let mut now = NOW;
    let ready = NOW + Duration::from_millis(3);
    let mut posted = false;
    while a.nic.cq_len(a.send_cq) == 0 {
        if now >= ready && !posted {
            b.nic.post_recv(now, b.qpn, RecvWr::new(1, &[b.sge(0, 8)])).unwrap();
            posted = true;
        }
        drive_at(now, &mut a, &mut b);
        now += Duration::from_micros(100);
        a.nic.handle_timeout(now);
    }
    assert_eq!(statuses(&a.sends_done()), [(1, WcStatus::Success)]);
    assert_eq!(a.nic.counters().local_ack_timeout_err, 0, "F14");
    assert_eq!(a.nic.counters().rnr_nak_retry_err, 3);
}

/// The network header of what `from` sends to `to`.
fn reply_net(from: &Host, to: &Host) -> wire::NetHeader {
    wire::NetHeader::v2(from.gid.ip(), to.gid.ip(), 0xC000, 0, 64).unwrap()
}
