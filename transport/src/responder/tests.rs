//! Requests as they should be: order, duplicates, acknowledging, and what each operation does.

use wire::ext::{AtomicEth, ImmDt, Reth};
use wire::{Bth, Msn, Mtu, Operation as Op, PKey, PacketRepr, Psn, Qpn, VirtAddr};

use crate::completion::{WcOpcode, WcStatus};
use crate::drop::DropReason;
use crate::kit::*;
use crate::params::RcParams;
use crate::ports::Side;

mod extensions;
mod refusals;

const RNR: &str = "rnr_nak timer=1.28ms";

fn without_ack_req(mut packet: PacketRepr) -> PacketRepr {
    packet.bth = packet.bth.with_ack_req(false);
    packet
}

fn cmp_swap(psn: u32, compare: u64, swap: u64) -> PacketRepr {
    packet(Op::CmpSwap, psn, vec![AtomicEth::new(va(0), RKEY, swap, compare).into()], &[])
}

fn imm() -> wire::Ext {
    ImmDt::new([1, 2, 3, 4]).into()
}

/// Rules R-RSP-26, R-RSP-32.
#[test]
fn packets_in_sequence_are_acknowledged_where_they_ask_for_it() {
    let mut end = End::with(|_| {});
    end.post_recv(0, 1000);
    end.take(&without_ack_req(plain(Op::SendFirst, 100, 256))).unwrap();
    assert_eq!(end.shown_replies(), [""; 0]);
    end.take(&plain(Op::SendMiddle, 101, 256)).unwrap();
    // F19: what does not end a message repeats the old count.
    assert_eq!(end.shown_replies(), ["ACK psn=101 ack msn=0"]);
    end.take(&plain(Op::SendLast, 102, 10)).unwrap();
    assert_eq!(end.shown_replies(), ["ACK psn=102 ack msn=1"]);
    assert_eq!(end.responder.expected_psn(), Psn::new(103));
    let wc = end.completions()[0];
    assert_eq!((wc.opcode, wc.status, wc.byte_len, wc.imm), (WcOpcode::Recv, WcStatus::Success, 522, None));
    assert_eq!((wc.qp_num, wc.src_qp), (end.params.qpn, end.params.dest_qpn));
    let sent = [pattern(256, 7), pattern(256, 7), pattern(10, 7)].concat();
    assert_eq!(end.bytes(0, 522), sent);
    assert_eq!(end.bytes(522, 478), &pattern(SIZE, 1)[522..1000], "nothing behind it is touched");
}

#[test]
fn one_ack_covers_all_that_wait_to_be_acknowledged() {
    let mut end = End::with(|_| {});
    for i in 0..5 {
        end.post_recv(0, 10);
        end.take(&plain(Op::SendOnly, 100 + i, 10)).unwrap();
    }
    assert_eq!(end.shown_replies(), ["ACK psn=104 ack msn=5"], "R-RSP-26");
}

#[test]
fn answers_have_the_headers_of_an_answer() {
    let mut end = End::with(|p| p.pkey = PKey::new(0x8123));
    end.take(&read_request(100, 0, 3)).unwrap();
    end.take(&fetch_add(101, 8, 1)).unwrap();
    end.take(&ranged(Op::WriteOnly, 102, (va(0), RKEY, 0), &[])).unwrap();
    let replies = end.replies();
    assert_eq!(replies.len(), 3);
    for reply in replies {
        let bth: Bth = reply.bth;
        // R-RSP-35.
        assert!(!bth.solicited() && !bth.ack_req() && bth.migreq());
        assert_eq!((bth.dest_qp(), bth.pkey(), bth.tver()), (Qpn::new(0x12), PKey::new(0x8123), 0));
        assert_eq!(bth.pad_count(), reply.payload.len().wrapping_neg() & 3);
    }
}

/// Rules R-RSP-1, R-RSP-2.
#[test]
fn f10_a_gap_is_told_once_with_the_expected_psn() {
    let mut end = End::with(|p| p.rq_psn = Psn::new(10));
    for _ in 0..5 {
        end.post_recv(0, 10);
    }
    end.take(&plain(Op::SendOnly, 10, 1)).unwrap();
    end.take(&plain(Op::SendOnly, 11, 1)).unwrap();
    end.take(&plain(Op::SendOnly, 13, 1)).unwrap();
    for psn in [14, 13, 12 + (1 << 23) - 1] {
        assert_eq!(end.take(&plain(Op::SendOnly, psn, 1)), Err(DropReason::OutOfSequence));
    }
    assert_eq!(end.shown_replies(), ["ACK psn=11 ack msn=2", "ACK psn=12 nak=psn_sequence msn=2"]);
    end.take(&plain(Op::SendOnly, 12, 1)).unwrap();
    // Another gap is told again.
    end.take(&plain(Op::SendOnly, 14, 1)).unwrap();
    assert_eq!(end.shown_replies(), ["ACK psn=12 ack msn=3", "ACK psn=13 nak=psn_sequence msn=3"]);
    assert_eq!((end.out.counters.out_of_sequence, end.done().len()), (5, 3));
}

/// Rule R-RSP-18.
#[test]
fn without_a_receive_a_send_is_put_off_and_nothing_changes() {
    let mut end = End::with(|_| {});
    end.take(&plain(Op::SendFirst, 100, 256)).unwrap();
    // R-RSP-3: what follows is part of the same trouble.
    assert_eq!(end.take(&plain(Op::SendLast, 101, 1)), Err(DropReason::OutOfSequence));
    assert_eq!(end.shown_replies(), [format!("ACK psn=100 {RNR} msn=0")]);
    end.take(&plain(Op::SendFirst, 100, 256)).unwrap();
    assert_eq!(end.shown_replies(), [format!("ACK psn=100 {RNR} msn=0")]);
    assert_eq!((end.out.counters.out_of_buffer, end.out.counters.send_rnr_err), (2, 2));
    end.post_recv(0, 300);
    end.take_all(&[plain(Op::SendFirst, 100, 256), plain(Op::SendLast, 101, 1)]);
    assert_eq!(end.shown_replies(), ["ACK psn=101 ack msn=1"]);
    assert_eq!(end.done(), [(0, WcStatus::Success)]);
}

/// Rules R-RSP-1, R-RSP-4.
#[test]
fn f20_duplicates_are_acknowledged_with_the_newest_psn_and_not_executed() {
    let mut end = End::with(|_| {});
    end.post_recv(0, 10);
    end.post_recv(0, 10);
    let write = ranged(Op::WriteOnly, 101, (va(100), RKEY, 2), &[7, 7]);
    end.take_all(&[plain(Op::SendOnly, 100, 1), write.clone(), plain(Op::SendOnly, 102, 1)]);
    end.replies();
    end.bytes(100, 2).fill(9);
    end.take_all(&[plain(Op::SendOnly, 100, 1), write]);
    assert_eq!(end.shown_replies(), ["ACK psn=102 ack msn=3"]);
    // Half the circle behind is still the past, and the opcode need not fit (F20: a SEND within a READ).
    end.take(&without_ack_req(plain(Op::SendMiddle, 103 + (1 << 23), 256))).unwrap();
    assert_eq!(end.shown_replies(), ["ACK psn=102 ack msn=3"]);
    assert_eq!(end.bytes(100, 2), [9, 9]);
    assert_eq!((end.done().len(), end.out.counters.duplicate_request), (2, 3));
}

/// Rule R-RSP-32.
#[test]
fn f20_a_read_takes_as_many_psns_as_its_answer() {
    let mut end = End::with(|p| p.rq_psn = Psn::new(0xFF_FFFE));
    end.take(&read_request(0xFF_FFFE, 0, 600)).unwrap();
    assert_eq!(end.responder.expected_psn(), Psn::new(1));
    // Within the READ's span: a duplicate, which takes no receive.
    end.post_recv(0, 10);
    end.take(&plain(Op::SendOnly, 0xFF_FFFF, 1)).unwrap();
    assert_eq!(
        end.shown_replies(),
        [
            "READ_RESP_FIRST psn=16777214 ack msn=1 len=256",
            "READ_RESP_MIDDLE psn=16777215 len=256",
            "READ_RESP_LAST psn=0 ack msn=1 len=88",
            "ACK psn=0 ack msn=1",
        ],
        "R-RSP-28: the ACK stays behind the answer"
    );
    assert_eq!(end.done(), []);
}

/// Rules R-RSP-27, R-RSP-32.
#[test]
fn reads_are_answered_in_packets_of_the_path_mtu() {
    for mtu in Mtu::ALL {
        let m = mtu.bytes();
        for len in [0, 1, 3, 4, m - 1, m, m + 1, 2 * m, 3 * m + 5] {
            let mut end = End::with(|p| p.mtu = mtu);
            end.take(&without_ack_req(read_request(100, 64, len))).unwrap();
            let replies = end.replies();
            let n = len.div_ceil(m).max(1);
            assert_eq!(replies.len(), n as usize, "{len} bytes at MTU {mtu}");
            for (i, reply) in (0..).zip(&replies) {
                let op = match (i == 0, i == n - 1) {
                    (true, true) => Op::ReadResponseOnly,
                    (true, false) => Op::ReadResponseFirst,
                    (false, false) => Op::ReadResponseMiddle,
                    (false, true) => Op::ReadResponseLast,
                };
                assert_eq!(reply.bth.opcode().info().unwrap().operation, op);
                assert_eq!(reply.bth.psn(), Psn::new(100 + i), "R-RSP-29");
            }
            let data: Vec<u8> = replies.iter().flat_map(|p| p.payload.clone()).collect();
            assert_eq!(data, end.bytes(64, len as usize));
        }
    }
}

/// Rule R-RSP-5.
#[test]
fn a_repeated_read_is_answered_again_from_where_it_begins() {
    let mut end = End::with(|_| {});
    end.take(&read_request(100, 0, 600)).unwrap();
    end.replies();
    end.bytes(256, 1)[0] = 0xEE;
    end.take(&read_request(101, 256, 344)).unwrap();
    let replies = end.replies();
    // R-RSP-30: a READ of its own; and of the bytes as they are now.
    assert_eq!(
        replies.iter().map(show).collect::<Vec<_>>(),
        ["READ_RESP_FIRST psn=101 ack msn=1 len=256", "READ_RESP_LAST psn=102 ack msn=1 len=88"]
    );
    assert_eq!(replies[0].payload[0], 0xEE);
    assert_eq!((end.responder.expected_psn(), end.responder.msn()), (Psn::new(103), Msn::new(1)));
}

/// Rule R-RSP-5.
#[test]
fn f3_a_repeated_read_outside_of_the_first_is_dropped() {
    let mut end = End::with(|_| {});
    end.take(&read_request(100, 256, 600)).unwrap();
    end.replies();
    let other_key = wire::RKey::new(KEY + 1);
    for (psn, va, rkey, len) in [
        (100, va(255), RKEY, 600),
        (100, va(256), RKEY, 601),
        (100, va(256), other_key, 600),
        (100, VirtAddr::new(u64::MAX), RKEY, 600),
        (100, VirtAddr::new(u64::MAX - 599), RKEY, 600),
        (100, va(256), RKEY, 0),
        (102, va(512), RKEY, 344),
        (100, va(256), RKEY, u32::MAX),
        (99, va(256), RKEY, 600),
        (99, va(256), RKEY, 0),
    ] {
        let repeat = ranged(Op::ReadRequest, psn, (va, rkey, len), &[]);
        assert_eq!(end.take(&repeat), Err(DropReason::DuplicateUnknown), "{}", show(&repeat));
    }
    assert_eq!(end.shown_replies(), [""; 0]);
    assert!(!end.out.fatal);
}

/// Rule R-RSP-50.
#[test]
fn a_repeated_read_whose_answer_waits_is_not_answered_twice() {
    let mut end = End::with(|_| {});
    end.take(&read_request(100, 0, 600)).unwrap();
    assert_eq!(end.take(&read_request(100, 0, 600)), Err(DropReason::DuplicatePending));
    end.reply().unwrap();
    // What has left may have been lost; what has not will come.
    assert_eq!(end.take(&read_request(101, 256, 344)), Err(DropReason::DuplicatePending));
    end.take(&read_request(100, 0, 600)).unwrap();
    let psns: Vec<_> = end.replies().iter().map(|p| p.bth.psn().value()).collect();
    assert_eq!(psns, [100, 101, 102]);
    end.take(&fetch_add(103, 0, 1)).unwrap();
    assert_eq!(end.take(&fetch_add(103, 0, 1)), Err(DropReason::DuplicatePending));
}

/// Rules R-RSP-50, R-RSP-28: an answer that passed over one that is missing would be in vain.
#[test]
fn what_a_repeat_asks_for_comes_before_what_was_asked_for_later() {
    let mut end = End::with(|p| p.max_dest_rd_atomic = 8);
    end.post_recv(0, 10);
    end.take_all(&[read_request(100, 0, 8), fetch_add(101, 8, 1), read_request(102, 0, 300)]);
    for _ in 0..3 {
        end.reply().unwrap();
    }
    end.take_all(&[fetch_add(104, 16, 1), plain(Op::SendOnly, 105, 1)]);
    // The middle of the READ is under way when the peer goes back to the first request, and asks for all again.
    end.take(&read_request(100, 0, 8)).unwrap();
    end.take(&fetch_add(101, 8, 1)).unwrap();
    end.take(&read_request(102, 0, 300)).unwrap();
    assert_eq!(end.take(&fetch_add(104, 16, 1)), Err(DropReason::DuplicatePending));
    let psns: Vec<_> = end.replies().iter().map(|p| p.bth.psn().value()).collect();
    assert_eq!(psns, [100, 101, 102, 103, 104, 105]);
}

/// Rules R-RSP-6, R-RSP-27.
#[test]
fn f12_a_repeated_atomic_is_answered_from_memory() {
    let mut end = End::with(|_| {});
    end.bytes(0, 8).copy_from_slice(&5_u64.to_ne_bytes());
    for _ in 0..2 {
        end.take(&without_ack_req(fetch_add(100, 0, 1))).unwrap();
        assert_eq!(end.shown_replies(), ["ATOMIC_ACK psn=100 ack msn=1 original=0x5"]);
        assert_eq!(end.bytes(0, 8), 6_u64.to_ne_bytes());
    }
    for _ in 0..2 {
        end.take(&cmp_swap(101, 6, 9)).unwrap();
        assert_eq!(end.shown_replies(), ["ATOMIC_ACK psn=101 ack msn=2 original=0x6"]);
        assert_eq!(end.bytes(0, 8), 9_u64.to_ne_bytes());
    }
    // The value found comes back whether it was stored or not (R-RSP-33).
    end.take(&cmp_swap(102, 6, 1)).unwrap();
    assert_eq!(end.shown_replies(), ["ATOMIC_ACK psn=102 ack msn=3 original=0x9"]);
    end.take(&fetch_add(103, 0, u64::MAX)).unwrap();
    assert_eq!(end.bytes(0, 8), 8_u64.to_ne_bytes(), "addition is modulo 2^64");
}

#[test]
fn only_the_last_answers_are_remembered() {
    let mut end = End::with(|p| p.max_dest_rd_atomic = 2);
    for psn in 100..103 {
        end.take(&fetch_add(psn, 0, 1)).unwrap();
        end.replies();
    }
    assert_eq!(end.take(&fetch_add(100, 0, 1)), Err(DropReason::DuplicateUnknown), "R-RSP-6, R-RSP-7");
    end.take(&fetch_add(101, 0, 1)).unwrap();
    end.take(&fetch_add(102, 0, 1)).unwrap();
    assert_eq!(end.replies().len(), 2);
    end.take(&read_request(103, 0, 1)).unwrap();
    end.replies();
    assert_eq!(end.take(&fetch_add(101, 0, 1)), Err(DropReason::DuplicateUnknown));
    // A repeat of one kind where the other was.
    assert_eq!(end.take(&fetch_add(103, 0, 1)), Err(DropReason::DuplicateUnknown));
    assert_eq!(end.take(&read_request(102, 0, 1)), Err(DropReason::DuplicateUnknown));
}

#[test]
fn answers_leave_in_the_order_of_their_requests() {
    let mut end = End::with(|_| {});
    end.post_recv(0, 10);
    end.take_all(&[
        ranged(Op::WriteOnly, 100, (va(0), RKEY, 1), &[1]),
        read_request(101, 0, 300),
        plain(Op::SendOnly, 103, 1),
        fetch_add(104, 8, 1),
        ranged(Op::WriteOnly, 105, (va(0), RKEY, 1), &[1]),
    ]);
    // A gap behind all of it.
    end.take(&plain(Op::SendOnly, 107, 1)).unwrap();
    let order: Vec<_> = end.replies().iter().map(|p| p.bth.psn().value()).collect();
    assert_eq!(order, [100, 101, 102, 103, 104, 105, 106]);
    assert_eq!(end.responder.msn(), Msn::new(5), "R-RSP-24");
}

/// Rule R-RSP-23.
#[test]
fn f4_nothing_looks_at_the_key_or_address_of_no_bytes() {
    let nowhere = (VirtAddr::new(1), wire::RKey::new(0xDEAD_BEEF), 0);
    let mut end = End::with(|_| {});
    let read = ranged(Op::ReadRequest, 100, nowhere, &[]);
    let write = ranged(Op::WriteOnly, 101, nowhere, &[]);
    let reth = Reth::new(nowhere.0, nowhere.1, 0);
    let write_imm = packet(Op::WriteOnlyImm, 102, vec![reth.into(), imm()], &[]);
    end.post_recv(0, 10);
    for _ in 0..2 {
        end.take(&read).unwrap();
        assert_eq!(end.shown_replies().len(), 1);
    }
    end.take_all(&[write.clone(), write_imm.clone(), write, write_imm]);
    assert_eq!(end.shown_replies(), ["ACK psn=102 ack msn=3"]);
    let wc = end.completions();
    assert_eq!((wc.len(), wc[0].opcode, wc[0].byte_len), (1, WcOpcode::RecvRdmaWithImm, 0));
}

#[test]
fn f30_a_write_with_immediate_takes_its_receive_at_the_end() {
    let mut end = End::with(|_| {});
    let reth = Reth::new(va(0x1000), RKEY, 300);
    let first = packet(Op::WriteFirst, 100, vec![reth.into()], &pattern(256, 7));
    let mut last = packet(Op::WriteLastImm, 101, vec![imm()], &pattern(44, 8));
    last.bth = last.bth.with_solicited(true);
    end.take(&first).unwrap();
    end.take(&last).unwrap();
    assert_eq!(end.shown_replies(), ["ACK psn=100 ack msn=0".into(), format!("ACK psn=101 {RNR} msn=0")]);
    assert_eq!(end.bytes(0x1000, 256), pattern(256, 7));
    assert_eq!(end.bytes(0x1100, 44), &pattern(SIZE, 1)[0x1100..0x1100 + 44], "R-RSP-20");
    end.receives.0.push_back(crate::wqe::RecvWqe {
        wr_id: wire::WrId::new(77),
        sges: Default::default(),
        pd: PD,
        side: Side::Recv,
    });
    end.take(&last).unwrap();
    assert_eq!(end.shown_replies(), ["ACK psn=101 ack msn=1"]);
    assert_eq!(end.bytes(0x1100, 44), pattern(44, 8));
    let wc = end.completions()[0];
    assert_eq!((wc.wr_id.value(), wc.opcode, wc.byte_len), (77, WcOpcode::RecvRdmaWithImm, 300));
    assert_eq!((wc.imm, wc.solicited), (Some([1, 2, 3, 4]), true));
    assert!(end.receives.0.is_empty());
}

#[test]
fn a_send_takes_its_receive_at_its_first_packet() {
    let mut end = End::with(|_| {});
    let id = end.post_recv(0, 300);
    end.take(&plain(Op::SendFirst, 100, 256)).unwrap();
    assert!(end.receives.0.is_empty(), "R-RSP-19");
    assert_eq!(end.responder.take_unfinished().map(|wqe| wqe.wr_id.value()), Some(id));
    assert_eq!(end.responder.take_unfinished(), None);
}

#[test]
fn f28_f29_the_solicited_bit_and_the_immediate_reach_the_completion() {
    let mut end = End::with(|_| {});
    end.post_recv(0, 10);
    end.post_recv(0, 10);
    let mut send = packet(Op::SendOnlyImm, 100, vec![imm()], &[5]);
    end.take(&send).unwrap();
    send.bth = send.bth.with_psn(Psn::new(101)).with_solicited(true);
    end.take(&send).unwrap();
    let wc = end.completions();
    assert_eq!((wc[0].imm, wc[0].solicited), (Some([1, 2, 3, 4]), false));
    assert!(wc[1].solicited, "R-RSP-37");
}

/// Rule R-RSP-8.
#[test]
fn f31_more_open_than_max_dest_rd_atomic_is_refused() {
    let open = |depth: u8, n: u32| {
        let mut end = End::with(|p: &mut RcParams| p.max_dest_rd_atomic = depth);
        for psn in 100..100 + n {
            let request = if psn % 2 == 0 { read_request(psn, 0, 8) } else { fetch_add(psn, 0, 1) };
            end.take(&request).unwrap();
        }
        end
    };
    let end = open(16, 16);
    assert!(!end.out.fatal);
    let mut end = open(8, 9);
    assert!(end.out.fatal);
    assert_eq!(end.shown_replies().last().unwrap(), "ACK psn=108 nak=invalid_request msn=8");
    assert_eq!(open(0, 1).shown_replies(), ["ACK psn=100 nak=invalid_request msn=0"]);
    // What has been answered is not open, and repeats do not count.
    let mut end = open(1, 1);
    end.replies();
    end.take(&read_request(100, 0, 8)).unwrap();
    end.take(&fetch_add(101, 0, 1)).unwrap();
    end.replies();
    end.take(&fetch_add(102, 0, 1)).unwrap();
    assert!(!end.out.fatal);
}

#[test]
fn a_flood_does_not_pile_up_answers() {
    let mut end = End::with(|_| {});
    for _ in 0..5000 {
        // Put off, duplicate, put off …: no two answers in a row can be one.
        end.take(&plain(Op::SendOnly, 100, 1)).unwrap();
        end.take(&plain(Op::SendOnly, 99, 1)).unwrap();
    }
    assert!(end.replies().len() <= 512);
    // The last word is said all the same (R-RSP-48).
    let mut full = End::with(|_| {});
    for _ in 0..1000 {
        full.take_all(&[plain(Op::SendOnly, 100, 1), plain(Op::SendOnly, 99, 1)]);
    }
    full.take(&plain(Op::SendLast, 100, 1)).unwrap();
    assert_eq!(full.shown_replies().last().unwrap(), "ACK psn=100 nak=invalid_request msn=0");
    end.post_recv(0, 1);
    end.take(&plain(Op::SendOnly, 100, 1)).unwrap();
    assert_eq!(end.shown_replies(), ["ACK psn=100 ack msn=1"]);
    assert_eq!(end.done_by_side(), [(Side::Recv, 0, WcStatus::Success)]);
}

#[test]
fn a_stopped_responder_answers_nothing() {
    let mut end = End::with(|_| {});
    end.take(&read_request(100, 0, 8)).unwrap();
    assert!(end.responder.has_replies());
    end.responder.abandon();
    assert!(!end.responder.has_replies());
    assert_eq!(end.take(&read_request(101, 0, 8)), Err(DropReason::QpState));
}

/// Rule R-RSP-25: the count of the answer is that of its request, also where it leaves later.
#[test]
fn each_answer_has_the_count_of_its_request() {
    let mut end = End::with(|_| {});
    end.bytes(8, 8).copy_from_slice(&5_u64.to_ne_bytes());
    end.post_recv(0, 10);
    end.take_all(&[read_request(100, 0, 300), plain(Op::SendOnly, 102, 1), fetch_add(103, 8, 1)]);
    end.take(&plain(Op::SendOnly, 105, 1)).unwrap();
    assert_eq!(
        end.shown_replies(),
        [
            "READ_RESP_FIRST psn=100 ack msn=1 len=256",
            "READ_RESP_LAST psn=101 ack msn=1 len=44",
            "ACK psn=102 ack msn=2",
            "ATOMIC_ACK psn=103 ack msn=3 original=0x5",
            "ACK psn=104 nak=psn_sequence msn=3",
        ]
    );
}

/// Rules R-RSP-49, R-REQ-19.
#[test]
fn positive_answers_set_no_limit() {
    let mut end = End::with(|_| {});
    end.post_recv(0, 10);
    end.take_all(&[read_request(100, 0, 300), plain(Op::SendOnly, 102, 1), fetch_add(103, 8, 1)]);
    let syndromes: Vec<u8> = end
        .replies()
        .iter()
        .filter_map(|reply| match reply.ext.first() {
            Some(wire::Ext::Aeth(aeth)) => Some(aeth.syndrome().byte()),
            _ => None,
        })
        .collect();
    assert_eq!(syndromes, [0x1F; 4]);
}
