//! The figures of the runs and flows, and the parameters, as tables.

use std::collections::BTreeSet;

use serde_json::Value;

use super::put;
use super::series::{mean, most, quantile};
use super::text::{escape, figure, words};
use super::whole::took;
use crate::report::{FlowSummary, Report, Run, more};

/// More flows than these are folded.
const UNFOLDED: usize = 8;

/// A figure: what it is called, and what it is in a run.
type Row = (String, Box<dyn Fn(&Run) -> Option<f64>>);

/// The figures of all runs, a column for each.
pub(super) fn figures(report: &Report) -> String {
    let mut table = "<section aria-labelledby=\"figures\">\n<h2 id=\"figures\">Figures</h2>\n".to_owned();
    if let Some(run) = report.runs.first()
        && run.warmup_ms > 0.0
    {
        let (warmup, end) = (figure(run.warmup_ms), figure(run.end_ms));
        put(
            &mut table,
            format_args!(
                "<p class=\"note\">Queue, utilisation, rates and fairness are those from {warmup} ms to {end} ms, \
                 after the start, which the charts shade; counts are of the whole run.</p>\n"
            ),
        );
    }
    table += "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-labelledby=\"figures\">\n";
    let rows: Vec<_> = rows(report)
        .into_iter()
        .map(|(name, of)| (name, report.runs.iter().map(&of).collect::<Vec<_>>()))
        .filter(|(_, values)| values.iter().any(Option::is_some))
        .collect();
    // Two halves side by side where there is but one column.
    let half = if report.runs.len() > 1 { rows.len() } else { rows.len().div_ceil(2) };
    for rows in rows.chunks(half.max(1)) {
        table += "<table>\n";
        if report.runs.len() > 1 {
            table += "<thead><tr><td></td>";
            for run in &report.runs {
                put(&mut table, format_args!("<th scope=\"col\">{}</th>", escape(&run.name)));
            }
            table += "</tr></thead>\n";
        }
        table += "<tbody>\n";
        for (name, values) in rows {
            put(&mut table, format_args!("<tr><th scope=\"row\">{}</th>", escape(name)));
            values.iter().for_each(|&value| cell(&mut table, value));
            table += "</tr>\n";
        }
        table += "</tbody>\n</table>\n";
    }
    table + "</div>\n</section>\n"
}

fn cell(table: &mut String, value: Option<f64>) {
    put(table, format_args!("<td>{}</td>", value.map_or_else(|| "–".into(), figure)));
}

fn rows(report: &Report) -> Vec<Row> {
    fn row(name: &str, of: impl Fn(&Run) -> Option<f64> + 'static) -> Row {
        (name.to_owned(), Box::new(of))
    }
    #[expect(clippy::cast_precision_loss, reason = "shown with its first digits")]
    let count = |name: &str, of: fn(&Run) -> u64| row(name, flowing(move |run| of(run) as f64));
    // Where nothing flows there is nothing to count.
    fn flowing(of: impl Fn(&Run) -> f64) -> impl Fn(&Run) -> Option<f64> {
        move |run| (!run.summary.flows.is_empty()).then(|| of(run))
    }
    fn queue(of: fn(&Run) -> f64) -> impl Fn(&Run) -> Option<f64> {
        move |run| (!run.queues.is_empty()).then(|| of(run))
    }
    let mut rows = vec![
        row("Rate of a flow, mean, Gb/s", |run| rates(run).map(|rates| mean(&rates))),
        row("Rate of the slowest flow, Gb/s", |run| rates(run).map(|rates| quantile(&rates, 0.0))),
        row("Rate of the fastest flow, Gb/s", |run| rates(run).map(|rates| quantile(&rates, 1.0))),
        row("Goodput of a flow, mean, Gb/s", |run| {
            let goodputs: Vec<_> = run.summary.flows.iter().map(|flow| flow.goodput_mean_gbps).collect();
            (!goodputs.is_empty()).then(|| mean(&goodputs))
        }),
        row("Jain's index of the rates", |run| rates(run).map(|_| run.summary.jain)),
        row("Utilisation of the bottleneck, %", queue(|run| run.summary.utilisation * 100.0)),
        row("Bottleneck's queue, mean, KB", queue(|run| run.summary.queue_mean_kb)),
        row("Bottleneck's queue, standard deviation, KB", queue(|run| run.summary.queue_sd_kb)),
        row("Bottleneck's queue, most, KB", queue(|run| run.summary.queue_max_kb)),
        row("Alpha, mean", |run| {
            let alphas: Vec<_> = run.summary.flows.iter().filter_map(|flow| flow.alpha_mean).collect();
            (!alphas.is_empty()).then(|| mean(&alphas))
        }),
        row("Completion time, median, ms", |run| times(run).map(|times| quantile(&times, 0.5))),
        row("Completion time, longest, ms", |run| times(run).map(|times| most(&times))),
        count("Packets marked by switches", |run| run.summary.ce_marked),
        count("CNPs sent", |run| run.summary.cnp_sent),
        count("Pause frames", |run| run.summary.pause_frames),
        row("Time paused, all links, ms", flowing(|run| run.summary.pause_ms)),
        count("Packets dropped", |run| run.summary.drops),
        count("Packets sent again", |run| run.summary.retransmissions),
    ];
    let keys: BTreeSet<_> = report.runs.iter().flat_map(|run| run.summary.more.keys()).cloned().collect();
    rows.extend(keys.into_iter().filter_map(|key| {
        let name = further(&key)?;
        Some(row(&name, move |run| run.summary.more.get(&key).copied()))
    }));
    rows
}

/// What a further figure is called; `None` for one that another row has already.
fn further(key: &str) -> Option<String> {
    let name = match key {
        more::ALPHA_FIXED_POINT => "Alpha, fixed point of theory",
        more::FAIR_GBPS => "Fair share of a flow, Gb/s",
        more::IDEAL_MS => "Least time possible for all, ms",
        "message_mean_ms" => "Completion time, mean, ms",
        "queue_peak_kb" => "Bottleneck's queue, most at any time, KB",
        "theory_queue_kb" => "Bottleneck's queue, fixed point of theory, KB",
        "theory_marked" => "Part of the packets marked, fixed point of theory",
        "utilisation_all" => "Utilisation of all watched queues, 0 to 1",
        "cnp_received" => "CNPs received",
        "packets" => "Packets sent",
        "events" => "Events simulated",
        "alpha_mean" | "message_max_ms" => return None,
        key => return Some(words(key)),
    };
    Some(name.to_owned())
}

/// Mean rates of a run's flows, rising.
fn rates(run: &Run) -> Option<Vec<f64>> {
    let mut rates: Vec<_> = run.summary.flows.iter().map(|flow| flow.rate_mean_gbps).collect();
    rates.sort_by(f64::total_cmp);
    (!rates.is_empty()).then_some(rates)
}

/// Completion times of a run's messages, rising.
fn times(run: &Run) -> Option<Vec<f64>> {
    Some(took(run)).filter(|times| !times.is_empty())
}

/// The flows of all runs, a line for each.
pub(super) fn flows(report: &Report) -> String {
    if report.runs.iter().all(|run| run.summary.flows.is_empty()) {
        return String::new();
    }
    let mut table = "<section aria-labelledby=\"flows\">\n<h2 id=\"flows\">Flows</h2>\n".to_owned();
    let mut names: Vec<&str> = Vec::new();
    let mut known = BTreeSet::new();
    for flow in report.runs.iter().flat_map(|run| &run.summary.flows) {
        if known.insert(flow.name.as_str()) {
            names.push(&flow.name);
        }
    }
    let open = if names.len() <= UNFOLDED { " open" } else { "" };
    put(&mut table, format_args!("<details{open}><summary>{} flows</summary>\n", names.len()));
    table +=
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-labelledby=\"flows\">\n<table>\n<thead>\n";
    let has = |of: fn(&FlowSummary) -> Option<f64>| {
        report.runs.iter().flat_map(|run| &run.summary.flows).any(|flow| of(flow).is_some())
    };
    type Column = (&'static str, fn(&FlowSummary) -> Option<f64>);
    let columns: [Column; 4] = [
        ("rate, Gb/s", |flow| Some(flow.rate_mean_gbps)),
        ("goodput, Gb/s", |flow| Some(flow.goodput_mean_gbps)),
        ("alpha", |flow| flow.alpha_mean),
        ("complete after, ms", |flow| flow.fct_ms),
    ];
    let columns: Vec<_> = columns.into_iter().filter(|(_, of)| has(*of)).collect();
    if report.runs.len() > 1 {
        table += "<tr><td></td>";
        for run in &report.runs {
            let name = escape(&run.name);
            put(&mut table, format_args!("<th scope=\"colgroup\" colspan=\"{}\">{name}</th>", columns.len()));
        }
        table += "</tr>\n";
    }
    table += "<tr><th scope=\"col\">flow</th>";
    for _ in &report.runs {
        for (name, _) in &columns {
            put(&mut table, format_args!("<th scope=\"col\">{name}</th>"));
        }
    }
    table += "</tr>\n</thead>\n<tbody>\n";
    for (at, name) in names.iter().enumerate() {
        put(&mut table, format_args!("<tr><th scope=\"row\">{}</th>", escape(name)));
        for run in &report.runs {
            // Runs mostly have the same flows in the same order.
            let flows = &run.summary.flows;
            let same = flows.get(at).filter(|flow| flow.name == *name);
            let flow = same.or_else(|| flows.iter().find(|flow| flow.name == *name));
            for (_, of) in &columns {
                cell(&mut table, flow.and_then(of));
            }
        }
        table += "</tr>\n";
    }
    table + "</tbody>\n</table>\n</div>\n</details>\n</section>\n"
}

/// The parameters, folded, as `--set` takes them.
pub(super) fn parameters(report: &Report) -> String {
    let mut lines = Vec::new();
    flatten("", &report.parameters, &mut lines);
    format!(
        "<section aria-labelledby=\"parameters\">\n<h2 id=\"parameters\">Parameters</h2>\n<details><summary>{} keys of \
         the scenario’s file, as <code>--set</code> takes them</summary>\n<pre>{}</pre>\n</details>\n</section>\n",
        lines.len(),
        escape(&lines.join("\n"))
    )
}

fn flatten(path: &str, value: &Value, lines: &mut Vec<String>) {
    let below = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| flatten(&below(key), value, lines)),
        Value::Array(items) if items.iter().any(Value::is_object) => {
            items.iter().enumerate().for_each(|(i, item)| flatten(&below(&i.to_string()), item, lines));
        }
        Value::Null if path.is_empty() => {}
        value => lines.push(format!("{path} = {value}")),
    }
}
