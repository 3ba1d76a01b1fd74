//! One output queue and the cable behind it: what a middlebox for real traffic delays, marks and drops.
//!
//! Whoever drives it says what time it is, as with everything here; what happened between two calls is worked out with
//! the next, each packet at its own time, so that a driver that wakes up late loses nothing of the rate. It knows of
//! its packets only how long they are and how to mark them.

use std::collections::VecDeque;

use rand_pcg::Pcg64;
use wire::{Duration, Instant};

use crate::line::Line;
use crate::switched::{MarkAt, Markable, QueueStats, Red};

/// What a [`Bottleneck`] is like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BottleneckParams {
    /// Bits per second of its cable.
    pub rate: u64,
    /// Time from the last bit sent to the last bit received.
    pub delay: Duration,
    /// Most bytes that wait; what would be beyond is dropped. A packet that comes to an empty queue is not.
    pub limit: u64,
    /// Marks; `None` for none.
    pub red: Option<Red>,
}

/// An output queue of packets `P`, and its cable.
#[derive(Debug)]
pub struct Bottleneck<P> {
    params: BottleneckParams,
    waiting: VecDeque<Waiting<P>>,
    bytes: u64,
    /// When the cable is free.
    free: Instant,
    line: Line,
    /// What is on the cable, with its time of arrival.
    in_flight: VecDeque<(Instant, P)>,
    rng: Pcg64,
    stats: QueueStats,
    began: Instant,
    /// How long the cable takes for what has begun to leave since then.
    taken: Duration,
}

#[derive(Debug)]
struct Waiting<P> {
    came: Instant,
    len: u64,
    packet: P,
}

impl<P: Markable> Bottleneck<P> {
    /// An empty queue at `now`. All its luck comes from `seed`.
    #[must_use]
    pub fn new(now: Instant, params: BottleneckParams, seed: u64) -> Self {
        let mut queue = Self {
            params,
            waiting: VecDeque::new(),
            bytes: 0,
            free: now,
            line: Line::default(),
            in_flight: VecDeque::new(),
            rng: Pcg64::new(u128::from(seed), 5),
            stats: QueueStats::default(),
            began: now,
            taken: Duration::ZERO,
        };
        queue.stats.restart(now);
        queue
    }

    /// Queues `packet`, which takes `len` bytes of the cable. Where there is no room for it, it is counted as dropped
    /// and given back.
    ///
    /// # Errors
    /// The packet that was dropped.
    pub fn push(&mut self, now: Instant, len: u64, mut packet: P) -> Result<(), P> {
        self.advance(now);
        if self.bytes > 0 && self.bytes + len > self.params.limit {
            self.stats.dropped += 1;
            return Err(packet);
        }
        self.mark(MarkAt::Enqueue, &mut packet);
        self.bytes += len;
        self.stats.level(now, self.bytes);
        self.waiting.push_back(Waiting { came: now, len, packet });
        self.advance(now);
        Ok(())
    }

    /// The next packet that has arrived at the other end by `now`.
    pub fn pop(&mut self, now: Instant) -> Option<P> {
        self.advance(now);
        if self.in_flight.front().is_none_or(|(at, _)| *at > now) {
            return None;
        }
        self.in_flight.pop_front().map(|(_, packet)| packet)
    }

    /// When the next packet arrives at the other end.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        // Nothing waits while nothing is on the cable: it would have left.
        self.in_flight.front().map(|(at, _)| *at)
    }

    /// Bytes that wait as of the last call.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What happened since the last [`Bottleneck::restart_stats`].
    pub fn stats(&mut self, now: Instant) -> QueueStats {
        self.advance(now);
        self.stats
    }

    /// The part of the cable's time up to `now` that was used.
    pub fn utilisation(&mut self, now: Instant) -> f64 {
        self.advance(now);
        let time = now.since(self.began).as_secs_f64();
        // What is on its way takes time beyond, which is not of this.
        let beyond = self.free.since(now);
        let used = self.taken.as_secs_f64() - beyond.as_secs_f64();
        if time > 0.0 { used / time } else { 0.0 }
    }

    /// Starts all counts anew, as after warming up.
    pub fn restart_stats(&mut self, now: Instant) {
        self.advance(now);
        self.stats.restart(now);
        self.began = now;
        self.taken = self.free.since(now);
    }

    /// Lets leave what has left by `now`, each packet at its time.
    fn advance(&mut self, now: Instant) {
        while self.waiting.front().is_some_and(|head| self.free.max(head.came) <= now)
            && let Some(Waiting { came, len, mut packet }) = self.waiting.pop_front()
        {
            let at = self.free.max(came);
            self.bytes -= len;
            self.stats.level(at, self.bytes);
            self.mark(MarkAt::Dequeue, &mut packet);
            self.stats.sent_packets += 1;
            self.stats.sent_bytes += len;
            self.free = self.line.send(at, self.params.rate, len);
            self.taken = self.taken + self.free.since(at);
            self.in_flight.push_back((self.free + self.params.delay, packet));
        }
    }

    fn mark(&mut self, at: MarkAt, packet: &mut P) {
        if let Some(red) = self.params.red.filter(|red| red.at == at) {
            self.stats.ce_marked += u64::from(red.mark(packet, self.bytes, &mut self.rng));
        }
    }
}

#[cfg(test)]
#[path = "bottleneck_tests.rs"]
mod tests;
