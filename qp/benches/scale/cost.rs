//! What a packet costs both NICs together, beside more and more of what they hold.

use std::collections::VecDeque;

use ferroce_qp::{Access, MrInfo, QpCap, QpType};
use rustix::time::{ClockId, clock_gettime};
use wire::batch::{RxBurst, TxBatch};

use crate::Effort;
use crate::link::{Link, Pair, Work, take_batch};
use crate::report::{Row, Table, compare};

/// Messages that are posted at once; a burst of a device's.
const BURST: usize = 32;
const SMALL: u32 = 64;

/// Nanoseconds that this thread has worked: what others do meanwhile does not count.
fn worked() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// Labels `counts` and makes a world of each.
fn worlds<W>(counts: &[usize], make: impl Fn(usize) -> W) -> Vec<(String, W)> {
    counts.iter().map(|&n| (group(n), make(n))).collect()
}

/// A number with its thousands apart.
fn group(n: usize) -> String {
    match n {
        0..1000 => n.to_string(),
        _ => format!("{} {:03}", group(n / 1000), n % 1000),
    }
}

/// Nanoseconds per packet of messages from and to the regions given, on one connection.
fn per_packet(link: &mut Link, pair: Pair, work: Work, regions: &[(MrInfo, MrInfo)]) -> f64 {
    let (start, before) = (worked(), link.packets());
    for burst in regions.chunks(BURST) {
        for (id, (from, to)) in (0..).zip(burst) {
            link.post_one(pair, work, id, (from, to), SMALL);
        }
        link.carry();
        assert_eq!(link.reap(), burst.len() as u64);
    }
    (worked() - start) / (link.packets() - before) as f64
}

fn on_own_region(link: &mut Link, pair: Pair, work: Work, effort: &Effort) -> f64 {
    let regions = vec![(link.near.mr, link.far.mr); effort.messages];
    per_packet(link, pair, work, &regions)
}

/// One connection that works beside others that do not.
pub(crate) fn beside_queue_pairs(effort: &Effort) -> Vec<Table> {
    let mut worlds = worlds(effort.counts, |n| {
        let mut link = Link::new(64);
        link.connect_many(n / 2);
        let pair = link.connect(QpType::Rc, QpCap::default());
        link.connect_many(n - n / 2);
        (link, pair)
    });
    let mut table = |name, work| {
        let rows =
            compare(effort.rounds, &mut worlds, |(link, pair)| on_own_region(link, *pair, work, effort));
        Table { name, unit: "ns/packet", rows }
    };
    vec![
        table("64-byte SENDs beside idle queue pairs", Work::Send),
        table("64-byte WRITEs beside idle queue pairs", Work::Write),
    ]
}

struct Regions {
    link: Link,
    pair: Pair,
    near: Vec<MrInfo>,
    far: Vec<MrInfo>,
    next: usize,
}

/// One connection, and many regions: beside the one that is used, used in turns, and registered.
pub(crate) fn beside_regions(effort: &Effort) -> Vec<Table> {
    const ACCESS: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE);
    let mut worlds = worlds(effort.counts, |n| {
        let mut link = Link::new(64);
        let pair = link.connect(QpType::Rc, QpCap::default());
        let [near, far] = [&mut link.near, &mut link.far].map(|end| {
            // Not zeros: those would come into being only when they are first used.
            let register = |_| end.nic.reg_mr(end.pd, vec![1; SMALL as usize], ACCESS).expect("a free key");
            (0..n).map(register).collect()
        });
        Regions { link, pair, near, far, next: 0 }
    });
    let beside = compare(effort.rounds, &mut worlds, |world| {
        on_own_region(&mut world.link, world.pair, Work::Write, effort)
    });
    let turns = compare(effort.rounds, &mut worlds, |world| {
        let Regions { link, pair, near, far, next } = world;
        // Looking up which regions it will be is not the NICs' work.
        let regions = (0..effort.messages).map(|_| {
            // A step that meets all of them, and never a neighbour.
            *next = (*next + 618_033) % near.len();
            (near[*next], far[*next])
        });
        per_packet(link, *pair, Work::Write, &regions.collect::<Vec<_>>())
    });
    let register = |worlds: &mut [(String, Regions)], length: usize| {
        let mut bytes = vec![0; length];
        compare(effort.rounds, worlds, |world| {
            let end = &mut world.link.near;
            let start = worked();
            for _ in 0..effort.messages / 10 {
                let mr = end.nic.reg_mr(end.pd, core::mem::take(&mut bytes), ACCESS).expect("a free key");
                bytes = end.nic.dereg_mr(mr.lkey).expect("it was just registered");
            }
            (worked() - start) / (effort.messages / 10) as f64
        })
    };
    let small = register(&mut worlds, 4096);
    let large = register(&mut worlds, 1 << 30);
    let both = |name: &'static str, rows: Vec<Row>| {
        rows.into_iter().map(move |row| Row { label: format!("{name} beside {}", row.label), ..row })
    };
    let first = small[0].value;
    let rows = both("4 KiB", small).chain(both("1 GiB", large));
    let rows = rows.map(|row| Row { ratio: row.value / first, ..row }).collect();
    vec![
        Table { name: "64-byte WRITEs beside idle regions", unit: "ns/packet", rows: beside },
        Table { name: "64-byte WRITEs from and to all of so many regions", unit: "ns/packet", rows: turns },
        Table { name: "registering and deregistering", unit: "ns", rows },
    ]
}

/// A connection with so many WRITEs sent and not answered, one packet each.
struct Outstanding {
    link: Link,
    pair: Pair,
    flying: VecDeque<RxBurst>,
    tx: TxBatch,
}

impl Outstanding {
    fn new(count: usize) -> Self {
        let mut link = Link::new(1 << 16);
        let pair =
            link.connect(QpType::Rc, QpCap { max_send_wr: QpCap::MAX.max_send_wr, ..QpCap::default() });
        let mut world = Self { link, pair, flying: VecDeque::new(), tx: TxBatch::new() };
        (0..count).for_each(|_| world.send(RxBurst::new()));
        world
    }

    fn send(&mut self, mut burst: RxBurst) {
        self.link.post(self.pair, Work::Write, SMALL, 1);
        let sent = take_batch(self.link.now, &mut self.link.near.nic, &mut self.tx, &mut burst);
        assert!(sent && burst.len() == 1);
        self.flying.push_back(burst);
    }

    /// The oldest arrives, is acknowledged, and another takes its place.
    fn step(&mut self) {
        let burst = self.flying.pop_front().expect("there is at least one");
        self.link.far.nic.handle_burst(self.link.now, &burst);
        self.link.carry();
        assert_eq!(self.link.reap(), 1);
        self.send(burst);
    }
}

/// One connection with more and more requests that have no answer yet.
pub(crate) fn with_outstanding_requests(effort: &Effort) -> Table {
    let mut worlds = worlds(&[1, 64, 1000, QpCap::MAX.max_send_wr as usize], Outstanding::new);
    let rows = compare(effort.rounds, &mut worlds, |world| {
        let (start, before) = (worked(), world.link.packets());
        (0..effort.messages).for_each(|_| world.step());
        (worked() - start) / (world.link.packets() - before) as f64
    });
    Table { name: "64-byte WRITEs with so many outstanding", unit: "ns/packet", rows }
}

/// All queue pairs at work, few and many.
pub(crate) fn with_active_queue_pairs(effort: &Effort) -> Vec<Table> {
    const EACH: u64 = 4;
    let mut worlds = worlds(&[16, effort.active], |n| {
        let mut link = Link::new(64);
        let pairs = link.connect_many(n);
        (link, pairs)
    });
    let mut table = |name, length| {
        let rows = compare(effort.rounds, &mut worlds, |(link, pairs)| {
            let (start, before) = (worked(), link.packets());
            let turns = (effort.messages as u64 * 4).div_ceil(EACH * pairs.len() as u64);
            for _ in 0..turns {
                for pair in &*pairs {
                    link.post(*pair, Work::Write, length, EACH);
                }
                link.carry();
                assert_eq!(link.reap(), EACH * pairs.len() as u64);
            }
            (worked() - start) / (link.packets() - before) as f64
        });
        Table { name, unit: "ns/packet", rows }
    };
    vec![
        table("64-byte WRITEs on so many active queue pairs", SMALL),
        table("4-KiB WRITEs on so many active queue pairs", 4096),
    ]
}
