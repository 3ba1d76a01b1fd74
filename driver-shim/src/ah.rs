//! Finding the way to a peer, and address handles: where datagrams go.

use std::sync::Arc;

use qp::{AddressVector, AhId, ModifyQpError, SendWr};
use wire::{Duration, Gid, QKey, Qpn};

use crate::backend::{Reachability, Unreachable};
use crate::device::Device;
use crate::pd::ProtectionDomain;

/// How long address resolution may take before it is given up (field case F39).
const RESOLVE: Duration = Duration::from_secs(5);

/// Between two looks whether the peer has answered.
const PAUSE: std::time::Duration = std::time::Duration::from_micros(200);

/// Where datagrams can be sent. Clones are the same handle.
#[derive(Clone, Debug)]
pub struct AddressHandle {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    pd: ProtectionDomain,
    id: AhId,
}

impl AddressHandle {
    pub(crate) fn new(pd: &ProtectionDomain, addr: AddressVector) -> Result<Self, ConnectError> {
        resolve(pd.device(), addr.dgid)?;
        let id = pd.device().engine().nic().create_ah(pd.id(), addr)?;
        Ok(Self { inner: Arc::new(Inner { pd: pd.clone(), id }) })
    }

    /// `wr` as a datagram this way, to queue pair `qpn` with queue key `qkey`. The handle must live until it is
    /// posted.
    #[must_use]
    pub fn address(&self, wr: SendWr, qpn: Qpn, qkey: QKey) -> SendWr {
        wr.to(self.inner.id, qpn, qkey)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let ended = self.pd.device().engine().nic().destroy_ah(self.id);
        debug_assert!(ended.is_ok(), "{ended:?}");
    }
}

/// Waits until packets can be sent to `gid`.
pub(crate) fn resolve(device: &Device, gid: Gid) -> Result<(), ConnectError> {
    if gid == Gid::ZERO {
        // The core says what is wrong with it.
        return Ok(());
    }
    let engine = device.engine();
    let start = engine.now();
    loop {
        match engine.prepare(gid.ip()) {
            Reachability::Ready => return Ok(()),
            Reachability::Unreachable(reason) => return Err(ConnectError::Unreachable { gid, reason }),
            Reachability::Pending if engine.now() - start > RESOLVE => {
                return Err(ConnectError::Unreachable { gid, reason: Unreachable::NoAnswer });
            }
            Reachability::Pending => std::thread::park_timeout(PAUSE),
        }
    }
}

/// Why a queue pair was not connected or modified.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// An attribute or transition.
    #[error(transparent)]
    Modify(#[from] ModifyQpError),
    /// No way to the peer.
    #[error("{} cannot be reached: {reason}", gid.ip())]
    Unreachable {
        /// The peer.
        gid: Gid,
        /// Why.
        reason: Unreachable,
    },
}

impl ConnectError {
    /// The error number verbs would give.
    #[must_use]
    pub const fn errno(&self) -> i32 {
        match self {
            Self::Modify(error) => error.errno(),
            Self::Unreachable { reason: Unreachable::NoAnswer, .. } => libc::ETIMEDOUT,
            Self::Unreachable { reason: Unreachable::NoRoute, .. } => libc::ENETUNREACH,
            Self::Unreachable { reason: Unreachable::NoSource, .. } => libc::EADDRNOTAVAIL,
        }
    }
}
