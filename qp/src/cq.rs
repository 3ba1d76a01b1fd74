//! Completion queues: bounded, polled, and armed for one notification at a time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use transport::Completion;
use wire::Qpn;

/// A completion queue of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CqId(pub(crate) u32);

impl CqId {
    /// No queue: for a side of a queue pair that never completes anything.
    pub(crate) const NONE: Self = Self(u32::MAX);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Armed {
    No,
    Solicited,
    Any,
}

/// What pushing a completion did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pushed {
    /// It is in the queue.
    Stored,
    /// It is in the queue, and someone waits for it.
    Notify,
    /// The queue was full; the completion is lost and the queue is in error (rule R-CQE-9).
    Overrun,
    /// The queue is in error since it overran; the completion is lost.
    Lost,
}

#[derive(Debug)]
pub(crate) struct Cq {
    depth: usize,
    queue: VecDeque<Completion>,
    /// Completions taken out so far: the number of the one in front.
    taken: u64,
    /// Queue pairs that are gone or were reset: what they completed below this number is not there any more. It
    /// is left in the queue until its turn comes, or until there is enough of it to be worth a pass.
    forgotten: BTreeMap<Qpn, u64>,
    armed: Armed,
    overrun: bool,
    /// Queue pairs that complete here; while there are any, it cannot be destroyed.
    pub(crate) users: BTreeSet<Qpn>,
    /// Shared receive queues whose receives complete here, by the same rule.
    pub(crate) srqs: u32,
}

impl Cq {
    pub(crate) fn new(depth: usize) -> Self {
        Self {
            depth,
            queue: VecDeque::new(),
            taken: 0,
            forgotten: BTreeMap::new(),
            armed: Armed::No,
            overrun: false,
            users: BTreeSet::new(),
            srqs: 0,
        }
    }

    pub(crate) fn push(&mut self, wc: Completion) -> Pushed {
        if self.overrun {
            return Pushed::Lost;
        }
        if self.queue.len() >= self.depth {
            self.drop_forgotten();
        }
        if self.queue.len() >= self.depth {
            self.overrun = true;
            return Pushed::Overrun;
        }
        self.queue.push_back(wc);
        // Rule R-CQE-10: one-shot, and for completions after arming only.
        let wakes = match self.armed {
            Armed::No => false,
            Armed::Any => true,
            Armed::Solicited => wc.solicited,
        };
        if wakes {
            self.armed = Armed::No;
            return Pushed::Notify;
        }
        Pushed::Stored
    }

    pub(crate) fn poll(&mut self, max: usize, out: &mut Vec<Completion>) -> usize {
        let mut n = 0;
        while n < max
            && let Some(wc) = self.queue.pop_front()
        {
            if !is_forgotten(&self.forgotten, self.taken, &wc) {
                out.push(wc);
                n += 1;
            }
            self.taken += 1;
        }
        if self.queue.is_empty() {
            self.forgotten.clear();
        }
        n
    }

    pub(crate) fn len(&self) -> usize {
        if self.forgotten.is_empty() {
            return self.queue.len();
        }
        (self.taken..).zip(&self.queue).filter(|(at, wc)| !is_forgotten(&self.forgotten, *at, wc)).count()
    }

    /// Makes it hold `depth` completions from now on; false where more wait already (rule R-CQE-18).
    pub(crate) fn resize(&mut self, depth: usize) -> bool {
        self.drop_forgotten();
        let fits = self.queue.len() <= depth;
        if fits {
            self.depth = depth;
            self.queue.shrink_to(depth);
        }
        fits
    }

    pub(crate) fn arm(&mut self, solicited_only: bool) {
        // Arming for any completion stands, also if one for solicited ones only follows.
        if self.armed != Armed::Any {
            self.armed = if solicited_only { Armed::Solicited } else { Armed::Any };
        }
    }

    /// Takes out what a queue pair completed that is destroyed or reset (rule R-CQE-15). The cost does not depend
    /// on how much waits here: one pass serves many queue pairs.
    pub(crate) fn forget(&mut self, qpn: Qpn) {
        if self.queue.is_empty() {
            return;
        }
        self.forgotten.insert(qpn, self.taken + self.queue.len() as u64);
        if self.forgotten.len() > self.queue.len() / ENTRIES_PER_FORGOTTEN {
            self.drop_forgotten();
        }
    }

    fn drop_forgotten(&mut self) {
        if self.forgotten.is_empty() {
            return;
        }
        let mut at = self.taken;
        self.queue.retain(|wc| {
            at += 1;
            !is_forgotten(&self.forgotten, at - 1, wc)
        });
        self.forgotten.clear();
    }
}

/// A queue pair is forgotten at the price of looking at so many entries.
const ENTRIES_PER_FORGOTTEN: usize = 16;

fn is_forgotten(forgotten: &BTreeMap<Qpn, u64>, at: u64, wc: &Completion) -> bool {
    forgotten.get(&wc.qp_num).is_some_and(|end| at < *end)
}

#[cfg(test)]
mod tests {
    use transport::{WcOpcode, WcStatus};
    use wire::WrId;

    use super::*;

    fn wc(id: u64, solicited: bool) -> Completion {
        let error = Completion::error(WrId::new(id), WcStatus::Success, WcOpcode::Recv, Qpn::new(17));
        Completion { solicited, ..error }
    }

    #[test]
    fn f28_arming_is_one_shot_and_for_later_completions() {
        let mut cq = Cq::new(8);
        assert_eq!(cq.push(wc(1, false)), Pushed::Stored);
        cq.arm(false);
        assert_eq!(cq.push(wc(2, false)), Pushed::Notify);
        assert_eq!(cq.push(wc(3, false)), Pushed::Stored);
    }

    #[test]
    fn f28_solicited_only_waits_for_the_bit() {
        let mut cq = Cq::new(8);
        cq.arm(true);
        assert_eq!(cq.push(wc(1, false)), Pushed::Stored);
        assert_eq!(cq.push(wc(2, true)), Pushed::Notify);
        cq.arm(false);
        cq.arm(true);
        assert_eq!(cq.push(wc(3, false)), Pushed::Notify);
    }

    #[test]
    fn overrun_loses_the_new_one_and_stays() {
        let mut cq = Cq::new(1);
        assert_eq!(cq.push(wc(1, false)), Pushed::Stored);
        assert_eq!(cq.push(wc(2, false)), Pushed::Overrun);
        let mut out = Vec::new();
        assert_eq!(cq.poll(4, &mut out), 1);
        assert_eq!(out[0].wr_id, WrId::new(1));
        assert_eq!(cq.push(wc(3, false)), Pushed::Lost);
    }

    /// A completion of queue pair `qpn`.
    fn of(qpn: u32, id: u64) -> Completion {
        Completion { qp_num: Qpn::new(qpn), ..wc(id, false) }
    }

    fn polled(cq: &mut Cq, max: usize) -> Vec<u64> {
        let mut out = Vec::new();
        assert_eq!(cq.poll(max, &mut out), out.len());
        out.iter().map(|wc| wc.wr_id.value()).collect()
    }

    /// R-CQE-18.
    #[test]
    fn a_queue_grows_and_shrinks_down_to_what_waits_in_it() {
        let mut cq = Cq::new(2);
        cq.push(wc(1, false));
        cq.push(wc(2, false));
        assert!(!cq.resize(1));
        assert!(cq.resize(3));
        assert_eq!(cq.push(wc(3, false)), Pushed::Stored);
        let mut out = Vec::new();
        cq.poll(2, &mut out);
        assert!(cq.resize(1));
        assert_eq!((cq.len(), cq.push(wc(4, false))), (1, Pushed::Overrun));
        // An overrun is for good.
        assert!(cq.resize(8));
        assert_eq!(cq.push(wc(5, false)), Pushed::Lost);
    }

    #[test]
    fn completions_of_a_destroyed_queue_pair_are_forgotten() {
        let mut cq = Cq::new(4);
        cq.push(of(17, 1));
        cq.push(of(18, 2));
        cq.forget(Qpn::new(17));
        assert_eq!((cq.len(), polled(&mut cq, 4)), (1, vec![2]), "R-CQE-15");
    }

    /// Many at once, some not yet passed over: what comes after counts, also of the same number.
    #[test]
    fn what_is_forgotten_neither_counts_nor_takes_room() {
        const PAIRS: u32 = 200;
        let mut cq = Cq::new(2 * PAIRS as usize);
        for id in 0..2 * u64::from(PAIRS) {
            cq.push(of(u32::try_from(id).unwrap() % PAIRS, id));
        }
        assert_eq!(polled(&mut cq, 3), [0, 1, 2]);
        for qpn in 0..10 {
            cq.forget(Qpn::new(qpn));
        }
        assert!(!cq.forgotten.is_empty(), "few are left where they are");
        assert_eq!(cq.len(), 380);
        assert_eq!(polled(&mut cq, 2), [10, 11]);
        // The first life of these is over; now there is room for exactly their second one.
        for id in 0..22 {
            assert_eq!(cq.push(of(5, 1000 + id)), Pushed::Stored);
        }
        assert_eq!(cq.push(of(6, 0)), Pushed::Overrun);
        let rest = polled(&mut cq, usize::MAX);
        let expected: Vec<u64> = (12..200).chain(210..400).chain(1000..1022).collect();
        assert_eq!(rest, expected);
    }

    #[test]
    fn many_forgotten_are_swept_out_together() {
        const PAIRS: u32 = 1600;
        let mut cq = Cq::new(PAIRS as usize);
        for qpn in 0..PAIRS {
            cq.push(of(qpn, qpn.into()));
        }
        let mut sweeps = 0;
        for qpn in 0..PAIRS {
            cq.forget(Qpn::new(qpn));
            sweeps += usize::from(cq.forgotten.is_empty());
            assert_eq!(cq.len(), (PAIRS - qpn - 1) as usize);
        }
        assert!((1..100).contains(&sweeps), "{sweeps} sweeps");
    }
}
