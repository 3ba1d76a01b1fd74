//! Whether cost grows with what a NIC holds: time of the processor per packet beside idle queue pairs, regions and outstanding
//! requests, memory of each, and how evenly many active queue pairs are served. Two NICs work back to back in
//! memory, without I/O. The ratios are what to compare between machines; the nanoseconds are not.
//!
//! `cargo bench -p ferroce-qp --bench scale [-- [--quick] [--json FILE]]`; `-- --sides` measures only what a packet costs
//! each side, and `-- --fixed CASE ROUNDS` does so much of one kind of work, for counting instructions.

use std::alloc::System;

use cap::Cap;
use serde_json::json;

mod cost;
mod link;
mod memory;
mod path;
mod report;
mod service;

use report::{Row, Table};

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

/// How much is measured.
struct Effort {
    /// Idle queue pairs, or regions, beside the one that is used.
    counts: &'static [usize],
    /// Queue pairs that all work.
    active: usize,
    /// Measurements of each world; the median counts.
    rounds: usize,
    /// Messages of one measurement.
    messages: usize,
    /// Queue pairs whose memory is counted.
    memory: usize,
}

const FULL: Effort = Effort {
    counts: &[1, 1000, 100_000, 1_000_000],
    active: 10_000,
    rounds: 21,
    messages: 12_000,
    memory: 100_000,
};
const QUICK: Effort = Effort { rounds: 9, messages: 4000, memory: 10_000, ..FULL };
/// Only sees that everything runs.
const TRIAL: Effort = Effort { counts: &[1, 100], active: 100, rounds: 1, messages: 64, memory: 100 };

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let given = |name: &str| args.iter().position(|arg| arg == name);
    // `cargo test --benches` does not say `--bench`.
    let effort = match (given("--bench"), given("--quick")) {
        (None, _) => TRIAL,
        (_, Some(_)) => QUICK,
        _ => FULL,
    };
    let file = given("--json").map(|at| args.get(at + 1).expect("--json needs the name of a file"));

    if let Some(at) = given("--fixed") {
        let rounds =
            args.get(at + 2).and_then(|n| n.parse().ok()).expect("--fixed needs a name and a number");
        return path::fixed(&args[at + 1], rounds);
    }
    let mut tables = Vec::new();
    let mut show = |table: Table| {
        table.print();
        tables.push(table);
    };
    path::sides(effort.rounds).into_iter().for_each(&mut show);
    if given("--sides").is_some() {
        return;
    }
    show(memory::queue_pairs(effort.memory));
    show(memory::work_requests());
    let evenness = service::jain(&service::bytes_by_pair(effort.active));
    let row = Row { label: format!("{} active queue pairs", effort.active), value: evenness, ratio: 1.0 };
    println!("\nJain's index of service to {}: {evenness:.4}", row.label);
    cost::beside_queue_pairs(&effort).into_iter().for_each(&mut show);
    cost::beside_regions(&effort).into_iter().for_each(&mut show);
    show(cost::with_outstanding_requests(&effort));
    cost::with_active_queue_pairs(&effort).into_iter().for_each(&mut show);
    if let Some(file) = file {
        tables.push(Table { name: "Jain's index of service", unit: "1", rows: vec![row] });
        let report = json!({ "tables": tables.iter().map(Table::json).collect::<Vec<_>>() });
        std::fs::write(file, format!("{report:#}\n")).expect("the report can be written");
    }
}
