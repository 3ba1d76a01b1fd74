//! TIMELY: a rate from the change of round-trip times, with no help from switches.
//!
//! After "TIMELY: RTT-based Congestion Control for the Datacenter" (SIGCOMM 2015) and the rate computation that its
//! authors published beside it. It shows that the seam carries something that is unlike DCQCN.

use std::sync::Arc;

use wire::{Duration, Instant};

use crate::controller::{RateController, RateState};
use crate::keys::nanos;
use crate::pacer::Pacer;
use crate::rate::Rate;

/// Parameters of TIMELY, with the names of its authors' code.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimelyParams {
    /// Weight of a new sample in the average change of the round-trip time, 0 to 1.
    pub ewma_alpha: f64,
    /// Below this the rate rises whatever the change is.
    pub t_low: Duration,
    /// Above this it falls whatever the change is.
    pub t_high: Duration,
    /// Round-trip time of an empty path; changes are measured in it.
    pub min_rtt: Duration,
    /// So many samples in a row with falling times make increases five times as large.
    pub hai_thresh: u32,
    /// One increase, per round-trip time.
    pub additive_increment: Rate,
    /// How strongly a rising time lowers the rate, 0 to 1.
    pub decrease_factor: f64,
    /// Lowest rate.
    pub min_rate: Rate,
}

impl TimelyParams {
    /// What the paper and its authors' code recommend for 10 Gb/s. The paper gives no lowest rate.
    pub const PAPER: Self = Self {
        ewma_alpha: 0.02,
        t_low: Duration::from_micros(50),
        t_high: Duration::from_micros(500),
        min_rtt: Duration::from_micros(20),
        hai_thresh: 5,
        additive_increment: Rate::from_mbps(10.0),
        decrease_factor: 0.8,
        min_rate: Rate::from_mbps(10.0),
    };

    /// The same in slow motion, as [`crate::Params::dilated`].
    #[must_use]
    pub fn dilated(mut self, factor: f64) -> Self {
        for time in [&mut self.t_low, &mut self.t_high, &mut self.min_rtt] {
            *time = nanos(time.as_nanos() as f64 * factor);
        }
        for rate in [&mut self.additive_increment, &mut self.min_rate] {
            *rate = Rate::from_bps(rate.bps() / factor);
        }
        self
    }
}

/// The times by which increases grow after [`TimelyParams::hai_thresh`] samples.
const HYPER: f64 = 5.0;
/// No sample lowers the rate by more: one that was long for another reason must not stop the queue pair.
const LEAST_LEFT: f64 = 0.5;

/// TIMELY for one queue pair.
#[derive(Clone, Debug)]
pub struct Timely {
    params: Arc<TimelyParams>,
    cap: f64,
    rate: f64,
    pacer: Pacer,
    last: Option<Sample>,
    /// Average change from sample to sample, in nanoseconds.
    change: f64,
    falling: u32,
}

#[derive(Clone, Copy, Debug)]
struct Sample {
    at: Instant,
    rtt: f64,
}

impl Timely {
    /// Starts at the port's rate `line`. `burst` is its pacer's ([`Pacer`]).
    #[must_use]
    pub fn new(params: Arc<TimelyParams>, line: Rate, burst: Duration) -> Self {
        let cap = line.bps().max(params.min_rate.bps());
        Self { params, cap, rate: cap, pacer: Pacer::unlimited(burst), last: None, change: 0.0, falling: 0 }
    }

    /// By what the rate is multiplied and what is then added, after a sample of `rtt`; `share` is the part of a
    /// round-trip time that has passed since the last.
    fn response(&self, rtt: f64, share: f64) -> (f64, f64) {
        // Rule R-CNP-11.
        let params = &*self.params;
        let (low, high) = (params.t_low.as_nanos() as f64, params.t_high.as_nanos() as f64);
        let gradient = self.change / params.min_rtt.as_nanos().max(1) as f64;
        let step = params.additive_increment.bps() * share;
        if rtt < low {
            (1.0, step)
        } else if rtt > high {
            (1.0 - share * params.decrease_factor * (1.0 - high / rtt), 0.0)
        } else if gradient <= 0.0 {
            (1.0, if self.falling >= params.hai_thresh { HYPER * step } else { step })
        } else {
            (1.0 - share * params.decrease_factor * gradient, 0.0)
        }
    }
}

impl RateController for Timely {
    fn on_cnp(&mut self, _now: Instant) -> bool {
        false
    }

    fn on_sent(&mut self, now: Instant, bytes: u64) {
        self.pacer.on_sent(now, bytes);
    }

    fn on_ack(&mut self, now: Instant, _bytes: u64, rtt: Duration) {
        let rtt = rtt.as_nanos() as f64;
        let Some(last) = self.last.replace(Sample { at: now, rtt }) else { return };
        let change = rtt - last.rtt;
        self.falling = if change < 0.0 { self.falling.saturating_add(1) } else { 0 };
        let weight = self.params.ewma_alpha;
        self.change = (1.0 - weight) * self.change + weight * change;
        let trip = self.params.min_rtt.as_nanos().max(1) as f64;
        let share = (now.since(last.at).as_nanos() as f64 / trip).min(1.0);
        let (factor, added) = self.response(rtt, share);
        let rate = self.rate * factor.max(LEAST_LEFT) + added;
        self.rate = rate.min(self.cap).max(self.params.min_rate.bps());
        // At the port's rate the port paces.
        if self.rate < self.cap {
            self.pacer.set_rate(now, Rate::from_bps(self.rate));
        } else {
            self.pacer.release();
        }
    }

    fn earliest_departure(&mut self, now: Instant) -> Instant {
        self.pacer.earliest_departure(now)
    }

    fn allowance(&mut self, now: Instant) -> Option<u64> {
        self.pacer.allowance(now)
    }

    fn start_at(&mut self, now: Instant, current: Rate, _target: Rate) {
        self.rate = current.bps().clamp(self.params.min_rate.bps(), self.cap);
        self.pacer.set_rate(now, Rate::from_bps(self.rate));
    }

    fn state(&self, _now: Instant) -> RateState {
        RateState { rate: self.pacer.rate().or(Some(Rate::from_bps(self.rate))), ..RateState::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timely(start_gbps: f64) -> Timely {
        let mut timely = Timely::new(Arc::new(TimelyParams::PAPER), Rate::from_gbps(10.0), Duration::ZERO);
        timely.rate = start_gbps * 1e9;
        timely
    }

    /// Gives it a sample every 20 µs and returns the rates after each, in Gb/s.
    fn feed(timely: &mut Timely, micros: impl IntoIterator<Item = u64>) -> Vec<f64> {
        let times = (0..).map(|n| Instant::from_micros(20 * n));
        times
            .zip(micros)
            .map(|(now, rtt)| {
                timely.on_ack(now, 1_000, Duration::from_micros(rtt));
                timely.rate / 1e9
            })
            .collect()
    }

    fn close(got: &[f64], want: &[f64]) {
        let fits = got.len() == want.len() && got.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-9);
        assert!(fits, "{got:?} instead of {want:?}");
    }

    /// Rule R-CNP-11.
    #[test]
    fn short_times_add() {
        close(&feed(&mut timely(1.0), [20, 49, 20]), &[1.0, 1.01, 1.02]);
    }

    /// Rule R-CNP-11.
    #[test]
    fn long_times_take_by_how_long_they_are() {
        // 0.8 × (1 - 500/1000) = 0.4 of the rate; ever longer ones take no more than half.
        close(&feed(&mut timely(1.0), [1_000, 1_000, 50_000]), &[1.0, 0.6, 0.3]);
    }

    /// Rule R-CNP-11.
    #[test]
    fn between_the_two_the_change_decides() {
        // A rise of 50 µs: 0.02 × 50 / 20 is 0.05 of a round trip, and 0.8 of it is taken.
        close(&feed(&mut timely(1.0), [100, 150]), &[1.0, 0.96]);
        // Without a change nothing is taken.
        close(&feed(&mut timely(1.0), [100, 100]), &[1.0, 1.01]);
        // The fifth fall in a row makes the step five times as large.
        close(
            &feed(&mut timely(1.0), [200, 190, 180, 170, 160, 150, 140]),
            &[1.0, 1.01, 1.02, 1.03, 1.04, 1.09, 1.14],
        );
    }

    #[test]
    fn samples_close_together_count_for_a_part_of_a_round_trip() {
        let mut timely = timely(1.0);
        timely.on_ack(Instant::from_micros(0), 1_000, Duration::from_micros(20));
        timely.on_ack(Instant::from_micros(5), 1_000, Duration::from_micros(20));
        assert!((timely.rate - 1.0025e9).abs() < 1.0);
    }

    #[test]
    fn the_rate_stays_in_its_bounds_and_marks_mean_nothing() {
        let mut timely = timely(10.0);
        feed(&mut timely, (0..1_000).map(|_| 9_000_000));
        assert_eq!(timely.rate, TimelyParams::PAPER.min_rate.bps());
        assert!(!timely.on_cnp(Instant::from_micros(1)));
        feed(&mut timely, (0..2_000).map(|_| 1));
        assert_eq!(timely.rate, 1e10);
        assert_eq!(timely.allowance(Instant::from_micros(1)), Some(u64::MAX));
    }
}
