//! What holds of a requester between any two calls.

use wire::Psn;

use super::{Requester, read_request_end};
use crate::params::RcParams;
use crate::wqe::SendOp;

impl Requester {
    /// Retries that may still be spent without progress.
    pub(crate) const fn retries_left(&self) -> u8 {
        self.retry_left
    }

    /// Panics where something does not hold that always must.
    pub(crate) fn assert_consistent(&self, params: &RcParams) {
        let (una, snd, high) = (self.una, self.snd, self.high);
        let outstanding = high.steps_from(una);
        assert!(snd.steps_from(una) <= outstanding, "una {una} <= snd {snd} <= high {high}");
        assert!(outstanding <= params.window, "{outstanding} outstanding with window {}", params.window);

        // Started requests come first, and their PSNs follow each other; una lies in the first of them.
        let started: Vec<_> = self.sq.iter().map_while(|wqe| wqe.psns.map(|psns| (wqe, psns))).collect();
        assert!(self.sq.iter().skip(started.len()).all(|wqe| wqe.psns.is_none()));
        for pair in started.windows(2) {
            let ((_, (first, n)), (_, (next, _))) = (pair[0], pair[1]);
            assert_eq!(first.wrapping_add(n), next);
        }
        match started.first() {
            Some((_, (first, n))) => {
                assert!(una.in_window(*first, *n), "una {una} is not in the first request")
            }
            None => assert_eq!(outstanding, 0),
        }
        assert!(self.cur <= self.sq.len());

        // What is open of READs and atomics is what was sent and has no answer.
        let mut open = Vec::new();
        for (wqe, (first, n)) in &started {
            let mut index = 0;
            while index < *n {
                let end = match wqe.op {
                    SendOp::Read { .. } => read_request_end(index, *n, params.window),
                    _ => *n,
                };
                let last: Psn = first.wrapping_add(end - 1);
                if wqe.op.takes_depth() && last.diff(una) >= 0 && last.diff(high) < 0 {
                    open.push(last);
                }
                index = end;
            }
        }
        assert_eq!(self.open_reads, open);
        assert!(open.len() <= usize::from(params.max_rd_atomic));

        // What was put off is asked for (rule R-REQ-49).
        if snd == high && outstanding > 0 && self.cur == self.sq.len() {
            assert!(self.asking.has_asked() || self.has_put_off(), "nobody asks, and nobody will");
        }

        // A timer runs while something waits for an answer.
        assert!(snd == una || self.rnr_until.is_some() || self.ack_deadline.is_some());
        assert!(self.retry_left <= params.retry_cnt && self.rnr_left <= params.rnr_retry);
    }
}
