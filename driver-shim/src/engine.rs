//! The engine: one pass receives, lets the NIC work, and sends. Whoever calls it does the same.
//!
//! Two locks make it: `io` is held for a whole pass and taken with a try, so that a second caller goes on
//! with its own business, having noted that another pass is wanted, which whoever lets go of `io` makes;
//! `nic` is held only while the NIC itself works, never across a system call.
//! A background thread runs passes while the program does not: it spins a moment after work, then blocks. A
//! pass of the program that did something wakes it, since there may be timers now that it does not know of.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration as StdDuration;

use mio::{Events, Poll, Token, Waker};
use qp::{AsyncEvent, BadWr, CqId, DestroyError, Event, McastError, Nic, PostError, RecvWr};
use wire::batch::{RxBurst, TxBatch};
use wire::{Duration, Gid, Instant, Qpn};

use crate::backend::{Backend, IoCounters, Reachability};
use crate::channel::Inbox;
use crate::clock::Clock;
use crate::mcast::AttachError;

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

/// What the NIC has said and nobody has fetched yet.
#[derive(Default)]
struct Notes {
    ready: HashMap<CqId, u64>,
    channels: HashMap<CqId, Arc<Inbox>>,
    asynchronous: VecDeque<AsyncEvent>,
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

    /// Waits until `cq` was notified more than `seen` times, or `timeout` has passed. Returns the count.
    pub(crate) fn wait_ready(&self, cq: CqId, seen: u64, timeout: StdDuration) -> u64 {
        let newer = || Some(self.ready_count(cq)).filter(|count| *count > seen);
        if let Some(count) = self.spin_for(timeout, newer) {
            return count;
        }
        self.hand_over();
        let waiting = |notes: &mut Notes| notes.ready.get(&cq).copied().unwrap_or(0) <= seen;
        let notes = self.wait_for_notes(timeout, waiting);
        notes.ready.get(&cq).copied().unwrap_or(0)
    }

    /// Waits for an asynchronous event, or until `timeout` has passed.
    pub(crate) fn wait_async_event(&self, timeout: StdDuration) -> Option<AsyncEvent> {
        if let Some(event) = self.spin_for(timeout, || self.next_async_event()) {
            return Some(event);
        }
        self.hand_over();
        self.wait_for_notes(timeout, |notes| notes.asynchronous.is_empty()).asynchronous.pop_front()
    }

    /// Drives the device for a moment, or for `timeout` where that is shorter, until `found` has something.
    pub(crate) fn spin_for<T>(&self, timeout: StdDuration, found: impl Fn() -> Option<T>) -> Option<T> {
        let start = self.now();
        loop {
            self.drive();
            if let Some(found) = found() {
                return Some(found);
            }
            if self.now() - start >= SPIN.min(timeout.into()) {
                return None;
            }
        }
    }

    /// Leaves the device to the background thread: the program is going to block.
    pub(crate) fn hand_over(&self) {
        // It looks and goes to sleep under the lock of its gate, so that it cannot miss this.
        let guard = lock(&self.gate.0);
        self.driven.store(0, Ordering::Relaxed);
        drop(guard);
        self.gate.1.notify_all();
        self.wake();
    }

    fn wait_for_notes(
        &self,
        timeout: StdDuration,
        waiting: impl FnMut(&mut Notes) -> bool,
    ) -> MutexGuard<'_, Notes> {
        let (notes, changed) = (lock(&self.notes.0), &self.notes.1);
        let waited = changed.wait_timeout_while(notes, timeout, waiting);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Notifications of `cq` go to `channel` from now on.
    pub(crate) fn set_channel(&self, cq: CqId, channel: &Arc<Inbox>) {
        lock(&self.notes.0).channels.insert(cq, Arc::clone(channel));
    }

    /// What is noted of a completion queue that goes.
    pub(crate) fn forget_cq(&self, cq: CqId) {
        let mut notes = lock(&self.notes.0);
        notes.ready.remove(&cq);
        notes.channels.remove(&cq);
        notes.asynchronous.retain(|event| event.cq() != Some(cq));
    }

    /// Destroys a queue pair with all that is noted of it.
    pub(crate) fn destroy_qp(&self, qpn: Qpn) -> Result<(), DestroyError> {
        let groups = self.nic().groups_of(qpn).to_vec();
        for group in groups {
            if let Err(error) = self.detach_mcast(qpn, group) {
                tracing::debug!(%error, "a membership that was there a moment ago");
            }
        }
        let mut nic = self.nic();
        let ended = nic.destroy_qp(qpn);
        self.pass_on_events(&mut nic);
        lock(&self.notes.0).asynchronous.retain(|event| event.qp() != Some(qpn));
        ended
    }

    /// Makes a queue pair a member of a multicast group, and the packet path let its packets in.
    pub(crate) fn attach_mcast(&self, qpn: Qpn, group: Gid) -> Result<(), AttachError> {
        self.with_io(|io| {
            let joined = {
                let mut nic = self.nic();
                let joined = nic.has_group(group);
                nic.attach_mcast(qpn, group)?;
                joined
            };
            if !joined && let Err(error) = io.backend.join(group.ip()) {
                self.nic().detach_mcast(qpn, group)?;
                return Err(error.into());
            }
            Ok(())
        })
    }

    /// Ends a membership.
    pub(crate) fn detach_mcast(&self, qpn: Qpn, group: Gid) -> Result<(), McastError> {
        self.with_io(|io| {
            let is_left = {
                let mut nic = self.nic();
                nic.detach_mcast(qpn, group)?;
                !nic.has_group(group)
            };
            if is_left {
                io.backend.leave(group.ip());
            }
            Ok(())
        })
    }

    pub(crate) fn ready_count(&self, cq: CqId) -> u64 {
        lock(&self.notes.0).ready.get(&cq).copied().unwrap_or(0)
    }

    /// Posts a receive. That makes no packet, but on a queue pair in ERR it makes a completion.
    pub(crate) fn post_recv(&self, qpn: Qpn, wr: RecvWr) -> Result<(), PostError> {
        let mut nic = self.nic();
        let posted = nic.post_recv(self.now(), qpn, wr);
        self.pass_on_events(&mut nic);
        posted
    }

    /// Posts receives, as [`Engine::post_recv`] does one.
    pub(crate) fn post_recv_list(
        &self,
        qpn: Qpn,
        wrs: impl IntoIterator<Item = RecvWr>,
    ) -> Result<(), BadWr> {
        let mut nic = self.nic();
        let posted = nic.post_recv_list(self.now(), qpn, wrs);
        self.pass_on_events(&mut nic);
        posted
    }

    pub(crate) fn next_async_event(&self) -> Option<AsyncEvent> {
        lock(&self.notes.0).asynchronous.pop_front()
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
        any
    }

    fn pass_on_events(&self, nic: &mut Nic) {
        let mut notes = None;
        while let Some(event) = nic.poll_event() {
            let notes = notes.get_or_insert_with(|| lock(&self.notes.0));
            match event {
                Event::CqReady(cq) => {
                    *notes.ready.entry(cq).or_default() += 1;
                    if let Some(channel) = notes.channels.get(&cq) {
                        channel.push(cq);
                    }
                }
                Event::Async(event) => notes.asynchronous.push_back(event),
                _ => {}
            }
        }
        if notes.is_some() {
            self.notes.1.notify_all();
        }
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

    /// Sends of what is left, the same bytes as before (rule R-REQ-30); returns how many packets are gone. Where there is no path any more all are, so that
    /// the NIC repeats them until it gives up: its program learns from completions that nothing goes.
    fn send(&mut self) -> usize {
        if self.broken.is_none() {
            match self.backend.send_batch(&self.tx, self.sent) {
                Ok(n) => return n,
                Err(error) => self.fail(&error),
            }
        }
        self.tx.len() - self.sent
    }

    fn fail(&mut self, error: &io::Error) {
        tracing::warn!(%error, backend = self.backend.name(), "the packet path is gone");
        self.broken = Some(error.to_string());
    }
}

#[cfg(test)]
mod tests;
