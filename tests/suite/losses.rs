//! One exchange of every operation, over and over: with each of its packets lost, doubled, late, out of turn or
//! spoiled, and with each two of them lost. What comes of it is always what came of it without any fault (rules
//! R-REQ-26 to R-REQ-29, R-CMP-3, R-CMP-22, R-RSP-4 to R-RSP-6, R-WIR-32).

use std::collections::BTreeSet;

use fabric::faults::{Address, PacketKind, PsnRule, When};
use fabric::{Direction, FaultKind, FaultSpec, TapPoint};
use qp::{MrInfo, RecvWr, SendWr, Sge};
use transport::{Access, Completion, DropReason};
use wire::{Duration, Packet, Psn, Qpn};

use crate::harness::{Conn, World, WorldConfig, seed};

const LEN: u32 = 16 << 10;
const TIMEOUT: u8 = 8;
/// What the compare-and-swap finds.
const COMPARE: u64 = u64::from_ne_bytes([0, 2, 4, 6, 8, 10, 12, 14]);

/// A packet that passed: its sender, and how a fault names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Named {
    host: usize,
    qp: Qpn,
    psn: u32,
    kind: PacketKind,
}

/// What came of an exchange.
#[derive(Debug, PartialEq)]
struct Outcome {
    sends: Vec<Completion>,
    receives: Vec<Completion>,
    memory: [Vec<u8>; 2],
}

fn sge(mr: &MrInfo, offset: u32, length: u32) -> Sge {
    Sge { addr: mr.addr.wrapping_add(offset.into()), length, lkey: mr.lkey }
}

/// Runs the exchange with these faults, each of the packet's n-th passing; what came of it, which packets passed, and whether a fault hit.
fn exchange(faults: &[(Named, FaultKind, u32)]) -> (Outcome, BTreeSet<Named>, u64) {
    // Exactly one of the PSNs wraps, in the middle.
    let conn = Conn { timeout: TIMEOUT, psns: [0xFF_FFF8, 5], ..Conn::default() };
    let (mut world, [a, b]) = World::pair(WorldConfig::new("losses", seed(3)), conn);
    if faults.is_empty() {
        world.net.record();
    } else {
        world.allow(&[
            DropReason::OutOfSequence,
            DropReason::DuplicateUnknown,
            DropReason::DuplicatePending,
            DropReason::GhostResponse,
            DropReason::ResponseOutOfOrder,
            DropReason::BadIcrc,
            DropReason::Malformed,
            DropReason::UnknownOpcode,
            DropReason::BadVersion,
            DropReason::NoSuchQp,
            DropReason::WrongTransport,
            DropReason::PKeyMismatch,
        ]);
    }
    for host in 0..2 {
        let specs = faults.iter().filter(|(named, ..)| named.host == host).map(|&(named, kind, pass)| {
            let psn = PsnRule::Absolute(Psn::new(named.psn));
            let address = Address { qp: Some(named.qp), psn, pass, kind: Some(named.kind) };
            let delay = Duration::from_micros(if kind == FaultKind::Delay { 50 } else { 0 });
            FaultSpec { kind, direction: Direction::Tx, when: When::At(address), delay }
        });
        world.net.set_faults(world.hosts[host].node, specs);
    }
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let [here, there] = [(a, 1_u8), (b, 2)].map(|(end, salt)| {
        let bytes = (0..=u8::MAX).cycle().map(|n| n.wrapping_mul(salt)).take(LEN as usize).collect();
        world.register(end.host, bytes, access)
    });
    let now = world.now;
    for n in 0..3 {
        let wr = RecvWr::new(n, &[sge(&there, 0, 2000), sge(&there, 4000, 2000)]);
        world.nic(b).post_recv(now, b.qpn, wr).expect("the post");
    }
    let va = |offset: u32| there.addr.wrapping_add(offset.into());
    let requests = [
        SendWr::send(0, &[sge(&here, 0, 2500)]),
        SendWr::write(1, &[sge(&here, 100, 2500)], va(8000), there.rkey),
        SendWr::read(2, &[sge(&here, 8000, 2500)], va(8000), there.rkey),
        SendWr::fetch_add(3, sge(&here, 12_000, 8), va(12_000), there.rkey, 3),
        SendWr::send_imm(4, &[sge(&here, 7, 33)], [1, 2, 3, 4]),
        SendWr::cmp_swap(5, sge(&here, 12_008, 8), va(12_032), there.rkey, COMPARE, 77),
        SendWr::write_imm(6, &[sge(&here, 8000, 2500)], va(13_000), there.rkey, [5, 6, 7, 8]).fenced(),
        SendWr::read(7, &[sge(&here, 13_000, 5)], va(12_000), there.rkey),
    ];
    for wr in requests {
        world.nic(a).post_send(now, a.qpn, wr.signaled()).expect("the post");
    }
    world.drive();
    let outcome = Outcome {
        sends: world.send_completions(a),
        receives: world.recv_completions(b),
        memory: [(a, here), (b, there)]
            .map(|(end, mr)| world.nic(end).mr_bytes(mr.lkey, 0, LEN as usize).expect("the region").to_vec()),
    };
    let passed = world.net.records().iter().filter(|record| record.point == TapPoint::Sent).map(|record| {
        let packet = Packet::parse_body(record.frame.net, &record.frame.body).expect("well formed");
        let request = packet.info().kind.is_request();
        Named {
            host: record.node.index(),
            qp: packet.bth().dest_qp(),
            psn: packet.bth().psn().value(),
            kind: if request { PacketKind::Request } else { PacketKind::Response },
        }
    });
    let passed = passed.collect();
    let counts = [0, 1].map(|host: usize| world.net.counts(world.hosts[host].node).tx_faults);
    let hits = counts.iter().map(|c| c.dropped + c.duplicated + c.corrupted + c.reordered + c.delayed).sum();
    (outcome, passed, hits)
}

#[test]
fn without_faults_all_of_it_succeeds() {
    let (outcome, passed, _) = exchange(&[]);
    let good = |wcs: &[Completion]| wcs.iter().all(|wc| wc.status == transport::WcStatus::Success);
    let swapped = &outcome.memory[0][12_008..12_016];
    assert_eq!(swapped, COMPARE.to_ne_bytes());
    assert!(good(&outcome.sends) && good(&outcome.receives), "{outcome:?}");
    assert_eq!((outcome.sends.len(), outcome.receives.len()), (8, 3));
    let requests = passed.iter().filter(|named| named.kind == PacketKind::Request).count();
    assert_eq!(requests, 3 + 3 + 1 + 1 + 1 + 1 + 3 + 1);
    assert!(passed.len() - requests >= 8, "{passed:?}");
}

#[test]
fn any_one_fault_is_repaired() {
    let (right, passed, _) = exchange(&[]);
    for kind in FaultKind::ALL {
        for named in &passed {
            let (outcome, _, hits) = exchange(&[(*named, kind, 1)]);
            assert_eq!(hits, 1, "{kind:?} of {named:?} did not happen");
            assert!(outcome == right, "{kind:?} of {named:?}");
        }
    }
}

#[test]
fn any_two_losses_are_repaired() {
    let (right, passed, _) = exchange(&[]);
    for first in &passed {
        for second in passed.range(first..).skip(1) {
            let (outcome, ..) = exchange(&[(*first, FaultKind::Drop, 1), (*second, FaultKind::Drop, 1)]);
            assert!(outcome == right, "loss of {first:?} and {second:?}");
        }
    }
}

#[test]
fn losing_a_packet_and_its_repeat_and_another_is_repaired() {
    let (right, passed, _) = exchange(&[]);
    for first in &passed {
        for other in passed.iter().filter(|other| *other != first) {
            let twice = [1, 2].map(|pass| (*first, FaultKind::Drop, pass));
            let (outcome, ..) = exchange(&[twice[0], twice[1], (*other, FaultKind::Drop, 1)]);
            assert!(outcome == right, "loss of {first:?} twice and of {other:?}");
        }
    }
}
