//! XRC domains: what belongs together of XRC targets and shared receive queues.

use super::Nic;
use crate::error::DestroyError;
use crate::srq::XrcdId;

/// An XRC domain.
#[derive(Debug, Default)]
pub(super) struct Xrcd {
    /// Objects that belong to it; while there are any, it cannot be closed.
    users: u32,
}

impl Nic {
    /// Makes an XRC domain.
    pub fn alloc_xrcd(&mut self) -> XrcdId {
        XrcdId(self.xrcds.insert(Xrcd::default()))
    }

    /// Ends an XRC domain.
    ///
    /// # Errors
    /// Where it does not exist, or objects still belong to it.
    pub fn close_xrcd(&mut self, xrcd: XrcdId) -> Result<(), DestroyError> {
        match self.xrcds.get(xrcd.0) {
            None => Err(DestroyError::NoSuchObject),
            Some(Xrcd { users: 0 }) => {
                self.xrcds.remove(xrcd.0);
                Ok(())
            }
            Some(_) => Err(DestroyError::Busy),
        }
    }

    /// An object of `xrcd` was made.
    pub(super) fn join_xrcd(&mut self, xrcd: XrcdId) {
        if let Some(xrcd) = self.xrcds.get_mut(xrcd.0) {
            xrcd.users += 1;
        }
    }

    /// An object of `xrcd` has gone.
    pub(super) fn leave_xrcd(&mut self, xrcd: XrcdId) {
        if let Some(xrcd) = self.xrcds.get_mut(xrcd.0) {
            xrcd.users -= 1;
        }
    }
}
