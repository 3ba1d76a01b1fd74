//! The demo's results, as a table or as JSON.

use std::io::Write;
use std::path::Path;

use driver_shim::Device;
use serde_json::{Map, Value, json};

use super::bench::Row;
use crate::cmd::{Failure, counters};

pub(super) fn table(
    out: &mut dyn Write,
    rows: &[Row],
    devices: &[Device; 2],
    pcap: &Path,
) -> Result<(), Failure> {
    let mut print = || {
        let [a, b] = devices;
        let address = |device: &Device| device.gid(1).unwrap_or_default().ip();
        let (mtu, window) = (a.active_mtu(), a.window());
        writeln!(
            out,
            "{}: {} to {}, path MTU {mtu}, window {window}",
            a.backend_name(),
            address(a),
            address(b)
        )?;
        writeln!(out)?;
        writeln!(out, "operation           QP      bytes  operations    time         throughput    result")?;
        for row in rows {
            writeln!(
                out,
                "{:<18} {:>3}  {:>9}  {:>10}  {:>9.1} us  {:>8.3} Gbit/s   {}",
                row.trial.name(),
                row.trial.way.transport(),
                row.bytes,
                row.operations,
                row.seconds * 1e6,
                row.gbit_per_s(),
                row.fault.as_deref().unwrap_or("verified"),
            )?;
        }
        let good = rows.iter().filter(|row| row.verified()).count();
        writeln!(out)?;
        writeln!(out, "{good} of {} rows verified; packets in {}", rows.len(), pcap.display())
    };
    print().map_err(Failure::output)
}

pub(super) fn json(
    out: &mut dyn Write,
    rows: &[Row],
    devices: &[Device; 2],
    pcap: &Path,
) -> Result<(), Failure> {
    let results: Vec<Value> = rows
        .iter()
        .map(|row| {
            json!({
                "op": row.trial.name(),
                "qp_type": row.trial.way.transport(),
                "bytes": row.bytes,
                "operations": row.operations,
                "verified": row.verified(),
                "seconds": row.seconds,
                "gbit_per_s": row.gbit_per_s(),
                "fault": row.fault,
            })
        })
        .collect();
    let by_device: Map<String, Value> = devices
        .iter()
        .map(|device| (device.gid(1).unwrap_or_default().ip().to_string(), counters::as_json(device)))
        .collect();
    let report = json!({
        "backend": devices[0].backend_name(),
        "profile": devices[0].profile().name(),
        "results": results,
        "pcap": pcap.display().to_string(),
        "counters": by_device,
    });
    writeln!(out, "{report:#}").map_err(Failure::output)
}
