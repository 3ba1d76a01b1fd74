//! The responder's memory of READs and atomics it has answered, for requests that come again.

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

/// The last `max_dest_rd_atomic` answers, oldest first.
#[derive(Clone, Debug, Default)]
pub struct Replay {
    records: VecDeque<Record>,
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
            Answer::Read { .. } => None,
        })
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
