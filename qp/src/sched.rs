//! Who sends next, and who has to be woken when.

use std::collections::{BTreeSet, VecDeque};

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

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Timers of all queue pairs, one entry for each at most.
#[derive(Debug, Default)]
pub(crate) struct Timers(BTreeSet<(Instant, Qpn)>);

impl Timers {
    pub(crate) fn insert(&mut self, at: Instant, qpn: Qpn) {
        self.0.insert((at, qpn));
    }

    pub(crate) fn remove(&mut self, at: Instant, qpn: Qpn) {
        self.0.remove(&(at, qpn));
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn next(&self) -> Option<Instant> {
        self.0.first().map(|(at, _)| *at)
    }

    /// Takes out the earliest that is due at `now`.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<Qpn> {
        self.next().filter(|at| *at <= now)?;
        self.0.pop_first().map(|(_, qpn)| qpn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_come_in_order_and_only_when_due() {
        let mut timers = Timers::default();
        let at = Instant::from_nanos;
        for (time, qpn) in [(30, 1), (10, 2), (20, 3), (10, 4)] {
            timers.insert(at(time), Qpn::new(qpn));
        }
        timers.remove(at(20), Qpn::new(3));
        timers.remove(at(99), Qpn::new(1));
        assert_eq!((timers.next(), timers.pop_due(at(9))), (Some(at(10)), None));
        let due: Vec<_> = core::iter::from_fn(|| timers.pop_due(at(29))).map(Qpn::value).collect();
        assert_eq!((due, timers.next()), (vec![2, 4], Some(at(30))));
        assert_eq!(timers.pop_due(at(30)), Some(Qpn::new(1)));
        assert_eq!((timers.next(), timers.pop_due(at(30))), (None, None));
    }

    #[test]
    fn turns_are_taken_in_order() {
        let mut ready = Ready::default();
        for qpn in 1..=3 {
            ready.push(Qpn::new(qpn));
        }
        let order: Vec<_> = core::iter::from_fn(|| ready.pop()).map(Qpn::value).collect();
        assert_eq!((order, ready.is_empty()), (vec![1, 2, 3], true));
    }
}
