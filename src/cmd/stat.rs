//! `ferroce stat`: what a running device counts, and how fast its queue pairs may send.

use std::io::{self, Write};
use std::sync::mpsc;
use std::time::Duration;

use dcqcn::Rate;
use driver_shim::stat::{self, StatError};
use serde_json::{Map, Value, json};

use crate::cmd::Failure;
use crate::cmd::interrupt::Interrupt;

/// Time from one look to the next.
const PERIOD: Duration = Duration::from_secs(1);
/// Counters that are shown even where they are 0.
const ALWAYS: [&str; 4] = ["np_cnp_sent", "np_ecn_marked_roce_packets", "rp_cnp_handled", "rp_cnp_ignored"];
/// Queue pairs that are printed; the JSON has them all.
const PAIRS_SHOWN: usize = 32;

/// Command line of `ferroce stat`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Name of the device; without it, the one that runs, or a list of those that do (all of them with --watch)
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Look once a second, until SIGINT or until the devices end
    #[arg(long)]
    watch: bool,
    /// Print a JSON object; with --watch, one on each line
    #[arg(long)]
    json: bool,
}

impl From<StatError> for Failure {
    fn from(error: StatError) -> Self {
        Self::Failed(error.to_string())
    }
}

pub(super) fn run(args: &Args, out: &mut dyn Write) -> Result<(), Failure> {
    let names = match &args.name {
        Some(name) => vec![name.clone()],
        None => stat::running().map_err(StatError::Directory)?,
    };
    match names.as_slice() {
        [] => Err(Failure::Failed("no device of this user is running".into())),
        [name] if !args.watch => show(&stat::ask(name)?, None, args, out).map_err(Failure::output),
        names if !args.watch => list(names, args.json, out).map_err(Failure::output),
        names => {
            let first = ask_all(names.iter()).into_iter().collect::<Result<Vec<_>, _>>()?;
            watch(first, args, out)
        }
    }
}

fn ask_all<'n>(names: impl Iterator<Item = &'n String>) -> Vec<Result<Value, StatError>> {
    stat::ask_all(&names.map(String::as_str).collect::<Vec<_>>())
}

/// The devices that run.
fn list(names: &[String], as_json: bool, out: &mut dyn Write) -> io::Result<()> {
    // One that has ended since then is left out.
    let devices: Vec<Value> = ask_all(names.iter()).into_iter().flatten().collect();
    if as_json {
        return writeln!(out, "{:#}", Value::Array(devices));
    }
    writeln!(out, "{:<24} {:<10} {:>8} {:>6}  address", "device", "back end", "process", "QPs")?;
    for device in &devices {
        let address = device["gids"].as_array().and_then(|gids| gids.last()).unwrap_or(&Value::Null);
        writeln!(
            out,
            "{:<24} {:<10} {:>8} {:>6}  {}",
            text(&device["name"]),
            text(&device["backend"]),
            device["pid"],
            device["qps"].as_array().map_or(0, Vec::len),
            text(address)
        )?;
    }
    Ok(())
}

/// Shows `devices`, and looks again until a signal comes or all have gone.
fn watch(mut devices: Vec<Value>, args: &Args, out: &mut dyn Write) -> Result<(), Failure> {
    let (stop, stopped) = mpsc::channel();
    let _interrupt = Interrupt::watch_and(move || {
        // Nobody waits any more where this fails.
        let _ = stop.send(());
    })?;
    devices.iter().try_for_each(|device| show(device, None, args, out)).map_err(Failure::output)?;
    while stopped.recv_timeout(PERIOD) == Err(mpsc::RecvTimeoutError::Timeout) {
        let mut still_there = Vec::new();
        let names: Vec<&str> = devices.iter().map(|device| text(&device["name"])).collect();
        let answers = stat::ask_all(&names);
        for (before, answer) in devices.iter().zip(answers) {
            match answer {
                Ok(now) if now["pid"] == before["pid"] => {
                    show(&now, Some(before), args, out).map_err(Failure::output)?;
                    still_there.push(now);
                }
                Ok(_) | Err(StatError::NoSuchDevice { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        devices = still_there;
        if devices.is_empty() {
            break;
        }
    }
    Ok(())
}

fn show(device: &Value, before: Option<&Value>, args: &Args, out: &mut dyn Write) -> io::Result<()> {
    match (args.json, args.watch) {
        (true, true) => writeln!(out, "{device}")?,
        (true, false) => writeln!(out, "{device:#}")?,
        (false, _) => print(device, before, out)?,
    }
    out.flush()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("-")
}

fn print(device: &Value, before: Option<&Value>, out: &mut dyn Write) -> io::Result<()> {
    let name = text(&device["name"]);
    writeln!(out, "device {name}: {}, process {}", text(&device["backend"]), device["pid"])?;
    let none = Map::new();
    let counters = device["counters"].as_object().unwrap_or(&none);
    let old = before.and_then(|before| before["counters"].as_object()).unwrap_or(&none);
    for (name, value) in counters {
        if *value == json!(0) && !ALWAYS.contains(&name.as_str()) {
            continue;
        }
        write!(out, "  {name:<32} {value:>14}")?;
        match (value.as_u64(), old.get(name).and_then(Value::as_u64)) {
            (Some(now), Some(was)) => writeln!(out, " {:>+12}", i128::from(now) - i128::from(was))?,
            _ => writeln!(out)?,
        }
    }
    let pairs = device["qps"].as_array().map_or(&[][..], Vec::as_slice);
    if !pairs.is_empty() {
        writeln!(
            out,
            "  {:>8} {:<9} {:<5} {:<32} {:>10} {:>10} {:>9} {:>8}",
            "QP", "type", "state", "remote", "rate", "target", "alpha", "CNPs"
        )?;
    }
    for pair in pairs.iter().take(PAIRS_SHOWN) {
        let remote = pair["remote"].as_str().map_or("-".into(), |to| format!("{to} qp {}", pair["dest_qpn"]));
        let alpha = pair["alpha"].as_f64().map_or("-".into(), |alpha| format!("{alpha:.6}"));
        let cnps = pair["cnps_handled"].as_u64().map_or("-".into(), |cnps| cnps.to_string());
        writeln!(
            out,
            "  {:>8} {:<9} {:<5} {remote:<32} {:>10} {:>10} {alpha:>9} {cnps:>8}",
            pair["qpn"],
            text(&pair["type"]),
            text(&pair["state"]),
            rate(&pair["rate_bps"]),
            rate(&pair["target_bps"]),
        )?;
    }
    if let Some(more) = pairs.len().checked_sub(PAIRS_SHOWN).filter(|more| *more > 0) {
        writeln!(out, "  and {more} more queue pairs; --json shows all")?;
    }
    Ok(())
}

/// A rate to four digits; a dash where nothing limits it.
fn rate(bps: &Value) -> String {
    let Some(bps) = bps.as_f64().filter(|bps| *bps > 0.0) else { return "-".into() };
    let step = 10_f64.powf(bps.log10().floor() - 3.0);
    Rate::from_bps((bps / step).round() * step).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_four_digits() {
        let shown = [199_987_654.0, 5e9, 40_000.4, 0.0].map(|bps| rate(&json!(bps)));
        assert_eq!(shown, ["200M", "5G", "40k", "-"]);
        assert_eq!(rate(&Value::Null), "-");
    }
}
