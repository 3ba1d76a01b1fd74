//! The device's clock: the only place where its time comes from.

use wire::Instant;

/// Monotonic time since the clock was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: std::time::Instant,
}

#[expect(clippy::disallowed_methods, reason = "this is the clock that everything else is given the time of")]
impl Clock {
    pub(crate) fn new() -> Self {
        Self { start: std::time::Instant::now() }
    }

    pub(crate) fn now(&self) -> Instant {
        let nanos = self.start.elapsed().as_nanos();
        Instant::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}
