//! What each profile does, one behaviour after the other, in virtual time.

use wire::{Duration, NakCode, Operation as Op, PacketRepr, RnrTimer, Syndrome};

use super::*;
use crate::kit::*;
use crate::ports::Side;
use crate::wqe::SendFlags;

const SEQUENCE: Syndrome = Syndrome::Nak(NakCode::PsnSequenceError);

/// An end of this profile, with attributes changed by `change`.
fn end(profile: Profile, change: impl FnOnce(&mut crate::RcParams)) -> End {
    End::with(|params| {
        params.behaviour = profile.behaviour();
        change(params);
    })
}

/// Which of these packets ask for an ACK.
fn asking(packets: &[PacketRepr]) -> Vec<bool> {
    packets.iter().map(|packet| packet.bth.ack_req()).collect()
}

#[test]
fn names_are_read_and_written() {
    for profile in Profile::ALL {
        assert_eq!(profile.to_string().parse(), Ok(profile));
    }
    assert_eq!(Profile::default(), Profile::Strict);
    let error = "cx5".parse::<Profile>().unwrap_err();
    assert_eq!(error.to_string(), "there is no profile \"cx5\"; there are strict, rxe and connectx");
}

/// Rule R-WIR-34.
#[test]
fn f08_migreq_is_one_but_for_rxe_in_requests_and_answers() {
    for (profile, migreq) in [(Profile::Strict, true), (Profile::Rxe, false), (Profile::ConnectX, true)] {
        let mut end = end(profile, |_| {});
        end.post(SEND, 600);
        end.post(read_op(), 600);
        end.take(&read_request(100, 0, 600)).unwrap();
        end.take(&fetch_add(103, 0, 1)).unwrap();
        end.take(&ranged(Op::WriteOnly, 104, (va(0), RKEY, 4), &[1; 4])).unwrap();
        let sent = [end.requests(), end.replies()].concat();
        assert_eq!(sent.len(), 4 + 5);
        assert!(sent.iter().all(|packet| packet.bth.migreq() == migreq), "{profile}");
    }
}

/// Rule R-REQ-11: in two messages of 250 packets. A quarter of the window is 80 packets, and it closes with the 320th.
#[test]
fn long_messages_ask_now_and_then() {
    for (profile, expected) in [
        (Profile::Strict, [80, 160, 240, 250, 320, 400, 480, 500].to_vec()),
        (Profile::Rxe, [66, 132, 198, 250, 316, 320, 386, 452, 500].to_vec()),
        (Profile::ConnectX, [256, 320, 500].to_vec()),
    ] {
        let mut end = end(profile, |params| params.window = 320);
        end.post(write_op(), 250 * 256);
        end.post(write_op(), 250 * 256);
        let mut sent = end.requests();
        end.ack(10 + 255, Syndrome::ACK).unwrap();
        sent.extend(end.requests());
        let asking = asking(&sent);
        let asked: Vec<_> = (1..=500).filter(|n| asking[n - 1]).collect();
        assert_eq!(asked, expected, "{profile}");
    }
}

/// Whatever the profile, a message never waits for an ACK that nobody was asked for.
#[test]
fn the_packet_that_closes_the_window_asks() {
    for profile in Profile::ALL {
        let mut end = end(profile, |params| params.window = 16);
        end.post(write_op(), 40 * 256);
        let sent = end.requests();
        assert_eq!((sent.len(), sent[15].bth.ack_req()), (16, true), "{profile}");
    }
}

#[test]
fn connectx_asks_where_no_message_follows() {
    for profile in Profile::ALL {
        let mut end = end(profile, |_| {});
        for _ in 0..3 {
            end.post(SEND, 1);
        }
        end.post(read_op(), 1);
        end.post(SEND, 1);
        end.post_sges(SEND, &[sge(0, 1)], SendFlags::SIGNALED | SendFlags::FENCE);
        let idle_only = profile == Profile::ConnectX;
        // The READ, what stands before it, and what stands before the fence always ask.
        let expected = [!idle_only, !idle_only, true, true, true];
        assert_eq!(asking(&end.requests()), expected, "{profile}");
        end.take(&response(Op::ReadResponseOnly, 13, &[9])).unwrap();
        end.ack(14, Syndrome::ACK).unwrap();
        assert_eq!(asking(&end.requests()), [true], "{profile}");
        end.ack(15, Syndrome::ACK).unwrap();
        let done: Vec<_> = (0..6).map(|id| (id, WcStatus::Success)).collect();
        assert_eq!(end.done(), done, "{profile}");
    }
}

/// A request behind that cannot be carried out would take the ACK with it.
#[test]
fn connectx_asks_where_the_next_message_is_going_to_fail() {
    let mut end = end(Profile::ConnectX, |_| {});
    end.post(SEND, 1);
    let bad = crate::Sge { lkey: wire::LKey::new(0x999), ..sge(0, 1) };
    end.post_sges(SEND, &[bad], SendFlags::SIGNALED);
    assert_eq!(asking(&end.requests()), [true]);
    end.ack(10, Syndrome::ACK).unwrap();
    assert_eq!(end.done(), [(0, WcStatus::Success), (1, WcStatus::LocProtErr)]);
}

#[test]
fn repeats_ask_but_for_rxe() {
    for profile in Profile::ALL {
        let mut end = end(profile, |params| params.window = 64);
        end.post(write_op(), 4 * 256);
        end.requests();
        end.ack(11, SEQUENCE).unwrap();
        let repeated = asking(&end.requests());
        let all = profile != Profile::Rxe;
        assert_eq!(repeated, [all, all, true], "{profile}");
    }
}

/// Rule R-RSP-26.
#[test]
fn rxe_acknowledges_each_packet_that_asks() {
    for profile in Profile::ALL {
        let mut end = end(profile, |_| {});
        for psn in 100..103 {
            end.post_recv(0, 10);
            end.take(&plain(Op::SendOnly, psn, 10)).unwrap();
        }
        let all = ["ACK psn=100 ack msn=1", "ACK psn=101 ack msn=2", "ACK psn=102 ack msn=3"];
        let expected = if profile == Profile::Rxe { &all[..] } else { &all[2..] };
        assert_eq!(end.shown_replies(), expected, "{profile}");
    }
}

/// Rule R-RSP-30.
#[test]
fn f11_rxe_goes_on_with_the_rest_of_a_read_the_others_begin_anew() {
    for profile in Profile::ALL {
        let mut end = end(profile, |_| {});
        end.take(&read_request(100, 0, 700)).unwrap();
        let whole = end.shown_replies();
        end.take(&read_request(100, 0, 700)).unwrap();
        assert_eq!(end.shown_replies(), whole, "{profile}: from its beginning on");
        let rest = |end: &mut End, psn, offset, len| {
            end.take(&read_request(psn, offset, len)).unwrap();
            end.replies()
                .iter()
                .map(|packet| packet.bth.opcode().info().unwrap().operation)
                .collect::<Vec<_>>()
        };
        let (two, one) = (rest(&mut end, 101, 256, 444), rest(&mut end, 102, 512, 188));
        if profile == Profile::Rxe {
            assert_eq!(
                (two, one),
                (vec![Op::ReadResponseMiddle, Op::ReadResponseLast], vec![Op::ReadResponseLast])
            );
        } else {
            assert_eq!(
                (two, one),
                (vec![Op::ReadResponseFirst, Op::ReadResponseLast], vec![Op::ReadResponseOnly])
            );
        }
    }
}

/// Rule R-RSP-3; and the requester's wait goes on whatever follows (rule R-REQ-23).
#[test]
fn f14_rxe_sends_a_sequence_nak_behind_an_rnr_nak_and_no_wait_is_cut_short() {
    for profile in Profile::ALL {
        let mut responder = end(profile, |_| {});
        let mut requester = end(Profile::Strict, |params| *params = other_end(params));
        requester.post(SEND, 3 * 256);
        let packets = requester.requests();
        let dropped = packets.iter().filter(|packet| responder.take(packet).is_err()).count();
        let replies = responder.shown_replies();
        if profile == Profile::Rxe {
            assert_eq!(
                replies,
                ["ACK psn=100 rnr_nak timer=1.28ms msn=0", "ACK psn=100 nak=psn_sequence msn=0"]
            );
        } else {
            assert_eq!(replies, ["ACK psn=100 rnr_nak timer=1.28ms msn=0"]);
        }
        assert_eq!(dropped, if profile == Profile::Rxe { 1 } else { 2 });
        requester.ack(100, Syndrome::RnrNak(RnrTimer::new(14).unwrap())).unwrap();
        requester.ack(100, SEQUENCE).unwrap();
        requester.wait(Duration::from_micros(1279));
        assert_eq!(requester.requests(), [], "{profile}");
        requester.wait(Duration::from_micros(1));
        responder.post_recv(0, 1000);
        responder.take_all(&requester.requests());
        // The gap is over: the next one is told again.
        assert!(responder.take(&plain(Op::SendOnly, 105, 1)).is_ok());
        let sequence = "ACK psn=103 nak=psn_sequence msn=1".to_owned();
        assert_eq!(responder.shown_replies().last(), Some(&sequence), "{profile}");
    }
}

/// Rules R-RSP-12 to R-RSP-14 and R-WIR-31.
#[test]
fn what_is_too_long_or_too_short_is_answered_as_the_peer_does() {
    for profile in Profile::ALL {
        let rxe = profile == Profile::Rxe;
        let refusal = |code: &str, psn: u32| vec![format!("ACK psn={psn} nak={code} msn=0")];
        let mut too_long = end(profile, |_| {});
        too_long.post_recv(0, 10);
        too_long.take(&plain(Op::SendOnly, 100, 11)).unwrap();
        let (code, status) = if rxe {
            ("remote_operational", WcStatus::LocQpOpErr)
        } else {
            ("invalid_request", WcStatus::LocLenErr)
        };
        assert_eq!(too_long.shown_replies(), refusal(code, 100), "{profile}");
        assert_eq!(too_long.done_by_side(), [(Side::Recv, 0, status)], "{profile}");

        for operation in [Op::ReadRequest, Op::WriteFirst] {
            let mut endless = end(profile, |_| {});
            let payload = if operation == Op::ReadRequest { vec![] } else { pattern(256, 3) };
            endless.take(&ranged(operation, 100, (va(0), RKEY, (1 << 31) + 1), &payload)).unwrap();
            let code = if rxe { "remote_access" } else { "invalid_request" };
            assert_eq!(endless.shown_replies(), refusal(code, 100), "{profile}: {operation:?}");
        }

        let mut short = end(profile, |_| {});
        short.post_recv(0, 300);
        short.take(&plain(Op::SendFirst, 100, 100)).unwrap();
        if rxe {
            short.take(&plain(Op::SendLast, 101, 0)).unwrap();
            assert_eq!(short.completions()[0].byte_len, 100);
            assert_eq!(short.bytes(0, 101)[..100], pattern(100, 7));
        } else {
            assert_eq!(short.shown_replies(), refusal("invalid_request", 100), "{profile}");
        }
        // A WRITE has to add up for all; where its last byte is due, and with which opcode, is another matter.
        let mut full = end(profile, |_| {});
        full.take(&ranged(Op::WriteFirst, 100, (va(0), RKEY, 256), &pattern(256, 3))).unwrap();
        if rxe {
            full.take(&plain(Op::WriteLast, 101, 0)).unwrap();
            assert_eq!(full.shown_replies(), ["ACK psn=100 ack msn=0", "ACK psn=101 ack msn=1"]);
            assert_eq!(full.bytes(0, 256), pattern(256, 3));
        } else {
            assert_eq!(full.shown_replies(), refusal("invalid_request", 100), "{profile}");
        }
        let mut write = end(profile, |_| {});
        write.take(&ranged(Op::WriteOnly, 100, (va(0), RKEY, 9), &[1; 8])).unwrap();
        assert_eq!(write.shown_replies(), refusal("invalid_request", 100), "{profile}");
    }
}

/// Rule R-REQ-24: how often a dead peer is tried with a retry count of 7, within 40 timeouts.
#[test]
fn f17_rxe_takes_seven_retries_for_ever() {
    for (profile, retry_cnt, sends) in
        [(Profile::Strict, 7, 8), (Profile::Rxe, 7, 40), (Profile::Rxe, 6, 7), (Profile::Rxe, 0, 1)]
    {
        let mut end = end(profile, |params| params.retry_cnt = retry_cnt);
        end.post(SEND, 1);
        let mut seen = 0;
        for _ in 0..40 {
            seen += end.requests().len();
            if !end.out.fatal {
                end.expire();
            }
        }
        assert_eq!(seen, sends, "{profile}, {retry_cnt}");
        assert_eq!(end.out.fatal, sends < 40, "{profile}, {retry_cnt}");
    }
}

/// How long after the first send each repeat leaves, and when the connection is given up, in microseconds.
fn repeats(end: &mut End) -> (Vec<u64>, u64) {
    let (start, mut times) = (end.now, Vec::new());
    end.requests();
    loop {
        end.expire();
        let passed = end.now.since(start).as_nanos() / 1000;
        if end.out.fatal {
            return (times, passed);
        }
        assert_eq!(end.requests().len(), 1);
        times.push(passed);
    }
}

/// Rule R-REQ-45.
#[test]
fn connectx_repeats_early_then_less_and_less_often_up_to_the_timeout() {
    let mut peer = end(Profile::ConnectX, |params| (params.timeout, params.retry_cnt) = (16, 7));
    peer.post(SEND, 1);
    let (times, end_of_it) = repeats(&mut peer);
    let base = 4096 << 9;
    let gaps: Vec<_> = times.windows(2).map(|pair| (pair[1] - pair[0]) * 1000).collect();
    assert!((base..2 * base).contains(&(times[0] * 1000)), "{times:?}");
    let near = |gap: u64, expected: u64| gap.abs_diff(expected) < 2000;
    // 4, 8, 16, 32, 64, 128 and 256 ms, then 1.25 times 268 ms, the queue pair's own.
    assert!(gaps.iter().zip(1..8).all(|(gap, n)| near(*gap, base << n)), "{gaps:?}");
    assert!(gaps[7..].iter().all(|gap| near(*gap, (4096 << 16) * 5 / 4)), "{gaps:?}");
    // Seven timeouts in all, and what is left of the last wait.
    let total = 7 * (4096 << 16) / 1000;
    assert!((total..total + (4096 << 16) * 5 / 4 / 1000).contains(&end_of_it), "{end_of_it}");
    assert_eq!(peer.done(), [(0, WcStatus::RetryExcErr)]);
    assert_eq!(peer.out.counters.req_transport_retries_exceeded, 1);
}

#[test]
fn connectx_begins_anew_when_the_peer_answers() {
    let mut peer = end(Profile::ConnectX, |params| (params.timeout, params.retry_cnt) = (18, 1));
    peer.post(SEND, 1);
    peer.post(SEND, 1);
    peer.requests();
    let first = peer.requester.poll_timeout().unwrap().since(peer.now);
    for _ in 0..5 {
        peer.expire();
        peer.requests();
    }
    let slow = peer.requester.poll_timeout().unwrap().since(peer.now);
    assert!(slow > first + first, "{slow:?}");
    peer.ack(10, Syndrome::ACK).unwrap();
    assert_eq!(peer.requester.poll_timeout().unwrap().since(peer.now), first);
    // So does the count of what a NAK may cost.
    peer.ack(11, SEQUENCE).unwrap();
    assert!(!peer.out.fatal);
    assert_eq!(peer.requests().len(), 1);
}

#[test]
fn connectx_gives_up_at_once_without_retries_and_never_without_a_timer() {
    let mut peer = end(Profile::ConnectX, |params| params.retry_cnt = 0);
    peer.post(SEND, 1);
    assert_eq!(repeats(&mut peer).0, []);
    let mut peer = end(Profile::ConnectX, |params| params.timeout = 0);
    peer.post(SEND, 1);
    peer.requests();
    assert_eq!(peer.requester.poll_timeout(), None);
}

#[test]
fn small_timeouts_count_as_the_least_that_connectx_takes() {
    for (profile, least) in [(Profile::Strict, 0), (Profile::Rxe, 0), (Profile::ConnectX, 16)] {
        for timeout in 1..=31_u8 {
            let end = end(profile, |params| params.timeout = timeout);
            let expected = (4096_u64 << timeout.max(least)) * 5 / 4;
            assert_eq!(
                end.params.ack_timeout(),
                Some(Duration::from_nanos(expected)),
                "{profile}, {timeout}"
            );
        }
    }
}

#[test]
fn queue_pairs_do_not_keep_step() {
    let firsts = (0..64_u32).map(|n| {
        let end = end(Profile::ConnectX, |params| params.qpn = wire::Qpn::new(0x11 + n));
        end.params.retransmission_timeout(0).unwrap().as_nanos()
    });
    let firsts: std::collections::BTreeSet<_> = firsts.collect();
    assert!(firsts.len() > 32, "{firsts:?}");
    assert!(firsts.iter().all(|t| (4096 << 9..4096 << 10).contains(t)), "{firsts:?}");
}

#[test]
fn every_wait_is_a_time() {
    for first in 0..=u8::MAX {
        let behaviour = Box::leak(Box::new(Behaviour { adaptive: Some(first), ..Behaviour::STRICT }));
        let params = crate::RcParams { behaviour, timeout: 31, ..params() };
        let waits: Vec<_> = (0..=u8::MAX).map(|n| params.retransmission_timeout(n).unwrap()).collect();
        assert!(waits[1..].is_sorted(), "{first}: {waits:?}");
        assert!(waits.iter().all(|wait| *wait <= params.ack_timeout().unwrap()), "{first}");
    }
}
