//! What is printed: perftest's tables, so that scripts can read both, and the same as JSON.

use std::io::{self, Write};
use std::time::Instant;

use driver_shim::oob::perftest::{Key, Report};
use serde_json::{Value, json};

use super::args::{Args, AtomicType, Connection, Kind, Tool, Verb};
use super::session::Session;
use crate::cmd::counters;

const RULE: &str = "---------------------------------------------------------------------------------------";

/// What one end measured of one size of a bandwidth test.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measured {
    pub(super) size: u32,
    pub(super) iterations: u64,
    pub(super) seconds: f64,
    /// Seconds of a message in the best stretch.
    pub(super) peak: Option<f64>,
}

impl Measured {
    /// In the unit of the table.
    pub(super) fn report(&self, gbits: bool) -> Report {
        let unit = if gbits { 125_000_000.0 } else { f64::from(1 << 20) };
        let per_second = if self.seconds > 0.0 { self.iterations as f64 / self.seconds } else { 0.0 };
        let size = f64::from(self.size);
        Report {
            size: self.size.into(),
            iterations: self.iterations,
            peak: self.peak.map_or(0.0, |seconds| size / seconds / unit),
            average: size * per_second / unit,
            rate: per_second / 1e6,
        }
    }
}

/// The times of a latency test, in microseconds, sorted.
#[derive(Clone, Debug)]
pub(super) struct Delays {
    size: u32,
    messages: usize,
    /// From the first message to the last, of one way.
    total: f64,
    usec: Vec<f64>,
}

impl Delays {
    /// Of messages begun at `times`, each of which went `ways`.
    pub(super) fn new(size: u32, times: &[Instant], ways: u32) -> Self {
        let between = |from: Instant, to: Instant| (to - from).as_secs_f64() * 1e6 / f64::from(ways);
        let mut usec: Vec<f64> = times.windows(2).map(|pair| between(pair[0], pair[1])).collect();
        usec.sort_unstable_by(f64::total_cmp);
        let total = times.first().zip(times.last()).map_or(0.0, |(first, last)| between(*first, *last));
        Self { size, messages: times.len(), total, usec }
    }

    /// The numbers of a row. The two longest are left out of all but the list, as perftest does.
    fn statistics(&self) -> Statistics {
        let d = &self.usec;
        if d.len() < 3 {
            let at = |i: usize| d.get(i).copied().unwrap_or(0.0);
            return Statistics {
                min: at(0),
                max: at(d.len().saturating_sub(1)),
                typical: at(0),
                ..Statistics::default()
            };
        }
        let m = d.len() - 2;
        let average = d[..m].iter().sum::<f64>() / m as f64;
        let typical = if (m - 1) % 2 == 1 { f64::midpoint(d[m / 2], d[m / 2 - 1]) } else { d[m / 2] };
        let squares = d[..m].iter().map(|delay| (delay - average).trunc().powi(2)).sum::<f64>();
        let share = |thousandths: usize| d[(thousandths * m).div_ceil(1000).min(m)];
        Statistics {
            min: d[0],
            max: d[m],
            typical,
            average,
            deviation: (squares / m as f64).sqrt(),
            p99: share(990),
            p999: share(999),
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Statistics {
    min: f64,
    max: f64,
    typical: f64,
    average: f64,
    deviation: f64,
    p99: f64,
    p999: f64,
}

/// What a server says before anybody has come.
pub(super) fn waiting(out: &mut dyn Write) -> io::Result<()> {
    let stars = "*".repeat(36);
    writeln!(out, "\n{stars}\n* Waiting for client to connect... *\n{stars}")?;
    out.flush()
}

/// What is measured, and how.
pub(super) fn parameters(out: &mut dyn Write, session: &Session<'_>) -> io::Result<()> {
    let (args, tool) = (session.args, session.tool);
    let kind = if tool.kind == Kind::Bandwidth { "BW" } else { "Latency" };
    let verb = match (tool.verb, args.atomic_type) {
        (Verb::Send, _) => "Send",
        (Verb::Write, _) => "RDMA_Write",
        (Verb::Read, _) => "RDMA_Read",
        (Verb::Atomic, AtomicType::FetchAndAdd) => "Atomic FETCH_AND_ADD",
        (Verb::Atomic, AtomicType::CmpAndSwap) => "Atomic CMP_AND_SWAP",
    };
    let both = if args.bidirectional { " Bidirectional" } else { "" };
    let connection = match args.connection {
        Connection::Rc => "RC",
        Connection::Uc => "UC",
        Connection::Ud => "UD",
    };
    if args.events {
        writeln!(out, " Test with events. Using {}_comp0", session.device.backend_name())?;
    }
    writeln!(out, "{RULE}\n{:20}{verb}{both} {kind} Test", "")?;
    writeln!(out, " Dual-port       : OFF\t\tDevice         : {}", session.device.backend_name())?;
    writeln!(out, " Number of qps   : {}\t\tTransport type : IB", args.qp)?;
    writeln!(out, " Connection type : {connection}\t\tUsing SRQ      : OFF")?;
    let write_lat =
        if tool == (Tool { verb: Verb::Write, kind: Kind::Latency }) { "     write_lat: OFF" } else { "" };
    writeln!(out, " PCIe relax order: ON{write_lat}")?;
    writeln!(out, " ibv_wr* API     : OFF")?;
    if session.is_client() || args.bidirectional {
        writeln!(out, " TX depth        : {}", args.tx_depth(tool))?;
    }
    if tool.verb == Verb::Send && (!session.is_client() || args.bidirectional) {
        writeln!(out, " RX depth        : {}", args.rx_depth(tool))?;
    }
    if tool.kind == Kind::Bandwidth {
        writeln!(
            out,
            " CQ Moderation   : {}",
            args.cq_mod(tool, session.sizes.first().copied().unwrap_or(0))
        )?;
    }
    writeln!(out, " Mtu             : {}[B]", session.agreed.mtu.bytes())?;
    writeln!(out, " Link type       : Ethernet")?;
    writeln!(out, " GID index       : {}", session.gid_index)?;
    if matches!(tool.verb, Verb::Read | Verb::Atomic) {
        writeln!(out, " Outstand reads  : {}", session.outstanding)?;
    } else {
        writeln!(out, " Max inline data : {}[B]", args.inline_size)?;
    }
    writeln!(out, " rdma_cm QPs\t : OFF\n Data ex. method : Ethernet\n{RULE}")?;
    for pair in &session.pairs {
        address(out, "local", tool, &pair.mine)?;
    }
    for pair in &session.pairs {
        address(out, "remote", tool, &pair.theirs)?;
    }
    writeln!(out, "{RULE}")?;
    out.flush()
}

fn address(out: &mut dyn Write, whose: &str, tool: Tool, key: &Key) -> io::Result<()> {
    write!(out, " {whose} address: LID 0000 QPN {:#06x} PSN {:#06x}", key.qpn.value(), key.psn.value())?;
    if tool.verb == Verb::Read {
        write!(out, " OUT {:#04x}", key.outstanding)?;
    }
    if matches!(tool.verb, Verb::Write | Verb::Read) {
        write!(out, " RKey {:#08x} VAddr {:#018x}", key.rkey.value(), key.vaddr.value())?;
    }
    let gid: Vec<String> = key.gid.raw().iter().map(|byte| format!("{byte:02}")).collect();
    writeln!(out, "\n GID: {}", gid.join(":"))
}

/// The head of the table.
pub(super) fn heading(out: &mut dyn Write, args: &Args, tool: Tool) -> io::Result<()> {
    let unit = if args.report_gbits { "Gb" } else { "MB" };
    match (tool.kind, args.duration) {
        (Kind::Bandwidth, _) => writeln!(
            out,
            " #bytes     #iterations    BW peak[{unit}/sec]    BW average[{unit}/sec]   MsgRate[Mpps]"
        )?,
        (Kind::Latency, Some(_)) => {
            writeln!(out, " #bytes        #iterations       t_avg[usec]    tps average")?
        }
        (Kind::Latency, None) => writeln!(
            out,
            " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   \
             99% percentile[usec]   99.9% percentile[usec] "
        )?,
    }
    out.flush()
}

/// A row of a bandwidth test.
pub(super) fn bandwidth(out: &mut dyn Write, args: &Args, row: &Report) -> io::Result<()> {
    let Report { size, iterations, peak, average, rate } = *row;
    if args.report_gbits && average < 0.1 {
        writeln!(
            out,
            " {size:<7}    {iterations}           {peak:<7.6}            {average:<7.6}            {rate:<7.6}"
        )?;
    } else {
        writeln!(
            out,
            " {size:<7}    {iterations:<10}       {peak:<7.2}            {average:<7.2}\t\t   {rate:<7.6}"
        )?;
    }
    out.flush()
}

/// A row of a latency test.
pub(super) fn latency(out: &mut dyn Write, args: &Args, delays: &Delays) -> io::Result<()> {
    let (size, n) = (delays.size, delays.messages);
    if args.duration.is_some() {
        let (average, rate) = delays.average();
        writeln!(out, " {size:<7}       {n}            {average:<7.2}        {rate:<7.2}")?;
    } else {
        let Statistics { min, max, typical, average, deviation, p99, p999 } = delays.statistics();
        writeln!(
            out,
            " {size:<7} {n}          {min:<7.2}        {max:<7.2}      {typical:<7.2}  \t       {average:<7.2}     \
             \t{deviation:<7.2}\t\t{p99:<7.2} \t\t{p999:<7.2}"
        )?;
    }
    out.flush()
}

impl Delays {
    /// Microseconds of a message, and messages a second, over all the time.
    fn average(&self) -> (f64, f64) {
        let average = if self.usec.is_empty() { 0.0 } else { self.total / self.usec.len() as f64 };
        (average, if average > 0.0 { 1e6 / average } else { 0.0 })
    }

    /// A row as JSON.
    pub(super) fn json(&self) -> Value {
        let Statistics { min, max, typical, average, deviation, p99, p999 } = self.statistics();
        json!({
            "MsgSize": self.size, "n_iterations": self.messages, "t_min": min, "t_max": max, "t_typical": typical,
            "t_avg": average, "t_stdev": deviation, "percentile_99": p99, "percentile_99.9": p999,
        })
    }
}

/// A row of a bandwidth test as JSON.
pub(super) fn bandwidth_json(row: &Report) -> Value {
    json!({
        "MsgSize": row.size, "n_iterations": row.iterations, "BW_peak": row.peak, "BW_average": row.average,
        "MsgRate": row.rate,
    })
}

/// All of a run as JSON: what was asked for, and one result or, of several sizes, a list.
pub(super) fn json(session: &Session<'_>, mut rows: Vec<Value>) -> Value {
    let (args, tool) = (session.args, session.tool);
    let results = if rows.len() == 1 { rows.remove(0) } else { Value::Array(rows) };
    json!({
        "test_info": {
            "test": tool.name(), "Device": session.device.backend_name(), "Number_of_qps": args.qp,
            "Connection_type": format!("{:?}", args.connection).to_uppercase(),
            "TX_depth": args.tx_depth(tool), "Mtu": session.agreed.mtu.bytes(), "GID_index": session.gid_index,
            "unit": match (tool.kind, args.report_gbits) {
                (Kind::Latency, _) => "usec",
                (Kind::Bandwidth, true) => "Gb/sec",
                (Kind::Bandwidth, false) => "MB/sec",
            },
            "Duration": args.duration,
        },
        "results": results,
        "counters": counters::as_json(&session.device),
    })
}

/// The line at the end.
pub(super) fn end(out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{RULE}")?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::bandwidth::now;
    use super::*;

    #[test]
    fn a_row_of_bandwidth_is_perftests() {
        let measured = Measured { size: 65_536, iterations: 100, seconds: 0.2, peak: Some(0.001) };
        let report = measured.report(false);
        assert_eq!((report.average, report.peak, report.rate), (31.25, 62.5, 0.0005));
        let gbits = measured.report(true);
        assert!((gbits.average - 0.262_144).abs() < 1e-9, "{gbits:?}");
    }

    /// By hand: twelve messages a microsecond apart but for three; the two longest times are left out.
    #[test]
    fn statistics_leave_the_two_longest_out() {
        let start = now();
        let mut at = start;
        let times: Vec<Instant> = [0, 2, 2, 4, 2, 2, 6, 2, 2, 40, 2, 100]
            .into_iter()
            .map(|usec| {
                at += Duration::from_micros(usec);
                at
            })
            .collect();
        let delays = Delays::new(2, &times, 2);
        let row = delays.statistics();
        // Sorted halves: seven of 1, then 2, 3, 20, 50; the first nine are of 12 microseconds.
        assert_eq!((row.min, row.typical, row.max), (1.0, 1.0, 20.0));
        assert!((row.average - 12.0 / 9.0).abs() < 1e-6, "{row:?}");
        assert_eq!((row.p99, row.p999), (20.0, 20.0));
        assert!((row.deviation - (1.0_f64 / 9.0).sqrt()).abs() < 1e-6, "{row:?}");
        assert!((delays.average().0 - 164.0 / 2.0 / 11.0).abs() < 1e-6);
    }

    #[test]
    fn few_times_are_no_trouble() {
        let start = now();
        for n in 0..4 {
            let times = vec![start; n];
            assert_eq!(Delays::new(2, &times, 1).statistics().max, 0.0);
        }
    }
}
