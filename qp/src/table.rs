//! Queue pairs by number.

use wire::Qpn;

use crate::pair::QueuePair;

/// Numbers below this are special or left free, as rxe does.
const FIRST_QPN: u32 = 0x11;
/// The most queue pairs of a device, queue pair 1 aside.
pub(crate) const MAX_QPS: usize = 1 << 20;

/// Queue pairs of a device, with the numbers of rule R-ADR-11. One that becomes free is used again as late as
/// possible, so that packets to its former owner find nobody (rule R-QPS-27).
#[derive(Debug, Default)]
pub(crate) struct QpTable {
    slots: Vec<Option<Box<QueuePair>>>,
    free: std::collections::VecDeque<usize>,
    /// Queue pair 1.
    gsi: Option<Box<QueuePair>>,
}

impl QpTable {
    /// Reserves a number and stores what `make` builds for it; `None` where the table is full.
    pub(crate) fn insert(&mut self, make: impl FnOnce(Qpn) -> QueuePair) -> Option<Qpn> {
        // While there are unused numbers, none is used twice.
        let index = if self.slots.len() < MAX_QPS {
            self.slots.push(None);
            self.slots.len() - 1
        } else {
            self.free.pop_front()?
        };
        let qpn = Qpn::new(FIRST_QPN + u32::try_from(index).ok()?);
        self.slots[index] = Some(Box::new(make(qpn)));
        Some(qpn)
    }

    /// Stores what `make` builds as queue pair 1; `None` where there is one.
    pub(crate) fn insert_gsi(&mut self, make: impl FnOnce(Qpn) -> QueuePair) -> Option<Qpn> {
        if self.gsi.is_some() {
            return None;
        }
        self.gsi = Some(Box::new(make(Qpn::GSI)));
        Some(Qpn::GSI)
    }

    pub(crate) fn remove(&mut self, qpn: Qpn) -> Option<Box<QueuePair>> {
        if qpn == Qpn::GSI {
            return self.gsi.take();
        }
        let index = index(qpn)?;
        let pair = self.slots.get_mut(index)?.take()?;
        self.free.push_back(index);
        Some(pair)
    }

    pub(crate) fn get(&self, qpn: Qpn) -> Option<&QueuePair> {
        if qpn == Qpn::GSI {
            return self.gsi.as_deref();
        }
        self.slots.get(index(qpn)?)?.as_deref()
    }

    pub(crate) fn get_mut(&mut self, qpn: Qpn) -> Option<&mut QueuePair> {
        if qpn == Qpn::GSI {
            return self.gsi.as_deref_mut();
        }
        self.slots.get_mut(index(qpn)?)?.as_deref_mut()
    }

    #[cfg(test)]
    fn iter(&self) -> impl Iterator<Item = &QueuePair> {
        self.slots.iter().filter_map(|slot| slot.as_deref()).chain(self.gsi.as_deref())
    }
}

fn index(qpn: Qpn) -> Option<usize> {
    Some(qpn.value().checked_sub(FIRST_QPN)? as usize)
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
        let mut table = QpTable::default();
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
}
