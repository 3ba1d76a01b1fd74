//! XRC domains: where XRC targets and the shared receive queues that their peers name belong together.

use std::sync::Arc;

use qp::{CreateError, QpInit, XrcdId};

use crate::device::Device;
use crate::queue_pair::PreparedQp;

/// An XRC domain. Clones are the same domain.
#[derive(Clone, Debug)]
pub struct XrcDomain {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    device: Device,
    id: XrcdId,
}

impl XrcDomain {
    pub(crate) fn new(device: &Device) -> Self {
        let id = device.engine().nic().alloc_xrcd();
        Self { inner: Arc::new(Inner { device: device.clone(), id }) }
    }

    /// Makes an XRC target, in RESET: it receives only, into the shared receive queues of this domain that its peer
    /// names. Nothing can be posted to it.
    ///
    /// # Errors
    /// Where the device has no number left.
    pub fn create_target(&self) -> Result<PreparedQp, CreateError> {
        PreparedQp::target(self, QpInit::xrc_target(self.inner.id))
    }

    /// The device it is of.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    pub(crate) fn id(&self) -> XrcdId {
        self.inner.id
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Targets and shared receive queues hold a handle to their domain, so it is empty by now.
        let ended = self.device.engine().nic().close_xrcd(self.id);
        debug_assert!(ended.is_ok(), "{ended:?}");
    }
}
