//! Work requests: posted, checked, queued.

use transport::ports::Side;
use transport::{Ctx, Datagram, LocalOp, SendFlags, SendOp};
use wire::{Instant, Qpn, RKey};

use super::Nic;
use crate::mr::MwType;
use crate::pair::flush_receive;
use crate::state::{PostRule, QpType};
use crate::wr::{BadWr, MwRange, PostError, RecvWr, SendLimits, SendTo, SendWr};

impl Nic {
    /// Posts a send.
    ///
    /// # Errors
    /// Why it was not taken.
    pub fn post_send(&mut self, now: Instant, qpn: Qpn, wr: SendWr) -> Result<(), PostError> {
        if let SendOp::Local(LocalOp::Bind { mw, .. }) = wr.op
            && self.memory.window_type(mw) == Some(MwType::Type1)
        {
            return Err(PostError::WindowType);
        }
        self.post(now, qpn, wr)
    }

    /// Binds a type 1 window to `range` in the order of the send queue, and completes there as `flags` say. Gives the
    /// window's key from then on.
    ///
    /// # Errors
    /// Why it was not taken.
    pub fn bind_mw(
        &mut self,
        now: Instant,
        qpn: Qpn,
        wr_id: u64,
        flags: SendFlags,
        mw: RKey,
        range: &MwRange,
    ) -> Result<RKey, PostError> {
        match self.memory.window_type(mw) {
            None => return Err(PostError::NoSuchWindow),
            Some(MwType::Type2) => return Err(PostError::WindowType),
            Some(MwType::Type1) => {}
        }
        let variant = self.memory.next_variant(mw);
        let wr = SendWr { flags, ..SendWr::bind_mw(wr_id, mw, variant, range) };
        self.post(now, qpn, wr)?;
        self.memory.took_variant(mw, variant);
        Ok(mw.with_variant(variant))
    }

    fn post(&mut self, now: Instant, qpn: Qpn, wr: SendWr) -> Result<(), PostError> {
        let pair = self.qps.get(qpn).ok_or(PostError::NoSuchQp)?;
        let rule = pair.state().post_send();
        if rule == PostRule::Refuse {
            return Err(PostError::State(pair.state()));
        }
        let limits = SendLimits {
            qp_type: pair.init.qp_type,
            cap: &pair.init.cap,
            sq_sig_all: pair.init.sq_sig_all,
            port_mtu: self.config.active_mtu,
        };
        let to = wr.to;
        let mut wqe = wr.check(&limits)?;
        if !pair.init.qp_type.is_connected() {
            wqe.datagram = Some(Box::new(self.datagram(qpn, to)?));
        }
        let Some(pair) = self.qps.get_mut(qpn) else { return Err(PostError::NoSuchQp) };
        if wqe.op.takes_depth() && pair.params.max_rd_atomic == 0 {
            return Err(PostError::NoReadDepth);
        }
        if pair.engines.sends() >= pair.init.cap.max_send_wr as usize {
            return Err(PostError::QueueFull(pair.init.cap.max_send_wr));
        }
        pair.engines.post(wqe);
        // Rule R-CQE-4.
        if rule == PostRule::Flush {
            let mut ctx = Ctx { now, params: &pair.params, memory: &mut self.memory, out: &mut self.out };
            pair.engines.flush_sends(&mut ctx);
            self.settle(now, qpn);
        } else {
            self.schedule(qpn);
        }
        Ok(())
    }

    /// Where a datagram of `qpn` goes.
    fn datagram(&self, qpn: Qpn, to: Option<SendTo>) -> Result<Datagram, PostError> {
        let SendTo { ah, qpn: dest, qkey } = to.ok_or(PostError::NoAddress)?;
        let (pd, addr) = self.ahs.get(ah.0).copied().ok_or(PostError::NoSuchAh)?;
        if self.qps.get(qpn).is_none_or(|pair| pair.init.pd != pd) {
            return Err(PostError::NoSuchAh);
        }
        let net = self.route(QpType::Ud, [qpn, dest], &addr).map_err(|_| PostError::NoSuchAh)?;
        Ok(Datagram { net, qpn: dest, qkey })
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// Why it was not taken.
    pub fn post_recv(&mut self, now: Instant, qpn: Qpn, wr: RecvWr) -> Result<(), PostError> {
        let pair = self.qps.get_mut(qpn).ok_or(PostError::NoSuchQp)?;
        if pair.init.srq.is_some() {
            return Err(PostError::SharedReceives);
        }
        if matches!(pair.init.qp_type, QpType::XrcIni | QpType::XrcTgt) {
            return Err(PostError::WrongType(pair.init.qp_type));
        }
        let wqe = wr.check(pair.init.cap.max_recv_sge, pair.init.pd, Side::Recv)?;
        match pair.state().post_recv() {
            PostRule::Refuse => Err(PostError::State(pair.state())),
            PostRule::Queue if pair.receives() >= pair.init.cap.max_recv_wr as usize => {
                Err(PostError::QueueFull(pair.init.cap.max_recv_wr))
            }
            PostRule::Queue => {
                pair.rq.push(wqe);
                Ok(())
            }
            PostRule::Flush => {
                flush_receive(qpn, &wqe, &mut self.out);
                self.settle(now, qpn);
                Ok(())
            }
        }
    }

    /// Posts sends in order, up to the first that is not taken.
    ///
    /// # Errors
    /// The first that was not taken, and why.
    pub fn post_send_list(
        &mut self,
        now: Instant,
        qpn: Qpn,
        wrs: impl IntoIterator<Item = SendWr>,
    ) -> Result<(), BadWr> {
        for (index, wr) in wrs.into_iter().enumerate() {
            self.post_send(now, qpn, wr).map_err(|error| BadWr { index, error })?;
        }
        Ok(())
    }

    /// Posts receives in order, up to the first that is not taken.
    ///
    /// # Errors
    /// The first that was not taken, and why.
    pub fn post_recv_list(
        &mut self,
        now: Instant,
        qpn: Qpn,
        wrs: impl IntoIterator<Item = RecvWr>,
    ) -> Result<(), BadWr> {
        for (index, wr) in wrs.into_iter().enumerate() {
            self.post_recv(now, qpn, wr).map_err(|error| BadWr { index, error })?;
        }
        Ok(())
    }
}
