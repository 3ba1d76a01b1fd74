//! One direction of a cable: how long a packet takes, and whether the queue in front of it has room.

use wire::{Duration, Instant};

/// What a link is like. The default is endlessly fast and deep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkParams {
    /// Bits per second; `None` is endlessly fast.
    pub rate: Option<u64>,
    /// Time from the last bit sent to the last bit received.
    pub delay: Duration,
    /// Bytes that may wait to be sent, the packet in transmission included; `None` is no limit. Means nothing
    /// without a rate.
    pub queue_limit: Option<usize>,
}

impl LinkParams {
    /// A link of `rate` bits per second and `delay`.
    #[must_use]
    pub const fn new(rate: u64, delay: Duration) -> Self {
        Self { rate: Some(rate), delay, queue_limit: None }
    }

    /// The same with room for `bytes` to wait.
    #[must_use]
    pub const fn with_queue_limit(mut self, bytes: usize) -> Self {
        self.queue_limit = Some(bytes);
        self
    }
}

/// A link and how far its transmitter is busy.
#[derive(Debug)]
pub(crate) struct Link {
    params: LinkParams,
    busy_until: Instant,
    overflows: u64,
}

impl Link {
    pub(crate) const fn new(params: LinkParams) -> Self {
        Self { params, busy_until: Instant::ZERO, overflows: 0 }
    }

    /// Packets that found the queue full.
    pub(crate) const fn overflows(&self) -> u64 {
        self.overflows
    }

    /// When a packet of `len` bytes that is sent at `now` arrives; `None` where the queue is full.
    pub(crate) fn transmit(&mut self, now: Instant, len: usize) -> Option<Instant> {
        let start = now.max(self.busy_until);
        if let Some(rate) = self.params.rate {
            let waiting = u128::from((start - now).as_nanos()) * u128::from(rate) / 8_000_000_000;
            if self.params.queue_limit.is_some_and(|limit| waiting + len as u128 > limit as u128) {
                self.overflows += 1;
                return None;
            }
            self.busy_until = start + serialization(len, rate);
        }
        Some(self.busy_until.max(now) + self.params.delay)
    }
}

fn serialization(len: usize, rate: u64) -> Duration {
    let nanos = (len as u128 * 8_000_000_000).div_ceil(u128::from(rate.max(1)));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_leave_one_after_the_other_at_the_rate() {
        let mut link = Link::new(LinkParams::new(1_000_000_000, Duration::from_micros(5)));
        let at = Instant::from_nanos;
        assert_eq!(link.transmit(at(100), 125), Some(at(6_100)));
        assert_eq!(link.transmit(at(100), 250), Some(at(8_100)));
        assert_eq!(link.transmit(at(10_000), 125), Some(at(16_000)));
    }

    #[test]
    fn a_full_queue_takes_nothing_until_it_drains() {
        let params = LinkParams::new(8_000_000_000, Duration::ZERO).with_queue_limit(250);
        let mut link = Link::new(params);
        let at = Instant::from_nanos;
        assert_eq!(link.transmit(at(0), 100), Some(at(100)));
        assert_eq!(link.transmit(at(0), 100), Some(at(200)));
        assert_eq!(link.transmit(at(0), 100), None);
        assert_eq!(link.transmit(at(50), 100), Some(at(300)));
        assert_eq!(link.overflows(), 1);
    }

    #[test]
    fn a_link_without_a_rate_only_delays() {
        let mut link = Link::new(LinkParams { delay: Duration::from_nanos(7), ..LinkParams::default() });
        assert_eq!(link.transmit(Instant::from_nanos(3), 1_000_000), Some(Instant::from_nanos(10)));
        assert_eq!(link.transmit(Instant::from_nanos(3), 1), Some(Instant::from_nanos(10)));
    }
}
