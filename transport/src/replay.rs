//! The responder's memory of READs, atomics, ATOMIC WRITEs and FLUSHes it has answered, for requests that come again.

use std::collections::VecDeque;

use wire::{Psn, RKey, VirtAddr};

/// What was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A READ of this range.
    Read {
        /// First byte.
        va: VirtAddr,
        /// Its key.
        rkey: RKey,
        /// Bytes.
        len: u32,
    },
    /// An ATOMIC WRITE.
    AtomicWrite,
    /// An atomic that found this value.
    Atomic {
        /// The value found.
        original: u64,
    },
}

#[derive(Clone, Copy, Debug)]
struct Record {
    first: Psn,
    span: u32,
    answer: Answer,
}

/// FLUSHes that are remembered: as many as a peer may have open at once.
const MAX_FLUSHES: usize = 512;

/// The last `max_dest_rd_atomic` answers, oldest first (rules R-RSP-6 and R-RSP-7), and the last FLUSHes.
#[derive(Clone, Debug, Default)]
pub struct Replay {
    records: VecDeque<Record>,
    /// PSNs of the last FLUSHes.
    flushes: VecDeque<Psn>,
}

impl Replay {
    /// Remembers the answer to the request that takes `span` PSNs from `first` on; forgets the oldest where
    /// there are more than `depth`.
    pub fn remember(&mut self, first: Psn, span: u32, answer: Answer, depth: u8) {
        while self.records.len() >= usize::from(depth.max(1)) {
            self.records.pop_front();
        }
        self.records.push_back(Record { first, span, answer });
    }

    /// The value an atomic at `psn` found.
    #[must_use]
    pub fn atomic(&self, psn: Psn) -> Option<u64> {
        self.records.iter().rev().find(|r| r.first == psn).and_then(|r| match r.answer {
            Answer::Atomic { original } => Some(original),
            Answer::Read { .. } | Answer::AtomicWrite => None,
        })
    }

    /// Whether a READ that was answered begins at `psn`.
    #[must_use]
    pub fn begins_read(&self, psn: Psn) -> bool {
        self.records.iter().any(|r| r.first == psn && matches!(r.answer, Answer::Read { .. }))
    }

    /// Whether an ATOMIC WRITE at `psn` was answered.
    #[must_use]
    pub fn atomic_write(&self, psn: Psn) -> bool {
        let newest = self.records.iter().rev().find(|r| r.first == psn);
        newest.is_some_and(|r| r.answer == Answer::AtomicWrite)
    }

    /// Remembers that the FLUSH at `psn` was answered. It takes no place of the others', since a requester
    /// does not count it among them (rule R-RSP-60).
    pub fn remember_flush(&mut self, psn: Psn) {
        if self.flushes.len() >= MAX_FLUSHES {
            self.flushes.pop_front();
        }
        self.flushes.push_back(psn);
    }

    /// Whether a FLUSH at `psn` was answered.
    #[must_use]
    pub fn flush(&self, psn: Psn) -> bool {
        self.flushes.contains(&psn)
    }

    /// Whether a READ of `len` bytes at `va` under `rkey`, repeated from `psn` on, lies inside one that was
    /// answered: in its PSNs (`span` of them) and in its memory, without overflow (rules R-RSP-5 and F3).
    #[must_use]
    pub fn covers_read(&self, psn: Psn, span: u32, va: VirtAddr, rkey: RKey, len: u32) -> bool {
        self.records.iter().rev().any(|r| {
            let Answer::Read { va: start, rkey: key, len: total } = r.answer else { return false };
            let at = psn.steps_from(r.first);
            if at >= r.span || span > r.span - at {
                return false;
            }
            if len == 0 {
                // Rule F4: without a byte to move, key and address say nothing.
                return total == 0;
            }
            let Some(skip) = va.value().checked_sub(start.value()) else { return false };
            key == rkey && skip <= u64::from(total) && u64::from(len) <= u64::from(total) - skip
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KEY: RKey = RKey::new(0x100);

    fn with_read(first: u32, span: u32, va: u64, len: u32) -> Replay {
        let mut replay = Replay::default();
        let answer = Answer::Read { va: VirtAddr::new(va), rkey: KEY, len };
        replay.remember(Psn::new(first), span, answer, 4);
        replay
    }

    /// Numbers near the ends of their range as often as not.
    fn edgy(max: u64) -> impl Strategy<Value = u64> {
        prop_oneof![0..64_u64, (0..64_u64).prop_map(move |n| max - n), 0..=max]
    }

    proptest! {
        #[test]
        fn f3_covers_read_never_wraps(
            (first, span, len) in (0..1_u32 << 24, 1..40_u32, 0..5000_u32),
            start in edgy(u64::MAX),
            (back, repeat_span) in (0..50_u32, 1..50_u32),
            va in prop_oneof![edgy(u64::MAX), (0..6000_u64).prop_map(|n| n.wrapping_sub(500))],
            near in any::<bool>(),
            repeat_len in edgy(u64::from(u32::MAX)),
        ) {
            let va = if near { start.wrapping_add(va) } else { va };
            let replay = with_read(first, span, start, len);
            let repeat_len = u32::try_from(repeat_len).unwrap();
            let psn = Psn::new(first.wrapping_add(back));
            let covered = replay.covers_read(psn, repeat_span, VirtAddr::new(va), KEY, repeat_len);
            // The same in numbers too wide to overflow.
            let (start, end) = (u128::from(start), u128::from(start) + u128::from(len));
            let inside = u128::from(va) >= start && u128::from(va) + u128::from(repeat_len) <= end;
            let bytes = if repeat_len == 0 { len == 0 } else { inside };
            prop_assert_eq!(covered, back + repeat_span <= span && bytes);
        }
    }

    /// Rule R-REQ-1.
    #[test]
    fn spans_go_around_the_circle() {
        let replay = with_read(0xFF_FFFF, 3, 1000, 700);
        for (psn, span, va, len, expected) in [
            (0xFF_FFFF, 3, 1000, 700, true),
            (0, 2, 1256, 444, true),
            (1, 1, 1512, 188, true),
            (2, 1, 1512, 188, false),
            (1, 2, 1512, 188, false),
            (0xFF_FFFE, 3, 1000, 700, false),
        ] {
            assert_eq!(replay.covers_read(Psn::new(psn), span, VirtAddr::new(va), KEY, len), expected);
        }
    }

    #[test]
    fn the_oldest_is_forgotten_beyond_the_depth() {
        let mut replay = Replay::default();
        for i in 0..3 {
            replay.remember(Psn::new(i), 1, Answer::Atomic { original: u64::from(i) + 50 }, 2);
        }
        let found: Vec<_> = (0..3).map(|i| replay.atomic(Psn::new(i))).collect();
        assert_eq!(found, [None, Some(51), Some(52)]);
        // A depth that has been lowered takes effect with the next answer.
        replay.remember(Psn::new(3), 1, Answer::Atomic { original: 53 }, 1);
        assert_eq!((replay.atomic(Psn::new(2)), replay.atomic(Psn::new(3))), (None, Some(53)));
    }

    #[test]
    fn after_a_turn_of_the_circle_the_newer_counts() {
        let mut replay = Replay::default();
        replay.remember(Psn::new(7), 1, Answer::Atomic { original: 1 }, 4);
        replay.remember(Psn::new(7), 1, Answer::Atomic { original: 2 }, 4);
        assert_eq!(replay.atomic(Psn::new(7)), Some(2));
        replay.remember(Psn::new(7), 1, Answer::Read { va: VirtAddr::new(0), rkey: KEY, len: 1 }, 4);
        assert_eq!(replay.atomic(Psn::new(7)), None);
    }
}
