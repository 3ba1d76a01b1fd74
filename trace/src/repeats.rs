//! Remembers which PSNs of a flow were seen, so that repeated requests can be counted.

use std::collections::BTreeMap;

use wire::Psn;

/// PSNs to a block.
const BLOCK: u32 = 1024;
/// Blocks on the 24-bit circle.
const BLOCKS: u32 = (1 << 24) / BLOCK;

/// The PSNs of half the circle, up to the newest one: at most 1 MiB, however long the capture. What lies
/// further back is forgotten, because PSNs are used again after one turn.
#[derive(Clone, Debug, Default)]
pub(crate) struct SeenPsns {
    newest: Option<Psn>,
    blocks: BTreeMap<u32, Box<[u64; (BLOCK / 64) as usize]>>,
}

impl SeenPsns {
    /// Notes `psn`; returns whether it was there already.
    pub(crate) fn insert(&mut self, psn: Psn) -> bool {
        let newest = *self.newest.get_or_insert(psn);
        if psn.diff(newest) > 0 {
            self.forget_behind(newest, psn);
            self.newest = Some(psn);
        }
        let block = self.blocks.entry(psn.value() / BLOCK).or_default();
        let bit = psn.value() % BLOCK;
        let word = &mut block[(bit / 64) as usize];
        let mask = 1 << (bit % 64);
        let seen = *word & mask != 0;
        *word |= mask;
        seen
    }

    /// Forgets the blocks that fall out of the window as the newest PSN goes from `old` to `new`.
    fn forget_behind(&mut self, old: Psn, new: Psn) {
        let (mut at, end) = (old.value() / BLOCK, new.value() / BLOCK);
        while at != end {
            at = (at + 1) % BLOCKS;
            self.blocks.remove(&((at + BLOCKS / 2) % BLOCKS));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_time_is_a_repeat_and_order_does_not_matter() {
        let mut seen = SeenPsns::default();
        for psn in [5, 7, 6, 0xFF_FFFF, 0] {
            assert!(!seen.insert(Psn::new(psn)), "{psn} is new");
        }
        for psn in [0xFF_FFFF, 5, 0] {
            assert!(seen.insert(Psn::new(psn)), "{psn} was there");
        }
    }

    #[test]
    fn a_whole_turn_of_the_circle_is_no_repeat() {
        let mut seen = SeenPsns::default();
        // Steps of a thousand let every block but few PSNs of it be visited; the second turn meets the same.
        let step = 1000;
        for turn in 0..2 {
            for n in 0..(1 << 24) / step {
                assert!(!seen.insert(Psn::new(n * step)), "turn {turn}, step {n}");
            }
        }
        assert!(seen.blocks.len() <= (BLOCKS / 2 + 1) as usize);
    }
}
