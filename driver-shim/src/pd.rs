//! Protection domains: memory regions and queue pairs of one domain belong together.

use std::sync::Arc;

use qp::{Access, AddressVector, CreateError, MrError, MwType, PdId, QpType};
use wire::VirtAddr;

use crate::ah::{AddressHandle, ConnectError};
use crate::cq::CompletionQueue;
use crate::device::Device;
use crate::mr::{FastRegion, MemoryRegion};
use crate::mw::MemoryWindow;
use crate::queue_pair::QpBuilder;
use crate::srq::SharedReceiveQueue;
use crate::xrc::XrcDomain;

/// A protection domain.
#[derive(Clone, Debug)]
pub struct ProtectionDomain {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    device: Device,
    id: PdId,
}

impl ProtectionDomain {
    pub(crate) fn new(device: &Device) -> Self {
        let id = device.engine().nic().alloc_pd();
        Self { inner: Arc::new(Inner { device: device.clone(), id }) }
    }

    /// Registers memory. The device owns `bytes` until the region is dropped: the program copies in and out,
    /// so a peer may write at any time.
    ///
    /// # Errors
    /// Rights that do not go together.
    pub fn register(&self, bytes: Vec<u8>, access: Access) -> Result<MemoryRegion, MrError> {
        MemoryRegion::new(self, bytes, None, access)
    }

    /// As [`ProtectionDomain::register`], with the first byte at `iova` for work requests and peers.
    ///
    /// # Errors
    /// Rights that do not go together, or bytes that go past the last address.
    pub fn register_at(
        &self,
        bytes: Vec<u8>,
        iova: VirtAddr,
        access: Access,
    ) -> Result<MemoryRegion, MrError> {
        MemoryRegion::new(self, bytes, Some(iova), access)
    }

    /// Makes a region of `capacity` zero bytes that work requests register.
    ///
    /// # Errors
    /// No key left.
    pub fn alloc_mr(&self, capacity: usize) -> Result<FastRegion, MrError> {
        FastRegion::new(self, capacity)
    }

    /// Makes a memory window, bound to nothing.
    ///
    /// # Errors
    /// No key left.
    pub fn alloc_mw(&self, mw_type: MwType) -> Result<MemoryWindow, MrError> {
        MemoryWindow::new(self, mw_type)
    }

    /// Starts to make a queue pair. An XRC initiator ([`QpType::XrcIni`]) receives nothing, whatever `recv_cq` is;
    /// an XRC target is made by its domain ([`XrcDomain::create_target`]).
    pub fn create_qp(
        &self,
        qp_type: QpType,
        send_cq: &CompletionQueue,
        recv_cq: &CompletionQueue,
    ) -> QpBuilder {
        QpBuilder::new(self, qp_type, send_cq, recv_cq)
    }

    /// Makes a shared receive queue for up to `max_wr` receives of up to `max_sge` pieces.
    ///
    /// # Errors
    /// A size that is not possible.
    pub fn create_srq(&self, max_wr: u32, max_sge: u32) -> Result<SharedReceiveQueue, CreateError> {
        SharedReceiveQueue::new(self, max_wr, max_sge, None)
    }

    /// Makes a shared receive queue for the XRC targets of `xrcd`. Its receives complete on `cq`; what its peers may
    /// reach is the memory of this protection domain.
    ///
    /// # Errors
    /// A size that is not possible, or a domain or queue of another device.
    pub fn create_xrc_srq(
        &self,
        xrcd: &XrcDomain,
        cq: &CompletionQueue,
        max_wr: u32,
        max_sge: u32,
    ) -> Result<SharedReceiveQueue, CreateError> {
        SharedReceiveQueue::new(self, max_wr, max_sge, Some((xrcd, cq)))
    }

    /// Makes an address handle: the way to `addr`, for datagrams.
    ///
    /// # Errors
    /// An address that no packet can go to, or that does not answer.
    pub fn create_ah(&self, addr: AddressVector) -> Result<AddressHandle, ConnectError> {
        AddressHandle::new(self, addr)
    }

    /// The device it is of.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    pub(crate) fn id(&self) -> PdId {
        self.inner.id
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Regions and queue pairs hold a handle to their domain, so it is empty by now.
        let ended = self.device.engine().nic().dealloc_pd(self.id);
        debug_assert!(ended.is_ok(), "{ended:?}");
    }
}
