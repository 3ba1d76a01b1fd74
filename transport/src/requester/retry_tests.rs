//! Going back: sequence NAKs, RNR NAKs, timers and their counters.

use wire::{Duration, Instant, NakCode, Operation as Op, PacketRepr, RnrTimer, Syndrome};

use crate::completion::WcStatus;
use crate::kit::*;

const SEQUENCE: Syndrome = Syndrome::Nak(NakCode::PsnSequenceError);

fn rnr(code: u8) -> Syndrome {
    Syndrome::RnrNak(RnrTimer::new(code).unwrap())
}

fn psns(packets: &[PacketRepr]) -> Vec<u32> {
    packets.iter().map(|packet| packet.bth.psn().value()).collect()
}

fn sends(n: usize) -> End {
    let mut end = End::with(|_| {});
    for _ in 0..n {
        end.post(SEND, 1);
    }
    end
}

/// Rule R-CMP-11.
#[test]
fn f10_a_sequence_nak_completes_what_is_before_it_and_repeats_the_rest() {
    let mut end = sends(5);
    assert_eq!(psns(&end.requests()), [10, 11, 12, 13, 14]);
    end.ack(12, SEQUENCE).unwrap();
    assert_eq!(end.done(), [(0, WcStatus::Success), (1, WcStatus::Success)]);
    let again = end.requests();
    assert_eq!(psns(&again), [12, 13, 14]);
    assert!(again.iter().all(|p| p.bth.ack_req()), "R-REQ-11");
    assert_eq!(end.out.counters.packet_seq_err, 1);
}

/// Rule R-REQ-27.
#[test]
fn a_message_resumes_in_its_middle_and_repeats_first_only_for_its_psn() {
    let mut end = End::with(|_| {});
    end.post(write_op(), 5 * 256);
    let all = end.shown_requests();
    end.ack(12, SEQUENCE).unwrap();
    assert_eq!(
        end.shown_requests(),
        [
            "WRITE_MIDDLE psn=12 len=256 ack",
            "WRITE_MIDDLE psn=13 len=256 ack",
            "WRITE_LAST psn=14 len=256 ack"
        ]
    );
    let mut end = End::with(|_| {});
    end.post(write_op(), 5 * 256);
    end.requests();
    end.expire();
    assert_eq!(end.shown_requests()[0], format!("{} ack", all[0]));
}

#[test]
fn repeated_naks_of_one_psn_cost_one_retry_until_there_is_progress() {
    let mut end = End::with(|p| p.retry_cnt = 1);
    for _ in 0..3 {
        end.post(SEND, 1);
    }
    end.requests();
    for _ in 0..5 {
        end.ack(11, SEQUENCE).unwrap();
    }
    assert!(!end.out.fatal);
    assert_eq!(psns(&end.requests()), [11, 12], "and the packets are repeated once");
    end.ack(11, SEQUENCE).unwrap();
    assert_eq!(end.requests(), [], "R-CMP-25");
    // Progress reloads the counter (R-REQ-24), so the next one is forgiven again.
    end.ack(12, SEQUENCE).unwrap();
    assert_eq!(psns(&end.requests()), [12]);
    assert!(!end.out.fatal);
    end.expire();
    assert_eq!(end.done(), [(0, WcStatus::Success), (1, WcStatus::Success), (2, WcStatus::RetryExcErr)]);
}

#[test]
fn a_nak_after_a_timeout_is_heard() {
    let mut end = sends(3);
    end.requests();
    end.expire();
    assert_eq!(psns(&end.requests()), [10, 11, 12]);
    end.ack(10, SEQUENCE).unwrap();
    assert_eq!(psns(&end.requests()), [10, 11, 12]);
    assert_eq!((end.out.counters.local_ack_timeout_err, end.out.counters.packet_seq_err), (1, 1));
}

#[test]
fn f17_a_dead_peer_gets_retry_cnt_and_one_sends_in_the_time_the_timer_says() {
    let mut end = End::with(|p| (p.timeout, p.retry_cnt) = (14, 7));
    end.post(SEND, 1);
    let mut sends = 0;
    while !end.out.fatal {
        sends += end.requests().len();
        end.expire();
    }
    assert_eq!(sends, 8);
    assert_eq!(end.done(), [(0, WcStatus::RetryExcErr)]);
    let taken = end.now.as_nanos();
    assert!((540_000_000..2_200_000_000).contains(&taken), "{taken} ns");
    assert_eq!(end.out.counters.req_transport_retries_exceeded, 1);
}

/// Rule R-REQ-20.
#[test]
fn f17_the_timer_lies_within_t_and_four_t_and_zero_never_expires() {
    for timeout in 1..=31_u8 {
        let mut end = End::with(|p| p.timeout = timeout);
        end.post(SEND, 1);
        end.requests();
        let t = 4096_u64 << timeout;
        assert!((t..=4 * t).contains(&end.requester.poll_timeout().unwrap().as_nanos()), "timeout {timeout}");
    }
    let mut end = End::with(|p| p.timeout = 0);
    end.post(SEND, 1);
    end.requests();
    assert_eq!(end.requester.poll_timeout(), None);
    end.wait(Duration::from_secs(10));
    assert_eq!(end.requests(), []);
}

/// Rules R-CMP-17, R-CMP-18, R-REQ-21.
#[test]
fn the_timer_restarts_with_progress_and_not_with_repeated_acks() {
    let mut end = sends(3);
    end.requests();
    let first = end.requester.poll_timeout().unwrap();
    end.wait(Duration::from_micros(500));
    end.ack(10, Syndrome::ACK).unwrap();
    let second = end.requester.poll_timeout().unwrap();
    assert_eq!(second.since(first), Duration::from_micros(500));
    end.wait(Duration::from_micros(100));
    end.ack(10, Syndrome::ACK).unwrap_err();
    end.ack(11, SEQUENCE).unwrap();
    end.wait(Duration::from_micros(100));
    end.ack(11, SEQUENCE).unwrap();
    let third = end.requester.poll_timeout().unwrap();
    assert_eq!(third.since(second), Duration::from_micros(100), "only going back restarts it");
    end.ack(12, Syndrome::ACK).unwrap();
    assert_eq!(end.requester.poll_timeout(), None);
    end.post(SEND, 1);
    end.requests();
    assert!(end.requester.poll_timeout().is_some());
}

/// Rule R-CMP-12.
#[test]
fn f14_nothing_leaves_during_an_rnr_wait_whatever_the_ack_timer_says() {
    // ACK timeout 1: 8 µs. RNR code 14: 1.28 ms.
    let mut end = End::with(|p| p.timeout = 1);
    for _ in 0..3 {
        end.post(SEND, 1);
    }
    end.requests();
    end.ack(11, rnr(14)).unwrap();
    assert_eq!(end.done(), [(0, WcStatus::Success)], "R-CMP-10");
    let wait = RnrTimer::new(14).unwrap().duration();
    assert_eq!(end.requester.poll_timeout(), Some(Instant::ZERO + wait));
    // R-REQ-23: what some responders send behind it does not shorten it.
    end.ack(11, SEQUENCE).unwrap();
    end.ack(11, rnr(1)).unwrap();
    end.wait(Duration::from_nanos(wait.as_nanos() - 1));
    assert_eq!(end.requests(), []);
    assert_eq!(end.out.counters.local_ack_timeout_err, 0);
    end.wait(Duration::from_nanos(1));
    assert_eq!(psns(&end.requests()), [11, 12]);
    assert_eq!((end.out.counters.rnr_nak_retry_err, end.out.counters.packet_seq_err), (1, 0));
    assert!(end.requester.poll_timeout().is_some(), "the ACK timer runs again");
}

#[test]
fn an_ack_during_an_rnr_wait_counts_and_the_wait_goes_on() {
    let mut end = sends(3);
    end.requests();
    end.ack(10, rnr(14)).unwrap();
    // The receiver has found a buffer and taken a packet that was on its way.
    end.ack(10, Syndrome::ACK).unwrap();
    assert_eq!(end.done(), [(0, WcStatus::Success)]);
    assert_eq!(end.requests(), []);
    end.expire();
    assert_eq!(psns(&end.requests()), [11, 12]);
}

#[test]
fn an_rnr_nak_finds_a_message_in_its_last_packet() {
    let mut end = End::with(|_| {});
    end.post(write_imm_op(), 600);
    end.requests();
    end.ack(12, rnr(1)).unwrap();
    end.expire();
    assert_eq!(end.shown_requests(), ["WRITE_LAST_IMM psn=12 imm=0x01020304 len=88 ack"]);
}

/// Rule R-REQ-25.
#[test]
fn f16_rnr_retries_run_out_after_so_many_sends_and_seven_never() {
    for (rnr_retry, expected) in [(0_u8, 1), (1, 2), (6, 7)] {
        let mut end = End::with(|p| p.rnr_retry = rnr_retry);
        end.post(SEND, 1);
        let mut sends = 0;
        loop {
            sends += end.requests().len();
            end.ack(10, rnr(1)).unwrap();
            if end.out.fatal {
                break;
            }
            end.expire();
        }
        assert_eq!((sends, end.done()), (expected, vec![(0, WcStatus::RnrRetryExcErr)]));
        assert_eq!(end.out.counters.req_rnr_retries_exceeded, 1);
    }
    let mut end = End::with(|p| p.rnr_retry = 7);
    end.post(SEND, 1);
    while end.now < Instant::ZERO + Duration::from_secs(10) {
        assert_eq!(end.requests().len(), 1);
        end.ack(10, rnr(20)).unwrap();
        end.expire();
    }
    assert!(!end.out.fatal);
}

/// Rules R-REQ-25, R-CMP-17.
#[test]
fn f16_progress_reloads_the_rnr_counter_and_the_counters_are_apart() {
    let mut end = End::with(|p| (p.rnr_retry, p.retry_cnt) = (1, 1));
    for _ in 0..3 {
        end.post(SEND, 1);
    }
    for psn in 10..13 {
        end.requests();
        end.ack(psn, rnr(1)).unwrap();
        end.expire();
        end.requests();
        // Another kind of failure has its own counter.
        end.expire();
        end.requests();
        assert!(!end.out.fatal);
        end.ack(psn, Syndrome::ACK).unwrap();
    }
    assert_eq!(end.done().len(), 3);
}

#[test]
fn an_ack_ahead_of_what_is_being_repeated_skips_it() {
    let mut end = sends(6);
    end.requests();
    end.expire();
    assert_eq!(psns(&[end.request().unwrap(), end.request().unwrap()]), [10, 11]);
    end.ack(13, Syndrome::ACK).unwrap();
    assert_eq!(end.done().len(), 4);
    assert_eq!(psns(&end.requests()), [14, 15], "R-REQ-26: from the first that is missing on");
    end.ack(15, Syndrome::ACK).unwrap();
    assert!(end.requester.is_empty());
}

#[test]
fn an_ack_ahead_within_a_message_skips_a_part_of_it() {
    let mut end = End::with(|_| {});
    end.post(SEND, 6 * 256);
    end.requests();
    end.expire();
    assert_eq!(end.request().unwrap().bth.psn().value(), 10);
    end.ack(12, Syndrome::ACK).unwrap();
    assert_eq!(psns(&end.requests()), [13, 14, 15]);
}

/// Rule R-REQ-29.
#[test]
fn a_repeated_atomic_is_the_same_packet() {
    let mut end = End::with(|_| {});
    end.post(cmp_swap_op(3, 4), 8);
    let first = end.requests();
    end.expire();
    assert_eq!(end.requests(), first);
}

#[test]
fn a_resumed_read_may_be_refused_by_its_own_psn() {
    let mut end = End::with(|_| {});
    end.post(read_op(), 4 * 256);
    end.requests();
    end.take(&response(Op::ReadResponseFirst, 10, &pattern(256, 1))).unwrap();
    end.expire();
    assert_eq!(
        end.shown_requests(),
        ["READ_REQUEST psn=11 va=0x5100 rkey=0x00000100 dmalen=768 ack"],
        "R-REQ-28"
    );
    end.ack(11, Syndrome::Nak(NakCode::RemoteAccessError)).unwrap();
    assert_eq!(end.done(), [(0, WcStatus::RemAccessErr)]);
}

#[test]
fn a_sequence_nak_after_an_rnr_wait_is_heard() {
    let mut end = sends(2);
    end.requests();
    end.ack(10, SEQUENCE).unwrap();
    end.requests();
    end.ack(10, rnr(1)).unwrap();
    end.expire();
    assert_eq!(psns(&end.requests()), [10, 11]);
    end.ack(10, SEQUENCE).unwrap();
    assert_eq!(psns(&end.requests()), [10, 11], "going back ended with the wait");
}

#[test]
fn the_ack_timer_begins_anew_after_an_rnr_wait() {
    // The wait, 655 ms, is far longer than the ACK timer, 1.3 ms.
    let mut end = End::with(|_| {});
    end.post(SEND, 1);
    end.post(SEND, 1);
    end.post(read_op(), 1);
    end.post(SEND, 1);
    end.requests();
    end.ack(10, rnr(0)).unwrap();
    // Progress during the wait, and an implied NAK.
    end.ack(10, Syndrome::ACK).unwrap();
    end.ack(13, Syndrome::ACK).unwrap();
    assert_eq!(end.done().len(), 2);
    end.expire();
    assert_eq!(psns(&end.requests()), [12, 13]);
    let timeout = end.params.ack_timeout().unwrap();
    assert_eq!(end.requester.poll_timeout(), Some(end.now + timeout));
}

#[test]
fn sending_more_does_not_put_the_timer_off() {
    let mut end = sends(1);
    end.requests();
    let due = end.requester.poll_timeout();
    end.wait(Duration::from_micros(100));
    end.post(SEND, 1);
    assert_eq!(psns(&end.requests()), [11]);
    assert_eq!(end.requester.poll_timeout(), due, "R-REQ-21");
}
