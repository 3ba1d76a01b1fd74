//! Memory windows: rights for peers on part of a region.

use std::sync::Arc;

use qp::{MrError, MwRange, MwType, SendWr};
use wire::RKey;

use crate::device::Device;
use crate::pd::ProtectionDomain;

/// A memory window. Clones are the same window; it is deallocated when the last one goes.
///
/// A type 1 window is bound by [`crate::QueuePair::bind_mw`], a type 2 window by the work request that
/// [`MemoryWindow::bind`] makes:
///
/// ```
/// # use ferroce_driver_shim as driver_shim;
/// # fn example(
/// #     pd: &driver_shim::ProtectionDomain,
/// #     qp: &driver_shim::QueuePair,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// use qp::{Access, MwRange, MwType, SendWr};
///
/// let region = pd.register(vec![0; 4096], Access::LOCAL_WRITE | Access::MW_BIND)?;
/// let window = pd.alloc_mw(MwType::Type2)?;
/// let range =
///     MwRange { mr: region.lkey(), va: region.addr_at(1024), length: 512, access: Access::REMOTE_WRITE };
/// qp.post_send(window.bind(1, 0x42, &range).signaled())?;
/// let key = window.rkey(0x42); // the peer of `qp` alone can use it
/// qp.post_send(SendWr::local_inv(2, key).signaled())?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct MemoryWindow {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    pd: ProtectionDomain,
    mw_type: MwType,
    name: RKey,
}

impl MemoryWindow {
    pub(crate) fn new(pd: &ProtectionDomain, mw_type: MwType) -> Result<Self, MrError> {
        let name = pd.device().engine().nic().alloc_mw(pd.id(), mw_type)?;
        Ok(Self { inner: Arc::new(Inner { pd: pd.clone(), mw_type, name }) })
    }

    /// Its type.
    #[must_use]
    pub fn mw_type(&self) -> MwType {
        self.inner.mw_type
    }

    /// Key for peers once it is bound as `variant`.
    #[must_use]
    pub fn rkey(&self, variant: u8) -> RKey {
        self.name().with_variant(variant)
    }

    /// The work request that binds a type 2 window to `range`; its key gets the low byte `variant`.
    #[must_use]
    pub fn bind(&self, wr_id: u64, variant: u8, range: &MwRange) -> SendWr {
        SendWr::bind_mw(wr_id, self.name(), variant, range)
    }

    pub(crate) fn device(&self) -> &Device {
        self.inner.pd.device()
    }

    /// What the device calls it.
    pub(crate) fn name(&self) -> RKey {
        self.inner.name
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let ended = self.pd.device().engine().nic().dealloc_mw(self.name);
        debug_assert!(ended.is_ok(), "{ended:?}");
    }
}
