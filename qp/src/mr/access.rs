//! Access to memory: the one check before it, and the bytes.
//!
//! The transport and the network card ask through [`Memory`]. Nothing here makes, changes or ends a key.

use transport::{Access, AccessError, AtomicOp, KeyError, LocalOp, Memory, PdId, Via};
use wire::{LKey, RKey, VirtAddr};

use super::{Entry, Kind, MrTable, Region};

/// Where an access that was allowed begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// Slot of the region.
    pub(super) region: u32,
    /// First byte within it.
    pub(super) start: usize,
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
        self.check_peer(via, rkey, Some((va, len)), need).map(|_| ())
    }

    fn read_remote(&self, via: Via, rkey: RKey, va: VirtAddr, out: &mut [u8]) -> Result<(), AccessError> {
        let place = self.check_peer(via, rkey, Some((va, out.len() as u64)), Access::REMOTE_READ)?;
        out.copy_from_slice(self.bytes_at(place, out.len())?);
        Ok(())
    }

    fn write_remote(&mut self, via: Via, rkey: RKey, va: VirtAddr, data: &[u8]) -> Result<(), AccessError> {
        let place = self.check_peer(via, rkey, Some((va, data.len() as u64)), Access::REMOTE_WRITE)?;
        self.bytes_at_mut(place, data.len())?.copy_from_slice(data);
        Ok(())
    }

    fn atomic_remote(
        &mut self,
        via: Via,
        rkey: RKey,
        va: VirtAddr,
        op: AtomicOp,
    ) -> Result<u64, AccessError> {
        let place = self.check_peer(via, rkey, Some((va, 8)), Access::REMOTE_ATOMIC)?;
        let range = self.bytes_at_mut(place, 8)?;
        let mut word = [0; 8];
        word.copy_from_slice(range);
        let original = u64::from_ne_bytes(word);
        range.copy_from_slice(&op.apply(original).to_ne_bytes());
        Ok(original)
    }

    fn atomic_write_remote(
        &mut self,
        via: Via,
        rkey: RKey,
        va: VirtAddr,
        data: [u8; 8],
    ) -> Result<(), AccessError> {
        // The device's owner cannot look in between, so that any copy is one store.
        self.write_remote(via, rkey, va, &data)
    }

    fn flush_remote(
        &mut self,
        via: Via,
        rkey: RKey,
        range: Option<(VirtAddr, u64)>,
        need: Access,
    ) -> Result<(), AccessError> {
        // What was written is where every reader of this process looks already. Whether it outlasts a power
        // failure is for whoever gave the region FLUSH_PERSISTENT to know (rule R-RSP-61).
        self.check_peer(via, rkey, range, need).map(|_| ())
    }

    fn execute(&mut self, via: Via, op: &LocalOp) -> Result<(), KeyError> {
        match *op {
            LocalOp::Invalidate { rkey } => self.invalidate(via, rkey),
            LocalOp::Register { mr, variant, iova, length, access } => {
                self.fast_register(via, mr, variant, (iova, length), access)
            }
            LocalOp::Bind { mw, variant, mr, va, length, access } => {
                self.bind(via, (mw, variant), mr, (va, length), access)
            }
        }
    }

    fn check_local(
        &self,
        pd: PdId,
        lkey: LKey,
        va: VirtAddr,
        len: u64,
        need: Access,
    ) -> Result<(), AccessError> {
        self.check_region(pd, lkey.value(), Some((va, len)), need).map(|_| ())
    }

    fn read_local(&self, pd: PdId, lkey: LKey, va: VirtAddr, out: &mut [u8]) -> Result<(), AccessError> {
        let range = Some((va, out.len() as u64));
        let place = self.check_region(pd, lkey.value(), range, Access::empty())?;
        out.copy_from_slice(self.bytes_at(place, out.len())?);
        Ok(())
    }

    // Rule R-MEM-10.
    fn write_local(&mut self, pd: PdId, lkey: LKey, va: VirtAddr, data: &[u8]) -> Result<(), AccessError> {
        let range = Some((va, data.len() as u64));
        let place = self.check_region(pd, lkey.value(), range, Access::LOCAL_WRITE)?;
        self.bytes_at_mut(place, data.len())?.copy_from_slice(data);
        Ok(())
    }
}

impl MrTable {
    /// Rule R-MEM-3 for a region: key, domain, rights, bounds.
    fn check_region(
        &self,
        pd: PdId,
        key: u32,
        range: Option<(VirtAddr, u64)>,
        need: Access,
    ) -> Result<Place, AccessError> {
        match self.find(key) {
            Some(Entry::Region(region)) => region.check(key >> 8, pd, range, need),
            _ => Err(AccessError::UnknownKey),
        }
    }

    /// Rule R-MEM-3 for what a peer reaches: a region or a window.
    fn check_peer(
        &self,
        via: Via,
        rkey: RKey,
        range: Option<(VirtAddr, u64)>,
        need: Access,
    ) -> Result<Place, AccessError> {
        match self.find(rkey.value()) {
            Some(Entry::Region(region)) => region.check(rkey.value() >> 8, via.pd, range, need),
            Some(Entry::Window(window)) => window.check(via, range, need),
            Some(Entry::Free) | None => Err(AccessError::UnknownKey),
        }
    }

    fn bytes_at(&self, place: Place, len: usize) -> Result<&[u8], AccessError> {
        match self.slots.get(place.region as usize).map(|slot| &slot.entry) {
            Some(Entry::Region(region)) => region.bytes.get(place.start..place.start + len),
            _ => None,
        }
        .ok_or(AccessError::OutOfBounds)
    }

    fn bytes_at_mut(&mut self, place: Place, len: usize) -> Result<&mut [u8], AccessError> {
        let region = self.region_mut(place.region).ok_or(AccessError::UnknownKey)?;
        region.bytes.get_mut(place.start..place.start + len).ok_or(AccessError::OutOfBounds)
    }
}

impl Region {
    pub(super) fn check(
        &self,
        index: u32,
        pd: PdId,
        range: Option<(VirtAddr, u64)>,
        need: Access,
    ) -> Result<Place, AccessError> {
        if self.kind == Kind::FastFree {
            return Err(AccessError::UnknownKey);
        }
        if self.pd != pd {
            return Err(AccessError::WrongPd);
        }
        if !self.access.contains(need) {
            return Err(AccessError::NoRight);
        }
        let start = offset(self.base, self.length as u64, range)?;
        Ok(Place { region: index, start: usize::try_from(start).map_err(|_| AccessError::OutOfBounds)? })
    }
}

/// Where `range` begins within `size` bytes at `base`; 0 for the whole.
///
/// Rules R-MEM-4, R-MEM-7, R-MEM-8 and R-RSP-47: there is no sum of two numbers that came from outside, so nothing can
/// wrap.
pub(super) fn offset(base: VirtAddr, size: u64, range: Option<(VirtAddr, u64)>) -> Result<u64, AccessError> {
    let Some((va, len)) = range else { return Ok(0) };
    let start = va.value().checked_sub(base.value()).ok_or(AccessError::OutOfBounds)?;
    if start > size || len > size - start { Err(AccessError::OutOfBounds) } else { Ok(start) }
}
