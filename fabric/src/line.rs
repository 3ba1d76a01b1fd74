//! How long a cable is busy with packets, without losing what does not come to whole nanoseconds.

use wire::Duration;

/// What the last packets took longer than whole nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Line {
    /// In bits times 10^9: a whole nanosecond is as much as the rate.
    rest: u64,
}

impl Line {
    /// How long `len` bytes take at `rate` bits per second.
    pub(crate) fn time_of(&mut self, rate: u64, len: u64) -> Duration {
        let rate = u128::from(rate.max(1));
        let bits = u128::from(len) * 8_000_000_000 + u128::from(self.rest);
        #[expect(clippy::cast_possible_truncation, reason = "a remainder of a 64-bit number")]
        let rest = (bits % rate) as u64;
        self.rest = rest;
        Duration::from_nanos(u64::try_from(bits / rate).unwrap_or(u64::MAX))
    }

    /// The cable is free and nothing wants it.
    pub(crate) const fn rests(&mut self) {
        self.rest = 0;
    }
}
