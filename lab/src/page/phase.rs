//! Two flows against each other: how they find their shares.

use super::canvas::{Axis, Frame, chart, ink};
use super::flows::told;
use super::section::{Figure, Key, Look, Section, above};
use super::series::{Group, Points, mean, parts};
use super::text::tick;
use crate::report::{Report, Run};

/// As high as it is wide, so that equal shares lie on the diagonal.
const HEIGHT: i32 = 376;
/// Points of the way, at most.
const PARTS: usize = 400;

/// The rates of two flows, one along each axis.
pub(super) fn phase(report: &Report, groups: &[Group]) -> Option<Section> {
    let [first, second] = groups else { return None };
    let ways: Vec<_> = report.runs.iter().map(|run| way(run, first, second)).collect();
    if ways.iter().all(|way| way.len() < 3) {
        return None;
    }
    let most = ways.iter().flatten().flat_map(|&(a, b)| [a, b]).fold(0.0, f64::max);
    let top = above(most);
    let axis =
        |group: &Group| Axis { name: format!("{}, Gb/s", group.name), from: 0.0, to: top, label: tick };
    let figures = report.runs.iter().zip(&ways).map(|(run, way)| {
        let frame = Frame {
            spoken: format!("Rate of {} against that of {}, {}.", second.name, first.name, told(run)),
            wide: false,
            height: HEIGHT,
            x: axis(first),
            y: Some(axis(second)),
            marked: true,
        };
        let svg = chart(&frame, |canvas| {
            canvas.line(&[(0.0, 0.0), (top, top)], ink::MARK, 1.25)?;
            if way.len() < 2 {
                return canvas.nothing("nothing arrived");
            }
            canvas.line(way, ink::SERIES[0], 1.0)?;
            canvas.dots(&way[way.len() - 1..], ink::SERIES[1])
        });
        Figure { run: run.name.clone(), svg, note: String::new() }
    });
    Some(Section {
        id: "phase".into(),
        short: "Phases".into(),
        title: "One flow's rate against the other's".into(),
        note: "On the dashed diagonal both have the same. Cuts lead towards the origin, and more of the faster flow; \
               increases lead along the diagonal: in the end, the dot, both should be on it."
            .into(),
        legend: vec![
            Key { ink: ink::SERIES[0], look: Look::Thin, name: "the way from the start".into() },
            Key { ink: ink::MARK, look: Look::Thin, name: "equal shares".into() },
        ],
        figures: figures.collect(),
    })
}

/// Both flows' allowed rates, or what they sent where nothing is held back, at the same times. Messages come and go:
/// flows of those find no shares.
fn way(run: &Run, first: &Group, second: &Group) -> Points {
    let of = |group: &Group| {
        let flow = group.of(run).next().filter(|flow| !group.many && flow.messages_ms.is_empty())?;
        let trace = if flow.allowed_gbps.value.is_empty() { &flow.rate_gbps } else { &flow.allowed_gbps };
        Some(parts(trace, run.end_ms, PARTS, mean))
    };
    let (Some(a), Some(b)) = (of(first), of(second)) else { return Points::new() };
    a.into_iter().zip(b).filter_map(|(a, b)| Some((a?, b?))).collect()
}
