//! Multicast groups: which queue pairs of datagrams get a copy of what is sent to a group.
//!
//! The owner of the device sees to it that packets to the groups of [`Nic::has_group`] arrive at all.

use std::collections::{BTreeMap, BTreeSet};

use transport::DropReason;
use wire::batch::HeaderKnowledge;
use wire::{Gid, Instant, Packet, Qpn};

use super::Nic;
use crate::demux;
use crate::error::McastError;
use crate::state::QpType;

/// The members of every group that has any.
#[derive(Debug, Default)]
pub(super) struct Groups(BTreeMap<Gid, BTreeSet<Qpn>>);

impl Nic {
    /// Makes a queue pair of datagrams a member of a group: from now on it takes what is sent to queue pair 0xFFFFFF
    /// at `group` and carries its queue key. To be a member already is fine. The device's own datagrams do not come
    /// back to it (rule R-ADM-16).
    ///
    /// # Errors
    /// Where it cannot be.
    pub fn attach_mcast(&mut self, qpn: Qpn, group: Gid) -> Result<(), McastError> {
        let pair = self.qps.get_mut(qpn).ok_or(McastError::NoSuchQp)?;
        // Rule R-QPS-28.
        if pair.init.qp_type != QpType::Ud {
            return Err(McastError::QpType(pair.init.qp_type));
        }
        // Rule R-ADR-22.
        if !group.is_multicast() {
            return Err(McastError::NotAGroup(group));
        }
        if !self.config.gids.iter().any(|own| *own != Gid::ZERO && own.is_v4() == group.is_v4()) {
            return Err(McastError::Family(group));
        }
        if !pair.groups.contains(&group) {
            pair.groups.push(group);
            self.groups.0.entry(group).or_default().insert(qpn);
        }
        Ok(())
    }

    /// Ends a membership.
    ///
    /// # Errors
    /// Where there is none.
    pub fn detach_mcast(&mut self, qpn: Qpn, group: Gid) -> Result<(), McastError> {
        let pair = self.qps.get_mut(qpn).ok_or(McastError::NoSuchQp)?;
        let at = pair.groups.iter().position(|member| *member == group);
        pair.groups.swap_remove(at.ok_or(McastError::NotAttached(group))?);
        if let Some(members) = self.groups.0.get_mut(&group) {
            members.remove(&qpn);
            if members.is_empty() {
                self.groups.0.remove(&group);
            }
        }
        Ok(())
    }

    /// Whether any queue pair is a member of `group`.
    #[must_use]
    pub fn has_group(&self, group: Gid) -> bool {
        self.groups.0.contains_key(&group)
    }

    /// The groups that a queue pair is a member of.
    #[must_use]
    pub fn groups_of(&self, qpn: Qpn) -> &[Gid] {
        self.qps.get(qpn).map_or(&[], |pair| &pair.groups)
    }

    /// Gives a copy of a packet to each member of its group that it is for (rule R-ADM-12). It counts as taken where
    /// one of them takes it.
    pub(super) fn dispatch_group(
        &mut self,
        now: Instant,
        knowledge: HeaderKnowledge,
        packet: &Packet<'_>,
    ) -> Result<(), DropReason> {
        let members = self.groups.0.get(&packet.net.dst_gid()).ok_or(DropReason::NoSuchQp)?;
        if self.config.gids.contains(&packet.net.src_gid()) {
            // Rule R-ADM-16: it has come back to its sender.
            return Err(DropReason::WrongAddress);
        }
        let mut refused = DropReason::NoSuchQp;
        let is_for = |qpn: &Qpn| {
            let Some(pair) = self.qps.get(*qpn) else { return false };
            demux::admit(pair, &self.config.gids, packet).map_err(|reason| refused = reason).is_ok()
        };
        let takers: Vec<Qpn> = members.iter().copied().filter(is_for).collect();
        if takers.is_empty() {
            return Err(refused);
        }
        demux::check_icrc(packet, knowledge, &mut self.out.counters)?;
        // Its mark is not answered: there is no sender whose rate one of many paths should set (rule R-CNP-4).
        self.note_admitted(now, packet);
        let results: Vec<_> = takers.into_iter().map(|qpn| self.give(now, packet, qpn)).collect();
        results.into_iter().reduce(Result::or).unwrap_or(Err(refused))
    }
}
