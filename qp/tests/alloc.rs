//! Packets cost no allocation once a NIC has warmed up. In a program of its own, for the allocator counts for all
//! threads.

use std::alloc::System;
use std::sync::Arc;

use cap::Cap;
use ferroce_qp::{Algorithm, CcConfig, CcParams, QpCap, QpType, Rate};
use wire::Mtu;
use wire::batch::{Caps, IpIdRule};

#[path = "../benches/scale/link.rs"]
#[expect(dead_code, reason = "the benchmark needs more of it")]
mod link;

use link::{Link, Pair, Work};

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

const CAPS: Caps = Caps {
    max_segments: 64,
    max_bytes: 65_507,
    ip_id: IpIdRule::BasePlusIndex,
    sees_ip_header: true,
    window: 256,
    credit: 300,
    src_port: Some(4791),
};

/// Posts, carries and completes messages on all connections.
fn round(link: &mut Link, pairs: &[Pair], work: Work, length: u32) {
    for pair in pairs {
        link.post(*pair, work, length, 16);
    }
    let mut left = 16 * pairs.len() as u64;
    while left > 0 {
        // Where a rate is kept, there are pauses.
        link.carry();
        left -= link.reap();
    }
}

/// Without congestion control and with: rates that are kept, marks on every packet, CNPs, cuts and increases. One test,
/// since the allocator counts for all.
#[test]
fn nothing_is_allocated_in_steady_state() {
    let params = Arc::new(CcParams { min_rate: Rate::from_gbps(10.0), ..CcParams::CONNECTX });
    for algorithm in
        [Algorithm::Off, Algorithm::Dcqcn, Algorithm::Timely, Algorithm::Rate(Rate::from_gbps(20.0))]
    {
        steady_state(&CcConfig { algorithm, params: Arc::clone(&params), ..CcConfig::default() });
    }
}

fn steady_state(cc: &CcConfig) {
    for (work, length) in [
        (Work::Send, 64),
        (Work::Send, 100_000),
        (Work::Write, 64),
        (Work::Write, 100_000),
        (Work::Read, 64),
        (Work::Read, 100_000),
        (Work::FetchAdd, 8),
    ] {
        let mut link = Link::controlled(CAPS, Mtu::B4096, cc);
        let pairs: Vec<_> = (0..4).map(|_| link.connect(QpType::Rc, QpCap::default())).collect();
        (0..32).for_each(|_| round(&mut link, &pairs, work, length));
        let (packets, before) = (link.packets(), ALLOCATOR.total_allocated());
        (0..32).for_each(|_| round(&mut link, &pairs, work, length));
        let bytes = ALLOCATOR.total_allocated() - before;
        assert!(link.packets() > packets + 32 * 64);
        assert_eq!(bytes, 0, "bytes allocated by messages of {length} bytes, {work:?}, {}", cc.algorithm);
    }
}
