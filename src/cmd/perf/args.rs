//! Command lines of the eight commands, and what they come to for a tool.

use std::path::PathBuf;

use driver_shim::oob::DEFAULT_PORT;
use qp::QpType;
use wire::Mtu;

use crate::cmd::device::DeviceArgs;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Bandwidth and message rate.
    Bandwidth,
    /// Time of a message, or of a request and its answer.
    Latency,
}

/// With what it is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    /// SEND.
    Send,
    /// RDMA WRITE.
    Write,
    /// RDMA READ.
    Read,
    /// Atomic operations.
    Atomic,
}

/// One of the eight commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tool {
    pub(crate) verb: Verb,
    pub(crate) kind: Kind,
}

/// Types of queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "UPPER")]
pub(super) enum Connection {
    /// Reliable connection
    Rc,
    /// Unreliable connection: send and write
    Uc,
    /// Unreliable datagrams: send
    Ud,
}

impl From<Connection> for QpType {
    fn from(connection: Connection) -> Self {
        match connection {
            Connection::Rc => Self::Rc,
            Connection::Uc => Self::Uc,
            Connection::Ud => Self::Ud,
        }
    }
}

/// Atomic operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "SCREAMING_SNAKE")]
pub(super) enum AtomicType {
    /// Adds 1
    FetchAndAdd,
    /// Compares with 0 and swaps 0
    CmpAndSwap,
}

/// Command line of one of the eight.
#[derive(Debug, clap::Args)]
pub(in crate::cmd) struct Args {
    /// The server; without it, be one
    #[arg(value_name = "HOST")]
    pub(super) host: Option<String>,
    /// TCP port of the exchange
    #[arg(short, long, default_value_t = DEFAULT_PORT, value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) port: u16,
    /// Message size in bytes [default: 65536 for bandwidth, 2 for latency; atomics have 8]
    #[arg(short, long, value_parser = clap::value_parser!(u32).range(1..=1 << 30), conflicts_with = "all")]
    size: Option<u32>,
    /// Sizes from 2 to 2^23
    #[arg(short, long)]
    pub(super) all: bool,
    /// Messages of each queue pair and size, at least 5 [default: 1000; 5000 for write-bw]
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u32).range(5..=100_000_000))]
    iters: Option<u32>,
    /// Queue pairs (bandwidth); the same at both ends
    #[arg(short = 'q', long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16_384))]
    pub(super) qp: u32,
    /// Path MTU [default: the port's]; the ends agree on the smaller
    #[arg(short, long, value_parser = super::super::pingpong::parse_mtu)]
    pub(super) mtu: Option<Mtu>,
    /// Type of the queue pairs; the same at both ends
    #[arg(short, long, value_enum, ignore_case = true, default_value = "RC")]
    pub(super) connection: Connection,
    /// Measure for so many seconds, instead of -n
    #[arg(short = 'D', long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=86_400), conflicts_with_all = ["iters", "all"])]
    pub(super) duration: Option<u32>,
    /// Seconds at the beginning and at the end of -D that do not count [default: a quarter of it each]
    #[arg(short = 'f', long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(..=43_200), requires = "duration")]
    margin: Option<u32>,
    /// Sends posted at a time on each queue pair [default: 128; 1 for latency]
    #[arg(short, long, value_parser = clap::value_parser!(u32).range(1..=16_384))]
    tx_depth: Option<u32>,
    /// Receives posted on each queue pair (send) [default: 512]
    #[arg(short, long, value_parser = clap::value_parser!(u32).range(1..=16_384))]
    rx_depth: Option<u32>,
    /// Both ways at once (bandwidth); the same at both ends
    #[arg(short, long)]
    pub(super) bidirectional: bool,
    /// Sleep on completion events instead of polling
    #[arg(short, long)]
    pub(super) events: bool,
    /// Send messages of at most so many bytes inline
    #[arg(short = 'I', long, value_name = "BYTES", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=1024))]
    pub(super) inline_size: u32,
    /// Work requests of a list that is posted at once
    #[arg(short = 'l', long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16_384))]
    pub(super) post_list: u32,
    /// One completion for so many messages [default: 100; 1 above 8 KiB]; with -l each list has one
    #[arg(short = 'Q', long, value_parser = clap::value_parser!(u32).range(1..=16_384))]
    cq_mod: Option<u32>,
    /// Do not look for the peak bandwidth
    #[arg(short = 'N', long)]
    pub(super) no_peak: bool,
    /// READs and atomics open at a time
    #[arg(short, long, value_parser = clap::value_parser!(u8).range(1..=128))]
    pub(super) outs: Option<u8>,
    /// Which atomic operation
    #[arg(short = 'A', long, value_enum, ignore_case = true, default_value = "FETCH_AND_ADD")]
    pub(super) atomic_type: AtomicType,
    /// ACK timer code: 4.096 µs × 2^code
    #[arg(short = 'u', long, default_value_t = 14, value_parser = clap::value_parser!(u8).range(..32))]
    pub(super) qp_timeout: u8,
    /// Repeats without progress before a queue pair gives up
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u8).range(..8))]
    pub(super) retry_count: u8,
    /// Traffic class (TOS) of the packets
    #[arg(long, default_value_t = 0)]
    pub(super) tclass: u8,
    /// Index of the own GID [default: the first of IPv4]
    #[arg(short = 'x', long)]
    gid_index: Option<u8>,
    /// Prefer a GID of IPv6
    #[arg(long)]
    pub(super) ipv6: bool,
    /// Say bandwidth in 10^9 bits a second instead of 2^20 bytes
    #[arg(long = "report_gbits")]
    pub(super) report_gbits: bool,
    /// Write the results as JSON too
    #[arg(long = "out_json")]
    pub(super) out_json: bool,
    /// Name of that file
    #[arg(long = "out_json_file", value_name = "FILE", default_value = "perftest_out.json")]
    pub(super) out_json_file: PathBuf,
    /// Check what arrived; to be given at both ends, which must be ours
    #[arg(long)]
    pub(super) verify: bool,
    /// Port of the device; there is only 1
    #[arg(short, long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=1))]
    ib_port: u8,
    /// Service level (accepted; there is no VLAN tag to carry it)
    #[arg(short = 'S', long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(..8))]
    sl: u8,
    /// Accepted, without effect
    #[arg(short = 'F')]
    cpu_freq_warn: bool,
    #[command(flatten)]
    pub(super) device: DeviceArgs,
}

/// Bytes from which on each message completes by itself.
const LARGE: u32 = 8192;
/// Receives of UC and UD at most.
const MOST_UNRELIABLE: u32 = 16_000;

impl Args {
    /// Why these options do not go with `tool`.
    pub(super) fn conflict(&self, tool: Tool) -> Option<String> {
        let Tool { verb, kind } = tool;
        let lat = kind == Kind::Latency;
        let name = tool.name();
        if lat && (self.qp > 1 || self.bidirectional) {
            return Some(format!(
                "{name} has one queue pair and goes one way after the other: drop -q and -b"
            ));
        }
        if verb == Verb::Atomic && (self.all || self.size.is_some_and(|size| size != 8)) {
            return Some(format!("{name} moves 8 bytes: drop -s and -a"));
        }
        if self.events && tool == (Tool { verb: Verb::Write, kind: Kind::Latency }) {
            return Some(format!("{name} waits for bytes in memory, of which there are no events: drop -e"));
        }
        let carries = match self.connection {
            Connection::Rc => true,
            Connection::Uc => matches!(verb, Verb::Send | Verb::Write),
            Connection::Ud => verb == Verb::Send,
        };
        if !carries {
            return Some(format!("{name} is not possible on {:?}: use -c RC", QpType::from(self.connection)));
        }
        if self.duration.is_some_and(|seconds| 2 * self.margin() >= seconds) {
            return Some("nothing is left of -D between the margins: make -f less than half of it".into());
        }
        None
    }

    pub(super) fn iters(&self, tool: Tool) -> u32 {
        let default = if tool == (Tool { verb: Verb::Write, kind: Kind::Bandwidth }) { 5000 } else { 1000 };
        self.iters.unwrap_or(default)
    }

    /// Sizes to measure, where a datagram carries at most `mtu`.
    pub(super) fn sizes(&self, tool: Tool, mtu: Mtu) -> Vec<u32> {
        let most = if self.connection == Connection::Ud { mtu.bytes() } else { 1 << 23 };
        if tool.verb == Verb::Atomic {
            return vec![8];
        }
        if self.all {
            return (1..=23).map(|power| 1 << power).filter(|size| *size <= most).collect();
        }
        let default = if tool.kind == Kind::Latency { 2 } else { 65_536 };
        vec![self.size.unwrap_or(default.min(most))]
    }

    /// The size that was asked for.
    pub(super) fn explicit_size(&self) -> Option<u32> {
        self.size
    }

    pub(super) fn margin(&self) -> u32 {
        self.margin.unwrap_or(self.duration.unwrap_or(0) / 4)
    }

    pub(super) fn tx_depth(&self, tool: Tool) -> u32 {
        let depth = self.tx_depth.unwrap_or(if tool.kind == Kind::Latency { 1 } else { 128 });
        if self.duration.is_some() { depth } else { depth.min(self.iters(tool)) }
    }

    pub(super) fn rx_depth(&self, tool: Tool) -> u32 {
        let iters = self.iters(tool);
        match (self.rx_depth, self.connection) {
            (Some(depth), _) => depth,
            (None, _) if self.duration.is_some() => 512,
            (None, Connection::Rc) => 512.min(iters),
            (None, _) => iters.min(MOST_UNRELIABLE),
        }
    }

    pub(super) fn cq_mod(&self, tool: Tool, size: u32) -> u32 {
        let default = if size > LARGE { 1 } else { 100 };
        self.cq_mod.unwrap_or(default).min(self.tx_depth(tool))
    }

    /// Index of the own GID in a table of which `is_v4` tells the kind of each.
    pub(super) fn gid_index(&self, is_v4: &[bool]) -> u8 {
        let wanted = || is_v4.iter().position(|v4| *v4 != self.ipv6).and_then(|at| u8::try_from(at).ok());
        self.gid_index.or_else(wanted).unwrap_or(0)
    }
}

impl Tool {
    /// Name of the command.
    pub(crate) fn name(self) -> String {
        let verb = match self.verb {
            Verb::Send => "send",
            Verb::Write => "write",
            Verb::Read => "read",
            Verb::Atomic => "atomic",
        };
        format!("{verb}-{}", if self.kind == Kind::Bandwidth { "bw" } else { "lat" })
    }
}
