//! Rule R-REQ-49: what is not asked for at once is asked for in time.

use wire::{LKey, NakCode, PacketRepr, RKey, Syndrome};

use super::*;
use crate::completion::WcStatus;
use crate::kit::*;
use crate::local::LocalOp;
use crate::params::RcParams;
use crate::profile::Behaviour;
use crate::wqe::Sge;

/// An ACK timeout of 84 ms, and room for as many packets as the tests send.
fn patient(change: impl FnOnce(&mut RcParams)) -> End {
    End::with(|params| {
        (params.timeout, params.window, params.max_send_wr) = (14, 64, 128);
        change(params);
    })
}

fn send(end: &mut End, flags: SendFlags) -> PacketRepr {
    end.post_sges(SEND, &[sge(0, 64)], flags);
    end.request().expect("a packet")
}

/// Which of `count` unsignalled SENDs, posted one by one, ask.
fn asking(end: &mut End, count: usize) -> Vec<usize> {
    (0..count).filter(|_| send(end, SendFlags::empty()).bth.ack_req()).collect()
}

fn psns(end: &mut End) -> Vec<(u32, bool)> {
    end.requests().iter().map(|packet| (packet.bth.psn().value(), packet.bth.ack_req())).collect()
}

#[test]
fn who_is_told_of_its_completion_asks_and_others_ask_now_and_then() {
    let mut end = patient(|_| {});
    assert_eq!(asking(&mut end, 40), [15, 31], "a quarter of the window");
    assert!(send(&mut end, SendFlags::SIGNALED).bth.ack_req());
    assert_eq!(asking(&mut patient(|params| params.max_send_wr = 20), 12), [4, 9], "a quarter of the queue");
    assert_eq!(asking(&mut patient(|params| params.max_send_wr = 7), 4), [0, 1, 2, 3], "a short queue");
    assert_eq!(asking(&mut patient(|params| params.behaviour = &Behaviour::RXE), 4), [0, 1, 2, 3]);
    assert_eq!(asking(&mut patient(|params| params.behaviour = &Behaviour::CONNECTX), 4), [0, 1, 2, 3]);
    // 1.3 and 5.2 ms: no time to ask later.
    assert_eq!(asking(&mut patient(|params| params.timeout = 8), 4), [0, 1, 2, 3]);
    assert_eq!(asking(&mut patient(|params| params.timeout = 10), 4), [0, 1, 2, 3]);
    assert_eq!(asking(&mut patient(|params| params.timeout = 11), 16), [15]);
    assert_eq!(asking(&mut patient(|params| params.timeout = 0), 16), [15]);
}

#[test]
fn what_takes_part_in_a_read_or_atomic_is_always_asked_for() {
    let mut end = patient(|_| {});
    send(&mut end, SendFlags::empty());
    end.post_sges(read_op(), &[sge(0, 8)], SendFlags::empty());
    end.post_sges(fetch_add_op(1), &[sge(0, 8)], SendFlags::empty());
    assert_eq!(psns(&mut end), [(11, true), (12, true)]);
}

#[test]
fn silence_is_followed_by_one_question_for_all() {
    let mut end = patient(|_| {});
    assert!(asking(&mut end, 3).is_empty());
    end.wait(Duration::from_micros(999));
    assert!(psns(&mut end).is_empty());
    end.wait(Duration::from_micros(1));
    assert_eq!(psns(&mut end), [(12, true)]);
    let counters = end.out.counters;
    assert_eq!((counters.local_ack_timeout_err, end.requester.retries_left()), (0, end.params.retry_cnt));
    // It asks once; what follows is the ACK timeout's, which began with the first packet.
    assert_eq!(end.requester.poll_timeout(), end.params.ack_timeout().map(|wait| Instant::ZERO + wait));
    end.ack(12, Syndrome::ACK).unwrap();
    assert!(end.requester.is_empty() && end.completions().is_empty());
    assert_eq!(end.requester.poll_timeout(), None);
}

/// The peer is slow: its answer to an earlier question may answer this one too.
#[test]
fn a_question_waits_for_the_answer_to_the_one_before() {
    let mut end = patient(|_| {});
    assert!(send(&mut end, SendFlags::SIGNALED).bth.ack_req());
    assert!(asking(&mut end, 2).is_empty());
    for _ in 0..3 {
        end.wait(ASK_AFTER);
        assert!(psns(&mut end).is_empty());
    }
    end.ack(10, Syndrome::ACK).unwrap();
    assert!(psns(&mut end).is_empty());
    end.wait(ASK_AFTER);
    assert_eq!(psns(&mut end), [(12, true)]);
    end.ack(12, Syndrome::ACK).unwrap();
    assert_eq!((end.requester.poll_timeout(), end.requester.len()), (None, 0));
}

#[test]
fn each_packet_puts_the_question_off_but_not_for_ever() {
    let mut end = patient(|_| {});
    let mut asked = Vec::new();
    for n in 0..12 {
        asked.push(send(&mut end, SendFlags::empty()).bth.ack_req());
        // A fourth of 84 ms has passed with the third, though none is 1 ms behind the one before.
        end.now += Duration::from_micros(if n == 1 { 20_900 } else { 900 });
    }
    assert_eq!(asked.iter().position(|asks| *asks), Some(2), "{asked:?}");
}

#[test]
fn a_lost_last_packet_is_repaired_long_before_the_timeout() {
    let mut end = patient(|_| {});
    assert!(asking(&mut end, 3).is_empty());
    end.wait(ASK_AFTER);
    assert_eq!(psns(&mut end), [(12, true)]);
    // 11 and the first 12 were lost.
    end.ack(11, Syndrome::Nak(NakCode::PsnSequenceError)).unwrap();
    assert_eq!(psns(&mut end), [(11, true), (12, true)]);
    end.ack(12, Syndrome::ACK).unwrap();
    assert!(end.requester.is_empty());
}

#[test]
fn the_question_repeats_a_long_message_in_its_last_packet_only() {
    let mut end = patient(|_| {});
    end.post_sges(write_op(), &[sge(0, 5 * 256)], SendFlags::empty());
    assert_eq!(psns(&mut end), [10, 11, 12, 13, 14].map(|psn| (psn, false)));
    end.wait(ASK_AFTER);
    assert_eq!(end.shown_requests(), ["WRITE_LAST psn=14 len=256 ack"]);
}

#[test]
fn who_waits_for_earlier_work_asks_at_once() {
    let invalidate = |n| SendOp::Local(LocalOp::Invalidate { rkey: RKey::new(n) });
    let mut end = patient(|_| {});
    for key in [1, 2] {
        end.ram.add(key, BASE + 0x1000_0000, ALL, vec![0; 8]);
    }
    assert!(asking(&mut end, 2).is_empty());
    end.post_sges(invalidate(1), &[], SendFlags::SIGNALED | SendFlags::FENCE);
    assert_eq!(psns(&mut end), [(11, true)]);
    end.ack(11, Syndrome::ACK).unwrap();
    assert!(psns(&mut end).is_empty());
    assert_eq!(end.done(), [(2, WcStatus::Success)]);

    // Behind one that is known of already, the last packet asks at once.
    end.post_sges(SEND, &[sge(0, 8)], SendFlags::empty());
    end.post_sges(invalidate(2), &[], SendFlags::empty());
    assert_eq!(psns(&mut end), [(12, true)]);
    assert_eq!(end.ram.executed.len(), 2, "nor does it wait without a fence");
}

/// Rule R-REQ-47: what is sent again must not find its memory gone only because it is asked for.
#[test]
fn it_is_asked_before_the_memory_may_go() {
    let mut end = patient(|_| {});
    end.ram.add(1, BASE, ALL, vec![3; 64]);
    let own = Sge { lkey: LKey::new(1), ..sge(0, 8) };
    for flags in [SendFlags::empty(), SendFlags::SIGNALED] {
        end.post_sges(SEND, &[own], SendFlags::empty());
        assert_eq!(end.requests().len(), 1);
        let invalidate = LocalOp::Invalidate { rkey: RKey::new(1) };
        end.post_sges(SendOp::Local(invalidate), &[], flags);
        let [asks] = end.requests().try_into().unwrap();
        assert!(asks.bth.ack_req());
        assert_eq!(end.ram.executed, [invalidate]);
        end.ack(asks.bth.psn().value(), Syndrome::ACK).unwrap();
        assert!(end.requester.is_empty() && !end.out.fatal);
        end.ram.executed.clear();
        end.ram.add(1, BASE, ALL, vec![3; 64]);
    }
}

/// The ACK of what follows answers for what is before it, where that one asks.
#[test]
fn who_is_told_of_its_completion_does_not_rely_on_one_who_is_not() {
    let mut end = patient(|params| params.behaviour = &Behaviour::CONNECTX);
    for flags in [SendFlags::SIGNALED, SendFlags::empty(), SendFlags::SIGNALED] {
        end.post_sges(SEND, &[sge(0, 8)], flags);
    }
    assert_eq!(psns(&mut end), [(10, true), (11, false), (12, true)]);
}

/// Rule R-REQ-15.
#[test]
fn a_request_that_fails_does_so_once_those_before_it_were_asked_for() {
    let mut end = patient(|_| {});
    assert!(asking(&mut end, 2).is_empty());
    end.post_sges(SEND, &[sge(1 << 30, 8)], SendFlags::SIGNALED);
    assert!(psns(&mut end).is_empty());
    end.wait(ASK_AFTER);
    assert_eq!(psns(&mut end), [(11, true)]);
    end.ack(11, Syndrome::ACK).unwrap();
    assert_eq!(end.done(), [(2, WcStatus::LocProtErr)]);
}

#[test]
fn a_queue_that_is_to_drain_asks() {
    let mut end = patient(|_| {});
    assert!(asking(&mut end, 2).is_empty());
    end.requester.set_draining(true);
    end.post_sges(SEND, &[sge(0, 8)], SendFlags::SIGNALED);
    end.wait(ASK_AFTER);
    assert_eq!(psns(&mut end), [(11, true)]);
    end.ack(11, Syndrome::ACK).unwrap();
    assert!(end.requester.is_drained());
}

/// Whatever keeps a request from leaving, the packet that leaves next asks if time is up.
#[test]
fn what_waits_behind_is_not_overtaken_by_the_question() {
    let mut end = patient(|_| {});
    send(&mut end, SendFlags::empty());
    end.post_sges(SEND, &[sge(0, 8)], SendFlags::empty());
    end.wait(ASK_AFTER);
    assert_eq!(end.requester.poll_timeout(), Some(end.now + ASK_AFTER), "it is looked again");
    assert_eq!(psns(&mut end), [(11, false)]);
    // Who holds credit that others need asks all the same.
    end.post_sges(SEND, &[sge(0, 8)], SendFlags::empty());
    assert!(end.requester.asks_for_what_was_put_off());
    assert_eq!(psns(&mut end), [(11, true), (12, false)]);
}
