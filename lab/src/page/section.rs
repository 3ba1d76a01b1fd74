//! A part of the page: a heading, how to read it, a legend, and a chart of each run.
//!
//! Filled by the charts of this folder, written by the page.

use plotters::style::RGBColor;

use super::canvas::{Axis, ink};
use super::put;
use super::text::{escape, figure, tick};
use crate::report::Report;

/// A part of the page.
pub(super) struct Section {
    /// Its anchor.
    pub(super) id: String,
    /// What leads to it.
    pub(super) short: String,
    pub(super) title: String,
    /// How to read it.
    pub(super) note: String,
    pub(super) legend: Vec<Key>,
    pub(super) figures: Vec<Figure>,
}

/// A chart, and what is said beneath it.
pub(super) struct Figure {
    /// The run's name; empty where there is one for all.
    pub(super) run: String,
    pub(super) svg: String,
    pub(super) note: String,
}

/// A sample of a line, and its name.
pub(super) struct Key {
    pub(super) ink: RGBColor,
    pub(super) look: Look,
    pub(super) name: String,
}

/// How a line or an area looks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    Line,
    Thin,
    /// The ground between two lines, and the line in its midst.
    Band,
    Area,
}

impl Section {
    /// Appends it; charts of several runs stand side by side.
    pub(super) fn write(&self, page: &mut String, runs: usize) {
        let Self { id, title, note, .. } = self;
        put(
            page,
            format_args!("<section aria-labelledby=\"{id}\">\n<h2 id=\"{id}\">{}</h2>\n", escape(title)),
        );
        put(page, format_args!("<p class=\"note\">{}</p>\n", escape(note)));
        if !self.legend.is_empty() {
            *page += "<ul class=\"legend\">";
            self.legend.iter().for_each(|key| key.write(page));
            *page += "</ul>\n";
        }
        let alone = if self.figures.len() == 1 { " alone" } else { "" };
        put(page, format_args!("<div class=\"charts{alone}\">\n"));
        for Figure { run, svg, note } in &self.figures {
            *page += "<figure>\n";
            if runs > 1 && !run.is_empty() {
                put(page, format_args!("<figcaption>{}</figcaption>\n", escape(run)));
            }
            *page += svg;
            if !note.is_empty() {
                put(page, format_args!("<p class=\"remark\">{}</p>\n", escape(note)));
            }
            *page += "</figure>\n";
        }
        *page += "</div>\n</section>\n";
    }
}

impl Key {
    fn write(&self, page: &mut String) {
        let ink = ink::name(self.ink);
        let line = |width| {
            format!(
                "<line stroke=\"{ink}\" stroke-width=\"{width}\" x1=\"0\" y1=\"24\" x2=\"136\" y2=\"24\"/>"
            )
        };
        let area = |strength| {
            format!("<rect fill=\"{ink}\" opacity=\"{strength}\" y=\"6\" width=\"136\" height=\"36\"/>")
        };
        let sample = match self.look {
            Look::Line => line(8),
            Look::Thin => line(4),
            Look::Band => area("0.22") + &line(8),
            Look::Area => area("1"),
        };
        put(
            page,
            format_args!(
                "<li><svg class=\"key\" viewBox=\"0 0 136 48\" aria-hidden=\"true\">{sample}</svg>{}</li>",
                escape(&self.name),
            ),
        );
    }
}

/// The axis of time that all runs share.
pub(super) fn time(report: &Report) -> Axis {
    let end = report.runs.iter().map(|run| run.end_ms).fold(0.0, f64::max);
    let to = if end > 0.0 { end } else { 1.0 };
    let (name, label): (_, fn(f64) -> String) = match to {
        ..2.0 => ("time, µs", |ms| tick(ms * 1000.0)),
        ..5000.0 => ("time, ms", tick),
        _ => ("time, s", |ms| tick(ms / 1000.0)),
    };
    Axis { name: name.into(), from: 0.0, to, label }
}

/// An upper end for an axis that holds `most`.
pub(super) fn above(most: f64) -> f64 {
    if most > 0.0 && most.is_finite() { most * 1.06 } else { 1.0 }
}

/// The most of what is drawn, before the warm-up's end and after it.
#[derive(Clone, Copy, Default)]
pub(super) struct Height {
    start: f64,
    rest: f64,
}

impl Height {
    /// Makes room for a value.
    pub(super) fn hold(&mut self, (t, value): (f64, f64), warmup_ms: f64) {
        let side = if t < warmup_ms { &mut self.start } else { &mut self.rest };
        *side = side.max(value);
    }

    /// The most of all.
    pub(super) fn most(self) -> f64 {
        self.start.max(self.rest)
    }

    /// How high a chart is that shows what matters: a start more than `spike` times higher than what follows is
    /// cut off, so that what follows can be seen.
    pub(super) fn top(self, spike: f64) -> f64 {
        let cut = self.rest > 0.0 && self.start > spike * self.rest;
        above(if cut { self.rest } else { self.most() })
    }
}

/// What is said beneath a chart of those points that it cuts off; empty if it holds them all.
pub(super) fn cut_off<'a>(points: impl Iterator<Item = &'a (f64, f64)>, top: f64, unit: &str) -> String {
    let highest = points.copied().reduce(|a, b| if b.1 > a.1 { b } else { a });
    match highest.filter(|point| point.1 > top) {
        Some((t, value)) => format!("the start reaches {} {unit} at {} ms", figure(value), figure(t)),
        None => String::new(),
    }
}
