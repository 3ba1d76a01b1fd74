//! The reaction point of DCQCN: how the rate of one queue pair answers to CNPs and comes back without them.
//!
//! Used by the queue pair that sends. Its timers are deadlines that are looked at when something happens; of several
//! things at one instant the update of alpha comes first, then a CNP or what was sent, then a cut, then an increase.

use std::sync::Arc;

use wire::{Duration, Instant};

use crate::alpha::{Alpha, power};
use crate::controller::{RateController, RateState};
use crate::pacer::Pacer;
use crate::params::{AlphaOrder, Params, Profile, StageTest};
use crate::rate::Rate;

/// So many increases are made one by one; when more are due at once, after a long sleep, the rest is computed.
const ONE_BY_ONE: u64 = 4096;

/// The reaction point of one queue pair.
#[derive(Clone, Debug)]
pub struct Rp {
    params: Arc<Params>,
    /// The highest rate, in bits per second.
    cap: f64,
    pacer: Pacer,
    /// The latest time it was told.
    now: Instant,
    /// There is none before the first CNP: the queue pair is not limited.
    limit: Option<Limit>,
}

/// What a limited queue pair remembers. Rates are in bits per second.
#[derive(Clone, Debug, PartialEq)]
struct Limit {
    current: f64,
    target: f64,
    alpha: Alpha,
    /// The first CNP, from which the periods of cuts are counted.
    began: Instant,
    /// When a noted CNP cuts.
    cut_at: Option<Instant>,
    /// When the timer increases next; not before the first cut.
    timer: Option<Instant>,
    time_stage: u32,
    byte_stage: u32,
    /// Bytes since the byte counter increased.
    bytes: u64,
}

/// Which of the two stages an increase counts for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Time,
    Bytes,
}

impl Rp {
    /// A reaction point that has seen no CNP, on a port of `line` rate. `burst` is its pacer's ([`Pacer`]).
    #[must_use]
    pub fn new(params: Arc<Params>, line: Rate, burst: Duration) -> Self {
        let cap = match params.max_rate.bps() {
            0.0 => line.bps(),
            max => max.min(line.bps()),
        };
        // Where the line is slower than the lowest rate, that is the rate.
        let cap = cap.max(params.min_rate.bps());
        Self { params, cap, pacer: Pacer::unlimited(burst), now: Instant::ZERO, limit: None }
    }

    fn first(&self, now: Instant) -> Limit {
        Limit {
            current: self.cap,
            target: self.cap,
            alpha: Alpha::new(&self.params, now),
            began: now,
            cut_at: None,
            timer: None,
            time_stage: 0,
            byte_stage: 0,
            bytes: 0,
        }
    }

    /// Does what is due before `now`, and with `inclusive` at it.
    fn run(&mut self, now: Instant, inclusive: bool) {
        self.now = self.now.max(now);
        let Some(end) = (if inclusive { Some(self.now) } else { just_before(self.now) }) else { return };
        while let Some(limit) = &mut self.limit {
            let cut = limit.cut_at.filter(|at| *at <= end);
            let timer = limit.timer.filter(|at| *at <= end);
            match (cut, timer) {
                (Some(cut), timer) if timer.is_none_or(|timer| cut <= timer) => {
                    limit.cut(&self.params, cut);
                    self.pacer.set_rate(cut, Rate::from_bps(limit.current));
                }
                (cut, Some(timer)) => {
                    // A cut stops the timer, so no more is due than what comes before it.
                    let until = cut.and_then(just_before).unwrap_or(end);
                    let period = self.params.time_reset.as_nanos();
                    let due = (until - timer).as_nanos() / period + 1;
                    limit.timer = after(timer, period, due);
                    self.increase(timer, Stage::Time, due);
                }
                _ => break,
            }
        }
    }

    /// `count` increases of `stage`, the first at `at`; those of the timer a period apart.
    fn increase(&mut self, at: Instant, stage: Stage, count: u64) {
        let Some(limit) = &mut self.limit else { return };
        let apart = if stage == Stage::Time { self.params.time_reset.as_nanos() } else { 0 };
        let mut done = 0;
        while done < count && !limit.is_recovered(self.cap) {
            let at = after(at, apart, done).unwrap_or(self.now);
            if done >= ONE_BY_ONE && limit.is_steady(&self.params, stage, self.cap) {
                limit.increase_many(&self.params, self.cap, count - done);
                limit.count(stage, count - done);
                done = count;
            } else {
                limit.increase(&self.params, self.cap, stage);
                done += 1;
            }
            self.pacer.set_rate(at, Rate::from_bps(limit.current));
        }
        limit.count(stage, count - done);
        if self.params.release_at_line && limit.is_recovered(self.cap) {
            self.limit = None;
            self.pacer.release();
        }
    }
}

impl Limit {
    /// Starts anew after a cut.
    fn restart(&mut self, params: &Params, now: Instant) {
        self.time_stage = 0;
        self.byte_stage = 0;
        self.bytes = 0;
        self.timer = after(now, params.time_reset.as_nanos(), 1);
    }

    /// Lowers the rate by what alpha at `now` says.
    fn cut(&mut self, params: &Params, now: Instant) {
        // A target that no increase has gone back to yet is kept, unless every cut shall lower it.
        let lowers_target = params.clamp_tgt_rate
            || self.byte_stage > 0
            || (params.clamp_tgt_rate_after_time_inc && self.time_stage > 0);
        if lowers_target {
            self.target = self.current;
        }
        let alpha = self.alpha.at(params, now);
        let divisor = f64::from(1u32 << (params.cut_shift.clamp(10, 20) - 10));
        let left = (1.0 - alpha / divisor).max(f64::from(params.min_dec_fac) / 100.0);
        self.current = (self.current * left).max(params.min_rate.bps());
        self.target = self.target.max(self.current);
        self.cut_at = None;
        self.restart(params, now);
    }

    /// One increase: back half the way to the target, which itself rises in the later phases.
    fn increase(&mut self, params: &Params, cap: f64, stage: Stage) {
        if params.stage_test == StageTest::After {
            self.count(stage, 1);
        }
        self.target = (self.target + self.step(params)).min(cap);
        self.current = f64::midpoint(self.current, self.target);
        if cap - self.current < 1.0 {
            self.current = cap;
        }
        if params.stage_test == StageTest::Before {
            self.count(stage, 1);
        }
    }

    /// What an increase adds to the target in the phase of now.
    fn step(&self, params: &Params) -> f64 {
        let least = self.time_stage.min(self.byte_stage);
        if least > params.threshold {
            let times = if params.hyper_multiplier { least - params.threshold } else { 1 };
            return params.hai_rate.bps() * f64::from(times);
        }
        if self.time_stage.max(self.byte_stage) >= params.threshold { params.ai_rate.bps() } else { 0.0 }
    }

    /// Whether all further increases of `stage` add the same, as long as nothing else happens.
    fn is_steady(&self, params: &Params, stage: Stage, cap: f64) -> bool {
        let (grows, other) = match stage {
            Stage::Time => (self.time_stage, self.byte_stage),
            Stage::Bytes => (self.byte_stage, self.time_stage),
        };
        self.target >= cap || (grows > params.threshold && grows > other)
    }

    /// What `count` increases that add the same come to. The distance from the target approaches what is added.
    fn increase_many(&mut self, params: &Params, cap: f64, count: u64) {
        let step = self.step(params);
        let room = (cap - self.target) / step;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "floats saturate; never negative"
        )]
        let rising = if step > 0.0 { (room as u64).min(count) } else { count };
        let distance = self.target - self.current;
        self.target = (self.target + step * rising as f64).min(cap);
        self.current = self.target - (step + (distance - step) * power(0.5, rising));
        if let Some(rest @ 1..) = count.checked_sub(rising) {
            let distance = cap - self.current;
            self.target = cap;
            self.current = cap - distance * power(0.5, rest);
        }
        if cap - self.current < 1.0 {
            self.current = cap;
        }
    }

    fn count(&mut self, stage: Stage, increases: u64) {
        let stage = match stage {
            Stage::Time => &mut self.time_stage,
            Stage::Bytes => &mut self.byte_stage,
        };
        *stage = stage.saturating_add(u32::try_from(increases).unwrap_or(u32::MAX));
    }

    /// Whether no increase changes anything any more.
    fn is_recovered(&self, cap: f64) -> bool {
        self.current >= cap && self.target >= cap
    }
}

impl RateController for Rp {
    fn on_cnp(&mut self, now: Instant) -> bool {
        // Rule R-CNP-6: it is as good without any mark that came before. In the paper it cancels an increase that is due
        // at the same time; in NICs what is due now is not its business, for it counts in the next period.
        self.run(now, self.params.profile == Profile::Connectx);
        let now = self.now;
        let is_first = self.limit.is_none();
        let mut limit = self.limit.take().unwrap_or_else(|| self.first(now));
        let params = &*self.params;
        if is_first && params.first_cnp_rate > Rate::ZERO {
            limit.current = params.first_cnp_rate.bps().clamp(params.min_rate.bps(), self.cap);
            limit.target = limit.current;
            limit.restart(params, now);
        } else {
            match params.profile {
                Profile::Paper => {
                    if params.alpha_order == AlphaOrder::AlphaFirst {
                        limit.alpha.raise(params, now);
                        limit.cut(params, now);
                    } else {
                        limit.cut(params, now);
                        limit.alpha.raise(params, now);
                    }
                }
                Profile::Connectx => {
                    if !is_first {
                        limit.alpha.note(params, now);
                    }
                    if limit.cut_at.is_none() {
                        let period = params.cut_period.as_nanos().max(1);
                        let over = now.since(limit.began).as_nanos() / period;
                        limit.cut_at = after(limit.began, period, over + 1);
                    }
                }
            }
        }
        // Rule R-CNP-5.
        self.pacer.set_rate(now, Rate::from_bps(limit.current));
        self.limit = Some(limit);
        true
    }

    fn on_sent(&mut self, now: Instant, bytes: u64) {
        if self.limit.is_none() {
            return;
        }
        self.run(now, false);
        self.pacer.on_sent(self.now, bytes);
        let Some(limit) = &mut self.limit else { return };
        let counted = u128::from(limit.bytes) + u128::from(bytes);
        let every = u128::from(self.params.byte_reset_bytes.max(1));
        #[expect(clippy::cast_possible_truncation, reason = "a remainder of a 64-bit number")]
        let left = (counted % every) as u64;
        limit.bytes = left;
        let due = u64::try_from(counted / every).unwrap_or(u64::MAX);
        if due > 0 {
            self.increase(self.now, Stage::Bytes, due);
        }
    }

    fn on_ack(&mut self, _now: Instant, _bytes: u64, _rtt: Duration) {}

    fn earliest_departure(&mut self, now: Instant) -> Instant {
        if self.limit.is_none() {
            return now;
        }
        self.run(now, false);
        self.pacer.earliest_departure(self.now)
    }

    fn allowance(&mut self, now: Instant) -> Option<u64> {
        if self.limit.is_some() {
            self.run(now, false);
        }
        self.pacer.allowance(self.now.max(now))
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let limit = self.limit.as_ref()?;
        let timer = limit.timer.filter(|_| !limit.is_recovered(self.cap));
        timer.into_iter().chain(limit.cut_at).min()
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.run(now, true);
    }

    fn start_at(&mut self, now: Instant, current: Rate, target: Rate) {
        self.now = self.now.max(now);
        let mut limit = self.first(self.now);
        limit.target = target.bps().clamp(self.params.min_rate.bps(), self.cap);
        limit.current = current.bps().clamp(self.params.min_rate.bps(), limit.target);
        limit.restart(&self.params, self.now);
        self.pacer.set_rate(self.now, Rate::from_bps(limit.current));
        self.limit = Some(limit);
    }

    fn state(&self, now: Instant) -> RateState {
        let mut seen = self.clone();
        seen.run(now, false);
        let Some(limit) = &seen.limit else { return RateState::default() };
        RateState {
            rate: Some(Rate::from_bps(limit.current)),
            target: Some(Rate::from_bps(limit.target)),
            alpha: Some(limit.alpha.at(&self.params, now)),
            time_stage: limit.time_stage,
            byte_stage: limit.byte_stage,
        }
    }
}

/// `count` periods of `nanos` after `from`; `None` where time ends before.
fn after(from: Instant, nanos: u64, count: u64) -> Option<Instant> {
    nanos.checked_mul(count)?.checked_add(from.as_nanos()).map(Instant::from_nanos)
}

/// The last instant before `at`.
fn just_before(at: Instant) -> Option<Instant> {
    at.as_nanos().checked_sub(1).map(Instant::from_nanos)
}

#[cfg(test)]
mod tests;
