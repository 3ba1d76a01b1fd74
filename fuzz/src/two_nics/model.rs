//! What ought to happen: the work requests of one end as they were posted, and the bytes they are to leave behind.

use std::collections::VecDeque;
use std::ops::Range;

use wire::WrId;

use super::Work;

/// A send that has been posted and not been seen to complete.
#[derive(Debug)]
pub(super) struct Posted {
    pub(super) wr_id: WrId,
    pub(super) work: Work,
    pub(super) len: u32,
    pub(super) signaled: bool,
    /// What a SEND, a WRITE or a READ moves.
    pub(super) content: Vec<u8>,
    /// First and second operand of an atomic.
    pub(super) operands: (u64, u64),
    /// Place of the bytes it changes: the peer's for a WRITE, its own for a READ or an atomic.
    pub(super) target: Range<usize>,
}

/// A message that the peer has posted and that takes a receive here.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) imm: Option<[u8; 4]>,
    /// Content of a SEND; `None` for a WRITE with immediate.
    pub(super) content: Option<Vec<u8>>,
    pub(super) len: u32,
}

/// What one end has posted and what is to arrive at it.
#[derive(Default)]
pub(super) struct Model {
    pub(super) sends: VecDeque<Posted>,
    pub(super) receives: VecDeque<WrId>,
    pub(super) arrivals: VecDeque<Arrival>,
    /// A send has failed: all others are flushed.
    pub(super) send_failed: bool,
    /// A receive has failed: all others are flushed.
    pub(super) recv_failed: bool,
    /// The word that the peer's atomics work on.
    pub(super) word: u64,
    /// The peer's atomics that failed after that: each may have been executed, if those before it were.
    pub(super) undecided: Vec<(Work, (u64, u64))>,
    /// Ranges of the target region that may differ from what they were, and what they must hold if they do.
    pub(super) claims: Vec<Claim>,
    next_wr_id: u64,
}

/// A range of the target region that one work request may change.
#[derive(Debug)]
pub(super) struct Claim {
    pub(super) range: Range<usize>,
    pub(super) content: Vec<u8>,
    /// The work request has succeeded: the content must be there.
    pub(super) done: bool,
}

impl Model {
    pub(super) fn wr_id(&mut self) -> WrId {
        self.next_wr_id += 1;
        WrId::new(self.next_wr_id)
    }

    /// Whether the word may hold `value` in the end.
    pub(super) fn may_hold(&self, value: u64) -> bool {
        let mut word = self.word;
        let mut values = self.undecided.iter().map(|(work, operands)| {
            word = apply(*work, *operands, word);
            word
        });
        self.word == value || values.any(|word| word == value)
    }
}

/// The value that an atomic leaves behind.
pub(super) fn apply(work: Work, (first, second): (u64, u64), word: u64) -> u64 {
    match work {
        Work::CmpSwap if word == first => second,
        Work::FetchAdd => word.wrapping_add(first),
        _ => word,
    }
}
