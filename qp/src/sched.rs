//! Who sends next, and who has to be woken when.

use std::collections::{BTreeSet, VecDeque};

use wire::{Instant, Qpn};

/// Queue pairs with something to send, served in turns.
#[derive(Debug, Default)]
pub(crate) struct Ready(VecDeque<Qpn>);

impl Ready {
    /// It takes its turn behind all others.
    pub(crate) fn push(&mut self, qpn: Qpn) {
        self.0.push_back(qpn);
    }

    /// Its turn goes on.
    pub(crate) fn push_front(&mut self, qpn: Qpn) {
        self.0.push_front(qpn);
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

/// What a queue pair may send in its turn: an equal number of bytes for all, whatever fits into one batch of theirs
/// (deficit round robin). A batch is not cut; what was too much is taken off later turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Turn {
    /// Bytes left of this turn; not positive between turns.
    left: i64,
}

impl Turn {
    /// Bytes of one turn: several full packets, so that turns are not all there is to do.
    const QUANTUM: i64 = 8 << 10;

    /// It is first in the queue: true where its turn goes on or begins, false where it has had this one already.
    pub(crate) const fn comes(&mut self) -> bool {
        if self.left <= 0 {
            self.left += Self::QUANTUM;
        }
        self.left > 0
    }

    /// It has sent `bytes`, and has `more` or not: true where its turn goes on.
    pub(crate) fn goes_on(&mut self, bytes: usize, more: bool) -> bool {
        self.left -= i64::try_from(bytes).unwrap_or(i64::MAX);
        if !more {
            // Nobody saves for later.
            self.left = self.left.min(0);
        }
        self.left > 0
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

    /// Two that always have more, one in small batches and one in batches of eight turns.
    #[test]
    fn turns_are_of_equal_bytes_in_the_long_run() {
        let (mut turns, mut sent) = ([Turn::default(); 2], [0; 2]);
        for _ in 0..1000 {
            for ((turn, sent), batch) in turns.iter_mut().zip(&mut sent).zip([500, 65_000]) {
                while turn.comes() {
                    *sent += batch;
                    if !turn.goes_on(batch, true) {
                        break;
                    }
                }
            }
        }
        let [small, large] = sent;
        assert!(usize::abs_diff(small, large) <= 65_000, "{small} and {large} bytes");
    }

    #[test]
    fn who_has_nothing_more_keeps_debts_only() {
        let mut turn = Turn::default();
        assert!(turn.comes() && !turn.goes_on(100, false));
        assert_eq!(turn, Turn { left: 0 });
        assert!(turn.comes() && !turn.goes_on(20 << 10, false));
        assert_eq!([turn.comes(), turn.comes()], [false, true]);
    }
}
