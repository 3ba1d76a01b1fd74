//! The page of a report: one HTML file that holds all it shows, for a screen, for paper and for a screen reader.
//!
//! Called by the command, and by tests. Equal reports give equal bytes. It fetches nothing, runs no script, and
//! measures nothing: what it says is in the [`Report`].

mod canvas;
mod flows;
mod phase;
mod queues;
mod section;
mod series;
mod tables;
#[cfg(test)]
mod tests;
mod text;
mod whole;

use core::fmt::Write as _;

use crate::report::Report;
use section::Section;
use text::escape;

const STYLE: &str = include_str!("page/style.css");

/// The page that shows `report`.
#[must_use]
pub fn render(report: &Report) -> String {
    let sections = sections(report);
    let title = if report.title.is_empty() { &report.scenario } else { &report.title };
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" \
         content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<link rel=\"icon\" href=\"data:,\">\n\
         <title>{title} – ferroce lab</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<header>\n\
         <p class=\"kicker\">ferroce lab · <code>{scenario}</code> · seed {seed}</p>\n<h1>{title}</h1>\n",
        title = escape(title),
        scenario = escape(&report.scenario),
        seed = report.seed,
    );
    if !report.see.is_empty() {
        page += "<section class=\"see\" aria-labelledby=\"see\"><h2 id=\"see\">What to see</h2>\n";
        for paragraph in report.see.split("\n\n") {
            put(&mut page, format_args!("<p>{}</p>\n", escape(paragraph)));
        }
        page += "</section>\n";
    }
    page += "<nav aria-label=\"On this page\"><a href=\"#figures\">Figures</a>";
    for section in &sections {
        put(&mut page, format_args!("<a href=\"#{}\">{}</a>", section.id, escape(&section.short)));
    }
    let flows = tables::flows(report);
    if !flows.is_empty() {
        page += "<a href=\"#flows\">Flows</a>";
    }
    page += "<a href=\"#parameters\">Parameters</a></nav>\n</header>\n<main>\n";
    page += &tables::figures(report);
    for section in &sections {
        section.write(&mut page, report.runs.len());
    }
    page += &flows;
    page += &tables::parameters(report);
    page += "</main>\n</body>\n</html>\n";
    page
}

/// The charts that the report has something for.
fn sections(report: &Report) -> Vec<Section> {
    let groups = series::groups(report);
    let mut sections = Vec::new();
    sections.extend(flows::sent(report, &groups));
    sections.extend(flows::allowed(report, &groups));
    sections.extend(queues::depths(report));
    sections.extend(flows::alpha(report, &groups));
    sections.extend(flows::cnps(report, &groups));
    sections.extend(queues::pauses(report));
    sections.extend(whole::completions(report));
    sections.extend(whole::jain(report));
    sections.extend(phase::phase(report, &groups));
    sections.extend(whole::plots(report));
    sections
}

/// Appends; text in memory takes all.
fn put(page: &mut String, words: core::fmt::Arguments<'_>) {
    let written = page.write_fmt(words);
    debug_assert!(written.is_ok());
}
