//! The table is held against a second list, written out here by attribute names and grouped the other way round.

use wire::num::Mtu;

use super::AttrMask as M;
use super::*;

/// What each transition needs and what else it takes, by type: independent of the rows in `table`.
fn expected(ty: QpType, from: QpState, to: QpState) -> Option<(M, M)> {
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    use QpType::{Gsi, Rc, Ud, XrcIni, XrcTgt};
    let datagram = matches!(ty, Ud | Gsi);
    // Reliable, and receiving or sending: RC is both.
    let reliable_rx = matches!(ty, Rc | XrcTgt);
    let reliable_tx = matches!(ty, Rc | XrcIni);
    let when = |on: bool, mask: M| if on { mask } else { M::empty() };
    let path_change = M::ALT_PATH | M::PATH_MIG_STATE;
    Some(match (from, to) {
        (_, Reset) => (M::empty(), M::empty()),
        (Init | Rtr | Rts | Sqd | Sqe | Err, Err) => (M::empty(), M::empty()),
        (Reset, Init) => (
            M::PKEY_INDEX | when(ty != Gsi, M::PORT) | if datagram { M::QKEY } else { M::ACCESS_FLAGS },
            M::empty(),
        ),
        (Init, Init) => (
            M::empty(),
            M::PKEY_INDEX | when(ty != Gsi, M::PORT) | if datagram { M::QKEY } else { M::ACCESS_FLAGS },
        ),
        (Init, Rtr) if datagram => (M::empty(), M::PKEY_INDEX | M::QKEY),
        (Init, Rtr) => (
            M::AV
                | M::PATH_MTU
                | M::DEST_QPN
                | M::RQ_PSN
                | when(reliable_rx, M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER),
            M::ALT_PATH | M::ACCESS_FLAGS | M::PKEY_INDEX,
        ),
        (Rtr, Rts) if datagram => (M::SQ_PSN, M::CUR_STATE | M::QKEY),
        (Rtr, Rts) => (
            M::SQ_PSN
                | when(reliable_tx, M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC)
                | when(ty == XrcTgt, M::TIMEOUT),
            M::CUR_STATE | M::ACCESS_FLAGS | path_change | when(reliable_rx, M::MIN_RNR_TIMER),
        ),
        (Rts, Rts) | (Sqd, Rts) if datagram => (M::empty(), M::CUR_STATE | M::QKEY),
        (Rts, Rts) | (Sqd, Rts) => {
            (M::empty(), M::CUR_STATE | M::ACCESS_FLAGS | path_change | when(reliable_rx, M::MIN_RNR_TIMER))
        }
        (Rts, Sqd) => (M::empty(), M::EN_SQD_ASYNC_NOTIFY),
        (Sqd, Sqd) if datagram => (M::empty(), M::PKEY_INDEX | M::QKEY),
        (Sqd, Sqd) => (
            M::empty(),
            M::AV
                | path_change
                | M::ACCESS_FLAGS
                | M::PKEY_INDEX
                | when(reliable_rx || reliable_tx, M::PORT | M::TIMEOUT)
                | when(reliable_tx, M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC)
                | when(reliable_rx, M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER),
        ),
        (Sqe, Rts) if datagram => (M::empty(), M::CUR_STATE | M::QKEY),
        (Sqe, Rts) if ty == QpType::Uc => (M::empty(), M::CUR_STATE | M::ACCESS_FLAGS),
        _ => return None,
    })
}

/// R-QPS-2 to R-QPS-8, R-QPS-19: all 294 pairs, each with every single attribute left out or put in.
/// Rules R-QPS-22, R-QPS-23, R-QPS-24, R-QPS-25.
#[test]
fn every_transition_takes_exactly_its_attributes() {
    let mut legal = 0;
    for ty in QpType::ALL {
        for from in QpState::ALL {
            for to in QpState::ALL {
                let Some((required, optional)) = expected(ty, from, to) else {
                    let error = check_transition(ty, from, to, M::STATE);
                    assert_eq!(error, Err(ModifyError::NoTransition { qp_type: ty, from, to }));
                    continue;
                };
                legal += 1;
                let context = format!("{ty} {from} to {to}");
                assert_eq!(check_transition(ty, from, to, required | M::STATE), Ok(()), "{context}");
                assert_eq!(check_transition(ty, from, to, required | optional), Ok(()), "{context}");
                for bit in (0..32).map(|bit| M::from_bits_retain(1 << bit)) {
                    let with = check_transition(ty, from, to, required | M::STATE | bit);
                    if (required | optional | M::STATE).contains(bit) {
                        assert_eq!(with, Ok(()), "{context} with {bit}");
                    } else {
                        let error = ModifyError::NotAllowed { qp_type: ty, from, to, extra: bit };
                        assert_eq!(with, Err(error), "{context} with {bit}");
                    }
                    if required.contains(bit) {
                        let error = ModifyError::Missing { qp_type: ty, from, to, missing: bit };
                        let without = check_transition(ty, from, to, (required | M::STATE) - bit);
                        assert_eq!(without, Err(error), "{context} without {bit}");
                    }
                }
            }
        }
    }
    for (from, to) in
        [(QpState::Reset, QpState::Init), (QpState::Init, QpState::Rtr), (QpState::Rtr, QpState::Rts)]
    {
        for ty in QpType::ALL {
            let (required, _) = expected(ty, from, to).unwrap();
            assert_eq!(M::to_enter(ty, to), required | M::STATE, "{ty} to {to}");
        }
    }
    assert_eq!(M::to_enter(QpType::Rc, QpState::Sqd), M::STATE);
    // Per type 7 to RESET and 6 to ERR; 8 more, and for three types SQE to RTS.
    assert_eq!(legal, 6 * (7 + 6 + 8) + 3);
}

/// R-QPS-1, R-QPS-15, R-QPS-18.
#[test]
fn numbers_are_those_of_verbs() {
    let states = ["RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"];
    for (number, name) in (0..).zip(states) {
        assert_eq!(QpState::from_number(number).unwrap().name(), name);
    }
    assert_eq!(QpState::from_number(7), None);
    for (number, ty) in [
        (1, QpType::Gsi),
        (2, QpType::Rc),
        (3, QpType::Uc),
        (4, QpType::Ud),
        (9, QpType::XrcIni),
        (10, QpType::XrcTgt),
    ] {
        assert_eq!(QpType::from_number(number), Ok(ty));
        assert_eq!(ty.number(), number);
    }
    for number in [0, 8, 255] {
        let error = QpType::from_number(number).unwrap_err();
        assert_eq!((error, error.errno()), (UnknownQpType(number), 95));
    }
    let bits: Vec<u32> = M::all().iter().map(|bit| bit.bits().trailing_zeros()).collect();
    assert_eq!(bits, (0..=20).chain([25]).collect::<Vec<_>>());
    assert_eq!((M::TIMEOUT | M::MIN_RNR_TIMER).bits(), 1 << 9 | 1 << 15);
}

fn limits() -> ModifyLimits {
    ModifyLimits {
        active_mtu: Mtu::B4096,
        max_rd_atomic: 16,
        max_dest_rd_atomic: 16,
        gid_table_len: 4,
        pkey_table_len: 1,
        ports: 1,
    }
}

/// An attribute set in which every field differs from the default, and all are legal.
fn values() -> QpAttr {
    let addr = AddressVector {
        dgid: wire::num::Gid::new([9; 16]),
        sgid_index: 1,
        hop_limit: 7,
        traffic_class: 106,
        flow_label: 5,
        sl: 3,
    };
    QpAttr {
        state: QpState::Rts,
        cur_state: QpState::Rts,
        en_sqd_async_notify: true,
        access: transport::Access::REMOTE_READ,
        pkey_index: 0,
        port: 1,
        qkey: wire::num::QKey::new(0x1234_5678),
        addr,
        path_mtu: Mtu::B4096,
        dest_qpn: wire::num::Qpn::new(0x77),
        rq_psn: wire::num::Psn::new(1),
        sq_psn: wire::num::Psn::new(2),
        max_rd_atomic: 16,
        max_dest_rd_atomic: 16,
        min_rnr_timer: rnr_timer(12).unwrap(),
        timeout: 31,
        retry_cnt: 7,
        rnr_retry: 7,
        alt_addr: addr,
        alt_pkey_index: 0,
        alt_port: 1,
        alt_timeout: 31,
        path_mig_state: PathMigState::Armed,
    }
}

fn rc_in(state: QpState) -> QpAttr {
    QpAttr { state, cur_state: state, ..QpAttr::default() }
}

const INIT: M = M::STATE.union(M::PKEY_INDEX).union(M::PORT).union(M::ACCESS_FLAGS);
const RTR: M = M::STATE
    .union(M::AV)
    .union(M::PATH_MTU)
    .union(M::DEST_QPN)
    .union(M::RQ_PSN)
    .union(M::MAX_DEST_RD_ATOMIC)
    .union(M::MIN_RNR_TIMER);
const RTS: M = M::STATE
    .union(M::TIMEOUT)
    .union(M::RETRY_CNT)
    .union(M::RNR_RETRY)
    .union(M::SQ_PSN)
    .union(M::MAX_QP_RD_ATOMIC);

/// The way every RC connection goes; at its end the query gives back what was set (R-QPS-16, F32).
#[test]
fn rc_goes_from_reset_to_rts_and_keeps_what_was_set() {
    let mut attr = QpAttr::default();
    for (state, mask) in [(QpState::Init, INIT), (QpState::Rtr, RTR), (QpState::Rts, RTS)] {
        let new = QpAttr { state, ..values() };
        attr = attr.modified(QpType::Rc, &new, mask, &limits()).unwrap();
        assert_eq!((attr.state, attr.cur_state), (state, state));
    }
    let expected = QpAttr {
        en_sqd_async_notify: false,
        qkey: wire::num::QKey::new(0),
        alt_addr: AddressVector::default(),
        alt_port: 0,
        alt_timeout: 0,
        path_mig_state: PathMigState::Migrated,
        ..values()
    };
    assert_eq!(attr, expected);
}

/// F33: in RTS a new timeout is refused, a new RNR timer taken.
#[test]
fn rts_takes_an_rnr_timer_and_refuses_a_timeout() {
    let old = rc_in(QpState::Rts);
    let error = old.modified(QpType::Rc, &values(), M::TIMEOUT, &limits()).unwrap_err();
    assert_eq!(error.errno(), 22);
    assert_eq!(error.to_string(), "RC RTS to RTS does not take TIMEOUT");
    for mask in [M::MIN_RNR_TIMER, M::MIN_RNR_TIMER | M::STATE | M::CUR_STATE] {
        let new = old.modified(QpType::Rc, &values(), mask, &limits()).unwrap();
        assert_eq!(new, QpAttr { min_rnr_timer: values().min_rnr_timer, ..old });
    }
}

/// F16, F31, F38, F39, R-QPS-14, R-QPS-17: one value too many in each attribute is EINVAL, its limit is not.
/// Rules R-ADR-2, R-ADR-15.
#[test]
fn values_above_their_limits_are_refused() {
    let at_limit = QpAttr { addr: AddressVector { sgid_index: 3, ..values().addr }, ..values() };
    let sqd = rc_in(QpState::Sqd);
    let all_of_sqd = M::PORT
        | M::AV
        | M::TIMEOUT
        | M::RETRY_CNT
        | M::RNR_RETRY
        | M::MAX_QP_RD_ATOMIC
        | M::MAX_DEST_RD_ATOMIC
        | M::ALT_PATH
        | M::PKEY_INDEX;
    assert!(sqd.modified(QpType::Rc, &at_limit, all_of_sqd, &limits()).is_ok());
    let addr = at_limit.addr;
    for (mask, bad) in [
        (M::RNR_RETRY, QpAttr { rnr_retry: 8, ..at_limit }),
        (M::RETRY_CNT, QpAttr { retry_cnt: 8, ..at_limit }),
        (M::TIMEOUT, QpAttr { timeout: 32, ..at_limit }),
        (M::MAX_QP_RD_ATOMIC, QpAttr { max_rd_atomic: 17, ..at_limit }),
        (M::MAX_DEST_RD_ATOMIC, QpAttr { max_dest_rd_atomic: 17, ..at_limit }),
        (M::PKEY_INDEX, QpAttr { pkey_index: 1, ..at_limit }),
        (M::PORT, QpAttr { port: 0, ..at_limit }),
        (M::PORT, QpAttr { port: 2, ..at_limit }),
        (M::AV, QpAttr { addr: AddressVector { sgid_index: 4, ..addr }, ..at_limit }),
        (M::AV, QpAttr { addr: AddressVector { flow_label: 1 << 20, ..addr }, ..at_limit }),
        (M::AV, QpAttr { addr: AddressVector { sl: 8, ..addr }, ..at_limit }),
        (M::ALT_PATH, QpAttr { alt_timeout: 32, ..at_limit }),
        (M::ALT_PATH, QpAttr { alt_port: 2, ..at_limit }),
        (M::ALT_PATH, QpAttr { alt_pkey_index: 1, ..at_limit }),
        (M::ALT_PATH, QpAttr { alt_addr: AddressVector { sgid_index: 4, ..addr }, ..at_limit }),
    ] {
        let error = sqd.modified(QpType::Rc, &bad, mask, &limits()).unwrap_err();
        assert_eq!(error.errno(), 22, "{error}");
        // The same value does no harm where the mask does not name it.
        assert!(sqd.modified(QpType::Rc, &bad, all_of_sqd - mask, &limits()).is_ok(), "{error}");
    }
    assert_eq!(rnr_timer(31).unwrap().code(), 31);
    assert_eq!(rnr_timer(32).unwrap_err().to_string(), "min_rnr_timer is 32, at most 31 is possible");
    let small = ModifyLimits { active_mtu: Mtu::B1024, ..limits() };
    let new = QpAttr { state: QpState::Rtr, ..values() };
    let error = rc_in(QpState::Init).modified(QpType::Rc, &new, RTR, &small).unwrap_err();
    assert_eq!(error.to_string(), "path_mtu is 4096, but the port's active MTU is 1024");
}

/// R-QPS-9: cur_state must be right.
#[test]
fn a_wrong_cur_state_is_refused() {
    let rts = rc_in(QpState::Rts);
    let sqd = rc_in(QpState::Sqd);
    let new = values();
    let mask = M::STATE | M::CUR_STATE;
    assert!(rts.modified(QpType::Rc, &new, mask, &limits()).is_ok());
    let error = sqd.modified(QpType::Rc, &new, mask, &limits()).unwrap_err();
    assert_eq!(error.to_string(), "cur_state is given as RTS, but the queue pair is in SQD");
}

/// R-QPS-2: what is wrong is named.
#[test]
fn errors_name_the_attributes() {
    let init = rc_in(QpState::Init);
    let new = QpAttr { state: QpState::Rtr, ..values() };
    let error = init.modified(QpType::Rc, &new, M::STATE | M::AV | M::PATH_MTU | M::RQ_PSN, &limits());
    assert_eq!(
        error.unwrap_err().to_string(),
        "RC INIT to RTR needs MIN_RNR_TIMER, MAX_DEST_RD_ATOMIC, DEST_QPN"
    );
    let error = init.modified(QpType::Rc, &QpAttr { state: QpState::Rts, ..new }, RTS, &limits());
    assert_eq!(error.unwrap_err().to_string(), "RC queue pairs cannot go from INIT to RTS");
    let unknown = M::from_bits_retain(RTR.bits() | 1 << 30);
    let error = init.modified(QpType::Rc, &new, unknown, &limits());
    assert_eq!(error.unwrap_err().to_string(), "RC INIT to RTR does not take unknown bits 0x40000000");
}

/// R-QPS-10 to R-QPS-12, R-ADM-5.
#[test]
fn each_state_permits_what_it_should() {
    use PostRule::{Flush, Queue, Refuse};
    for (state, send, recv, requests, responses, starts, continues) in [
        (QpState::Reset, Refuse, Refuse, false, false, false, false),
        (QpState::Init, Refuse, Queue, false, false, false, false),
        (QpState::Rtr, Refuse, Queue, true, false, false, false),
        (QpState::Rts, Queue, Queue, true, true, true, true),
        (QpState::Sqd, Queue, Queue, true, true, false, true),
        (QpState::Sqe, Flush, Queue, true, false, false, false),
        (QpState::Err, Flush, Flush, false, false, false, false),
    ] {
        assert_eq!(state.post_send(), send, "{state}");
        assert_eq!(state.post_recv(), recv, "{state}");
        assert_eq!(state.takes_requests(), requests, "{state}");
        assert_eq!(state.takes_responses(), responses, "{state}");
        assert_eq!(state.starts_requests(), starts, "{state}");
        assert_eq!(state.continues_requests(), continues, "{state}");
    }
}

/// The graph is drawn from the table: one solid edge for each legal transition.
#[test]
fn the_graph_has_every_transition() {
    for ty in QpType::ALL {
        let graph = dot(ty);
        for from in QpState::ALL {
            for to in QpState::ALL {
                let edges = graph
                    .lines()
                    .filter(|line| line.starts_with(&format!("    {from} -> {to}")))
                    .filter(|line| !line.contains("dashed"))
                    .count();
                assert_eq!(edges, usize::from(expected(ty, from, to).is_some()), "{ty} {from} {to}");
            }
        }
    }
    let ud = dot(QpType::Ud);
    assert!(ud.starts_with("digraph UD {\n    RESET -> RESET;\n"));
    assert!(ud.contains("\n    RESET -> INIT [label=\"PKEY_INDEX, PORT, QKEY\"];\n"));
    assert!(ud.contains("\n    RTS -> SQE [style=dashed, label=\"send error\"];\n"));
    assert!(dot(QpType::Rc).contains("\n    RTS -> ERR [style=dashed, label=\"send error\"];\n"));
    assert!(ud.ends_with("}\n"));
}

/// Rule R-QPS-26.
#[test]
fn a_state_of_migration_is_kept_and_nothing_more() {
    let rts = rc_in(QpState::Rts);
    let new = rts.modified(QpType::Rc, &values(), M::PATH_MIG_STATE, &limits()).unwrap();
    assert_eq!(new, QpAttr { path_mig_state: PathMigState::Armed, ..rts });
}
