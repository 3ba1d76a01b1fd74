//! Memory regions: keys, rights, bounds, and the bytes themselves.
//!
//! A region owns its bytes: programs copy in and out through the device, so a peer may write at any time
//! without anyone holding a reference. Every access goes through one check (rule R-MEM-3).

use transport::{Access, AccessError, AtomicOp, Memory, PdId, Via};
use wire::{LKey, RKey, VirtAddr};

/// What registration gives back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MrInfo {
    /// Key for local use.
    pub lkey: LKey,
    /// Key for peers.
    pub rkey: RKey,
    /// Address of the first byte.
    pub addr: VirtAddr,
    /// Bytes.
    pub length: usize,
}

/// Why memory was not registered or touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MrError {
    /// Remote write or atomic rights need the local write right.
    #[error("REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE")]
    RemoteWithoutLocal,
    /// A right this device does not give.
    #[error("access flags {0:#x} are not supported")]
    UnknownAccess(u32),
    /// There is no such protection domain.
    #[error("there is no such protection domain")]
    NoPd,
    /// The key table is full.
    #[error("the device has no memory key left")]
    TableFull,
    /// No region has this key.
    #[error("no memory region has key {0}")]
    NoSuchKey(LKey),
    /// The range is not inside the region.
    #[error("the range {offset}..{end} is not inside the region of {length} bytes")]
    OutOfBounds {
        /// First byte.
        offset: usize,
        /// One past the last byte.
        end: usize,
        /// Bytes of the region.
        length: usize,
    },
}

impl MrError {
    /// The error number verbs would give.
    #[must_use]
    pub const fn errno(&self) -> i32 {
        match self {
            Self::TableFull => 12,
            _ => 22,
        }
    }
}

#[derive(Debug)]
struct Region {
    pd: PdId,
    base: VirtAddr,
    access: Access,
    bytes: Vec<u8>,
}

#[derive(Debug, Default)]
struct Slot {
    /// Low byte of the key: changes with each use of the slot, so that stale keys fail (rule R-MEM-5).
    variant: u8,
    region: Option<Region>,
}

/// All regions of a device.
#[derive(Debug)]
pub(crate) struct MrTable {
    /// Slot 0 is never used: no key is 0.
    slots: Vec<Slot>,
    free: Vec<usize>,
    next_addr: u64,
}

/// Keys hold a slot number of 24 bits.
const MAX_SLOTS: usize = 1 << 24;
/// The most keys of a device.
pub(crate) const MAX_KEYS: usize = MAX_SLOTS - 1;
const FIRST_ADDR: u64 = 0x1000_0000;
const PAGE: u64 = 4096;

impl MrTable {
    pub(crate) fn new() -> Self {
        Self { slots: vec![Slot::default()], free: Vec::new(), next_addr: FIRST_ADDR }
    }

    /// Registers `bytes`. Its address is unlike that of any region before it, with a page between.
    pub(crate) fn register(&mut self, pd: PdId, bytes: Vec<u8>, access: Access) -> Result<MrInfo, MrError> {
        check_access(access)?;
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.slots.len() < MAX_SLOTS => {
                self.slots.push(Slot::default());
                self.slots.len() - 1
            }
            None => return Err(MrError::TableFull),
        };
        let length = bytes.len();
        // Rule R-MEM-6.
        let base = VirtAddr::new(if access.contains(Access::ZERO_BASED) { 0 } else { self.next_addr });
        self.next_addr += (length as u64).div_ceil(PAGE) * PAGE + PAGE;
        let slot = &mut self.slots[index];
        slot.variant = slot.variant.wrapping_add(1);
        slot.region = Some(Region { pd, base, access, bytes });
        let key = u32::try_from(index).unwrap_or(0) << 8 | u32::from(slot.variant);
        Ok(MrInfo { lkey: LKey::new(key), rkey: RKey::new(key), addr: base, length })
    }

    /// Ends a registration; gives its domain and its bytes back. Its key fails from now on (rule R-MEM-12).
    pub(crate) fn deregister(&mut self, lkey: LKey) -> Result<(PdId, Vec<u8>), MrError> {
        self.region(lkey.value()).ok_or(MrError::NoSuchKey(lkey))?;
        let index = (lkey.value() >> 8) as usize;
        let region = self.slots[index].region.take().ok_or(MrError::NoSuchKey(lkey))?;
        self.free.push(index);
        Ok((region.pd, region.bytes))
    }

    /// The owner's view of a region: `len` bytes from `offset` on.
    pub(crate) fn bytes(&self, lkey: LKey, offset: usize, len: usize) -> Result<&[u8], MrError> {
        let region = self.region(lkey.value()).ok_or(MrError::NoSuchKey(lkey))?;
        let end = offset.saturating_add(len);
        let length = region.bytes.len();
        region.bytes.get(offset..end).ok_or(MrError::OutOfBounds { offset, end, length })
    }

    /// As [`MrTable::bytes`], to be changed.
    pub(crate) fn bytes_mut(&mut self, lkey: LKey, offset: usize, len: usize) -> Result<&mut [u8], MrError> {
        let end = offset.saturating_add(len);
        let length = self.bytes(lkey, 0, 0).map(|_| self.length(lkey))?;
        let region = self.region_mut(lkey.value()).ok_or(MrError::NoSuchKey(lkey))?;
        region.bytes.get_mut(offset..end).ok_or(MrError::OutOfBounds { offset, end, length })
    }

    fn length(&self, lkey: LKey) -> usize {
        self.region(lkey.value()).map_or(0, |region| region.bytes.len())
    }

    fn region(&self, key: u32) -> Option<&Region> {
        let slot = self.slots.get((key >> 8) as usize)?;
        slot.region.as_ref().filter(|_| u32::from(slot.variant) == key & 0xFF)
    }

    fn region_mut(&mut self, key: u32) -> Option<&mut Region> {
        let slot = self.slots.get_mut((key >> 8) as usize)?;
        slot.region.as_mut().filter(|_| u32::from(slot.variant) == key & 0xFF)
    }

    /// Rule R-MEM-3: key, domain, rights, bounds; the start of the range as an index into the bytes.
    fn check(
        &self,
        pd: PdId,
        key: u32,
        va: VirtAddr,
        len: u64,
        need: Access,
    ) -> Result<(&Region, usize), AccessError> {
        let region = self.region(key).ok_or(AccessError::UnknownKey)?;
        if region.pd != pd {
            return Err(AccessError::WrongPd);
        }
        if !region.access.contains(need) {
            return Err(AccessError::NoRight);
        }
        // Rules R-MEM-4, R-MEM-7, R-MEM-8 and R-RSP-47: no sum of two numbers that came from outside, so nothing can
        // wrap.
        let size = region.bytes.len() as u64;
        let start = va.value().checked_sub(region.base.value()).ok_or(AccessError::OutOfBounds)?;
        if start > size || len > size - start {
            return Err(AccessError::OutOfBounds);
        }
        Ok((region, usize::try_from(start).map_err(|_| AccessError::OutOfBounds)?))
    }

    fn read(
        &self,
        pd: PdId,
        key: u32,
        va: VirtAddr,
        need: Access,
        out: &mut [u8],
    ) -> Result<(), AccessError> {
        let (region, start) = self.check(pd, key, va, out.len() as u64, need)?;
        out.copy_from_slice(&region.bytes[start..start + out.len()]);
        Ok(())
    }

    fn range_mut(
        &mut self,
        pd: PdId,
        key: u32,
        va: VirtAddr,
        need: Access,
        len: usize,
    ) -> Result<&mut [u8], AccessError> {
        let (_, start) = self.check(pd, key, va, len as u64, need)?;
        let region = self.region_mut(key).ok_or(AccessError::UnknownKey)?;
        Ok(&mut region.bytes[start..start + len])
    }
}

/// Rules R-MEM-1, R-MEM-2 and R-MEM-16.
fn check_access(access: Access) -> Result<(), MrError> {
    const OPTIONAL: u32 = 0x3FF0_0000;
    let known = Access::LOCAL_WRITE
        | Access::REMOTE_WRITE
        | Access::REMOTE_READ
        | Access::REMOTE_ATOMIC
        | Access::ZERO_BASED;
    let unknown = access.bits() & !known.bits() & !OPTIONAL;
    if unknown != 0 {
        return Err(MrError::UnknownAccess(unknown));
    }
    let remote = access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
    if remote && !access.contains(Access::LOCAL_WRITE) {
        return Err(MrError::RemoteWithoutLocal);
    }
    Ok(())
}

impl Memory for MrTable {
    fn check_remote(
        &self,
        via: Via,
        rkey: RKey,
        va: VirtAddr,
        len: u64,
        need: Access,
    ) -> Result<(), AccessError> {
        self.check(via.pd, rkey.value(), va, len, need).map(|_| ())
    }

    fn read_remote(&self, via: Via, rkey: RKey, va: VirtAddr, out: &mut [u8]) -> Result<(), AccessError> {
        self.read(via.pd, rkey.value(), va, Access::REMOTE_READ, out)
    }

    fn write_remote(&mut self, via: Via, rkey: RKey, va: VirtAddr, data: &[u8]) -> Result<(), AccessError> {
        let range = self.range_mut(via.pd, rkey.value(), va, Access::REMOTE_WRITE, data.len())?;
        range.copy_from_slice(data);
        Ok(())
    }

    fn atomic_remote(
        &mut self,
        via: Via,
        rkey: RKey,
        va: VirtAddr,
        op: AtomicOp,
    ) -> Result<u64, AccessError> {
        let range = self.range_mut(via.pd, rkey.value(), va, Access::REMOTE_ATOMIC, 8)?;
        let mut word = [0; 8];
        word.copy_from_slice(range);
        let original = u64::from_ne_bytes(word);
        range.copy_from_slice(&op.apply(original).to_ne_bytes());
        Ok(original)
    }

    fn check_local(
        &self,
        pd: PdId,
        lkey: LKey,
        va: VirtAddr,
        len: u64,
        need: Access,
    ) -> Result<(), AccessError> {
        self.check(pd, lkey.value(), va, len, need).map(|_| ())
    }

    fn read_local(&self, pd: PdId, lkey: LKey, va: VirtAddr, out: &mut [u8]) -> Result<(), AccessError> {
        self.read(pd, lkey.value(), va, Access::empty(), out)
    }

    // Rule R-MEM-10.
    fn write_local(&mut self, pd: PdId, lkey: LKey, va: VirtAddr, data: &[u8]) -> Result<(), AccessError> {
        let range = self.range_mut(pd, lkey.value(), va, Access::LOCAL_WRITE, data.len())?;
        range.copy_from_slice(data);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
