//! `ferroce lab`: congestion control on simulated hosts and switches.

mod report;
mod watch;

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use lab::{BUILTIN, Report, RunError, Scenario, ScenarioError};

use self::watch::Watch;
use crate::cmd::Failure;

/// Command line of `ferroce lab`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// A built-in scenario, or a file
    #[arg(value_name = "NAME|FILE.toml", required_unless_present_any = ["list", "show"])]
    scenario: Option<String>,
    /// Change a key of the scenario, as in link.rate_gbps=25 or flows.0.size_kb=64; may be given more than once
    #[arg(long, value_name = "KEY.PATH=VALUE")]
    set: Vec<String>,
    /// Seed of everything that is random, in place of the scenario's
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Print figures and series as JSON
    #[arg(long)]
    json: bool,
    /// Write a page with charts to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the packets of one host to this file: of measure.capture, else of the first flow's receiver
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Name the built-in scenarios
    #[arg(long, conflicts_with_all = ["scenario", "show"])]
    list: bool,
    /// Print the file of a built-in scenario, to be changed and run
    #[arg(long, value_name = "NAME", conflicts_with = "scenario")]
    show: Option<String>,
}

pub(super) fn run(args: &Args, out: &mut dyn Write) -> Result<(), Failure> {
    if args.list {
        return report::list(out).map_err(Failure::output);
    }
    if let Some(name) = &args.show {
        let builtin = BUILTIN.iter().find(|builtin| builtin.name == name);
        let text = builtin.ok_or_else(|| unknown(name))?.text;
        return out.write_all(text.as_bytes()).map_err(Failure::output);
    }
    let name = args.scenario.as_deref().unwrap_or_default();
    let scenario = read(name, args)?;
    // All that is to be written is opened first: a wrong name is not to cost the simulation.
    let page = args.html.as_deref().map(|path| create(path).map(|file| (path, file))).transpose()?;
    let mut watch = Watch::begin(args.pcap.as_deref())?;
    let before = report::peak_memory();
    let start = now();
    let result = lab::run(&scenario, &mut watch).map_err(|error| match error {
        RunError::NoNeighbours(..) => Failure::Usage(format!("{name}: {error}")),
        _ => Failure::Failed(format!("{name}: {error}")),
    })?;
    let elapsed = now().duration_since(start);
    let captured = watch.end();
    let paged = page.map_or(Ok(()), |(path, mut file)| {
        file.write_all(lab::page::render(&result).as_bytes()).map_err(|error| unwritable(path, &error))
    });
    // What did not get into a file is printed all the same.
    let printed = if args.json {
        json(&result, out)
    } else {
        let queue_pairs = scenario.setups.iter().map(|setup| 2 * setup.flows.len()).max().unwrap_or_default();
        report::text(&result, elapsed, (queue_pairs, before), out)
    };
    captured.and(paged).and(printed.map_err(Failure::output))
}

fn read(name: &str, args: &Args) -> Result<Scenario, Failure> {
    let wrong = |error: ScenarioError| Failure::Usage(format!("{name}: {error}"));
    if let Some(scenario) = Scenario::builtin(name, &args.set, args.seed) {
        return scenario.map_err(wrong);
    }
    let path = Path::new(name);
    let text = fs::read_to_string(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound if path.extension().is_none() => unknown(name),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            Failure::Usage(format!("{name} does not exist; name a scenario's file"))
        }
        io::ErrorKind::InvalidData => Failure::Usage(format!("{name} is no text; name a scenario's file")),
        io::ErrorKind::IsADirectory => {
            Failure::Usage(format!("{name} is a directory; name a scenario's file"))
        }
        _ => Failure::Failed(format!("cannot read {name}: {error}")),
    })?;
    let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or(name);
    Scenario::parse(stem, &text, &args.set, args.seed).map_err(wrong)
}

fn unknown(name: &str) -> Failure {
    let names: Vec<&str> = BUILTIN.iter().map(|builtin| builtin.name).collect();
    Failure::Usage(format!(
        "there is no scenario {name:?}; there are {}, or a file FILE.toml",
        names.join(", ")
    ))
}

fn create(path: &Path) -> Result<File, Failure> {
    File::create(path).map_err(|error| Failure::Usage(format!("cannot write {}: {error}", path.display())))
}

fn unwritable(path: &Path, error: &io::Error) -> Failure {
    Failure::Failed(format!("cannot write {}: {error}", path.display()))
}

fn json(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let mut out = io::BufWriter::new(out);
    serde_json::to_writer(&mut out, report)?;
    writeln!(out)?;
    out.flush()
}

#[expect(clippy::disallowed_methods, reason = "what a simulation costs is of real time")]
fn now() -> Instant {
    Instant::now()
}
