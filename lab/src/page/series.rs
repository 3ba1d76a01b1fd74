//! Series made small enough to draw: equal parts of the time, and many flows as few lines.

use crate::report::{Flow, Report, Run, Trace};

/// So many flows are drawn line by line; more are drawn in groups.
const LINES: usize = 6;

/// The trace's values in `parts` equal parts of `0..end`: `fold` of those in each, or the last before.
pub(super) fn parts(trace: &Trace, end: f64, parts: usize, fold: fn(&[f64]) -> f64) -> Vec<Option<f64>> {
    let mut values = Vec::with_capacity(parts);
    let (mut at, mut last) = (0, None);
    let length = trace.t_ms.len().min(trace.value.len());
    for part in 1..=parts {
        #[expect(clippy::cast_precision_loss, reason = "a few hundred parts")]
        let until = end * part as f64 / parts as f64;
        let from = at;
        while at < length && (trace.t_ms[at] < until || part == parts) {
            at += 1;
        }
        if at > from {
            last = Some(fold(&trace.value[from..at]));
        } else if at == length {
            // It has ended.
            last = None;
        }
        values.push(last);
    }
    values
}

/// The trace as points, at most about `most` of them.
pub(super) fn points(trace: &Trace, end: f64, most: usize, fold: fn(&[f64]) -> f64) -> Points {
    let length = trace.t_ms.len().min(trace.value.len());
    if length <= most {
        return trace.t_ms.iter().copied().zip(trace.value.iter().copied()).collect();
    }
    let values = parts(trace, end, most, fold);
    (0_u32..).zip(values).filter_map(|(i, value)| Some((middle(i, end, most), value?))).collect()
}

/// The middle of part `i`.
fn middle(i: u32, end: f64, parts: usize) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a few hundred parts")]
    let step = end / parts as f64;
    (f64::from(i) + 0.5) * step
}

/// Their mean; 0 of none.
pub(super) fn mean(values: &[f64]) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "exact for as many as fit in memory")]
    let count = values.len().max(1) as f64;
    values.iter().sum::<f64>() / count
}

/// The largest; 0 of none.
pub(super) fn most(values: &[f64]) -> f64 {
    values.iter().copied().reduce(f64::max).unwrap_or(0.0)
}

/// The value below which a part `p` of them lies; 0 of none.
pub(super) fn quantile(sorted: &[f64], p: f64) -> f64 {
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an index of the values"
    )]
    let at = (p * sorted.len().saturating_sub(1) as f64).round() as usize;
    sorted.get(at).copied().unwrap_or(0.0)
}

/// Flows of a report that are drawn in one colour: one flow, or several of one kind.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Group {
    /// What its flows are called.
    pub(super) name: String,
    /// Whether it may hold several flows: they are drawn as a band.
    pub(super) many: bool,
}

/// The groups of all runs' flows: each flow while they are few, else those alike but for their numbers.
pub(super) fn groups(report: &Report) -> Vec<Group> {
    let names = |key: fn(&str) -> String| {
        let mut names: Vec<String> = Vec::new();
        for flow in report.runs.iter().flat_map(|run| &run.flows) {
            let name = key(&flow.name);
            if !names.contains(&name) {
                names.push(name);
                if names.len() > LINES {
                    return None;
                }
            }
        }
        Some(names)
    };
    let group = |many| move |name| Group { name, many };
    if let Some(each) = names(str::to_owned) {
        return each.into_iter().map(group(false)).collect();
    }
    match names(kind) {
        Some(kinds) if kinds.len() > 1 => kinds.into_iter().map(group(true)).collect(),
        _ => vec![Group { name: String::new(), many: true }],
    }
}

/// A flow's name without its numbers.
fn kind(name: &str) -> String {
    let kept: String = name.chars().filter(|c| !c.is_ascii_digit()).collect();
    kept.trim_matches(|c: char| c.is_whitespace() || matches!(c, '-' | '_' | '.' | ':' | '#')).to_owned()
}

impl Group {
    /// Its flows of a run.
    pub(super) fn of<'a>(&'a self, run: &'a Run) -> impl Iterator<Item = &'a Flow> {
        run.flows.iter().filter(|flow| {
            if self.many {
                self.name.is_empty() || kind(&flow.name) == self.name
            } else {
                flow.name == self.name
            }
        })
    }
}

/// A line of points: when, and what.
pub(super) type Points = Vec<(f64, f64)>;

/// The points, none higher than `top`.
pub(super) fn cut(points: &Points, top: f64) -> Points {
    points.iter().map(|&(t, value)| (t, value.min(top))).collect()
}

/// What many flows did at each time.
pub(super) struct Band {
    pub(super) low: Points,
    pub(super) middle: Points,
    pub(super) high: Points,
}

/// Least, median and most of `traces` in each of `count` parts of the time.
pub(super) fn band(traces: &[&Trace], end: f64, count: usize) -> Band {
    let columns: Vec<_> = traces.iter().map(|trace| parts(trace, end, count, mean)).collect();
    let mut band = Band { low: Vec::new(), middle: Vec::new(), high: Vec::new() };
    for (i, part) in (0_u32..).zip(0..count) {
        let mut values: Vec<f64> = columns.iter().filter_map(|column| column[part]).collect();
        if values.is_empty() {
            continue;
        }
        values.sort_by(f64::total_cmp);
        let when = middle(i, end, count);
        band.low.push((when, values[0]));
        band.middle.push((when, quantile(&values, 0.5)));
        band.high.push((when, values[values.len() - 1]));
    }
    band
}
