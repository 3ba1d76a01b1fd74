//! How evenly a NIC serves many queue pairs that all have more to send than there is room for: one link of a given
//! rate and delay, in virtual time.

use std::collections::VecDeque;

use wire::batch::{RxBurst, TxBatch};
use wire::{Duration, Instant, Packet};

use crate::link::{Link, Work, take_batch};

/// Rate of the link: 100 Gbit/s.
const PICOS_PER_BYTE: u64 = 80;
const DELAY: Duration = Duration::from_micros(2);
/// Bytes around the body of a packet: Ethernet with its gap, IPv4, UDP.
const AROUND: usize = 38 + 28;
/// Bytes for each queue pair that pass before they are counted, and while they are.
const SHARE: (usize, usize) = (20_000, 120_000);

/// Bytes that each of `pairs` queue pairs got to send while there was room for 100 kB of each. They ask for messages
/// of different lengths, and more of them have been posted on one than on another.
pub(crate) fn bytes_by_pair(pairs: usize) -> Vec<u64> {
    let mut link = Link::new(32);
    let all = link.connect_many(pairs);
    for (i, pair) in all.iter().enumerate() {
        link.post(*pair, Work::Write, length(i), 20 + (i as u64 % 3) * 30);
    }
    // The first queue pair of either end has the same number.
    let base = all.first().map_or(0, |pair| pair.near.value() as usize);
    let mut counts = vec![0; pairs];
    let (mut tx, mut there, mut back) = (TxBatch::new(), VecDeque::new(), VecDeque::new());
    let (mut sent, start) = (0, pairs * SHARE.0);
    let end = start + pairs * SHARE.1;
    while sent < end {
        deliver(&mut link, &mut there, &mut back, &mut tx);
        // Whoever has finished a message asks for another.
        let again: Vec<_> = link.completions().iter().map(|wc| wc.qp_num.value() as usize - base).collect();
        for i in again {
            link.post(all[i], Work::Write, length(i), 1);
        }
        let mut burst = RxBurst::new();
        if take_batch(link.now, &mut link.near.nic, &mut tx, &mut burst) {
            let (rx, body) = burst.iter().next().expect("a batch has a packet");
            let packet = Packet::parse_body(rx.net, body).expect("a NIC sends good packets");
            let pair = packet.bth().dest_qp().value() as usize - base;
            let bytes: usize = burst.iter().map(|(_, body)| body.len() + AROUND).sum();
            if sent >= start {
                counts[pair] += bytes as u64;
            }
            sent += bytes;
            link.now += Duration::from_nanos(bytes as u64 * PICOS_PER_BYTE / 1000);
            there.push_back((link.now + DELAY, burst));
        } else {
            let arrivals = [there.front(), back.front()].into_iter().flatten().map(|(at, _)| *at);
            let timers = [link.near.nic.poll_timeout(), link.far.nic.poll_timeout()].into_iter().flatten();
            link.now =
                arrivals.chain(timers).min().expect("there is always something to wait for").max(link.now);
        }
    }
    counts
}

/// Bytes of the messages of queue pair `i`.
fn length(i: usize) -> u32 {
    [1000, 4096, 16384][i / 3 % 3]
}

type Flying = VecDeque<(Instant, RxBurst)>;

/// What is due arrives; answers go on their way at once.
fn deliver(link: &mut Link, there: &mut Flying, back: &mut Flying, tx: &mut TxBatch) {
    let now = link.now;
    while let Some(burst) = arrived(there, now) {
        link.far.nic.handle_burst(now, &burst);
        let mut answers = burst;
        while take_batch(now, &mut link.far.nic, tx, &mut answers) {
            back.push_back((now + DELAY, core::mem::take(&mut answers)));
        }
    }
    while let Some(burst) = arrived(back, now) {
        link.near.nic.handle_burst(now, &burst);
    }
    for nic in [&mut link.near.nic, &mut link.far.nic] {
        if nic.poll_timeout().is_some_and(|due| due <= now) {
            nic.handle_timeout(now);
        }
    }
}

fn arrived(flying: &mut Flying, now: Instant) -> Option<RxBurst> {
    flying.front().filter(|(at, _)| *at <= now)?;
    flying.pop_front().map(|(_, burst)| burst)
}

/// Jain's index of fairness: 1 where all have the same, 1/n where one has all.
pub(crate) fn jain(shares: &[u64]) -> f64 {
    let sum: f64 = shares.iter().map(|x| *x as f64).sum();
    let squares: f64 = shares.iter().map(|x| (*x as f64).powi(2)).sum();
    sum * sum / (shares.len() as f64 * squares)
}
