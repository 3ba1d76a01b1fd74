//! Alpha, the estimate of how congested the path is: updated in periods, but only when somebody asks.
//!
//! It keeps the value of the last event and when that was; what the periods since then have made of it is computed,
//! never stored, so that asking more often changes nothing.

use wire::{Duration, Instant};

use crate::params::Params;

/// 10 bits stand for 1.
const ONE: f64 = 1024.0;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Alpha {
    value: f64,
    /// From when periods are counted, or the end of the last one that is in `value`.
    since: Instant,
    /// A CNP came after `since`: the next period's end raises instead of only decaying.
    noted: bool,
}

impl Alpha {
    pub(crate) const fn new(params: &Params, now: Instant) -> Self {
        Self { value: params.alpha_init, since: now, noted: false }
    }

    /// Its value when the periods that end by `now` are over.
    pub(crate) fn at(&self, params: &Params, now: Instant) -> f64 {
        self.after(params, periods(params.alpha_period, now.since(self.since)))
    }

    fn after(&self, params: &Params, periods: u64) -> f64 {
        match periods {
            0 => self.value,
            n if self.noted => decayed(params, raised(params, self.value), n - 1),
            n => decayed(params, self.value, n),
        }
    }

    /// Notes a CNP at `now` for the end of the period that is running.
    pub(crate) fn note(&mut self, params: &Params, now: Instant) {
        let over = periods(params.alpha_period, now.since(self.since));
        self.value = self.after(params, over);
        let nanos = params.alpha_period.as_nanos().saturating_mul(over);
        self.since += Duration::from_nanos(nanos);
        self.noted = true;
    }

    /// Raises it at once and starts a new period.
    pub(crate) fn raise(&mut self, params: &Params, now: Instant) {
        self.value = raised(params, self.at(params, now));
        self.since = now;
    }
}

/// Whole periods in `time`.
fn periods(period: Duration, time: Duration) -> u64 {
    time.as_nanos() / period.as_nanos().max(1)
}

/// Alpha after a period with a CNP.
fn raised(params: &Params, alpha: f64) -> f64 {
    let g = params.alpha_g;
    let kept = decayed(params, alpha, 1);
    if params.alpha_10_bits {
        // What a CNP adds is a constant of the same bits.
        return ((kept * ONE + (g * ONE).round()).floor() / ONE).min(1.0);
    }
    (kept + g).min(1.0)
}

/// Alpha after `periods` without a CNP.
fn decayed(params: &Params, alpha: f64, periods: u64) -> f64 {
    if !params.alpha_10_bits {
        return alpha * power(1.0 - params.alpha_g, periods);
    }
    let weight = ((1.0 - params.alpha_g) * ONE).round();
    let mut bits = (alpha * ONE).floor();
    // It falls by one at least each time until it stays, so this ends soon.
    for _ in 0..periods {
        let next = (bits * weight / ONE).floor();
        if next == bits {
            break;
        }
        bits = next;
    }
    bits / ONE
}

/// `base`^`exponent` by squaring: the same on every machine, unlike the exponential function of a C library.
pub(crate) fn power(mut base: f64, mut exponent: u64) -> f64 {
    let mut result = 1.0;
    while exponent > 0 && result > 0.0 {
        if exponent & 1 == 1 {
            result *= base;
        }
        base *= base;
        exponent >>= 1;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    const BITS: Params = Params { alpha_10_bits: true, ..Params::CONNECTX };

    fn micros(us: u64) -> Instant {
        Instant::from_micros(us)
    }

    #[test]
    fn ten_bits_round_down_visibly() {
        let alpha = Alpha::new(&BITS, Instant::ZERO);
        let bits: Vec<f64> = (0..6).map(|us| alpha.at(&BITS, micros(us)) * ONE).collect();
        assert_eq!(bits, [1023.0, 1018.0, 1013.0, 1008.0, 1003.0, 998.0]);
        assert!(alpha.at(&BITS, micros(465)) > 0.0);
        assert_eq!(alpha.at(&BITS, micros(466)), 0.0);
        assert_eq!(alpha.at(&BITS, Instant::from_nanos(u64::MAX)), 0.0);
    }

    #[test]
    fn ten_bits_with_a_cnp_in_every_period_rise_to_820_and_no_further() {
        let mut alpha = Alpha::new(&BITS, Instant::ZERO);
        assert_eq!(alpha.at(&BITS, micros(1_000)), 0.0);
        for us in 1_000..5_000 {
            alpha.note(&BITS, micros(us));
        }
        assert_eq!(alpha.at(&BITS, micros(5_000)) * ONE, 820.0);
    }

    #[test]
    fn cnps_every_four_periods_hold_it_at_a_quarter() {
        let params = Params::CONNECTX;
        let mut alpha = Alpha::new(&params, Instant::ZERO);
        for us in (0..100_000).step_by(4) {
            alpha.note(&params, micros(us));
        }
        let most = (100_000..100_004).map(|us| alpha.at(&params, micros(us))).fold(0.0, f64::max);
        assert!((0.24..0.253).contains(&most), "{most}");
    }

    #[test]
    fn several_cnps_in_a_period_count_once() {
        let params = Params::CONNECTX;
        let mut once = Alpha::new(&params, Instant::ZERO);
        once.note(&params, Instant::from_nanos(2_100));
        let mut often = once.clone();
        often.note(&params, Instant::from_nanos(2_500));
        often.note(&params, Instant::from_nanos(2_999));
        assert_eq!(often, once);
        // One at the very end of a period is the next one's.
        often.note(&params, Instant::from_nanos(3_000));
        assert!(often.at(&params, micros(4)) > once.at(&params, micros(4)));
    }

    #[test]
    fn powers_are_exact_where_that_is_possible() {
        assert_eq!(power(0.5, 52), 2f64.powi(-52));
        assert_eq!(power(0.0, 0), 1.0);
        assert_eq!(power(0.0, 3), 0.0);
        assert_eq!(power(1.0 - 1.0 / 256.0, u64::MAX), 0.0);
        assert!((power(0.99, 1_000) - 0.99f64.powi(1_000)).abs() < 1e-15);
    }
}
