//! Charts of the flows: rates, alpha, CNPs.

use plotters::style::RGBColor;

use super::canvas::{Axis, Canvas, Drawn, Frame, chart, height_of_rows, ink};
use super::section::{Figure, Height, Key, Look, Section, cut_off, time};
use super::series::{Band, Group, Points, band, cut, mean, most, points};
use super::text::{figure, tick};
use crate::report::{Flow, Report, Run, Trace, more};

const HEIGHT: i32 = 210;
/// Points of a line, at most: about two to a pixel of a wide chart's half.
const POINTS: usize = 480;
/// Parts of the time of a band, and of a row of CNPs.
const PARTS: usize = 280;
/// Rows of flows, at most; more are drawn by their groups.
const ROWS: usize = 12;

/// One of a flow's series.
type Series = fn(&Flow) -> &Trace;

/// What a chart of flows shows.
struct Kind {
    id: &'static str,
    short: &'static str,
    title: &'static str,
    note: &'static str,
    /// A start so many times higher than what follows is cut off.
    spike: f64,
    /// What is said in the chart of a run that has none.
    none: &'static str,
    /// What the vertical axis is.
    axis: &'static str,
    unit: &'static str,
    series: Series,
    /// Drawn thin beside it while the flows are few.
    beside: Option<(&'static str, Series)>,
    /// A line to compare with: the figure's key, and what the line is called.
    compare: Option<(&'static str, &'static str)>,
}

/// What of the flows arrived.
pub(super) fn sent(report: &Report, groups: &[Group]) -> Option<Section> {
    per_flow(
        report,
        groups,
        &Kind {
            id: "rate",
            short: "Rates",
            title: "Rate at which each flow arrives",
            note: "What reached the receiver, headers included, averaged over each step of the chart.",
            spike: 2.5,
            none: "nothing arrived",
            axis: "Gb/s",
            unit: "Gb/s",
            series: |flow| &flow.rate_gbps,
            beside: None,
            compare: Some((more::FAIR_GBPS, "fair share")),
        },
    )
}

/// What congestion control allows them.
pub(super) fn allowed(report: &Report, groups: &[Group]) -> Option<Section> {
    per_flow(
        report,
        groups,
        &Kind {
            id: "allowed",
            short: "Allowed rates",
            title: "Rate that congestion control allows",
            note: "Each CNP cuts it; timer and byte counter raise it again, towards the target first and then the \
                   target with it.",
            spike: 2.5,
            none: "none: without congestion control nothing is held back",
            axis: "Gb/s",
            unit: "Gb/s",
            series: |flow| &flow.allowed_gbps,
            beside: Some(("target", |flow| &flow.target_gbps)),
            compare: Some((more::FAIR_GBPS, "fair share")),
        },
    )
}

/// How congested they believe the path to be.
pub(super) fn alpha(report: &Report, groups: &[Group]) -> Option<Section> {
    per_flow(
        report,
        groups,
        &Kind {
            id: "alpha",
            short: "Alpha",
            title: "Alpha: how congested each flow believes its path to be",
            note: "A CNP cuts the rate by alpha / 2. Alpha rises with every CNP and decays while none arrives.",
            spike: 20.0,
            none: "none: no congestion control that has an alpha",
            axis: "alpha",
            unit: "",
            series: |flow| &flow.alpha,
            beside: None,
            compare: Some((more::ALPHA_FIXED_POINT, "fixed point")),
        },
    )
}

/// What is drawn in one chart.
enum Shape {
    Line { points: Points, ink: RGBColor, width: f64 },
    Band { band: Band, ink: RGBColor },
}

impl Shape {
    /// Its highest points.
    fn high(&self) -> &Points {
        let (Self::Line { points, .. } | Self::Band { band: Band { high: points, .. }, .. }) = self;
        points
    }

    fn draw(&self, canvas: &mut Canvas<'_>, top: f64) -> Drawn {
        match self {
            Self::Line { points, ink, width } => canvas.line(&cut(points, top), *ink, *width),
            Self::Band { band, ink } => {
                canvas.band(&cut(&band.low, top), &cut(&band.high, top), *ink, 0.22)?;
                canvas.line(&cut(&band.middle, top), *ink, 1.75)
            }
        }
    }
}

fn per_flow(report: &Report, groups: &[Group], kind: &Kind) -> Option<Section> {
    let x = time(report);
    let shapes: Vec<_> = report.runs.iter().map(|run| shapes(run, groups, kind, x.to)).collect();
    if shapes.iter().all(Vec::is_empty) {
        return None;
    }
    let compare = |run: &Run| {
        let (key, name) = kind.compare?;
        Some((*run.summary.more.get(key)?, name))
    };
    let levels: Vec<_> = report.runs.iter().map(compare).collect();
    let mut height = Height::default();
    for (run, shapes) in report.runs.iter().zip(&shapes) {
        shapes.iter().flat_map(Shape::high).for_each(|&point| height.hold(point, run.warmup_ms));
    }
    levels.iter().flatten().for_each(|level| height.hold((f64::INFINITY, level.0), 0.0));
    let top = height.top(kind.spike);
    let marked = levels.iter().any(Option::is_some);
    let figures = report.runs.iter().zip(&shapes).zip(levels).map(|((run, shapes), level)| {
        let frame = Frame {
            spoken: spoken(run, groups, kind),
            wide: report.runs.len() == 1,
            height: HEIGHT,
            x: time(report),
            y: Some(Axis { name: kind.axis.into(), from: 0.0, to: top, label: tick }),
            marked,
        };
        let svg = chart(&frame, |canvas| {
            warmup(canvas, run)?;
            if shapes.is_empty() {
                return canvas.nothing(kind.none);
            }
            shapes.iter().try_for_each(|shape| shape.draw(canvas, top))?;
            level.map_or(Ok(()), |(value, name)| canvas.level(value, &format!("{name} {}", figure(value))))
        });
        let cut = cut_off(shapes.iter().flat_map(Shape::high), top, kind.unit);
        let note = if cut.is_empty() { cut } else { format!("Above the chart: {cut}.") };
        Figure { run: run.name.clone(), svg, note }
    });
    Some(Section {
        id: kind.id.into(),
        short: kind.short.into(),
        title: kind.title.into(),
        note: kind.note.into(),
        figures: figures.collect(),
        legend: legend(report, groups, kind),
    })
}

/// Darkens what was not yet measured.
pub(super) fn warmup(canvas: &mut Canvas<'_>, run: &Run) -> Drawn {
    if run.warmup_ms <= 0.0 {
        return Ok(());
    }
    canvas.shade(0.0, run.warmup_ms)
}

fn shapes(run: &Run, groups: &[Group], kind: &Kind, end: f64) -> Vec<Shape> {
    let line =
        |trace: &Trace, ink, width| Shape::Line { points: points(trace, end, POINTS, mean), ink, width };
    let mut shapes = Vec::new();
    for (group, &ink) in groups.iter().zip(&ink::SERIES) {
        let mut flows: Vec<_> = group.of(run).filter(|flow| !(kind.series)(flow).value.is_empty()).collect();
        if let [flow] = flows[..] {
            if let Some((_, series)) = beside(groups, kind) {
                shapes.push(line(series(flow), ink, 0.75));
            }
            shapes.push(line((kind.series)(flow), ink, 1.5));
        } else if !flows.is_empty() {
            let traces: Vec<_> = flows.iter().map(|flow| (kind.series)(flow)).collect();
            shapes.push(Shape::Band { band: band(&traces, end, PARTS), ink });
            if groups.len() == 1 {
                flows.sort_by(|a, b| mean(&a.rate_gbps.value).total_cmp(&mean(&b.rate_gbps.value)));
                let ends = [flows[0], flows[flows.len() - 1]];
                shapes.extend(
                    ends.iter()
                        .zip(&ink::SERIES[1..])
                        .map(|(flow, &ink)| line((kind.series)(flow), ink, 0.75)),
                );
            }
        }
    }
    shapes
}

/// The series drawn thin beside the main one, if the chart has room for it.
fn beside(groups: &[Group], kind: &Kind) -> Option<(&'static str, Series)> {
    kind.beside.filter(|_| groups.len() <= 2 && groups.iter().all(|group| !group.many))
}

fn legend(report: &Report, groups: &[Group], kind: &Kind) -> Vec<Key> {
    let key = |ink, look, name: &str| Key { ink, look, name: name.into() };
    let several = |group: &Group| report.runs.iter().any(|run| group.of(run).count() > 1);
    let mut keys = Vec::new();
    for (group, &ink) in groups.iter().zip(&ink::SERIES) {
        match (several(group), group.name.as_str()) {
            (false, name) => keys.push(key(ink, Look::Line, name)),
            (true, "") => keys.push(key(ink, Look::Band, "all flows: least to most, and the median")),
            (true, name) => {
                keys.push(key(ink, Look::Band, &format!("{name}: least to most, and the median")))
            }
        }
    }
    if let [group] = groups
        && several(group)
    {
        keys.push(key(ink::SERIES[1], Look::Thin, "the flow slowest on the whole"));
        keys.push(key(ink::SERIES[2], Look::Thin, "the fastest"));
    }
    if let Some((name, _)) = beside(groups, kind) {
        let drawn = |flow: &Flow| kind.beside.is_some_and(|(_, series)| !series(flow).value.is_empty());
        if report.runs.iter().flat_map(|run| &run.flows).any(drawn) {
            keys.push(key(ink::SERIES[0], Look::Thin, &format!("thin: its {name}")));
        }
    }
    keys
}

/// What the chart shows, in words.
fn spoken(run: &Run, groups: &[Group], kind: &Kind) -> String {
    let mut words = format!("{}, {}", kind.title, told(run));
    for group in groups {
        let means: Vec<_> = group
            .of(run)
            .map(|flow| (kind.series)(flow))
            .filter(|trace| !trace.value.is_empty())
            .map(|trace| measured_mean(trace, run.warmup_ms))
            .collect();
        let Some(least) = means.iter().copied().reduce(f64::min) else { continue };
        let name = if group.name.is_empty() { "all flows" } else { &group.name };
        words += &match means.len() {
            1 => format!("; {name}: mean {} {}", figure(least), kind.unit),
            n => format!(
                "; {name}, {n} flows: means from {} to {} {}",
                figure(least),
                figure(most(&means)),
                kind.unit
            ),
        };
    }
    words.trim_end().to_owned() + "."
}

/// Which run it is, and how long.
pub(super) fn told(run: &Run) -> String {
    let name = if run.name.is_empty() { String::new() } else { format!("run {}, ", run.name) };
    format!("{name}{} ms", figure(run.end_ms))
}

/// Mean of the values after the warm-up; of all if there are none.
fn measured_mean(trace: &Trace, warmup_ms: f64) -> f64 {
    let from = trace.t_ms.partition_point(|&t| t < warmup_ms);
    match trace.value.get(from..) {
        Some(values) if !values.is_empty() => mean(values),
        _ => mean(&trace.value),
    }
}

/// When CNPs reached them.
pub(super) fn cnps(report: &Report, groups: &[Group]) -> Option<Section> {
    let most_flows = report.runs.iter().map(|run| run.flows.len()).max()?;
    if report.runs.iter().flat_map(|run| &run.flows).all(|flow| flow.cnps_ms.is_empty()) {
        return None;
    }
    let end = time(report).to;
    let each = most_flows <= ROWS;
    let rows: Vec<Vec<(String, RGBColor, Vec<f64>)>> = report
        .runs
        .iter()
        .map(|run| {
            let flow = |flow: &Flow| {
                let at = groups.iter().position(|group| group.of(run).any(|other| other.name == flow.name));
                (flow.name.clone(), ink::SERIES[at.unwrap_or(0)], counts(&flow.cnps_ms, end))
            };
            if each {
                return run.flows.iter().map(flow).collect();
            }
            let sums = groups.iter().zip(&ink::SERIES).map(|(group, &ink)| {
                let name = if group.name.is_empty() { "all flows" } else { &group.name };
                let mut all = vec![0.0; PARTS];
                for flow in group.of(run) {
                    all.iter_mut().zip(counts(&flow.cnps_ms, end)).for_each(|(sum, count)| *sum += count);
                }
                (name.to_owned(), ink, all)
            });
            sums.chain(run.flows.iter().take(ROWS - groups.len()).map(flow)).collect()
        })
        .collect();
    // Rows of one flow share a scale, and so do those of many.
    let sums = if each { 0 } else { groups.len() };
    let scale = |from: usize, to: usize| {
        let rows = rows.iter().flat_map(|rows| rows.iter().take(to).skip(from));
        rows.flat_map(|row| &row.2).copied().fold(1.0, f64::max)
    };
    let (of_sums, of_flows) = (scale(0, sums), scale(sums, usize::MAX));
    let figures = report.runs.iter().zip(&rows).map(|(run, rows)| {
        let frame = Frame {
            spoken: format!("CNPs, {}: {} sent.", told(run), run.summary.cnp_sent),
            wide: report.runs.len() == 1,
            height: height_of_rows(rows.len().max(1)),
            x: time(report),
            y: None,
            marked: false,
        };
        let svg = chart(&frame, |canvas| {
            warmup(canvas, run)?;
            rows.iter().enumerate().try_for_each(|(at, (name, ink, counts))| {
                let scale = if at < sums { of_sums } else { of_flows };
                let heights: Vec<_> = counts.iter().map(|count| count / scale).collect();
                canvas.row((at, rows.len()), name, &heights, *ink)
            })
        });
        let hidden = (run.flows.len() + sums).saturating_sub(rows.len());
        let note =
            if hidden > 0 { format!("{hidden} more flows are in the sum alone.") } else { String::new() };
        Figure { run: run.name.clone(), svg, note }
    });
    Some(Section {
        id: "cnp".into(),
        short: "CNPs".into(),
        title: "CNPs that reached each flow".into(),
        note: format!(
            "A stroke is a part of {} ms in which CNPs came; its height tells how many, the highest being {}.",
            figure(end / f64::from(u16::try_from(PARTS).unwrap_or(u16::MAX))),
            figure(of_flows),
        ),
        legend: Vec::new(),
        figures: figures.collect(),
    })
}

/// How many of the moments lie in each part of the time.
fn counts(moments: &[f64], end: f64) -> Vec<f64> {
    let mut counts = vec![0.0; PARTS];
    for moment in moments {
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "an index of a few hundred; a negative moment is the first"
        )]
        let at = (moment / end * PARTS as f64) as usize;
        counts[at.min(PARTS - 1)] += 1.0;
    }
    counts
}
