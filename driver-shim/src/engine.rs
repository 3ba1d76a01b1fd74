//! The engine: one pass receives, lets the NIC work, and sends. Whoever calls it does the same.
//!
//! Two locks make it: `io` is held for a whole pass and taken with a try, so that a second caller goes on
//! with its own business, having noted that another pass is wanted, which whoever lets go of `io` makes;
//! `nic` is held only while the NIC itself works, never across a system call that can block.
//! Who runs the passes is the [`Driver`]'s choice: the program's calls, or the device's thread ([`thread`]).

use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};

use mio::{Poll, Registry, Token, Waker};
use qp::{CqId, Nic};
use wire::batch::{RxBurst, TxBatch};
use wire::{Duration, Instant};

use crate::backend::{Backend, IoCounters, Reachability};
use crate::clock::Clock;

use self::driver::Patience;
pub use self::driver::{Driver, UnknownDriver};
use self::notes::Notes;

mod commands;
mod driver;
mod notes;
mod thread;

/// How long a waiting caller, and the device's thread, look for more work before they block.
const SPIN: Duration = Duration::from_micros(50);
/// Passes that a caller makes in a row, so that others who keep wanting them do not keep it for ever: the
/// background thread does not block before it has seen to what is left.
const WANTED_PASSES: usize = 2;
/// Rounds of one pass, so that a flood of packets does not keep its caller for ever.
const ROUNDS: usize = 16;
/// Batches that are sent before packets are received again: what a peer waits for, or has acknowledged, is not to wait
/// for all there is to send.
const BATCHES: usize = 4;
/// How long a program that polls for completions sleeps at most while no packets come, where others compute on its core:
/// what another thread of it brings about is not seen sooner.
const DOZE: Duration = Duration::from_micros(500);
/// Datagrams after which more are likely to wait. Where fewer came, looking again is left to the next pass.
const MANY: usize = 8;

pub(crate) struct Engine {
    nic: Mutex<Nic>,
    io: Mutex<Io>,
    clock: Clock,
    /// A program wants a pass: one that began before has perhaps not seen what it posted.
    wanted: AtomicBool,
    driver: Driver,
    /// When the program last ran a pass, in nanoseconds; 0 while it runs none.
    driven: AtomicU64,
    /// Answers wait to be sent by the next call of the program, which has completions to look at first.
    owed: AtomicBool,
    /// Of the program's calls.
    patience: Patience,
    /// The background thread blocks, or is about to ask until when.
    asleep: AtomicBool,
    stop: AtomicBool,
    waker: Arc<Waker>,
    /// What the background thread's poll watches.
    watched: Registry,
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

/// What a pass is for.
#[derive(Clone, Copy)]
enum Pass {
    /// All there is to do.
    Full,
    /// Sending what was just posted. Where nothing of it may go now, it is a full pass.
    Post,
    /// Completions of this queue. Where packets bring some, what else they ask for is left to the next call, so that
    /// the program sees them at once.
    Poll(CqId),
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere is our bug; the data behind is still the best there is.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Engine {
    /// An engine over `backend`, with the poll that its background thread blocks in.
    pub(crate) fn new(
        nic: Nic,
        mut backend: Box<dyn Backend>,
        driver: Driver,
    ) -> io::Result<(Arc<Self>, Poll)> {
        const PACKETS: Token = Token(0);
        const WAKE: Token = Token(1);
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKE)?);
        backend.register(poll.registry(), PACKETS)?;
        backend.set_waker(Arc::clone(&waker));
        let watched = poll.registry().try_clone()?;
        let mut tx = TxBatch::new();
        tx.clear();
        let io = Io { backend, rx: RxBurst::new(), tx, sent: 0, broken: None };
        let engine = Self {
            nic: Mutex::new(nic),
            io: Mutex::new(io),
            clock: Clock::new(),
            wanted: AtomicBool::new(false),
            driver,
            driven: AtomicU64::new(0),
            owed: AtomicBool::new(false),
            patience: Patience::new(),
            asleep: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            waker,
            watched,
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

    /// A pass on behalf of the program, or of whoever runs them. Where one is running, its runner makes another.
    pub(crate) fn drive(&self) {
        self.drive_for(Pass::Full);
    }

    /// The program has posted something.
    pub(crate) fn posted(&self) {
        self.drive_for(Pass::Post);
    }

    /// The program finds no completions in `cq`.
    pub(crate) fn polled(&self, cq: CqId) {
        if self.driver == Driver::Inline {
            self.drive_for(Pass::Poll(cq));
        } else {
            self.patience.idled(|| self.now(), std::thread::yield_now);
        }
    }

    fn drive_for(&self, pass: Pass) {
        if self.driver != Driver::Inline {
            self.summon();
            return;
        }
        if matches!(pass, Pass::Full) {
            self.note_driven(self.now());
        }
        self.wanted.store(true, Ordering::SeqCst);
        match self.run_wanted(pass) {
            Ran::Work => self.patience.worked(),
            Ran::Idle if matches!(pass, Pass::Poll(_)) => {
                let doze = || {
                    self.wait_for_packets(DOZE);
                };
                self.patience.idled_or_waits(|| self.now(), std::thread::yield_now, doze);
            }
            Ran::Idle => self.patience.idled(|| self.now(), std::thread::yield_now),
            // Who has the path may be waiting for this core.
            Ran::Elsewhere => self.patience.stood_off(|| self.now(), || self.with_io(|_| ())),
        }
    }

    /// The program has found completions in a queue: sends the answers that were left to its next call.
    pub(crate) fn found(&self) {
        if self.owed.load(Ordering::Relaxed) {
            self.drive_for(Pass::Post);
        }
    }

    /// Sends what is owed before something ends that it is of.
    fn pay_what_is_owed(&self) {
        if self.owed.load(Ordering::Relaxed) {
            self.with_io(|io| self.transmit(io, self.now()));
        }
    }

    /// Runs the passes that are wanted. Everyone who lets go of `io` calls it, so that no wish is lost: whoever finds
    /// `io` taken has noted its wish before, and the holder looks after.
    fn run_wanted(&self, mut pass: Pass) -> Ran {
        let (mut any, mut passes, mut elsewhere) = (false, 0, false);
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
                Err(TryLockError::WouldBlock) => {
                    elsewhere = true;
                    break false;
                }
            };
            self.wanted.store(false, Ordering::SeqCst);
            any |= self.pass(&mut io, pass);
            passes += 1;
            // Whatever another caller wants.
            pass = Pass::Full;
        };
        if (any || more) && self.asleep.swap(false, Ordering::SeqCst) {
            self.wake();
        }
        match (any, elsewhere) {
            (true, _) => Ran::Work,
            (false, true) => Ran::Elsewhere,
            (false, false) => Ran::Idle,
        }
    }

    /// Lets `work` have the packet path.
    fn with_io<T>(&self, work: impl FnOnce(&mut Io) -> T) -> T {
        let result = work(&mut lock(&self.io));
        self.run_wanted(Pass::Full);
        result
    }

    /// Keeps all its locks while `work` runs.
    #[cfg(test)]
    pub(crate) fn with_all_locked(&self, work: impl FnOnce()) {
        let guards = (lock(&self.io), lock(&self.nic), lock(&self.gate.0), lock(&self.notes.0));
        work();
        drop(guards);
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
            self.pass(io, Pass::Full);
            reach
        })
    }

    /// Receives, lets the NIC work, sends, as far as `pass` asks for; true where anything was done.
    fn pass(&self, io: &mut Io, pass: Pass) -> bool {
        let any = match pass {
            Pass::Full => self.rounds(io),
            Pass::Post => {
                let now = self.now();
                self.note_driven(now);
                match self.transmit(io, now) {
                    Sent { any: true, more: false } => true,
                    sent => self.rounds(io) | sent.any,
                }
            }
            Pass::Poll(cq) => {
                let now = self.now();
                self.note_driven(now);
                let paid = self.owed.load(Ordering::Relaxed) && self.transmit(io, now).any;
                let received = self.receive(io, now);
                if received > 0 && self.nic().cq_len(cq) > 0 {
                    self.owed.store(true, Ordering::Relaxed);
                    return true;
                }
                let sent = self.transmit(io, now);
                let more = received >= MANY || sent.more;
                (more && self.rounds(io)) | paid | (received > 0) | sent.any
            }
        };
        if io.broken.is_some() {
            let mut nic = self.nic();
            nic.fail_device();
            self.pass_on_events(&mut nic);
        }
        any
    }

    /// Receives and sends in turns for as long as there is much to do.
    fn rounds(&self, io: &mut Io) -> bool {
        let mut any = false;
        for _ in 0..ROUNDS {
            let now = self.now();
            let received = self.receive(io, now);
            let sent = self.transmit(io, now);
            any |= received > 0 || sent.any;
            if received < MANY && !sent.more {
                break;
            }
        }
        any
    }

    /// Takes a burst in; returns how many datagrams came.
    fn receive(&self, io: &mut Io, now: Instant) -> usize {
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
        datagrams
    }

    /// Sends some batches.
    fn transmit(&self, io: &mut Io, now: Instant) -> Sent {
        self.owed.store(false, Ordering::Relaxed);
        let mut sent = Sent { any: false, more: true };
        for _ in 0..BATCHES {
            if io.sent >= io.tx.len() {
                let mut nic = self.nic();
                let filled = nic.poll_transmit(now, &mut io.tx);
                self.pass_on_events(&mut nic);
                io.sent = 0;
                if !filled {
                    sent.more = false;
                    break;
                }
                // Even where it finds no room: there are timers now, and it is to be offered again.
                sent.any = true;
            }
            match io.send() {
                0 => {
                    // Rule F18: what found no room is sent a moment later, unchanged.
                    sent.more = false;
                    break;
                }
                n => io.sent += n,
            }
            sent.any = true;
        }
        if sent.any {
            io.kick();
        }
        sent
    }
}

/// What wanting a pass came to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ran {
    /// Passes found work.
    Work,
    /// There was nothing to do.
    Idle,
    /// Somebody else has the packet path, and makes the pass.
    Elsewhere,
}

/// What sending came to.
#[derive(Clone, Copy)]
struct Sent {
    /// Anything left, or is about to where there was no room for it.
    any: bool,
    /// There may be more that could leave.
    more: bool,
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
