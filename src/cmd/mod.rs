//! The `ferroce` command: its command line, its exit codes and how it says what went wrong.
//!
//! One file per subcommand, each with an `Args` and a `run`. Exit codes: 0 done, 1 the command line was
//! right but it failed, 2 wrong command line or a named file that is not what it should be. Whatever goes
//! wrong is said in one line on standard error.

mod bridge;
mod counters;
mod demo;
mod device;
mod devinfo;
mod interrupt;
mod lab;
mod perf;
mod pingpong;
mod stat;
mod trace;

pub use device::DeviceArgs;

use std::ffi::OsString;
use std::fmt;
use std::io::{self, Write};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser, Subcommand};

use self::perf::{Kind, Tool, Verb};

/// Exit code of what succeeded.
const DONE: u8 = 0;
/// Exit code of [`Failure::Failed`].
const FAILED: u8 = 1;
/// Exit code of [`Failure::Usage`].
const USAGE: u8 = 2;

/// A RoCE v2 network card in user space.
#[derive(Debug, Parser)]
#[command(name = "ferroce", version, arg_required_else_help = false)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Move data between two soft NICs with every operation, and check every byte
    ///
    /// The NICs take two free loopback addresses, or the one that --bind names and the next. The packets go to
    /// ferroce-demo.pcapng where --pcap names no other file.
    Demo(Box<demo::Args>),
    /// Show the device that the options give, and the host's interfaces
    Devinfo(Box<devinfo::Args>),
    /// Exchange messages with ibv_rc_, ibv_uc_, ibv_ud_ or ibv_srq_pingpong, or another ferroce pingpong
    Pingpong(Box<pingpong::Args>),
    /// Bandwidth of SENDs, as ib_send_bw
    SendBw(Box<perf::Args>),
    /// Latency of SENDs, as ib_send_lat
    SendLat(Box<perf::Args>),
    /// Bandwidth of RDMA WRITEs, as ib_write_bw
    WriteBw(Box<perf::Args>),
    /// Latency of RDMA WRITEs, as ib_write_lat
    WriteLat(Box<perf::Args>),
    /// Bandwidth of RDMA READs, as ib_read_bw
    ReadBw(Box<perf::Args>),
    /// Latency of RDMA READs, as ib_read_lat
    ReadLat(Box<perf::Args>),
    /// Rate of atomic operations, as ib_atomic_bw
    AtomicBw(Box<perf::Args>),
    /// Latency of atomic operations, as ib_atomic_lat
    AtomicLat(Box<perf::Args>),
    /// Be a slow link with congestion marks and losses between devices, or between two interfaces
    ///
    /// Devices of this host that are to meet on it are started with --backend bridge:PATH and each with its own --bind
    /// ADDR. Each address has an output queue of this rate. Runs until SIGINT, SIGTERM or for --seconds, and then says
    /// what passed.
    Bridge(bridge::Args),
    /// Run a scenario of congestion control on simulated hosts and switches, in virtual time
    ///
    /// The queue pairs and their congestion control are the real ones. docs/lab.md explains scenarios and their keys.
    Lab(lab::Args),
    /// Show the counters and queue pairs of a running device
    ///
    /// Every command that opens a device can be asked, by the same user, for as long as it runs.
    Stat(stat::Args),
    /// Print the RoCE packets of capture files
    Trace(trace::Args),
}

/// Why a command ends early.
#[derive(Debug)]
pub enum Failure {
    /// The user must write something else. The text says what.
    Usage(String),
    /// The command line was right, but it failed. The text says why, and what would help.
    Failed(String),
    /// Nobody reads the output any more, as behind `| head`. No failure at all.
    OutputClosed,
}

impl Failure {
    /// What it means that writing the output failed.
    pub(crate) fn output(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::OutputClosed,
            _ => Self::Failed(format!("cannot write the output: {error}")),
        }
    }

    /// The exit code that tells it.
    pub(crate) const fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => USAGE,
            Self::Failed(_) => FAILED,
            Self::OutputClosed => DONE,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(text) | Self::Failed(text) => f.write_str(text),
            Self::OutputClosed => f.write_str("the output was closed"),
        }
    }
}

/// Runs the command line `args`, whose first item is the program's name, and returns the exit code.
///
/// `out` takes what the command prints, `err` the one line on what went wrong.
pub fn run<I>(args: I, out: &mut dyn Write, err: &mut dyn Write) -> u8
where
    I: IntoIterator<Item: Into<OsString> + Clone>,
{
    let args: Vec<OsString> = args.into_iter().map(Into::into).collect();
    let tool = |verb, kind| Tool { verb, kind };
    let result = match Cli::try_parse_from(&args) {
        Ok(cli) => match &cli.command {
            Command::Demo(args) => demo::run(args, out),
            Command::Devinfo(args) => devinfo::run(args, out),
            Command::Pingpong(args) => pingpong::run(args, out),
            Command::SendBw(args) => perf::run(args, tool(Verb::Send, Kind::Bandwidth), out),
            Command::SendLat(args) => perf::run(args, tool(Verb::Send, Kind::Latency), out),
            Command::WriteBw(args) => perf::run(args, tool(Verb::Write, Kind::Bandwidth), out),
            Command::WriteLat(args) => perf::run(args, tool(Verb::Write, Kind::Latency), out),
            Command::ReadBw(args) => perf::run(args, tool(Verb::Read, Kind::Bandwidth), out),
            Command::ReadLat(args) => perf::run(args, tool(Verb::Read, Kind::Latency), out),
            Command::AtomicBw(args) => perf::run(args, tool(Verb::Atomic, Kind::Bandwidth), out),
            Command::AtomicLat(args) => perf::run(args, tool(Verb::Atomic, Kind::Latency), out),
            Command::Bridge(args) => bridge::run(args, out, err),
            Command::Lab(args) => lab::run(args, out),
            Command::Stat(args) => stat::run(args, out),
            Command::Trace(args) => trace::run(args, out, err),
        },
        Err(error) => match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
                write!(out, "{error}").map_err(Failure::output)
            }
            _ => Err(Failure::Usage(one_line(&error, args.get(1)))),
        },
    };
    let result = result.and_then(|()| out.flush().map_err(Failure::output));
    match result {
        Ok(()) => DONE,
        Err(failure) => {
            if !matches!(failure, Failure::OutputClosed) {
                report(err, &failure);
            }
            failure.exit_code()
        }
    }
}

/// Writes the one line that says what went wrong. Names and files of others that it quotes get no hold of the terminal.
pub(crate) fn report(err: &mut dyn Write, what: &dyn fmt::Display) {
    let mut line = String::new();
    for c in what.to_string().chars() {
        if c.is_control() { line.extend(c.escape_debug()) } else { line.push(c) }
    }
    // Where standard error is closed too, there is nobody left to tell.
    let _ = writeln!(err, "ferroce: {line}");
}

/// What clap says about a wrong command line, on one line: the fault, its hints and the usage.
fn one_line(error: &clap::Error, first: Option<&OsString>) -> String {
    let text = error.to_string();
    let mut fault = String::new();
    for line in text.lines().map(str::trim) {
        let line = line.strip_prefix("error: ").unwrap_or(line);
        if line.is_empty() || line.starts_with("Usage:") || line.starts_with("For more information") {
            continue;
        }
        match (fault.is_empty(), line.starts_with("tip:")) {
            (true, _) => {}
            (false, true) => fault.push_str("; "),
            (false, false) => fault.push(' '),
        }
        fault.push_str(line);
    }
    let usage = match error.get(ContextKind::Usage) {
        Some(ContextValue::StyledStr(usage)) => usage.to_string(),
        _ => String::new(),
    };
    let usage = usage.trim().trim_start_matches("Usage:").trim();
    if !usage.is_empty() {
        return format!("{fault}; usage: {usage}");
    }
    // A wrong value of an option: only the subcommand's own help lists it.
    let named = first.and_then(|first| first.to_str());
    let subcommand = named.filter(|name| Cli::command().find_subcommand(name).is_some());
    format!("{fault}; see: ferroce {}--help", subcommand.map_or_else(String::new, |name| format!("{name} ")))
}
