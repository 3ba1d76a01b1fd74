//! A thousand random messages each way between two NICs, over every mixture of loss, duplication, reordering and
//! corruption, in virtual time: all bytes arrive, all completions come once and in order, and what was lost was
//! noticed (rules R-REQ-26, R-CMP-2, R-CMP-3, R-RSP-2, R-RSP-4 to R-RSP-7, R-CQE-6).
//!
//! `cargo test` runs a part of it. All of it: `FERROCE_LONG=1 cargo test --release -p ferroce-tests --test suite sweep`.

use fabric::{Direction, FaultKind, FaultSpec, LinkParams};
use rand_pcg::Pcg64;
use transport::{Counters, DropReason, Profile};
use wire::{Duration, Mtu};

use crate::harness::plan::{self, Mix, below};
use crate::harness::workload::{self, Depths};
use crate::harness::world::Service;
use crate::harness::{Conn, World, WorldConfig, given_seed};

/// Messages of each end.
const MESSAGES: usize = 1000;

/// Probabilities that a packet is lost.
const DROPS: [f64; 9] = [0.0, 0.001, 0.005, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1];

/// Probabilities that a packet is duplicated, reordered, corrupted.
const OTHERS: [[f64; 3]; 6] = [
    [0.0, 0.0, 0.0],
    [0.01, 0.01, 0.001],
    [0.05, 0.0, 0.01],
    [0.0, 0.05, 0.02],
    [0.02, 0.02, 0.005],
    [0.05, 0.05, 0.05],
];

/// From this probability of loss on, packets are lost one way only where something else goes wrong as well, and
/// loss and corruption together stay below [`MOST_LOSS`]. With more, eight tries in a row fail once in a few runs,
/// and a connection with the largest retry count rightly gives up.
const HEAVY: f64 = 0.1;
const MOST_LOSS: f64 = 0.08;

/// A kind of network and of program.
#[derive(Clone, Copy)]
struct Shape {
    name: &'static str,
    service: Service,
    mtu: Mtu,
    window: u32,
    segments: usize,
    link: LinkParams,
    ipv6: bool,
    timeout: u8,
    max_rd_atomic: u8,
    depths: Depths,
    /// Messages of each end.
    messages: usize,
    profiles: [Profile; 2],
}

const fn depths(sends: usize, receives: usize, repost_micros: u64) -> Depths {
    Depths { sends, receives, repost_delay: Duration::from_micros(repost_micros) }
}

const PLAIN: Shape = Shape {
    name: "at_ease",
    service: Service::Rc,
    mtu: Mtu::B1024,
    window: 64,
    segments: 16,
    link: LinkParams::new(10_000_000_000, Duration::from_micros(2)),
    ipv6: false,
    timeout: 8,
    max_rd_atomic: 4,
    depths: depths(32, 32, 0),
    messages: MESSAGES,
    profiles: [Profile::Strict; 2],
};

/// Long way, small packets, IPv6.
const LONG_WAY: Shape = Shape {
    name: "a_long_way",
    mtu: Mtu::B256,
    window: 32,
    link: LinkParams::new(1_000_000_000, Duration::from_micros(20)),
    ipv6: true,
    timeout: 10,
    max_rd_atomic: 16,
    ..PLAIN
};

/// Receives are often not there: RNR NAKs.
const SLOW_RECEIVER: Shape = Shape {
    name: "a_slow_receiver",
    mtu: Mtu::B4096,
    window: 16,
    segments: 1,
    link: LinkParams::new(100_000_000_000, Duration::from_micros(1)),
    depths: depths(64, 3, 20),
    ..PLAIN
};

/// Much in flight, but one READ or atomic at a time.
const DEEP: Shape = Shape {
    name: "deep_queues",
    mtu: Mtu::B512,
    window: 128,
    segments: 64,
    link: LinkParams::new(25_000_000_000, Duration::from_micros(5)),
    max_rd_atomic: 1,
    depths: depths(128, 64, 0),
    ..PLAIN
};

/// What loss makes NICs drop.
const LOST: [DropReason; 5] = [
    DropReason::OutOfSequence,
    DropReason::DuplicateUnknown,
    DropReason::DuplicatePending,
    DropReason::GhostResponse,
    DropReason::ResponseOutOfOrder,
];

/// What a flipped bit may hit before the ICRC is looked at.
const CORRUPT: [DropReason; 8] = [
    DropReason::BadIcrc,
    DropReason::Malformed,
    DropReason::UnknownOpcode,
    DropReason::BadVersion,
    DropReason::NoSuchQp,
    DropReason::WrongTransport,
    DropReason::WrongHalf,
    DropReason::PKeyMismatch,
];

/// One run; counters of both NICs together.
fn run(shape: Shape, drop: f64, others: [f64; 3], seed: u64) -> Counters {
    let [duplicate, reorder, corrupt] = others;
    let corrupt = if drop < HEAVY { corrupt.min(MOST_LOSS - drop) } else { corrupt.min(0.01) };
    let mut rng = Pcg64::new(seed.into(), 0);
    let mut config = WorldConfig {
        link: shape.link,
        ipv6: shape.ipv6,
        profiles: shape.profiles,
        ..WorldConfig::new(shape.name, seed)
    };
    config.caps.window = shape.window;
    config.caps.max_segments = shape.segments;
    let mut world = World::new(config);
    if drop + reorder + corrupt > 0.0 || shape.depths.repost_delay > Duration::ZERO {
        world.allow(&LOST);
    }
    if duplicate > 0.0 {
        world.allow(&[DropReason::GhostResponse, DropReason::DuplicateUnknown, DropReason::DuplicatePending]);
    }
    if corrupt > 0.0 {
        world.allow(&CORRUPT);
    }
    for host in 0..2_u8 {
        let one_way = drop >= HEAVY && others != [0.0; 3] && u64::from(host) != seed % 2;
        let chances = [
            (FaultKind::Drop, if one_way { 0.0 } else { drop }),
            (FaultKind::Duplicate, duplicate),
            (FaultKind::Reorder, reorder),
            (FaultKind::Corrupt, corrupt),
        ];
        let faults =
            chances.map(|(kind, p)| FaultSpec::chance(kind, Direction::Tx, p).expect("a probability"));
        world.net.set_faults(world.hosts[usize::from(host)].node, faults);
    }
    let conn = Conn {
        mtu: shape.mtu,
        timeout: shape.timeout,
        min_rnr_timer: 1,
        max_rd_atomic: shape.max_rd_atomic,
        max_dest_rd_atomic: shape.max_rd_atomic,
        // One of the two wraps on the way.
        psns: [0xFF_FFFF - below(&mut rng, 2000), below(&mut rng, 1 << 24)],
        ..Conn::default()
    };
    let ends = world.connect_as(shape.service, [0, 1], conn, workload::cap(shape.depths));
    let mix = Mix { messages: shape.messages, mtu: shape.mtu.bytes(), max_inline: 0 };
    workload::run(&mut world, ends, mix, shape.depths, &mut rng);
    let [a, b] = [0, 1].map(|host: usize| *world.hosts[host].nic.counters());
    let sum = Counters {
        packet_seq_err: a.packet_seq_err + b.packet_seq_err,
        local_ack_timeout_err: a.local_ack_timeout_err + b.local_ack_timeout_err,
        rnr_nak_retry_err: a.rnr_nak_retry_err + b.rnr_nak_retry_err,
        duplicate_request: a.duplicate_request + b.duplicate_request,
        ..Counters::default()
    };
    println!(
        "seed {seed:4}, MTU {:4}, drop {drop:.3}, duplicate {duplicate:.3}, reorder {reorder:.3}, corrupt \
         {corrupt:.3}: {:7.3} ms, {:5} sequence NAKs, {:4} timeouts, {:4} RNR NAKs",
        shape.mtu.bytes(),
        world.now.as_nanos() as f64 / 1e6,
        sum.packet_seq_err,
        sum.local_ack_timeout_err,
        sum.rnr_nak_retry_err,
    );
    if drop > 0.0 {
        assert!(
            sum.packet_seq_err + sum.local_ack_timeout_err > 0,
            "seed {seed}: nobody noticed that packets were lost"
        );
    }
    sum
}

/// All mixtures over one shape, or every seventh. A mixture has the seeds that leave its place among all when divided
/// by their number, so that a seed alone repeats a run.
fn sweep(shape: Shape) -> Vec<Counters> {
    let mixtures: Vec<_> = DROPS.into_iter().flat_map(|drop| OTHERS.map(|others| (drop, others))).collect();
    let count = mixtures.len() as u64;
    let first = 20 * count;
    let one = given_seed();
    let seeds = one.map_or(first..first + count, |seed| seed..seed + 1);
    let all = one.is_some() || std::env::var_os("FERROCE_LONG").is_some();
    seeds
        .filter(|seed| all || seed.is_multiple_of(7))
        .map(|seed| {
            let (drop, others) = mixtures[usize::try_from(seed % count).expect("a place in the list")];
            run(shape, drop, others, seed)
        })
        .collect()
}

#[test]
fn at_ease() {
    sweep(PLAIN);
}

#[test]
fn a_long_way_in_small_packets() {
    sweep(LONG_WAY);
}

#[test]
fn a_slow_receiver() {
    let counters = sweep(SLOW_RECEIVER);
    assert!(counters.iter().all(|counters| counters.rnr_nak_retry_err > 0), "{counters:?}");
}

#[test]
fn deep_queues_and_one_read_at_a_time() {
    sweep(DEEP);
}

/// Every operation over XRC, whose receives, keys and completions are those of a shared receive queue (rule R-RSP-45).
#[test]
fn xrc() {
    sweep(Shape { name: "xrc", service: Service::Xrc, ..PLAIN });
}

#[test]
fn shared_receives_that_are_slow_to_come() {
    let counters = sweep(Shape { name: "shared_receives", service: Service::Shared, ..SLOW_RECEIVER });
    assert!(counters.iter().all(|counters| counters.rnr_nak_retry_err > 0), "{counters:?}");
}

/// Each two profiles on a connection, over good networks and bad ones.
#[test]
fn all_profiles_understand_each_other() {
    for (n, first) in Profile::ALL.into_iter().enumerate() {
        for (m, second) in Profile::ALL.into_iter().enumerate() {
            let profiles = [first, second];
            for (at, shape) in [PLAIN, LONG_WAY, SLOW_RECEIVER, DEEP].into_iter().enumerate() {
                let shape = Shape { name: "profiles", messages: 150, profiles, ..shape };
                let seed = (n * 3 + m) as u64;
                run(shape, 0.0, OTHERS[0], seed);
                run(shape, 0.03, OTHERS[1 + (n + m + at) % 5], seed);
            }
        }
    }
}

#[test]
fn the_same_seed_is_the_same_run() {
    assert_eq!(run(PLAIN, 0.03, OTHERS[4], 7), run(PLAIN, 0.03, OTHERS[4], 7));
}

#[test]
fn over_two_hundred_mixtures_most_of_them_lossy_with_enough_long_messages() {
    let lossy = DROPS.iter().filter(|drop| **drop > 0.0).count() * OTHERS.len() * 4;
    let all = DROPS.len() * OTHERS.len() * 4;
    assert!(all >= 200 && lossy >= 150, "{all}, {lossy}");
    for shape in [PLAIN, LONG_WAY, SLOW_RECEIVER, DEEP] {
        let mtu = shape.mtu.bytes();
        let plan = plan::plan(Mix { messages: MESSAGES, mtu, max_inline: 0 }, &mut Pcg64::new(1, 0));
        let long = plan.iter().filter(|message| message.len > mtu).count();
        assert!(long * 10 >= MESSAGES * 3, "{long} of {MESSAGES} take several packets");
        assert!(
            plan.iter().any(|message| message.len == 0) && plan.iter().any(|message| message.len > 60_000)
        );
    }
}
