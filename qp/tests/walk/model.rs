//! What is known of the work requests of one host: each completes once, sends of a queue pair in order.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ferroce_qp::{Completion, CqId, WcOpcode, WcStatus};
use wire::{Qpn, Srqn};

/// Work requests of a queue pair that have not completed.
#[derive(Debug, Default)]
pub(crate) struct Work {
    /// Marks of sends, and whether a success is told.
    pub(crate) sends: VecDeque<(u64, bool)>,
    pub(crate) receives: VecDeque<u64>,
    pub(crate) cqs: Vec<CqId>,
    /// It has reported a failed send.
    pub(crate) failed: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Model {
    pub(crate) pairs: BTreeMap<Qpn, Work>,
    /// Receives of each shared receive queue that have been posted and have not completed.
    pub(crate) shared: BTreeMap<Srqn, BTreeSet<u64>>,
    /// Receives of shared queues that may never complete.
    pub(crate) lost: BTreeMap<Srqn, usize>,
    /// Completion queues that have overrun: what goes there is lost (rule R-CQE-9).
    pub(crate) overrun: Vec<CqId>,
    /// Work requests that have succeeded.
    pub(crate) successes: u64,
}

impl Model {
    /// Whether completions of a queue pair may be lost.
    pub(crate) fn is_lossy(&self, work: &Work) -> bool {
        work.cqs.iter().any(|cq| self.overrun.contains(cq))
    }

    /// Holds a completion against what was posted.
    pub(crate) fn completed(&mut self, wc: &Completion, shared_cq: bool) {
        let is_send = (wc.opcode as u8) < WcOpcode::Recv as u8;
        let id = wc.wr_id.value();
        self.successes += u64::from(wc.status == WcStatus::Success);
        if !is_send && id >= SHARED {
            let srq = self.shared.values_mut().find(|ids| ids.contains(&id));
            let Some(srq) = srq else { panic!("{wc:?} completes no shared receive") };
            srq.remove(&id);
            return;
        }
        assert!(!shared_cq, "{wc:?} in the queue of a shared receive queue");
        let lossy = self.pairs.get(&wc.qp_num).is_some_and(|work| self.is_lossy(work));
        let Some(work) = self.pairs.get_mut(&wc.qp_num) else { panic!("{wc:?} of no queue pair") };
        if !is_send {
            let next = work.receives.pop_front();
            assert!(next == Some(id) || lossy, "{wc:?}, but {next:?} is next");
            return;
        }
        loop {
            let Some((next, told)) = work.sends.pop_front() else { panic!("{wc:?} completes nothing") };
            if next == id {
                assert!(told || wc.status != WcStatus::Success || lossy, "{wc:?} is not to be told");
                break;
            }
            assert!(!told && !work.failed || lossy, "{next} is passed over by {wc:?}");
        }
        work.failed |= wc.status != WcStatus::Success;
    }
}

/// Marks of receives of shared queues begin here.
pub(crate) const SHARED: u64 = 1 << 40;
