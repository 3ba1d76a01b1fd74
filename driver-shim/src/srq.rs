//! Shared receive queues: one supply of receives for many queue pairs.

use std::sync::Arc;

use qp::{BadWr, CreateError, ModifySrqError, PostError, RecvWr, SrqAttr, SrqInit, SrqMask, SrqXrc};
use wire::Srqn;

use crate::cq::CompletionQueue;
use crate::device::Device;
use crate::pd::ProtectionDomain;
use crate::xrc::XrcDomain;

/// A shared receive queue. Clones are the same queue.
#[derive(Clone, Debug)]
pub struct SharedReceiveQueue {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    pd: ProtectionDomain,
    srqn: Srqn,
    /// Of one for XRC: its domain and where its receives complete, kept while it lives.
    _xrc: Option<(XrcDomain, CompletionQueue)>,
}

impl SharedReceiveQueue {
    pub(crate) fn new(
        pd: &ProtectionDomain,
        max_wr: u32,
        max_sge: u32,
        xrc: Option<(&XrcDomain, &CompletionQueue)>,
    ) -> Result<Self, CreateError> {
        let device = pd.device();
        if xrc.is_some_and(|(xrcd, _)| !xrcd.device().is(device)) {
            return Err(CreateError::NoXrcd);
        }
        if xrc.is_some_and(|(_, cq)| !cq.device().is(device)) {
            return Err(CreateError::NoCq);
        }
        let parts = xrc.map(|(xrcd, cq)| SrqXrc { xrcd: xrcd.id(), cq: cq.id() });
        let init = SrqInit { xrc: parts, ..SrqInit::new(pd.id(), max_wr, max_sge) };
        let srqn = device.engine().nic().create_srq(init)?;
        let xrc = xrc.map(|(xrcd, cq)| (xrcd.clone(), cq.clone()));
        Ok(Self { inner: Arc::new(Inner { pd: pd.clone(), srqn, _xrc: xrc }) })
    }

    /// Its number: what the peers of XRC targets name.
    #[must_use]
    pub fn number(&self) -> Srqn {
        self.inner.srqn
    }

    /// Posts a receive that any queue pair on it may take.
    ///
    /// # Errors
    /// Why it was not taken.
    pub fn post_recv(&self, wr: RecvWr) -> Result<(), PostError> {
        self.device().engine().nic().post_srq_recv(self.inner.srqn, wr)
    }

    /// Posts receives in order, up to the first that is not taken.
    ///
    /// # Errors
    /// The first that was not taken, and why.
    pub fn post_recv_list(&self, wrs: impl IntoIterator<Item = RecvWr>) -> Result<(), BadWr> {
        self.device().engine().nic().post_srq_recv_list(self.inner.srqn, wrs)
    }

    /// Asks for one [`AsyncEvent::SrqLimitReached`](qp::AsyncEvent::SrqLimitReached) when fewer than `limit` receives
    /// are left; 0 asks for none.
    ///
    /// # Errors
    /// A limit above the size of the queue.
    pub fn set_limit(&self, limit: u32) -> Result<(), ModifySrqError> {
        self.modify(&SrqAttr { limit, ..SrqAttr::default() }, SrqMask::LIMIT)
    }

    /// Makes it as large as `max_wr` receives.
    ///
    /// # Errors
    /// A size that is not possible, or below what waits or the limit.
    pub fn resize(&self, max_wr: u32) -> Result<(), ModifySrqError> {
        self.modify(&SrqAttr { max_wr, ..SrqAttr::default() }, SrqMask::MAX_WR)
    }

    /// Changes attributes.
    ///
    /// # Errors
    /// Why not; then nothing has changed.
    pub fn modify(&self, attr: &SrqAttr, mask: SrqMask) -> Result<(), ModifySrqError> {
        self.device().engine().nic().modify_srq(self.inner.srqn, attr, mask)
    }

    /// Its sizes, and its limit: 0 once that was reached.
    #[must_use]
    pub fn query(&self) -> SrqAttr {
        self.device().engine().nic().query_srq(self.inner.srqn).unwrap_or_default()
    }

    /// Receives that wait in it.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.device().engine().nic().srq_len(self.inner.srqn)
    }

    /// The device it is of.
    #[must_use]
    pub fn device(&self) -> &Device {
        self.inner.pd.device()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Queue pairs hold a handle to their shared receive queue, so it is unused by now.
        let ended = self.pd.device().engine().destroy_srq(self.srqn);
        debug_assert!(ended.is_ok(), "{ended:?}");
    }
}
