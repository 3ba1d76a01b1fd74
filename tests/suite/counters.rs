//! Every counter and every reason of a drop, moved by a known number. A counter without a row here fails, as does
//! one that `docs/counters.md` does not explain.

use std::collections::BTreeSet;

use qp::{AttrMask, CcConfig, Counters, QpAttr, QpState, QpType, SendWr};
use transport::DropReason;
use wire::batch::{HeaderKnowledge, RxBurst};
use wire::opcode::Transport;
use wire::{
    Duration, NakCode, NetHeader, Opcode, Operation, PKey, Psn, QKey, Qpn, RKey, RnrTimer, Syndrome, VirtAddr,
};

use crate::harness::{Conn, Crafted, Lone};

/// What happens to a NIC on which nothing was counted before.
type Scenario = fn() -> Lone;

const SEQUENCE: Syndrome = Syndrome::Nak(NakCode::PsnSequenceError);
const INVALID: Syndrome = Syndrome::Nak(NakCode::InvalidRequest);
const ACCESS: Syndrome = Syndrome::Nak(NakCode::RemoteAccessError);

fn lone() -> Lone {
    Lone::new(Conn::default())
}

fn request(lone: &Lone, operation: Operation, n: u32) -> Crafted {
    Crafted::rc(operation, lone.qpn, Lone::psn(n)).ack_req()
}

fn send(lone: &Lone, n: u32) -> Crafted {
    request(lone, Operation::SendOnly, n).payload(b"data")
}

fn write(lone: &Lone, n: u32) -> Crafted {
    request(lone, Operation::WriteOnly, n).reth(lone.va(0), lone.mr.rkey, 4).payload(b"data")
}

fn read(lone: &Lone, n: u32) -> Crafted {
    request(lone, Operation::ReadRequest, n).reth(lone.va(0), lone.mr.rkey, 4)
}

fn add(lone: &Lone, n: u32) -> Crafted {
    request(lone, Operation::FetchAdd, n).atomic(lone.va(0), lone.mr.rkey, 1, 0)
}

fn uc(lone: &Lone, operation: Operation, n: u32) -> Crafted {
    let opcode = Opcode::new(Transport::Uc, operation).unwrap();
    Crafted::of(opcode, lone.qpn, Lone::psn(n)).payload(b"data")
}

/// A NIC that has taken `packets` and answered each.
fn took(mut lone: Lone, packets: impl Fn(&Lone) -> Vec<Crafted>) -> Lone {
    for packet in packets(&lone) {
        lone.answer(&[packet]);
    }
    lone
}

/// A NIC that has sent `n` SENDs and then got an answer to the `nth` of them.
fn answered(conn: Conn, n: u64, nth: u32, syndrome: Syndrome) -> Lone {
    let mut lone = Lone::new(conn);
    for id in 0..n {
        lone.post(SendWr::send(id, &[lone.sge(0, 16)]));
    }
    lone.sent();
    let psn = Psn::new(Lone::SQ_PSN).wrapping_add(nth);
    lone.inject(&[Crafted::acknowledge(lone.qpn, psn, syndrome, 0)]);
    lone
}

fn rnr() -> Syndrome {
    Syndrome::RnrNak(RnrTimer::new(1).unwrap())
}

/// A NIC whose ACK timer has run out `times` times.
fn timed_out(retry_cnt: u8, times: usize) -> Lone {
    let mut lone = Lone::new(Conn { retry_cnt, ..Conn::default() });
    lone.post(SendWr::send(1, &[lone.sge(0, 16)]));
    for _ in 0..times {
        lone.sent();
        lone.now = lone.nic.poll_timeout().unwrap();
        lone.nic.handle_timeout(lone.now);
    }
    lone
}

/// A NIC with two sends and three receives that enter ERR.
fn flushed() -> Lone {
    let mut lone = lone();
    for id in 0..2 {
        lone.post(SendWr::send(id, &[lone.sge(0, 16)]));
    }
    lone.post_recv(3, 64);
    lone.modify(&QpAttr { state: QpState::Err, ..QpAttr::default() }, AttrMask::STATE).unwrap();
    lone
}

/// A READ and a SEND, of which only the SEND was answered.
fn passed_over() -> Lone {
    let mut lone = lone();
    lone.post(SendWr::read(1, &[lone.sge(0, 16)], VirtAddr::new(0), RKey::new(7)));
    lone.post(SendWr::send(2, &[lone.sge(0, 16)]));
    lone.sent();
    lone.inject(&[Crafted::acknowledge(lone.qpn, Psn::new(Lone::SQ_PSN).wrapping_add(1), Syndrome::ACK, 2)]);
    lone
}

/// A NIC that got a SEND with one bit of its ICRC wrong, `times` times.
fn spoiled(times: usize) -> Lone {
    let mut lone = lone();
    let (net, mut body) = send(&lone, 0).finish(lone.peer_header);
    if let Some(last) = body.last_mut() {
        *last ^= 1;
    }
    for _ in 0..times {
        lone.inject_raw(net, &body);
    }
    lone
}

/// A receive of two bytes for a SEND of four.
fn too_long() -> Lone {
    let mut lone = lone();
    lone.post_recv(1, 2);
    took(lone, |lone| vec![send(lone, 0)])
}

fn id_unseen() -> Lone {
    let mut lone = lone();
    let (net, body) = send(&lone, 0).finish(lone.peer_header);
    let mut burst = RxBurst::new();
    burst.push(net.with_id(0x1234), HeaderKnowledge::Unknown, &body);
    lone.nic.handle_burst(lone.now, &burst);
    lone
}

fn controlled() -> Lone {
    let cc = CcConfig { algorithm: dcqcn::Algorithm::Dcqcn, ..CcConfig::default() };
    Lone::controlled(QpType::Rc, cc)
}

fn marked(mut lone: Lone) -> Lone {
    lone.peer_header = lone.peer_header.with_traffic_class(3);
    took(lone, |lone| vec![write(lone, 0), write(lone, 1)])
}

fn notified(lone: Lone) -> Lone {
    took(lone, |lone| {
        let cnp = Crafted::of(Opcode::CNP, lone.qpn, Psn::new(0)).payload(&[0; 16]);
        vec![cnp.clone().with(|bth| bth.with_congestion(false, true)), cnp]
    })
}

/// Each counter, how often it moves, and by what.
fn counters() -> Vec<(&'static str, u64, Scenario)> {
    vec![
        ("sent_pkts", 3, || {
            let mut lone = lone();
            lone.post(SendWr::send(1, &[lone.sge(0, 3000)]));
            assert_eq!(lone.sent().len(), 3);
            lone
        }),
        ("rcvd_pkts", 3, || {
            let lone = spoiled(2);
            took(lone, |lone| vec![write(lone, 0)])
        }),
        ("rx_write_requests", 2, || {
            took(lone(), |lone| {
                let first = request(lone, Operation::WriteFirst, 0).reth(lone.va(0), lone.mr.rkey, 1028);
                let last = request(lone, Operation::WriteLast, 1).payload(b"data");
                vec![first.payload(&[1; 1024]), last, write(lone, 2), write(lone, 2)]
            })
        }),
        ("rx_read_requests", 1, || took(lone(), |lone| vec![read(lone, 0), read(lone, 0)])),
        ("rx_atomic_requests", 1, || took(lone(), |lone| vec![add(lone, 0), add(lone, 0)])),
        ("out_of_buffer", 2, || took(lone(), |lone| vec![send(lone, 0), send(lone, 0)])),
        ("send_rnr_err", 2, || took(lone(), |lone| vec![send(lone, 0), send(lone, 0)])),
        ("out_of_sequence", 2, || took(lone(), |lone| vec![write(lone, 1), write(lone, 2)])),
        ("duplicate_request", 2, || {
            took(lone(), |lone| vec![write(lone, 0), write(lone, 0), read(lone, 1), read(lone, 1)])
        }),
        ("rnr_nak_retry_err", 2, || {
            let mut lone = answered(Conn::default(), 1, 0, rnr());
            lone.pass(Duration::from_micros(10));
            lone.inject(&[Crafted::acknowledge(lone.qpn, Psn::new(Lone::SQ_PSN), rnr(), 0)]);
            lone
        }),
        ("packet_seq_err", 1, || answered(Conn::default(), 2, 1, SEQUENCE)),
        ("implied_nak_seq_err", 1, passed_over),
        ("local_ack_timeout_err", 2, || timed_out(7, 2)),
        ("resp_local_length_error", 1, too_long),
        ("resp_cqe_error", 1, too_long),
        ("req_cqe_error", 1, || answered(Conn::default(), 3, 1, INVALID)),
        ("resp_cqe_flush_error", 3, flushed),
        ("req_cqe_flush_error", 2, flushed),
        ("req_remote_invalid_request", 1, || answered(Conn::default(), 2, 1, INVALID)),
        ("req_remote_access_errors", 1, || answered(Conn::default(), 2, 1, ACCESS)),
        ("resp_remote_access_errors", 1, || {
            took(lone(), |lone| vec![request(lone, Operation::ReadRequest, 0).reth(0, RKey::new(1), 4)])
        }),
        ("req_transport_retries_exceeded", 1, || timed_out(0, 1)),
        ("req_rnr_retries_exceeded", 1, || answered(Conn { rnr_retry: 0, ..Conn::default() }, 1, 0, rnr())),
        ("rx_icrc_encapsulated", 2, || spoiled(2)),
        ("rx_icrc_id_solved", 1, id_unseen),
        ("np_ecn_marked_roce_packets", 2, || marked(lone())),
        // Both marks come within the least time between CNPs.
        ("np_cnp_sent", 1, || marked(controlled())),
        ("rp_cnp_handled", 2, || notified(controlled())),
        ("rp_cnp_ignored", 2, || notified(lone())),
    ]
}

/// Each reason, how often it is counted, and for what.
fn drops() -> Vec<(DropReason, u64, Scenario)> {
    vec![
        (DropReason::Malformed, 1, || {
            took(lone(), |lone| vec![read(lone, 0).with(|bth| bth.with_pad_count(1))])
        }),
        (DropReason::UnknownOpcode, 1, || {
            took(lone(), |lone| vec![send(lone, 0).with(|bth| bth.with_opcode(Opcode::from_byte(0xFF)))])
        }),
        (DropReason::BadVersion, 1, || took(lone(), |lone| vec![send(lone, 0).with(|bth| bth.with_tver(2))])),
        (DropReason::NoSuchQp, 1, || {
            took(lone(), |lone| vec![send(lone, 0).with(|bth| bth.with_dest_qp(Qpn::new(5)))])
        }),
        (DropReason::WrongTransport, 1, || took(lone(), |lone| vec![uc(lone, Operation::SendOnly, 0)])),
        (DropReason::WrongHalf, 1, || {
            took(Lone::of_type(QpType::XrcIni, Conn::default()), |lone| {
                let opcode = Opcode::new(Transport::Xrc, Operation::SendOnly).unwrap();
                // Four bytes of XRCETH.
                vec![Crafted::of(opcode, lone.qpn, Lone::psn(0)).payload(&[0, 0, 0, 9])]
            })
        }),
        (DropReason::QpState, 2, || took(flushed(), |lone| vec![send(lone, 0), send(lone, 0)])),
        (DropReason::WrongAddress, 1, || {
            let mut lone = lone();
            if let NetHeader::V4(ip, _) = &mut lone.peer_header {
                ip.src = [10, 0, 0, 3].into();
            }
            took(lone, |lone| vec![send(lone, 0)])
        }),
        (DropReason::PKeyMismatch, 1, || {
            took(lone(), |lone| vec![send(lone, 0).with(|bth| bth.with_pkey(PKey::new(0x8001)))])
        }),
        (DropReason::QKeyMismatch, 1, || {
            took(Lone::of_type(QpType::Ud, Conn::default()), |lone| {
                let opcode = Opcode::new(Transport::Ud, Operation::SendOnly).unwrap();
                vec![Crafted::of(opcode, lone.qpn, Lone::psn(0)).deth(QKey::new(7), Lone::PEER)]
            })
        }),
        (DropReason::BadIcrc, 2, || spoiled(2)),
        (DropReason::OutOfSequence, 2, || {
            took(lone(), |lone| vec![write(lone, 1), write(lone, 2), write(lone, 1)])
        }),
        (DropReason::DuplicateUnknown, 1, || took(lone(), |lone| vec![write(lone, 0), add(lone, 0)])),
        (DropReason::DuplicatePending, 1, || {
            let mut lone = lone();
            let twice = [read(&lone, 0), read(&lone, 0)];
            lone.inject(&twice);
            lone
        }),
        (DropReason::GhostResponse, 1, || answered(Conn::default(), 1, 5, Syndrome::ACK)),
        (DropReason::ResponseOutOfOrder, 1, || {
            let mut lone = passed_over();
            let again = Psn::new(Lone::SQ_PSN).wrapping_add(1);
            lone.answer(&[Crafted::acknowledge(lone.qpn, again, Syndrome::ACK, 2)]);
            lone
        }),
        (DropReason::NoReceive, 1, || {
            took(Lone::of_type(QpType::Uc, Conn::default()), |lone| vec![uc(lone, Operation::SendOnly, 0)])
        }),
        (DropReason::BadRequest, 1, || {
            let mut lone = Lone::of_type(QpType::Uc, Conn::default());
            lone.post_recv(1, 2);
            took(lone, |lone| vec![uc(lone, Operation::SendOnly, 0)])
        }),
    ]
}

#[test]
fn every_counter_moves_by_the_right_number() {
    let rows = counters();
    for (name, _) in Counters::default().iter() {
        assert!(rows.iter().any(|row| row.0 == name), "no scenario moves {name}");
    }
    for (name, right, scenario) in rows {
        let lone = scenario();
        let found = lone.nic.counters().iter().find(|(counter, _)| *counter == name);
        assert_eq!(found, Some((name, right)));
    }
}

#[test]
fn every_reason_of_a_drop_is_counted() {
    let rows = drops();
    for reason in DropReason::ALL {
        assert!(rows.iter().any(|row| row.0 == *reason), "no scenario is dropped for {reason}");
    }
    for (reason, right, scenario) in rows {
        let drops = scenario().nic.drops().clone();
        assert_eq!((reason, drops.get(reason)), (reason, right));
        assert_eq!(drops.total(), right, "and nothing else is: {drops:?}");
    }
}

/// Every counter and reason has a row in the document, and nothing else has one.
#[test]
fn the_document_lists_them_all() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/counters.md");
    let text = std::fs::read_to_string(path).unwrap();
    let listed: BTreeSet<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split(" |").next())
        .filter(|name| !name.contains([' ', '-']) && name.starts_with(|c: char| c.is_ascii_lowercase()))
        .collect();
    let counters: Vec<_> = Counters::default().iter().map(|(name, _)| name).collect();
    let reasons = DropReason::ALL.iter().map(|reason| reason.name());
    assert_eq!(listed, counters.iter().copied().chain(reasons).collect());
}
