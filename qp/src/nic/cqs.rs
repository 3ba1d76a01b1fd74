//! Completion queues of the device.

use transport::Completion;
use wire::Qpn;

use super::{MAX_CQE, Nic};
use crate::cq::{Cq, CqId};
use crate::error::{CreateError, DestroyError, ResizeCqError};

impl Nic {
    /// Makes a completion queue for `depth` completions.
    ///
    /// # Errors
    /// Where `depth` is 0 or above [`MAX_CQE`].
    pub fn create_cq(&mut self, depth: usize) -> Result<CqId, CreateError> {
        if depth == 0 || depth > MAX_CQE {
            return Err(CreateError::CqDepth { given: depth, max: MAX_CQE });
        }
        Ok(CqId(self.cqs.insert(Cq::new(depth))))
    }

    /// Changes how many completions a queue holds. What waits in it stays, and arming too.
    ///
    /// # Errors
    /// Where it does not exist, `depth` is 0 or above [`MAX_CQE`], or more completions wait (rule R-CQE-18).
    pub fn resize_cq(&mut self, cq: CqId, depth: usize) -> Result<(), ResizeCqError> {
        let queue = self.cqs.get_mut(cq.0).ok_or(ResizeCqError::NoSuchCq)?;
        if depth == 0 || depth > MAX_CQE {
            return Err(ResizeCqError::Depth { given: depth, max: MAX_CQE });
        }
        let waiting = queue.len();
        if queue.resize(depth) { Ok(()) } else { Err(ResizeCqError::TooSmall { given: depth, waiting }) }
    }

    /// Ends a completion queue.
    ///
    /// # Errors
    /// Where it does not exist, or queue pairs or shared receive queues use it.
    pub fn destroy_cq(&mut self, cq: CqId) -> Result<(), DestroyError> {
        match self.cqs.get(cq.0) {
            None => Err(DestroyError::NoSuchObject),
            Some(queue) if !queue.users.is_empty() || queue.srqs > 0 => Err(DestroyError::Busy),
            Some(_) => {
                self.cqs.remove(cq.0);
                Ok(())
            }
        }
    }

    /// Moves up to `max` completions to `out`; returns how many.
    pub fn poll_cq(&mut self, cq: CqId, max: usize, out: &mut Vec<Completion>) -> usize {
        self.cqs.get_mut(cq.0).map_or(0, |queue| queue.poll(max, out))
    }

    /// Completions that wait to be polled.
    #[must_use]
    pub fn cq_len(&self, cq: CqId) -> usize {
        self.cqs.get(cq.0).map_or(0, Cq::len)
    }

    /// Asks for one [`Event::CqReady`](crate::Event::CqReady) at the next completion, or the next solicited one or
    /// error.
    pub fn req_notify_cq(&mut self, cq: CqId, solicited_only: bool) {
        if let Some(queue) = self.cqs.get_mut(cq.0) {
            queue.arm(solicited_only);
        }
    }

    /// Queue pair `qpn` completes to `cq` from now on.
    pub(super) fn join_cq(&mut self, cq: CqId, qpn: Qpn) {
        if let Some(queue) = self.cqs.get_mut(cq.0) {
            queue.users.insert(qpn);
        }
    }

    /// Queue pair `qpn`, which completed to `cq`, has gone.
    pub(super) fn leave_cq(&mut self, cq: CqId, qpn: Qpn) {
        if let Some(queue) = self.cqs.get_mut(cq.0) {
            queue.users.remove(&qpn);
        }
    }
}
