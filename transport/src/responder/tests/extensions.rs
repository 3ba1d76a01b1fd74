//! ATOMIC WRITE, FLUSH and SEND with invalidate, where all is well.

use wire::ext::{Feth, Ieth, Reth};
use wire::{NakCode, Operation as Op, PacketRepr, Psn, RKey, VirtAddr};

use crate::completion::{WcOpcode, WcStatus};
use crate::drop::DropReason;
use crate::kit::*;
use crate::local::LocalOp;
use crate::ports::{Access, Side};

/// A key of its own, which may be invalidated.
const EXTRA: u32 = 0x900;

fn atomic_write(psn: u32, offset: u64, data: [u8; 8]) -> PacketRepr {
    ranged(Op::AtomicWrite, psn, (va(offset), RKEY, 8), &data)
}

fn flush(psn: u32, placement: u32, whole: bool, len: u32) -> PacketRepr {
    let ext = vec![Feth::new(placement, whole).into(), Reth::new(va(16), RKEY, len).into()];
    packet(Op::Flush, psn, ext, &[])
}

fn send_inv(op: Op, psn: u32, rkey: u32, len: usize) -> PacketRepr {
    packet(op, psn, vec![Ieth::new(RKey::new(rkey)).into()], &pattern(len, 7))
}

/// Rules R-RSP-58, R-WIR-29, R-RSP-24, R-RSP-27.
#[test]
fn an_atomic_write_stores_its_bytes_as_they_came() {
    let mut end = End::with(|_| {});
    let data = [1, 2, 3, 4, 5, 6, 7, 8];
    let mut request = atomic_write(100, 16, data);
    request.bth = request.bth.with_ack_req(false);
    end.take(&request).unwrap();
    assert_eq!(end.bytes(16, 8), data);
    assert_eq!(end.bytes(24, 8), &pattern(SIZE, 1)[24..32]);
    assert_eq!(end.shown_replies(), ["READ_RESP_ONLY psn=100 ack msn=1 len=0"]);
    assert_eq!(end.responder.expected_psn(), Psn::new(101));
    assert_eq!(end.done(), [], "nobody is told");
}

/// Rules R-RSP-6, R-RSP-7, R-RSP-8: what was answered is answered again and not done again.
#[test]
fn a_repeated_atomic_write_stores_nothing() {
    let mut end = End::with(|p| p.max_dest_rd_atomic = 2);
    for (psn, byte) in [(100, 1), (101, 2), (102, 3)] {
        end.take(&atomic_write(psn, 0, [byte; 8])).unwrap();
        end.replies();
    }
    assert_eq!(end.take(&atomic_write(100, 0, [1; 8])), Err(DropReason::DuplicateUnknown), "too long ago");
    end.take(&atomic_write(101, 0, [2; 8])).unwrap();
    assert_eq!(end.take(&atomic_write(101, 0, [2; 8])), Err(DropReason::DuplicatePending));
    assert_eq!(end.shown_replies(), ["READ_RESP_ONLY psn=101 ack msn=3 len=0"]);
    assert_eq!(end.bytes(0, 8), [3; 8]);
    // A record is of its kind.
    assert_eq!(end.take(&fetch_add(102, 0, 1)), Err(DropReason::DuplicateUnknown));
    assert_eq!(end.take(&flush(102, 1, false, 8)), Err(DropReason::DuplicateUnknown));
    // Not more of them open than agreed.
    end.take(&atomic_write(103, 0, [4; 8])).unwrap();
    end.take(&atomic_write(104, 0, [5; 8])).unwrap();
    assert!(!end.out.fatal);
    end.take(&atomic_write(105, 0, [6; 8])).unwrap();
    assert!(end.out.fatal);
    assert_eq!(end.bytes(0, 8), [5; 8]);
}

/// Rules R-RSP-59, R-RSP-61, R-WIR-29.
#[test]
fn a_flush_names_a_range_or_all() {
    let (global, persistent) = (Feth::GLOBAL_VISIBILITY, Feth::PERSISTENCE);
    let mut end = End::with(|p| p.max_dest_rd_atomic = 0);
    end.take(&ranged(Op::WriteOnly, 100, (va(16), RKEY, 8), &[9; 8])).unwrap();
    end.take(&flush(101, global, false, 8)).unwrap();
    end.take(&flush(102, persistent, true, 0)).unwrap();
    end.take(&flush(103, global | persistent, false, 0)).unwrap();
    assert_eq!(
        end.shown_replies(),
        [
            "ACK psn=100 ack msn=1",
            "READ_RESP_ONLY psn=101 ack msn=2 len=0",
            "READ_RESP_ONLY psn=102 ack msn=3 len=0",
            "READ_RESP_ONLY psn=103 ack msn=4 len=0",
        ],
        "R-RSP-60: none of the READ resources is needed"
    );
    let (visible, lasting) = (Access::FLUSH_GLOBAL, Access::FLUSH_PERSISTENT);
    assert_eq!(
        end.ram.flushed,
        [(Some((va(16), 8)), visible), (None, lasting), (Some((va(16), 0)), visible | lasting)]
    );
}

/// Rule R-RSP-60.
#[test]
fn a_repeated_flush_is_answered_and_displaces_no_atomic() {
    let mut end = End::with(|p| p.max_dest_rd_atomic = 1);
    end.take(&fetch_add(100, 0, 1)).unwrap();
    for psn in 101..110 {
        end.take(&flush(psn, 1, false, 8)).unwrap();
    }
    end.replies();
    end.take(&fetch_add(100, 0, 1)).unwrap();
    end.take(&flush(101, 1, false, 8)).unwrap();
    end.take(&flush(109, 1, false, 8)).unwrap();
    let original = u64::from_ne_bytes(pattern(8, 1).try_into().unwrap());
    assert_eq!(
        end.shown_replies(),
        [
            format!("ATOMIC_ACK psn=100 ack msn=10 original={original:#x}"),
            "READ_RESP_ONLY psn=101 ack msn=10 len=0".into(),
            "READ_RESP_ONLY psn=109 ack msn=10 len=0".into(),
        ]
    );
    assert_eq!(end.ram.flushed.len(), 9, "once each");
    assert_eq!(end.take(&atomic_write(101, 0, [1; 8])), Err(DropReason::DuplicateUnknown));
}

/// Rules R-RSP-48, R-RSP-60: a peer that takes no answers cannot make them pile up; what was lost can be had again.
#[test]
fn a_flood_of_flushes_does_not_pile_up_answers() {
    let mut end = End::with(|_| {});
    for psn in 100..1100 {
        end.take(&flush(psn, 1, false, 8)).unwrap();
    }
    assert_eq!(end.replies().len(), 512);
    assert_eq!((end.responder.expected_psn(), end.ram.flushed.len()), (Psn::new(1100), 1000));
    end.take(&flush(1099, 1, false, 8)).unwrap();
    assert_eq!(end.shown_replies(), ["READ_RESP_ONLY psn=1099 ack msn=1000 len=0"]);
}

/// Rules R-MEM-13, R-WIR-20.
#[test]
fn a_send_with_invalidate_gives_the_key_back() {
    for long in [false, true] {
        let mut end = End::with(|_| {});
        end.ram.add(EXTRA, 0x9000_0000, ALL, vec![0; 64]);
        end.post_recv(0, 1000);
        if long {
            end.take(&plain(Op::SendFirst, 100, 256)).unwrap();
            assert_eq!(end.ram.executed, [], "not before its last packet");
            end.take(&send_inv(Op::SendLastInv, 101, EXTRA, 10)).unwrap();
        } else {
            end.take(&send_inv(Op::SendOnlyInv, 100, EXTRA, 10)).unwrap();
        }
        assert_eq!(end.ram.executed, [LocalOp::Invalidate { rkey: RKey::new(EXTRA) }]);
        let psn = if long { 101 } else { 100 };
        assert_eq!(end.shown_replies().last().unwrap(), &format!("ACK psn={psn} ack msn=1"));
        let wc = end.completions()[0];
        assert_eq!((wc.opcode, wc.status), (WcOpcode::Recv, WcStatus::Success));
        assert_eq!((wc.invalidated, wc.imm), (Some(RKey::new(EXTRA)), None));
        assert_eq!(wc.byte_len, if long { 266 } else { 10 });
        // A repeat invalidates nothing again.
        end.ram.add(EXTRA, 0x9000_0000, ALL, vec![0; 64]);
        let repeat = if long { Op::SendLastInv } else { Op::SendOnlyInv };
        end.take(&send_inv(repeat, psn, EXTRA, 10)).unwrap();
        assert_eq!(
            (end.ram.executed.len(), end.shown_replies()),
            (1, vec![format!("ACK psn={psn} ack msn=1")])
        );
    }
}

/// Rule R-RSP-21: the peer is told that all went well, AckReq or not; the receive fails, and the connection.
#[test]
fn a_send_that_invalidates_a_bad_key_is_delivered_and_ends_the_connection() {
    let mut end = End::with(|_| {});
    let receive = end.post_recv(0, 1000);
    let other = end.post_recv(1000, 10);
    let mut request = send_inv(Op::SendOnlyInv, 100, EXTRA, 10);
    request.bth = request.bth.with_ack_req(false);
    end.take(&request).unwrap();
    assert_eq!(end.bytes(0, 10), pattern(10, 7));
    assert_eq!(end.shown_replies(), ["ACK psn=100 ack msn=1"]);
    assert!(end.out.fatal);
    assert_eq!(end.done_by_side(), [(Side::Recv, receive, WcStatus::RemInvReqErr)]);
    assert_eq!(end.out.unreported, None, "{other} is for the queue pair to flush");
    assert_eq!(end.take(&plain(Op::SendOnly, 101, 1)), Err(DropReason::QpState));
}

/// A key is gone for what the peer asks for next.
#[test]
fn a_write_under_an_invalidated_key_is_refused() {
    let mut end = End::with(|_| {});
    end.ram.add(EXTRA, 0x9000_0000, ALL, vec![0; 64]);
    end.post_recv(0, 1000);
    let write = |psn| {
        let range = (VirtAddr::new(0x9000_0000), RKey::new(EXTRA), 4);
        ranged(Op::WriteOnly, psn, range, &[1; 4])
    };
    end.take_all(&[write(100), send_inv(Op::SendOnlyInv, 101, EXTRA, 0), write(102)]);
    assert_eq!(end.shown_replies(), ["ACK psn=101 ack msn=2", "ACK psn=102 nak=remote_access msn=2"]);
    assert_eq!(end.out.unreported, Some(NakCode::RemoteAccessError));
}
