//! Objects of a host that go or change, in any order.

use ferroce_qp::{AttrMask, DestroyError, MrError, QpAttr, QpState, QpType, Rereg, SrqAttr, SrqMask};
use wire::{Gid, Instant, Qpn, Srqn};

use super::host::{GROUP, Host, SIZE};
use super::world::Random;

impl Host {
    /// Some object goes, or is busy for a reason.
    pub(crate) fn end(&mut self, random: &mut Random) {
        self.collect();
        match random.below(9) {
            0 => {
                if let Some(peer) = self.any_pair(random, None) {
                    self.end_pair(peer.qpn);
                }
            }
            1 => self.end_cq(random),
            2 => self.end_srq(random),
            3 => {
                if let Some(xrcd) = random.pick(&self.xrcds) {
                    let used = self.pairs.values().any(|pair| pair.xrcd == Some(xrcd))
                        || self.srqs.values().any(|(_, xrc)| xrc.is_some_and(|xrc| xrc.xrcd == xrcd));
                    honest(self.nic.close_xrcd(xrcd), used);
                    if !used {
                        self.xrcds.retain(|other| *other != xrcd);
                    }
                }
            }
            4 => {
                if let Some((ah, pd)) = random.pick(&self.ahs) {
                    self.nic.destroy_ah(ah).unwrap();
                    self.ahs.retain(|other| *other != (ah, pd));
                }
            }
            5 => {
                let at = random.below(self.mrs.len());
                if let Some((mr, _)) = self.mrs.get(at).copied() {
                    match self.nic.dereg_mr(mr.lkey) {
                        Ok(_) => drop(self.mrs.swap_remove(at)),
                        Err(error) => assert!(matches!(error, MrError::WindowsBound(1..)), "{error}"),
                    }
                }
            }
            6 => {
                let at = random.below(self.fast.len());
                if let Some((mr, _)) = self.fast.get(at).copied() {
                    match self.nic.dereg_mr(mr.lkey) {
                        Ok(_) => drop(self.fast.swap_remove(at)),
                        Err(error) => assert!(matches!(error, MrError::WindowsBound(1..)), "{error}"),
                    }
                }
            }
            7 => {
                let at = random.below(self.windows.len());
                if let Some(window) = self.windows.get(at).copied() {
                    self.nic.dealloc_mw(window.name).unwrap();
                    self.windows.swap_remove(at);
                }
            }
            _ => {
                let at = random.below(self.mrs.len());
                if let Some((mr, _)) = self.mrs.get(at).copied() {
                    match self.nic.close_mr(mr.lkey) {
                        Ok(_) => drop(self.mrs.swap_remove(at)),
                        Err(error) => panic!("{error}"),
                    }
                }
            }
        }
    }

    pub(crate) fn end_pair(&mut self, qpn: Qpn) {
        if self.pairs[&qpn].member {
            assert_eq!(self.nic.destroy_qp(qpn), Err(DestroyError::Busy));
            self.nic.detach_mcast(qpn, Gid::from(GROUP)).unwrap();
        }
        self.forget(qpn);
        self.nic.destroy_qp(qpn).unwrap();
        assert_eq!(self.nic.destroy_qp(qpn), Err(DestroyError::NoSuchObject));
        self.pairs.remove(&qpn);
        self.model.pairs.remove(&qpn);
    }

    fn end_cq(&mut self, random: &mut Random) {
        let Some(cq) = random.pick(&self.cqs) else { return };
        let used = self.pairs.values().any(|pair| pair.cqs.contains(&Some(cq)))
            || self.srqs.values().any(|(_, xrc)| xrc.is_some_and(|xrc| xrc.cq == cq));
        honest(self.nic.destroy_cq(cq), used);
        if !used {
            self.cqs.retain(|other| *other != cq);
            self.model.overrun.retain(|other| *other != cq);
        }
    }

    fn end_srq(&mut self, random: &mut Random) {
        let srqns: Vec<Srqn> = self.srqs.keys().copied().collect();
        let Some(srqn) = random.pick(&srqns) else { return };
        let used = self.pairs.values().any(|pair| pair.srq == Some(srqn));
        honest(self.nic.destroy_srq(srqn), used);
        if !used {
            self.srqs.remove(&srqn);
            self.model.shared.remove(&srqn);
            self.model.lost.remove(&srqn);
        }
    }

    /// Attributes of some object change.
    pub(crate) fn change(&mut self, now: Instant, random: &mut Random) {
        match random.below(7) {
            0 => {
                if let Some(at) = random.pick(&(0..self.mrs.len()).collect::<Vec<_>>()) {
                    let (mr, pd) = self.mrs[at];
                    let new = random.pick(&self.pds).filter(|_| random.one_in(2));
                    let memory = random.one_in(2).then(|| (vec![0; SIZE], None));
                    match self.nic.rereg_mr(mr.lkey, Rereg { pd: new, access: None, memory }) {
                        Ok((mr, _)) => self.mrs[at] = (mr, new.unwrap_or(pd)),
                        Err(error) => assert!(matches!(error, MrError::WindowsBound(1..)), "{error}"),
                    }
                }
            }
            1 => {
                let srqns: Vec<Srqn> = self.srqs.keys().copied().collect();
                if let Some(srqn) = random.pick(&srqns) {
                    let attr = SrqAttr {
                        max_wr: [8, 16, 64][random.below(3)],
                        limit: [0, 2, 8][random.below(3)],
                        max_sge: 0,
                    };
                    let _ = self.nic.modify_srq(srqn, &attr, SrqMask::MAX_WR | SrqMask::LIMIT);
                }
            }
            2 => {
                if let Some(cq) = random.pick(&self.cqs) {
                    self.nic.req_notify_cq(cq, random.one_in(2));
                    let _ = self.nic.resize_cq(cq, [16, 64, 4096][random.below(3)]);
                }
            }
            3 => {
                if let Some(peer) = self.any_pair(random, None) {
                    let state = [QpState::Sqd, QpState::Rts, QpState::Rts, QpState::Err][random.below(4)];
                    let attr = QpAttr { state, ..QpAttr::default() };
                    self.collect();
                    let done = self.nic.modify_qp(now, peer.qpn, &attr, AttrMask::STATE).is_ok();
                    if done && state == QpState::Rts {
                        self.model.pairs.get_mut(&peer.qpn).unwrap().failed = false;
                    }
                }
            }
            4 => {
                if let Some(peer) = self.any_pair(random, Some(QpType::Ud)) {
                    self.nic.attach_mcast(peer.qpn, Gid::from(GROUP)).unwrap();
                    self.pairs.get_mut(&peer.qpn).unwrap().member = true;
                }
            }
            5 => {
                if let Some(peer) = self.any_pair(random, None) {
                    let retries = QpAttr { retry_cnt: 3, rnr_retry: 2, timeout: 3, ..QpAttr::default() };
                    let mask = AttrMask::RETRY_CNT | AttrMask::RNR_RETRY | AttrMask::TIMEOUT;
                    let _ = self.nic.modify_qp(now, peer.qpn, &retries, mask);
                }
            }
            _ => self.bind_type1(now, random),
        }
    }
}

fn honest(result: Result<(), DestroyError>, used: bool) {
    assert_eq!(result, if used { Err(DestroyError::Busy) } else { Ok(()) });
}
