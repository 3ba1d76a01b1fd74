//! The lab against theory: where queues, rates and alpha settle, and what pauses do.
//!
//! Three seeds each; ten with `FERROCE_LONG=1`, as in
//! `FERROCE_LONG=1 cargo test --release -p ferroce-lab --test theory -- --nocapture`, which prints what docs/lab.md has.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use ferroce_lab::{Report, Run, Scenario, Unwatched, more, run};

fn seeds() -> std::ops::RangeInclusive<u64> {
    1..=if std::env::var_os("FERROCE_LONG").is_some() { 10 } else { 3 }
}

fn report(name: &str, sets: &[&str], seed: u64) -> Report {
    let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    let scenario = Scenario::builtin(name, &sets, Some(seed)).unwrap().unwrap();
    run(&scenario, &mut Unwatched).unwrap()
}

/// A figure over all seeds: what it should be, and what it was.
struct Figure {
    what: String,
    theory: String,
    wanted: (f64, f64),
    found: Vec<f64>,
}

impl Figure {
    fn new(what: impl Into<String>, theory: impl Into<String>, wanted: (f64, f64)) -> Self {
        Self { what: what.into(), theory: theory.into(), wanted, found: Vec::new() }
    }

    /// Prints its row, and fails where a seed is not as wanted.
    fn check(&self) {
        let (least, most) = self.found.iter().fold((f64::MAX, f64::MIN), |(l, m), x| (l.min(*x), m.max(*x)));
        let mean = self.found.iter().sum::<f64>() / self.found.len() as f64;
        let (low, high) = self.wanted;
        let wanted = match (low > f64::MIN, high < f64::MAX) {
            (true, false) => format!("at least {low}"),
            (false, true) => format!("at most {high}"),
            _ => format!("{low} to {high}"),
        };
        println!(
            "| {} | {} | {wanted} | {mean:.4} | {least:.4} to {most:.4} | {} |",
            self.what,
            self.theory,
            self.found.len()
        );
        assert!(least >= low && most <= high, "{}: {:?}", self.what, self.found);
    }
}

fn above(least: f64) -> (f64, f64) {
    (least, f64::MAX)
}

/// The worst of Jain's index over the windows that follow each other after the warm-up, two of 100 ms each.
fn jain(run: &Run) -> f64 {
    let after = |at: f64, of: f64| run.jain.t_ms.iter().position(|ms| (ms - at - of).abs() < 1e-6).unwrap();
    let windows = [100.0, 200.0].map(|of| run.jain.value[after(run.warmup_ms, of)]);
    windows[0].min(windows[1])
}

fn incast(senders: u32, queue: Option<(f64, f64)>) {
    let of = |what: &str| format!("incast of {senders}: {what}");
    let first = report("incast", &[&format!("senders={senders}"), "duration_ms=0.1"], 1);
    let theory = |key: &str| first.summary.more[key];
    let fluid = format!("{:.1}", theory("theory_queue_kb"));
    let mut mean = Figure::new(of("queue, KB"), fluid, queue.unwrap_or((0.0, f64::MAX)));
    let alpha_theory = format!("{:.4}", theory(more::ALPHA_FIXED_POINT));
    let mut alpha = Figure::new(of("alpha over the fixed point"), alpha_theory, (0.85, 1.15));
    let mut fair = Figure::new(of("Jain's index, 100 ms"), "1", above(0.99));
    let mut busy = Figure::new(of("utilisation"), "1", above(0.99));
    for seed in seeds() {
        let report = report("incast", &[&format!("senders={senders}")], seed);
        let summary = &report.summary;
        mean.found.push(summary.queue_mean_kb);
        alpha.found.push(summary.more["alpha_mean"] / summary.more[more::ALPHA_FIXED_POINT]);
        fair.found.push(jain(&report.runs[0]));
        busy.found.push(summary.utilisation);
        assert_eq!((summary.drops, summary.pause_frames, summary.retransmissions), (0, 0, 0));
        // All but those that are under way at the end.
        let lost = summary.cnp_sent as f64 - summary.more["cnp_received"];
        assert!((0.0..=f64::from(senders)).contains(&lost), "{lost}");
        assert!(summary.cnp_sent <= summary.ce_marked);
    }
    if queue.is_some() {
        mean.check();
    }
    alpha.check();
    fair.check();
    busy.check();
}

#[test]
fn an_incast_of_2_settles_where_the_fluid_model_does() {
    incast(2, Some((15.0, 30.0)));
}

#[test]
fn an_incast_of_10_settles_where_the_fluid_model_does() {
    incast(10, Some((100.0, 190.0)));
}

#[test]
fn incasts_of_8_are_fair() {
    incast(8, None);
}

#[test]
fn incasts_of_16_are_fair() {
    incast(16, None);
}

#[test]
fn two_flows_that_start_far_apart_become_equal() {
    let mut fair = Figure::new("40 and 5 Gb/s: Jain's index of 100 to 200 ms", "1", above(0.995));
    for seed in seeds() {
        let report = report("two_flows", &["duration_ms=200", "warmup_ms=100"], seed);
        let run = &report.runs[0];
        let rate = |flow: usize| run.flows[flow].rate_gbps.value[5];
        assert!(rate(0) > 3.0 * rate(1), "they start apart: {} {}", rate(0), rate(1));
        fair.found.push(run.summary.jain);
    }
    fair.check();
}

#[test]
fn a_victim_of_pauses_is_freed() {
    let mut with = Figure::new("victim with DCQCN, Gb/s", "32", above(28.0));
    let mut without = Figure::new("victim without, Gb/s", "8", (7.0, 9.0));
    for seed in seeds() {
        let report = report("victim", &["duration_ms=100"], seed);
        without.found.push(report.runs[0].summary.flows[0].rate_mean_gbps);
        with.found.push(report.runs[1].summary.flows[0].rate_mean_gbps);
    }
    without.check();
    with.check();
}

#[test]
fn a_ring_of_pauses_locks_up_and_the_watchdog_breaks_it() {
    let mut without = Figure::new("deadlock ring after 1 ms: utilisation", "0", (0.0, 0.0));
    let mut with = Figure::new("with watchdog over 2 s: utilisation", "0.41", (0.2, 0.6));
    let mut storms = Figure::new("storms that the watchdog found", "many", above(3.0));
    for seed in seeds() {
        let report = report("deadlock_ring", &[], seed);
        let [locked, watched] = &report.runs[..] else { panic!("two runs") };
        without.found.push(locked.summary.more["utilisation_all"]);
        with.found.push(watched.summary.more["utilisation_all"]);
        storms.found.push(watched.summary.more["storms"]);
        assert_eq!(watched.summary.more["storms"], watched.summary.more["storms_ended"], "seed {seed}");
    }
    without.check();
    with.check();
    storms.check();
}

/// The long flow of a parking lot is told of congestion twice as often, and the more so the steeper marks rise.
#[test]
fn a_parking_lot_costs_the_long_flow() {
    let mut red = Figure::new("parking lot, RED: long flow, Gb/s", "14.3", (12.0, 17.0));
    let mut step = Figure::new("parking lot, step: long flow, Gb/s", "7.8", (5.0, 12.0));
    // One seed is enough where it is only to be seen that it works.
    for seed in seeds().filter(|seed| *seed == 1 || *seeds().end() > 3) {
        let report = report("parking_lot", &["duration_ms=130", "warmup_ms=30"], seed);
        red.found.push(report.runs[0].summary.flows[0].rate_mean_gbps);
        step.found.push(report.runs[1].summary.flows[0].rate_mean_gbps);
    }
    red.check();
    step.check();
}

/// While a host is stuck a bystander stands still with it; the watchdog lets the bystander go on.
#[test]
fn a_storm_stops_bystanders_until_the_watchdog_ends_it() {
    let report = report("pfc_storm", &[], 1);
    let bystander = |run: &Run| {
        let rate = &run.flows[1].rate_gbps;
        let during: Vec<f64> = rate
            .t_ms
            .iter()
            .zip(&rate.value)
            .filter(|(ms, _)| (10.0..25.0).contains(*ms))
            .map(|(_, v)| *v)
            .collect();
        during.iter().sum::<f64>() / during.len() as f64
    };
    let [without, with] = &report.runs[..] else { panic!("two runs") };
    assert_eq!(bystander(without), 0.0);
    assert!(bystander(with) > 8.0, "{}", bystander(with));
    let storms = with.summary.more["storms"];
    assert!(storms >= 1.0 && with.summary.more["storms_ended"] == storms);
    assert!(with.summary.drops > 0 && without.summary.drops == 0);
}

/// A hundred times as slow is the same: a slow machine on a slow link goes through the same states.
#[test]
fn slow_motion_shows_the_same() {
    let figures = |sets: &[&str]| {
        let sets = [&["senders=2", "duration_ms=150"], sets].concat();
        let summary = report("incast", &sets, 1).summary;
        (
            summary.queue_mean_kb,
            summary.more["alpha_mean"],
            summary.more["theory_queue_kb"],
            summary.utilisation,
        )
    };
    let (fast, slow) = (figures(&[]), figures(&["dilation=100"]));
    assert!((fast.0 - slow.0).abs() < 5.0 && (fast.1 / slow.1 - 1.0).abs() < 0.1, "{fast:?} {slow:?}");
    assert!((fast.2 - slow.2).abs() < 0.01 && (fast.3 - slow.3).abs() < 0.01, "{fast:?} {slow:?}");
}
