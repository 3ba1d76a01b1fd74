//! F24 to F27: what is taken by a post, and what is refused.

use qp::{CreateError, PostError, QpCap, QpInit, QpState, QpType, RecvWr, SendOp, SendWr, SrqInit};
use transport::WcStatus;

use super::*;

// ---- F24 ----

/// A connection whose first end has small queues.
fn small() -> Ends {
    let mut ends = ends("f24", Conn::default());
    let cap = QpCap { max_send_wr: 3, max_recv_wr: 2, max_send_sge: 2, max_recv_sge: 1, max_inline_data: 64 };
    let init = QpInit { cap, ..ends.init() };
    let a = ends.a;
    ends.a.qpn = ends.world.nic(a).create_qp(init).unwrap();
    ends.a.recv_cq = ends.a.send_cq;
    assert_eq!(ends.world.nic(a).query_qp(ends.a.qpn).unwrap().1.cap, cap);
    let (a, b, now) = (ends.a, ends.b, ends.world.now);
    ends.go(b, QpState::Reset);
    for (end, peer, psns) in [(a, b, [1, 2]), (b, a, [2, 1])] {
        let name = (ends.world.hosts[peer.host].gid, peer.qpn);
        ends.conn.establish(ends.world.nic(end), now, end.qpn, name, psns).unwrap();
    }
    ends
}

/// Rule R-CQE-11.
#[test]
fn f24_of_a_list_the_first_that_is_not_taken_is_named() {
    let mut ends = small();
    let (a, now) = (ends.a, ends.world.now);
    for id in 0..3 {
        ends.post_recv(RecvWr::new(id, &[ends.far(0, 8)]));
    }
    let wrs: Vec<_> = (0..5).map(|id| SendWr::send(id, &[ends.near(0, 1)]).signaled()).collect();
    let bad = ends.world.nic(a).post_send_list(now, a.qpn, wrs).unwrap_err();
    assert_eq!((bad.index, bad.error, bad.errno()), (3, PostError::QueueFull(3), 12));
    let good = |ids: std::ops::Range<u64>| ids.map(|id| (id, WcStatus::Success)).collect::<Vec<_>>();
    assert_eq!(statuses(&ends.drive()), good(0..3));
    let receives = (0..3).map(|id| RecvWr::new(id, &[]));
    let bad = ends.world.nic(a).post_recv_list(now, a.qpn, receives).unwrap_err();
    assert_eq!((bad.index, bad.error, bad.errno()), (2, PostError::QueueFull(2), 12));
    // One in the middle that can never be: those before it are posted, those behind it are not.
    for id in 0..2 {
        ends.post_recv(RecvWr::new(id, &[ends.far(0, 8)]));
    }
    let piece = ends.near(0, 1);
    let list = [SendWr::send(7, &[piece]), SendWr::send(8, &[piece; 3]), SendWr::send(9, &[piece])];
    let list = list.map(SendWr::signaled);
    let bad = ends.world.nic(a).post_send_list(now, a.qpn, list).unwrap_err();
    assert_eq!((bad.index, bad.error), (1, PostError::TooManySges { given: 3, max: 2 }));
    assert_eq!(statuses(&ends.drive()), good(7..8));
    assert_eq!(ends.world.nic(a).post_send_list(now, a.qpn, []), Ok(()));
}

#[test]
fn f24_what_can_never_be_posted_is_an_invalid_argument() {
    let mut ends = small();
    let (a, now, piece) = (ends.a, ends.world.now, ends.near(0, 1));
    let (va, key) = (ends.mrs[1].addr, ends.mrs[1].rkey);
    let send = SendOp::Send { imm: None };
    let uc = QpInit { qp_type: QpType::Uc, ..ends.init() };
    let uc = ends.world.nic(a).create_qp(uc).unwrap();
    for (qpn, wr, error) in [
        (a.qpn, SendWr::send(1, &[piece; 3]), PostError::TooManySges { given: 3, max: 2 }),
        (a.qpn, SendWr::inline(1, send, vec![0; 65]), PostError::TooMuchInline { given: 65, max: 64 }),
        (uc, SendWr::send(1, &[piece]), PostError::State(QpState::Reset)),
        (NOBODY, SendWr::send(1, &[piece]), PostError::NoSuchQp),
    ] {
        let refused = ends.world.nic(a).post_send(now, qpn, wr).unwrap_err();
        assert_eq!((refused, refused.errno()), (error, 22));
    }
    let receive = ends.world.nic(a).post_recv(now, a.qpn, RecvWr::new(1, &[piece; 2])).unwrap_err();
    assert_eq!((receive, receive.errno()), (PostError::TooManySges { given: 2, max: 1 }, 22));
    // An operation that the type does not have.
    let peer = (ends.world.hosts[1].gid, NOBODY);
    let conn = ends.conn;
    conn.establish(ends.world.nic(a), now, uc, peer, [0, 0]).unwrap();
    for wr in [SendWr::read(1, &[piece], va, key), SendWr::fetch_add(1, ends.near(0, 8), va, key, 1)] {
        let refused = ends.world.nic(a).post_send(now, uc, wr).unwrap_err();
        assert_eq!((refused, refused.errno()), (PostError::WrongType(QpType::Uc), 22));
    }
    assert!(ends.drive().is_empty());
}

// ---- F25 ----

/// Rule R-REQ-16.
#[test]
fn f25_inline_data_are_gathered_at_the_post() {
    let mut ends = ends("f25", Conn::default());
    let mut pieces = [vec![1; 10], vec![2; 20], vec![3; 30]];
    let gathered: Vec<u8> = pieces.concat();
    let (va, rkey) = (ends.mrs[1].addr, ends.mrs[1].rkey);
    ends.post_recv(RecvWr::new(1, &[ends.far(4096, 100)]));
    for op in [SendOp::Send { imm: None }, SendOp::Write { va, rkey, imm: None }] {
        let parts: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
        let wr = SendWr::inline_gather(7, op, &parts).unwrap().signaled();
        ends.post(wr);
    }
    // Whatever becomes of the buffers now.
    for piece in &mut pieces {
        piece.fill(9);
    }
    let done = ends.drive();
    assert_eq!(done.iter().map(|wc| wc.byte_len).collect::<Vec<_>>(), [60, 60]);
    let b = ends.b;
    assert_eq!(ends.world.recv_completions(b)[0].byte_len, 60);
    for at in [4096, 0] {
        assert_eq!(ends.bytes_at_far(at, 60), gathered);
    }
}

#[test]
fn f25_more_inline_than_32_bits_count_is_refused_untouched() {
    // One GiB that nobody ever looks at, four times.
    let large = vec![0_u8; 0x4000_0000];
    let pieces: [&[u8]; 4] = [&large; 4];
    let refused = SendWr::inline_gather(1, SendOp::Send { imm: None }, &pieces).unwrap_err();
    let max = QpCap::MAX.max_inline_data;
    assert_eq!((refused, refused.errno()), (PostError::TooMuchInline { given: 1 << 32, max }, 22));
    // And so is a READ or an atomic with inline data.
    let mut ends = ends("f25-read", Conn::default());
    let (a, now, va, rkey) = (ends.a, ends.world.now, ends.mrs[1].addr, ends.mrs[1].rkey);
    for op in [SendOp::Read { va, rkey }, SendOp::FetchAdd { va, rkey, add: 1 }] {
        let refused = ends.world.nic(a).post_send(now, a.qpn, SendWr::inline(1, op, vec![0; 8])).unwrap_err();
        assert_eq!((refused, refused.errno()), (PostError::NotInline, 22));
    }
    assert!(ends.drive().is_empty());
}

// ---- F26 ----

/// Rule R-CQE-16.
#[test]
fn f26_inline_sizes_up_to_the_largest_are_kept_and_above_it_refused() {
    let mut ends = ends("f26", Conn::default());
    let (a, max) = (ends.a, QpCap::MAX.max_inline_data);
    assert!(max >= 236);
    for size in [0, 1, 220, 236, max] {
        let cap = QpCap { max_inline_data: size, ..QpCap::default() };
        let init = QpInit { cap, ..ends.init() };
        let qpn = ends.world.nic(a).create_qp(init).unwrap();
        let kept = ends.world.nic(a).query_qp(qpn).unwrap().1.cap;
        assert!(kept.max_inline_data >= size);
        // As much can be sent.
        let (peer, now) = ((ends.world.hosts[1].gid, ends.b.qpn), ends.world.now);
        ends.conn.establish(ends.world.nic(a), now, qpn, peer, [0, 0]).unwrap();
        let data = |n: u32| SendWr::inline(1, SendOp::Send { imm: None }, vec![0; n as usize]);
        ends.world.nic(a).post_send(now, qpn, data(kept.max_inline_data)).unwrap();
        let error = ends.world.nic(a).post_send(now, qpn, data(kept.max_inline_data + 1)).unwrap_err();
        assert_eq!(error.errno(), 22);
        ends.world.nic(a).destroy_qp(qpn).unwrap();
    }
    let cap = QpCap { max_inline_data: max + 1, ..QpCap::default() };
    let init = QpInit { cap, ..ends.init() };
    let error = ends.world.nic(a).create_qp(init).unwrap_err();
    assert_eq!((error, error.errno()), (CreateError::Cap { max: QpCap::MAX }, 22));
}

// ---- F27 ----

#[test]
fn f27_with_a_shared_receive_queue_own_receive_sizes_mean_nothing() {
    let mut ends = ends("f27", Conn::default());
    let (a, now, init) = (ends.a, ends.world.now, ends.init());
    let nic = ends.world.nic(a);
    let srq = nic.create_srq(SrqInit::new(init.pd, 4, 1)).unwrap();
    let cap = QpCap { max_recv_wr: u32::MAX, max_recv_sge: u32::MAX, ..QpCap::default() };
    let qpn = nic.create_qp(QpInit { cap, srq: Some(srq), ..init }).unwrap();
    assert!(nic.create_qp(QpInit { cap, ..init }).is_err());
    let (peer, conn) = ((ends.world.hosts[1].gid, NOBODY), ends.conn);
    conn.establish(ends.world.nic(a), now, qpn, peer, [0, 0]).unwrap();
    let refused = ends.world.nic(a).post_recv(now, qpn, RecvWr::new(1, &[])).unwrap_err();
    assert_eq!(refused.errno(), 22, "{refused}");
    ends.world.nic(a).post_srq_recv(srq, RecvWr::new(1, &[])).unwrap();
}
