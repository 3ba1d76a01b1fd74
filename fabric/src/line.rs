//! Until when a cable is busy with packets, without losing what does not come to whole nanoseconds.

use wire::{Duration, Instant};

/// A cable's end of work.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Line {
    /// When the last packet has left, rounded down.
    free: Instant,
    /// What it takes longer, in bits times 10^9: a whole nanosecond is as much as the rate.
    rest: u64,
}

impl Line {
    /// When `len` bytes have left that begin to leave at `now`, at `rate` bits per second. What begins in the very
    /// nanosecond in which the packet before ended begins when that has truly ended; so time passes however short
    /// packets are.
    pub(crate) fn send(&mut self, now: Instant, rate: u64, len: u64) -> Instant {
        let rate = u128::from(rate.max(1));
        let rest = if now > self.free { 0 } else { self.rest };
        let bits = u128::from(len) * 8_000_000_000 + u128::from(rest);
        #[expect(clippy::cast_possible_truncation, reason = "a remainder of a 64-bit number")]
        let rest = (bits % rate) as u64;
        self.rest = rest;
        self.free = now + Duration::from_nanos(u64::try_from(bits / rate).unwrap_or(u64::MAX));
        self.free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sender that waits for its cable to be free keeps the rate exactly, even where a packet takes less than a
    /// nanosecond.
    #[test]
    fn nothing_leaves_faster_than_the_rate() {
        for (gbps, len) in [(3, 1106), (40, 1106), (100, 84), (400, 1106), (10_000, 84)] {
            let mut line = Line::default();
            let count = 1_000_000;
            let end = (0..count).fold(Instant::ZERO, |now, _| line.send(now, gbps * 1_000_000_000, len));
            assert_eq!(end.as_nanos(), count * len * 8 / gbps, "{len} bytes at {gbps} Gb/s");
        }
    }

    #[test]
    fn a_cable_that_rested_begins_anew() {
        let mut line = Line::default();
        let rate = 3_000_000_000;
        assert_eq!(line.send(Instant::ZERO, rate, 100).as_nanos(), 266);
        assert_eq!(line.send(Instant::from_nanos(266), rate, 100).as_nanos(), 533);
        assert_eq!(line.send(Instant::from_nanos(534), rate, 100).as_nanos(), 800);
    }
}
