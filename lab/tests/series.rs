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
