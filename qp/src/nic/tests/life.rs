//! The life of a queue pair on a whole NIC: every transition, live changes, its end; and what the device tells of
//! itself.

use wire::{Gid, Mtu, Qpn};

use super::*;
use crate::error::{ModifyQpError, ResizeCqError};
use crate::pair::QpInit;
use crate::state::{AddressVector, ModifyError, PathMigState, QpType, check_transition};

/// The attributes that a transition of `qp_type` needs, found by asking for none.
fn needed(qp_type: QpType, from: QpState, to: QpState) -> AttrMask {
    match check_transition(qp_type, from, to, AttrMask::STATE) {
        Err(ModifyError::Missing { missing, .. }) => missing | AttrMask::STATE,
        _ => AttrMask::STATE,
    }
}

/// A host whose queue pair of `qp_type` is in `state`, with the attributes it got there by.
fn in_state(qp_type: QpType, state: QpState) -> Option<(Host, QpAttr)> {
    let mut a = Host::new(1);
    let init = match qp_type {
        QpType::XrcIni => QpInit::xrc_initiator(a.pd, a.send_cq),
        QpType::XrcTgt => QpInit::xrc_target(a.nic.alloc_xrcd()),
        _ => QpInit { qp_type, ..a.init },
    };
    a.qpn = a.nic.create_qp(init).unwrap();
    let attr = a.attr(&Host::new(2));
    let way = match state {
        QpState::Reset => &[][..],
        QpState::Init => &[QpState::Init],
        QpState::Rtr => &[QpState::Init, QpState::Rtr],
        QpState::Rts | QpState::Sqe => &[QpState::Init, QpState::Rtr, QpState::Rts],
        QpState::Sqd => &[QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd],
        QpState::Err => &[QpState::Init, QpState::Err],
    };
    let mut from = QpState::Reset;
    for to in way {
        let mask = needed(qp_type, from, *to);
        a.modify(*to, &attr, mask);
        from = *to;
    }
    if state == QpState::Sqe {
        if matches!(qp_type, QpType::Rc | QpType::XrcIni | QpType::XrcTgt) {
            return None;
        }
        // Only the device goes there: by a send whose memory is not there.
        let bad = Sge { lkey: LKey::new(0xBAD), ..a.sge(0, 8) };
        let mut wr = SendWr::send(1, &[bad]);
        if qp_type != QpType::Uc {
            let addr = AddressVector { dgid: Host::new(2).gid, ..AddressVector::default() };
            let ah = a.nic.create_ah(a.pd, addr).unwrap();
            wr = wr.to(ah, Qpn::new(0x11), wire::QKey::new(1));
        }
        a.send(wr);
        assert_eq!(a.transmit(), []);
        a.sends_done();
    }
    assert_eq!(a.state(), state, "{qp_type}");
    Some((a, attr))
}

/// Rules R-QPS-2, R-QPS-3: what the table allows happens, what it does not changes nothing.
#[test]
fn every_pair_of_states_of_every_type() {
    let (mut done, mut refused) = (0, 0);
    for qp_type in QpType::ALL {
        for from in QpState::ALL {
            for to in QpState::ALL {
                let Some((mut a, attr)) = in_state(qp_type, from) else { continue };
                let mask = needed(qp_type, from, to);
                let before = a.nic.query_qp(a.qpn);
                let result = a.nic.modify_qp(NOW, a.qpn, &QpAttr { state: to, ..attr }, mask);
                let allowed = check_transition(qp_type, from, to, mask).is_ok();
                assert_eq!(result.is_ok(), allowed, "{qp_type} {from} to {to}: {result:?}");
                if allowed {
                    assert_eq!(a.state(), to);
                    done += 1;
                } else {
                    assert_eq!((a.nic.query_qp(a.qpn), result.unwrap_err().errno()), (before, 22));
                    refused += 1;
                }
                // Whatever came before, it can begin anew.
                a.go(QpState::Reset);
                assert_eq!(a.state(), QpState::Reset);
            }
        }
    }
    // Per type 19, and the three ways out of SQE for those that have it.
    assert_eq!((done, done + refused), (6 * 19 + 3 * 3, 6 * 49 - 3 * 7));
}

/// F33: what a live connection may change counts at once.
#[test]
fn access_flags_of_a_live_connection_count_at_once() {
    let (mut a, mut b) = connected();
    let write = |a: &Host, b: &Host, id| SendWr::write(id, &[a.sge(0, 8)], b.va(0), b.mr.rkey).signaled();
    let wr = write(&a, &b, 1);
    a.send(wr);
    drive(&mut a, &mut b);
    assert_eq!(statuses(&a.sends_done()), [(1, WcStatus::Success)]);
    let none = QpAttr { access: transport::Access::empty(), ..QpAttr::default() };
    b.nic.modify_qp(NOW, b.qpn, &none, AttrMask::ACCESS_FLAGS).unwrap();
    let wr = write(&a, &b, 2);
    a.send(wr);
    drive(&mut a, &mut b);
    assert_eq!(statuses(&a.sends_done()), [(2, WcStatus::RemInvReqErr)]);
}

/// What SQD may change is used after it.
#[test]
fn a_drained_connection_takes_another_timeout_retry_count_and_way() {
    let (mut a, mut b) = connected();
    a.go(QpState::Sqd);
    let attr = a.attr(&b);
    let addr = AddressVector { traffic_class: 0x6A, hop_limit: 9, ..attr.addr };
    let new = QpAttr { timeout: 8, retry_cnt: 1, addr, ..attr };
    a.modify(QpState::Sqd, &new, AttrMask::TIMEOUT | AttrMask::RETRY_CNT | AttrMask::AV);
    a.go(QpState::Rts);
    a.send(SendWr::write(1, &[a.sge(0, 8)], b.va(0), b.mr.rkey));
    let sent = a.transmit();
    assert_eq!(sent[0].net.traffic_class(), 0x6A);
    assert_eq!(a.nic.poll_timeout(), Some(NOW + Duration::from_nanos((4096 << 8) / 4 * 5)));
    let mut again = 0;
    while let Some(now) = a.nic.poll_timeout() {
        a.nic.handle_timeout(now);
        again += a.transmit_at(now).len();
    }
    assert_eq!(again, 1);
    assert_eq!(statuses(&a.sends_done()), [(1, WcStatus::RetryExcErr)]);
    // Path MTU, PSNs and the peer are not among it.
    b.go(QpState::Sqd);
    for mask in [AttrMask::PATH_MTU, AttrMask::SQ_PSN, AttrMask::RQ_PSN, AttrMask::DEST_QPN] {
        let error = b.nic.modify_qp(NOW, b.qpn, &new, mask).unwrap_err();
        assert!(matches!(error, ModifyQpError::Attr(ModifyError::NotAllowed { .. })), "{error}");
    }
}

/// Rule R-QPS-26: an alternate path is kept and given back, and not used.
#[test]
fn an_alternate_path_is_kept_and_never_taken() {
    let (mut a, mut b) = connected();
    let alt_addr = AddressVector { dgid: Host::new(9).gid, ..AddressVector::default() };
    let new = QpAttr {
        alt_addr,
        alt_port: 1,
        alt_timeout: 3,
        path_mig_state: PathMigState::Armed,
        ..QpAttr::default()
    };
    a.nic.modify_qp(NOW, a.qpn, &new, AttrMask::ALT_PATH | AttrMask::PATH_MIG_STATE).unwrap();
    let attr = a.nic.query_qp(a.qpn).unwrap().0;
    assert_eq!((attr.alt_addr, attr.alt_timeout, attr.path_mig_state), (alt_addr, 3, PathMigState::Armed));
    a.send(SendWr::write(1, &[a.sge(0, 8)], b.va(0), b.mr.rkey).signaled());
    let sent = a.transmit();
    assert!(sent[0].bth.migreq(), "R-WIR-34");
    assert_eq!(sent[0].net.dst(), b.gid.ip());
    b.take(&sent);
    a.take(&b.transmit());
    assert_eq!(statuses(&a.sends_done()), [(1, WcStatus::Success)]);
}

/// Rule R-QPS-17.
/// Rule R-ADR-2.
#[test]
fn a_path_mtu_above_that_of_the_port_is_refused() {
    let mut a = Host::new(1);
    a.nic.config.active_mtu = Mtu::B1024;
    let attr = QpAttr { path_mtu: Mtu::B2048, state: QpState::Rtr, ..a.attr(&Host::new(2)) };
    a.bring(QpState::Init, &attr);
    let error = a.nic.modify_qp(NOW, a.qpn, &attr, AttrMask::to_enter(QpType::Rc, QpState::Rtr)).unwrap_err();
    assert_eq!((error.errno(), a.state()), (22, QpState::Init));
    assert_eq!(error.to_string(), "path_mtu is 2048, but the port's active MTU is 1024");
    a.modify(
        QpState::Rtr,
        &QpAttr { path_mtu: Mtu::B1024, ..attr },
        AttrMask::to_enter(QpType::Rc, QpState::Rtr),
    );
}

/// Packets to a queue pair that is gone find nobody, though another was made since.
/// Rule R-QPS-27.
#[test]
fn packets_to_a_former_queue_pair_do_not_reach_its_successor() {
    let (mut a, mut b) = connected();
    let former = b.qpn;
    a.send(SendWr::write(1, &[a.sge(0, 8)], b.va(0), b.mr.rkey));
    let late = a.transmit();
    b.nic.destroy_qp(b.qpn).unwrap();
    b.qpn = b.nic.create_qp(b.init).unwrap();
    assert_ne!(b.qpn, former);
    let attr = b.attr(&a);
    b.bring(QpState::Rts, &attr);
    b.take(&late);
    assert_eq!(b.dropped(), [(transport::DropReason::NoSuchQp, 1)]);
    assert_eq!((b.transmit(), b.nic.mr_bytes(b.mr.lkey, 0, 8).unwrap()), (vec![], &[2; 8][..]));
}

/// A connection to oneself: one queue pair asks and answers.
#[test]
fn a_queue_pair_connected_to_itself() {
    let mut a = Host::new(1);
    let attr = a.attr(&a);
    a.bring(QpState::Rts, &attr);
    a.recv(RecvWr::new(1, &[a.sge(4096, 3000)]));
    a.send(SendWr::send(2, &[a.sge(0, 3000)]).signaled());
    a.send(SendWr::write(3, &[a.sge(0, 8)], a.va(8192), a.mr.rkey).signaled());
    a.send(SendWr::read(4, &[a.sge(64, 8)], a.va(8192), a.mr.rkey).signaled());
    a.send(SendWr::fetch_add(5, a.sge(128, 8), a.va(8192), a.mr.rkey, 1).signaled());
    loop {
        let packets = a.transmit();
        if packets.is_empty() {
            break;
        }
        a.take(&packets);
    }
    let good = |ids: &[u64]| ids.iter().map(|id| (*id, WcStatus::Success)).collect::<Vec<_>>();
    assert_eq!(statuses(&a.sends_done()), good(&[2, 3, 4, 5]));
    assert_eq!(statuses(&a.receives_done()), good(&[1]));
    assert_eq!(a.dropped(), []);
}

/// Rules R-CQE-9, R-QPS-21.
#[test]
fn a_full_completion_queue_ends_its_queue_pairs_by_an_event_each() {
    let (mut a, b) = connected();
    let second = a.nic.create_qp(a.init).unwrap();
    let (first, attr) = (a.qpn, a.attr(&b));
    a.qpn = second;
    a.bring(QpState::Rts, &attr);
    a.qpn = first;
    a.nic.resize_cq(a.send_cq, 1).unwrap();
    for id in 0..3 {
        a.send(SendWr::write(id, &[a.sge(0, 8)], b.va(0), b.mr.rkey));
    }
    a.go(QpState::Err);
    let events = [AsyncEvent::CqErr(a.send_cq), AsyncEvent::QpFatal(second)];
    assert_eq!(a.events(), events.map(Event::Async));
    assert_eq!(statuses(&a.sends_done()), flushed([0]));
    a.qpn = second;
    assert_eq!(a.state(), QpState::Err);
}

/// Rule R-CQE-18.
#[test]
fn completion_queues_are_resized_within_limits() {
    let (mut a, b) = connected();
    for id in 0..3 {
        a.send(SendWr::write(id, &[a.sge(0, 8)], b.va(0), b.mr.rkey));
    }
    a.go(QpState::Err);
    let cq = a.send_cq;
    for (id, depth, error) in [
        (crate::cq::CqId(99), 8, ResizeCqError::NoSuchCq),
        (cq, 0, ResizeCqError::Depth { given: 0, max: super::super::MAX_CQE }),
        (cq, usize::MAX, ResizeCqError::Depth { given: usize::MAX, max: super::super::MAX_CQE }),
        (cq, 2, ResizeCqError::TooSmall { given: 2, waiting: 3 }),
    ] {
        let refused = a.nic.resize_cq(id, depth).unwrap_err();
        assert_eq!((refused, refused.errno()), (error, 22));
    }
    a.nic.resize_cq(cq, 3).unwrap();
    assert_eq!(statuses(&a.sends_done()), flushed(0..3));
}

/// Rules R-CQE-13, R-CQE-19.
#[test]
fn the_owner_of_a_device_tells_of_its_port() {
    let mut a = Host::new(1);
    let gids = vec![a.gid, Gid::from(std::net::Ipv4Addr::new(192, 0, 2, 77))];
    for _ in 0..2 {
        a.nic.set_port_active(false);
        a.nic.set_gids(gids.clone());
        a.nic.fail_device();
    }
    assert!(!a.nic.port_is_active());
    a.nic.set_port_active(true);
    let events =
        [AsyncEvent::PortErr, AsyncEvent::GidChange, AsyncEvent::DeviceFatal, AsyncEvent::PortActive];
    assert_eq!(a.events(), events.map(Event::Async));
    // The new address can be used at once.
    let addr = AddressVector { dgid: Host::new(2).gid, sgid_index: 1, ..AddressVector::default() };
    assert!(a.nic.create_ah(a.pd, addr).is_ok());
}
