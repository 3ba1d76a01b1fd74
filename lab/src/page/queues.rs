//! Charts of the network: queues, and links that were paused.

use plotters::style::RGBColor;

use super::canvas::{Axis, Frame, chart, height_of_rows, ink};
use super::flows::{told, warmup};
use super::section::{Figure, Height, Key, Look, Section, cut_off, time};
use super::series::{cut, mean, most, points};
use super::text::{figure, tick};
use crate::report::{Link, Pause, Queue, Report, Run, Trace};

const HEIGHT: i32 = 210;
const POINTS: usize = 480;
/// Queues that are shown, at most: of few runs, and of many.
const QUEUES: [usize; 2] = [4, 2];
/// Rows of paused links, at most.
const ROWS: usize = 16;
/// Parts of the time of such a row.
const PARTS: usize = 480;
/// A start so many times higher than what follows is cut off.
const SPIKE: f64 = 2.5;
/// A chart that the others' height presses down to less than its so manieth part is drawn once more.
const PRESSED: f64 = 6.0;

/// What waited in the queues, the bottleneck's first.
pub(super) fn depths(report: &Report) -> Vec<Section> {
    let queues = report.runs.iter().map(|run| run.queues.len()).max().unwrap_or(0);
    let queues = queues.min(QUEUES[usize::from(report.runs.len() > 3)]);
    (0..queues).filter_map(|at| depth(report, at, queues)).collect()
}

fn depth(report: &Report, at: usize, queues: usize) -> Option<Section> {
    let queue = |run: &'_ Run| run.queues.get(at).cloned();
    let found: Vec<_> = report.runs.iter().map(queue).collect();
    let name = found.iter().flatten().map(|queue| queue.name.as_str()).next()?;
    if found.iter().flatten().all(|queue| queue.depth_kb.value.is_empty() && queue.peak_kb.value.is_empty()) {
        return None;
    }
    let top = height(report, &found).top(SPIKE);
    let marked = found.iter().flatten().any(|queue| queue.marks.iter().any(|mark| mark.value <= top));
    let figures = report.runs.iter().zip(&found).map(|(run, queue)| {
        let none = Queue::default();
        figure_of(report, run, queue.as_ref().unwrap_or(&none), top, marked)
    });
    let key = |look, ink, name: &str| Key { look, ink, name: name.into() };
    Some(Section {
        id: if at == 0 { "queue".into() } else { format!("queue-{}", at + 1) },
        short: if queues == 1 { "Queue".into() } else { format!("Queue {}", at + 1) },
        title: format!("Queue at {name}"),
        note: "What waits there to be sent. The switch begins to mark above Kmin, ever more of the packets up to \
               Kmax, and all of them above it; from XOFF on it pauses those who send to it."
            .into(),
        legend: vec![
            key(Look::Line, ink::SERIES[0], "mean of each step"),
            key(Look::Area, ink::PALE, "the most in each step"),
        ],
        figures: figures.collect(),
    })
}

/// The most that waited, and the lines to compare it with.
fn height(report: &Report, queues: &[Option<Queue>]) -> Height {
    let mut height = Height::default();
    for (run, queue) in report.runs.iter().zip(queues) {
        let Some(queue) = queue else { continue };
        for Trace { t_ms, value } in [&queue.peak_kb, &queue.depth_kb] {
            let points = t_ms.iter().copied().zip(value.iter().copied());
            points.for_each(|point| height.hold(point, run.warmup_ms));
        }
    }
    // A line far above all that ever waited would only press it down.
    let most = height.most();
    let marks = queues.iter().flatten().flat_map(|queue| &queue.marks).map(|mark| mark.value);
    marks.filter(|mark| *mark <= 2.5 * most).for_each(|mark| height.hold((f64::INFINITY, mark), 0.0));
    height
}

/// The chart of a run, and beneath it what it does not show; once more by itself if the others press it down.
fn figure_of(report: &Report, run: &Run, queue: &Queue, top: f64, marked: bool) -> Figure {
    let own =
        height(&Report { runs: vec![run.clone()], ..Report::default() }, &[Some(queue.clone())]).top(SPIKE);
    let (mut svg, mut note) = draw(report, run, queue, top, marked);
    if own * PRESSED < top && !queue.depth_kb.value.is_empty() {
        let (closer, its_note) = draw(report, run, queue, own, marked);
        svg += "<p class=\"remark\">The same, its axis as high as its own values:</p>\n";
        svg += &closer;
        note = its_note;
    }
    Figure { run: run.name.clone(), svg, note }
}

fn draw(report: &Report, run: &Run, queue: &Queue, top: f64, marked: bool) -> (String, String) {
    let (low, high): (Vec<_>, Vec<_>) = queue.marks.iter().partition(|mark| mark.value <= top);
    let x = time(report);
    let end = x.to;
    let frame = Frame {
        spoken: format!(
            "Queue at {}, {}: mean {} KB, at most {} KB.",
            queue.name,
            told(run),
            figure(mean(&queue.depth_kb.value)),
            figure(most(&queue.peak_kb.value))
        ),
        wide: report.runs.len() == 1,
        height: HEIGHT,
        x,
        y: Some(Axis { name: "KB".into(), from: 0.0, to: top, label: tick }),
        marked,
    };
    let peak = points(&queue.peak_kb, end, POINTS, most);
    let svg = chart(&frame, |canvas| {
        warmup(canvas, run)?;
        let ground: Vec<_> = peak.iter().map(|&(t, _)| (t, 0.0)).collect();
        canvas.band(&ground, &cut(&peak, top), ink::PALE, 1.0)?;
        canvas.line(&cut(&points(&queue.depth_kb, end, POINTS, mean), top), ink::SERIES[0], 1.25)?;
        low.iter()
            .try_for_each(|mark| canvas.level(mark.value, &format!("{} {}", mark.name, figure(mark.value))))
    });
    let mut notes: Vec<_> =
        high.iter().map(|mark| format!("{} is at {} KB", mark.name, figure(mark.value))).collect();
    notes.extend(Some(cut_off(peak.iter(), top, "KB")).filter(|note| !note.is_empty()));
    let note =
        if notes.is_empty() { String::new() } else { format!("Above the chart: {}.", notes.join("; ")) };
    (svg, note)
}

/// When links were paused.
pub(super) fn pauses(report: &Report) -> Option<Section> {
    if report.runs.iter().flat_map(|run| &run.links).all(|link| link.pauses.is_empty()) {
        return None;
    }
    let end = time(report).to;
    let rows: Vec<_> = report.runs.iter().map(|run| rows(run, end)).collect();
    // The same rows in all charts, so that they can be compared.
    let mut names: Vec<&str> = Vec::new();
    for row in rows.iter().flatten() {
        if !names.contains(&row.name.as_str()) {
            names.push(&row.name);
        }
    }
    let hidden = names.len().saturating_sub(ROWS);
    if hidden > 0 {
        let paused =
            |name: &str| rows.iter().flatten().filter(|row| row.name == name).map(Row::paused).sum::<f64>();
        names.sort_by(|a, b| paused(b).total_cmp(&paused(a)));
        names.truncate(ROWS);
        names.sort_unstable();
    }
    let figures = report.runs.iter().zip(&rows).map(|(run, rows)| {
        let frame = Frame {
            spoken: format!(
                "Paused links, {}: {} pause frames, {} ms paused in all.",
                told(run),
                run.summary.pause_frames,
                figure(run.summary.pause_ms)
            ),
            wide: report.runs.len() == 1,
            height: height_of_rows(names.len()),
            x: time(report),
            y: None,
            marked: false,
        };
        let svg = chart(&frame, |canvas| {
            warmup(canvas, run)?;
            names.iter().enumerate().try_for_each(|(at, &name)| {
                let row = rows.iter().find(|row| row.name == name);
                canvas.row((at, names.len()), name, row.map_or(&[][..], |row| &row.parts), PAUSED)
            })
        });
        Figure { run: run.name.clone(), svg, note: String::new() }
    });
    let more =
        if hidden > 0 { format!(" {hidden} more links were paused for less time.") } else { String::new() };
    Some(Section {
        id: "pauses".into(),
        short: "Pauses".into(),
        title: "Links that were paused".into(),
        note: format!(
            "A full block is a link that may not send; lower ones were paused for a part of that time only.{more}"
        ),
        legend: Vec::new(),
        figures: figures.collect(),
    })
}

const PAUSED: RGBColor = ink::SERIES[1];

/// A link and priority: which part of each part of the time it was paused.
struct Row {
    name: String,
    parts: Vec<f64>,
}

impl Row {
    fn paused(&self) -> f64 {
        self.parts.iter().sum()
    }
}

fn rows(run: &Run, end: f64) -> Vec<Row> {
    let mut rows = Vec::new();
    for Link { name, pauses } in &run.links {
        let mut priorities: Vec<_> = pauses.iter().map(|pause| pause.priority).collect();
        priorities.sort_unstable();
        priorities.dedup();
        for &priority in &priorities {
            let name = if priorities.len() == 1 { name.clone() } else { format!("{name} p{priority}") };
            let of_it = pauses.iter().filter(|pause| pause.priority == priority);
            rows.push(Row { name, parts: covered(of_it, end) });
        }
    }
    rows
}

/// Which part of each of equal parts of the time the pauses cover.
fn covered<'a>(pauses: impl Iterator<Item = &'a Pause>, end: f64) -> Vec<f64> {
    #[expect(clippy::cast_precision_loss, reason = "a few hundred parts")]
    let step = end / PARTS as f64;
    let mut parts = vec![0.0; PARTS];
    for pause in pauses {
        let (from, to) = ((pause.from_ms / step).max(0.0), pause.to_ms / step);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index of the parts")]
        let (first, last) = (from as usize, (to.ceil().max(0.0) as usize).min(PARTS));
        for (part, start) in parts.iter_mut().enumerate().take(last).skip(first) {
            #[expect(clippy::cast_precision_loss, reason = "a few hundred parts")]
            let left = part as f64;
            *start += (to.min(left + 1.0) - from.max(left)).max(0.0);
        }
    }
    // Two digits are more than the eye sees, and keep equal parts equal.
    parts.iter().map(|part| (part.min(1.0) * 100.0).ceil() / 100.0).collect()
}
