//! Shared receive queues of the device: made, posted to, modified, ended.

use wire::Srqn;

use super::Nic;
use crate::error::{CreateError, DestroyError};
use crate::event::{AsyncEvent, Event};
use crate::srq::{MAX_SRQ_SGE, MAX_SRQ_WR, ModifySrqError, Srq, SrqAttr, SrqInit, SrqMask, SrqXrc};
use crate::wr::{BadWr, PostError, RecvWr};

impl Nic {
    /// Makes a shared receive queue. Its limit is 0 until [`Nic::modify_srq`] sets one. Its number is what the peers of
    /// XRC targets name.
    ///
    /// # Errors
    /// What of `init` is not possible.
    pub fn create_srq(&mut self, init: SrqInit) -> Result<Srqn, CreateError> {
        if !self.has_pd(init.pd) {
            return Err(CreateError::NoPd);
        }
        if !(1..=MAX_SRQ_WR).contains(&init.max_wr) || init.max_sge > MAX_SRQ_SGE {
            return Err(CreateError::SrqSize { max_wr: MAX_SRQ_WR, max_sge: MAX_SRQ_SGE });
        }
        if let Some(SrqXrc { xrcd, cq }) = init.xrc {
            if self.xrcds.get(xrcd.0).is_none() {
                return Err(CreateError::NoXrcd);
            }
            if self.cqs.get(cq.0).is_none() {
                return Err(CreateError::NoCq);
            }
        }
        let srqn = self.srqs.insert(&init).ok_or(CreateError::SrqTableFull)?;
        self.join_pd(init.pd);
        if let Some(SrqXrc { xrcd, cq }) = init.xrc {
            self.join_xrcd(xrcd);
            if let Some(queue) = self.cqs.get_mut(cq.0) {
                queue.srqs += 1;
            }
        }
        Ok(srqn)
    }

    /// Changes the size or the limit of a shared receive queue, or both.
    ///
    /// # Errors
    /// Why not; then nothing has changed.
    pub fn modify_srq(&mut self, srqn: Srqn, attr: &SrqAttr, mask: SrqMask) -> Result<(), ModifySrqError> {
        self.srqs.get_mut(srqn).ok_or(ModifySrqError::NoSuchSrq)?.modify(attr, mask)
    }

    /// Its sizes, and its limit: 0 once that was reached (rule R-RSP-46).
    #[must_use]
    pub fn query_srq(&self, srqn: Srqn) -> Option<SrqAttr> {
        self.srqs.get(srqn).map(Srq::attr)
    }

    /// Receives that wait in it.
    #[must_use]
    pub fn srq_len(&self, srqn: Srqn) -> usize {
        self.srqs.get(srqn).map_or(0, Srq::len)
    }

    /// Ends a shared receive queue; receives that wait in it are forgotten. Peers that still name one for XRC targets
    /// are refused.
    ///
    /// # Errors
    /// Where it does not exist or queue pairs use it.
    pub fn destroy_srq(&mut self, srqn: Srqn) -> Result<(), DestroyError> {
        let srq = self.srqs.get(srqn).ok_or(DestroyError::NoSuchObject)?;
        if srq.users > 0 {
            return Err(DestroyError::Busy);
        }
        let (pd, xrc) = (srq.pd, srq.xrc);
        self.srqs.remove(srqn);
        self.leave_pd(pd);
        if let Some(SrqXrc { xrcd, cq }) = xrc {
            self.leave_xrcd(xrcd);
            if let Some(queue) = self.cqs.get_mut(cq.0) {
                queue.srqs -= 1;
            }
        }
        Ok(())
    }

    /// Posts a receive that any queue pair of the shared receive queue may take.
    ///
    /// # Errors
    /// Why it was not taken.
    pub fn post_srq_recv(&mut self, srqn: Srqn, wr: RecvWr) -> Result<(), PostError> {
        self.srqs.get_mut(srqn).ok_or(PostError::NoSuchSrq)?.post(wr)
    }

    /// Posts receives in order, up to the first that is not taken.
    ///
    /// # Errors
    /// The first that was not taken, and why.
    pub fn post_srq_recv_list(
        &mut self,
        srqn: Srqn,
        wrs: impl IntoIterator<Item = RecvWr>,
    ) -> Result<(), BadWr> {
        for (index, wr) in wrs.into_iter().enumerate() {
            self.post_srq_recv(srqn, wr).map_err(|error| BadWr { index, error })?;
        }
        Ok(())
    }

    /// Says that a limit was reached, where it was.
    pub(super) fn tell_limit(&mut self, srqn: Srqn) {
        if self.srqs.get_mut(srqn).is_some_and(Srq::take_limit_reached) {
            self.events.push_back(Event::Async(AsyncEvent::SrqLimitReached(srqn)));
        }
    }
}
