//! `ferroce send-bw`, `send-lat`, `write-bw` and so on: bandwidth and latency, with the options, tables and TCP exchange
//! of perftest; either end can be the stock tool.

mod args;
mod bandwidth;
mod latency;
mod progress;
mod report;
mod session;
mod stall;
mod trouble;

use std::io::Write;

use driver_shim::oob::perftest::{Exchange, Report};
use serde_json::Value;

pub(super) use args::Args;
pub(crate) use args::{Kind, Tool, Verb};

use self::session::Session;
use crate::cmd::Failure;

/// Runs one of the eight.
pub(super) fn run(args: &Args, tool: Tool, out: &mut dyn Write) -> Result<(), Failure> {
    if let Some(conflict) = args.conflict(tool) {
        return Err(Failure::Usage(conflict));
    }
    let device = args.device.open()?;
    check(args, &device)?;
    let exchange = match &args.host {
        Some(host) => Exchange::connect(host, args.port)?,
        None => {
            report::waiting(out).map_err(Failure::output)?;
            Exchange::listen(args.port)?
        }
    };
    let mut session = Session::open(args, tool, exchange, device)?;
    report::parameters(out, &session).map_err(Failure::output)?;
    let mut table = Table { out, rows: Vec::new() };
    let ended = match tool.kind {
        Kind::Bandwidth => measure_bandwidth(&mut session, &mut table),
        Kind::Latency => measure_latency(&mut session, &mut table),
    };
    report::end(table.out).map_err(Failure::output)?;
    if args.out_json {
        write_json(&session, table.rows)?;
    }
    let flushed = session.device.flush();
    if ended.is_ok() && !(tool == Tool { verb: Verb::Write, kind: Kind::Latency }) {
        session.exchange.finish();
    }
    ended?;
    flushed.map_err(|error| Failure::Failed(format!("the capture could not be written: {error}")))
}

fn check(args: &Args, device: &driver_shim::Device) -> Result<(), Failure> {
    let gids = device.addresses().gids();
    let v4: Vec<bool> = gids.iter().map(|gid| gid.is_v4()).collect();
    let (index, last) = (args.gid_index(&v4), gids.len().saturating_sub(1));
    if usize::from(index) > last {
        return Err(Failure::Usage(format!("there is no GID index {index}: this device has 0 to {last}")));
    }
    if let Some(mtu) = args.mtu.filter(|mtu| *mtu > device.active_mtu()) {
        let active = device.active_mtu();
        return Err(Failure::Usage(format!(
            "path MTU {mtu} does not fit the interface: at most {active} (-m {active})"
        )));
    }
    Ok(())
}

/// Where rows go.
struct Table<'a> {
    out: &'a mut dyn Write,
    rows: Vec<Value>,
}

impl Table<'_> {
    fn bandwidth(&mut self, session: &Session<'_>, row: &Report) -> Result<(), Failure> {
        self.rows.push(report::bandwidth_json(row));
        report::bandwidth(self.out, session.args, row).map_err(Failure::output)
    }
}

/// Who prints what: one-way tests but SENDs are measured by the client and printed by both; SENDs each end measures for
/// itself; of tests both ways both print the sum, but of SENDs by time each its own.
fn measure_bandwidth(session: &mut Session<'_>, table: &mut Table<'_>) -> Result<(), Failure> {
    let (args, tool) = (session.args, session.tool);
    let (is_send, both, client) = (tool.verb == Verb::Send, args.bidirectional, session.is_client());
    let (sends, receives) = (client || both, is_send && (!client || both));
    let sizes = session.sizes.clone();
    let first = sizes.first().copied().unwrap_or(0);
    if args.verify {
        fill(session)?;
    }
    session.begin(|session| if receives { session.post_receives() } else { Ok(()) })?;
    report::heading(table.out, args, tool).map_err(Failure::output)?;
    // Which sizes are announced, and by what, differs from tool to tool. The last swap before the first SEND is its
    // announcement too.
    let announces = if is_send { args.all } else { both };
    let mut last = Report::default();
    for size in sizes {
        if receives && size != first {
            session.post_receives()?;
        }
        if announces && !(is_send && size == first) {
            session.barrier()?;
        }
        if !sends && !receives {
            continue;
        }
        let (measured, ended) = bandwidth::Run::new(session, size, sends, receives).run();
        last = measured.report(args.report_gbits);
        if ended.is_err() || !both || is_send && args.duration.is_some() {
            table.bandwidth(session, &last)?;
        }
        ended?;
        if both && args.all && !is_send {
            session.barrier()?;
        }
        if both && !(is_send && args.duration.is_some()) {
            let theirs = swap_report(session, &last)?;
            let sum = Report {
                peak: last.peak + theirs.peak,
                average: last.average + theirs.average,
                rate: last.rate + theirs.rate,
                ..last
            };
            table.bandwidth(session, &sum)?;
        }
        if args.all && is_send {
            session.barrier()?;
        }
    }
    if !is_send && !both {
        session.barrier()?;
        let theirs = swap_report(session, &if client { last } else { Report::default() })?;
        if !client {
            table.bandwidth(session, &theirs)?;
        }
    }
    session.barrier()?;
    if args.verify {
        verify(session)?;
    }
    Ok(())
}

fn swap_report(session: &mut Session<'_>, mine: &Report) -> Result<Report, Failure> {
    let interrupt = session.interrupt.clone();
    Ok(session.exchange.swap_report(mine, &mut || !interrupt.is_set())?)
}

fn measure_latency(session: &mut Session<'_>, table: &mut Table<'_>) -> Result<(), Failure> {
    let (args, tool) = (session.args, session.tool);
    let sizes = session.sizes.clone();
    let first = sizes.first().copied().unwrap_or(0);
    let is_send = tool.verb == Verb::Send;
    if args.verify {
        fill(session)?;
    }
    session.begin(Session::post_receives)?;
    // A server that only answers has nothing to say.
    if session.is_client() || matches!(tool.verb, Verb::Send | Verb::Write) {
        report::heading(table.out, args, tool).map_err(Failure::output)?;
        for size in sizes {
            // The last swap before the first announces it too.
            if is_send && args.all && size != first {
                session.post_receives()?;
                session.barrier()?;
            }
            let (delays, ended) = latency::Run::new(session, size).run();
            table.rows.push(delays.json());
            report::latency(table.out, args, &delays).map_err(Failure::output)?;
            ended?;
        }
    }
    if tool.verb != Verb::Write {
        session.barrier()?;
    }
    if args.verify {
        verify(session)?;
    }
    Ok(())
}

/// Fills what is sent, or what the other end READs, with what it can be known by.
fn fill(session: &Session<'_>) -> Result<(), Failure> {
    let brings = session.tool.verb == Verb::Read;
    let length = session.longest().max(session.agreed.cycle) as usize;
    for index in 0..session.pairs.len() {
        let at = if brings { session.target(index) } else { session.source(index) };
        let bytes: Vec<u8> = (0..length).map(|offset| bandwidth::pattern(index, offset)).collect();
        if session.tool.verb != Verb::Atomic {
            session.mr.write_at(at, &bytes).map_err(|error| Failure::Failed(error.to_string()))?;
        }
    }
    Ok(())
}

/// Looks at what has arrived at this end, where something has and it is known what it should be.
fn verify(session: &Session<'_>) -> Result<(), Failure> {
    let Tool { verb, kind } = session.tool;
    let arrives = match verb {
        Verb::Send | Verb::Write => {
            !session.is_client() || session.args.bidirectional || kind == Kind::Latency
        }
        Verb::Read => session.is_client() || session.args.bidirectional,
        Verb::Atomic => false,
    };
    // What may be lost cannot be expected; the last byte of write-lat counts.
    let certain = session.args.connection == args::Connection::Rc && session.args.duration.is_none();
    let counts = (verb, kind) == (Verb::Write, Kind::Latency);
    let Some(size) = session.sizes.last().filter(|_| arrives && certain && !counts) else { return Ok(()) };
    bandwidth::verify(session, *size, session.args.iters(session.tool).into())
}

fn write_json(session: &Session<'_>, rows: Vec<Value>) -> Result<(), Failure> {
    let path = &session.args.out_json_file;
    let text = format!("{:#}\n", report::json(session, rows));
    std::fs::write(path, text)
        .map_err(|error| Failure::Failed(format!("cannot write the results to {}: {error}", path.display())))
}
