//! What is taken, and what it becomes.

use wire::LKey;

use super::*;

const CAP: QpCap =
    QpCap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 4, max_recv_sge: 2, max_inline_data: 236 };

fn sge(length: u32) -> Sge {
    Sge { addr: VirtAddr::new(0x1000), length, lkey: LKey::new(0x101) }
}

fn far() -> (VirtAddr, RKey) {
    (VirtAddr::new(0x2000), RKey::new(0x202))
}

/// What a send on a reliable connection is held against.
fn limits(sq_sig_all: bool) -> SendLimits<'static> {
    SendLimits { qp_type: QpType::Rc, cap: &CAP, sq_sig_all, port_mtu: Mtu::B1024 }
}

#[test]
fn f35_a_message_is_at_most_two_to_the_31() {
    let (va, rkey) = far();
    let max = 1_u32 << 31;
    let wrs = |sges: &[Sge]| {
        [SendWr::send(1, sges), SendWr::write(1, sges, va, rkey), SendWr::read(1, sges, va, rkey)]
    };
    for sges in [vec![sge(max)], vec![sge(max / 2); 2], vec![sge(max - 1), sge(1)], vec![sge(max - 1)]] {
        let total = sges.iter().map(|sge| sge.length).sum();
        for wr in wrs(&sges) {
            assert_eq!(wr.check(&limits(false)).unwrap().length, total);
        }
    }
    for (sges, total) in [
        (vec![sge(max), sge(1)], (1_u64 << 31) + 1),
        // F25: the sum is not cut to 32 bits.
        (vec![sge(0x4000_0000); 4], 1 << 32),
        (vec![sge(u32::MAX); 4], 4 * u64::from(u32::MAX)),
    ] {
        for wr in wrs(&sges) {
            let error = wr.check(&limits(false)).unwrap_err();
            assert_eq!((error, error.errno()), (PostError::TooLong(total), 22));
        }
    }
}

#[test]
fn f25_only_send_and_write_are_inline() {
    let (va, rkey) = far();
    for op in [SendOp::Send { imm: None }, SendOp::Write { va, rkey, imm: Some([1; 4]) }] {
        let wqe = SendWr::inline(1, op, vec![1; 60]).check(&limits(false)).unwrap();
        assert_eq!((wqe.length, wqe.sges.len(), wqe.inline.unwrap().len()), (60, 0, 60));
        assert!(wqe.flags.contains(SendFlags::INLINE));
    }
    for op in [
        SendOp::Read { va, rkey },
        SendOp::FetchAdd { va, rkey, add: 1 },
        SendOp::CmpSwap { va, rkey, compare: 1, swap: 1 },
    ] {
        let error = SendWr::inline(1, op, vec![1; 8]).check(&limits(false)).unwrap_err();
        assert_eq!(error, PostError::NotInline);
    }
    // The flag alone does not make it so.
    let mut wr = SendWr::send(1, &[sge(1)]);
    wr.flags = SendFlags::INLINE;
    assert!(!wr.check(&limits(false)).unwrap().flags.contains(SendFlags::INLINE));
}

#[test]
fn f26_inline_data_are_counted() {
    for (len, taken) in [(0, true), (1, true), (236, true), (237, false)] {
        let result = SendWr::inline(1, SendOp::Send { imm: None }, vec![0; len]).check(&limits(false));
        assert_eq!(result.is_ok(), taken, "{len} bytes");
    }
}

#[test]
fn an_atomic_has_eight_bytes_of_its_own() {
    let (va, rkey) = far();
    for (lengths, total) in [(vec![], 0), (vec![4], 4), (vec![16], 16), (vec![8, 8], 16), (vec![8, 1], 9)] {
        let sges: Vec<_> = lengths.into_iter().map(sge).collect();
        let wr = SendWr::new(1, SendOp::FetchAdd { va, rkey, add: 1 }, &sges);
        assert_eq!(wr.check(&limits(false)).unwrap_err(), PostError::AtomicLength(total));
    }
    let wr = SendWr::new(1, SendOp::FetchAdd { va, rkey, add: 1 }, &[sge(3), sge(0), sge(5)]);
    assert_eq!(wr.check(&limits(false)).unwrap().length, 8);
}

#[test]
fn f24_pieces_are_counted() {
    SendWr::send(1, &[sge(0); 4]).check(&limits(false)).unwrap();
    let error = SendWr::send(1, &[sge(0); 5]).check(&limits(false)).unwrap_err();
    assert_eq!(error, PostError::TooManySges { given: 5, max: 4 });
    RecvWr::new(1, &[sge(0); 2]).check(CAP.max_recv_sge, PdId(0), Side::Recv).unwrap();
    let error = RecvWr::new(1, &[sge(0); 3]).check(CAP.max_recv_sge, PdId(0), Side::Recv).unwrap_err();
    assert_eq!(error, PostError::TooManySges { given: 3, max: 2 });
}

#[test]
fn signalling_and_flags_are_kept() {
    for (all, asked, expected) in [(false, false, false), (false, true, true), (true, false, true)] {
        let wr = SendWr::send(5, &[]).fenced().solicited();
        let wqe = if asked { wr.signaled() } else { wr }.check(&limits(all)).unwrap();
        assert_eq!(wqe.flags.contains(SendFlags::SIGNALED), expected);
        assert!(wqe.flags.contains(SendFlags::FENCE | SendFlags::SOLICITED));
        assert_eq!((wqe.wr_id, wqe.psns), (WrId::new(5), None));
    }
}
