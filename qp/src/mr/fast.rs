//! Fast registration: regions that work requests register and invalidate, in the order of the send queue.

use transport::{Access, KeyError, PdId, Via};
use wire::{LKey, RKey, VirtAddr};

use super::{Entry, Kind, MrError, MrInfo, MrTable, Region, check_access};

impl MrTable {
    /// Makes a region of `capacity` zero bytes that nobody can use before a work request registers it.
    pub(crate) fn alloc_fast(&mut self, pd: PdId, capacity: usize) -> Result<MrInfo, MrError> {
        // Asked for first, since zeroed memory, which costs nothing until it is touched, cannot be refused politely.
        Vec::<u8>::new().try_reserve_exact(capacity).map_err(|_| MrError::NoMemory(capacity))?;
        let addr = VirtAddr::new(0);
        let region = Region {
            pd,
            base: addr,
            access: Access::empty(),
            bytes: vec![0; capacity],
            length: 0,
            kind: Kind::FastFree,
            windows: 0,
        };
        let key = self.insert(Entry::Region(region))?;
        Ok(MrInfo { lkey: LKey::new(key), rkey: RKey::new(key), addr, length: capacity })
    }

    /// REG_MR (rule R-MEM-21).
    pub(super) fn fast_register(
        &mut self,
        via: Via,
        mr: LKey,
        variant: u8,
        (iova, length): (VirtAddr, u64),
        access: Access,
    ) -> Result<(), KeyError> {
        let (index, region) = self.owned_region(mr).map_err(|_| KeyError::UnknownKey)?;
        if region.pd != via.pd {
            return Err(KeyError::WrongPd);
        }
        match region.kind {
            Kind::Ordinary => return Err(KeyError::UnknownKey),
            Kind::FastValid => return Err(KeyError::NotFree),
            Kind::FastFree => {}
        }
        check_access(access).map_err(|_| KeyError::BadAccess(access.bits()))?;
        let base = if access.contains(Access::ZERO_BASED) { VirtAddr::new(0) } else { iova };
        let wraps = base.value().checked_add(length.saturating_sub(1)).is_none();
        let length = usize::try_from(length).map_err(|_| KeyError::OutOfBounds)?;
        if wraps || length > region.bytes.len() {
            return Err(KeyError::OutOfBounds);
        }
        if let Some(region) = self.region_mut(index) {
            (region.base, region.length, region.access) = (base, length, access);
            region.kind = Kind::FastValid;
        }
        self.slots[index as usize].variant = variant;
        Ok(())
    }

    /// LOCAL_INV, and the invalidation that a SEND asks for (rule R-MEM-13).
    pub(super) fn invalidate(&mut self, via: Via, rkey: RKey) -> Result<(), KeyError> {
        let index = rkey.value() >> 8;
        match self.find(rkey.value()) {
            Some(Entry::Window(_)) => self.invalidate_window(via, index),
            Some(Entry::Region(region)) => {
                let verdict = match region.kind {
                    Kind::Ordinary => Err(KeyError::NotInvalidatable),
                    _ if region.pd != via.pd => Err(KeyError::WrongPd),
                    Kind::FastFree => Err(KeyError::NotValid),
                    Kind::FastValid if region.windows > 0 => Err(KeyError::WindowsBound),
                    Kind::FastValid => Ok(()),
                };
                if verdict.is_ok()
                    && let Some(region) = self.region_mut(index)
                {
                    region.kind = Kind::FastFree;
                }
                verdict
            }
            Some(Entry::Free) | None => Err(KeyError::UnknownKey),
        }
    }
}
