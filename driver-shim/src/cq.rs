//! Completion queues: polled, or waited for.

use std::sync::{Arc, Weak};
use std::time::Duration;

use qp::{Completion, CqId, CreateError, ResizeCqError};

use crate::channel::Inbox;
use crate::device::Device;

/// A completion queue. Clones are the same queue.
#[derive(Clone, Debug)]
pub struct CompletionQueue {
    inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    device: Device,
    id: CqId,
    /// Where its notifications arrive.
    channel: Option<Arc<Inbox>>,
}

impl CompletionQueue {
    pub(crate) fn new(device: &Device, depth: usize) -> Result<Self, CreateError> {
        let id = device.engine().nic().create_cq(depth)?;
        Ok(Self { inner: Arc::new(Inner { device: device.clone(), id, channel: None }) })
    }

    /// One whose notifications arrive at `channel`, which is to know it by the other two.
    pub(crate) fn on_channel(
        device: &Device,
        depth: usize,
        channel: &Arc<Inbox>,
    ) -> Result<(Self, CqId, Weak<Inner>), CreateError> {
        let id = device.engine().nic().create_cq(depth)?;
        let channel = Some(Arc::clone(channel));
        let inner = Arc::new(Inner { device: device.clone(), id, channel });
        let weak = Arc::downgrade(&inner);
        Ok((Self { inner }, id, weak))
    }

    pub(crate) fn from_inner(inner: Arc<Inner>) -> Self {
        Self { inner }
    }

    /// Changes how many completions it holds. What waits in it stays.
    ///
    /// # Errors
    /// Where `depth` is 0 or too large, or less than what waits.
    pub fn resize(&self, depth: usize) -> Result<(), ResizeCqError> {
        self.inner.device.engine().nic().resize_cq(self.inner.id, depth)
    }

    /// Takes up to `max` completions; where there are none, drives the device first. Allocates: a program that polls
    /// without end better uses [`CompletionQueue::poll_into`].
    #[must_use]
    pub fn poll(&self, max: usize) -> Vec<Completion> {
        let mut out = Vec::new();
        self.poll_into(max, &mut out);
        out
    }

    /// Moves up to `max` completions to the end of `out`; returns how many. Where there are none it drives the device
    /// first, unless that is left to its thread ([`Driver`](crate::Driver)).
    ///
    /// Where packets have brought completions the program gets them at once: what those packets ask for besides, such
    /// as an acknowledgement, leaves with the next call that posts or polls, or else from the device's thread a
    /// fraction of a millisecond later.
    pub fn poll_into(&self, max: usize, out: &mut Vec<Completion>) -> usize {
        let engine = self.inner.device.engine();
        // What is there already needs no packets.
        let waiting = engine.nic().poll_cq(self.inner.id, max, out);
        if waiting > 0 {
            engine.found();
            return waiting;
        }
        engine.polled(self.inner.id);
        engine.nic().poll_cq(self.inner.id, max, out)
    }

    /// Waits until there are completions or `timeout` has passed, without keeping a core busy; takes up to
    /// `max`. It arms the queue for that: where the queue has a channel, a notification arrives there as well.
    #[must_use]
    pub fn wait(&self, max: usize, timeout: Duration) -> Vec<Completion> {
        let engine = self.inner.device.engine();
        let start = engine.now();
        loop {
            let seen = engine.ready_count(self.inner.id);
            engine.nic().req_notify_cq(self.inner.id, false);
            let ready = self.poll(max);
            let left = timeout.saturating_sub((engine.now() - start).into());
            if !ready.is_empty() || left.is_zero() {
                return ready;
            }
            // A notification may be an old one, or another thread may have what it was about.
            engine.wait_ready(self.inner.id, seen, left);
        }
    }

    /// Asks for one notification: at the next completion, or only at the next solicited one or error.
    /// Completions that are there already do not count.
    pub fn req_notify(&self, solicited_only: bool) {
        self.inner.device.engine().nic().req_notify_cq(self.inner.id, solicited_only);
    }

    /// Notifications so far.
    #[must_use]
    pub fn notifications(&self) -> u64 {
        self.inner.device.engine().ready_count(self.inner.id)
    }

    /// The device it is of.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// What asynchronous events call it: [`AsyncEvent::CqErr`](qp::AsyncEvent::CqErr).
    #[must_use]
    pub fn id(&self) -> CqId {
        self.inner.id
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.device.engine().forget_cq(self.id);
        if let Some(channel) = &self.channel {
            channel.forget(self.id);
        }
        // Queue pairs hold a handle to their queues, so it is unused by now.
        let ended = self.device.engine().nic().destroy_cq(self.id);
        debug_assert!(ended.is_ok(), "{ended:?}");
    }
}
