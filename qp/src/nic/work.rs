//! Work requests: posted, checked, queued.

use transport::{Ctx, Datagram};
use wire::{Instant, Qpn};

use super::Nic;
use crate::pair::flush_receive;
use crate::state::{PostRule, QpType};
use crate::wr::{BadWr, PostError, RecvWr, SendLimits, SendTo, SendWr};

impl Nic {
    /// Posts a send.
    ///
    /// # Errors
    /// Why it was not taken.
    pub fn post_send(&mut self, now: Instant, qpn: Qpn, wr: SendWr) -> Result<(), PostError> {
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
        if wqe.op.has_response_data() && pair.params.max_rd_atomic == 0 {
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
        let wqe = wr.check(pair.init.cap.max_recv_sge, pair.init.pd)?;
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
