//! Requests that break a rule: each has its NAK, its completion, and ends the connection.

use smallvec::SmallVec;
use wire::ext::{AtomicEth, Feth, ImmDt, Reth};
use wire::{Msn, NakCode, Operation as Op, PacketRepr, Psn, RKey, VirtAddr, WrId};
use zerocopy::FromBytes;

use crate::completion::{WcOpcode, WcStatus};
use crate::drop::DropReason;
use crate::kit::*;
use crate::ports::{Access, Side};
use crate::wqe::{RecvWqe, Sge};

const INVALID: &str = "nak=invalid_request";
const ACCESS: &str = "nak=remote_access";

/// `packets` follow each other from PSN 100 on; the last is refused with `nak`, and the memory stays as it was.
fn refused(mut end: End, packets: &[PacketRepr], nak: &str) -> End {
    let (last, before) = packets.split_last().unwrap();
    end.take_all(before);
    assert!(!end.out.fatal, "{}", show(last));
    end.replies();
    let msn = end.responder.msn();
    let memory = end.bytes(0, SIZE).to_vec();
    end.take(last).unwrap();
    assert!(end.out.fatal, "{}", show(last));
    // R-RSP-22: this PSN, and the count as it was.
    let expected = format!("ACK psn={} {nak} msn={msn}", last.bth.psn());
    assert_eq!(end.shown_replies(), [expected], "{}", show(last));
    assert!(end.bytes(0, SIZE) == memory, "{} touched memory", show(last));
    // After it nothing is executed and nothing answered.
    assert_eq!(end.take(&read_request(100, 0, 8)), Err(DropReason::QpState));
    assert_eq!(end.responder.msn(), msn);
    end
}

fn fresh() -> End {
    End::with(|_| {})
}

/// With two receives of 1000 bytes.
fn ready() -> End {
    let mut end = fresh();
    end.post_recv(0, 1000);
    end.post_recv(0, 1000);
    end
}

fn write(op: Op, psn: u32, dma_len: u32, len: usize) -> PacketRepr {
    let reth = matches!(op, Op::WriteFirst | Op::WriteOnly | Op::WriteOnlyImm)
        .then(|| Reth::new(va(0), RKEY, dma_len).into());
    let imm = matches!(op, Op::WriteOnlyImm | Op::WriteLastImm).then(|| ImmDt::new([0; 4]).into());
    packet(op, psn, reth.into_iter().chain(imm).collect(), &pattern(len, 7))
}

#[test]
fn a_packet_that_does_not_follow_is_an_invalid_request() {
    let send_first = plain(Op::SendFirst, 100, 256);
    let write_first = write(Op::WriteFirst, 100, 600, 256);
    // R-RSP-10: outside of a message only what starts one.
    for op in [Op::SendMiddle, Op::SendLast, Op::WriteMiddle, Op::WriteLast] {
        refused(ready(), &[plain(op, 100, 256)], INVALID);
    }
    refused(ready(), &[packet(Op::SendLastImm, 100, vec![ImmDt::new([0; 4]).into()], &[1])], INVALID);
    refused(ready(), &[write(Op::WriteLastImm, 100, 0, 1)], INVALID);
    // Within a SEND only its own.
    for next in [
        plain(Op::SendFirst, 101, 256),
        plain(Op::SendOnly, 101, 1),
        plain(Op::WriteMiddle, 101, 256),
        plain(Op::WriteLast, 101, 1),
        write(Op::WriteLastImm, 101, 0, 1),
        write(Op::WriteFirst, 101, 600, 256),
        write(Op::WriteOnly, 101, 1, 1),
        read_request(101, 0, 8),
        fetch_add(101, 0, 1),
    ] {
        let mut end = refused(ready(), &[send_first.clone(), next], INVALID);
        // Its receive reports it, and no event needs to.
        assert_eq!(end.done_by_side(), [(Side::Recv, 0, WcStatus::RemInvReqErr)]);
        assert_eq!(end.out.unreported, None);
    }
    // Within a WRITE only its own.
    for next in [
        write(Op::WriteFirst, 101, 600, 256),
        write(Op::WriteOnly, 101, 1, 1),
        plain(Op::SendMiddle, 101, 256),
        plain(Op::SendLast, 101, 1),
        plain(Op::SendOnly, 101, 1),
        read_request(101, 0, 8),
        fetch_add(101, 0, 1),
    ] {
        let mut end = refused(ready(), &[write_first.clone(), next], INVALID);
        assert_eq!(end.done(), []);
        assert_eq!(end.out.unreported, Some(NakCode::InvalidRequest), "R-RSP-38");
    }
}

/// Rules R-ADR-2, R-WIR-19.
#[test]
fn f38_payloads_that_do_not_fit_the_path_mtu_are_invalid_requests() {
    for packet in [
        plain(Op::SendFirst, 100, 255),
        plain(Op::SendFirst, 100, 1024),
        plain(Op::SendOnly, 100, 257),
        write(Op::WriteFirst, 100, 600, 255),
        write(Op::WriteFirst, 100, 600, 257),
        write(Op::WriteOnly, 100, 257, 257),
        write(Op::WriteOnlyImm, 100, 257, 257),
    ] {
        refused(ready(), &[packet], INVALID);
    }
    for (op, len) in [(Op::SendMiddle, 255), (Op::SendMiddle, 257), (Op::SendLast, 0), (Op::SendLast, 257)] {
        let mut end = refused(ready(), &[plain(Op::SendFirst, 100, 256), plain(op, 101, len)], INVALID);
        assert_eq!(end.done(), [(0, WcStatus::RemInvReqErr)], "R-RSP-12");
    }
    // R-WIR-21: a FIRST of the right length, of which the pad count takes a part.
    let mut padded = plain(Op::SendFirst, 100, 256);
    padded.bth = padded.bth.with_pad_count(3);
    padded.pad = padded.payload.split_off(253);
    let mut longer = plain(Op::SendFirst, 100, 256);
    longer.bth = longer.bth.with_pad_count(1);
    longer.pad = vec![0];
    refused(ready(), &[padded], INVALID);
    refused(ready(), &[longer], INVALID);
    // R-WIR-20: requests without payload.
    let reth = Reth::new(va(0), RKEY, 8).into();
    refused(fresh(), &[packet(Op::ReadRequest, 100, vec![reth], &[0; 4])], INVALID);
    let atomic = AtomicEth::new(va(0), RKEY, 1, 0).into();
    refused(fresh(), &[packet(Op::FetchAdd, 100, vec![atomic], &[0; 4])], INVALID);
}

/// Rule R-WIR-31.
#[test]
fn a_write_adds_up_to_its_dmalen_exactly() {
    // R-RSP-13.
    for (dma_len, len) in [(0, 1), (1, 0), (2, 1), (1, 2), (256, 255), (u32::MAX, 8), ((1 << 31) + 1, 8)] {
        refused(ready(), &[write(Op::WriteOnly, 100, dma_len, len)], INVALID);
    }
    for dma_len in [0, 1, 255, 256, (1 << 31) + 1] {
        refused(ready(), &[write(Op::WriteFirst, 100, dma_len, 256)], INVALID);
    }
    for (op, len) in [
        (Op::WriteLast, 255),
        (Op::WriteLast, 43),
        (Op::WriteLast, 45),
        (Op::WriteLast, 0),
        (Op::WriteMiddle, 256),
        (Op::WriteLastImm, 43),
    ] {
        let first = write(Op::WriteFirst, 100, 300, 256);
        refused(ready(), &[first, write(op, 101, 0, len)], INVALID);
    }
}

#[test]
fn rights_of_the_queue_pair_come_before_those_of_the_region() {
    // R-MEM-9, R-RSP-11: a bad key as well, but NAK 1.
    let nowhere = (VirtAddr::new(0), RKey::new(0), 8);
    let atomic = packet(Op::FetchAdd, 100, vec![AtomicEth::new(nowhere.0, nowhere.1, 1, 0).into()], &[]);
    for (request, need) in [
        (ranged(Op::WriteOnly, 100, nowhere, &[0; 8]), Access::REMOTE_WRITE),
        (ranged(Op::ReadRequest, 100, nowhere, &[]), Access::REMOTE_READ),
        (atomic, Access::REMOTE_ATOMIC),
    ] {
        let end = End::with(|p| p.access = ALL.difference(need));
        refused(end, core::slice::from_ref(&request), INVALID);
        let mut end = refused(fresh(), &[request], ACCESS);
        assert_eq!(end.done(), []);
        assert_eq!(end.out.unreported, Some(NakCode::RemoteAccessError));
    }
}

fn atomic_write(va: VirtAddr, rkey: RKey, dma_len: u32, len: usize) -> PacketRepr {
    ranged(Op::AtomicWrite, 100, (va, rkey, dma_len), &pattern(len, 1))
}

fn flush(feth: Feth, (va, rkey, len): (VirtAddr, RKey, u32)) -> PacketRepr {
    packet(Op::Flush, 100, vec![feth.into(), Reth::new(va, rkey, len).into()], &[])
}

/// Rules R-RSP-57, R-MEM-9.
#[test]
fn atomic_writes_that_may_not_be() {
    let good = atomic_write(va(8), RKEY, 8, 8);
    refused(
        End::with(|p| p.access = ALL.difference(Access::REMOTE_WRITE)),
        core::slice::from_ref(&good),
        INVALID,
    );
    refused(End::with(|p| p.max_dest_rd_atomic = 0), core::slice::from_ref(&good), INVALID);
    for (at, dma_len, len) in [(4, 8, 8), (8, 8, 4), (8, 4, 8), (8, 8, 12), (8, 8, 0), (8, 16, 8)] {
        refused(fresh(), &[atomic_write(va(at), RKEY, dma_len, len)], INVALID);
    }
    // The form counts before the key.
    refused(fresh(), &[atomic_write(va(4), RKey::new(KEY + 1), 8, 8)], INVALID);
    for (at, key) in [(va(8), KEY + 1), (va(SIZE as u64), KEY), (VirtAddr::new(u64::MAX - 7), KEY)] {
        let end = refused(fresh(), &[atomic_write(at, RKey::new(key), 8, 8)], ACCESS);
        assert_eq!(end.out.unreported, Some(NakCode::RemoteAccessError));
    }
    let mut end = fresh();
    end.ram.remove(KEY);
    end.ram.add(KEY, BASE, Access::LOCAL_WRITE | Access::REMOTE_READ, pattern(SIZE, 1));
    refused(end, &[good], ACCESS);
}

/// Rules R-RSP-59, R-MEM-9.
#[test]
fn flushes_that_may_not_be() {
    let range = (va(0), RKEY, 64);
    let (global, persistent) = (Feth::GLOBAL_VISIBILITY, Feth::PERSISTENCE);
    for (placement, right) in [(global, Access::FLUSH_GLOBAL), (persistent, Access::FLUSH_PERSISTENT)] {
        for whole in [false, true] {
            let request = [flush(Feth::new(placement, whole), range)];
            refused(End::with(|p| p.access = ALL.difference(right)), &request, INVALID);
            let mut end = fresh();
            end.ram.remove(KEY);
            end.ram.add(KEY, BASE, ALL.difference(right), pattern(SIZE, 1));
            let end = refused(end, &request, ACCESS);
            assert_eq!(end.ram.flushed, []);
        }
    }
    // Nowhere, and somewhere unknown.
    for placement in [0, 4, 8, global | 4] {
        refused(fresh(), &[flush(Feth::new(placement, false), range)], INVALID);
    }
    let selectivity = |word: u8| {
        let mut request = flush(Feth::new(global, false), range);
        request.ext[0] = Feth::read_from_bytes(&[0, 0, 0, word << 4 | 1]).unwrap().into();
        request
    };
    for unknown in [2, 3] {
        refused(fresh(), &[selectivity(unknown)], INVALID);
    }
    refused(fresh(), &[flush(Feth::new(global, false), (va(0), RKEY, (1 << 31) + 1))], INVALID);
    // A range of no bytes is looked at all the same.
    let out = VirtAddr::new(BASE - 1);
    for (at, key, len) in [(va(0), KEY + 1, 0), (out, KEY, 0), (va(SIZE as u64 - 1), KEY, 2)] {
        refused(fresh(), &[flush(Feth::new(global, false), (at, RKey::new(key), len))], ACCESS);
    }
    refused(fresh(), &[flush(Feth::new(global, true), (out, RKey::new(KEY + 1), 0))], ACCESS);
}

/// Rule R-RSP-15.
#[test]
fn f13_f3_memory_that_may_not_be_touched_is_an_access_error() {
    let end_of = BASE + SIZE as u64;
    let ranges = [
        (BASE, KEY + 1, 8),
        (BASE, 0, 8),
        (BASE - 1, KEY, 8),
        (end_of - 7, KEY, 8),
        (end_of, KEY, 8),
        (0, KEY, 8),
        (u64::MAX, KEY, 8),
        (0xFFFF_FFFF_FFFF_FC00, KEY, 0x100),
        (u64::MAX - 7, KEY, 8),
    ];
    for (va, key, len) in ranges {
        let range = (VirtAddr::new(va), RKey::new(key), len);
        let data = pattern(len as usize, 7);
        refused(fresh(), &[ranged(Op::WriteOnly, 100, range, &data)], ACCESS);
        refused(fresh(), &[ranged(Op::ReadRequest, 100, range, &[])], ACCESS);
        let end = refused(
            ready(),
            &[ranged(Op::WriteFirst, 100, (range.0, range.1, 300), &pattern(256, 7))],
            ACCESS,
        );
        assert_eq!(end.receives.0.len(), 2, "no receive is taken");
        if va % 8 == 0 {
            let atomic = AtomicEth::new(range.0, range.1, 1, 0).into();
            refused(fresh(), &[packet(Op::FetchAdd, 100, vec![atomic], &[])], ACCESS);
        }
    }
    // The whole range is checked at the first packet.
    let whole = (VirtAddr::new(end_of - 300), RKEY, 301);
    refused(fresh(), &[ranged(Op::WriteFirst, 100, whole, &pattern(256, 7))], ACCESS);
}

#[test]
fn f3_the_last_byte_is_inside() {
    let last = VirtAddr::new(BASE + SIZE as u64 - 1);
    let mut end = fresh();
    end.take(&ranged(Op::WriteOnly, 100, (last, RKEY, 1), &[9])).unwrap();
    end.take(&ranged(Op::ReadRequest, 101, (last, RKEY, 1), &[])).unwrap();
    assert_eq!(end.replies()[1].payload, [9]);
    refused(end, &[ranged(Op::ReadRequest, 102, (last, RKEY, 2), &[])], ACCESS);
}

#[test]
fn a_region_gives_the_rights_it_has() {
    for (give, op) in [
        (ALL.difference(Access::REMOTE_WRITE), Op::WriteOnly),
        (ALL.difference(Access::REMOTE_READ), Op::ReadRequest),
        (ALL.difference(Access::REMOTE_ATOMIC), Op::FetchAdd),
    ] {
        let mut end = fresh();
        end.ram.add(0x200, 0x10_0000, give, vec![0; 64]);
        let (va, key) = (VirtAddr::new(0x10_0000), RKey::new(0x200));
        let request = match op {
            Op::FetchAdd => packet(op, 100, vec![AtomicEth::new(va, key, 1, 0).into()], &[]),
            _ => ranged(op, 100, (va, key, 8), &pattern(if op == Op::WriteOnly { 8 } else { 0 }, 1)),
        };
        refused(end, &[request], ACCESS);
    }
}

/// Rule R-RSP-16.
#[test]
fn a_misaligned_atomic_is_an_invalid_request() {
    for offset in 1..8 {
        refused(fresh(), &[fetch_add(100, offset, 1)], INVALID);
    }
}

#[test]
fn a_send_longer_than_its_receive_is_an_invalid_request() {
    let mut end = fresh();
    end.post_recv(0, 256);
    let mut end = refused(end, &[plain(Op::SendFirst, 100, 256), plain(Op::SendLast, 101, 1)], INVALID);
    let wc = end.completions()[0];
    assert_eq!((wc.status, wc.opcode, wc.byte_len), (WcStatus::LocLenErr, WcOpcode::Recv, 0), "R-RSP-14");
    assert_eq!(end.out.counters.resp_local_length_error, 1);
    let mut end = fresh();
    end.post_recv(0, 2);
    end.take(&plain(Op::SendOnly, 100, 2)).unwrap();
    assert_eq!(end.done(), [(0, WcStatus::Success)], "what just fits is fine");
    end.post_recv(0, 1);
    refused(end, &[plain(Op::SendOnly, 101, 2)], INVALID);
}

#[test]
fn a_bad_piece_of_a_receive_is_an_operational_error() {
    for (addr, lkey) in [(BASE, 0xBAD), (0x10_0000, 0x200), (BASE + SIZE as u64 - 7, KEY)] {
        let mut end = fresh();
        end.ram.add(0x200, 0x10_0000, Access::REMOTE_READ, vec![0; 64]);
        let sge = Sge { addr: VirtAddr::new(addr), length: 8, lkey: wire::LKey::new(lkey) };
        end.receives.0.push_back(RecvWqe {
            wr_id: WrId::new(5),
            sges: SmallVec::from_slice(&[sge]),
            pd: PD,
            side: Side::Recv,
        });
        let mut end = refused(end, &[plain(Op::SendOnly, 100, 8)], "nak=remote_operational");
        assert_eq!(end.done(), [(5, WcStatus::LocProtErr)], "R-RSP-17");
    }
}

#[test]
fn a_nak_stays_behind_the_answers_before_it() {
    let mut end = fresh();
    end.take(&read_request(100, 0, 300)).unwrap();
    end.take(&ranged(Op::WriteOnly, 102, (va(0), RKey::new(1), 1), &[0])).unwrap();
    // The owner puts the queue pair into the error state; what is on its way to the peer stays (R-RSP-22).
    end.responder.abandon();
    assert_eq!(
        end.shown_replies(),
        [
            "READ_RESP_FIRST psn=100 ack msn=1 len=256",
            "READ_RESP_LAST psn=101 ack msn=1 len=44",
            "ACK psn=102 nak=remote_access msn=1",
        ]
    );
}

#[test]
fn memory_that_goes_within_a_read_puts_a_nak_in_place_of_the_rest() {
    let mut end = fresh();
    end.post_recv(0, 10);
    end.take(&read_request(100, 0, 4 * 256)).unwrap();
    end.take(&plain(Op::SendOnly, 104, 1)).unwrap();
    assert_eq!(end.reply().unwrap().bth.psn(), Psn::new(100));
    end.done();
    end.ram.remove(KEY);
    // R-RSP-31, R-MEM-12; the SEND behind it, though executed, is not acknowledged past it.
    assert_eq!(end.shown_replies(), ["ACK psn=101 nak=remote_access msn=1"]);
    assert!(end.out.fatal);
    assert_eq!(end.out.counters.resp_remote_access_errors, 1);
    assert_eq!(end.take(&plain(Op::SendOnly, 105, 1)), Err(DropReason::QpState));
    assert_eq!(end.responder.msn(), Msn::new(2));
}

/// Rules R-RSP-5, R-MEM-12: the requester had its answer, or it would not have let the memory go.
#[test]
fn memory_that_went_ends_no_connection_for_a_repeated_read() {
    let mut end = fresh();
    end.post_recv(0, 10);
    end.take(&read_request(100, 0, 600)).unwrap();
    end.replies();
    end.take(&read_request(101, 256, 344)).unwrap();
    assert_eq!(end.reply().unwrap().bth.psn(), Psn::new(101));
    end.ram.remove(KEY);
    assert_eq!(end.take(&read_request(100, 0, 600)), Err(DropReason::DuplicateUnknown), "F3");
    assert_eq!(end.shown_replies(), [""; 0], "nor is the rest of one that was under way answered");
    end.ram.add(KEY, BASE, ALL, vec![0; SIZE]);
    end.take(&plain(Op::SendOnly, 103, 1)).unwrap();
    assert_eq!(end.shown_replies(), ["ACK psn=103 ack msn=2"]);
    assert!(!end.out.fatal);
}

/// Rule R-RSP-9: of several faults the first in the order of the steps decides.
#[test]
fn the_first_step_that_refuses_decides() {
    let bad_key =
        |op, psn, dma_len: u32, len| ranged(op, psn, (va(0), RKey::new(0xBAD), dma_len), &pattern(len, 7));
    // The PSN comes before all else, and the order of opcodes before the rights of the queue pair.
    let mut end = End::with(|p| p.access = Access::empty());
    end.take(&plain(Op::WriteMiddle, 101, 3)).unwrap();
    assert_eq!(end.shown_replies(), ["ACK psn=100 nak=psn_sequence msn=0"]);
    // A right that the queue pair does not give comes before the receive that is missing,
    let mut write_imm = bad_key(Op::WriteOnly, 100, 9, 8);
    write_imm.bth = write_imm.bth.with_opcode(wire::Opcode::rc(Op::WriteOnlyImm));
    write_imm.ext.push(ImmDt::new([0; 4]).into());
    refused(End::with(|p| p.access = Access::empty()), &[write_imm.clone()], INVALID);
    // the receive before the length,
    let mut end = fresh();
    end.take(&write_imm).unwrap();
    end.take(&plain(Op::SendOnly, 100, 257)).unwrap();
    assert!(end.shown_replies().iter().all(|reply| reply.contains("rnr_nak")) && !end.out.fatal);
    // the length before the key,
    refused(ready(), &[write_imm], INVALID);
    refused(fresh(), &[bad_key(Op::WriteOnly, 100, 9, 8)], INVALID);
    refused(fresh(), &[bad_key(Op::WriteFirst, 100, 300, 255)], INVALID);
    // and the room for one more answer before the key of a READ.
    let full = End::with(|p| p.max_dest_rd_atomic = 0);
    refused(full, &[bad_key(Op::ReadRequest, 100, 8, 0)], INVALID);
    refused(fresh(), &[bad_key(Op::ReadRequest, 100, 8, 0)], ACCESS);
}
