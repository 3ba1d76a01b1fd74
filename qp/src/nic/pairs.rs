//! Queue pairs of the device: made, modified, asked about, ended.

use wire::{Gid, Instant, NetHeader, Qpn, ip};

use super::{MAX_RD_ATOMIC, Nic};
use crate::cq::CqId;
use crate::error::{CreateError, DestroyError, ModifyQpError};
use crate::pair::{QpInit, QueuePair};
use crate::state::{AddressVector, AttrMask, ModifyLimits, QpAttr, QpState, QpType};
use crate::wr::QpCap;

impl Nic {
    /// Makes a queue pair in RESET.
    ///
    /// # Errors
    /// What of `init` is not possible.
    pub fn create_qp(&mut self, init: QpInit) -> Result<Qpn, CreateError> {
        let init = init.normalized();
        self.check_init(&init)?;
        let make = |qpn| QueuePair::new(qpn, init, &self.config);
        let qpn = if init.qp_type == QpType::Gsi {
            self.qps.insert_gsi(make).ok_or(CreateError::GsiTaken)?
        } else {
            self.qps.insert(make).ok_or(CreateError::TableFull)?
        };
        for cq in [init.send_cq, init.recv_cq] {
            self.join_cq(cq, qpn);
        }
        self.join_pd(init.pd);
        if let Some(srq) = init.srq.and_then(|srqn| self.srqs.get_mut(srqn)) {
            srq.users += 1;
        }
        if let Some(xrcd) = init.xrcd {
            self.join_xrcd(xrcd);
        }
        Ok(qpn)
    }

    fn check_init(&self, init: &QpInit) -> Result<(), CreateError> {
        let (target, initiator) = (init.qp_type == QpType::XrcTgt, init.qp_type == QpType::XrcIni);
        if !target && !self.has_pd(init.pd) {
            return Err(CreateError::NoPd);
        }
        if !init.cap.fits(&QpCap::MAX) {
            return Err(CreateError::Cap { max: QpCap::MAX });
        }
        let lacks = |cq: CqId| self.cqs.get(cq.0).is_none();
        if !target && lacks(init.send_cq) || !target && !initiator && lacks(init.recv_cq) {
            return Err(CreateError::NoCq);
        }
        if target && init.xrcd.is_none_or(|xrcd| self.xrcds.get(xrcd.0).is_none()) {
            return Err(CreateError::NoXrcd);
        }
        match init.srq.map(|srqn| self.srqs.get(srqn)) {
            None => Ok(()),
            Some(_) if target || initiator => Err(CreateError::XrcReceives),
            Some(None) => Err(CreateError::NoSrq),
            Some(Some(srq)) if srq.xrc.is_some() => Err(CreateError::XrcSrq),
            Some(Some(_)) => Ok(()),
        }
    }

    /// Changes attributes of a queue pair, and its state where the mask says so.
    ///
    /// # Errors
    /// Why not; then nothing has changed.
    pub fn modify_qp(
        &mut self,
        now: Instant,
        qpn: Qpn,
        attr: &QpAttr,
        mask: AttrMask,
    ) -> Result<(), ModifyQpError> {
        let limits = self.modify_limits();
        let pair = self.qps.get(qpn).ok_or(ModifyQpError::NoSuchQp)?;
        let from = pair.state();
        let merged = pair.attr.modified(pair.init.qp_type, attr, mask, &limits)?;
        if mask.contains(AttrMask::AV) && merged.addr.dgid.is_multicast() {
            return Err(ModifyQpError::Multicast(merged.addr.dgid));
        }
        let net = if mask.intersects(AttrMask::AV | AttrMask::DEST_QPN) && merged.state != QpState::Reset {
            Some(self.route(pair.init.qp_type, [qpn, merged.dest_qpn], &merged.addr)?)
        } else {
            None
        };
        if merged.state == QpState::Err {
            self.enter_error(now, qpn);
        } else if let Some(pair) = self.qps.get_mut(qpn) {
            pair.apply(merged, net, &self.config);
        }
        self.settle(now, qpn);
        if merged.state == QpState::Reset
            && let Some(init) = self.qps.get(qpn).map(|pair| pair.init)
        {
            self.forget_completions(qpn, &init);
        }
        self.trace_state(now, qpn, from, merged.state);
        Ok(())
    }

    /// The largest attribute values.
    #[must_use]
    pub fn modify_limits(&self) -> ModifyLimits {
        ModifyLimits {
            active_mtu: self.config.active_mtu,
            max_rd_atomic: MAX_RD_ATOMIC,
            max_dest_rd_atomic: MAX_RD_ATOMIC,
            gid_table_len: self.config.gids.len(),
            pkey_table_len: 1,
            ports: 1,
        }
    }

    /// Numbers of all queue pairs.
    pub fn qpns(&self) -> impl Iterator<Item = Qpn> {
        self.qps.iter().map(|pair| pair.qpn)
    }

    /// Attributes as they were configured, and the state it is in (rule R-QPS-16).
    #[must_use]
    pub fn query_qp(&self, qpn: Qpn) -> Option<(QpAttr, QpInit)> {
        self.qps.get(qpn).map(|pair| (pair.attr, pair.init))
    }

    /// Ends a queue pair; its completions that were not polled go with it. Those of an XRC target stay, in the
    /// queues of the shared receive queues it used.
    ///
    /// # Errors
    /// Where it does not exist, or is a member of a multicast group.
    pub fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), DestroyError> {
        // Rule R-QPS-28.
        if !self.groups_of(qpn).is_empty() {
            return Err(DestroyError::Busy);
        }
        let mut pair = self.qps.remove(qpn).ok_or(DestroyError::NoSuchObject)?;
        self.credit.count(&mut pair.held, 0);
        self.end_turn(qpn);
        if let Some((_, id)) = pair.timer {
            self.timers.remove(id);
        }
        self.memory.forget_qp(qpn);
        self.forget_completions(qpn, &pair.init);
        for cq in [pair.init.send_cq, pair.init.recv_cq] {
            self.leave_cq(cq, qpn);
        }
        self.leave_pd(pair.init.pd);
        if let Some(srq) = pair.init.srq.and_then(|srqn| self.srqs.get_mut(srqn)) {
            srq.users -= 1;
        }
        if let Some(xrcd) = pair.init.xrcd {
            self.leave_xrcd(xrcd);
        }
        Ok(())
    }

    /// Takes completions that nobody polled out of the queues of a queue pair (rule R-CQE-15).
    fn forget_completions(&mut self, qpn: Qpn, init: &QpInit) {
        for cq in [init.send_cq, init.recv_cq] {
            if let Some(queue) = self.cqs.get_mut(cq.0) {
                queue.forget(qpn);
            }
        }
    }

    /// Header of the packets of a connection, answers included: one source port (rule R-REQ-40), from the address
    /// that the peer knows (rule R-ADR-14).
    pub(super) fn route(
        &self,
        qp_type: QpType,
        [qpn, dest]: [Qpn; 2],
        addr: &AddressVector,
    ) -> Result<NetHeader, ModifyQpError> {
        let AddressVector { dgid, sgid_index, hop_limit, traffic_class, flow_label, .. } = *addr;
        let sgid = self.config.gids.get(usize::from(sgid_index)).copied().unwrap_or(Gid::ZERO);
        // Rule R-ADR-16.
        if sgid == Gid::ZERO {
            return Err(ModifyQpError::EmptyGid(sgid_index));
        }
        if dgid == Gid::ZERO {
            return Err(ModifyQpError::NoDestination);
        }
        // Rule R-ADR-6.
        let of_qpn = self.config.profile.behaviour().datagram_port_of_qpn && !qp_type.is_connected();
        let port = self.config.caps.src_port.unwrap_or_else(|| {
            if of_qpn {
                ip::source_port_of_qpn(qpn.value())
            } else {
                ip::source_port(flow_label, qpn.value(), dest.value())
            }
        });
        // Rule R-ADR-13: a hop limit of 0 or 1 would not pass a router.
        let hops = if hop_limit < 2 { 64 } else { hop_limit };
        let traffic_class = if self.config.marks_ect(qp_type, traffic_class) {
            dcqcn::data_traffic_class(traffic_class)
        } else {
            traffic_class
        };
        NetHeader::v2(sgid.ip(), dgid.ip(), port, traffic_class, hops)
            .ok_or(ModifyQpError::Family { sgid, dgid })
    }
}
