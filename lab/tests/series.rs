//! What the series of a run do not depend on.

#![expect(clippy::unwrap_used, reason = "what fails is the test")]

use ferroce_lab::{Report, Scenario, Trace, Unwatched, run};

fn incast(sets: &[&str]) -> Report {
    let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    let scenario = Scenario::builtin("incast", &sets, Some(7)).unwrap().unwrap();
    run(&scenario, &mut Unwatched).unwrap()
}

/// Where the warm-up ends within a step, the step is a whole one all the same.
#[test]
fn the_end_of_the_warm_up_shows_in_no_series() {
    let [whole, warmed] = ["warmup_ms=0", "warmup_ms=1.2345"]
        .map(|warmup| incast(&["senders=4", "duration_ms=3", warmup]))
        .map(|report| report.runs[0].queues[0].clone());
    let near = |a: &Trace, b: &Trace| {
        a.t_ms == b.t_ms && a.value.iter().zip(&b.value).all(|(a, b)| (a - b).abs() < 1e-6)
    };
    assert!(whole.depth_kb.value.len() > 100);
    assert!(near(&whole.depth_kb, &warmed.depth_kb), "{:?}\n{:?}", whole.depth_kb, warmed.depth_kb);
    assert!(near(&whole.peak_kb, &warmed.peak_kb));
}

/// One sender never fills a queue of a line that is as fast as its own, however little of a nanosecond its packets take.
#[test]
fn a_lone_flow_waits_nowhere_and_fills_its_line_just_so() {
    let text = "duration_ms = 0.5\nwarmup_ms = 0.1\n[[hosts]]\nname = 'tx'\n[[hosts]]\nname = 'rx'\n\
                [[flows]]\nfrom = 'tx'\nto = 'rx'\n";
    for (rate, delay, cc) in [
        ("100", "1", "dcqcn"),
        ("400", "0", "dcqcn"),
        ("400", "1", "off"),
        ("3200", "0", "off"),
        ("7", "0", "off"),
    ] {
        let sets = [("link.rate_gbps", rate), ("link.delay_us", delay), ("cc.algorithm", cc)]
            .map(|(key, value)| format!("{key}={value}"));
        let scenario = Scenario::parse("lone", text, &sets, Some(1)).unwrap();
        let summary = run(&scenario, &mut Unwatched).unwrap().summary;
        let what = format!("{rate} Gb/s, {delay} us, {cc}: {summary:?}");
        assert!(summary.queue_max_kb < 3.0, "{what}");
        assert!((0.99..=1.0).contains(&summary.utilisation), "{what}");
        assert_eq!((summary.ce_marked, summary.drops), (0, 0), "{what}");
    }
}

/// However short the windows of Jain's index are, it has no more points than the other series.
#[test]
fn short_windows_make_no_long_series() {
    let report = incast(&["senders=2", "duration_ms=2", "measure.window_ms=0.01", "measure.steps=50"]);
    let run = &report.runs[0];
    assert!((10..=50).contains(&run.jain.t_ms.len()), "{}", run.jain.t_ms.len());
    assert!(run.summary.queue_mean_kb >= 0.0);
}
