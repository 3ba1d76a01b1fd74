//! Queue pairs by number.

use wire::Qpn;
use wire::batch::TxBatch;

use crate::pair::QueuePair;

/// Numbers below this are special or left free, as rxe does.
const FIRST_QPN: u32 = 0x11;
/// The most queue pairs of a device, queue pair 1 aside.
pub(crate) const MAX_QPS: usize = 1 << 20;

/// One of several NICs that share an address, each with the queue pairs of its own numbers: those that are `index`
/// modulo the number of lanes. Queue pair 1 is of lane 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lane {
    index: u32,
    count: u32,
}

impl Lane {
    /// The one lane of a NIC that has its address for itself.
    pub const ONLY: Self = Self { index: 0, count: 1 };

    /// Lane `index` of `count`; `None` where there is no such lane. There may be 1, 2, 4 or 8: then whatever shares a
    /// batch ([`TxBatch::lane`]) goes to one of them.
    #[must_use]
    pub fn new(index: u32, count: u32) -> Option<Self> {
        let divides = count > 0 && TxBatch::LANES.is_multiple_of(count as usize);
        (index < count && divides).then_some(Self { index, count })
    }

    /// Its place among the lanes.
    #[must_use]
    pub const fn index(self) -> u32 {
        self.index
    }

    /// How many lanes there are.
    #[must_use]
    pub const fn count(self) -> u32 {
        self.count
    }

    /// Place of the lane that the queue pair with this number is of.
    #[must_use]
    pub const fn place_of(self, qpn: Qpn) -> u32 {
        if qpn.value() == Qpn::GSI.value() { 0 } else { qpn.value() % self.count }
    }

    /// The first number of its queue pairs.
    const fn first(self) -> u32 {
        FIRST_QPN + (self.index + self.count - FIRST_QPN % self.count) % self.count
    }
}

/// Queue pairs of a device, with the numbers of rule R-ADR-11. One that becomes free is used again as late as
/// possible, so that packets to its former owner find nobody (rule R-QPS-27).
#[derive(Debug)]
pub(crate) struct QpTable {
    lane: Lane,
    slots: Vec<Option<Box<QueuePair>>>,
    free: std::collections::VecDeque<usize>,
    /// Queue pair 1.
    gsi: Option<Box<QueuePair>>,
}

impl QpTable {
    pub(crate) const fn new(lane: Lane) -> Self {
        Self { lane, slots: Vec::new(), free: std::collections::VecDeque::new(), gsi: None }
    }

    /// Reserves a number and stores what `make` builds for it; `None` where the table is full.
    pub(crate) fn insert(&mut self, make: impl FnOnce(Qpn) -> QueuePair) -> Option<Qpn> {
        // While there are unused numbers, none is used twice.
        let index = if self.slots.len() < MAX_QPS {
            self.slots.push(None);
            self.slots.len() - 1
        } else {
            self.free.pop_front()?
        };
        let qpn = Qpn::new(self.lane.first() + u32::try_from(index).ok()? * self.lane.count);
        self.slots[index] = Some(Box::new(make(qpn)));
        Some(qpn)
    }

    /// Stores what `make` builds as queue pair 1; `None` where there is one, or its packets go to another lane.
    pub(crate) fn insert_gsi(&mut self, make: impl FnOnce(Qpn) -> QueuePair) -> Option<Qpn> {
        if self.gsi.is_some() || self.lane.place_of(Qpn::GSI) != self.lane.index() {
            return None;
        }
        self.gsi = Some(Box::new(make(Qpn::GSI)));
        Some(Qpn::GSI)
    }

    /// Whether it has given no number.
    pub(crate) const fn is_unused(&self) -> bool {
        self.slots.is_empty() && self.gsi.is_none()
    }

    pub(crate) fn remove(&mut self, qpn: Qpn) -> Option<Box<QueuePair>> {
        if qpn == Qpn::GSI {
            return self.gsi.take();
        }
        let index = self.index(qpn)?;
        let pair = self.slots.get_mut(index)?.take()?;
        self.free.push_back(index);
        Some(pair)
    }

    pub(crate) fn get(&self, qpn: Qpn) -> Option<&QueuePair> {
        if qpn == Qpn::GSI {
            return self.gsi.as_deref();
        }
        self.slots.get(self.index(qpn)?)?.as_deref()
    }

    pub(crate) fn get_mut(&mut self, qpn: Qpn) -> Option<&mut QueuePair> {
        if qpn == Qpn::GSI {
            return self.gsi.as_deref_mut();
        }
        let index = self.index(qpn)?;
        self.slots.get_mut(index)?.as_deref_mut()
    }

    fn index(&self, qpn: Qpn) -> Option<usize> {
        let behind = qpn.value().checked_sub(self.lane.first())?;
        (behind % self.lane.count == 0).then_some((behind / self.lane.count) as usize)
    }

    /// All queue pairs, in the order of their numbers; queue pair 1 is last.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &QueuePair> {
        self.slots.iter().filter_map(|slot| slot.as_deref()).chain(self.gsi.as_deref())
    }
}

#[cfg(test)]
mod tests {
    use transport::PdId;

    use super::*;
    use crate::cq::CqId;
    use crate::kit::config;
    use crate::pair::QpInit;
    use crate::state::QpType;

    fn make(qpn: Qpn) -> QueuePair {
        let cq = CqId(0);
        let init = QpInit::new(QpType::Rc, PdId(0), cq, cq);
        QueuePair::new(qpn, init, &config(1))
    }

    /// Rules R-ADR-11, R-QPS-27.
    #[test]
    fn a_number_is_used_again_as_late_as_possible() {
        let mut table = QpTable::new(Lane::ONLY);
        let kept = table.insert(make).unwrap();
        assert_eq!(kept, Qpn::new(FIRST_QPN));
        for i in 1..MAX_QPS {
            let qpn = table.insert(make).unwrap();
            assert_eq!(qpn.value() as usize, FIRST_QPN as usize + i, "a new one each time");
            assert_eq!(table.remove(qpn).map(|pair| pair.qpn), Some(qpn));
            assert!(table.get(qpn).is_none() && table.remove(qpn).is_none());
        }
        // Now the one that has been free for longest.
        for i in 1..4 {
            assert_eq!(table.insert(make), Some(Qpn::new(FIRST_QPN + i)));
        }
        assert_eq!(table.iter().count(), 4);
        for qpn in [0, 1, FIRST_QPN - 1, FIRST_QPN + 4, 0xFF_FFFF] {
            assert!(table.get_mut(Qpn::new(qpn)).is_none());
        }
    }

    #[test]
    fn lanes_have_numbers_of_their_own() {
        let lanes: Vec<Lane> = (0..4).filter_map(|index| Lane::new(index, 4)).collect();
        assert_eq!((lanes.len(), Lane::new(4, 4), Lane::new(0, 3)), (4, None, None));
        for lane in lanes {
            let mut table = QpTable::new(lane);
            let numbers: Vec<Qpn> = (0..4).map(|_| table.insert(make).unwrap()).collect();
            for pair in numbers.windows(2) {
                assert_eq!(pair[1].value() - pair[0].value(), 4);
            }
            assert!((FIRST_QPN..FIRST_QPN + 4).contains(&numbers[0].value()));
            for qpn in FIRST_QPN..FIRST_QPN + 16 {
                let qpn = Qpn::new(qpn);
                let is_ours = lane.place_of(qpn) == lane.index();
                assert_eq!(table.get(qpn).map(|pair| pair.qpn), is_ours.then_some(qpn));
            }
            assert_eq!(lane.place_of(Qpn::GSI), 0);
            let gsi = (lane.index() == 0).then_some(Qpn::GSI);
            assert_eq!((table.insert_gsi(make), table.insert_gsi(make)), (gsi, None));
        }
    }
}
