//! `ferroce bridge`: a slow link with marks and losses, for real traffic.

use std::io::{self, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use clap::ArgGroup;
use dcqcn::Rate;
use driver_shim::bridge::{Bridge, BridgeConfig, BridgeError, FlowReport, QueueReport, Report, Way};
use driver_shim::capture::CaptureFile;
use fabric::faults::{Probability, parse_time};
use fabric::switched::{MarkAt, Red};
use serde_json::{Map, Value, json};
use wire::Duration;

use crate::cmd::Failure;
use crate::cmd::device::parse_address;
use crate::cmd::interrupt::Interrupt;

/// Flows that are printed; the JSON has them all.
const FLOWS_SHOWN: usize = 16;

/// When marks are decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Mark {
    /// When a packet leaves the queue, as most switches do
    Dequeue,
    /// When it comes, so that the mark waits with it
    Enqueue,
    /// Never
    Off,
}

/// Command line of `ferroce bridge`.
#[derive(Debug, clap::Args)]
#[command(group(ArgGroup::new("where").args(["path", "between"]).required(true)))]
pub(super) struct Args {
    /// Socket to make, for devices with --backend bridge:PATH
    #[arg(value_name = "PATH")]
    path: Option<PathBuf>,
    /// Instead of a socket, pass every frame from one network interface to the other; needs CAP_NET_RAW
    #[arg(long, value_names = ["IFNAME", "IFNAME"], num_args = 2, conflicts_with = "share")]
    between: Vec<String>,
    /// Rate of each output, in bits per second: 200M, 2.5G; Ethernet's header, preamble and gap count
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    rate: u64,
    /// Waiting bytes up to which nothing is marked: 5K, 1M (powers of 1000), 4Ki, 1Mi
    #[arg(long, value_name = "BYTES", default_value = "5K", value_parser = parse_bytes)]
    kmin: u64,
    /// Waiting bytes beyond which everything is marked
    #[arg(long, value_name = "BYTES", default_value = "200K", value_parser = parse_bytes)]
    kmax: u64,
    /// Probability of a mark at --kmax, from where it falls evenly to 0 at --kmin: 0.01 or 1%
    #[arg(long, value_name = "P", default_value = "1%", value_parser = parse_probability)]
    pmax: f64,
    /// When it is decided whether a packet is marked
    #[arg(long, value_enum, default_value = "dequeue")]
    mark: Mark,
    /// Waiting bytes beyond which packets are dropped
    #[arg(long, value_name = "BYTES", default_value = "1M", value_parser = parse_bytes)]
    limit: u64,
    /// Time that packets take beside: 100us, 2ms
    #[arg(long, value_name = "TIME", default_value = "0us", value_parser = parse_delay)]
    delay: Duration,
    /// Probability of losing a packet: 0.001 or 0.1%
    #[arg(long, value_name = "P", default_value = "0", value_parser = parse_probability)]
    drop: f64,
    /// Addresses that share one output queue, as hosts behind one uplink; each other address has its own
    #[arg(long, value_name = "ADDR,…", value_delimiter = ',', value_parser = parse_address)]
    share: Vec<IpAddr>,
    /// Seed of marks and losses
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Write every packet that leaves to this pcapng file
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Begin to count so many seconds after the first packet
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(..=86_400))]
    warmup: Option<u32>,
    /// End after having counted for so many seconds
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=86_400))]
    seconds: Option<u32>,
    /// Print what passed as a JSON object
    #[arg(long)]
    json: bool,
}

impl Args {
    fn config(&self) -> Result<BridgeConfig, Failure> {
        let at = match self.mark {
            Mark::Dequeue => Some(MarkAt::Dequeue),
            Mark::Enqueue => Some(MarkAt::Enqueue),
            Mark::Off => None,
        };
        if self.kmin > self.kmax {
            return Err(Failure::Usage(format!(
                "--kmin {} is above --kmax {}: marks begin at the one and are sure at the other",
                self.kmin, self.kmax
            )));
        }
        let red = at.map(|at| Red { kmin: self.kmin, kmax: self.kmax, pmax: self.pmax, at });
        let seconds = |seconds: Option<u32>| seconds.map(|seconds| Duration::from_secs(seconds.into()));
        let capture = match &self.pcap {
            Some(path) => Some(CaptureFile::create(path).map_err(|error| {
                Failure::Usage(format!("cannot write the capture {}: {error}", path.display()))
            })?),
            None => None,
        };
        Ok(BridgeConfig {
            way: Way {
                rate: self.rate,
                delay: self.delay,
                limit: self.limit,
                red,
                drop: self.drop,
                seed: self.seed,
            },
            shared: self.share.clone(),
            warm_up: seconds(self.warmup),
            lasts: seconds(self.seconds),
            capture,
        })
    }
}

impl From<BridgeError> for Failure {
    fn from(error: BridgeError) -> Self {
        match error {
            BridgeError::NoSocket { .. }
            | BridgeError::OtherSocket { .. }
            | BridgeError::Path { .. }
            | BridgeError::SameInterface { .. } => Self::Usage(error.to_string()),
            BridgeError::Interface(error) => error.into(),
            _ => Self::Failed(error.to_string()),
        }
    }
}

pub(super) fn run(args: &Args, out: &mut dyn Write, err: &mut dyn Write) -> Result<(), Failure> {
    let config = args.config()?;
    let mut bridge = match (args.between.as_slice(), &args.path) {
        ([a, b], _) => Bridge::between([a, b], &config)?,
        (_, path) => Bridge::listen(path.as_deref().unwrap_or(Path::new("")), &config)?,
    };
    let stopper = bridge.stopper();
    Interrupt::watch_and(move || stopper.stop())?;
    begin(args, err);
    let report = bridge.run()?;
    if let (Some(path), Some(Err(error))) = (&args.pcap, config.capture.as_ref().map(CaptureFile::flush)) {
        // What passed is to be told all the same.
        let _ = writeln!(err, "ferroce: the capture {} is not whole: {error}", path.display());
    }
    let printed =
        if args.json { writeln!(out, "{:#}", as_json(&report)) } else { print_report(out, &report) };
    printed.map_err(Failure::output)
}

/// Says that devices may come, as much for scripts that wait for it as for people.
fn begin(args: &Args, err: &mut dyn Write) {
    let rate = Rate::from_bps(args.rate as f64);
    let where_to = match &args.path {
        Some(path) => format!("devices come with --backend bridge:{} --bind ADDR", path.display()),
        None => format!("between {}", args.between.join(" and ")),
    };
    // Where nobody listens, nobody has asked.
    let _ = writeln!(err, "ferroce: a bridge of {rate}bit/s; {where_to}");
}

fn print_report(out: &mut dyn Write, report: &Report) -> io::Result<()> {
    writeln!(out, "Counted for {:.3} s.", report.time.as_secs_f64())?;
    writeln!(
        out,
        "{:<24} {:>10} {:>12} {:>8} {:>8} {:>9} {:>9} {:>9} {:>6}",
        "output queue", "packets", "bytes", "marked", "dropped", "mean B", "sd B", "most B", "used"
    )?;
    for queue in &report.queues {
        writeln!(
            out,
            "{:<24} {:>10} {:>12} {:>8} {:>8} {:>9.0} {:>9.0} {:>9} {:>5.1}%",
            queue.to.join(","),
            queue.packets,
            queue.bytes,
            queue.marked,
            queue.dropped,
            queue.mean,
            queue.deviation,
            queue.most,
            queue.utilisation * 100.0
        )?;
    }
    if !report.flows.is_empty() {
        writeln!(
            out,
            "{:<38} {:>10} {:>10} {:>8} {:>8} {:>6}",
            "flow", "packets", "Mb/s", "marked", "dropped", "CNPs"
        )?;
    }
    for flow in report.flows.iter().take(FLOWS_SHOWN) {
        let name = format!("{} > {} qp {}", flow.src, flow.dst, flow.qpn.value());
        let rate = rate_of(flow.bytes, report) / 1e6;
        let FlowReport { packets, marked, dropped, cnps, .. } = flow;
        writeln!(out, "{name:<38} {packets:>10} {rate:>10.3} {marked:>8} {dropped:>8} {cnps:>6}")?;
    }
    if let Some(more) = report.flows.len().checked_sub(FLOWS_SHOWN).filter(|more| *more > 0) {
        writeln!(out, "and {more} more flows")?;
    }
    let lost: Vec<String> = report
        .lost
        .iter()
        .filter(|(_, count)| *count > 0)
        .map(|(name, count)| format!("{name} {count}"))
        .collect();
    if !lost.is_empty() {
        writeln!(out, "lost: {}", lost.join(", "))?;
    }
    Ok(())
}

/// Bits per second.
fn rate_of(bytes: u64, report: &Report) -> f64 {
    let time = report.time.as_secs_f64();
    if time > 0.0 { bytes as f64 * 8.0 / time } else { 0.0 }
}

fn as_json(report: &Report) -> Value {
    let queue = |queue: &QueueReport| {
        json!({
            "to": queue.to,
            "packets": queue.packets,
            "bytes": queue.bytes,
            "marked": queue.marked,
            "dropped": queue.dropped,
            "queue_mean_bytes": queue.mean,
            "queue_sd_bytes": queue.deviation,
            "queue_max_bytes": queue.most,
            "utilisation": queue.utilisation,
        })
    };
    let flow = |flow: &FlowReport| {
        json!({
            "src": flow.src.to_string(),
            "dst": flow.dst.to_string(),
            "qpn": flow.qpn.value(),
            "packets": flow.packets,
            "bytes": flow.bytes,
            "rate_bps": rate_of(flow.bytes, report),
            "marked": flow.marked,
            "dropped": flow.dropped,
            "cnps": flow.cnps,
        })
    };
    let lost: Map<String, Value> =
        report.lost.iter().map(|(name, count)| (name.to_owned(), json!(count))).collect();
    json!({
        "rate_bps": report.rate,
        "seconds": report.time.as_secs_f64(),
        "queues": report.queues.iter().map(queue).collect::<Vec<_>>(),
        "flows": report.flows.iter().map(flow).collect::<Vec<_>>(),
        "lost": lost,
    })
}

fn parse_rate(text: &str) -> Result<u64, String> {
    match text.parse().map(Rate::bps) {
        Ok(bps) if (1e3..=1e12).contains(&bps) =>
        {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within the range")]
            Ok(bps as u64)
        }
        _ => Err(format!("{text:?} is no rate of a link: write 1k to 1000G, as in 200M or 2.5G")),
    }
}

fn parse_bytes(text: &str) -> Result<u64, String> {
    let wrong = "write a number of bytes, such as 5000, 5K, 2M, 4Ki or 1Mi";
    let units = [("Ki", 1 << 10), ("Mi", 1 << 20), ("K", 1_000), ("k", 1_000), ("M", 1_000_000), ("", 1)];
    let (digits, unit) =
        units.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, *unit))).ok_or(wrong)?;
    let number: u64 = digits.parse().map_err(|_| wrong)?;
    number.checked_mul(unit).filter(|bytes| *bytes <= 1 << 32).ok_or_else(|| "at most 4 GiB".into())
}

fn parse_probability(text: &str) -> Result<f64, String> {
    Probability::parse(text).map(Probability::value).ok_or_else(|| "write 0 to 1, or 0% to 100%".into())
}

fn parse_delay(text: &str) -> Result<Duration, String> {
    let most = Duration::from_secs(10);
    parse_time(text)
        .filter(|delay| *delay <= most)
        .ok_or_else(|| "write a time up to 10s, such as 100us or 2ms".into())
}
