//! A timer that wakes a poll more finely than a poll's own timeout, which counts milliseconds.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use wire::Duration;

const NEVER: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

#[derive(Debug)]
pub(super) struct Timer {
    fd: OwnedFd,
    is_set: bool,
}

impl Timer {
    pub(super) fn new(registry: &Registry, token: Token) -> io::Result<Self> {
        let fd = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        registry.register(&mut SourceFd(&fd.as_raw_fd()), token, Interest::READABLE)?;
        Ok(Self { fd, is_set: false })
    }

    /// Goes off after `wait` and at no other time; or not at all.
    pub(super) fn set(&mut self, wait: Option<Duration>) -> io::Result<()> {
        if wait.is_none() && !self.is_set {
            return Ok(());
        }
        self.is_set = wait.is_some();
        // A wait of nothing would switch it off.
        let value = wait.map_or(NEVER, |wait| {
            let nanos = wait.as_nanos().max(1);
            Timespec {
                tv_sec: i64::try_from(nanos / 1_000_000_000).unwrap_or(i64::MAX),
                tv_nsec: i64::try_from(nanos % 1_000_000_000).unwrap_or_default(),
            }
        });
        let spec = Itimerspec { it_interval: NEVER, it_value: value };
        timerfd_settime(&self.fd, TimerfdTimerFlags::empty(), &spec)?;
        Ok(())
    }
}
