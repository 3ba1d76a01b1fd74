//! Memory regions: bytes that the device owns, and that peers reach by key.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use qp::{Access, MrError, MrInfo, Rereg, SendWr, Sge};
use wire::{LKey, RKey, VirtAddr};

use crate::device::Device;
use crate::pd::ProtectionDomain;

/// A registered memory region. Clones are the same region; it is deregistered when the last one goes, and windows
/// that are bound to it then open nowhere.
#[derive(Clone, Debug)]
pub struct MemoryRegion {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    device: Device,
    /// Replaced when the region is registered anew.
    now: Mutex<(ProtectionDomain, MrInfo)>,
}

impl MemoryRegion {
    pub(crate) fn new(
        pd: &ProtectionDomain,
        bytes: Vec<u8>,
        iova: Option<VirtAddr>,
        access: Access,
    ) -> Result<Self, MrError> {
        let mut nic = pd.device().engine().nic();
        let info = match iova {
            Some(iova) => nic.reg_mr_iova(pd.id(), bytes, iova, access)?,
            None => nic.reg_mr(pd.id(), bytes, access)?,
        };
        drop(nic);
        Ok(Self::of(pd, info))
    }

    fn of(pd: &ProtectionDomain, info: MrInfo) -> Self {
        Self { inner: Arc::new(Inner { device: pd.device().clone(), now: Mutex::new((pd.clone(), info)) }) }
    }

    fn info(&self) -> MrInfo {
        self.inner.now.lock().unwrap_or_else(PoisonError::into_inner).1
    }

    /// Registers it anew: in another domain, with other rights, with other memory at an address of the caller's
    /// choice or the device's; what is `None` stays. Its keys are new ones from then on, for all clones. Memory that
    /// was replaced comes back.
    ///
    /// # Errors
    /// Rights that do not go together, windows that are bound to it, a domain of another device. Then nothing has
    /// changed.
    pub fn reregister(
        &self,
        pd: Option<&ProtectionDomain>,
        access: Option<Access>,
        memory: Option<(Vec<u8>, Option<VirtAddr>)>,
    ) -> Result<Option<Vec<u8>>, MrError> {
        if pd.is_some_and(|pd| !pd.device().is(&self.inner.device)) {
            return Err(MrError::NoPd);
        }
        let mut now = self.inner.now.lock().unwrap_or_else(PoisonError::into_inner);
        let change = Rereg { pd: pd.map(ProtectionDomain::id), access, memory };
        let (info, old) = self.inner.device.engine().nic().rereg_mr(now.1.lkey, change)?;
        now.1 = info;
        if let Some(pd) = pd {
            now.0 = pd.clone();
        }
        Ok(old)
    }

    /// Address of its first byte, as peers name it.
    #[must_use]
    pub fn addr(&self) -> VirtAddr {
        self.info().addr
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.info().length
    }

    /// Whether it has no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Key for own work requests.
    #[must_use]
    pub fn lkey(&self) -> LKey {
        self.info().lkey
    }

    /// Key for peers.
    #[must_use]
    pub fn rkey(&self) -> RKey {
        self.info().rkey
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
        let info = self.info();
        let length = range.end.checked_sub(range.start).and_then(|length| u32::try_from(length).ok());
        match length {
            Some(length) if range.end <= info.length => {
                let addr = info.addr.wrapping_add(range.start as u64);
                Ok(Sge { addr, length, lkey: info.lkey })
            }
            _ => Err(MrError::OutOfBounds { offset: range.start, end: range.end, length: info.length }),
        }
    }

    /// Copies `data` into the region.
    ///
    /// # Errors
    /// Where it does not fit; then nothing is copied.
    pub fn write_at(&self, offset: usize, data: &[u8]) -> Result<(), MrError> {
        let lkey = self.lkey();
        let mut nic = self.inner.device.engine().nic();
        nic.mr_bytes_mut(lkey, offset, data.len())?.copy_from_slice(data);
        Ok(())
    }

    /// Copies out of the region.
    ///
    /// # Errors
    /// Where it is shorter; then nothing is copied.
    pub fn read_at(&self, offset: usize, out: &mut [u8]) -> Result<(), MrError> {
        let lkey = self.lkey();
        let nic = self.inner.device.engine().nic();
        out.copy_from_slice(nic.mr_bytes(lkey, offset, out.len())?);
        Ok(())
    }

    /// A copy of a part of the region.
    ///
    /// # Errors
    /// Where `range` is not inside.
    pub fn to_vec(&self, range: Range<usize>) -> Result<Vec<u8>, MrError> {
        let Range { start: offset, end } = range;
        let len = end.checked_sub(offset).ok_or(MrError::OutOfBounds { offset, end, length: self.len() })?;
        let lkey = self.lkey();
        let nic = self.inner.device.engine().nic();
        Ok(nic.mr_bytes(lkey, offset, len)?.to_vec())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let (_, info) = self.now.get_mut().unwrap_or_else(PoisonError::into_inner);
        let ended = self.device.engine().nic().close_mr(info.lkey);
        debug_assert!(ended.is_ok(), "{ended:?}");
    }
}

/// A region for fast registration: work requests of a queue pair give it an address, a length, rights and a key, and
/// take them back, in the order of its send queue. Clones are the same region.
///
/// ```
/// # use ferroce_driver_shim as driver_shim;
/// # fn example(pd: &driver_shim::ProtectionDomain, qp: &driver_shim::QueuePair) -> Result<(), Box<dyn std::error::Error>> {
/// use qp::{Access, SendWr};
///
/// let region = pd.alloc_mr(1 << 20)?;
/// region.write_at(0, b"for the peer to read")?;
/// qp.post_send(region.register(1, 7, wire::VirtAddr::new(0x1000), 20, Access::REMOTE_READ))?;
/// let key = region.rkey(7); // what to tell the peer once that has completed
/// // A peer may give it back with a SEND with invalidate; or so:
/// qp.post_send(SendWr::local_inv(2, key).fenced())?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct FastRegion {
    region: MemoryRegion,
}

impl FastRegion {
    pub(crate) fn new(pd: &ProtectionDomain, capacity: usize) -> Result<Self, MrError> {
        let info = pd.device().engine().nic().alloc_mr(pd.id(), capacity)?;
        Ok(Self { region: MemoryRegion::of(pd, info) })
    }

    /// Bytes it can be registered for.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.region.len()
    }

    /// Key for peers once it is registered as `variant`.
    #[must_use]
    pub fn rkey(&self, variant: u8) -> RKey {
        self.region.rkey().with_variant(variant)
    }

    /// Key for own work requests once it is registered as `variant`.
    #[must_use]
    pub fn lkey(&self, variant: u8) -> LKey {
        LKey::new(self.rkey(variant).value())
    }

    /// The work request that registers its first `length` bytes at `iova`; its key gets the low byte `variant`.
    #[must_use]
    pub fn register(&self, wr_id: u64, variant: u8, iova: VirtAddr, length: u64, access: Access) -> SendWr {
        SendWr::reg_mr(wr_id, self.region.lkey(), variant, iova, length, access)
    }

    /// Copies `data` into the region, registered or not.
    ///
    /// # Errors
    /// Where it does not fit; then nothing is copied.
    pub fn write_at(&self, offset: usize, data: &[u8]) -> Result<(), MrError> {
        self.region.write_at(offset, data)
    }

    /// A copy of a part of the region.
    ///
    /// # Errors
    /// Where `range` is not inside.
    pub fn to_vec(&self, range: Range<usize>) -> Result<Vec<u8>, MrError> {
        self.region.to_vec(range)
    }
}
