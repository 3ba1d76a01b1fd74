//! What `ferroce lab` prints for people.

use std::io::{self, Write};
use std::time::Duration;

use lab::scenario::Scenario;
use lab::{BUILTIN, Report, Run};

/// Flows that are told of one by one.
const FLOWS: usize = 16;

/// The built-in scenarios.
pub(super) fn list(out: &mut dyn Write) -> io::Result<()> {
    for builtin in BUILTIN {
        let title = match Scenario::parse(builtin.name, builtin.text, &[], None) {
            Ok(scenario) => scenario.title,
            Err(error) => error.to_string(),
        };
        writeln!(out, "{:<16} {title}", builtin.name)?;
    }
    Ok(())
}

/// The figures of all runs, what to see in them, and what they cost.
pub(super) fn text(
    report: &Report,
    elapsed: Duration,
    (queue_pairs, before): (usize, Option<u64>),
    out: &mut dyn Write,
) -> io::Result<()> {
    writeln!(out, "{} (seed {})", report.title, report.seed)?;
    for run in &report.runs {
        figures(run, out)?;
    }
    if !report.see.is_empty() {
        writeln!(out, "\n{}", report.see)?;
    }
    if report.runs.iter().all(|run| run.flows.is_empty()) {
        return Ok(());
    }
    let events: f64 = report.runs.iter().filter_map(|run| run.summary.more.get("events")).sum();
    let seconds = elapsed.as_secs_f64();
    write!(out, "\n{events} events in {seconds:.2} s, {:.2} million/s", events / seconds.max(1e-9) / 1e6)?;
    if let Some((peak, before)) = peak_memory().zip(before) {
        let own = (peak.saturating_sub(before)) as f64 * 1.024 / queue_pairs.max(1) as f64;
        write!(out, "; peak memory {:.1} MB", peak as f64 * 1.024 / 1e3)?;
        write!(out, ", {own:.1} KB of it for each queue pair, with hosts and packets under way")?;
    }
    writeln!(out)
}

fn figures(run: &Run, out: &mut dyn Write) -> io::Result<()> {
    let summary = &run.summary;
    if run.name.is_empty() {
        writeln!(out)?;
    } else {
        writeln!(out, "\n{}:", run.name)?;
    }
    let further = |out: &mut dyn Write| {
        summary
            .more
            .iter()
            .filter(|(key, _)| *key != "events")
            .try_for_each(|(key, value)| writeln!(out, "  {key} {}", number(*value)))
    };
    if run.flows.is_empty() {
        return further(out);
    }
    let queue = run.queues.first().map_or("queue", |queue| queue.name.as_str());
    writeln!(out, "  measured from {} to {} ms", run.warmup_ms, run.end_ms)?;
    writeln!(
        out,
        "  {queue}: mean {:.1} KB, standard deviation {:.1}, at most {:.1}; utilisation {:.3}",
        summary.queue_mean_kb, summary.queue_sd_kb, summary.queue_max_kb, summary.utilisation
    )?;
    writeln!(out, "  Jain's index {:.4}", summary.jain)?;
    for flow in summary.flows.iter().take(FLOWS) {
        write!(out, "  {:<20} {:>8.3} Gb/s", flow.name, flow.rate_mean_gbps)?;
        if let Some(alpha) = flow.alpha_mean {
            write!(out, "  alpha {alpha:.4}")?;
        }
        if let Some(ms) = flow.fct_ms {
            write!(out, "  complete after {ms:.3} ms")?;
        }
        writeln!(out)?;
    }
    if summary.flows.len() > FLOWS {
        writeln!(out, "  and {} more flows", summary.flows.len() - FLOWS)?;
    }
    writeln!(
        out,
        "  {} marks, {} CNPs, {} pause frames, paused for {:.3} ms, {} drops, {} retransmissions",
        summary.ce_marked,
        summary.cnp_sent,
        summary.pause_frames,
        summary.pause_ms,
        summary.drops,
        summary.retransmissions
    )?;
    further(out)
}

/// A number with at most six decimals, and none that say nothing.
fn number(value: f64) -> String {
    let text = format!("{value:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The most memory that this process has had, in KiB, where the system tells.
pub(super) fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_decimals_that_say_something() {
        let shown = [0.0, 7829.0, 1_116_790.0, 1918.124, 0.006_668, 1e-9].map(number);
        assert_eq!(shown, ["0", "7829", "1116790", "1918.124", "0.006668", "0"]);
    }
}
