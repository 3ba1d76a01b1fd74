//! Spaces the packets of one queue pair so that they keep a rate.
//!
//! A deadline pacer: whatever is sent moves the deadline of the next packet on by the time that it takes at the rate.
//! Whoever comes late may catch up, by the burst time at most, so that wake-ups that are late and batches of several
//! packets keep the rate all the same. It counts the bytes it is told of, whichever layer's they are.

use wire::{Duration, Instant};

use crate::rate::Rate;

/// Bits of a nanosecond's fraction in deadlines: at 400 Gb/s, whole nanoseconds would be wrong by percents.
const FRACTION: u32 = 32;

/// Time of sending that is saved up for one batch.
const BATCH: Duration = Duration::from_micros(100);

/// The pacer of one queue pair.
///
/// Within any time `w` it lets pass at most `rate × (w + burst)` bits and one packet more. A queue pair that has
/// always something to send is woken when a tenth of a millisecond is saved up, or half the burst time where that is
/// less, and sends that as one batch: what is left of the burst time is how late it may be without a loss.
#[derive(Clone, Debug, PartialEq)]
pub struct Pacer {
    /// Bits per second; `None` lets everything pass.
    rate: Option<f64>,
    /// When as much as was let pass has taken its time at the rate, in 2^-[`FRACTION`] ns.
    next: u128,
    burst: Duration,
}

impl Pacer {
    /// A pacer that lets everything pass. Once it has a rate it evens out what came late by up to `burst`; a burst of
    /// zero spaces single packets exactly and never catches up.
    #[must_use]
    pub const fn unlimited(burst: Duration) -> Self {
        Self { rate: None, next: 0, burst }
    }

    /// The rate; `None` where everything may pass.
    #[must_use]
    pub fn rate(&self) -> Option<Rate> {
        self.rate.map(Rate::from_bps)
    }

    /// Changes the rate as of `now`; what was sent already is not forgotten: a wait that is left is as many bytes long
    /// as before. A rate that is not above 0 counts as 1 bit per second.
    pub fn set_rate(&mut self, now: Instant, rate: Rate) {
        let new = rate.bps().max(1.0);
        let now = fixed(now);
        self.next = match self.rate {
            None => now,
            Some(old) if self.next > now => now.saturating_add(scale(self.next - now, old / new)),
            Some(old) => now.saturating_sub(scale(now - self.next, old / new)),
        };
        self.rate = Some(new);
    }

    /// Lets everything pass from now on.
    pub const fn release(&mut self) {
        self.rate = None;
    }

    /// Counts `bytes` that left at `now`.
    pub fn on_sent(&mut self, now: Instant, bytes: u64) {
        let Some(rate) = self.rate else { return };
        self.next = self.oldest_credit(now).saturating_add(cost(bytes, rate));
    }

    /// When the next packet or batch may leave; `now` where it may already.
    #[must_use]
    pub fn earliest_departure(&self, now: Instant) -> Instant {
        if self.rate.is_none() {
            return now;
        }
        let saved = fixed_span(self.burst.min(BATCH + BATCH)) / 2;
        let due = self.oldest_credit(now).saturating_add(saved);
        instant_after(due).max(now)
    }

    /// How many bytes may leave at `now` in front of the last packet of a batch: `Some(0)` lets one packet pass, and
    /// `None` none. [`u64::MAX`] where there is no rate.
    #[must_use]
    pub fn allowance(&self, now: Instant) -> Option<u64> {
        let Some(rate) = self.rate else { return Some(u64::MAX) };
        if self.earliest_departure(now) > now {
            return None;
        }
        let saved = fixed(now).saturating_sub(self.oldest_credit(now));
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "floats saturate; whole bytes"
        )]
        Some((saved as f64 / FIXED_PER_SECOND * rate / 8.0) as u64)
    }

    /// The deadline, or where that is too long ago, the oldest time that still can be made up for.
    fn oldest_credit(&self, now: Instant) -> u128 {
        self.next.max(fixed(now).saturating_sub(fixed_span(self.burst)))
    }
}

const FIXED_PER_SECOND: f64 = 1e9 * (1u64 << FRACTION) as f64;

fn fixed(at: Instant) -> u128 {
    u128::from(at.as_nanos()) << FRACTION
}

fn fixed_span(span: Duration) -> u128 {
    u128::from(span.as_nanos()) << FRACTION
}

/// The first whole nanosecond that is not before `at`.
fn instant_after(at: u128) -> Instant {
    let nanos = at.saturating_add((1 << FRACTION) - 1) >> FRACTION;
    Instant::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// Time that `bytes` take at `rate`.
fn cost(bytes: u64, rate: f64) -> u128 {
    scale(1, bytes as f64 * 8.0 / rate * FIXED_PER_SECOND)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "floats saturate; never negative"
)]
fn scale(span: u128, by: f64) -> u128 {
    (span as f64 * by) as u128
}

#[cfg(test)]
mod tests;
