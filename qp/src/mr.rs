//! Memory regions and windows: keys, rights, bounds, and the bytes themselves.
//!
//! A region owns its bytes: programs copy in and out through the device, so a peer may write at any time
//! without anyone holding a reference. Every access goes through one check (rule R-MEM-3), whether its key is
//! a region's or a window's.
//!
//! The upper 24 bits of a key are a place in one table, the lower eight change. An object's owner names it by the
//! key it was given at first; packets and work requests reach memory by the key it has at the time, which a
//! fast registration or a binding changes.

use std::collections::{BTreeSet, HashMap};

use transport::{Access, PdId};
use wire::{LKey, Qpn, RKey, VirtAddr};

use window::Window;

mod access;
mod fast;
mod window;

pub use window::MwType;

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
    /// The machine does not give so many bytes.
    #[error("{0} bytes for a region are more than there is memory")]
    NoMemory(usize),
    /// No region has this key.
    #[error("no memory region has key {0}")]
    NoSuchKey(LKey),
    /// No window has this key.
    #[error("no memory window has key {0}")]
    NoSuchWindow(RKey),
    /// Windows are bound to the region.
    #[error("{0} memory windows are bound to the region: unbind, invalidate or deallocate them first")]
    WindowsBound(u32),
    /// A region for fast registration is registered by work requests only.
    #[error("a region for fast registration is registered by REG_MR work requests only")]
    FastRegistered,
    /// The last byte would have no address.
    #[error("{length} bytes at {iova} go past the last address")]
    Wraps {
        /// Address asked for.
        iova: VirtAddr,
        /// Bytes.
        length: usize,
    },
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
            Self::TableFull | Self::NoMemory(_) => 12,
            Self::WindowsBound(_) => 16,
            _ => 22,
        }
    }
}

/// What of a region re-registration changes; `None` leaves it as it is.
#[derive(Clone, Debug, Default)]
pub struct Rereg {
    /// Another protection domain.
    pub pd: Option<PdId>,
    /// Other rights.
    pub access: Option<Access>,
    /// Other memory, at an address of the caller's choice or, with `None`, of the device's.
    pub memory: Option<(Vec<u8>, Option<VirtAddr>)>,
}

#[derive(Debug)]
struct Region {
    pd: PdId,
    /// Address of the first byte.
    base: VirtAddr,
    access: Access,
    bytes: Vec<u8>,
    /// Bytes that can be reached, from the first on: all but for fast registration.
    length: usize,
    kind: Kind,
    /// Windows bound to it.
    windows: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Registered by a verb.
    Ordinary,
    /// Made for fast registration, and not registered.
    FastFree,
    /// Registered by a work request.
    FastValid,
}

#[derive(Debug)]
enum Entry {
    Free,
    Region(Region),
    Window(Window),
}

#[derive(Debug)]
struct Slot {
    /// Low byte of the key: changes with each use of the slot, so that stale keys fail (rule R-MEM-5).
    variant: u8,
    /// Low byte of the key its owner names it by.
    name: u8,
    entry: Entry,
}

/// All regions and windows of a device.
#[derive(Debug)]
pub(crate) struct MrTable {
    /// Slot 0 is never used: no key is 0, and none of the 256 lowest is any object's (rule R-MEM-18).
    slots: Vec<Slot>,
    free: Vec<u32>,
    next_addr: u64,
    /// Type 2 windows that are bound, by queue pair.
    bound: HashMap<Qpn, BTreeSet<u32>>,
}

/// Keys hold a slot number of 24 bits.
const MAX_SLOTS: usize = 1 << 24;
/// The most keys of a device.
pub(crate) const MAX_KEYS: usize = MAX_SLOTS - 1;
const FIRST_ADDR: u64 = 0x1000_0000;
const PAGE: u64 = 4096;

impl MrTable {
    pub(crate) fn new() -> Self {
        let unused = Slot { variant: 0, name: 0, entry: Entry::Free };
        Self { slots: vec![unused], free: Vec::new(), next_addr: FIRST_ADDR, bound: HashMap::new() }
    }

    /// Registers `bytes` at `iova`; where that is `None`, at an address unlike that of any region before it, with a
    /// page between. Nothing is copied: the cost is the same for every size.
    pub(crate) fn register(
        &mut self,
        pd: PdId,
        bytes: Vec<u8>,
        iova: Option<VirtAddr>,
        access: Access,
    ) -> Result<MrInfo, MrError> {
        check_access(access)?;
        let base = self.place(bytes.len(), iova, access)?;
        let length = bytes.len();
        let region = Region { pd, base, access, bytes, length, kind: Kind::Ordinary, windows: 0 };
        let key = self.insert(Entry::Region(region))?;
        Ok(MrInfo { lkey: LKey::new(key), rkey: RKey::new(key), addr: base, length })
    }

    /// Ends a registration; gives its domain and its bytes back. Its key fails from now on (rule R-MEM-12).
    pub(crate) fn deregister(&mut self, lkey: LKey) -> Result<(PdId, Vec<u8>), MrError> {
        let (index, region) = self.owned_region(lkey)?;
        // Rule R-MEM-22.
        if region.windows > 0 {
            return Err(MrError::WindowsBound(region.windows));
        }
        match self.remove(index) {
            Entry::Region(region) => Ok((region.pd, region.bytes)),
            Entry::Free | Entry::Window(_) => Err(MrError::NoSuchKey(lkey)),
        }
    }

    /// As [`MrTable::deregister`], but windows that are bound to the region are unbound. That looks for them among all
    /// keys, and only where there are any.
    pub(crate) fn close(&mut self, lkey: LKey) -> Result<(PdId, Vec<u8>), MrError> {
        let (index, region) = self.owned_region(lkey)?;
        if region.windows > 0 {
            self.unbind_all(index);
        }
        self.deregister(lkey)
    }

    /// Changes what `change` says, under a new key; all or nothing (rule R-MEM-24). Gives the domain it was of, and the
    /// bytes that others replaced.
    pub(crate) fn reregister(
        &mut self,
        lkey: LKey,
        change: Rereg,
    ) -> Result<(MrInfo, PdId, Option<Vec<u8>>), MrError> {
        let (index, region) = self.owned_region(lkey)?;
        if region.kind != Kind::Ordinary {
            return Err(MrError::FastRegistered);
        }
        if region.windows > 0 {
            return Err(MrError::WindowsBound(region.windows));
        }
        let access = change.access.unwrap_or(region.access);
        check_access(access)?;
        let stays = change.memory.is_none()
            && access.contains(Access::ZERO_BASED) == region.access.contains(Access::ZERO_BASED);
        let (bytes, iova) = change.memory.map_or((None, None), |(bytes, iova)| (Some(bytes), iova));
        let length = bytes.as_ref().map_or(region.bytes.len(), Vec::len);
        let base = if stays { region.base } else { self.place(length, iova, access)? };
        let slot = &mut self.slots[index as usize];
        let Entry::Region(region) = &mut slot.entry else { return Err(MrError::NoSuchKey(lkey)) };
        let was = region.pd;
        region.pd = change.pd.unwrap_or(was);
        (region.access, region.base, region.length) = (access, base, length);
        let old = bytes.map(|bytes| core::mem::replace(&mut region.bytes, bytes));
        slot.variant = slot.variant.wrapping_add(1);
        slot.name = slot.variant;
        let key = key(index, slot.variant);
        Ok((MrInfo { lkey: LKey::new(key), rkey: RKey::new(key), addr: base, length }, was, old))
    }

    /// Address of the first of `length` bytes.
    fn place(&mut self, length: usize, iova: Option<VirtAddr>, access: Access) -> Result<VirtAddr, MrError> {
        if access.contains(Access::ZERO_BASED) {
            // Rule R-MEM-6.
            return Ok(VirtAddr::new(0));
        }
        if let Some(iova) = iova {
            // Rule R-MEM-19: the last byte has an address too.
            let fits = iova.value().checked_add((length as u64).saturating_sub(1)).is_some();
            return if fits { Ok(iova) } else { Err(MrError::Wraps { iova, length }) };
        }
        let base = self.next_addr;
        self.next_addr += (length as u64).div_ceil(PAGE) * PAGE + PAGE;
        Ok(VirtAddr::new(base))
    }

    /// The owner's view of a region: `len` bytes from `offset` on.
    pub(crate) fn bytes(&self, lkey: LKey, offset: usize, len: usize) -> Result<&[u8], MrError> {
        let (_, region) = self.owned_region(lkey)?;
        let end = offset.saturating_add(len);
        let length = region.bytes.len();
        region.bytes.get(offset..end).ok_or(MrError::OutOfBounds { offset, end, length })
    }

    /// As [`MrTable::bytes`], to be changed.
    pub(crate) fn bytes_mut(&mut self, lkey: LKey, offset: usize, len: usize) -> Result<&mut [u8], MrError> {
        let (index, region) = self.owned_region(lkey)?;
        let (end, length) = (offset.saturating_add(len), region.bytes.len());
        let range = match &mut self.slots[index as usize].entry {
            Entry::Region(region) => region.bytes.get_mut(offset..end),
            Entry::Free | Entry::Window(_) => None,
        };
        range.ok_or(MrError::OutOfBounds { offset, end, length })
    }

    fn insert(&mut self, entry: Entry) -> Result<u32, MrError> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.slots.len() < MAX_SLOTS => {
                self.slots.push(Slot { variant: 0, name: 0, entry: Entry::Free });
                u32::try_from(self.slots.len() - 1).map_err(|_| MrError::TableFull)?
            }
            None => return Err(MrError::TableFull),
        };
        let slot = &mut self.slots[index as usize];
        slot.variant = slot.variant.wrapping_add(1);
        slot.name = slot.variant;
        slot.entry = entry;
        Ok(key(index, slot.variant))
    }

    fn remove(&mut self, index: u32) -> Entry {
        self.free.push(index);
        core::mem::replace(&mut self.slots[index as usize].entry, Entry::Free)
    }

    /// What has the key `key` now.
    fn find(&self, key: u32) -> Option<&Entry> {
        self.slots
            .get((key >> 8) as usize)
            .filter(|slot| u32::from(slot.variant) == key & 0xFF)
            .map(|s| &s.entry)
    }

    /// What its owner names `key`, and where it is.
    fn owned(&self, key: u32) -> Option<(u32, &Entry)> {
        let index = key >> 8;
        let slot = self.slots.get(index as usize).filter(|slot| u32::from(slot.name) == key & 0xFF)?;
        Some((index, &slot.entry))
    }

    fn owned_region(&self, lkey: LKey) -> Result<(u32, &Region), MrError> {
        match self.owned(lkey.value()) {
            Some((index, Entry::Region(region))) => Ok((index, region)),
            _ => Err(MrError::NoSuchKey(lkey)),
        }
    }

    fn region_mut(&mut self, index: u32) -> Option<&mut Region> {
        match self.slots.get_mut(index as usize).map(|slot| &mut slot.entry) {
            Some(Entry::Region(region)) => Some(region),
            _ => None,
        }
    }
}

const fn key(index: u32, variant: u8) -> u32 {
    index << 8 | variant as u32
}

/// Rules R-MEM-1, R-MEM-2, R-MEM-16 and R-MEM-26.
fn check_access(access: Access) -> Result<(), MrError> {
    let unknown = access.bits() & !Access::all().bits() & !OPTIONAL;
    if unknown != 0 {
        return Err(MrError::UnknownAccess(unknown));
    }
    let remote = access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
    if remote && !access.contains(Access::LOCAL_WRITE) {
        return Err(MrError::RemoteWithoutLocal);
    }
    Ok(())
}

/// Access bits that ask for what a device need not have.
const OPTIONAL: u32 = 0x3FF0_0000;

#[cfg(test)]
mod key_tests;
#[cfg(test)]
mod tests;
