//! Random early detection: which packets of a queue are marked with congestion experienced.

use rand_core::RngCore;
use rand_pcg::Pcg64;
use wire::NetHeader;
use wire::ip::Ecn;

/// When the length of the queue is looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MarkAt {
    /// When a packet leaves: the mark tells of the queue behind it, and is news.
    #[default]
    Dequeue,
    /// When a packet comes: the mark waits in the queue that it tells of.
    Enqueue,
}

/// A packet whose sender may take part in ECN.
pub trait Markable {
    /// What it says.
    fn ecn(&self) -> Ecn;

    /// Makes it say that it has met congestion. Only called for packets whose sender takes part.
    fn set_ce(&mut self);
}

impl Markable for NetHeader {
    fn ecn(&self) -> Ecn {
        Self::ecn(self)
    }

    fn set_ce(&mut self) {
        *self = self.with_traffic_class(self.traffic_class() | 3);
    }
}

/// Marking by the length that the queue has now, without an average.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Red {
    /// Up to so many bytes nothing is marked.
    pub kmin: u64,
    /// Above so many bytes everything is marked.
    pub kmax: u64,
    /// Probability at `kmax`, 0 to 1; in between it rises evenly.
    pub pmax: f64,
    /// When it is decided.
    pub at: MarkAt,
}

impl Red {
    /// The probability of a mark with `queued` bytes.
    #[must_use]
    pub fn probability(&self, queued: u64) -> f64 {
        if queued <= self.kmin {
            0.0
        } else if queued > self.kmax {
            1.0
        } else {
            self.pmax * (queued - self.kmin) as f64 / (self.kmax - self.kmin) as f64
        }
    }

    /// Marks `packet` or leaves it, with `queued` bytes; true where it now is marked and was not. Packets whose sender
    /// takes no part in ECN are left alone. Random numbers are drawn only where there is a choice.
    pub fn mark(&self, packet: &mut impl Markable, queued: u64, rng: &mut Pcg64) -> bool {
        const RANGE: f64 = 4_294_967_296.0;
        if matches!(packet.ecn(), Ecn::NotEct | Ecn::Ce) {
            return false;
        }
        let probability = self.probability(queued);
        let hit =
            probability > 0.0 && (probability >= 1.0 || f64::from(rng.next_u32()) < probability * RANGE);
        if hit {
            packet.set_ce();
        }
        hit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAPER: Red = Red { kmin: 5_000, kmax: 200_000, pmax: 0.01, at: MarkAt::Dequeue };

    #[test]
    fn the_probability_rises_and_then_jumps() {
        for (queued, want) in
            [(0, 0.0), (5_000, 0.0), (102_500, 0.005), (200_000, 0.01), (200_001, 1.0), (u64::MAX, 1.0)]
        {
            assert!((PAPER.probability(queued) - want).abs() < 1e-12, "{queued}");
        }
        let step = Red { kmin: 40_000, kmax: 40_000, pmax: 1.0, at: MarkAt::Dequeue };
        assert_eq!((step.probability(40_000), step.probability(40_001)), (0.0, 1.0));
    }

    #[test]
    fn only_those_who_take_part_are_marked_and_as_often_as_they_should() {
        let header = |tos| {
            let ip = |n| std::net::IpAddr::from([10, 0, 0, n]);
            NetHeader::v2(ip(1), ip(2), 49_152, tos, 64).unwrap()
        };
        let mut rng = Pcg64::new(1, 1);
        for (tos, wanted) in [(0x68, false), (0x69, true), (0x6A, true), (0x6B, false)] {
            let mut net = header(tos);
            assert_eq!(PAPER.mark(&mut net, 1 << 20, &mut rng), wanted);
            let want = if tos & 3 == 0 { tos } else { 0x6B };
            assert_eq!(net, header(want), "the checksum is right too");
        }
        let marked = (0..100_000).filter(|_| PAPER.mark(&mut header(2), 200_000, &mut rng)).count();
        assert!((900..1_100).contains(&marked), "{marked}");
    }
}
