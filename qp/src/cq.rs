//! Completion queues: bounded, polled, and armed for one notification at a time.

use std::collections::VecDeque;

use transport::Completion;

/// A completion queue of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CqId(pub(crate) u32);

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
    armed: Armed,
    overrun: bool,
    /// Queue pairs that complete here; while there are any, it cannot be destroyed.
    pub(crate) users: u32,
}

impl Cq {
    pub(crate) fn new(depth: usize) -> Self {
        Self { depth, queue: VecDeque::new(), armed: Armed::No, overrun: false, users: 0 }
    }

    pub(crate) fn push(&mut self, wc: Completion) -> Pushed {
        if self.overrun {
            return Pushed::Lost;
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
        let n = self.queue.len().min(max);
        out.extend(self.queue.drain(..n));
        n
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(crate) fn arm(&mut self, solicited_only: bool) {
        // Arming for any completion stands, also if one for solicited ones only follows.
        if self.armed != Armed::Any {
            self.armed = if solicited_only { Armed::Solicited } else { Armed::Any };
        }
    }

    /// Takes out what belongs to a destroyed queue pair (rule R-CQE-15).
    pub(crate) fn forget(&mut self, qpn: wire::Qpn) {
        self.queue.retain(|wc| wc.qp_num != qpn);
    }
}

#[cfg(test)]
mod tests {
    use transport::{WcOpcode, WcStatus};
    use wire::{Qpn, WrId};

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

    #[test]
    fn completions_of_a_destroyed_queue_pair_are_forgotten() {
        let mut cq = Cq::new(4);
        cq.push(wc(1, false));
        cq.push(Completion { qp_num: Qpn::new(18), ..wc(2, false) });
        cq.forget(Qpn::new(17));
        let mut out = Vec::new();
        cq.poll(4, &mut out);
        assert_eq!(out.iter().map(|wc| wc.wr_id.value()).collect::<Vec<_>>(), [2]);
    }
}
