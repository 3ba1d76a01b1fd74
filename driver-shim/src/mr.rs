//! Memory regions: bytes that the device owns, and that peers reach by key.

use std::ops::Range;
use std::sync::Arc;

use qp::{Access, MrError, MrInfo, Sge};
use wire::{LKey, RKey, VirtAddr};

use crate::pd::ProtectionDomain;

/// A registered memory region. Clones are the same region; it is deregistered when the last one goes.
#[derive(Clone, Debug)]
pub struct MemoryRegion {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    pd: ProtectionDomain,
    info: MrInfo,
}

impl MemoryRegion {
    pub(crate) fn new(pd: &ProtectionDomain, bytes: Vec<u8>, access: Access) -> Result<Self, MrError> {
        let info = pd.device().engine().nic().reg_mr(pd.id(), bytes, access)?;
        Ok(Self { inner: Arc::new(Inner { pd: pd.clone(), info }) })
    }

    /// Address of its first byte, as peers name it.
    #[must_use]
    pub fn addr(&self) -> VirtAddr {
        self.inner.info.addr
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.inner.info.length
    }

    /// Whether it has no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Key for own work requests.
    #[must_use]
    pub fn lkey(&self) -> LKey {
        self.inner.info.lkey
    }

    /// Key for peers.
    #[must_use]
    pub fn rkey(&self) -> RKey {
        self.inner.info.rkey
    }

    /// Address of byte `offset`, as peers name it. It is not checked: peers may be given any.
    #[must_use]
    pub fn addr_at(&self, offset: usize) -> VirtAddr {
        self.addr().wrapping_add(offset as u64)
    }

    /// A piece of the region for a work request.
    ///
    /// # Errors
    /// Where `range` is not inside, or longer than a work request can say (4 GiB).
    pub fn slice(&self, range: Range<usize>) -> Result<Sge, MrError> {
        let length = range.end.checked_sub(range.start).and_then(|length| u32::try_from(length).ok());
        match length {
            Some(length) if range.end <= self.len() => {
                Ok(Sge { addr: self.addr_at(range.start), length, lkey: self.lkey() })
            }
            _ => Err(MrError::OutOfBounds { offset: range.start, end: range.end, length: self.len() }),
        }
    }

    /// Copies `data` into the region.
    ///
    /// # Errors
    /// Where it does not fit; then nothing is copied.
    pub fn write_at(&self, offset: usize, data: &[u8]) -> Result<(), MrError> {
        let mut nic = self.inner.pd.device().engine().nic();
        nic.mr_bytes_mut(self.lkey(), offset, data.len())?.copy_from_slice(data);
        Ok(())
    }

    /// Copies out of the region.
    ///
    /// # Errors
    /// Where it is shorter; then nothing is copied.
    pub fn read_at(&self, offset: usize, out: &mut [u8]) -> Result<(), MrError> {
        let nic = self.inner.pd.device().engine().nic();
        out.copy_from_slice(nic.mr_bytes(self.lkey(), offset, out.len())?);
        Ok(())
    }

    /// A copy of a part of the region.
    ///
    /// # Errors
    /// Where `range` is not inside.
    pub fn to_vec(&self, range: Range<usize>) -> Result<Vec<u8>, MrError> {
        let Range { start: offset, end } = range;
        let len = end.checked_sub(offset).ok_or(MrError::OutOfBounds { offset, end, length: self.len() })?;
        let nic = self.inner.pd.device().engine().nic();
        Ok(nic.mr_bytes(self.lkey(), offset, len)?.to_vec())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let ended = self.pd.device().engine().nic().dereg_mr(self.info.lkey);
        debug_assert!(ended.is_ok(), "{ended:?}");
    }
}
