//! What the NIC has said, and whoever waits for it: notifications of completion queues, asynchronous events.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration as StdDuration;

use qp::{AsyncEvent, CqId, Event, Nic};
use wire::{Qpn, Srqn};

use super::{Driver, Engine, SPIN, lock};
use crate::channel::Inbox;

/// What the NIC has said and nobody has fetched yet.
#[derive(Default)]
pub(super) struct Notes {
    ready: HashMap<CqId, u64>,
    channels: HashMap<CqId, Arc<Inbox>>,
    asynchronous: VecDeque<AsyncEvent>,
}

impl Engine {
    /// Takes the NIC's events to where they are waited for.
    pub(super) fn pass_on_events(&self, nic: &mut Nic) {
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

    /// Until `found` has something drives the device for a moment, or for `timeout` where that is shorter, where the
    /// program is to drive it.
    pub(crate) fn spin_for<T>(&self, timeout: StdDuration, found: impl Fn() -> Option<T>) -> Option<T> {
        let start = self.now();
        loop {
            if self.driver == Driver::Inline {
                self.drive();
            }
            if let Some(found) = found() {
                return Some(found);
            }
            // Where the thread runs the passes, waiting for it is all there is to do.
            if self.driver != Driver::Inline || self.now() - start >= SPIN.min(timeout.into()) {
                return None;
            }
        }
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

    /// Forgets what is noted of a queue pair that goes.
    pub(super) fn forget_qp(&self, qpn: Qpn) {
        lock(&self.notes.0).asynchronous.retain(|event| event.qp() != Some(qpn));
    }

    /// Forgets what is noted of a shared receive queue that goes.
    pub(super) fn forget_srq(&self, srqn: Srqn) {
        lock(&self.notes.0).asynchronous.retain(|event| event.srq() != Some(srqn));
    }

    /// Forgets what is noted of a completion queue that goes.
    pub(crate) fn forget_cq(&self, cq: CqId) {
        let mut notes = lock(&self.notes.0);
        notes.ready.remove(&cq);
        notes.channels.remove(&cq);
        notes.asynchronous.retain(|event| event.cq() != Some(cq));
    }

    pub(crate) fn ready_count(&self, cq: CqId) -> u64 {
        lock(&self.notes.0).ready.get(&cq).copied().unwrap_or(0)
    }

    pub(crate) fn next_async_event(&self) -> Option<AsyncEvent> {
        lock(&self.notes.0).asynchronous.pop_front()
    }
}
