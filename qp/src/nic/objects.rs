//! Verbs objects other than queue pairs and completion queues: protection domains, regions, address handles.

use transport::{Access, PdId};
use wire::{LKey, Qpn, RKey, VirtAddr};

use super::Nic;
use crate::error::{DestroyError, ModifyQpError};
use crate::mr::{MrError, MrInfo, MwType, Rereg};
use crate::state::{AddressVector, QpType};
use crate::wr::AhId;

/// A protection domain.
#[derive(Debug, Default)]
pub(super) struct Pd {
    /// Objects that belong to it; while there are any, it cannot be deallocated.
    users: u32,
}

impl Nic {
    /// Makes a protection domain.
    pub fn alloc_pd(&mut self) -> PdId {
        PdId(self.pds.insert(Pd::default()))
    }

    /// Ends a protection domain.
    ///
    /// # Errors
    /// Where it does not exist, or objects still belong to it.
    pub fn dealloc_pd(&mut self, pd: PdId) -> Result<(), DestroyError> {
        match self.pds.get(pd.0) {
            None => Err(DestroyError::NoSuchObject),
            Some(Pd { users: 0 }) => {
                self.pds.remove(pd.0);
                Ok(())
            }
            Some(_) => Err(DestroyError::Busy),
        }
    }

    pub(super) fn has_pd(&self, pd: PdId) -> bool {
        self.pds.get(pd.0).is_some()
    }

    /// An object of `pd` was made.
    pub(super) fn join_pd(&mut self, pd: PdId) {
        if let Some(pd) = self.pds.get_mut(pd.0) {
            pd.users += 1;
        }
    }

    /// An object of `pd` has gone.
    pub(super) fn leave_pd(&mut self, pd: PdId) {
        if let Some(pd) = self.pds.get_mut(pd.0) {
            pd.users -= 1;
        }
    }

    /// Registers memory; the NIC owns its bytes until it is deregistered.
    ///
    /// # Errors
    /// Rights that do not go together, no such domain, or no key left.
    pub fn reg_mr(&mut self, pd: PdId, bytes: Vec<u8>, access: Access) -> Result<MrInfo, MrError> {
        if !self.has_pd(pd) {
            return Err(MrError::NoPd);
        }
        let info = self.memory.register(pd, bytes, None, access)?;
        self.join_pd(pd);
        Ok(info)
    }

    /// As [`Nic::reg_mr`], with the first byte at `iova` for work requests and peers.
    ///
    /// # Errors
    /// As [`Nic::reg_mr`], and where the last byte would have no address.
    pub fn reg_mr_iova(
        &mut self,
        pd: PdId,
        bytes: Vec<u8>,
        iova: VirtAddr,
        access: Access,
    ) -> Result<MrInfo, MrError> {
        if !self.has_pd(pd) {
            return Err(MrError::NoPd);
        }
        let info = self.memory.register(pd, bytes, Some(iova), access)?;
        self.join_pd(pd);
        Ok(info)
    }

    /// Makes a region of `capacity` zero bytes for fast registration: nobody can use it before a REG_MR work
    /// request gives it an address, a length, rights and a key. The key given here names it in that work request
    /// and for [`Nic::dereg_mr`], [`Nic::mr_bytes`] and [`Nic::mr_bytes_mut`].
    ///
    /// # Errors
    /// No such domain, or no key left.
    pub fn alloc_mr(&mut self, pd: PdId, capacity: usize) -> Result<MrInfo, MrError> {
        if !self.has_pd(pd) {
            return Err(MrError::NoPd);
        }
        let info = self.memory.alloc_fast(pd, capacity)?;
        self.join_pd(pd);
        Ok(info)
    }

    /// Changes a registration: what it gives back is valid from now on, and the old key no more. Memory that was
    /// replaced comes back.
    ///
    /// # Errors
    /// Where no region has this key, it is one for fast registration, windows are bound to it, or what it would
    /// become cannot be registered. Then nothing has changed.
    pub fn rereg_mr(&mut self, lkey: LKey, change: Rereg) -> Result<(MrInfo, Option<Vec<u8>>), MrError> {
        if change.pd.is_some_and(|pd| !self.has_pd(pd)) {
            return Err(MrError::NoPd);
        }
        let pd = change.pd;
        let (info, was, old) = self.memory.reregister(lkey, change)?;
        self.join_pd(pd.unwrap_or(was));
        self.leave_pd(was);
        Ok((info, old))
    }

    /// Makes a memory window, bound to nothing. The key given here names it for [`Nic::dealloc_mw`] and in work
    /// requests; for peers, it is the key's low byte that a binding changes.
    ///
    /// # Errors
    /// No such domain, or no key left.
    pub fn alloc_mw(&mut self, pd: PdId, mw_type: MwType) -> Result<RKey, MrError> {
        if !self.has_pd(pd) {
            return Err(MrError::NoPd);
        }
        let key = self.memory.alloc_window(pd, mw_type)?;
        self.join_pd(pd);
        Ok(key)
    }

    /// Ends a memory window. Its key fails from now on.
    ///
    /// # Errors
    /// Where no window has this key.
    pub fn dealloc_mw(&mut self, mw: RKey) -> Result<(), MrError> {
        let pd = self.memory.dealloc_window(mw)?;
        self.leave_pd(pd);
        Ok(())
    }

    /// Ends a registration and gives the bytes back. Its key fails from now on, also for READs being answered.
    ///
    /// # Errors
    /// Where no region has this key, or windows are bound to it.
    pub fn dereg_mr(&mut self, lkey: LKey) -> Result<Vec<u8>, MrError> {
        let (pd, bytes) = self.memory.deregister(lkey)?;
        self.leave_pd(pd);
        Ok(bytes)
    }

    /// As [`Nic::dereg_mr`], for owners that cannot wait: windows that are bound to the region are unbound.
    ///
    /// # Errors
    /// Where no region has this key.
    pub fn close_mr(&mut self, lkey: LKey) -> Result<Vec<u8>, MrError> {
        let (pd, bytes) = self.memory.close(lkey)?;
        self.leave_pd(pd);
        Ok(bytes)
    }

    /// Bytes of a region.
    ///
    /// # Errors
    /// Where no region has this key, or the range is not inside.
    pub fn mr_bytes(&self, lkey: LKey, offset: usize, len: usize) -> Result<&[u8], MrError> {
        self.memory.bytes(lkey, offset, len)
    }

    /// Bytes of a region, to be changed by their owner.
    ///
    /// # Errors
    /// As [`Nic::mr_bytes`].
    pub fn mr_bytes_mut(&mut self, lkey: LKey, offset: usize, len: usize) -> Result<&mut [u8], MrError> {
        self.memory.bytes_mut(lkey, offset, len)
    }

    /// Makes an address handle: where datagrams can be sent.
    ///
    /// # Errors
    /// An address that no packet can go to.
    pub fn create_ah(&mut self, pd: PdId, addr: AddressVector) -> Result<AhId, ModifyQpError> {
        if !self.has_pd(pd) {
            return Err(ModifyQpError::NoPd);
        }
        self.route(QpType::Ud, [Qpn::GSI; 2], &addr)?;
        self.join_pd(pd);
        Ok(AhId(self.ahs.insert((pd, addr))))
    }

    /// Ends an address handle. Datagrams that were posted still go there.
    ///
    /// # Errors
    /// Where it does not exist.
    pub fn destroy_ah(&mut self, ah: AhId) -> Result<(), DestroyError> {
        let (pd, _) = self.ahs.remove(ah.0).ok_or(DestroyError::NoSuchObject)?;
        self.leave_pd(pd);
        Ok(())
    }
}
