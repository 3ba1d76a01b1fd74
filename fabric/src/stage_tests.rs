use std::net::Ipv4Addr;

use proptest::prelude::*;
use wire::{NetHeader, Opcode, Operation, Psn};
use zerocopy::IntoBytes;

use super::*;
use crate::faults::FaultKind;

fn frame(qp: u32, psn: u32) -> Frame {
    let addr = |n| Ipv4Addr::new(10, 0, 0, n).into();
    let bth = Bth::new(Opcode::rc(Operation::SendOnly), Qpn::new(qp), Psn::new(psn));
    let mut body = bth.as_bytes().to_vec();
    body.extend([0; wire::icrc::ICRC_LEN]);
    Frame::new(NetHeader::v2(addr(1), addr(2), 49152, 0, 64).unwrap(), body)
}

fn psn(frame: &Frame) -> u32 {
    Bth::ref_from_prefix(&frame.body).unwrap().0.psn().value()
}

fn stage(faults: &[(FaultKind, &str)]) -> Stage {
    Stage::new(faults.iter().map(|(kind, argument)| FaultSpec::parse(*kind, argument).unwrap()), 0)
}

fn drain(stage: &mut Stage, now: Instant) -> Vec<u32> {
    std::iter::from_fn(|| stage.pop(now, Direction::Tx)).map(|frame| psn(&frame)).collect()
}

#[test]
fn a_reordered_packet_comes_behind_the_next_of_its_flow() {
    let mut stage = stage(&[(FaultKind::Reorder, "qp=1,psn=10")]);
    let now = Instant::from_micros(1);
    stage.push(now, Direction::Tx, frame(1, 10));
    stage.push(now, Direction::Tx, frame(2, 70));
    assert_eq!(drain(&mut stage, now), [70]);
    stage.push(now, Direction::Tx, frame(1, 11));
    stage.push(now, Direction::Tx, frame(1, 12));
    assert_eq!(drain(&mut stage, now), [11, 10, 12]);
    assert_eq!(stage.poll_timeout(Direction::Tx), None);
}

#[test]
fn a_reordered_packet_that_nothing_follows_goes_on_after_a_while() {
    let mut stage = stage(&[(FaultKind::Reorder, "1"), (FaultKind::Duplicate, "1")]);
    let now = Instant::from_micros(1);
    stage.push(now, Direction::Tx, frame(1, 10));
    assert_eq!(stage.poll_timeout(Direction::Tx), Some(now + MAX_HOLD));
    assert_eq!(drain(&mut stage, now), [0; 0]);
    assert_eq!(drain(&mut stage, now + MAX_HOLD), [10, 10]);
}

#[test]
fn a_delayed_packet_is_overtaken() {
    let mut stage = stage(&[(FaultKind::Delay, "psn=10:2ms")]);
    let now = Instant::ZERO;
    stage.push(now, Direction::Tx, frame(1, 10));
    stage.push(now, Direction::Tx, frame(1, 11));
    assert_eq!(drain(&mut stage, now), [11]);
    let due = now + Duration::from_millis(2);
    assert_eq!(stage.poll_timeout(Direction::Tx), Some(due));
    assert_eq!(drain(&mut stage, due), [10]);
}

#[test]
fn lost_copied_and_spoiled_packets_come_out_as_such() {
    let mut stage =
        stage(&[(FaultKind::Drop, "psn=1"), (FaultKind::Duplicate, "psn=2"), (FaultKind::Corrupt, "psn=3")]);
    for psn in 1..=4 {
        stage.push(Instant::ZERO, Direction::Tx, frame(1, psn));
    }
    let out: Vec<_> = std::iter::from_fn(|| stage.pop(Instant::ZERO, Direction::Tx)).collect();
    assert_eq!([&out[0], &out[1], &out[3]], [&frame(1, 2), &frame(1, 2), &frame(1, 4)]);
    assert_eq!(out.len(), 4);
    assert_ne!(out[2], frame(1, 3));
    assert_eq!(out[2].net, frame(1, 3).net);
}

#[test]
fn the_two_directions_do_not_mix() {
    let mut stage = stage(&[(FaultKind::Drop, "rx:1")]);
    stage.push(Instant::ZERO, Direction::Rx, frame(1, 1));
    stage.push(Instant::ZERO, Direction::Tx, frame(1, 2));
    assert_eq!(stage.pop(Instant::ZERO, Direction::Rx), None);
    assert_eq!(drain(&mut stage, Instant::ZERO), [2]);
    assert_eq!((stage.counts(Direction::Rx).dropped, stage.counts(Direction::Tx).dropped), (1, 0));
}

proptest! {
    #[test]
    fn only_drops_lose_packets(
        seed: u64, dup in 0.0..1.0_f64, reorder in 0.0..=1.0_f64, delay in 0.0..1.0_f64, n in 1_u32..60,
    ) {
        let chance = |kind, p| FaultSpec::chance(kind, Direction::Tx, p).unwrap();
        let mut stage = Stage::new([
            chance(FaultKind::Duplicate, dup),
            chance(FaultKind::Reorder, reorder),
            chance(FaultKind::Delay, delay).with_delay(Duration::from_micros(30)),
        ], seed);
        let mut out = Vec::new();
        let mut now = Instant::ZERO;
        for i in 0..n {
            stage.push(now, Direction::Tx, frame(i % 3, i));
            out.extend(drain(&mut stage, now));
            now += Duration::from_micros(10);
        }
        while let Some(at) = stage.poll_timeout(Direction::Tx) {
            prop_assert!(at + MAX_HOLD + MAX_HOLD > now, "left behind");
            now = now.max(at);
            out.extend(drain(&mut stage, now));
        }
        let copies = stage.counts(Direction::Tx).duplicated;
        prop_assert_eq!(out.len() as u64, u64::from(n) + copies);
        out.sort_unstable();
        out.dedup();
        prop_assert_eq!(out, (0..n).collect::<Vec<_>>());
    }
}
