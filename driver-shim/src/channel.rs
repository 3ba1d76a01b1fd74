//! Completion channels: one place to wait for the notifications of several completion queues.
//!
//! The engine puts a notification here when an armed queue of the channel gets what it was armed for; the program
//! takes it out. A descriptor that can be polled counts along.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use qp::{CqId, CreateError};

use crate::cq::{self, CompletionQueue};
use crate::device::Device;
use crate::engine::lock;
use crate::sys;

/// A place where the notifications of several completion queues arrive. Clones are the same channel.
#[derive(Clone)]
pub struct CompletionChannel {
    device: Device,
    inbox: Arc<Inbox>,
}

/// What the engine knows of a channel.
pub(crate) struct Inbox {
    /// Readable while notifications wait; holds as many as there are.
    counter: File,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    notified: VecDeque<CqId>,
    queues: HashMap<CqId, Weak<cq::Inner>>,
}

impl Inbox {
    /// A completion queue was notified.
    pub(crate) fn push(&self, cq: CqId) {
        let mut waiting = lock(&self.waiting);
        if waiting.queues.contains_key(&cq) {
            waiting.notified.push_back(cq);
            self.count(|mut counter| counter.write(&1_u64.to_ne_bytes()));
        }
    }

    /// A completion queue goes, and its notifications with it.
    pub(crate) fn forget(&self, cq: CqId) {
        let mut waiting = lock(&self.waiting);
        waiting.queues.remove(&cq);
        let before = waiting.notified.len();
        waiting.notified.retain(|notified| *notified != cq);
        for _ in waiting.notified.len()..before {
            self.uncount();
        }
    }

    fn pop(&self) -> Option<Arc<cq::Inner>> {
        let mut waiting = lock(&self.waiting);
        loop {
            let cq = waiting.notified.pop_front()?;
            self.uncount();
            // One that is going takes its notifications along.
            if let Some(queue) = waiting.queues.get(&cq).and_then(Weak::upgrade) {
                return Some(queue);
            }
        }
    }

    fn uncount(&self) {
        self.count(|mut counter| counter.read(&mut [0; 8]));
    }

    /// The counter is changed under the lock only, so neither the last nor the first can fail.
    fn count(&self, change: impl FnOnce(&File) -> io::Result<usize>) {
        if let Err(error) = change(&self.counter) {
            tracing::warn!(%error, "a completion channel's descriptor miscounts");
        }
    }
}

impl fmt::Debug for Inbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbox").field("notified", &lock(&self.waiting).notified.len()).finish_non_exhaustive()
    }
}

impl CompletionChannel {
    pub(crate) fn new(device: &Device) -> io::Result<Self> {
        let inbox = Inbox { counter: sys::event_counter()?, waiting: Mutex::default() };
        Ok(Self { device: device.clone(), inbox: Arc::new(inbox) })
    }

    /// Makes a completion queue for `depth` completions whose notifications arrive here.
    ///
    /// # Errors
    /// Where `depth` is 0 or too large.
    pub fn create_cq(&self, depth: usize) -> Result<CompletionQueue, CreateError> {
        let (queue, id, inner) = CompletionQueue::on_channel(&self.device, depth, &self.inbox)?;
        lock(&self.inbox.waiting).queues.insert(id, inner);
        self.device.engine().set_channel(id, &self.inbox);
        Ok(queue)
    }

    /// The oldest notification, if one waits. It drives nothing.
    #[must_use]
    pub fn try_event(&self) -> Option<CqEvent> {
        self.inbox.pop().map(|inner| CqEvent { queue: CompletionQueue::from_inner(inner) })
    }

    /// Waits for a notification until `timeout` has passed, without keeping a core busy. Only queues that are armed
    /// notify: see [`CompletionQueue::req_notify`].
    #[must_use]
    pub fn wait_event(&self, timeout: Duration) -> Option<CqEvent> {
        let engine = self.device.engine();
        let start = engine.now();
        if let Some(event) = engine.spin_for(timeout, || self.try_event()) {
            return Some(event);
        }
        if timeout.is_zero() {
            return None;
        }
        engine.hand_over();
        loop {
            if let Some(event) = self.try_event() {
                return Some(event);
            }
            let left = timeout.saturating_sub((engine.now() - start).into());
            if left.is_zero() {
                return None;
            }
            // Whole milliseconds, so the last one is not waited for in vain.
            let wait = left.max(Duration::from_millis(1));
            if let Err(error) = sys::wait_readable(self.as_fd(), wait) {
                tracing::warn!(%error, "a completion channel cannot be waited for");
                return None;
            }
        }
    }
}

/// Readable while a notification waits: for `poll`, and `epoll`. Take notifications by
/// [`CompletionChannel::try_event`], never from the descriptor itself.
impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inbox.counter.as_fd()
    }
}

impl fmt::Debug for CompletionChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CompletionChannel").field(&self.inbox).finish()
    }
}

/// A notification that was taken from a channel. The completion queue lives until it is acknowledged, or dropped.
#[derive(Debug)]
#[must_use = "it keeps its completion queue alive until it is acknowledged"]
pub struct CqEvent {
    queue: CompletionQueue,
}

impl CqEvent {
    /// The queue that was notified.
    #[must_use]
    pub const fn queue(&self) -> &CompletionQueue {
        &self.queue
    }

    /// Says that it has been seen to.
    pub fn acknowledge(self) {}
}
