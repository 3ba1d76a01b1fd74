//! The device's thread: runs passes while the program does not, or all of them, as the [`Driver`] says.
//!
//! With [`Driver::Inline`] it stands at its gate while the program runs passes itself, looks up every now and then
//! whether that goes on, and takes over where it does not. Then, as with [`Driver::Background`], it spins a moment
//! after work and blocks. A pass of the program that did something wakes it, since there may be timers now that it
//! does not know of.

use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration as StdDuration;

use mio::{Events, Poll};
use wire::{Duration, Instant};

use super::driver::Patience;
use super::{Driver, Engine, Pass, SPIN, lock};

/// How often the thread looks whether the program still runs passes. One-sided traffic of a program that stops waits
/// for up to twice this; each look takes a core for a few microseconds.
const LOOK: StdDuration = StdDuration::from_micros(200);
/// How long to wait before packets are offered again for which there was no room.
const RETRY_SEND: Duration = Duration::from_micros(100);
/// Count of passes that says that the program waits for an event, and runs none.
const HANDED_OVER: u64 = u64::MAX;

impl Engine {
    /// The program runs a pass. Counts on from a hand-over as well; an increment lost to another thread does no harm,
    /// since any change will do.
    pub(super) fn note_driven(&self) {
        let passes = self.driven.load(Ordering::Relaxed);
        self.driven.store(passes.wrapping_add(1), Ordering::Relaxed);
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
        let mut events = Events::with_capacity(16);
        let patience = Patience::new();
        let mut idle_since = self.now();
        let mut seen = self.driven.load(Ordering::Relaxed);
        while !self.stop.load(Ordering::Relaxed) {
            if self.stands_at_gate(&mut seen) {
                idle_since = self.now();
                continue;
            }
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
                patience.idled(|| self.now());
                continue;
            }
            if let Err(error) = self.block(&mut poll, &mut events, now) {
                tracing::error!(%error, "waiting for packets failed");
                return;
            }
            idle_since = self.now();
        }
    }

    /// Waits a moment where the program has run passes since the count was `seen`.
    pub(super) fn stands_at_gate(&self, seen: &mut u64) -> bool {
        let passes = self.driven.load(Ordering::Relaxed);
        if passes == *seen || passes == HANDED_OVER {
            *seen = passes;
            return false;
        }
        let guard = lock(&self.gate.0);
        let passes = self.driven.load(Ordering::Relaxed);
        if passes == HANDED_OVER || self.stop.load(Ordering::Relaxed) {
            return false;
        }
        *seen = passes;
        drop(self.gate.1.wait_timeout(guard, LOOK));
        true
    }

    /// Waits until packets come, a timer is due, or somebody wakes the thread.
    fn block(&self, poll: &mut Poll, events: &mut Events, now: Instant) -> io::Result<()> {
        // First this, so that whoever sets a timer after the question knows whom to wake.
        self.asleep.store(true, Ordering::SeqCst);
        let timeout = self.next_deadline().map(|due| StdDuration::from(due.since(now)));
        let result = poll.poll(events, timeout);
        self.asleep.store(false, Ordering::SeqCst);
        result.or_else(|error| if error.kind() == io::ErrorKind::Interrupted { Ok(()) } else { Err(error) })
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
