//! What an idle queue pair and a posted work request take. What the benchmark `scale` prints is held to its aim
//! here, in a program of its own, for the allocator counts for all threads.

use std::alloc::System;

use cap::Cap;

#[path = "../benches/scale/link.rs"]
#[expect(dead_code, reason = "the benchmark needs more of it")]
mod link;
#[path = "../benches/scale/memory.rs"]
mod memory;
#[path = "../benches/scale/report.rs"]
#[expect(dead_code, reason = "the benchmark needs more of it")]
mod report;

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

#[test]
fn an_idle_queue_pair_takes_a_kibibyte_at_most() {
    let pairs = memory::queue_pairs(1000);
    for row in pairs.rows.iter().filter(|row| !row.label.contains("message")) {
        assert!((100.0..=1024.0).contains(&row.value), "{} takes {} bytes", row.label, row.value);
    }
    for row in memory::work_requests().rows {
        assert!((40.0..=256.0).contains(&row.value), "{} takes {} bytes", row.label, row.value);
    }
}
