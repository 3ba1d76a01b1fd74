//! The device's thread: runs passes while the program does not, or all of them, as the [`Driver`] says.
//!
//! With [`Driver::Inline`] it stands at its gate while the program runs passes itself, looks up every now and then
//! whether that goes on, and takes over where it does not. Then, as with [`Driver::Background`], it spins a moment
//! after work and blocks. A pass of the program that did something wakes it, since there may be timers now that it
//! does not know of.

use std::io;
use std::sync::TryLockError;
use std::sync::atomic::Ordering;
use std::time::Duration as StdDuration;

use mio::{Events, Poll};
use wire::{Duration, Instant};

use super::driver::Patience;
use super::{Driver, Engine, Pass, SPIN, lock};
use crate::sys;

/// How long the program must have been silent for the thread to take over. The thread looks as often, which takes a core
/// for a few microseconds each time: where the program runs passes for long it looks ever less often.
const SILENCE: Duration = Duration::from_micros(100);
/// Silence of a program that has run passes for long.
const LONGEST_SILENCE: Duration = Duration::from_micros(800);
/// How long to wait before packets are offered again for which there was no room.
const RETRY_SEND: Duration = Duration::from_micros(100);
/// Shorter waits end at their time, not at the next millisecond: packets that keep a rate are waited for so.
const PRECISELY: StdDuration = StdDuration::from_millis(20);
/// Time of the last pass of a program that has handed over, or has never run one.
const HANDED_OVER: u64 = 0;

/// What the thread knows of a program that runs passes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Watch {
    /// How long it must have been silent.
    pub(super) silence: Duration,
    /// When its last pass began, as of the look before.
    pub(super) seen: u64,
}

impl Watch {
    const BEGIN: Self = Self { silence: SILENCE, seen: HANDED_OVER };
}

impl Engine {
    /// The program runs a pass at `now`.
    pub(super) fn note_driven(&self, now: Instant) {
        self.driven.store(now.as_nanos().max(1), Ordering::Relaxed);
    }

    /// Leaves the device to the thread: the program is going to block.
    pub(crate) fn hand_over(&self) {
        if self.driver == Driver::Inline {
            // The thread looks and goes to sleep under the lock of its gate, so that it cannot miss this.
            let guard = lock(&self.gate.0);
            self.driven.store(HANDED_OVER, Ordering::Relaxed);
            drop(guard);
            self.gate.1.notify_all();
        }
    }

    /// How long from `now` on the thread is to leave the device to the program.
    pub(super) fn time_at_gate(&self, now: Instant, watch: Watch) -> Option<Duration> {
        match self.driven.load(Ordering::Relaxed) {
            HANDED_OVER => None,
            last => {
                let end = Instant::from_nanos(last) + watch.silence;
                if end > now {
                    return Some(end - now);
                }
                // A pass can take longer than that, where it has much to do or the program waits for its core.
                let in_pass = || matches!(self.io.try_lock(), Err(TryLockError::WouldBlock));
                (last != watch.seen || in_pass()).then_some(watch.silence)
            }
        }
    }

    /// Tells the thread that a pass is wanted which the program does not run itself.
    pub(super) fn summon(&self) {
        self.wanted.store(true, Ordering::SeqCst);
        if self.asleep.swap(false, Ordering::SeqCst) {
            self.wake();
        }
    }

    pub(super) fn wake(&self) {
        if self.waker.wake().is_err() {
            tracing::warn!("the device's thread cannot be woken");
        }
    }

    /// Ends the thread's loop.
    pub(crate) fn stop(&self) {
        let guard = lock(&self.gate.0);
        self.stop.store(true, Ordering::Relaxed);
        drop(guard);
        self.gate.1.notify_all();
        self.wake();
    }

    /// The thread.
    pub(crate) fn run(&self, mut poll: Poll) {
        sys::wake_in_time();
        let mut events = Events::with_capacity(16);
        let patience = Patience::new();
        let mut idle_since = self.now();
        let mut watch = Watch::BEGIN;
        while !self.stop.load(Ordering::Relaxed) {
            if self.stands_at_gate(&mut watch) {
                idle_since = self.now();
                continue;
            }
            watch.silence = SILENCE;
            let busy = self.with_io(|io| self.pass(io, Pass::Full));
            let now = self.now();
            if busy {
                idle_since = now;
                patience.worked();
                continue;
            }
            if self.driver == Driver::Spin {
                std::hint::spin_loop();
                continue;
            }
            if now - idle_since < SPIN {
                patience.idled(|| self.now(), std::thread::yield_now);
                continue;
            }
            if let Err(error) = self.block(&mut poll, &mut events, now) {
                tracing::error!(%error, "waiting for packets failed");
                return;
            }
            idle_since = self.now();
        }
    }

    /// Waits for a moment where the program runs passes itself; says whether it does.
    fn stands_at_gate(&self, watch: &mut Watch) -> bool {
        let now = self.now();
        let seen = self.driven.load(Ordering::Relaxed);
        if self.time_at_gate(now, *watch).is_none() {
            return false;
        }
        let guard = lock(&self.gate.0);
        let Some(wait) = self.time_at_gate(now, *watch).filter(|_| !self.stop.load(Ordering::Relaxed)) else {
            return false;
        };
        drop(self.gate.1.wait_timeout(guard, wait.into()));
        *watch = Watch { silence: LONGEST_SILENCE.min(watch.silence + watch.silence), seen };
        true
    }

    /// Waits until packets come, a timer is due, or somebody wakes the thread.
    fn block(&self, poll: &mut Poll, events: &mut Events, now: Instant) -> io::Result<()> {
        // First this, so that whoever sets a timer after the question knows whom to wake.
        self.asleep.store(true, Ordering::SeqCst);
        let timeout = self.next_deadline().map(|due| StdDuration::from(due.since(now)));
        let waits = self.with_io(|io| io.broken.is_some() || io.backend.before_wait());
        let result = match timeout {
            _ if !waits => Ok(()),
            Some(timeout) if timeout < PRECISELY => {
                sys::wait_precisely(poll, timeout).and_then(|_| poll.poll(events, Some(StdDuration::ZERO)))
            }
            timeout => poll.poll(events, timeout),
        };
        self.asleep.store(false, Ordering::SeqCst);
        result.or_else(|error| if error.kind() == io::ErrorKind::Interrupted { Ok(()) } else { Err(error) })
    }

    /// Waits until packets come or a timer is due, for `limit` at most, in place of a program that finds nothing to do;
    /// says whether packets came. They stay to be received.
    pub(super) fn wait_for_packets(&self, limit: Duration) -> bool {
        let now = self.now();
        // It comes back by then: the thread is not to stand in for it.
        self.note_driven(now + limit);
        if !self.with_io(|io| io.broken.is_none() && io.backend.before_wait()) {
            return false;
        }
        let until_timer = self.next_deadline().map(|due| due.since(now));
        let wait = until_timer.map_or(limit, |wait| wait.min(limit));
        // A wait that was interrupted has ended early, as one may.
        sys::wait_precisely(&self.watched, wait.into()).unwrap_or(false)
    }

    fn next_deadline(&self) -> Option<Instant> {
        let of_path = self.with_io(|io| {
            if io.broken.is_some() {
                return None;
            }
            let retry = (io.sent < io.tx.len()).then(|| self.now() + RETRY_SEND);
            io.backend.poll_timeout().into_iter().chain(retry).min()
        });
        // After the last pass, which may have set a timer.
        self.nic().poll_timeout().into_iter().chain(of_path).min()
    }
}
