//! What a packet costs each side, apart from I/O: the sender's share until it lies in a batch with its ICRC, the
//! receiver's until its bytes are in place, answers counted in. Beside it what copy and ICRC alone cost, which no
//! engine can do without.

use std::time::Instant;

use ferroce_qp::{QpCap, QpType};
use wire::batch::{Caps, HeaderKnowledge, IpIdRule, RxBurst, TxBatch};
use wire::{Mtu, NetHeader, icrc};

use crate::link::{Link, Pair, Work};
use crate::report::{Table, rows};

/// As segmentation offload of UDP sockets has it.
const CAPS: Caps = Caps {
    max_segments: 64,
    max_bytes: 65_507,
    ip_id: IpIdRule::BasePlusIndex,
    sees_ip_header: true,
    window: 256,
    credit: 1024,
    src_port: Some(4791),
};

/// One kind of work: so many messages of so many bytes are posted at a time, on each of so many queue pairs.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    work: Work,
    length: u32,
    each: u64,
    pairs: usize,
}

pub(crate) const CASES: [Case; 9] = [
    Case { name: "write-1m", work: Work::Write, length: 1 << 20, each: 2, pairs: 1 },
    Case { name: "write-4k", work: Work::Write, length: 4096, each: 64, pairs: 1 },
    Case { name: "write-64", work: Work::Write, length: 64, each: 64, pairs: 1 },
    Case { name: "write-64-16qp", work: Work::Write, length: 64, each: 16, pairs: 16 },
    Case { name: "read-1m", work: Work::Read, length: 1 << 20, each: 2, pairs: 1 },
    Case { name: "read-4k", work: Work::Read, length: 4096, each: 16, pairs: 1 },
    Case { name: "fetch-add", work: Work::FetchAdd, length: 8, each: 16, pairs: 1 },
    Case { name: "send-1m", work: Work::Send, length: 1 << 20, each: 2, pairs: 1 },
    Case { name: "send-64", work: Work::Send, length: 64, each: 64, pairs: 1 },
];

/// Nanoseconds of both ends, and what they carried.
#[derive(Clone, Copy, Default)]
struct Spent {
    near: u128,
    far: u128,
    batches: u64,
}

/// Does `work`, and adds the time that it takes to `spent`.
#[expect(clippy::disallowed_methods, reason = "a benchmark has to look at the clock")]
fn clocked<T>(spent: &mut u128, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = work();
    *spent += start.elapsed().as_nanos();
    result
}

struct World {
    link: Link,
    pairs: Vec<Pair>,
    case: Case,
    tx: TxBatch,
    rx: RxBurst,
}

impl World {
    fn new(case: Case) -> Self {
        let mut link = Link::with(CAPS, Mtu::B4096);
        let pairs = (0..case.pairs).map(|_| link.connect(QpType::Rc, QpCap::default())).collect();
        Self { link, pairs, case, tx: TxBatch::new(), rx: RxBurst::new() }
    }

    /// Posts, carries and reaps one round of messages.
    fn round(&mut self) -> Spent {
        let mut spent = Spent::default();
        clocked(&mut spent.near, || {
            for pair in &self.pairs {
                self.link.post(*pair, self.case.work, self.case.length, self.case.each);
            }
        });
        loop {
            let there = self.carry(true, &mut spent);
            let back = self.carry(false, &mut spent);
            if !there && !back {
                break;
            }
        }
        let done = clocked(&mut spent.near, || self.link.reap());
        assert_eq!(done, self.case.each * self.case.pairs as u64);
        spent
    }

    /// Carries all that one end may send, each batch as a burst of the other's.
    fn carry(&mut self, there: bool, spent: &mut Spent) -> bool {
        let Self { link, tx, rx, .. } = self;
        let (from, to) =
            if there { (&mut link.near, &mut link.far) } else { (&mut link.far, &mut link.near) };
        let (mut sending, mut taking, mut batches) = (0, 0, 0);
        loop {
            if !clocked(&mut sending, || from.nic.poll_transmit(link.now, tx)) {
                break;
            }
            batches += 1;
            rx.clear();
            for (net, body) in tx.iter() {
                rx.push(net, HeaderKnowledge::Seen, body);
            }
            clocked(&mut taking, || to.nic.handle_burst(link.now, rx));
        }
        let (near, far) = if there { (sending, taking) } else { (taking, sending) };
        spent.near += near;
        spent.far += far;
        spent.batches += batches;
        batches > 0
    }
}

/// Does a fixed amount of one kind of work: for counting instructions.
pub(crate) fn fixed(name: &str, rounds: u64) {
    let case = CASES.into_iter().find(|case| case.name == name).expect("a case by this name");
    let mut world = World::new(case);
    let before = world.link.packets();
    (0..rounds).for_each(|_| {
        world.round();
    });
    println!("{name}: {} packets", world.link.packets() - before);
}

/// Median nanoseconds per data packet of each side, and packets per batch.
pub(crate) fn sides(measurements: usize) -> Vec<Table> {
    let mut tables = Vec::new();
    let mut worlds: Vec<_> = CASES.into_iter().map(World::new).collect();
    let mut found = vec![Vec::new(); worlds.len()];
    let rounds = if measurements > 1 { 40 } else { 1 };
    for turn in 0..=measurements {
        for (world, found) in worlds.iter_mut().zip(&mut found) {
            let before = world.link.packets();
            let mut sum = Spent::default();
            for _ in 0..rounds {
                let spent = world.round();
                sum.near += spent.near;
                sum.far += spent.far;
                sum.batches += spent.batches;
            }
            let case = world.case;
            let data = u64::from(case.length.div_ceil(4096)) * case.each * case.pairs as u64 * rounds;
            let all = world.link.packets() - before;
            if turn > 0 {
                let per = |n: u128| n as f64 / data as f64;
                found.push([
                    per(sum.near),
                    per(sum.far),
                    all as f64 / sum.batches as f64,
                    (all - data) as f64 / data as f64,
                ]);
            }
        }
    }
    let column = |i: usize| -> Vec<(&'static str, f64)> {
        let medians = CASES.iter().zip(&found).map(|(case, found)| {
            let mut values: Vec<f64> = found.iter().map(|row| row[i]).collect();
            values.sort_by(f64::total_cmp);
            (case.name, values[values.len() / 2])
        });
        medians.collect()
    };
    for (i, name, unit) in [
        (0, "near end, by data packet", "ns"),
        (1, "far end, by data packet", "ns"),
        (2, "packets of a batch, answers too", "1"),
        (3, "other packets, by data packet", "1"),
    ] {
        tables.push(Table { name, unit, rows: rows(column(i)) });
    }
    tables.push(Table { name: "copy and ICRC alone, by packet", unit: "ns", rows: rows(bare(measurements)) });
    tables
}

/// What copying and ICRC cost without an engine: the sender's, into a batch, and the receiver's.
fn bare(measurements: usize) -> [(&'static str, f64); 4] {
    let [a, b] = [4096, 64].map(|length: usize| {
        let (from, mut to) = (vec![1_u8; 1 << 20], vec![2_u8; 1 << 20]);
        let (mut tx, mut rx) = (TxBatch::new(), RxBurst::new());
        let net =
            NetHeader::v2([192, 0, 2, 1].into(), [192, 0, 2, 2].into(), 4791, 0, 64).expect("one family");
        let most = if length == 64 { 64 } else { 15 };
        let mut samples = Vec::new();
        for _ in 0..=measurements * 20 {
            let (mut sending, mut taking, mut n) = (0, 0, 0_u64);
            for run in from
                .chunks_exact(length)
                .zip(to.chunks_exact_mut(length))
                .collect::<Vec<_>>()
                .chunks_mut(most)
            {
                clocked(&mut sending, || {
                    tx.begin(net, &CAPS, 0);
                    for (from, _) in run.iter() {
                        tx.push(12 + length + 4)[12..12 + length].copy_from_slice(from);
                    }
                    tx.seal();
                });
                rx.clear();
                for (net, body) in tx.iter() {
                    rx.push(net, HeaderKnowledge::Seen, body);
                }
                clocked(&mut taking, || {
                    for ((packet, body), (_, to)) in rx.iter().zip(run) {
                        assert!(icrc::verify(&packet.net, body));
                        to.copy_from_slice(&body[12..12 + length]);
                        n += 1;
                    }
                });
            }
            samples.push((sending as f64 / n as f64, taking as f64 / n as f64));
        }
        let median = |pick: fn(&(f64, f64)) -> f64| {
            let mut values: Vec<f64> = samples.iter().map(pick).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        (median(|s| s.0), median(|s| s.1))
    });
    [
        ("4096 bytes, sent", a.0),
        ("4096 bytes, received", a.1),
        ("64 bytes, sent", b.0),
        ("64 bytes, received", b.1),
    ]
}
