//! Who sends next, and who has to be woken when.

use core::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use wire::{Instant, Qpn};

/// Queue pairs with something to send, served in turns: one batch each.
#[derive(Debug, Default)]
pub(crate) struct Ready(VecDeque<Qpn>);

impl Ready {
    pub(crate) fn push(&mut self, qpn: Qpn) {
        self.0.push_back(qpn);
    }

    pub(crate) fn pop(&mut self) -> Option<Qpn> {
        self.0.pop_front()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Timers of all queue pairs. A queue pair has at most one entry that counts; entries that an earlier one has
/// overtaken are recognised by their owner and ignored.
#[derive(Debug, Default)]
pub(crate) struct Timers(BinaryHeap<Reverse<(Instant, Qpn)>>);

impl Timers {
    pub(crate) fn push(&mut self, at: Instant, qpn: Qpn) {
        self.0.push(Reverse((at, qpn)));
    }

    pub(crate) fn next(&self) -> Option<Instant> {
        self.0.peek().map(|Reverse((at, _))| *at)
    }

    /// Takes the earliest entry that is due at `now`.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<(Instant, Qpn)> {
        self.next().filter(|at| *at <= now)?;
        self.0.pop().map(|Reverse(entry)| entry)
    }
}
