//! What leaves, in which packets and when it has to wait.

use bytes::Bytes;
use smallvec::SmallVec;
use wire::{LKey, Mtu, Operation as Op, PacketRepr, Psn, Syndrome, WrId};

use crate::completion::{WcOpcode, WcStatus};
use crate::kit::*;
use crate::ports::{Access, Side};
use crate::wqe::{SendFlags, SendOp, SendWqe, Sge};

fn operation(packet: &PacketRepr) -> Op {
    packet.bth.opcode().info().unwrap().operation
}

fn psns(packets: &[PacketRepr]) -> Vec<u32> {
    packets.iter().map(|packet| packet.bth.psn().value()).collect()
}

/// The operations of a message of `n` packets.
fn cut(n: usize, [first, middle, last, only]: [Op; 4]) -> Vec<Op> {
    match n {
        1 => vec![only],
        _ => [vec![first], vec![middle; n - 2], vec![last]].concat(),
    }
}

/// Rules R-REQ-2, R-REQ-3, R-REQ-7, R-WIR-11.
#[test]
fn messages_are_cut_into_packets_of_the_path_mtu() {
    let kinds = [
        (SEND, [Op::SendFirst, Op::SendMiddle, Op::SendLast, Op::SendOnly]),
        (SEND_IMM, [Op::SendFirst, Op::SendMiddle, Op::SendLastImm, Op::SendOnlyImm]),
        (write_op(), [Op::WriteFirst, Op::WriteMiddle, Op::WriteLast, Op::WriteOnly]),
        (write_imm_op(), [Op::WriteFirst, Op::WriteMiddle, Op::WriteLastImm, Op::WriteOnlyImm]),
    ];
    for mtu in Mtu::ALL {
        let m = mtu.bytes();
        for len in [0, 1, 2, 3, 4, 33, m - 1, m, m + 1, 2 * m - 1, 2 * m, 2 * m + 1, 5 * m + 3] {
            for (op, names) in kinds {
                let mut end = End::with(|p| (p.mtu, p.window, p.sq_psn) = (mtu, 64, Psn::new(0xFF_FFFE)));
                end.post(op, len);
                let packets = end.requests();
                let n = len.div_ceil(m).max(1);
                let what = format!("{op:?} of {len} bytes at MTU {mtu}");
                assert_eq!(
                    packets.iter().map(operation).collect::<Vec<_>>(),
                    cut(n as usize, names),
                    "{what}"
                );
                let numbers: Vec<_> = (0..n).map(|i| Psn::new(0xFF_FFFE).wrapping_add(i).value()).collect();
                assert_eq!(psns(&packets), numbers, "{what}");
                let data: Vec<u8> = packets.iter().flat_map(|p| p.payload.clone()).collect();
                assert_eq!(data, end.bytes(0, len as usize), "{what}");
                for packet in &packets {
                    assert_eq!((packet.payload.len() + packet.pad.len()) % 4, 0, "{what}");
                    assert_eq!(packet.pad.len(), packet.bth.pad_count(), "{what}");
                    assert!(packet.pad.iter().all(|byte| *byte == 0), "{what}");
                }
                assert_eq!(end.requester.next_psn(), Psn::new(0xFF_FFFE).wrapping_add(n), "{what}");
            }
        }
    }
}

/// Rule R-REQ-5.
#[test]
fn headers_stand_where_the_rules_put_them() {
    let mut end = End::with(|_| {});
    end.post(write_imm_op(), 600);
    end.post_sges(SEND_IMM, &[sge(0, 300)], SendFlags::SOLICITED);
    end.post_sges(write_op(), &[sge(0, 3)], SendFlags::SOLICITED);
    end.post_sges(write_imm_op(), &[], SendFlags::SOLICITED);
    end.post(cmp_swap_op(5, 6), 8);
    end.post(fetch_add_op(7), 8);
    end.post(read_op(), 0);
    // R-REQ-11, R-REQ-13, R-REQ-14, R-REQ-32.
    assert_eq!(
        end.shown_requests(),
        [
            "WRITE_FIRST psn=10 va=0x5000 rkey=0x00000100 dmalen=600 len=256",
            "WRITE_MIDDLE psn=11 len=256",
            "WRITE_LAST_IMM psn=12 imm=0x01020304 len=88 ack",
            "SEND_FIRST psn=13 len=256",
            "SEND_LAST_IMM psn=14 imm=0x01020304 len=44 se ack",
            "WRITE_ONLY psn=15 va=0x5000 rkey=0x00000100 dmalen=3 len=3 ack",
            "WRITE_ONLY_IMM psn=16 va=0x5000 rkey=0x00000100 dmalen=0 imm=0x01020304 len=0 se ack",
            "CMP_SWAP psn=17 va=0x5000 rkey=0x00000100 swap=0x6 compare=0x5 ack",
            "FETCH_ADD psn=18 va=0x5000 rkey=0x00000100 add=0x7 ack",
            "READ_REQUEST psn=19 va=0x5000 rkey=0x00000100 dmalen=0 ack",
        ]
    );
}

#[test]
fn a_long_message_asks_for_an_ack_every_quarter_of_the_window_or_full_batch() {
    for (window, every) in [(100, 25), (48, 15), (40, 15), (16, 8), (3, 1)] {
        let mut end = End::with(|p| p.window = window);
        end.post(SEND, (window - 1) * 256);
        let asking: Vec<_> = end.requests().iter().map(|p| p.bth.ack_req()).collect();
        let expected: Vec<_> = (1..window).map(|i| i % every == 0 || i == window - 1).collect();
        assert_eq!(asking, expected, "window of {window}");
    }
}

/// Rule R-REQ-6.
#[test]
fn the_window_is_kept_and_its_last_packet_asks_for_an_ack() {
    for window in 1..=9 {
        let mut end = End::with(|p| p.window = window);
        end.post(SEND, 20 * 256);
        let (mut next, mut acknowledged) = (10, 10);
        while acknowledged < 30 {
            let sent = end.requests();
            next += u32::try_from(sent.len()).unwrap();
            assert_eq!(next - acknowledged, window.min(30 - acknowledged), "window {window}");
            let asks = sent.last().is_none_or(|last| last.bth.ack_req());
            assert!(asks, "window {window}: a full window must be answered");
            end.ack(acknowledged, Syndrome::ACK).unwrap();
            acknowledged += 1;
        }
        assert_eq!(end.done(), [(0, WcStatus::Success)]);
        assert_eq!(end.requester.poll_timeout(), None, "nothing is outstanding");
    }
}

#[test]
fn a_read_is_asked_for_in_pieces_of_half_the_window() {
    let mut end = End::with(|p| p.window = 16);
    end.post(read_op(), 4096 + 1);
    end.post(SEND, 1);
    // 17 PSNs in pieces of 8; the third finds no room.
    let shown = end.shown_requests();
    assert_eq!(
        shown,
        [
            "READ_REQUEST psn=10 va=0x5000 rkey=0x00000100 dmalen=2048 ack",
            "READ_REQUEST psn=18 va=0x5800 rkey=0x00000100 dmalen=2048 ack",
        ]
    );
    let data = pattern(256, 9);
    for i in 0..8 {
        let op = [Op::ReadResponseFirst, Op::ReadResponseMiddle, Op::ReadResponseLast];
        let op = op[if i == 0 { 0 } else { 1 + i / 7 }];
        end.take(&response(op, 10 + u32::try_from(i).unwrap(), &data)).unwrap();
    }
    assert_eq!(
        end.shown_requests(),
        ["READ_REQUEST psn=26 va=0x6000 rkey=0x00000100 dmalen=1 ack", "SEND_ONLY psn=27 len=1 ack"]
    );
    assert_eq!(end.done(), []);
}

#[test]
fn every_window_lets_a_read_through() {
    for window in 1..=9 {
        let mut end = End::with(|p| p.window = window);
        end.post(read_op(), 5 * 256);
        let mut psn = 10;
        while psn < 15 {
            let asked: Vec<_> = end.requests().iter().map(|p| p.bth.psn().value()).collect();
            assert!(asked.iter().all(|first| *first < 10 + 5), "window {window}");
            // Whatever is asked for now reaches to here.
            let until = end.requester.next_psn().value();
            assert!(until - psn <= window && until > psn, "window {window}");
            let piece = (window / 2).max(1);
            let ends = (psn - 10 + 1).is_multiple_of(piece) || psn == 14;
            let op = if ends { Op::ReadResponseLast } else { Op::ReadResponseMiddle };
            end.take(&response(op, psn, &pattern(256, 9))).unwrap();
            psn += 1;
        }
        assert_eq!(end.done(), [(0, WcStatus::Success)], "window {window}");
    }
}

/// Rules R-REQ-8, R-REQ-39, R-REQ-42.
#[test]
fn f31_reads_and_atomics_keep_to_max_rd_atomic_and_stall_in_order() {
    let mut end = End::with(|p| p.max_rd_atomic = 2);
    end.post(fetch_add_op(1), 8);
    end.post(SEND, 1);
    end.post(read_op(), 1);
    end.post(fetch_add_op(1), 8);
    end.post(SEND, 1);
    assert_eq!(psns(&end.requests()), [10, 11, 12], "the third waits, and all behind it");
    end.take(&atomic_response(10, Syndrome::ACK, 0)).unwrap();
    assert_eq!(psns(&end.requests()), [13, 14]);
}

#[test]
fn f31_one_at_a_time_completes_all() {
    let mut end = End::with(|p| p.max_rd_atomic = 1);
    for _ in 0..8 {
        end.post(fetch_add_op(1), 8);
    }
    for psn in 10..18 {
        assert_eq!(psns(&end.requests()), [psn]);
        end.take(&atomic_response(psn, Syndrome::ACK, 0)).unwrap();
    }
    assert_eq!(end.done(), (0..8).map(|id| (id, WcStatus::Success)).collect::<Vec<_>>());
}

#[test]
fn repeats_do_not_count_against_max_rd_atomic() {
    let mut end = End::with(|p| p.max_rd_atomic = 2);
    end.post(read_op(), 1);
    end.post(read_op(), 1);
    assert_eq!(psns(&end.requests()), [10, 11]);
    end.expire();
    assert_eq!(psns(&end.requests()), [10, 11]);
}

/// Rule R-REQ-9.
#[test]
fn a_read_depth_taken_away_fails_what_was_posted() {
    let mut end = End::with(|p| p.max_rd_atomic = 0);
    end.post(SEND, 1);
    end.post(read_op(), 1);
    assert_eq!(psns(&end.requests()), [10]);
    end.ack(10, Syndrome::ACK).unwrap();
    assert_eq!(end.done(), [(0, WcStatus::Success), (1, WcStatus::LocQpOpErr)]);
    assert!(end.out.fatal);
}

/// Rule R-REQ-10.
#[test]
fn a_fence_waits_for_reads_and_atomics_only() {
    let mut end = End::with(|_| {});
    end.post(SEND, 1);
    end.post_sges(SEND, &[sge(0, 1)], SendFlags::FENCE);
    end.post(read_op(), 1);
    end.post_sges(write_op(), &[sge(0, 1)], SendFlags::FENCE);
    end.post(SEND, 1);
    assert_eq!(psns(&end.requests()), [10, 11, 12], "a SEND before it does not hold a fenced one");
    end.ack(11, Syndrome::ACK).unwrap();
    assert_eq!(end.requests(), []);
    end.take(&response(Op::ReadResponseOnly, 12, &[1])).unwrap();
    assert_eq!(psns(&end.requests()), [13, 14]);
}

#[test]
fn draining_finishes_what_was_begun() {
    let mut end = End::with(|p| p.window = 2);
    assert!(end.requester.is_drained());
    end.post(SEND, 4 * 256);
    end.post(SEND, 1);
    assert_eq!(psns(&end.requests()), [10, 11]);
    end.requester.set_draining(true);
    assert!(!end.requester.is_drained());
    end.ack(11, Syndrome::ACK).unwrap();
    assert_eq!(psns(&end.requests()), [12, 13]);
    end.expire();
    assert_eq!(psns(&end.requests()), [12, 13], "repeats as well");
    end.ack(13, Syndrome::ACK).unwrap();
    assert!(end.requester.is_drained());
    assert_eq!((end.requests(), end.requester.len()), (vec![], 1));
    end.requester.set_draining(false);
    assert_eq!(psns(&end.requests()), [14]);
}

#[test]
fn pieces_are_gathered_across_packets() {
    let mut end = End::with(|_| {});
    let sges =
        [sge(100, 200), sge(0, 0), Sge { lkey: LKey::new(0xBAD), ..sge(0, 0) }, sge(1000, 57), sge(500, 300)];
    end.post_sges(SEND, &sges, SendFlags::empty());
    let data: Vec<u8> = end.requests().iter().flat_map(|p| p.payload.clone()).collect();
    let expected = [end.bytes(100, 200).to_vec(), end.bytes(1000, 57).to_vec(), end.bytes(500, 300).to_vec()];
    assert_eq!(data, expected.concat());
}

#[test]
fn f25_inline_data_need_no_region_and_stay_as_posted() {
    let mut end = End::with(|_| {});
    let data = pattern(300, 4);
    end.post_wqe(SendWqe {
        wr_id: WrId::new(0),
        op: SEND,
        sges: SmallVec::new(),
        inline: Some(Bytes::from(data.clone())),
        flags: SendFlags::SIGNALED | SendFlags::INLINE,
        length: 300,
        datagram: None,
        remote_srqn: None,
        psns: None,
    });
    end.ram.remove(KEY);
    for _ in 0..2 {
        let sent: Vec<u8> = end.requests().iter().flat_map(|p| p.payload.clone()).collect();
        assert_eq!(sent, data);
        end.expire();
    }
}

/// Rules R-REQ-41, R-REQ-15.
#[test]
fn f23_a_bad_key_fails_in_its_turn_and_nothing_behind_it_leaves() {
    for op in [SEND, write_op(), read_op(), fetch_add_op(1)] {
        let mut end = End::with(|_| {});
        end.post(SEND, 1);
        end.post_sges(op, &[Sge { lkey: LKey::new(0xBAD), ..sge(0, 8) }], SendFlags::empty());
        end.post(SEND, 1);
        assert_eq!(psns(&end.requests()), [10], "{op:?}");
        assert_eq!(end.done(), [], "{op:?}: what is before it has not completed");
        end.ack(10, Syndrome::ACK).unwrap();
        assert_eq!(end.done(), [(0, WcStatus::Success), (1, WcStatus::LocProtErr)], "{op:?}");
        assert!(end.out.fatal);
        assert_eq!(end.requests(), [], "{op:?}");
    }
}

#[test]
fn f23_a_bad_key_in_the_first_request_keeps_the_second_back() {
    let mut end = End::with(|_| {});
    end.post_sges(SEND, &[sge(60_000, 10_000)], SendFlags::empty());
    end.post(SEND, 1);
    assert_eq!(end.requests(), [], "the second is to be flushed, not sent");
    assert_eq!(end.done(), [(0, WcStatus::LocProtErr)]);
    end.flush();
    assert_eq!(end.done(), [(1, WcStatus::WrFlushErr)]);
}

#[test]
fn what_comes_in_needs_memory_that_may_be_written() {
    for op in [read_op(), fetch_add_op(1)] {
        let mut end = End::with(|_| {});
        end.ram.add(0x200, 0x10_0000, Access::empty(), vec![0; 64]);
        let sge = Sge { addr: wire::VirtAddr::new(0x10_0000), length: 8, lkey: LKey::new(0x200) };
        end.post_sges(op, &[sge], SendFlags::empty());
        assert_eq!(end.requests(), []);
        assert_eq!(end.done(), [(0, WcStatus::LocProtErr)], "{op:?}");
    }
}

#[test]
fn a_region_that_goes_within_a_message_fails_it_in_its_turn() {
    let mut end = End::with(|p| p.window = 4);
    end.ram.add(0x200, 0x10_0000, Access::empty(), pattern(2048, 3));
    end.post(SEND, 1);
    let sge = Sge { addr: wire::VirtAddr::new(0x10_0000), length: 2048, lkey: LKey::new(0x200) };
    end.post_sges(SEND, &[sge], SendFlags::empty());
    assert_eq!(psns(&end.requests()), [10, 11, 12, 13]);
    end.ram.remove(0x200);
    end.expire();
    assert_eq!(psns(&end.requests()), [10], "the first goes on, the second cannot");
    assert_eq!(end.done(), []);
    end.ack(10, Syndrome::ACK).unwrap();
    assert_eq!(end.done(), [(0, WcStatus::Success), (1, WcStatus::LocProtErr)]);
}

#[test]
fn unsignalled_requests_complete_in_silence_but_fail_aloud() {
    let mut end = End::with(|_| {});
    for flags in [SendFlags::empty(), SendFlags::SIGNALED, SendFlags::empty()] {
        end.post_sges(SEND, &[sge(0, 1)], flags);
    }
    assert_eq!(end.requests().len(), 3);
    end.ack(11, Syndrome::ACK).unwrap();
    assert_eq!(end.done(), [(1, WcStatus::Success)]);
    assert_eq!(end.requester.len(), 1);
    end.ack(12, Syndrome::Nak(wire::NakCode::RemoteOperationalError)).unwrap();
    assert_eq!(end.done(), [(2, WcStatus::RemOpErr)]);
}

#[test]
fn f21_f22_a_flush_completes_all_in_order_with_their_opcodes() {
    let mut end = End::with(|_| {});
    let ops: [(SendOp, WcOpcode); 5] = [
        (write_op(), WcOpcode::RdmaWrite),
        (read_op(), WcOpcode::RdmaRead),
        (SEND_IMM, WcOpcode::Send),
        (cmp_swap_op(0, 0), WcOpcode::CompSwap),
        (fetch_add_op(0), WcOpcode::FetchAdd),
    ];
    for (op, _) in ops {
        end.post_sges(op, &[sge(0, 8)], SendFlags::empty());
    }
    end.request().unwrap();
    end.flush();
    let found: Vec<_> = end.out.completions.drain(..).collect();
    assert_eq!(found.len(), 5);
    for (i, (side, wc)) in found.iter().enumerate() {
        assert_eq!((*side, wc.wr_id, wc.status), (Side::Send, WrId::new(i as u64), WcStatus::WrFlushErr));
        assert_eq!((wc.opcode, wc.byte_len, wc.qp_num), (ops[i].1, 0, end.params.qpn));
    }
    assert_eq!(end.out.counters.req_cqe_flush_error, 5);
    assert_eq!((end.requests(), end.requester.poll_timeout()), (vec![], None));
    end.post_sges(SEND, &[], SendFlags::empty());
    end.flush();
    assert_eq!(end.done(), [(5, WcStatus::WrFlushErr)]);
}

#[test]
fn f35_a_message_as_long_as_can_be_takes_half_the_circle() {
    let max = crate::responder::MAX_MESSAGE;
    let window = (1 << 23) - 1;
    let mut end = End::with(|p| (p.window, p.sq_psn) = (window, Psn::new(0xFF_FFF0)));
    // No byte of it is there; a READ touches none before its answer comes.
    end.post_wqe(SendWqe {
        wr_id: WrId::new(0),
        op: read_op(),
        sges: SmallVec::new(),
        inline: None,
        flags: SendFlags::SIGNALED,
        length: max,
        datagram: None,
        remote_srqn: None,
        psns: None,
    });
    let piece = window / 2;
    let first = |i| Psn::new(0xFF_FFF0).wrapping_add(i * piece).value();
    assert_eq!(psns(&end.requests()), [first(0), first(1)], "a third would leave no half of the circle free");
    end.requester.assert_consistent(&end.params);
    end.expire();
    assert_eq!(psns(&end.requests()), [first(0), first(1)]);
    assert_eq!(end.requester.next_psn(), Psn::new(0xFF_FFF0).wrapping_add(2 * piece));
}
