//! Rings in memory that two sides share: one puts in, the other takes out, and neither waits for a lock.
//!
//! A ring is two free-running 32-bit indices and a power of two of slots; these types keep the indices, and their
//! callers read and write the slots. The `xdp` and `shm` back ends use them. The other side is not trusted: whatever
//! it writes to the indices, no slot number is out of range and no count exceeds the ring.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::sys::Mapping;

/// An index that both sides see.
pub(crate) trait Index {
    /// As an atomic does.
    fn load(&self, order: Ordering) -> u32;
    /// As an atomic does.
    fn store(&self, value: u32, order: Ordering);
}

impl Index for &AtomicU32 {
    fn load(&self, order: Ordering) -> u32 {
        AtomicU32::load(self, order)
    }

    fn store(&self, value: u32, order: Ordering) {
        AtomicU32::store(self, value, order);
    }
}

/// An index somewhere in shared memory.
#[derive(Clone, Debug)]
pub(crate) struct MappedIndex {
    map: Arc<Mapping>,
    at: usize,
}

impl MappedIndex {
    /// The index at byte `at` of `map`.
    ///
    /// # Panics
    /// Where `map` does not hold it, or `at` is not a multiple of four.
    pub(crate) fn new(map: &Arc<Mapping>, at: usize) -> Self {
        // Found here rather than when it is used.
        map.word(at);
        Self { map: Arc::clone(map), at }
    }
}

impl Index for MappedIndex {
    fn load(&self, order: Ordering) -> u32 {
        self.map.word(self.at).load(order)
    }

    fn store(&self, value: u32, order: Ordering) {
        self.map.word(self.at).store(value, order);
    }
}

/// The indices are further apart than the ring is long: the other side broke the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the other side of a shared ring has written impossible indices")]
pub(crate) struct Torn;

impl From<Torn> for io::Error {
    fn from(torn: Torn) -> Self {
        Self::other(torn)
    }
}

/// The side that puts in.
#[derive(Debug)]
pub(crate) struct Producer<I> {
    produced: I,
    consumed: I,
    size: u32,
    /// What `produced` says, kept here so that nobody else can change it.
    next: u32,
    /// What `consumed` said last.
    seen: u32,
}

impl<I: Index> Producer<I> {
    /// The producing side of a ring of `size` slots, a power of two, where its indices stand now.
    pub(crate) fn new(produced: I, consumed: I, size: u32) -> Self {
        assert!(size.is_power_of_two(), "slot numbers are indices modulo the size");
        let (next, seen) = (produced.load(Ordering::Relaxed), consumed.load(Ordering::Acquire));
        Self { produced, consumed, size, next, seen }
    }

    /// Free slots, up to `want`: looks at the other side's index only where it must.
    pub(crate) fn room(&mut self, want: u32) -> Result<u32, Torn> {
        if self.size - self.queued_as_seen()? < want {
            self.look();
        }
        Ok((self.size - self.queued_as_seen()?).min(want))
    }

    /// Slots that the other side has not taken yet.
    pub(crate) fn queued(&mut self) -> Result<u32, Torn> {
        self.look();
        self.queued_as_seen()
    }

    /// The slot that is `ahead` of the next to be published; `ahead` must be less than the [`Producer::room`].
    pub(crate) fn slot(&self, ahead: u32) -> usize {
        (self.next.wrapping_add(ahead) & (self.size - 1)) as usize
    }

    /// Gives the next `count` slots, which have been written, to the other side.
    pub(crate) fn publish(&mut self, count: u32) {
        self.next = self.next.wrapping_add(count);
        // What was written to the slots is seen by whoever sees this.
        self.produced.store(self.next, Ordering::Release);
    }

    fn look(&mut self) {
        // What the other side read of the slots it did before this, so they may be written again.
        self.seen = self.consumed.load(Ordering::Acquire);
    }

    fn queued_as_seen(&self) -> Result<u32, Torn> {
        let queued = self.next.wrapping_sub(self.seen);
        if queued <= self.size { Ok(queued) } else { Err(Torn) }
    }
}

/// The side that takes out.
#[derive(Debug)]
pub(crate) struct Consumer<I> {
    produced: I,
    consumed: I,
    size: u32,
    /// What `consumed` says, kept here so that nobody else can change it.
    next: u32,
    /// What `produced` said last.
    seen: u32,
}

impl<I: Index> Consumer<I> {
    /// The consuming side of a ring of `size` slots, a power of two, where its indices stand now.
    pub(crate) fn new(produced: I, consumed: I, size: u32) -> Self {
        assert!(size.is_power_of_two(), "slot numbers are indices modulo the size");
        let (next, seen) = (consumed.load(Ordering::Relaxed), produced.load(Ordering::Acquire));
        Self { produced, consumed, size, next, seen }
    }

    /// Filled slots, up to `want`: looks at the other side's index only where it must.
    pub(crate) fn ready(&mut self, want: u32) -> Result<u32, Torn> {
        if self.ready_as_seen()? < want {
            // What the other side wrote to the slots it did before this.
            self.seen = self.produced.load(Ordering::Acquire);
        }
        Ok(self.ready_as_seen()?.min(want))
    }

    /// The slot that is `ahead` of the next to be released; `ahead` must be less than what is
    /// [`Consumer::ready`].
    pub(crate) fn slot(&self, ahead: u32) -> usize {
        (self.next.wrapping_add(ahead) & (self.size - 1)) as usize
    }

    /// Gives the next `count` slots, which have been read, back.
    pub(crate) fn release(&mut self, count: u32) {
        self.next = self.next.wrapping_add(count);
        // What was read of the slots was read before whoever sees this writes to them.
        self.consumed.store(self.next, Ordering::Release);
    }

    fn ready_as_seen(&self) -> Result<u32, Torn> {
        let ready = self.seen.wrapping_sub(self.next);
        if ready <= self.size { Ok(ready) } else { Err(Torn) }
    }
}

#[cfg(test)]
mod tests;
