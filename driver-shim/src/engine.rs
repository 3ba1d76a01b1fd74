//! The engine: one pass receives, lets the NIC work, and sends. Whoever calls it does the same.
//!
//! Two locks make it: `io` is held for a whole pass and taken with a try, so that a second caller goes on
//! with its own business, having noted that another pass is wanted, which whoever lets go of `io` makes;
//! `nic` is held only while the NIC itself works, never across a system call that can block.
//! A background thread runs passes while the program does not: it spins a moment after work, then blocks. A
//! pass of the program that did something wakes it, since there may be timers now that it does not know of.

use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration as StdDuration;

use mio::{Events, Poll, Token, Waker};
use qp::Nic;
use wire::batch::{RxBurst, TxBatch};
use wire::{Duration, Instant};

use crate::backend::{Backend, IoCounters, Reachability};
use crate::clock::Clock;

use self::notes::Notes;

mod commands;
mod notes;

/// How long the background thread leaves the device to a program that drives it itself.
const DRIVEN: Duration = Duration::from_millis(2);
/// How long the background thread looks for more work before it blocks.
const SPIN: Duration = Duration::from_micros(50);
/// How long to wait before packets are offered again for which there was no room.
const RETRY_SEND: Duration = Duration::from_micros(100);
/// Passes without work after which a program that polls on lets others have its core for a moment.
const IDLE_PASSES: u32 = 64;
/// Passes that a caller makes in a row, so that others who keep wanting them do not keep it for ever: the
/// background thread does not block before it has seen to what is left.
const WANTED_PASSES: usize = 2;
/// Rounds of one pass, so that a flood of packets does not keep its caller for ever.
const ROUNDS: usize = 16;

pub(crate) struct Engine {
    nic: Mutex<Nic>,
    io: Mutex<Io>,
    clock: Clock,
    /// A program wants a pass: one that began before has perhaps not seen what it posted.
    wanted: AtomicBool,
    /// When a program last ran a pass, in nanoseconds; 0 while one waits for an event.
    driven: AtomicU64,
    /// Passes of the program that found nothing to do, in a row.
    idle: AtomicU32,
    /// The background thread blocks, or is about to ask until when.
    asleep: AtomicBool,
    stop: AtomicBool,
    waker: Arc<Waker>,
    /// The background thread stands here while a program drives the device.
    gate: (Mutex<()>, Condvar),
    notes: (Mutex<Notes>, Condvar),
}

struct Io {
    backend: Box<dyn Backend>,
    rx: RxBurst,
    tx: TxBatch,
    /// Packets of `tx` that were sent; the rest found no room.
    sent: usize,
    /// The path is gone; said once.
    broken: Option<String>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere is our bug; the data behind is still the best there is.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Engine {
    /// An engine over `backend`, with the poll that its background thread blocks in.
    pub(crate) fn new(nic: Nic, mut backend: Box<dyn Backend>) -> io::Result<(Arc<Self>, Poll)> {
        const PACKETS: Token = Token(0);
        const WAKE: Token = Token(1);
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKE)?);
        backend.register(poll.registry(), PACKETS)?;
        backend.set_waker(Arc::clone(&waker));
        let mut tx = TxBatch::new();
        tx.clear();
        let io = Io { backend, rx: RxBurst::new(), tx, sent: 0, broken: None };
        let engine = Self {
            nic: Mutex::new(nic),
            io: Mutex::new(io),
            clock: Clock::new(),
            wanted: AtomicBool::new(false),
            driven: AtomicU64::new(0),
            idle: AtomicU32::new(0),
            asleep: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            waker,
            gate: (Mutex::new(()), Condvar::new()),
            notes: (Mutex::new(Notes::default()), Condvar::new()),
        };
        Ok((Arc::new(engine), poll))
    }

    pub(crate) fn now(&self) -> Instant {
        self.clock.now()
    }

    pub(crate) fn nic(&self) -> MutexGuard<'_, Nic> {
        lock(&self.nic)
    }

    /// One pass on behalf of the program. Where one is running, its runner makes another.
    pub(crate) fn drive(&self) {
        self.driven.store(self.now().as_nanos().max(1), Ordering::Relaxed);
        self.wanted.store(true, Ordering::SeqCst);
        if self.run_wanted() {
            self.idle.store(0, Ordering::Relaxed);
        } else if self.idle.fetch_add(1, Ordering::Relaxed) >= IDLE_PASSES {
            // Whoever is to send what is waited for may need this core.
            std::thread::yield_now();
        }
    }

    /// Runs the passes that are wanted; true where anything was done. Everyone who lets go of `io` calls it, so
    /// that no wish is lost: whoever finds `io` taken has noted its wish before, and the holder looks after.
    fn run_wanted(&self) -> bool {
        let (mut any, mut passes) = (false, 0);
        let more = loop {
            // Between the note, or the letting go, before and the look behind: neither may pass the other.
            fence(Ordering::SeqCst);
            if !self.wanted.load(Ordering::SeqCst) {
                break false;
            }
            if passes == WANTED_PASSES {
                break true;
            }
            let mut io = match self.io.try_lock() {
                Ok(io) => io,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => break false,
            };
            self.wanted.store(false, Ordering::SeqCst);
            any |= self.pass(&mut io);
            passes += 1;
        };
        if (any || more) && self.asleep.swap(false, Ordering::SeqCst) {
            self.wake();
        }
        any
    }

    fn wake(&self) {
        if self.waker.wake().is_err() {
            tracing::warn!("the device's thread cannot be woken");
        }
    }

    /// Lets `work` have the packet path.
    fn with_io<T>(&self, work: impl FnOnce(&mut Io) -> T) -> T {
        let result = work(&mut lock(&self.io));
        self.run_wanted();
        result
    }

    /// What was lost below the NIC.
    pub(crate) fn io_counters(&self) -> IoCounters {
        self.with_io(|io| io.backend.counters())
    }

    /// Why the packet path is gone, if it is.
    pub(crate) fn broken(&self) -> Option<String> {
        self.with_io(|io| io.broken.clone())
    }

    /// Writes captures out.
    pub(crate) fn flush(&self) -> io::Result<()> {
        self.with_io(|io| io.backend.flush())
    }

    /// Asks for the way to `dst` and lets time pass for it.
    pub(crate) fn prepare(&self, dst: IpAddr) -> Reachability {
        self.with_io(|io| {
            let reach = io.backend.prepare(self.now(), dst);
            self.pass(io);
            reach
        })
    }

    /// Ends the background thread's loop.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.gate.1.notify_all();
        self.wake();
    }

    /// The background thread.
    pub(crate) fn run(&self, mut poll: Poll) {
        let mut events = Events::with_capacity(16);
        let mut idle_since = self.now();
        while !self.stop.load(Ordering::Relaxed) {
            let guard = lock(&self.gate.0);
            if self.is_driven() {
                let wait = StdDuration::from(DRIVEN);
                drop(self.gate.1.wait_timeout(guard, wait));
                idle_since = self.now();
                continue;
            }
            drop(guard);
            let busy = self.with_io(|io| self.pass(io));
            let now = self.now();
            if busy {
                idle_since = now;
            }
            if now - idle_since < SPIN {
                std::hint::spin_loop();
                continue;
            }
            // First this, so that whoever sets a timer after the question knows whom to wake.
            self.asleep.store(true, Ordering::SeqCst);
            let timeout = self.next_deadline().map(|due| StdDuration::from(due.since(now)));
            if let Err(error) = poll.poll(&mut events, timeout)
                && error.kind() != io::ErrorKind::Interrupted
            {
                tracing::error!(%error, "waiting for packets failed");
                return;
            }
            self.asleep.store(false, Ordering::SeqCst);
            idle_since = self.now();
        }
    }

    fn is_driven(&self) -> bool {
        let driven = self.driven.load(Ordering::Relaxed);
        driven != 0 && self.now() - Instant::from_nanos(driven) < DRIVEN
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

    /// Receives, lets the NIC work, sends; true where anything was done.
    fn pass(&self, io: &mut Io) -> bool {
        let mut any = false;
        for _ in 0..ROUNDS {
            let received = self.receive(io);
            let sent = self.transmit(io);
            any |= received || sent;
            if !received {
                break;
            }
        }
        if io.broken.is_some() {
            let mut nic = self.nic();
            nic.fail_device();
            self.pass_on_events(&mut nic);
        }
        any
    }

    fn receive(&self, io: &mut Io) -> bool {
        let now = self.now();
        io.rx.clear();
        let datagrams = io.receive(now);
        let mut nic = self.nic();
        if datagrams > 0 {
            nic.handle_burst(now, &io.rx);
        }
        if nic.poll_timeout().is_some_and(|due| due <= now) {
            nic.handle_timeout(now);
        }
        nic.set_port_active(io.backend.link_is_up());
        self.pass_on_events(&mut nic);
        datagrams > 0
    }

    fn transmit(&self, io: &mut Io) -> bool {
        let mut any = false;
        loop {
            if io.sent >= io.tx.len() {
                let now = self.now();
                let mut nic = self.nic();
                let filled = nic.poll_transmit(now, &mut io.tx);
                self.pass_on_events(&mut nic);
                io.sent = 0;
                if !filled {
                    break;
                }
            }
            match io.send() {
                // Rule F18: what found no room is sent a moment later, unchanged.
                0 => break,
                n => io.sent += n,
            }
            any = true;
        }
        if any {
            io.kick();
        }
        any
    }
}

impl Io {
    /// Lets packets in; returns how many datagrams came.
    fn receive(&mut self, now: Instant) -> usize {
        if self.broken.is_some() {
            return 0;
        }
        self.backend.poll(now);
        self.backend.recv_burst(&mut self.rx).unwrap_or_else(|error| {
            self.fail(&error);
            0
        })
    }

    /// Sends of what is left, the same bytes as before (rule R-REQ-30); returns how many packets are gone. Where there
    /// is no path any more all are, so that the NIC repeats them until it gives up: its program learns from completions
    /// that nothing goes.
    fn send(&mut self) -> usize {
        if self.broken.is_none() {
            match self.backend.send_batch(&self.tx, self.sent) {
                Ok(n) => return n,
                Err(error) => self.fail(&error),
            }
        }
        self.tx.len() - self.sent
    }

    /// Lets go what the back end has held back.
    fn kick(&mut self) {
        if self.broken.is_none()
            && let Err(error) = self.backend.kick()
        {
            self.fail(&error);
        }
    }

    fn fail(&mut self, error: &io::Error) {
        tracing::warn!(%error, backend = self.backend.name(), "the packet path is gone");
        self.broken = Some(error.to_string());
    }
}

#[cfg(test)]
mod tests;
