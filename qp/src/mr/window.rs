//! Memory windows: rights for peers on part of a region, given and taken back without touching the region.

use transport::{Access, AccessError, KeyError, PdId, Via};
use wire::{LKey, Qpn, RKey, VirtAddr};

use super::access::{Place, offset};
use super::{Entry, Kind, MrError, MrTable, OPTIONAL, Slot};

/// Type of a memory window, with the numbers of verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum MwType {
    /// Bound by a verb, again and again, for every queue pair of its domain.
    Type1 = 1,
    /// Bound by a send work request for one queue pair and its domain (what the specification calls 2B; a
    /// program made for 2A, where the domain does not count, finds all it needs). Bound again only after it was
    /// invalidated. An XRC target binds none, so no peer reaches one through it.
    Type2 = 2,
}

#[derive(Debug)]
pub(super) struct Window {
    pub(super) pd: PdId,
    pub(super) mw_type: MwType,
    /// Low byte of the key of the newest binding asked for; of type 1, where the device chooses it.
    pub(super) posted: u8,
    pub(super) bound: Option<Bound>,
}

/// What a window opens on.
#[derive(Debug)]
pub(super) struct Bound {
    /// The queue pair it was bound through: the only one that may use a type 2 window.
    qpn: Qpn,
    /// Slot of the region.
    region: u32,
    /// First byte within the region.
    start: u64,
    /// Address of the first byte.
    base: VirtAddr,
    length: u64,
    access: Access,
}

impl Window {
    /// Rule R-MEM-3 for a window; of type 2, the queue pair must be its own (rule R-MEM-15).
    pub(super) fn check(
        &self,
        via: Via,
        range: Option<(VirtAddr, u64)>,
        need: Access,
    ) -> Result<Place, AccessError> {
        let bound = self.bound.as_ref().ok_or(AccessError::UnknownKey)?;
        if self.pd != via.pd {
            return Err(AccessError::WrongPd);
        }
        if self.mw_type == MwType::Type2 && bound.qpn != via.qpn {
            return Err(AccessError::WrongQp);
        }
        if !bound.access.contains(need) {
            return Err(AccessError::NoRight);
        }
        let start = bound.start + offset(bound.base, bound.length, range)?;
        let start = usize::try_from(start).map_err(|_| AccessError::OutOfBounds)?;
        Ok(Place { region: bound.region, start })
    }
}

impl MrTable {
    /// Makes a window, bound to nothing.
    pub(crate) fn alloc_window(&mut self, pd: PdId, mw_type: MwType) -> Result<RKey, MrError> {
        let key = self.insert(Entry::Window(Window { pd, mw_type, posted: 0, bound: None }))?;
        if let Some(window) = self.window_mut(key >> 8) {
            window.posted = key.to_le_bytes()[0];
        }
        Ok(RKey::new(key))
    }

    /// Ends a window, bound or not; gives its domain.
    pub(crate) fn dealloc_window(&mut self, mw: RKey) -> Result<PdId, MrError> {
        let (index, window) = self.owned_window(mw).ok_or(MrError::NoSuchWindow(mw))?;
        let pd = window.pd;
        self.unbind(index);
        self.remove(index);
        Ok(pd)
    }

    pub(crate) fn window_type(&self, mw: RKey) -> Option<MwType> {
        self.owned_window(mw).map(|(_, window)| window.mw_type)
    }

    /// Low byte of the key that the next binding of a type 1 window gives it.
    pub(crate) fn next_variant(&self, mw: RKey) -> u8 {
        self.owned_window(mw).map_or(0, |(_, window)| window.posted.wrapping_add(1))
    }

    /// A binding with this low byte was posted.
    pub(crate) fn took_variant(&mut self, mw: RKey, variant: u8) {
        if let Some((index, _)) = self.owned_window(mw)
            && let Some(window) = self.window_mut(index)
        {
            window.posted = variant;
        }
    }

    /// A queue pair has gone: its type 2 windows lead nowhere, so that another one that gets its number cannot
    /// use them (rule R-MEM-23).
    pub(crate) fn forget_qp(&mut self, qpn: Qpn) {
        for index in self.bound.remove(&qpn).unwrap_or_default() {
            self.unbind(index);
        }
    }

    /// Binds a window (rules R-MEM-15 and R-MEM-20).
    pub(super) fn bind(
        &mut self,
        via: Via,
        (mw, variant): (RKey, u8),
        mr: LKey,
        (va, length): (VirtAddr, u64),
        access: Access,
    ) -> Result<(), KeyError> {
        let (index, window) = self.owned_window(mw).ok_or(KeyError::UnknownKey)?;
        if window.pd != via.pd {
            return Err(KeyError::WrongPd);
        }
        let mw_type = window.mw_type;
        let bound = match mw_type {
            MwType::Type2 if window.bound.is_some() => return Err(KeyError::NotFree),
            MwType::Type2 if length == 0 => return Err(KeyError::Empty),
            MwType::Type1 if access.contains(Access::ZERO_BASED) => return Err(KeyError::ZeroBased),
            MwType::Type1 if length == 0 => None,
            MwType::Type1 | MwType::Type2 => Some(self.opening(via, mr, (va, length), access)?),
        };
        // A type 1 window leaves what it was bound to.
        self.unbind(index);
        self.slots[index as usize].variant = variant;
        let Some(bound) = bound else { return Ok(()) };
        if let Some(region) = self.region_mut(bound.region) {
            region.windows += 1;
        }
        if mw_type == MwType::Type2 {
            self.bound.entry(via.qpn).or_default().insert(index);
        }
        if let Some(window) = self.window_mut(index) {
            window.bound = Some(bound);
        }
        Ok(())
    }

    /// What a window on `length` bytes at `va` of region `mr` opens on, where the region allows it.
    fn opening(
        &self,
        via: Via,
        mr: LKey,
        (va, length): (VirtAddr, u64),
        access: Access,
    ) -> Result<Bound, KeyError> {
        let Some(Entry::Region(region)) = self.find(mr.value()) else { return Err(KeyError::UnknownKey) };
        if region.kind == Kind::FastFree {
            return Err(KeyError::NotValid);
        }
        if region.pd != via.pd {
            return Err(KeyError::WrongPd);
        }
        if region.access.contains(Access::ZERO_BASED) {
            return Err(KeyError::ZeroBased);
        }
        if !region.access.contains(Access::MW_BIND) {
            return Err(KeyError::NoBindRight);
        }
        let writes = access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        if writes && !region.access.contains(Access::LOCAL_WRITE) {
            return Err(KeyError::NoLocalWrite);
        }
        // Rule R-MEM-25: the region's other remote rights do not matter, a window gives its own. But who cannot have
        // the region flushed cannot through a window either.
        let flush = access & (Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT);
        let unknown = access.bits() & !Access::all().bits() & !OPTIONAL;
        if unknown != 0 || !region.access.contains(flush) {
            return Err(KeyError::BadAccess(unknown | flush.difference(region.access).bits()));
        }
        let start = offset(region.base, region.length as u64, Some((va, length)));
        let start = start.map_err(|_| KeyError::OutOfBounds)?;
        let base = if access.contains(Access::ZERO_BASED) { VirtAddr::new(0) } else { va };
        Ok(Bound { qpn: via.qpn, region: mr.value() >> 8, start, base, length, access })
    }

    /// Takes a type 2 window back (rule R-MEM-13).
    pub(super) fn invalidate_window(&mut self, via: Via, index: u32) -> Result<(), KeyError> {
        let window = self.window_mut(index).ok_or(KeyError::UnknownKey)?;
        if window.mw_type == MwType::Type1 {
            return Err(KeyError::NotInvalidatable);
        }
        if window.pd != via.pd {
            return Err(KeyError::WrongPd);
        }
        match &window.bound {
            None => return Err(KeyError::NotValid),
            Some(bound) if bound.qpn != via.qpn => return Err(KeyError::WrongQp),
            Some(_) => {}
        }
        self.unbind(index);
        Ok(())
    }

    /// Unbinds every window on the region in slot `region`.
    pub(super) fn unbind_all(&mut self, region: u32) {
        let bound_to = |slot: &Slot| match &slot.entry {
            Entry::Window(window) => window.bound.as_ref().is_some_and(|bound| bound.region == region),
            Entry::Free | Entry::Region(_) => false,
        };
        let windows: Vec<_> =
            (0..).zip(&self.slots).filter(|(_, slot)| bound_to(slot)).map(|(i, _)| i).collect();
        for index in windows {
            self.unbind(index);
        }
    }

    fn unbind(&mut self, index: u32) {
        let Some(bound) = self.window_mut(index).and_then(|window| window.bound.take()) else { return };
        if let Some(region) = self.region_mut(bound.region) {
            region.windows -= 1;
        }
        if let Some(indices) = self.bound.get_mut(&bound.qpn) {
            indices.remove(&index);
            if indices.is_empty() {
                self.bound.remove(&bound.qpn);
            }
        }
    }

    fn owned_window(&self, mw: RKey) -> Option<(u32, &Window)> {
        match self.owned(mw.value())? {
            (index, Entry::Window(window)) => Some((index, window)),
            _ => None,
        }
    }

    fn window_mut(&mut self, index: u32) -> Option<&mut Window> {
        match self.slots.get_mut(index as usize).map(|slot| &mut slot.entry) {
            Some(Entry::Window(window)) => Some(window),
            _ => None,
        }
    }
}
