//! What sizes and messages are taken.

use super::*;
use crate::error::CreateError;
use crate::pair::QpInit;
use crate::state::QpType;

/// Rule R-CQE-16.
#[test]
fn f26_inline_sizes_are_taken_up_to_what_the_pair_was_made_for() {
    for max in [0, 1, 220, 236, QpCap::MAX.max_inline_data] {
        let (mut a, mut b) = join(Host::with(1, |init| init.cap.max_inline_data = max), Host::new(2), |_| {});
        assert_eq!(a.nic.query_qp(a.qpn).unwrap().1.cap.max_inline_data, max);
        let data = |n: u32| vec![7; n as usize];
        let op = SendOp::Write { va: b.va(0), rkey: b.mr.rkey, imm: None };
        a.send(SendWr::inline(1, op, data(max)).signaled());
        let error = PostError::TooMuchInline { given: max as usize + 1, max };
        assert_eq!(a.nic.post_send(NOW, a.qpn, SendWr::inline(2, op, data(max + 1))), Err(error));
        drive(&mut a, &mut b);
        assert_eq!(a.sends_done()[0].byte_len, max);
        assert_eq!(b.nic.mr_bytes(b.mr.lkey, 0, max as usize).unwrap(), data(max));
    }
}

#[test]
fn sizes_above_the_largest_are_refused() {
    let mut a = Host::new(1);
    let max = QpCap::MAX;
    for cap in [
        QpCap { max_inline_data: max.max_inline_data + 1, ..max },
        QpCap { max_send_wr: max.max_send_wr + 1, ..max },
        QpCap { max_recv_wr: max.max_recv_wr + 1, ..max },
        QpCap { max_send_sge: max.max_send_sge + 1, ..max },
        QpCap { max_recv_sge: max.max_recv_sge + 1, ..max },
    ] {
        let error = a.nic.create_qp(QpInit { cap, ..a.init }).unwrap_err();
        assert_eq!((error, error.errno()), (CreateError::Cap { max }, 22));
    }
    a.nic.create_qp(QpInit { cap: max, ..a.init }).unwrap();
    for depth in [0, super::super::MAX_CQE + 1] {
        let error = a.nic.create_cq(depth).unwrap_err();
        assert_eq!(error, CreateError::CqDepth { given: depth, max: super::super::MAX_CQE });
    }
    let error = a.nic.create_qp(QpInit { pd: transport::PdId(77), ..a.init }).unwrap_err();
    assert_eq!(error, CreateError::NoPd);
}

#[test]
fn a_pair_that_cannot_be_routed_stays_as_it_was() {
    let (mut a, b) = (Host::new(1), Host::new(2));
    let attr = a.attr(&b);
    a.bring(QpState::Init, &attr);
    let before = a.nic.query_qp(a.qpn);
    for dgid in [wire::Gid::ZERO, wire::Gid::new([0x20; 16])] {
        let mut bad = QpAttr { state: QpState::Rtr, ..attr };
        bad.addr.dgid = dgid;
        let error =
            a.nic.modify_qp(NOW, a.qpn, &bad, AttrMask::to_enter(QpType::Rc, QpState::Rtr)).unwrap_err();
        assert_eq!(error.errno(), 22);
        assert_eq!(a.nic.query_qp(a.qpn), before, "F33");
    }
}
