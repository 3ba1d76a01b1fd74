//! Work requests that a host posts.

use ferroce_qp::{AhId, Placement, PostError, QpType, RecvWr, SendFlags, SendOp, SendWr};
use wire::{Instant, Qpn, Srqn, VirtAddr};

use super::host::{Host, QKEY, all, of_domain};
use super::model::SHARED;
use super::world::Random;

impl Host {
    /// Posts a send of any kind; most can be carried out.
    pub(crate) fn send(&mut self, now: Instant, other: &Self, random: &mut Random) {
        let Some(peer) = self.any_pair(random, None) else { return };
        let pair = self.pairs[&peer.qpn];
        let len = [0, 1, 100, 512, 700, 3000][random.below(6)];
        let id = self.id();
        let Some(sge) = self.sge(pair.pd, random, len) else { return };
        let Some(eight) = self.sge(pair.pd, random, 8) else { return };
        let peer_host = if pair.peer.is_some_and(|peer| peer.gid == self.gid) { &*self } else { other };
        let srqns: Vec<Srqn> =
            peer_host.srqs.iter().filter(|(_, (_, xrc))| xrc.is_some()).map(|(s, _)| *s).collect();
        let srqn = (pair.qp_type == QpType::XrcIni).then(|| random.pick(&srqns).unwrap_or(Srqn::new(77)));
        let domain = pair.peer.and_then(|peer| peer_host.domain(peer.qpn, srqn));
        let (va, rkey) = peer_host.target(domain, random, len);
        let theirs = peer_host.target(domain, random, 0).1;
        let own = self.target(pair.pd, random, 0).1;
        let kind = match pair.qp_type {
            QpType::Ud | QpType::Gsi => random.below(2),
            QpType::Uc => [0, 1, 2, 3, 10, 11, 12][random.below(7)],
            _ => random.below(14),
        };
        let mut wr = match kind {
            0 => SendWr::send(id, &[sge]),
            1 => SendWr::send_imm(id, &[sge], [1, 2, 3, 4]),
            2 => SendWr::write(id, &[sge], va, rkey),
            3 => SendWr::write_imm(id, &[sge], va, rkey, [5, 6, 7, 8]),
            4..=5 => SendWr::read(id, &[sge], va, rkey),
            6 => SendWr::fetch_add(id, eight, va, rkey, 1),
            7 => SendWr::atomic_write(id, eight, va, rkey),
            8 => SendWr::flush(id, va, rkey, len, Placement::GLOBAL),
            9 if random.one_in(2) => SendWr::send_inv(id, &[sge], theirs),
            9 => SendWr::send(id, &[sge]),
            10 => match of_domain(&self.fast, pair.pd, random) {
                Some(mr) => SendWr::reg_mr(id, mr.lkey, 9, VirtAddr::new(0x5000), 8192, all()),
                None => return,
            },
            11 => {
                let Some(pd) = pair.pd else { return };
                let (Some(at), Some(range)) = (self.window(pd, random), self.range(pd, random)) else {
                    return;
                };
                let (mw, variant) = (self.windows[at].name, u8::try_from(random.below(256)).unwrap());
                self.windows[at].bound = Some((mw.with_variant(variant), range.va));
                SendWr::bind_mw(id, mw, variant, &range)
            }
            12 if random.one_in(3) => SendWr::local_inv(id, own),
            12 => SendWr::send(id, &[sge]),
            _ => SendWr::flush_region(id, rkey, Placement::GLOBAL | Placement::PERSISTENT),
        };
        if random.one_in(2) || !matches!(wr.op, SendOp::Send { .. } | SendOp::Write { .. }) {
            wr = wr.signaled();
        }
        if random.one_in(5) {
            wr = wr.fenced();
        }
        if matches!(pair.qp_type, QpType::Ud | QpType::Gsi) {
            let fits: Vec<AhId> =
                self.ahs.iter().filter(|(_, pd)| Some(*pd) == pair.pd).map(|(ah, _)| *ah).collect();
            let Some(ah) = random.pick(&fits) else { return };
            let to = match random.below(3) {
                0 => Qpn::MULTICAST,
                _ => match other.any_pair(random, Some(pair.qp_type)) {
                    Some(to) => to.qpn,
                    None => return,
                },
            };
            wr = wr.to(ah, to, QKEY);
        }
        if let Some(srqn) = srqn {
            wr = wr.for_srq(srqn);
        }
        let told = wr.flags.contains(SendFlags::SIGNALED);
        match self.nic.post_send(now, peer.qpn, wr) {
            Ok(()) => self.model.pairs.get_mut(&peer.qpn).unwrap().sends.push_back((id, told)),
            Err(PostError::QueueFull(16) | PostError::State(_) | PostError::WindowType) => {}
            Err(PostError::WrongType(QpType::XrcTgt)) => {}
            Err(PostError::NoReadDepth) => {}
            Err(error) => panic!("{error}"),
        }
    }

    /// Posts a receive somewhere.
    pub(crate) fn receive(&mut self, now: Instant, random: &mut Random) {
        let id = self.id();
        let len = [8, 800, 4096][random.below(3)];
        if random.one_in(2) {
            let srqns: Vec<Srqn> = self.srqs.keys().copied().collect();
            let Some(srqn) = random.pick(&srqns) else { return };
            let Some(sge) = self.sge(Some(self.srqs[&srqn].0), random, len) else { return };
            let id = SHARED + id;
            if self.nic.post_srq_recv(srqn, RecvWr::new(id, &[sge])).is_ok() {
                self.model.shared.get_mut(&srqn).unwrap().insert(id);
            }
            return;
        }
        let Some(peer) = self.any_pair(random, None) else { return };
        let pair = self.pairs[&peer.qpn];
        let Some(sge) = self.sge(pair.pd, random, len) else { return };
        match self.nic.post_recv(now, peer.qpn, RecvWr::new(id, &[sge])) {
            Ok(()) => self.model.pairs.get_mut(&peer.qpn).unwrap().receives.push_back(id),
            Err(PostError::SharedReceives) => assert!(pair.srq.is_some()),
            Err(PostError::QueueFull(16) | PostError::State(_)) => {}
            Err(PostError::WrongType(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}
