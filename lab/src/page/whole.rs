//! Charts that hold all runs together: completion times, fairness, and those of the scenario's own.

use super::canvas::{Axis, Frame, chart, ink};
use super::section::{Figure, Key, Look, Section, above, time};
use super::series::{Points, mean, points, quantile};
use super::text::{figure, power_tick, tick};
use crate::report::{Plot, Report, Run, more};

const HEIGHT: i32 = 220;
const POINTS: usize = 900;

fn legend(report: &Report) -> Vec<Key> {
    if report.runs.len() < 2 {
        return Vec::new();
    }
    let keys = report.runs.iter().zip(ink::SERIES.iter().cycle());
    keys.map(|(run, &ink)| Key { ink, look: Look::Line, name: run.name.clone() }).collect()
}

/// How long messages took.
pub(super) fn completions(report: &Report) -> Option<Section> {
    let took: Vec<_> = report.runs.iter().map(took).collect();
    let longest = took.iter().filter_map(|times| times.last()).copied().fold(0.0, f64::max);
    if took.iter().all(|times| times.len() < 2) || longest <= 0.0 {
        return None;
    }
    let ideals: Vec<_> =
        report.runs.iter().filter_map(|run| run.summary.more.get(more::IDEAL_MS).copied()).collect();
    let longest = ideals.iter().copied().fold(longest, f64::max);
    let mut spoken = "Completion times".to_owned();
    for (run, times) in report.runs.iter().zip(&took).filter(|(_, times)| !times.is_empty()) {
        let (half, last) = (quantile(times, 0.5), quantile(times, 1.0));
        spoken += &format!(
            "; {}: {} messages, half of them within {} ms, all within {} ms",
            if run.name.is_empty() { "the run" } else { &run.name },
            times.len(),
            figure(half),
            figure(last)
        );
    }
    let frame = Frame {
        spoken: spoken + ".",
        wide: true,
        height: HEIGHT,
        x: Axis {
            name: "time from posting to completion, ms".into(),
            from: 0.0,
            to: above(longest),
            label: tick,
        },
        y: Some(Axis { name: "complete, %".into(), from: 0.0, to: 104.0, label: tick }),
        marked: false,
    };
    let svg = chart(&frame, |canvas| {
        if let [first, ref rest @ ..] = ideals[..]
            && rest.iter().all(|&other| other == first)
        {
            canvas.moment(first, &format!("least possible for all: {} ms", figure(first)))?;
        }
        for (times, &ink) in took.iter().zip(ink::SERIES.iter().cycle()) {
            canvas.line(&stairs(times, longest), ink, 1.75)?;
        }
        Ok(())
    });
    Some(Section {
        id: "completion".into(),
        short: "Completion".into(),
        title: "Completion times".into(),
        note: "The part of the messages that were complete after so long: the further left and the steeper, the \
               better; a tail to the right is what the slowest wait for."
            .into(),
        legend: legend(report),
        figures: vec![Figure { run: String::new(), svg, note: String::new() }],
    })
}

/// How long each message of a run took, in ms, rising.
pub(super) fn took(run: &Run) -> Vec<f64> {
    let messages = run.flows.iter().flat_map(|flow| &flow.messages_ms);
    let mut times: Vec<_> = messages.map(|(posted, complete)| complete - posted).collect();
    if times.is_empty() {
        times.extend(run.summary.flows.iter().filter_map(|flow| flow.fct_ms));
    }
    times.retain(|time| time.is_finite());
    times.sort_by(f64::total_cmp);
    times
}

/// The part of `times` that is over at each time.
fn stairs(times: &[f64], end: f64) -> Points {
    if times.is_empty() {
        return Vec::new();
    }
    #[expect(clippy::cast_precision_loss, reason = "exact for as many as fit in memory")]
    let part = |count: usize| 100.0 * count as f64 / times.len() as f64;
    let mut stairs = vec![(0.0, 0.0)];
    // Many stairs are a curve.
    let step = times.len().div_ceil(POINTS);
    for (i, &time) in times.iter().enumerate() {
        if i % step == 0 || i + 1 == times.len() {
            stairs.extend([(time, part(i.saturating_sub(step - 1))), (time, part(i + 1))]);
        }
    }
    stairs.push((above(end), 100.0));
    stairs
}

/// How fairly the flows shared.
pub(super) fn jain(report: &Report) -> Option<Section> {
    if report.runs.iter().all(|run| run.jain.value.len() < 2) {
        return None;
    }
    let least = report.runs.iter().flat_map(|run| &run.jain.value).copied().fold(1.0, f64::min);
    // Whole tenths, so that 1 is at the top and a small unfairness still shows.
    let from = if least >= 0.99 { 0.98 } else { ((least - 0.02) * 10.0).floor().max(0.0) / 10.0 };
    let x = time(report);
    let mut spoken = "Jain's index over time".to_owned();
    for run in report.runs.iter().filter(|run| !run.jain.value.is_empty()) {
        let name = if run.name.is_empty() { "the run" } else { &run.name };
        spoken += &format!("; {name}: mean {}", figure(mean(&run.jain.value)));
    }
    let end = x.to;
    let frame = Frame {
        spoken: spoken + ".",
        wide: true,
        height: HEIGHT,
        x,
        y: Some(Axis { name: "Jain's index".into(), from, to: 1.0 + (1.0 - from) * 0.05, label: tick }),
        marked: true,
    };
    let svg = chart(&frame, |canvas| {
        canvas.level(1.0, "all equal")?;
        for (run, &ink) in report.runs.iter().zip(ink::SERIES.iter().cycle()) {
            canvas.line(&points(&run.jain, end, POINTS, mean), ink, 1.5)?;
        }
        Ok(())
    });
    Some(Section {
        id: "jain".into(),
        short: "Fairness".into(),
        title: "How fairly the flows shared".into(),
        note: "Jain's index of the flows' rates, window by window: 1 if all are equal, 1/n if one of n flows has all."
            .into(),
        legend: legend(report),
        figures: vec![Figure { run: String::new(), svg, note: String::new() }],
    })
}

/// The scenario's own charts.
pub(super) fn plots(report: &Report) -> Vec<Section> {
    (1..).zip(&report.plots).filter_map(|(number, plot)| own(number, plot)).collect()
}

fn own(number: u32, plot: &Plot) -> Option<Section> {
    let place = |&(x, y): &(f64, f64)| if plot.logarithmic { (x.log10(), y.log10()) } else { (x, y) };
    let lines: Vec<Points> = plot
        .lines
        .iter()
        .map(|line| line.points.iter().map(place).filter(|(x, y)| x.is_finite() && y.is_finite()).collect())
        .collect();
    let all = || lines.iter().flatten();
    let span = |pick: fn(&(f64, f64)) -> f64| {
        let least = all().map(pick).reduce(f64::min)?;
        Some((least, all().map(pick).fold(least, f64::max)))
    };
    let (x, y) = (span(|point| point.0)?, span(|point| point.1)?);
    // Rising values from zero on, exponents from whole to whole.
    let axis = |name: &str, (least, most): (f64, f64)| match plot.logarithmic {
        true => Axis {
            name: name.into(),
            from: least.floor(),
            to: if most.ceil() > least.floor() { most.ceil() } else { least.floor() + 1.0 },
            label: power_tick,
        },
        false => Axis { name: name.into(), from: least.min(0.0), to: above(most), label: tick },
    };
    let names: Vec<_> = plot.lines.iter().map(|line| line.name.as_str()).collect();
    let frame = Frame {
        spoken: format!("{}: {} against {}, for {}.", plot.title, plot.y, plot.x, names.join(", ")),
        wide: true,
        height: HEIGHT + 40,
        x: axis(&plot.x, x),
        y: Some(axis(&plot.y, y)),
        marked: false,
    };
    let svg = chart(&frame, |canvas| {
        for (line, &ink) in lines.iter().zip(ink::SERIES.iter().cycle()) {
            canvas.line(line, ink, 1.75)?;
            canvas.dots(line, ink)?;
        }
        Ok(())
    });
    let key = |(name, &ink): (&&str, _)| Key { ink, look: Look::Line, name: (*name).to_owned() };
    Some(Section {
        id: format!("plot-{number}"),
        short: plot.title.clone(),
        title: plot.title.clone(),
        note: plot.note.clone(),
        legend: names.iter().zip(ink::SERIES.iter().cycle()).map(key).collect(),
        figures: vec![Figure { run: String::new(), svg, note: String::new() }],
    })
}
