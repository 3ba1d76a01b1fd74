//! A rate that never changes: the simplest controller there is, and a limit for whoever wants one.

use wire::{Duration, Instant};

use crate::controller::{RateController, RateState};
use crate::pacer::Pacer;
use crate::rate::Rate;

/// Holds one queue pair to a rate; congestion means nothing to it.
#[derive(Clone, Debug)]
pub struct FixedRate {
    rate: Rate,
    pacer: Pacer,
}

impl FixedRate {
    /// A limit of `rate`; what comes late by up to `burst` is made up for.
    #[must_use]
    pub fn new(rate: Rate, burst: Duration) -> Self {
        let mut pacer = Pacer::unlimited(burst);
        pacer.set_rate(Instant::ZERO, rate);
        Self { rate, pacer }
    }
}

impl RateController for FixedRate {
    fn on_cnp(&mut self, _now: Instant) -> bool {
        false
    }

    fn on_sent(&mut self, now: Instant, bytes: u64) {
        self.pacer.on_sent(now, bytes);
    }

    fn on_ack(&mut self, _now: Instant, _bytes: u64, _rtt: Duration) {}

    fn earliest_departure(&mut self, now: Instant) -> Instant {
        self.pacer.earliest_departure(now)
    }

    fn allowance(&mut self, now: Instant) -> Option<u64> {
        self.pacer.allowance(now)
    }

    fn start_at(&mut self, now: Instant, current: Rate, _target: Rate) {
        self.rate = current;
        self.pacer.set_rate(now, current);
    }

    fn state(&self, _now: Instant) -> RateState {
        RateState { rate: Some(self.rate), ..RateState::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_keeps_its_rate_whatever_happens() {
        let mut limit = FixedRate::new(Rate::from_mbps(100.0), Duration::from_micros(50));
        let mut now = Instant::ZERO;
        for _ in 0..200 {
            assert!(!limit.on_cnp(now));
            limit.on_ack(now, 1_000, Duration::from_millis(500));
            limit.on_sent(now, 1_250);
            now = limit.earliest_departure(now);
        }
        let spent = now.as_nanos() as f64;
        assert!((spent - 200.0 * 100_000.0).abs() <= 50_000.0, "{spent}");
        assert_eq!(limit.state(now).rate, Some(Rate::from_mbps(100.0)));
        assert_eq!(limit.poll_timeout(), None);
    }
}
