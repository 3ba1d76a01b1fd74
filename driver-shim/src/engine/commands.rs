//! Commands of the program that are more than a call of the NIC: they tell the packet path, or make events at once.

use qp::{AttrMask, BadWr, DestroyError, McastError, ModifyQpError, PostError, QpAttr, RecvWr};
use wire::{Gid, Qpn, Srqn};

use super::Engine;
use crate::mcast::AttachError;

impl Engine {
    /// Destroys a queue pair with all that is noted of it. What its peer has sent is acknowledged first.
    pub(crate) fn destroy_qp(&self, qpn: Qpn) -> Result<(), DestroyError> {
        self.pay_what_is_owed();
        let groups = self.nic().groups_of(qpn).to_vec();
        for group in groups {
            if let Err(error) = self.detach_mcast(qpn, group) {
                tracing::debug!(%error, "a membership that was there a moment ago");
            }
        }
        let mut nic = self.nic();
        let ended = nic.destroy_qp(qpn);
        self.pass_on_events(&mut nic);
        self.forget_qp(qpn);
        ended
    }

    /// Changes attributes of a queue pair. What its peer has sent before is acknowledged first.
    pub(crate) fn modify_qp(&self, qpn: Qpn, attr: &QpAttr, mask: AttrMask) -> Result<(), ModifyQpError> {
        self.pay_what_is_owed();
        self.nic().modify_qp(self.now(), qpn, attr, mask)
    }

    /// Destroys a shared receive queue with all that is noted of it.
    pub(crate) fn destroy_srq(&self, srqn: Srqn) -> Result<(), DestroyError> {
        let mut nic = self.nic();
        let ended = nic.destroy_srq(srqn);
        self.pass_on_events(&mut nic);
        self.forget_srq(srqn);
        ended
    }

    /// Makes a queue pair a member of a multicast group, and the packet path let its packets in.
    pub(crate) fn attach_mcast(&self, qpn: Qpn, group: Gid) -> Result<(), AttachError> {
        self.with_io(|io| {
            let joined = {
                let mut nic = self.nic();
                let joined = nic.has_group(group);
                nic.attach_mcast(qpn, group)?;
                joined
            };
            if !joined && let Err(error) = io.backend.join(group.ip()) {
                self.nic().detach_mcast(qpn, group)?;
                return Err(error.into());
            }
            Ok(())
        })
    }

    /// Ends a membership.
    pub(crate) fn detach_mcast(&self, qpn: Qpn, group: Gid) -> Result<(), McastError> {
        self.with_io(|io| {
            let is_left = {
                let mut nic = self.nic();
                nic.detach_mcast(qpn, group)?;
                !nic.has_group(group)
            };
            if is_left {
                io.backend.leave(group.ip());
            }
            Ok(())
        })
    }

    /// Posts a receive. That makes no packet, but on a queue pair in ERR it makes a completion.
    pub(crate) fn post_recv(&self, qpn: Qpn, wr: RecvWr) -> Result<(), PostError> {
        let mut nic = self.nic();
        let posted = nic.post_recv(self.now(), qpn, wr);
        self.pass_on_events(&mut nic);
        posted
    }

    /// Posts receives, as [`Engine::post_recv`] does one.
    pub(crate) fn post_recv_list(
        &self,
        qpn: Qpn,
        wrs: impl IntoIterator<Item = RecvWr>,
    ) -> Result<(), BadWr> {
        let mut nic = self.nic();
        let posted = nic.post_recv_list(self.now(), qpn, wrs);
        self.pass_on_events(&mut nic);
        posted
    }
}
