//! `ferroce demo`: two soft NICs move data with every operation, and each byte is checked.

mod bench;
mod report;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::cmd::Failure;
use crate::cmd::device::DeviceArgs;
use crate::cmd::interrupt::Interrupt;
use bench::{Bench, Row};

/// Command line of `ferroce demo`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    device: DeviceArgs,
    /// Print the results as a JSON object
    #[arg(long)]
    json: bool,
}

/// The capture that is written where no other is named.
const CAPTURE: &str = "ferroce-demo.pcapng";

const SIZES: [usize; 7] = [0, 1, 33, 1024, 4096, 65_536, 1 << 20];
const ATOMICS: [usize; 7] = [1, 2, 16, 128, 512, 1024, 4096];

/// Operations of the table, in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Send,
    SendImm,
    Write,
    WriteImm,
    Read,
    CmpSwap,
    FetchAdd,
}

impl Op {
    const ALL: [Self; 7] =
        [Self::Send, Self::SendImm, Self::Write, Self::WriteImm, Self::Read, Self::CmpSwap, Self::FetchAdd];

    const fn name(self) -> &'static str {
        match self {
            Self::Send => "SEND",
            Self::SendImm => "SEND_WITH_IMM",
            Self::Write => "WRITE",
            Self::WriteImm => "WRITE_WITH_IMM",
            Self::Read => "READ",
            Self::CmpSwap => "CMP_SWAP",
            Self::FetchAdd => "FETCH_ADD",
        }
    }

    /// Sizes in bytes; of atomics, how many.
    const fn amounts(self) -> [usize; 7] {
        match self {
            Self::CmpSwap | Self::FetchAdd => ATOMICS,
            _ => SIZES,
        }
    }
}

pub(super) fn run(args: &Args, out: &mut dyn Write) -> Result<(), Failure> {
    let mut device = args.device.clone();
    let pcap = device.pcap.get_or_insert_with(|| PathBuf::from(CAPTURE)).clone();
    let interrupt = Interrupt::watch()?;
    let devices = device.open_two()?;
    let mut bench = Bench::new(&devices)?;
    let progress = progress_bar();
    let mut rows = Vec::new();
    'all: for op in Op::ALL {
        for amount in op.amounts() {
            if interrupt.is_set() {
                break 'all;
            }
            progress.set_message(op.name());
            rows.push(bench.measure(op, amount, &interrupt)?);
            progress.inc(1);
        }
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
    match (verdict(&rows, &interrupt), captured) {
        (Err(verdict), Err(lost)) => Err(Failure::Failed(format!("{verdict}; {lost}"))),
        (verdict, captured) => verdict.and(captured),
    }
}

fn verdict(rows: &[Row], interrupt: &Interrupt) -> Result<(), Failure> {
    if interrupt.is_set() {
        return Err(Failure::Failed(format!("interrupted after {} of 49 rows", rows.len())));
    }
    match rows.iter().filter(|row| !row.verified()).count() {
        0 => Ok(()),
        n => Err(Failure::Failed(format!("{n} of {} rows did not verify", rows.len()))),
    }
}

fn progress_bar() -> ProgressBar {
    let rows = Op::ALL.iter().map(|op| op.amounts().len() as u64).sum();
    let target = if std::io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let bar = ProgressBar::with_draw_target(Some(rows), target);
    match ProgressStyle::with_template("{bar:32} {pos}/{len} {msg}") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
