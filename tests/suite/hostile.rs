//! Packets that no honest peer sends: a million of random bytes, and a million made from real ones, nearly all of them
//! with a right ICRC and aimed at a live queue pair close to the PSN that it expects.
//!
//! Nothing may panic; each packet is accepted, answered with a NAK, or dropped for one counted reason; memory that
//! peers may not write stays as it is; and a connection beside the ones under attack goes on working.

use std::collections::BTreeMap;
use std::io::Write as _;

use rand_core::{RngCore, SeedableRng};
use rand_pcg::Pcg64Mcg;
use transport::DropReason;
use wire::{NakCode, Syndrome};

use crate::harness;

mod craft;
mod healthy;
mod target;

use craft::{Crafter, Packet};
use target::{Fate, Targets};

const RANDOM: usize = 1_000_000;
const MUTATED: usize = 1_000_000;
/// Packets between two looks at the memory and the connection beside.
const CHECK_EVERY: usize = 25_000;

/// What came of the packets.
#[derive(Default)]
struct Histogram {
    accepted: u64,
    aimed: u64,
    /// Syndromes that were sent, ACKs as one.
    answers: BTreeMap<String, u64>,
}

impl Histogram {
    fn answer(&mut self, syndrome: Syndrome) {
        let name = match syndrome {
            Syndrome::Ack(_) => "ack".to_owned(),
            Syndrome::RnrNak(_) => "rnr_nak".to_owned(),
            Syndrome::Nak(code) => format!("nak_{code}"),
            Syndrome::Reserved(byte) => panic!("a reserved syndrome was sent: {byte:#x}"),
        };
        *self.answers.entry(name).or_default() += 1;
    }

    fn print(&self, title: &str, sent: usize, drops: &BTreeMap<DropReason, u64>) {
        let mut text = format!("{title}: {sent} packets, {} accepted\n", self.accepted);
        for (name, count) in &self.answers {
            text += &format!("  answered {name:<20} {count:>8}\n");
        }
        for (reason, count) in drops {
            text += &format!("  dropped {:<21} {count:>8}\n", reason.name());
        }
        // Straight to the stream: what is printed with the macros, a passing test does not show.
        std::io::stderr().write_all(text.as_bytes()).unwrap();
    }
}

/// F2, F3, R-ADM-10, R-WIR-16, R-RSP-47.
#[test]
fn nothing_that_arrives_does_harm() {
    let seed = harness::seed(0x5EED);
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let crafter = Crafter::new();
    let mut targets = Targets::new();
    let mut all = BTreeMap::new();
    let mut answers = BTreeMap::new();
    for (title, count) in [("random", RANDOM), ("mutated", MUTATED)] {
        let mut histogram = Histogram::default();
        let before = targets.drops();
        for n in 0..count {
            let packet = match title {
                "random" => crafter.random(&mut random, &targets),
                _ => crafter.mutated(&mut random, &targets),
            };
            one(&mut targets, &packet, &mut histogram);
            // Answers wait for a while, so that requests meet them in the queue; but a NAK that ends a queue pair is
            // sent before that is set up again.
            if random.next_u32() % 3 == 0 || packet.target.is_some_and(|index| targets.has_ended(index)) {
                targets.drain(|syndrome| histogram.answer(syndrome));
            }
            if n % CHECK_EVERY == 0 {
                targets.check();
            }
        }
        targets.drain(|syndrome| histogram.answer(syndrome));
        targets.check();
        let drops = difference(&before, &targets.drops());
        histogram.print(title, count, &drops);
        assert_eq!(histogram.accepted + drops.values().sum::<u64>(), count as u64, "FERROCE_SEED={seed}");
        if title == "mutated" {
            let share = histogram.aimed * 100 / count as u64;
            assert!(share >= 90, "only {share} % were aimed at a live queue pair; FERROCE_SEED={seed}");
        }
        for (reason, count) in drops {
            *all.entry(reason).or_insert(0) += count;
        }
        for (name, count) in histogram.answers {
            *answers.entry(name).or_insert(0) += count;
        }
    }
    for reason in DropReason::ALL {
        assert!(all.get(reason).is_some_and(|n| *n > 0), "{reason} never occurred; FERROCE_SEED={seed}");
    }
    for operation in ["ATOMIC_WRITE", "FLUSH", "INVALIDATION"] {
        for fate in [Fate::Done, Fate::Refused] {
            let count = targets.rare.get(&(operation, fate)).copied().unwrap_or(0);
            assert!(count > 0, "{operation} was never {fate:?}; FERROCE_SEED={seed}");
        }
    }
    let naks = [NakCode::PsnSequenceError, NakCode::InvalidRequest, NakCode::RemoteAccessError];
    for name in
        naks.map(|code| format!("nak_{code}")).into_iter().chain(["rnr_nak".to_owned(), "ack".to_owned()])
    {
        assert!(answers.contains_key(&name), "{name} was never sent; FERROCE_SEED={seed}");
    }
}

/// One packet: dropped for one reason, or accepted; and accepted only where it had the right to be.
fn one(targets: &mut Targets, packet: &Packet, histogram: &mut Histogram) {
    let dropped = targets.receive(packet);
    assert!(dropped <= 1, "one packet was dropped {dropped} times: {packet:?}");
    histogram.aimed += u64::from(packet.aimed);
    if dropped == 0 {
        histogram.accepted += 1;
        assert!(targets.may_accept(packet), "accepted: {packet:?}");
    }
}

fn difference(
    before: &BTreeMap<DropReason, u64>,
    after: &BTreeMap<DropReason, u64>,
) -> BTreeMap<DropReason, u64> {
    let grown = |(reason, count): (&DropReason, &u64)| (*reason, count - before.get(reason).unwrap_or(&0));
    after.iter().map(grown).filter(|(_, count)| *count > 0).collect()
}
