//! Every row of what an answer can mean.

use wire::{LKey, NakCode, Operation as Op, Psn, RnrTimer, Syndrome, VirtAddr};

use crate::completion::{WcOpcode, WcStatus};
use crate::drop::DropReason;
use crate::kit::*;
use crate::ports::Access;
use crate::wqe::{SendFlags, SendOp, Sge};

/// An end that has sent `ops`, each with a local part of `len` bytes.
fn sent(ops: &[(SendOp, u32)]) -> End {
    let mut end = End::with(|_| {});
    for (op, len) in ops {
        end.post(*op, *len);
    }
    end.requests();
    end
}

fn psns(end: &mut End) -> Vec<u32> {
    end.requests().iter().map(|packet| packet.bth.psn().value()).collect()
}

/// Rule R-CMP-18.
#[test]
fn answers_to_nothing_outstanding_are_ghosts() {
    let mut end = sent(&[]);
    for psn in [9, 10, 11, 0xFF_FFFF] {
        assert_eq!(end.ack(psn, Syndrome::ACK), Err(DropReason::GhostResponse), "R-CMP-24");
    }
    let mut end = sent(&[(SEND, 600)]);
    end.ack(10, Syndrome::ACK).unwrap();
    for psn in [9, 10, 13, 14, 10 + (1 << 23)] {
        for syndrome in [Syndrome::ACK, Syndrome::Nak(NakCode::InvalidRequest)] {
            assert_eq!(end.ack(psn, syndrome), Err(DropReason::GhostResponse), "psn {psn}, R-CMP-1");
        }
    }
    assert!(!end.out.fatal);
}

#[test]
fn an_ack_is_cumulative_and_partial_acks_complete_nothing() {
    let mut end = sent(&[(SEND, 1), (write_op(), 300), (SEND, 600)]);
    end.ack(11, Syndrome::ACK).unwrap();
    assert_eq!(end.done(), [(0, WcStatus::Success)], "R-CMP-4");
    assert_eq!(end.requester.oldest_unacknowledged(), Psn::new(12));
    end.ack(15, Syndrome::ACK).unwrap();
    assert_eq!(end.done(), [(1, WcStatus::Success), (2, WcStatus::Success)], "R-CMP-2");
}

/// Rule R-REQ-1.
#[test]
fn psns_wrap_around_their_circle() {
    let mut end = End::with(|p| p.sq_psn = Psn::new(0xFF_FFFE));
    end.post(SEND, 4 * 256);
    end.post(read_op(), 2 * 256);
    end.requests();
    end.ack(0xFF_FFFF, Syndrome::ACK).unwrap();
    end.ack(1, Syndrome::ACK).unwrap();
    end.take(&response(Op::ReadResponseFirst, 2, &pattern(256, 1))).unwrap();
    end.take(&response(Op::ReadResponseLast, 3, &pattern(256, 2))).unwrap();
    assert_eq!(end.done(), [(0, WcStatus::Success), (1, WcStatus::Success)]);
}

/// Rules R-CMP-3, R-CMP-23.
#[test]
fn f11_an_ack_beyond_a_read_goes_back_to_the_read() {
    let mut end = End::with(|p| p.sq_psn = Psn::new(40));
    for op in [write_op(), read_op(), write_op()] {
        end.post(op, 64);
    }
    assert_eq!(psns(&mut end), [40, 41, 42]);
    end.ack(42, Syndrome::ACK).unwrap();
    assert_eq!(end.done(), [(0, WcStatus::Success)]);
    assert_eq!(end.out.counters.implied_nak_seq_err, 1);
    assert_eq!(psns(&mut end), [41, 42]);
    // More of the kind change nothing (R-CMP-25).
    assert_eq!(end.ack(42, Syndrome::ACK), Err(DropReason::ResponseOutOfOrder));
    assert_eq!((psns(&mut end), end.out.counters.implied_nak_seq_err), (vec![], 1));
    end.take(&response(Op::ReadResponseOnly, 41, &pattern(64, 5))).unwrap();
    end.ack(42, Syndrome::ACK).unwrap();
    assert_eq!(end.done(), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    assert_eq!(end.bytes(0, 64), pattern(64, 5));
}

/// Rules R-CMP-3, R-CMP-6.
#[test]
fn f11_a_read_is_repeated_from_its_first_missing_psn() {
    let mut end = End::with(|p| (p.mtu, p.sq_psn) = (wire::Mtu::B1024, Psn::new(50)));
    end.post(read_op(), 4096);
    end.requests();
    end.take(&response(Op::ReadResponseFirst, 50, &pattern(1024, 1))).unwrap();
    end.take(&response(Op::ReadResponseMiddle, 51, &pattern(1024, 2))).unwrap();
    // 52 was lost.
    end.take(&response(Op::ReadResponseLast, 53, &pattern(1024, 4))).unwrap();
    assert_eq!(end.shown_requests(), ["READ_REQUEST psn=52 va=0x5800 rkey=0x00000100 dmalen=2048 ack"]);
    // What is behind the missing one is not taken, however often it comes (R-CMP-22).
    let late = response(Op::ReadResponseLast, 53, &pattern(1024, 9));
    assert_eq!(end.take(&late), Err(DropReason::ResponseOutOfOrder));
    end.take(&response(Op::ReadResponseFirst, 52, &pattern(1024, 3))).unwrap();
    end.take(&response(Op::ReadResponseLast, 53, &pattern(1024, 4))).unwrap();
    assert_eq!(end.done(), [(0, WcStatus::Success)]);
    let expected = [pattern(1024, 1), pattern(1024, 2), pattern(1024, 3), pattern(1024, 4)].concat();
    assert_eq!(end.bytes(0, 4096), expected);
    assert_eq!(end.take(&late), Err(DropReason::GhostResponse));
}

#[test]
fn a_late_answer_of_the_first_try_makes_the_repeat_ask_for_less() {
    let mut end = sent(&[(read_op(), 4 * 256)]);
    end.expire();
    end.take(&response(Op::ReadResponseFirst, 10, &pattern(256, 1))).unwrap();
    assert_eq!(end.shown_requests(), ["READ_REQUEST psn=11 va=0x5100 rkey=0x00000100 dmalen=768 ack"]);
    // Answers of both tries interleave; each next PSN is taken once, whatever its opcode (R-CMP-8).
    end.take(&response(Op::ReadResponseFirst, 11, &pattern(256, 2))).unwrap();
    assert_eq!(
        end.take(&response(Op::ReadResponseMiddle, 11, &pattern(256, 8))),
        Err(DropReason::GhostResponse)
    );
    end.take(&response(Op::ReadResponseMiddle, 12, &pattern(256, 3))).unwrap();
    end.take(&response(Op::ReadResponseLast, 13, &pattern(256, 4))).unwrap();
    assert_eq!(end.done(), [(0, WcStatus::Success)]);
    assert_eq!(end.bytes(256, 256), pattern(256, 2));
}

#[test]
fn an_answer_may_overtake_the_repeat_of_its_read_wholly() {
    let mut end = sent(&[(read_op(), 256), (SEND, 1)]);
    end.expire();
    end.take(&response(Op::ReadResponseOnly, 10, &pattern(256, 1))).unwrap();
    assert_eq!(end.done(), [(0, WcStatus::Success)]);
    assert_eq!(psns(&mut end), [11]);
}

#[test]
fn an_implied_nak_between_the_pieces_of_a_read_goes_back_to_the_missing_one() {
    // 16 PSNs in two pieces of 8; the last answer of the first is lost.
    let mut end = End::with(|p| p.window = 16);
    end.post(read_op(), 16 * 256);
    end.requests();
    end.take(&response(Op::ReadResponseFirst, 10, &pattern(256, 0))).unwrap();
    for psn in 11..17 {
        end.take(&response(Op::ReadResponseMiddle, psn, &pattern(256, 0))).unwrap();
    }
    end.take(&response(Op::ReadResponseFirst, 18, &pattern(256, 0))).unwrap();
    assert_eq!(
        end.shown_requests(),
        [
            "READ_REQUEST psn=17 va=0x5700 rkey=0x00000100 dmalen=256 ack",
            "READ_REQUEST psn=18 va=0x5800 rkey=0x00000100 dmalen=2048 ack",
        ],
        "pieces end where they did, so each lies within one the responder remembers"
    );
    end.take(&response(Op::ReadResponseOnly, 17, &pattern(256, 0))).unwrap();
    end.take(&response(Op::ReadResponseFirst, 18, &pattern(256, 0))).unwrap();
    for psn in 19..25 {
        end.take(&response(Op::ReadResponseMiddle, psn, &pattern(256, 0))).unwrap();
    }
    end.take(&response(Op::ReadResponseLast, 25, &pattern(256, 0))).unwrap();
    assert_eq!(end.done(), [(0, WcStatus::Success)]);
}

/// Rule R-CMP-5.
#[test]
fn a_read_response_acknowledges_what_is_before_it() {
    let mut end = sent(&[(SEND, 600), (write_op(), 1), (read_op(), 256)]);
    end.take(&response(Op::ReadResponseOnly, 14, &pattern(256, 6))).unwrap();
    assert_eq!(end.done(), [(0, WcStatus::Success), (1, WcStatus::Success), (2, WcStatus::Success)]);
    assert_eq!(end.requester.poll_timeout(), None);
}

#[test]
fn a_read_response_that_cannot_be_is_a_bad_response() {
    let full = pattern(256, 1);
    let aeth = wire::ext::Aeth::new(Syndrome::Nak(NakCode::RemoteAccessError), wire::Msn::new(0));
    let rnr = wire::ext::Aeth::new(Syndrome::RnrNak(RnrTimer::new(1).unwrap()), wire::Msn::new(0));
    // The READ is of 600 bytes: 256, 256, 88 (R-CMP-7, R-CMP-14, R-CMP-16, R-CMP-21).
    let bad = [
        response(Op::ReadResponseFirst, 10, &full[..255]),
        response(Op::ReadResponseFirst, 10, &[]),
        response(Op::ReadResponseFirst, 10, &pattern(257, 1)),
        response(Op::ReadResponseOnly, 10, &full),
        response(Op::ReadResponseLast, 10, &full),
        packet(Op::ReadResponseFirst, 10, vec![aeth.into()], &full),
        packet(Op::ReadResponseFirst, 10, vec![rnr.into()], &full),
        atomic_response(10, Syndrome::ACK, 0),
    ];
    for packet in bad {
        let mut end = sent(&[(read_op(), 600)]);
        end.take(&packet).unwrap();
        assert_eq!(end.done(), [(0, WcStatus::BadRespErr)], "{}", show(&packet));
        assert!(end.out.fatal);
    }
    for (op, len) in [
        (Op::ReadResponseMiddle, 88),
        (Op::ReadResponseFirst, 88),
        (Op::ReadResponseLast, 87),
        (Op::ReadResponseLast, 89),
        (Op::ReadResponseLast, 256),
    ] {
        let mut end = sent(&[(read_op(), 600)]);
        end.take(&response(Op::ReadResponseFirst, 10, &full)).unwrap();
        end.take(&response(Op::ReadResponseMiddle, 11, &full)).unwrap();
        end.take(&response(op, 12, &full[..len])).unwrap();
        assert_eq!(end.done(), [(0, WcStatus::BadRespErr)], "{op:?} of {len}");
    }
}

#[test]
fn an_answer_of_the_wrong_kind_is_a_bad_response() {
    for answer in [response(Op::ReadResponseOnly, 10, &[0]), atomic_response(10, Syndrome::ACK, 0)] {
        let mut end = sent(&[(SEND, 1)]);
        end.take(&answer).unwrap();
        assert_eq!(end.done(), [(0, WcStatus::BadRespErr)], "{}", show(&answer));
    }
    let mut end = sent(&[(fetch_add_op(1), 8)]);
    end.take(&response(Op::ReadResponseOnly, 10, &[0; 8])).unwrap();
    assert_eq!(end.done(), [(0, WcStatus::BadRespErr)]);
    let mut end = sent(&[(fetch_add_op(1), 8)]);
    end.take(&atomic_response(10, Syndrome::Nak(NakCode::InvalidRequest), 0)).unwrap();
    assert_eq!(end.done(), [(0, WcStatus::BadRespErr)], "R-CMP-14");
    // An ACK or ATOMIC ACK with a payload is none.
    for op in [Op::Acknowledge, Op::AtomicAcknowledge] {
        let mut end = sent(&[(fetch_add_op(1), 8)]);
        let empty = if op == Op::Acknowledge {
            ack(10, Syndrome::ACK)
        } else {
            atomic_response(10, Syndrome::ACK, 0)
        };
        end.take(&packet(op, 10, empty.ext, &[0; 4])).unwrap();
        assert_eq!(end.done(), [(0, WcStatus::BadRespErr)], "{op:?}");
    }
}

#[test]
fn a_zero_length_read_wants_an_empty_answer() {
    let mut end = sent(&[(read_op(), 0)]);
    end.take(&response(Op::ReadResponseOnly, 10, &[])).unwrap();
    assert_eq!(end.done(), [(0, WcStatus::Success)]);
    let mut end = sent(&[(read_op(), 0)]);
    end.take(&response(Op::ReadResponseOnly, 10, &[1])).unwrap();
    assert_eq!(end.done(), [(0, WcStatus::BadRespErr)]);
}

#[test]
fn an_atomic_stores_the_number_that_was_found() {
    let mut end = sent(&[(SEND, 1), (fetch_add_op(1), 8), (cmp_swap_op(1, 2), 8)]);
    end.take(&atomic_response(11, Syndrome::ACK, 0x0102_0304_0506_0708)).unwrap();
    assert_eq!(end.bytes(0, 8), 0x0102_0304_0506_0708_u64.to_ne_bytes(), "R-CMP-15");
    let done = end.completions();
    assert_eq!((done[1].opcode, done[1].byte_len), (WcOpcode::FetchAdd, 8), "R-CQE-7");
    assert_eq!(done.len(), 2);
    end.take(&atomic_response(12, Syndrome::ACK, 9)).unwrap();
    assert_eq!(end.completions()[0].opcode, WcOpcode::CompSwap);
}

/// Rule R-CMP-3.
#[test]
fn the_answer_of_a_later_atomic_is_an_implied_nak_for_the_earlier() {
    let mut end = sent(&[(fetch_add_op(1), 8), (fetch_add_op(2), 8)]);
    end.take(&atomic_response(11, Syndrome::ACK, 0)).unwrap();
    assert_eq!((end.done(), psns(&mut end)), (vec![], vec![10, 11]));
    assert_eq!(end.out.counters.implied_nak_seq_err, 1);
    assert_eq!(end.take(&atomic_response(11, Syndrome::ACK, 0)), Err(DropReason::ResponseOutOfOrder));
}

#[test]
fn implied_naks_run_out_of_retries() {
    let mut end = End::with(|p| p.retry_cnt = 0);
    end.post(read_op(), 1);
    end.post(SEND, 1);
    end.requests();
    end.ack(11, Syndrome::ACK).unwrap();
    assert_eq!(end.done(), [(0, WcStatus::RetryExcErr)]);
}

#[test]
fn naks_have_their_statuses_and_acknowledge_what_is_before_them() {
    let codes = [
        (NakCode::InvalidRequest, WcStatus::RemInvReqErr),
        (NakCode::RemoteAccessError, WcStatus::RemAccessErr),
        (NakCode::RemoteOperationalError, WcStatus::RemOpErr),
        (NakCode::InvalidRdRequest, WcStatus::RemInvRdReqErr),
        (NakCode::Reserved(5), WcStatus::BadRespErr),
        (NakCode::Reserved(31), WcStatus::BadRespErr),
    ];
    for (code, status) in codes {
        let mut end = sent(&[(SEND, 1), (write_op(), 600), (SEND, 1)]);
        end.ack(12, Syndrome::Nak(code)).unwrap();
        let done = end.completions();
        assert_eq!(done.len(), 2, "{code:?}");
        assert_eq!((done[0].status, done[1].status), (WcStatus::Success, status), "R-CMP-9, R-CMP-10");
        assert_eq!((done[1].wr_id.value(), done[1].opcode), (1, WcOpcode::RdmaWrite));
        assert_eq!((done[1].byte_len, done[1].vendor_err), (0, u32::from(Syndrome::Nak(code).byte())));
        assert!(end.out.fatal);
        assert_eq!(end.requests(), []);
    }
}

#[test]
fn reserved_syndromes_end_the_connection() {
    for byte in [0x40, 0x5F, 0x80, 0xFF] {
        let mut end = sent(&[(SEND, 1), (SEND, 1)]);
        end.ack(11, Syndrome::from_byte(byte)).unwrap();
        assert_eq!(end.done(), [(0, WcStatus::Success), (1, WcStatus::BadRespErr)], "{byte:#x}, R-CMP-13");
    }
}

#[test]
fn every_credit_code_is_an_ack() {
    for code in 0..32 {
        let mut end = sent(&[(SEND, 1)]);
        end.ack(10, Syndrome::from_byte(code)).unwrap();
        assert_eq!(end.done(), [(0, WcStatus::Success)], "R-REQ-19");
    }
}

#[test]
fn a_fatal_nak_behind_a_read_without_answer_waits_for_the_read() {
    let mut end = sent(&[(read_op(), 1), (SEND, 1)]);
    end.ack(11, Syndrome::Nak(NakCode::InvalidRequest)).unwrap();
    assert_eq!((end.done(), psns(&mut end)), (vec![], vec![10, 11]));
    end.take(&response(Op::ReadResponseOnly, 10, &[0])).unwrap();
    end.ack(11, Syndrome::Nak(NakCode::InvalidRequest)).unwrap();
    assert_eq!(end.done(), [(0, WcStatus::Success), (1, WcStatus::RemInvReqErr)]);
}

/// Rule R-CMP-26.
#[test]
fn a_fatal_nak_within_a_read_ends_it_though_answers_before_it_are_missing() {
    // The responder lost its memory after two answers, of which the second was lost on the way.
    let mut end = sent(&[(read_op(), 4 * 256), (SEND, 1)]);
    end.take(&response(Op::ReadResponseFirst, 10, &pattern(256, 1))).unwrap();
    end.ack(12, Syndrome::Nak(NakCode::RemoteAccessError)).unwrap();
    assert_eq!(end.done(), [(0, WcStatus::RemAccessErr)]);
    assert_eq!(end.out.counters.implied_nak_seq_err, 0);
}

#[test]
fn memory_for_an_answer_is_checked_when_it_comes() {
    for (op, len) in [(read_op(), 64), (fetch_add_op(1), 8)] {
        let mut end = End::with(|_| {});
        end.ram.add(0x200, 0x10_0000, Access::LOCAL_WRITE, vec![0; 64]);
        let sge = Sge { addr: VirtAddr::new(0x10_0000), length: len, lkey: LKey::new(0x200) };
        end.post_sges(op, &[sge], SendFlags::empty());
        end.requests();
        end.ram.remove(0x200);
        let answer = match op {
            SendOp::Read { .. } => response(Op::ReadResponseOnly, 10, &pattern(64, 1)),
            _ => atomic_response(10, Syndrome::ACK, 1),
        };
        end.take(&answer).unwrap();
        assert_eq!(end.done(), [(0, WcStatus::LocProtErr)], "{op:?}, R-CMP-20");
    }
}

#[test]
fn a_read_is_scattered_over_its_pieces() {
    let mut end = End::with(|_| {});
    end.post_sges(read_op(), &[sge(0, 100), sge(1000, 300), sge(500, 20)], SendFlags::SIGNALED);
    end.requests();
    let data = pattern(420, 9);
    end.take(&response(Op::ReadResponseFirst, 10, &data[..256])).unwrap();
    end.take(&response(Op::ReadResponseLast, 11, &data[256..])).unwrap();
    let wc = end.completions()[0];
    assert_eq!((wc.status, wc.byte_len), (WcStatus::Success, 420));
    let found = [end.bytes(0, 100).to_vec(), end.bytes(1000, 300).to_vec(), end.bytes(500, 20).to_vec()];
    assert_eq!(found.concat(), data);
    assert_eq!(end.bytes(100, 400), &pattern(SIZE, 1)[100..500], "nothing beside them is touched");
}

#[test]
fn an_answer_that_ends_a_request_of_ours_ends_no_other() {
    // The memory of the second went away, which shows when it is repeated; the third is there to be flushed.
    let mut end = End::with(|_| {});
    end.ram.add(0x200, 0x10_0000, Access::empty(), vec![0; 600]);
    end.post(SEND, 1);
    let sge = Sge { addr: VirtAddr::new(0x10_0000), length: 600, lkey: LKey::new(0x200) };
    end.post_sges(SEND, &[sge], SendFlags::empty());
    end.post(SEND, 1);
    end.requests();
    end.ram.remove(0x200);
    end.expire();
    end.requests();
    end.ack(12, Syndrome::Nak(NakCode::InvalidRequest)).unwrap();
    assert_eq!(end.done(), [(0, WcStatus::Success), (1, WcStatus::LocProtErr)]);
    end.flush();
    assert_eq!(end.done(), [(2, WcStatus::WrFlushErr)]);
}

/// A SEND, a SEND whose memory is gone when all is to be repeated, and then `ops`; all were sent once.
fn with_a_loss_in_the_middle(ops: &[SendOp], retry_cnt: u8) -> End {
    let mut end = End::with(|p| p.retry_cnt = retry_cnt);
    end.ram.add(0x200, 0x10_0000, Access::empty(), vec![0; 8]);
    end.post(SEND, 1);
    let sge = Sge { addr: VirtAddr::new(0x10_0000), length: 8, lkey: LKey::new(0x200) };
    end.post_sges(SEND, &[sge], SendFlags::SIGNALED);
    for op in ops {
        end.post(*op, 8);
    }
    end.requests();
    end.ram.remove(0x200);
    end.expire();
    end.requests();
    assert_eq!(end.done(), []);
    end
}

#[test]
fn what_cannot_be_repeated_may_have_arrived_already() {
    let mut end = with_a_loss_in_the_middle(&[SEND, read_op()], 3);
    end.ack(12, Syndrome::ACK).unwrap();
    assert_eq!(end.done(), [(0, WcStatus::Success), (1, WcStatus::Success), (2, WcStatus::Success)]);
    assert!(!end.out.fatal);
    assert_eq!(psns(&mut end), [13], "and the queue goes on");
}

#[test]
fn behind_a_failure_of_ours_an_answer_does_nothing_more() {
    for answer in [ack(10, Syndrome::ACK), ack(11, Syndrome::Nak(NakCode::PsnSequenceError))] {
        let mut end = with_a_loss_in_the_middle(&[read_op(), SEND], 1);
        end.take(&answer).unwrap();
        assert_eq!(end.done(), [(0, WcStatus::Success), (1, WcStatus::LocProtErr)], "{}", show(&answer));
        end.flush();
        assert_eq!(end.done(), [(2, WcStatus::WrFlushErr), (3, WcStatus::WrFlushErr)]);
    }
    // A READ's answer, which acknowledges all before it, or completes what is right before the failure.
    let mut end = with_a_loss_in_the_middle(&[read_op()], 1);
    end.take(&response(Op::ReadResponseOnly, 12, &[0; 8])).unwrap();
    assert_eq!(end.done(), (0..3).map(|id| (id, WcStatus::Success)).collect::<Vec<_>>());
    for (op, answer) in [
        (read_op(), response(Op::ReadResponseOnly, 10, &[0; 8])),
        (fetch_add_op(1), atomic_response(10, Syndrome::ACK, 0)),
    ] {
        let mut end = End::with(|_| {});
        end.post(op, 8);
        end.post_sges(SEND, &[Sge { lkey: LKey::new(0xBAD), ..sge(0, 8) }], SendFlags::SIGNALED);
        end.requests();
        end.take(&answer).unwrap();
        assert_eq!(end.done(), [(0, WcStatus::Success), (1, WcStatus::LocProtErr)]);
    }
}

/// Rule R-CMP-19.
#[test]
fn completions_follow_psns_whatever_the_count_says() {
    for msn in [0, 1, 2, 7, 0xFF_FFFF] {
        let mut end = sent(&[(SEND, 1), (SEND, 1), (SEND, 1)]);
        let aeth = wire::ext::Aeth::new(Syndrome::ACK, wire::Msn::new(msn));
        end.take(&packet(Op::Acknowledge, 11, vec![aeth.into()], &[])).unwrap();
        assert_eq!(end.done(), [(0, WcStatus::Success), (1, WcStatus::Success)], "MSN {msn}");
    }
}
