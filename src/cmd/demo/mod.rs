//! `ferroce demo`: two soft NICs move data with every operation, and each byte is checked.

mod bench;
mod ends;
mod plan;
mod report;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::cmd::Failure;
use crate::cmd::device::DeviceArgs;
use crate::cmd::interrupt::Interrupt;
use bench::{Bench, Row};
use plan::trials;

/// Command line of `ferroce demo`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Print the results as a JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    device: DeviceArgs,
}

/// The capture that is written where no other is named.
const CAPTURE: &str = "ferroce-demo.pcapng";

pub(super) fn run(args: &Args, out: &mut dyn Write) -> Result<(), Failure> {
    let mut device = args.device.clone();
    let pcap = device.pcap.get_or_insert_with(|| PathBuf::from(CAPTURE)).clone();
    let interrupt = Interrupt::watch()?;
    let devices = device.open_two()?;
    let trials = trials();
    let progress = progress_bar(trials.len());
    let mut rows: Vec<Row> = Vec::new();
    let mut bench: Option<Bench> = None;
    for trial in &trials {
        if interrupt.is_set() {
            break;
        }
        progress.set_message(format!("{} {}", trial.way.transport(), trial.name()));
        // A row that fails takes its connection with it, so that none of its operations is left to the next.
        let mut ends = match bench.take() {
            Some(ends) if ends.way() == trial.way && rows.last().is_some_and(Row::verified) => ends,
            _ => Bench::new(&devices, trial.way)?,
        };
        rows.push(ends.measure(*trial, &interrupt));
        bench = Some(ends);
        progress.inc(1);
    }
    progress.finish_and_clear();
    let captured = devices.iter().try_for_each(|device| {
        let lost = |error| Failure::Failed(format!("the capture could not be written: {error}"));
        device.flush().map_err(lost)
    });
    if args.json {
        report::json(out, &rows, &devices, &pcap)?;
    } else {
        report::table(out, &rows, &devices, &pcap)?;
    }
    match (verdict(&rows, trials.len(), &interrupt), captured) {
        (Err(verdict), Err(lost)) => Err(Failure::Failed(format!("{verdict}; {lost}"))),
        (verdict, captured) => verdict.and(captured),
    }
}

fn verdict(rows: &[Row], planned: usize, interrupt: &Interrupt) -> Result<(), Failure> {
    if interrupt.is_set() {
        return Err(Failure::Failed(format!("interrupted after {} of {planned} rows", rows.len())));
    }
    match rows.iter().filter(|row| !row.verified()).count() {
        0 => Ok(()),
        n => Err(Failure::Failed(format!("{n} of {} rows did not verify", rows.len()))),
    }
}

fn progress_bar(rows: usize) -> ProgressBar {
    let target = if std::io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let bar = ProgressBar::with_draw_target(Some(rows as u64), target);
    match ProgressStyle::with_template("{bar:32} {pos}/{len} {msg}") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
