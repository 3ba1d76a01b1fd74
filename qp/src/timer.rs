//! Deadlines of queue pairs: a hierarchical timing wheel.
//!
//! The NIC keeps at most one deadline for each queue pair here, and sets it anew only where it moves forward: one that
//! moves back is found out when the old one comes. So with many queue pairs most deadlines are set once in a timeout and
//! few are taken back; what counts is that neither costs more the more there are. A sorted tree does, and allocates; a
//! list for each timeout would be as good as the wheel for ACK timeouts, but RNR waits and early repeats have a duration
//! of their own each.
//!
//! A level has 64 slots, and a slot of one level is as long as all of the level below; the lowest ones are of one
//! nanosecond. A deadline lies at the level of the highest bit in which it differs from the present, and comes down when
//! its slot begins, ten times at most. So deadlines are never late, and [`Timers::next`] is right, or early where one that
//! was taken back came first in its slot.

use wire::{Instant, Qpn};

/// Bits of a time that one level tells apart.
const BITS: u32 = 6;
const SLOTS: usize = 1 << BITS;
/// Enough for all 64 bits of a time.
const LEVELS: usize = u64::BITS.div_ceil(BITS) as usize;
/// End of a list.
const NONE: u32 = u32::MAX;

/// A deadline that was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimerId(u32);

/// Deadlines, each with the queue pair it is of.
#[derive(Debug)]
pub(crate) struct Timers {
    levels: Box<[Level; LEVELS]>,
    nodes: Vec<Node>,
    /// First node that is free.
    free: u32,
    /// Everything before has been taken out.
    now: u64,
    len: usize,
}

#[derive(Clone, Copy, Debug)]
struct Level {
    /// Slots that are not empty.
    occupied: u64,
    slots: [Slot; SLOTS],
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    first: u32,
    /// No deadline of it is earlier.
    least: u64,
}

#[derive(Debug)]
struct Node {
    at: u64,
    qpn: Qpn,
    previous: u32,
    next: u32,
    level: u8,
    slot: u8,
}

impl Default for Timers {
    fn default() -> Self {
        let level = Level { occupied: 0, slots: [Slot { first: NONE, least: u64::MAX }; SLOTS] };
        Self { levels: Box::new([level; LEVELS]), nodes: Vec::new(), free: NONE, now: 0, len: 0 }
    }
}

impl Timers {
    /// Sets a deadline; one that has passed is due at once.
    pub(crate) fn insert(&mut self, at: Instant, qpn: Qpn) -> TimerId {
        let node = Node { at: at.as_nanos(), qpn, previous: NONE, next: NONE, level: 0, slot: 0 };
        let id = if self.free == NONE {
            self.nodes.push(node);
            u32::try_from(self.nodes.len() - 1).unwrap_or(NONE)
        } else {
            let id = self.free;
            self.free = core::mem::replace(&mut self.nodes[id as usize], node).next;
            id
        };
        self.len += 1;
        self.link(id);
        TimerId(id)
    }

    /// Takes back a deadline, which has neither been taken back nor come.
    pub(crate) fn remove(&mut self, TimerId(id): TimerId) {
        self.unlink(id);
        self.release(id);
    }

    #[cfg(test)]
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// The earliest deadline, or a time before it.
    pub(crate) fn next(&self) -> Option<Instant> {
        let (level, slot) = self.first()?;
        Some(Instant::from_nanos(self.levels[level as usize].slots[slot as usize].least))
    }

    /// Takes out one that is due at `now`.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<Qpn> {
        let now = now.as_nanos();
        let reached = now.max(self.now);
        while let Some((level, slot)) = self.first() {
            let shift = BITS * level;
            let above = self.now.checked_shr(shift + BITS).unwrap_or(0);
            let start = (above << BITS | u64::from(slot)) << shift;
            if start > reached {
                break;
            }
            self.now = self.now.max(start);
            let list = &mut self.levels[level as usize];
            let first = list.slots[slot as usize].first;
            if level == 0 {
                // The first one, but where `now` is before an earlier one.
                let due = self.list(first).find(|id| self.nodes[*id as usize].at <= now)?;
                self.unlink(due);
                let qpn = self.nodes[due as usize].qpn;
                self.release(due);
                return Some(qpn);
            }
            // The slot begins: its deadlines go to the levels below.
            list.slots[slot as usize] = Slot { first: NONE, least: u64::MAX };
            list.occupied &= !(1 << slot);
            let mut id = first;
            while id != NONE {
                let next = self.nodes[id as usize].next;
                self.link(id);
                id = next;
            }
        }
        self.now = reached;
        None
    }

    /// The nodes from `first` on.
    fn list(&self, first: u32) -> impl Iterator<Item = u32> {
        let some = |id: u32| (id != NONE).then_some(id);
        core::iter::successors(some(first), move |id| some(self.nodes[*id as usize].next))
    }

    /// The slot with the earliest deadlines. Those of a level are all before those of the level above.
    fn first(&self) -> Option<(u32, u32)> {
        let (number, level) = (0..).zip(self.levels.iter()).find(|(_, level)| level.occupied != 0)?;
        Some((number, level.occupied.trailing_zeros()))
    }

    /// Puts a node into the slot it belongs to at the present.
    fn link(&mut self, id: u32) {
        let at = self.nodes[id as usize].at;
        let due = at.max(self.now);
        let level = (u64::BITS - 1 - ((due ^ self.now) | (SLOTS as u64 - 1)).leading_zeros()) / BITS;
        #[expect(clippy::cast_possible_truncation, reason = "a number of a slot is small")]
        let slot = (due >> (BITS * level)) as usize % SLOTS;
        let level = level as usize;
        let head = &mut self.levels[level].slots[slot];
        let next = core::mem::replace(&mut head.first, id);
        head.least = head.least.min(at);
        self.levels[level].occupied |= 1 << slot;
        if let Some(next) = self.nodes.get_mut(next as usize) {
            next.previous = id;
        }
        let node = &mut self.nodes[id as usize];
        (node.previous, node.next) = (NONE, next);
        #[expect(clippy::cast_possible_truncation, reason = "there are 11 levels of 64 slots")]
        {
            (node.level, node.slot) = (level as u8, slot as u8);
        }
    }

    fn unlink(&mut self, id: u32) {
        let &Node { previous, next, level, slot, .. } = &self.nodes[id as usize];
        let level = &mut self.levels[usize::from(level)];
        match self.nodes.get_mut(previous as usize) {
            Some(previous) => previous.next = next,
            None => level.slots[usize::from(slot)].first = next,
        }
        if let Some(next) = self.nodes.get_mut(next as usize) {
            next.previous = previous;
        }
        if previous == NONE && next == NONE {
            level.slots[usize::from(slot)].least = u64::MAX;
            level.occupied &= !(1 << slot);
        }
    }

    fn release(&mut self, id: u32) {
        self.nodes[id as usize].next = core::mem::replace(&mut self.free, id);
        self.len -= 1;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const fn at(nanos: u64) -> Instant {
        Instant::from_nanos(nanos)
    }

    fn due(timers: &mut Timers, now: u64) -> Vec<u32> {
        core::iter::from_fn(|| timers.pop_due(at(now))).map(Qpn::value).collect()
    }

    #[test]
    fn timers_come_in_order_and_only_when_due() {
        let mut timers = Timers::default();
        let ids =
            [(300, 1), (10, 2), (200, 3), (11, 4)].map(|(time, n)| timers.insert(at(time), Qpn::new(n)));
        timers.remove(ids[2]);
        assert_eq!((timers.next(), timers.pop_due(at(9))), (Some(at(10)), None));
        assert_eq!((due(&mut timers, 299), timers.next()), (vec![2, 4], Some(at(300))));
        assert_eq!(timers.pop_due(at(300)), Some(Qpn::new(1)));
        assert_eq!((timers.next(), timers.pop_due(at(u64::MAX)), timers.len()), (None, None, 0));
    }

    #[test]
    fn what_has_passed_is_due_at_once() {
        let mut timers = Timers::default();
        assert_eq!(timers.pop_due(at(1000)), None);
        timers.insert(at(7), Qpn::new(1));
        assert_eq!((timers.next(), due(&mut timers, 1000)), (Some(at(7)), vec![1]));
    }

    /// Only tests have time go back.
    #[test]
    fn nothing_is_due_before_its_time_though_time_goes_back() {
        let mut timers = Timers::default();
        assert_eq!(timers.pop_due(at(1000)), None);
        for (time, qpn) in [(500, 1), (600, 2), (2000, 3)] {
            timers.insert(at(time), Qpn::new(qpn));
        }
        assert_eq!(
            [400, 500, 600, 1999, 2000].map(|now| due(&mut timers, now)),
            [vec![], vec![1], vec![2], vec![], vec![3]]
        );
    }

    #[test]
    fn the_ends_of_time_have_slots() {
        let mut timers = Timers::default();
        for time in [0, u64::MAX, 1 << 63, u64::MAX - 1] {
            timers.insert(at(time), Qpn::new(0));
        }
        let mut times = Vec::new();
        while let Some(next) = timers.next() {
            times.push(next.as_nanos());
            assert_eq!(due(&mut timers, next.as_nanos()).len(), 1);
        }
        assert_eq!(times, [0, 1 << 63, u64::MAX - 1, u64::MAX]);
    }

    /// RNR waits come and go beside ACK timeouts: nodes are used again.
    #[test]
    fn memory_is_that_of_the_most_at_once() {
        let mut timers = Timers::default();
        for n in 0..10_000 {
            let long = timers.insert(at(n + 4_000_000_000), Qpn::new(1));
            timers.insert(at(n + 10), Qpn::new(1));
            timers.remove(long);
            assert_eq!(due(&mut timers, n + 10), [1]);
        }
        assert_eq!((timers.nodes.len(), timers.len()), (2, 0));
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u64),
        Remove(prop::sample::Index),
        Wait(u64),
        /// Until the next deadline, as far as that is known.
        Next,
    }

    fn step() -> impl Strategy<Value = Step> {
        let span = || (0..40_u32).prop_flat_map(|bits| 0..1_u64 << bits);
        prop_oneof![
            4 => span().prop_map(Step::Insert),
            2 => any::<prop::sample::Index>().prop_map(Step::Remove),
            2 => span().prop_map(Step::Wait),
            2 => Just(Step::Next),
        ]
    }

    proptest! {
        /// Against a sorted set, which the wheel took the place of.
        #[test]
        fn it_does_as_a_sorted_set(steps in prop::collection::vec(step(), 1..200)) {
            let (mut timers, mut model) = (Timers::default(), BTreeSet::new());
            let (mut ids, mut now) = (Vec::new(), 5_u64);
            for (qpn, step) in (0..).zip(steps) {
                match step {
                    Step::Insert(after) => {
                        // Some have passed.
                        let time = now.saturating_add(after).saturating_sub(3);
                        ids.push((time, qpn, timers.insert(at(time), Qpn::new(qpn))));
                        model.insert((time, qpn));
                    }
                    Step::Remove(_) if ids.is_empty() => {}
                    Step::Remove(index) => {
                        let (time, qpn, id) = ids.swap_remove(index.index(ids.len()));
                        timers.remove(id);
                        model.remove(&(time, qpn));
                    }
                    Step::Wait(span) => now += span,
                    Step::Next => now = timers.next().map_or(now, Instant::as_nanos).max(now),
                }
                let mut found = due(&mut timers, now);
                found.sort_unstable();
                let mut expected: Vec<u32> =
                    model.iter().take_while(|(time, _)| *time <= now).map(|(_, qpn)| *qpn).collect();
                expected.sort_unstable();
                prop_assert_eq!(&found, &expected);
                model.retain(|(time, _)| *time > now);
                ids.retain(|(time, ..)| *time > now);
                let (next, exact) = (timers.next().map(Instant::as_nanos), model.first().map(|(time, _)| *time));
                prop_assert_eq!(next.is_some(), exact.is_some());
                prop_assert!(next <= exact && next.is_none_or(|next| next > now), "{next:?}, not {exact:?}");
                prop_assert_eq!(timers.len(), model.len());
            }
        }
    }
}
