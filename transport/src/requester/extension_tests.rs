//! ATOMIC WRITE, FLUSH, SEND with invalidate, and the local operations among other work.

use bytes::Bytes;
use smallvec::SmallVec;
use wire::{LKey, NakCode, Operation as Op, Psn, RKey, Syndrome, VirtAddr, WrId};

use crate::completion::{WcOpcode, WcStatus};
use crate::drop::DropReason;
use crate::kit::*;
use crate::local::LocalOp;
use crate::ports::Access;
use crate::wqe::{Placement, SendFlags, SendOp, SendWqe};

const EXTRA: u32 = 0x900;
const SEND_INV: SendOp = SendOp::SendInv { rkey: RKey::new(0xABC) };
const INVALIDATE: LocalOp = LocalOp::Invalidate { rkey: RKey::new(EXTRA) };

const fn register(n: u64) -> LocalOp {
    LocalOp::Register {
        mr: LKey::new(0x500),
        variant: 1,
        iova: VirtAddr::new(n),
        length: n,
        access: Access::LOCAL_WRITE,
    }
}

/// One that the memory of these tests refuses where `length` is 0.
const fn bind(length: u64) -> LocalOp {
    LocalOp::Bind {
        mw: RKey::new(0x600),
        variant: 2,
        mr: LKey::new(KEY),
        va: VirtAddr::new(BASE),
        length,
        access: Access::REMOTE_READ,
    }
}

fn atomic_write() -> SendOp {
    SendOp::AtomicWrite { va: va(0x4000), rkey: RKEY }
}

fn flush(whole: bool) -> SendOp {
    SendOp::Flush { va: va(0x4000), rkey: RKEY, length: 600, placement: Placement::PERSISTENT, whole }
}

fn fresh() -> End {
    let mut end = End::with(|_| {});
    end.ram.add(EXTRA, 0x9000_0000, ALL, vec![0; 64]);
    end
}

fn local(end: &mut End, op: LocalOp, flags: SendFlags) -> u64 {
    end.post_sges(SendOp::Local(op), &[], flags | SendFlags::SIGNALED)
}

/// Rules R-REQ-38, R-WIR-20, R-WIR-22, R-WIR-29, R-REQ-5, R-REQ-11, R-REQ-13.
#[test]
fn they_leave_as_the_rules_say() {
    let mut end = fresh();
    end.post_sges(SEND_INV, &[sge(0, 300)], SendFlags::SOLICITED);
    end.post_sges(SEND_INV, &[], SendFlags::empty());
    end.post_sges(atomic_write(), &[sge(0, 3), sge(3, 5)], SendFlags::SOLICITED);
    let inline = Some(Bytes::from_static(&[1, 2, 3, 4, 5, 6, 7, 8]));
    end.post_wqe(SendWqe {
        wr_id: WrId::new(0),
        op: atomic_write(),
        sges: SmallVec::new(),
        inline,
        flags: SendFlags::INLINE,
        length: 8,
        ..wqe()
    });
    end.post_sges(flush(false), &[], SendFlags::empty());
    end.post_sges(flush(true), &[], SendFlags::empty());
    let packets = end.requests();
    assert_eq!(
        packets.iter().map(show).collect::<Vec<_>>(),
        [
            "SEND_FIRST psn=10 len=256",
            "SEND_LAST_INV psn=11 inv_rkey=0x00000abc len=44 se ack",
            "SEND_ONLY_INV psn=12 inv_rkey=0x00000abc len=0 ack",
            "ATOMIC_WRITE psn=13 va=0x5000 rkey=0x00000100 dmalen=8 len=8 ack",
            "ATOMIC_WRITE psn=14 va=0x5000 rkey=0x00000100 dmalen=8 len=8 ack",
            "FLUSH psn=15 placement=0x2 selectivity=0 va=0x5000 rkey=0x00000100 dmalen=600 ack",
            "FLUSH psn=16 placement=0x2 selectivity=1 va=0x5000 rkey=0x00000100 dmalen=600 ack",
        ]
    );
    assert_eq!(packets[3].payload, end.bytes(0, 8));
    assert_eq!(packets[4].payload, [1, 2, 3, 4, 5, 6, 7, 8]);
}

/// Rule R-CMP-28.
#[test]
fn their_own_answer_completes_them_and_no_ack() {
    for (op, len, opcode) in [(atomic_write(), 8, WcOpcode::AtomicWrite), (flush(false), 0, WcOpcode::Flush)]
    {
        let sent = || {
            let mut end = fresh();
            end.post(SEND, 1);
            end.post(op, len);
            end.post(SEND, 1);
            end.requests();
            end
        };
        let mut end = sent();
        end.take(&response(Op::ReadResponseOnly, 11, &[])).unwrap();
        let done: Vec<_> = end.completions().iter().map(|wc| (wc.status, wc.opcode, wc.byte_len)).collect();
        let good = |opcode, len| (WcStatus::Success, opcode, len);
        assert_eq!(done, [good(WcOpcode::Send, 1), good(opcode, len)], "R-CQE-7, R-CQE-8");
        end.ack(12, Syndrome::ACK).unwrap();
        assert_eq!(end.done(), [(2, WcStatus::Success)]);

        // An ACK that passes over it, or one at its own PSN, says that its answer was lost.
        for psn in [11, 12] {
            let mut end = sent();
            end.ack(psn, Syndrome::ACK).unwrap();
            assert_eq!(end.done(), [(0, WcStatus::Success)]);
            assert_eq!(end.out.counters.implied_nak_seq_err, 1, "R-CMP-3");
            assert_eq!(end.requests().iter().map(|p| p.bth.psn().value()).collect::<Vec<_>>(), [11, 12]);
            assert_eq!(end.ack(12, Syndrome::ACK), Err(DropReason::ResponseOutOfOrder));
            end.take(&response(Op::ReadResponseOnly, 11, &[])).unwrap();
            assert_eq!(end.done(), [(1, WcStatus::Success)]);
        }
        for wrong in [
            response(Op::ReadResponseOnly, 11, &[0; 4]),
            response(Op::ReadResponseLast, 11, &[0; 4]),
            response(Op::ReadResponseMiddle, 11, &[0; 256]),
            atomic_response(11, Syndrome::ACK, 0),
        ] {
            let mut end = sent();
            end.take(&wrong).unwrap();
            assert_eq!(end.done(), [(0, WcStatus::Success), (1, WcStatus::BadRespErr)], "{}", show(&wrong));
        }
        let mut end = sent();
        end.ack(11, Syndrome::Nak(NakCode::RemoteAccessError)).unwrap();
        assert_eq!(end.done(), [(0, WcStatus::Success), (1, WcStatus::RemAccessErr)]);
    }
    // That answer is for them alone.
    for (op, len) in [(SEND, 1), (fetch_add_op(1), 8), (read_op(), 8)] {
        let mut end = fresh();
        end.post(op, len);
        end.requests();
        end.take(&response(Op::ReadResponseOnly, 10, &[])).unwrap();
        assert_eq!(end.done(), [(0, WcStatus::BadRespErr)], "R-CMP-16");
    }
}

/// Rule R-REQ-8, R-REQ-10: an ATOMIC WRITE counts against the depth and for a fence, a FLUSH does not.
#[test]
fn the_read_depth_counts_atomic_writes_and_no_flushes() {
    let mut end = End::with(|p| p.max_rd_atomic = 2);
    for _ in 0..3 {
        end.post_sges(flush(false), &[], SendFlags::empty());
        end.post(atomic_write(), 8);
    }
    assert_eq!(end.requests().len(), 5, "the third ATOMIC WRITE waits");
    end.take(&response(Op::ReadResponseOnly, 10, &[])).unwrap();
    assert_eq!(end.requests().len(), 0);
    end.take(&response(Op::ReadResponseOnly, 11, &[])).unwrap();
    assert_eq!(end.requests().len(), 1);

    let mut end = fresh();
    end.post_sges(flush(false), &[], SendFlags::empty());
    end.post_sges(SEND, &[], SendFlags::FENCE);
    assert_eq!(end.requests().len(), 2);
    end.post(atomic_write(), 8);
    end.post_sges(SEND, &[], SendFlags::FENCE);
    assert_eq!(end.requests().len(), 1);
    for psn in [10, 12] {
        end.take(&response(Op::ReadResponseOnly, psn, &[])).unwrap();
    }
    assert_eq!(end.requests().len(), 1);

    let mut end = End::with(|p| p.max_rd_atomic = 0);
    end.post(flush(false), 0);
    end.post(atomic_write(), 8);
    assert_eq!(end.requests().len(), 1);
    end.take(&response(Op::ReadResponseOnly, 10, &[])).unwrap();
    assert_eq!(end.done(), [(0, WcStatus::Success), (1, WcStatus::LocQpOpErr)], "R-REQ-9");
}

/// Rule R-REQ-46.
#[test]
fn local_operations_run_in_order_take_no_psn_and_complete_in_order() {
    let mut end = fresh();
    local(&mut end, register(1), SendFlags::empty());
    assert_eq!(end.ram.executed, [], "not before its turn");
    end.post(SEND, 300);
    local(&mut end, register(2), SendFlags::empty());
    local(&mut end, bind(8), SendFlags::empty());
    end.post(SEND, 1);
    local(&mut end, INVALIDATE, SendFlags::empty());
    let shown = end.shown_requests();
    assert_eq!(
        shown,
        ["SEND_FIRST psn=10 len=256", "SEND_LAST psn=11 len=44 ack", "SEND_ONLY psn=12 len=1 ack"]
    );
    assert_eq!(end.ram.executed, [register(1), register(2), bind(8), INVALIDATE]);
    let done: Vec<_> =
        end.completions().iter().map(|wc| (wc.wr_id.value(), wc.opcode, wc.byte_len)).collect();
    assert_eq!(done, [(0, WcOpcode::RegMr, 0)], "the others are behind a SEND");
    end.ack(11, Syndrome::ACK).unwrap();
    let done: Vec<_> = end.completions().iter().map(|wc| (wc.wr_id.value(), wc.opcode)).collect();
    assert_eq!(done, [(1, WcOpcode::Send), (2, WcOpcode::RegMr), (3, WcOpcode::BindMw)]);
    end.ack(12, Syndrome::ACK).unwrap();
    let done: Vec<_> = end.completions().iter().map(|wc| (wc.wr_id.value(), wc.opcode)).collect();
    assert_eq!(done, [(4, WcOpcode::Send), (5, WcOpcode::LocalInv)]);
    assert!(end.requester.is_empty() && end.requester.poll_timeout().is_none());
    end.requester.assert_consistent(&end.params);
}

/// Rule R-REQ-46.
#[test]
fn going_back_passes_over_local_operations() {
    let mut end = fresh();
    end.post(SEND, 300);
    local(&mut end, register(1), SendFlags::empty());
    end.post(SEND, 1);
    local(&mut end, bind(8), SendFlags::empty());
    end.post(write_op(), 1);
    let all = end.requests();
    assert_eq!(all.len(), 4);
    end.requester.assert_consistent(&end.params);
    for (from, syndrome) in
        [(10, Syndrome::Nak(NakCode::PsnSequenceError)), (12, Syndrome::Nak(NakCode::PsnSequenceError))]
    {
        end.ack(from, syndrome).unwrap();
        end.requester.assert_consistent(&end.params);
        let again: Vec<_> = end.requests().iter().map(|p| p.bth.psn().value()).collect();
        assert_eq!(again, (from..14).collect::<Vec<_>>());
    }
    assert_eq!(end.ram.executed, [register(1), bind(8)], "once each");
    assert_eq!(end.done(), [(0, WcStatus::Success), (1, WcStatus::Success)]);
    end.ack(13, Syndrome::ACK).unwrap();
    assert_eq!(end.done(), [2, 3, 4].map(|id| (id, WcStatus::Success)));
}

/// Rules R-REQ-47, R-REQ-10.
#[test]
fn a_fence_before_a_local_operation() {
    for (op, waits_for_send) in [(INVALIDATE, true), (bind(8), false), (register(1), false)] {
        let mut end = fresh();
        end.post(SEND, 1);
        end.post(read_op(), 8);
        end.post(SEND, 1);
        local(&mut end, op, SendFlags::FENCE);
        end.post(SEND, 1);
        assert_eq!(end.requests().len(), 3);
        assert_eq!(end.ram.executed, [], "the READ is open: {op:?}");
        end.take(&response(Op::ReadResponseOnly, 11, &[0; 8])).unwrap();
        assert_eq!(end.requests().len(), usize::from(!waits_for_send), "{op:?}");
        assert_eq!(end.ram.executed.len(), usize::from(!waits_for_send));
        end.ack(12, Syndrome::ACK).unwrap();
        assert_eq!(end.requests().len(), usize::from(waits_for_send));
        assert_eq!(end.ram.executed, [op]);
    }
    // Without one nothing waits.
    let mut end = fresh();
    end.post(read_op(), 8);
    local(&mut end, INVALIDATE, SendFlags::empty());
    end.requests();
    assert_eq!(end.ram.executed, [INVALIDATE]);
}

/// Rules R-CMP-27, R-REQ-41.
#[test]
fn a_local_operation_that_cannot_be_done_fails_in_its_turn() {
    let gone = LocalOp::Invalidate { rkey: RKey::new(0xBAD) };
    for (op, status) in [(gone, WcStatus::LocQpOpErr), (bind(0), WcStatus::MwBindErr)] {
        let mut end = fresh();
        end.post(SEND, 1);
        local(&mut end, op, SendFlags::empty());
        local(&mut end, register(1), SendFlags::empty());
        end.post(SEND, 1);
        assert_eq!(end.requests().len(), 1, "nothing behind it leaves");
        assert_eq!((end.done(), end.out.fatal), (vec![], false));
        end.ack(10, Syndrome::ACK).unwrap();
        assert_eq!((end.done(), end.out.fatal), (vec![(0, WcStatus::Success), (1, status)], true));
        assert_eq!(end.ram.executed, []);
        end.flush();
        assert_eq!(end.done(), [(2, WcStatus::WrFlushErr), (3, WcStatus::WrFlushErr)]);

        let mut end = fresh();
        local(&mut end, op, SendFlags::empty());
        assert_eq!(end.requests().len(), 0);
        assert_eq!((end.done(), end.out.fatal), (vec![(0, status)], true), "at once where it is the oldest");
    }
}

/// Rules R-QPS-12, R-QPS-20.
#[test]
fn draining_holds_local_operations_back() {
    let mut end = fresh();
    end.requester.set_draining(true);
    local(&mut end, register(1), SendFlags::empty());
    assert_eq!((end.requests().len(), end.ram.executed.len()), (0, 0));
    assert!(end.requester.is_drained());
    end.requester.set_draining(false);
    end.requests();
    assert_eq!(end.done(), [(0, WcStatus::Success)]);
    assert_eq!(end.requester.next_psn(), Psn::new(10));
}

fn wqe() -> SendWqe {
    SendWqe {
        wr_id: WrId::new(0),
        op: SEND,
        sges: SmallVec::new(),
        inline: None,
        flags: SendFlags::empty(),
        length: 0,
        datagram: None,
        remote_srqn: None,
        psns: None,
    }
}
