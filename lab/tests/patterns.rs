//! Traffic patterns: what the built-in scenarios of KV caches, routing, buffers, classes and loss say, held against
//! theory and against a reference of another make (design notes of DCQCN, sections 9.6 and 9.7).

#![expect(clippy::unwrap_used, reason = "what fails is the test")]

use ferroce_lab::{FlowSummary, Report, Run, Scenario, Unwatched, more, run};

const SEEDS: [u64; 2] = [1, 7];
/// A full packet on the cable: Ethernet 38, IPv4 20, UDP 8, BTH 12, ICRC 4.
const HEADERS: f64 = 82.0;

fn lab(name: &str, sets: &[&str], seed: u64) -> Report {
    let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    let scenario = Scenario::builtin(name, &sets, Some(seed)).unwrap().unwrap();
    run(&scenario, &mut Unwatched).unwrap()
}

fn of<'a>(report: &'a Report, name: &str) -> &'a Run {
    report.runs.iter().find(|run| run.name == name).unwrap()
}

/// The flows of a run whose names begin so.
fn flows<'a>(run: &'a Run, kind: &'a str) -> impl Iterator<Item = &'a FlowSummary> {
    run.summary.flows.iter().filter(move |flow| flow.name.starts_with(kind))
}

/// Mean and longest completion time of flows, in ms; all are complete.
fn completion(run: &Run, kind: &str) -> (f64, f64) {
    let times: Vec<f64> = flows(run, kind).map(|flow| flow.fct_ms.unwrap()).collect();
    (times.iter().sum::<f64>() / times.len() as f64, times.iter().copied().fold(0.0, f64::max))
}

/// Mean time of the messages of a flow, in ms.
fn message(run: &Run, name: &str) -> f64 {
    let flow = run.flows.iter().find(|flow| flow.name == name).unwrap();
    flow.messages_ms.iter().map(|(from, to)| to - from).sum::<f64>() / flow.messages_ms.len() as f64
}

fn goodput(run: &Run, kind: &str) -> f64 {
    flows(run, kind).map(|flow| flow.goodput_mean_gbps).sum()
}

#[track_caller]
fn near(value: f64, wanted: f64, within: f64) {
    assert!((value / wanted - 1.0).abs() <= within, "{value} instead of {wanted}");
}

/// Bytes on the cable for each byte of payload, in packets of 1024 bytes.
const ON_CABLE: f64 = (1024.0 + HEADERS) / 1024.0;

/// 8 x 4 MB into 40 Gb/s: 6.40 ms of payload. The reference has, for each way, so many times that: mean and longest.
#[test]
fn bursts_take_as_long_as_the_reference_says() {
    let ideal = 8.0 * 4e6 * 8.0 / 40e9 * 1e3 * ON_CABLE;
    let reference = [
        ("PFC alone", 6.39, 6.40),
        ("DCQCN without PFC", 10.0, 10.4),
        ("DCQCN, XOFF 100 KB", 8.8, 9.6),
        ("DCQCN, XOFF 20 KB", 6.4, 7.2),
        ("connectx, XOFF 100 KB", 7.5, 8.4),
    ];
    for seed in SEEDS {
        let report = lab("kv_burst", &[], seed);
        for (name, mean, longest) in reference {
            let run = of(&report, name);
            near(run.summary.more[more::IDEAL_MS], ideal, 0.001);
            let (its_mean, its_longest) = completion(run, "kv");
            println!("{name}: {:.3} and {:.3} times the least", its_mean / ideal, its_longest / ideal);
            near(its_mean / ideal, mean / 6.40, 0.12);
            near(its_longest / ideal, longest / 6.40, 0.15);
            assert_eq!(run.summary.drops, 0, "{name}");
        }
        let least = |name| completion(of(&report, name), "kv").1;
        assert!(least("DCQCN, XOFF 20 KB") < least("DCQCN, XOFF 100 KB"));
        assert!(least("connectx, XOFF 100 KB") < least("DCQCN, XOFF 100 KB"));
    }
}

/// 2(n-1)/n of 8 MB over 40 Gb/s: 2.80 ms of payload, of which the reference needs 2.83. A port shared with another
/// flow is as one of half the rate.
#[test]
fn a_ring_takes_what_theory_says_and_caches_queue() {
    let ideal = 2.0 * 7.0 / 8.0 * 8e6 * 8.0 / 40e9 * 1e3 * ON_CABLE;
    for seed in SEEDS {
        let report = lab("kv_ring", &[], seed);
        let ring = of(&report, "ring all-reduce of 8");
        near(completion(ring, "ring").1, ideal * 2.83 / 2.80, 0.02);
        near(ring.summary.more[more::IDEAL_MS], ideal, 0.001);
        assert_eq!((ring.summary.ce_marked, ring.summary.cnp_sent, ring.summary.pause_frames), (0, 0, 0));
        let shared = of(&report, "ring, one port shared");
        println!("shared: {:.3} times the ring alone", completion(shared, "ring").1 / ideal);
        near(completion(shared, "ring").1, 2.0 * ideal, 0.25);
        // All ranks are dragged along: none is done much before the others.
        assert!(flows(shared, "ring").all(|flow| flow.fct_ms.unwrap() > 1.4 * ideal));
        // As many bytes leave each host, and meet four to one.
        let caches = of(&report, "8 prefill to 2 decode");
        let least = 4.0 * 14e6 * 8.0 / 40e9 * 1e3 * ON_CABLE;
        let longest = completion(caches, "kv").1;
        println!("caches: {:.3} times the least", longest / least);
        assert!((least..1.35 * least).contains(&longest), "{longest} {least}");
        assert!(caches.summary.ce_marked > 100 && caches.summary.pause_frames > 0);
        // A hundred bytes there for each one back.
        near(goodput(caches, "kv") / goodput(caches, "ask"), 100.0, 0.001);
    }
}

#[test]
fn small_messages_pass_where_large_ones_vanish() {
    let report = lab("mtu_mismatch", &[], 1);
    for run in &report.runs {
        let ping = run.flows.iter().find(|flow| flow.name == "ping").unwrap();
        assert_eq!(ping.messages_ms.len(), 50, "{}", run.name);
    }
    let vanishing = of(&report, "4096 over a path of 1500");
    assert_eq!(flows(vanishing, "kv").next().unwrap().fct_ms, None);
    assert_eq!(vanishing.summary.more["flows_failed"], 1.0);
    // All that was ever sent of it, and nothing else.
    assert!(vanishing.summary.drops > 1000);
    let [jumbo, small] = ["4096 over jumbo frames", "1024 over a path of 1500"]
        .map(|name| completion(of(&report, name), "kv").0);
    near(small / jumbo, ON_CABLE / ((4096.0 + HEADERS) / 4096.0), 0.01);
    assert_eq!(of(&report, "1024 over a path of 1500").summary.drops, 0);
}

#[test]
fn elephants_meet_spread_and_overtake() {
    let report = lab("ecmp", &["duration_ms=16", "warmup_ms=8"], 1);
    let used = |name| of(&report, name).summary.more["utilisation_all"];
    // Three of four on one way, and two ways idle.
    near(used("one QP for each pair"), 0.5, 0.02);
    near(used("four QPs, one port"), 0.5, 0.02);
    assert!(used("four QPs, own ports") > 0.85);
    assert!(used("one QP, adaptive") > 0.98 && used("four QPs, adaptive") > 0.98);
    let longer = of(&report, "four QPs, adaptive, one way longer");
    let straight = of(&report, "four QPs, adaptive");
    assert!(used("four QPs, adaptive, one way longer") > 0.98);
    assert!(longer.summary.retransmissions > 20 * straight.summary.retransmissions.max(1));
    assert!(goodput(longer, "elephant") < 0.75 * goodput(straight, "elephant"));
    let by_hash = of(&report, "four QPs, own ports");
    assert_eq!(by_hash.summary.retransmissions, 0);
}

#[test]
fn deep_buffers_hold_what_shallow_ones_drop() {
    let ideal = 8.0 * 4e6 * 8.0 / 40e9 * 1e3 * ON_CABLE;
    for seed in SEEDS {
        let report = lab("buffers", &[], seed);
        let [deep, shallow, marked, paused] =
            ["deep, 64 MB", "shallow, 0.5 MB", "shallow, DCQCN", "shallow, PFC"]
                .map(|name| of(&report, name));
        for run in [deep, paused] {
            near(completion(run, "kv").1, ideal, 0.01);
            assert_eq!((run.summary.drops, run.summary.retransmissions), (0, 0), "{}", run.name);
        }
        assert!(deep.summary.queue_max_kb > 1_000.0 && shallow.summary.queue_max_kb < 500.0);
        assert!(shallow.summary.drops > 5_000 && shallow.summary.retransmissions >= shallow.summary.drops);
        assert!(completion(shallow, "kv").1 > 1.5 * ideal);
        assert!(marked.summary.retransmissions * 2 < shallow.summary.retransmissions);
        assert!(completion(marked, "kv").1 > 1.1 * ideal);
    }
}

/// A cache of 1 MB alone takes 0.216 ms over 40 Gb/s, at half of it twice that, and as one flow of five about five
/// times.
#[test]
fn a_class_of_its_own_lets_the_cache_pass() {
    let alone = 1e6 * 8.0 / 40e9 * 1e3 * ON_CABLE;
    let report = lab("kv_class", &[], 1);
    let [together, equal, strict] =
        ["one class", "own class, equal weights", "own class, strict"].map(|name| of(&report, name));
    near(message(strict, "kv"), alone, 0.05);
    near(message(equal, "kv"), 2.0 * alone, 0.1);
    assert!((3.5..10.0).contains(&(message(together, "kv") / alone)), "{}", message(together, "kv"));
    assert!(
        goodput(together, "training") > goodput(equal, "training"),
        "what the cache gains, training pays"
    );
}

/// A loss costs what was in flight behind it, which the figures tell: repeats for each loss. A repeat that is lost
/// again is asked for by nobody, and waits for the timer: at a loss of `p` that happens to a part of `p` of the losses.
#[test]
fn a_loss_costs_what_was_in_flight_behind_it() {
    let timer = 4.096e-6 * 256.0;
    for seed in SEEDS {
        let report = lab("loss", &[], seed);
        let whole = goodput(of(&report, "no loss"), "flow");
        near(whole, 40.0 / ON_CABLE, 0.01);
        for (name, p) in [("0.01 %", 1e-4), ("0.1 %", 1e-3), ("1 %", 1e-2)] {
            let run = of(&report, name);
            let behind = run.summary.retransmissions as f64 / run.summary.drops as f64;
            let packets_a_second = 40e9 / 8.0 / (1024.0 + HEADERS);
            let theory = whole / (1.0 + p * behind + p * p * timer * packets_a_second);
            println!("{name}: {:.2} Gb/s, theory {theory:.2}, {behind:.0} behind", goodput(run, "flow"));
            near(goodput(run, "flow"), theory, 0.15);
        }
    }
}

#[test]
fn xrc_takes_the_square_out_of_memory() {
    let report = lab("xrc_memory", &[], 1);
    let more = &report.summary.more;
    assert_eq!((more["rc_queue_pairs"], more["xrc_queue_pairs"]), (128.0 * 128.0 * 31.0, 2.0 * 128.0 * 31.0));
    assert!(more["rc_to_xrc"] > 100.0);
    assert_eq!(report.plots.len(), 2);
    // Twice the processes: four times the memory, or twice.
    let grows = |line: usize| {
        let points = &report.plots[0].lines[line].points;
        points[7].1 / points[6].1
    };
    near(grows(0), 4.0, 0.01);
    near(grows(2), 2.0, 0.01);
}
