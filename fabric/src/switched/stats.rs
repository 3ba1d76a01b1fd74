//! What is counted of queues and ports.

use wire::{Duration, Instant};

/// What happened in one egress queue.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct QueueStats {
    /// Packets that left.
    pub sent_packets: u64,
    /// Bytes of them on the cable, Ethernet's included.
    pub sent_bytes: u64,
    /// Packets that were marked here.
    pub ce_marked: u64,
    /// Packets that had no place, or were longer than the switch takes.
    pub dropped: u64,
    /// Packets that the watchdog dropped.
    pub watchdog_dropped: u64,
    /// Storms that the watchdog found.
    pub storms: u64,
    /// Of these, ended.
    pub storms_ended: u64,
    /// Time in pauses that are over.
    pub paused: Duration,
    /// Most bytes at any time.
    pub most: u64,
    /// Most bytes since somebody asked.
    peak: u64,
    /// The level now, and since when it is that.
    now: u64,
    since: Instant,
    /// Since when the mean is taken.
    began: Instant,
    /// Integrals of the level and of its square over time, in bytes and ns.
    sum: f64,
    squares: f64,
}

impl QueueStats {
    /// The level is `bytes` from `now` on.
    pub(crate) fn level(&mut self, now: Instant, bytes: u64) {
        self.up_to(now);
        self.now = bytes;
        self.most = self.most.max(bytes);
        self.peak = self.peak.max(bytes);
    }

    /// The most bytes since this was asked last.
    pub(super) fn take_peak(&mut self) -> u64 {
        std::mem::replace(&mut self.peak, self.now)
    }

    fn up_to(&mut self, now: Instant) {
        let (time, level) = (now.since(self.since).as_nanos() as f64, self.now as f64);
        self.sum += level * time;
        self.squares += level * level * time;
        self.since = self.since.max(now);
    }

    /// Starts all counts anew at `now`, as after warming up.
    pub(crate) fn restart(&mut self, now: Instant) {
        *self =
            Self { now: self.now, most: self.now, peak: self.now, since: now, began: now, ..Self::default() };
    }

    /// Mean and standard deviation of the bytes in the queue over all time up to `now`.
    #[must_use]
    pub fn mean_and_deviation(&self, now: Instant) -> (f64, f64) {
        let mut stats = *self;
        stats.up_to(now);
        let time = now.since(stats.began).as_nanos() as f64;
        if time == 0.0 {
            return (stats.now as f64, 0.0);
        }
        let mean = stats.sum / time;
        (mean, (stats.squares / time - mean * mean).max(0.0).sqrt())
    }
}

/// What happened at one port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortStats {
    /// Pauses that it asked its peer for, each time it did so.
    pub pauses_sent: u64,
    /// Pauses that its peer asked it for.
    pub pauses_received: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_of_time_and_not_of_packets() {
        let at = Instant::from_micros;
        let mut stats = QueueStats::default();
        stats.level(at(0), 1_000);
        stats.level(at(10), 3_000);
        let (mean, deviation) = stats.mean_and_deviation(at(20));
        assert!((mean - 2_000.0).abs() < 1e-6 && (deviation - 1_000.0).abs() < 1e-6);
        stats.restart(at(20));
        assert_eq!(stats.mean_and_deviation(at(20)), (3_000.0, 0.0));
        stats.level(at(30), 0);
        assert_eq!(stats.mean_and_deviation(at(40)), (1_500.0, 1_500.0));
        assert_eq!(stats.most, 3_000);
    }
}
