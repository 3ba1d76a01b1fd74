//! Nanoseconds per packet for parsing, writing and the ICRC, beside a plain copy and the `crc` crate's table in
//! the same run. The ratios are what to compare between machines; the nanoseconds are not.
//!
//! `cargo bench -p ferroce-wire`

use std::hint::black_box;
use std::time::{Duration, Instant};

use ferroce_wire::batch::{Caps, IpIdRule, TxBatch};
use ferroce_wire::ext::Reth;
use ferroce_wire::icrc::{self, ICRC_LEN};
use ferroce_wire::{Bth, NetHeader, Opcode, Operation, Packet, PacketRepr, Psn, Qpn, RKey, VirtAddr};
use zerocopy::IntoBytes;

const ORACLE: crc::Crc<u32, crc::Table<16>> = crc::Crc::<u32, crc::Table<16>>::new(&crc::CRC_32_ISO_HDLC);

/// How long one measurement repeats its work, and how many are taken; the median counts.
struct Effort {
    round: Duration,
    rounds: usize,
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
fn now() -> Instant {
    Instant::now()
}

/// Median nanoseconds of one call of `work`.
fn time(effort: &Effort, mut work: impl FnMut()) -> f64 {
    let mut calls = 1_u32;
    while {
        let start = now();
        (0..calls).for_each(|_| work());
        start.elapsed() < effort.round / 2
    } {
        calls *= 2;
    }
    let mut rounds: Vec<f64> = (0..effort.rounds)
        .map(|_| {
            let start = now();
            (0..calls).for_each(|_| work());
            start.elapsed().as_secs_f64() * 1e9 / f64::from(calls)
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[rounds.len() / 2]
}

fn main() {
    // `cargo test --benches` gives no argument: then only see that everything runs.
    let measure = std::env::args().any(|arg| arg == "--bench");
    let effort = if measure {
        Effort { round: Duration::from_millis(40), rounds: 9 }
    } else {
        Effort { round: Duration::from_micros(10), rounds: 1 }
    };
    println!(
        "{:>7}  {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}  {:>9} {:>9}",
        "payload", "memcpy", "table16", "icrc", "parse", "check", "send", "icrc/copy", "table/icrc"
    );
    for size in [0, 64, 256, 1024, 4096] {
        row(&effort, size);
    }
    println!("Nanoseconds per packet. parse: all lengths; check: parse and ICRC; send: headers, copy, ICRC.");
}

fn row(effort: &Effort, size: usize) {
    let net = NetHeader::v2([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 0xC000, 0, 64);
    let net = net.expect("one address family");
    let bth = Bth::new(Opcode::rc(Operation::WriteOnly), Qpn::new(0x12), Psn::new(7));
    let reth = Reth::new(VirtAddr::new(0x1000), RKey::new(1), 4096);
    let payload: Vec<u8> = (0..=u8::MAX).cycle().take(size).collect();
    let packet = PacketRepr::new(net, bth, [reth.into()], payload.clone()).expect("a good packet");
    let mut wire = Vec::new();
    packet.emit(&mut wire);
    let body = wire[packet.net.len()..].to_vec();
    let covered = &body[..body.len() - ICRC_LEN];

    let mut copy = vec![0; wire.len()];
    let memcpy = time(effort, || copy.copy_from_slice(black_box(&wire)));
    black_box(&copy);
    let table = time(effort, || {
        black_box(ORACLE.checksum(black_box(&wire)));
    });
    let icrc = time(effort, || {
        black_box(icrc::compute(black_box(&packet.net), black_box(covered)));
    });
    let parse = time(effort, || {
        black_box(Packet::parse_ip(black_box(&wire)).is_ok());
    });
    let check = time(effort, || {
        black_box(Packet::parse_ip(black_box(&wire)).is_ok_and(|packet| packet.icrc_ok()));
    });

    let segments = 8;
    let caps = Caps {
        max_segments: segments,
        max_bytes: 1 << 16,
        ip_id: IpIdRule::BasePlusIndex,
        sees_ip_header: true,
        window: 32,
        credit: u32::MAX,
        src_port: None,
    };
    let mut batch = TxBatch::new();
    let send = time(effort, || {
        batch.begin(black_box(net), &caps, 0);
        for _ in 0..segments {
            let out = batch.push(body.len());
            let (head, rest) = out.split_at_mut(Bth::SIZE + Reth::SIZE);
            head[..Bth::SIZE].copy_from_slice(bth.as_bytes());
            head[Bth::SIZE..].copy_from_slice(reth.as_bytes());
            rest[..size].copy_from_slice(black_box(&payload));
        }
        batch.seal();
        black_box(batch.bytes());
    }) / segments as f64;

    println!(
        "{size:>7}  {memcpy:>8.1} {table:>8.1} {icrc:>8.1} {parse:>8.1} {check:>8.1} {send:>8.1}  {:>9.2} {:>9.2}",
        icrc / memcpy,
        table / icrc,
    );
}
