//! Who sends next.

use std::collections::VecDeque;

use wire::batch::{Caps, TxBatch};
use wire::{Mtu, Qpn};

/// Queue pairs with something to send, served in rounds: a turn for each in every round. Within a round those of one
/// lane ([`TxBatch::lane`] of the peer's number) follow each other, since their packets may share a batch.
#[derive(Debug, Default)]
pub(crate) struct Ready {
    /// Whose turn is still to come in this round.
    now: [VecDeque<Qpn>; TxBatch::LANES],
    /// Those of the next one.
    next: [VecDeque<Qpn>; TxBatch::LANES],
    /// The lane that is served.
    lane: usize,
    len: usize,
}

impl Ready {
    /// It takes its turn in the next round.
    pub(crate) fn push(&mut self, qpn: Qpn, lane: usize) {
        self.next[lane].push_back(qpn);
        self.len += 1;
    }

    /// It is the first of its lane to have its turn in this round.
    pub(crate) fn push_front(&mut self, qpn: Qpn, lane: usize) {
        self.now[lane].push_front(qpn);
        // Lanes that this one is behind come first; those that it is before have had their round.
        self.lane = self.lane.min(lane);
        self.len += 1;
    }

    /// The next one.
    pub(crate) fn pop(&mut self) -> Option<Qpn> {
        if self.len == 0 {
            return None;
        }
        loop {
            if let Some(qpn) = self.pop_same_lane() {
                return Some(qpn);
            }
            self.lane += 1;
            if self.lane == TxBatch::LANES {
                self.lane = 0;
                core::mem::swap(&mut self.now, &mut self.next);
            }
        }
    }

    /// The next one of this round that is of the same lane as the last.
    pub(crate) fn pop_same_lane(&mut self) -> Option<Qpn> {
        let qpn = self.now[self.lane].pop_front()?;
        self.len -= 1;
        Some(qpn)
    }

    #[cfg(test)]
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// What a queue pair may send in its turn: an equal number of bytes for all, whatever fits into one batch of theirs
/// (deficit round robin). A batch is not cut; what was too much is taken off later turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Turn {
    /// Bytes left of this turn; not positive between turns.
    left: i64,
}

/// Bytes of one turn: a full batch of the largest packets, so that no turn cuts a run of them short.
pub(crate) fn quantum(caps: &Caps, mtu: Mtu) -> i64 {
    let packets = caps.max_segments.saturating_mul(mtu.bytes() as usize + HEADERS);
    let batch = packets.min(caps.max_bytes);
    i64::try_from(batch).unwrap_or(i64::MAX).clamp(LEAST_TURN, MOST_TURN)
}

/// Bytes of the headers of a packet, roughly.
const HEADERS: usize = 64;
/// Several packets at least, so that turns are not all there is to do.
const LEAST_TURN: i64 = 8 << 10;
/// Nobody waits for longer than so many bytes of each.
const MOST_TURN: i64 = 64 << 10;

impl Turn {
    /// It is first in the queue: true where its turn of `quantum` bytes goes on or begins, false where it has had this
    /// one already.
    pub(crate) const fn comes(&mut self, quantum: i64) -> bool {
        if self.left <= 0 {
            self.left += quantum;
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

/// What of a queue pair goes first into a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum First {
    /// A request where it is longer than the first answer, else answers.
    #[default]
    Longer,
    /// Answers: requests filled the last batch.
    Answers,
    /// Requests: answers filled the last batch.
    Requests,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(ready: &mut Ready) -> Vec<u32> {
        core::iter::from_fn(|| ready.pop()).map(Qpn::value).collect()
    }

    #[test]
    fn turns_are_taken_lane_by_lane_and_in_order() {
        let mut ready = Ready::default();
        for (qpn, lane) in [(1, 3), (2, 0), (3, 3), (4, 7), (5, 0)] {
            ready.push(Qpn::new(qpn), lane);
        }
        assert_eq!((ready.len(), all(&mut ready), ready.is_empty()), (5, vec![2, 5, 1, 3, 4], true));
    }

    #[test]
    fn who_comes_back_waits_for_the_next_round() {
        let mut ready = Ready::default();
        for (qpn, lane) in [(1, 1), (2, 1), (3, 2)] {
            ready.push(Qpn::new(qpn), lane);
        }
        let first = ready.pop().unwrap();
        ready.push(first, 1);
        ready.push(Qpn::new(4), 0);
        assert_eq!(ready.pop_same_lane(), Some(Qpn::new(2)));
        assert_eq!(ready.pop_same_lane(), None, "this round has no other of the lane");
        assert_eq!(all(&mut ready), [3, 4, 1]);
    }

    #[test]
    fn who_goes_on_is_first_and_keeps_nobody_from_this_round() {
        let mut ready = Ready::default();
        for (qpn, lane) in [(1, 1), (2, 2), (3, 6)] {
            ready.push(Qpn::new(qpn), lane);
        }
        assert_eq!(ready.pop(), Some(Qpn::new(1)));
        ready.push_front(Qpn::new(1), 1);
        ready.push_front(Qpn::new(4), 6);
        assert_eq!([ready.pop(), ready.pop()], [1, 2].map(|qpn| Some(Qpn::new(qpn))));
        ready.push_front(Qpn::new(5), 0);
        assert_eq!(all(&mut ready), [5, 4, 3]);
    }

    const QUANTUM: i64 = 8 << 10;

    #[test]
    fn a_turn_is_a_full_batch_within_reason() {
        let turn = |max_segments, max_bytes, mtu| {
            let caps = Caps { max_segments, max_bytes, ..crate::kit::CAPS };
            quantum(&caps, mtu)
        };
        assert_eq!(turn(64, 60_000, Mtu::B4096), 60_000);
        assert_eq!(turn(8, 65_507, Mtu::B4096), 8 * 4160);
        assert_eq!(turn(1, 65_507, Mtu::B256), LEAST_TURN);
        assert_eq!(turn(usize::MAX, usize::MAX, Mtu::B4096), MOST_TURN);
    }

    /// Two that always have more, one in small batches and one in batches of eight turns.
    #[test]
    fn turns_are_of_equal_bytes_in_the_long_run() {
        let (mut turns, mut sent) = ([Turn::default(); 2], [0; 2]);
        for _ in 0..1000 {
            for ((turn, sent), batch) in turns.iter_mut().zip(&mut sent).zip([500, 65_000]) {
                while turn.comes(QUANTUM) {
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
        assert!(turn.comes(QUANTUM) && !turn.goes_on(100, false));
        assert_eq!(turn, Turn { left: 0 });
        assert!(turn.comes(QUANTUM) && !turn.goes_on(20 << 10, false));
        assert_eq!([turn.comes(QUANTUM), turn.comes(QUANTUM)], [false, true]);
    }
}
