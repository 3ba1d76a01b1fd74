use std::net::Ipv4Addr;

use proptest::prelude::*;
use wire::{Opcode, Operation, icrc};
use zerocopy::IntoBytes;

use super::*;

fn header() -> NetHeader {
    let addr = |n| Ipv4Addr::new(10, 0, 0, n).into();
    NetHeader::v2(addr(1), addr(2), 49152, 0, 64).unwrap()
}

fn body(operation: Operation, qp: u32, psn: u32) -> Vec<u8> {
    let bth = wire::Bth::new(Opcode::rc(operation), Qpn::new(qp), Psn::new(psn));
    let mut body = bth.as_bytes().to_vec();
    body.resize(body.len() + bth.opcode().info().unwrap().headers_len + icrc::ICRC_LEN, 0);
    body
}

fn send(injector: &mut Injector, direction: Direction, qp: u32, psn: u32) -> Verdict {
    injector.decide(direction, &header(), &body(Operation::SendOnly, qp, psn))
}

fn spec(kind: FaultKind, argument: &str) -> FaultSpec {
    FaultSpec::parse(kind, argument).unwrap()
}

#[test]
fn an_addressed_drop_hits_the_nth_passing_of_one_psn_of_one_queue_pair() {
    let mut injector = Injector::new([spec(FaultKind::Drop, "qp=17,psn=+2,pass=2")], 0);
    let mut dropped = Vec::new();
    for pass in 1..=3 {
        for psn in [0xFF_FFFF, 0, 1, 2] {
            for qp in [17, 18] {
                for direction in [Direction::Tx, Direction::Rx] {
                    if send(&mut injector, direction, qp, psn).drop {
                        dropped.push((pass, psn, qp, direction));
                    }
                }
            }
        }
    }
    assert_eq!(dropped, [(2, 1, 17, Direction::Tx)]);
    assert_eq!(injector.counts(Direction::Tx), FaultCounts { packets: 24, dropped: 1, ..Default::default() });
    assert_eq!(injector.counts(Direction::Rx), FaultCounts { packets: 24, ..Default::default() });
}

#[test]
fn requests_and_responses_to_one_queue_pair_have_their_own_first_psn() {
    let mut injector = Injector::new([spec(FaultKind::Drop, "psn=+1,kind=resp")], 0);
    let mut decide =
        |operation, psn| injector.decide(Direction::Tx, &header(), &body(operation, 5, psn)).drop;
    assert!(!decide(Operation::SendOnly, 100));
    assert!(!decide(Operation::Acknowledge, 500));
    assert!(!decide(Operation::SendOnly, 101));
    assert!(decide(Operation::Acknowledge, 501));
}

#[test]
fn an_address_without_a_queue_pair_counts_passes_of_each() {
    let mut injector = Injector::new([spec(FaultKind::Duplicate, "rx:psn=9,pass=2")], 0);
    let hits: Vec<_> =
        [1, 2, 2, 1, 1].map(|qp| send(&mut injector, Direction::Rx, qp, 9).duplicate).into_iter().collect();
    assert_eq!(hits, [false, false, true, true, false]);
}

#[test]
fn several_faults_may_hit_one_packet_but_a_drop_is_all_there_is() {
    let all = |drop| {
        let mut specs = vec![
            spec(FaultKind::Duplicate, "1"),
            spec(FaultKind::Corrupt, "1"),
            spec(FaultKind::Reorder, "1"),
            spec(FaultKind::Delay, "2ms"),
            spec(FaultKind::Delay, "1ms"),
        ];
        specs.extend(drop);
        let mut injector = Injector::new(specs, 1);
        (send(&mut injector, Direction::Tx, 1, 1), injector.counts(Direction::Tx))
    };
    let (verdict, counts) = all(None);
    assert!(verdict.duplicate && verdict.reorder && verdict.corrupt.is_some() && !verdict.drop);
    assert_eq!(verdict.delay, Duration::from_millis(3));
    assert_eq!((counts.duplicated, counts.corrupted, counts.reordered, counts.delayed), (1, 1, 1, 1));
    let (verdict, counts) = all(Some(spec(FaultKind::Drop, "1")));
    assert_eq!(verdict, Verdict { drop: true, ..Verdict::default() });
    assert_eq!(counts, FaultCounts { packets: 1, dropped: 1, ..Default::default() });
}

#[test]
fn malformed_packets_have_no_address_but_still_meet_chance() {
    let specs = [spec(FaultKind::Drop, "psn=0"), spec(FaultKind::Corrupt, "1")];
    let mut injector = Injector::new(specs, 0);
    for body in [&[][..], &[0; 3], &[0xFF; 40]] {
        let verdict = injector.decide(Direction::Tx, &header(), body);
        assert!(!verdict.drop);
        assert_eq!(verdict.corrupt.is_some(), !body.is_empty());
    }
}

#[test]
fn a_chance_is_met_about_as_often_as_it_says() {
    let mut injector = Injector::new([spec(FaultKind::Drop, "5%"), spec(FaultKind::Drop, "rx:0")], 42);
    for psn in 0..20_000 {
        send(&mut injector, Direction::Tx, 1, psn);
        send(&mut injector, Direction::Rx, 1, psn);
    }
    let dropped = injector.counts(Direction::Tx).dropped;
    assert!((900..1100).contains(&dropped), "{dropped} of 20000");
    assert_eq!(injector.counts(Direction::Rx).dropped, 0);
}

#[test]
fn one_direction_does_not_change_the_luck_of_the_other() {
    let specs = || [spec(FaultKind::Drop, "tx:30%"), spec(FaultKind::Drop, "rx:30%")];
    let (mut alone, mut mixed) = (Injector::new(specs(), 7), Injector::new(specs(), 7));
    for psn in 0..200 {
        send(&mut mixed, Direction::Rx, 1, psn);
        assert_eq!(send(&mut alone, Direction::Tx, 1, psn), send(&mut mixed, Direction::Tx, 1, psn));
    }
}

proptest! {
    #[test]
    fn the_same_seed_gives_the_same_verdicts_and_another_seed_others(seed: u64) {
        let run = |seed| {
            let specs = FaultKind::ALL.map(|kind| FaultSpec::chance(kind, Direction::Tx, 0.5).unwrap());
            let mut injector = Injector::new(specs, seed);
            (0..64).map(|psn| send(&mut injector, Direction::Tx, 1, psn)).collect::<Vec<_>>()
        };
        prop_assert_eq!(run(seed), run(seed));
        prop_assert_ne!(run(seed), run(seed ^ 1));
    }

    #[test]
    fn a_flipped_bit_always_breaks_the_icrc(seed: u64, payload in 0_usize..64) {
        let mut injector = Injector::new([spec(FaultKind::Corrupt, "1")], seed);
        let mut good = body(Operation::SendOnly, 1, 1);
        good.resize(good.len() + payload, 0xA5);
        let net = header().with_transport_len(good.len());
        icrc::fill(&net, &mut good);
        let verdict = injector.decide(Direction::Tx, &net, &good);
        let mut bad = good.clone();
        verdict.corrupt_body(&mut bad);
        let flipped: u32 = good.iter().zip(&bad).map(|(a, b)| (a ^ b).count_ones()).sum();
        prop_assert_eq!(flipped, 1);
        prop_assert!(icrc::verify(&net, &good) && !icrc::verify(&net, &bad));
    }
}
