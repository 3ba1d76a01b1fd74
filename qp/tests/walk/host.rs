//! One host: its NIC, the objects on it, and what is known of them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use ferroce_qp::state::rnr_timer;
use ferroce_qp::{
    Access, AddressVector, AhId, AsyncEvent, AttrMask, CqId, DestroyError, Event, MrInfo, MwRange, MwType,
    Nic, NicConfig, PdId, Profile, QpAttr, QpCap, QpInit, QpState, QpType, SendFlags, Sge, SrqInit, SrqXrc,
    XrcdId,
};
use wire::batch::{Caps, HeaderKnowledge, IpIdRule, RxBurst, TxBatch};
use wire::{Gid, Instant, Mtu, Psn, QKey, Qpn, RKey, Srqn, VirtAddr};

use super::model::{Model, Work};
use super::world::{Random, Sent};

pub(crate) const GROUP: Ipv4Addr = Ipv4Addr::new(239, 1, 1, 1);
pub(crate) const QKEY: QKey = QKey::new(0x1111);
/// Bytes of a region.
pub(crate) const SIZE: usize = 16 << 10;
/// What a region holds that nobody may write to.
const KEPT: u8 = 0xA5;

/// A queue pair, as others see it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) gid: Gid,
    pub(crate) qpn: Qpn,
    pub(crate) qp_type: QpType,
}

/// A queue pair, as its host knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair {
    pub(crate) qp_type: QpType,
    pub(crate) pd: Option<PdId>,
    pub(crate) cqs: [Option<CqId>; 2],
    pub(crate) srq: Option<Srqn>,
    pub(crate) xrcd: Option<XrcdId>,
    pub(crate) member: bool,
    /// Whom it was connected with last.
    pub(crate) peer: Option<Peer>,
}

/// A memory window, and the key and address that its newest binding gave it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) name: RKey,
    pub(crate) pd: PdId,
    pub(crate) bound: Option<(RKey, VirtAddr)>,
}

pub(crate) struct Host {
    pub(crate) nic: Nic,
    pub(crate) gid: Gid,
    pub(crate) pds: Vec<PdId>,
    pub(crate) cqs: Vec<CqId>,
    pub(crate) srqs: BTreeMap<Srqn, (PdId, Option<SrqXrc>)>,
    pub(crate) xrcds: Vec<XrcdId>,
    pub(crate) ahs: Vec<(AhId, PdId)>,
    /// Regions that peers may write to.
    pub(crate) mrs: Vec<(MrInfo, PdId)>,
    pub(crate) fast: Vec<(MrInfo, PdId)>,
    /// Regions that must not change.
    pub(crate) kept: Vec<(MrInfo, PdId)>,
    pub(crate) windows: Vec<Window>,
    pub(crate) pairs: BTreeMap<Qpn, Pair>,
    pub(crate) model: Model,
    pub(crate) next_id: u64,
    pub(crate) received: u64,
    pub(crate) sent: u64,
    /// Shared receive queues of queue pairs whose completions may have been lost.
    pub(crate) overran_for: BTreeSet<Srqn>,
}

fn caps(random: &mut Random) -> Caps {
    Caps {
        max_segments: 1 + random.below(16),
        max_bytes: 60_000,
        ip_id: IpIdRule::Ours,
        sees_ip_header: true,
        window: [1, 2, 5, 16, 64][random.below(5)],
        credit: [1, 2, 8, 32, u32::MAX][random.below(5)],
        src_port: None,
    }
}

pub(crate) fn all() -> Access {
    Access::LOCAL_WRITE
        | Access::REMOTE_WRITE
        | Access::REMOTE_READ
        | Access::REMOTE_ATOMIC
        | Access::FLUSH_GLOBAL
        | Access::FLUSH_PERSISTENT
}

impl Host {
    pub(crate) fn new(number: u8, random: &mut Random) -> Self {
        let gid = Gid::from(Ipv4Addr::new(10, 0, 0, number));
        let profile = [Profile::Strict, Profile::Rxe, Profile::ConnectX][random.below(3)];
        let nic = Nic::new(NicConfig::new(vec![gid], Mtu::B4096, caps(random), number.into(), profile));
        let mut host = Self {
            nic,
            gid,
            pds: Vec::new(),
            cqs: Vec::new(),
            srqs: BTreeMap::new(),
            xrcds: Vec::new(),
            ahs: Vec::new(),
            mrs: Vec::new(),
            fast: Vec::new(),
            kept: Vec::new(),
            windows: Vec::new(),
            pairs: BTreeMap::new(),
            model: Model::default(),
            next_id: 1,
            received: 0,
            sent: 0,
            overran_for: BTreeSet::new(),
        };
        host.make_pd();
        host.cqs.push(host.nic.create_cq(4096).unwrap());
        host.xrcds.push(host.nic.alloc_xrcd());
        host
    }

    pub(crate) fn make_pd(&mut self) {
        let pd = self.nic.alloc_pd();
        self.pds.push(pd);
        let kept = self.nic.reg_mr(pd, vec![KEPT; SIZE], Access::REMOTE_READ).unwrap();
        self.kept.push((kept, pd));
    }

    /// One more object of some kind.
    pub(crate) fn make(&mut self, random: &mut Random) {
        let (Some(pd), Some(cq)) = (random.pick(&self.pds), random.pick(&self.cqs)) else {
            self.make_pd();
            self.cqs.push(self.nic.create_cq(4096).unwrap());
            return;
        };
        match random.below(16) {
            0 if self.pds.len() < 3 => self.make_pd(),
            1 => {
                let depth = [8, 64, 4096, 4096][random.below(4)];
                self.cqs.push(self.nic.create_cq(depth).unwrap());
            }
            2..=3 => {
                let xrc =
                    random.pick(&self.xrcds).filter(|_| random.one_in(2)).map(|xrcd| SrqXrc { xrcd, cq });
                let srqn = self.nic.create_srq(SrqInit { xrc, ..SrqInit::new(pd, 32, 2) }).unwrap();
                self.srqs.insert(srqn, (pd, xrc));
                self.model.shared.insert(srqn, Default::default());
            }
            4 => self.xrcds.push(self.nic.alloc_xrcd()),
            5 => {
                let dgid = match random.below(3) {
                    0 => Gid::from(GROUP),
                    n => Gid::from(Ipv4Addr::new(10, 0, 0, u8::try_from(n).unwrap())),
                };
                let addr = AddressVector { dgid, ..AddressVector::default() };
                self.ahs.push((self.nic.create_ah(pd, addr).unwrap(), pd));
            }
            6..=7 => {
                let access = if random.one_in(6) { Access::ZERO_BASED } else { Access::MW_BIND };
                let mr = self.nic.reg_mr(pd, vec![0; SIZE], all() | access).unwrap();
                self.mrs.push((mr, pd));
            }
            8 => self.fast.push((self.nic.alloc_mr(pd, SIZE).unwrap(), pd)),
            9..=10 => {
                let mw_type = [MwType::Type1, MwType::Type2][random.below(2)];
                let name = self.nic.alloc_mw(pd, mw_type).unwrap();
                self.windows.push(Window { name, pd, bound: None });
            }
            _ => self.make_pair(pd, cq, random),
        }
    }

    pub(crate) fn make_pair(&mut self, pd: PdId, cq: CqId, random: &mut Random) {
        let other = random.pick(&self.cqs).unwrap();
        let plain: Vec<Srqn> =
            self.srqs.iter().filter(|(_, (_, xrc))| xrc.is_none()).map(|(srqn, _)| *srqn).collect();
        let cap = QpCap { max_send_wr: 16, max_recv_wr: 16, ..QpCap::default() };
        let kind = random.below(8);
        let mut init = match kind {
            0..=2 => QpInit::new(QpType::Rc, pd, cq, other),
            3 => QpInit::new(QpType::Uc, pd, cq, other),
            4 => QpInit::new(QpType::Ud, pd, cq, other),
            5 => QpInit::xrc_initiator(pd, cq),
            6 => match random.pick(&self.xrcds) {
                Some(xrcd) => QpInit::xrc_target(xrcd),
                None => return,
            },
            _ => QpInit::new(QpType::Gsi, pd, cq, other),
        };
        init.cap = cap;
        if kind <= 4 && random.one_in(2) {
            init.srq = random.pick(&plain);
        }
        let Ok(qpn) = self.nic.create_qp(init) else {
            assert_eq!(init.qp_type, QpType::Gsi);
            return;
        };
        let is_target = init.qp_type == QpType::XrcTgt;
        let is_initiator = init.qp_type == QpType::XrcIni;
        let pair = Pair {
            qp_type: init.qp_type,
            pd: (!is_target).then_some(pd),
            cqs: [(!is_target).then_some(cq), (!is_target && !is_initiator).then_some(other)],
            srq: init.srq,
            xrcd: init.xrcd,
            member: false,
            peer: None,
        };
        self.pairs.insert(qpn, pair);
        if pair.cqs.iter().flatten().any(|cq| self.model.overrun.contains(cq)) {
            self.overran_for.extend(pair.srq);
        }
        let cqs = pair.cqs.into_iter().flatten().collect();
        self.model.pairs.insert(qpn, Work { cqs, ..Work::default() });
    }

    /// A queue pair that has failed and whom it was connected with.
    pub(crate) fn broken(&self, random: &mut Random) -> Option<(Peer, Peer)> {
        let fits: Vec<(Peer, Peer)> = self
            .pairs
            .iter()
            .filter(|(qpn, _)| self.nic.query_qp(**qpn).is_some_and(|(attr, _)| attr.state == QpState::Err))
            .filter_map(|(qpn, pair)| {
                Some((Peer { gid: self.gid, qpn: *qpn, qp_type: pair.qp_type }, pair.peer?))
            })
            .collect();
        random.pick(&fits)
    }

    pub(crate) fn has(&self, peer: &Peer) -> bool {
        peer.gid == self.gid && self.pairs.get(&peer.qpn).is_some_and(|pair| pair.qp_type == peer.qp_type)
    }

    pub(crate) fn any_pair(&self, random: &mut Random, wanted: Option<QpType>) -> Option<Peer> {
        let fits: Vec<Qpn> = self
            .pairs
            .iter()
            .filter(|(_, pair)| wanted.is_none_or(|wanted| pair.qp_type == wanted))
            .map(|(qpn, _)| *qpn)
            .collect();
        let qpn = random.pick(&fits)?;
        Some(Peer { gid: self.gid, qpn, qp_type: self.pairs[&qpn].qp_type })
    }

    /// From whatever state to RTS.
    pub(crate) fn connect(
        &mut self,
        now: Instant,
        own: &Peer,
        peer: &Peer,
        psns: [Psn; 2],
        random: &mut Random,
    ) {
        self.reset(now, own.qpn);
        self.pairs.get_mut(&own.qpn).unwrap().peer = Some(*peer);
        let attr = QpAttr {
            access: all() & !Access::LOCAL_WRITE,
            qkey: if own.qp_type == QpType::Gsi { QKey::new(0x8001_0000) } else { QKEY },
            addr: AddressVector { dgid: peer.gid, ..AddressVector::default() },
            path_mtu: Mtu::B512,
            dest_qpn: peer.qpn,
            sq_psn: psns[0],
            rq_psn: psns[1],
            max_dest_rd_atomic: 4,
            max_rd_atomic: [1, 4][random.below(2)],
            min_rnr_timer: rnr_timer(1).unwrap(),
            timeout: 4,
            retry_cnt: [1, 7, 7, 7][random.below(4)],
            rnr_retry: [1, 7, 7, 7][random.below(4)],
            ..QpAttr::default()
        };
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            let mask = AttrMask::to_enter(own.qp_type, state);
            self.nic.modify_qp(now, own.qpn, &QpAttr { state, ..attr }, mask).unwrap();
            if random.one_in(40) {
                return;
            }
        }
    }

    pub(crate) fn reset(&mut self, now: Instant, qpn: Qpn) {
        self.collect();
        let attr = QpAttr::default();
        self.nic.modify_qp(now, qpn, &attr, AttrMask::STATE).unwrap();
        self.forget(qpn);
        let work = self.model.pairs.get_mut(&qpn).unwrap();
        work.failed = false;
        work.sends.clear();
        work.receives.clear();
    }

    /// A queue pair may have had a shared receive in use.
    pub(crate) fn forget(&mut self, qpn: Qpn) {
        let pair = self.pairs[&qpn];
        if let Some(srqn) = pair.srq {
            *self.model.lost.entry(srqn).or_default() += 1;
        } else if pair.xrcd.is_some() {
            for srqn in self.srqs.keys() {
                *self.model.lost.entry(*srqn).or_default() += 1;
            }
        }
    }

    pub(crate) fn bind_type1(&mut self, now: Instant, random: &mut Random) {
        let Some(peer) = self.any_pair(random, None) else { return };
        let Some(pd) = self.pairs[&peer.qpn].pd else { return };
        let (Some(at), Some(range)) = (self.window(pd, random), self.range(pd, random)) else { return };
        let id = self.id();
        let length = if random.one_in(8) { 0 } else { range.length };
        let (range, mw) = (MwRange { length, ..range }, self.windows[at].name);
        if let Ok(key) = self.nic.bind_mw(now, peer.qpn, id, SendFlags::SIGNALED, mw, &range) {
            self.windows[at].bound = Some((key, range.va));
            self.model.pairs.get_mut(&peer.qpn).unwrap().sends.push_back((id, true));
        }
    }

    /// Index of a window of `pd`, or now and then of another domain.
    pub(crate) fn window(&self, pd: PdId, random: &mut Random) -> Option<usize> {
        let any = random.one_in(50);
        let fits: Vec<usize> =
            (0..self.windows.len()).filter(|at| any || self.windows[*at].pd == pd).collect();
        random.pick(&fits)
    }

    pub(crate) fn range(&self, pd: PdId, random: &mut Random) -> Option<MwRange> {
        let mr = of_domain(&self.mrs, Some(pd), random)?;
        let access = all() & !Access::LOCAL_WRITE;
        Some(MwRange { mr: mr.lkey, va: mr.addr, length: (SIZE / 2) as u64, access })
    }

    pub(crate) fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    pub(crate) fn sge(&self, pd: Option<PdId>, random: &mut Random, len: u32) -> Option<Sge> {
        let mr = of_domain(&self.mrs, pd, random)?;
        let at = random.below(SIZE - len as usize) as u64;
        Some(Sge { addr: mr.addr.wrapping_add(at), length: len, lkey: mr.lkey })
    }

    /// A key of this host for a peer whose packets go to a queue pair of `pd`, with an address that it opens.
    pub(crate) fn target(&self, pd: Option<PdId>, random: &mut Random, len: u32) -> (VirtAddr, RKey) {
        let at = (random.below(SIZE / 2 - len as usize) & !7) as u64;
        match random.below(8) {
            0..=1 => {
                let bound: Vec<_> =
                    self.windows.iter().filter(|w| Some(w.pd) == pd).filter_map(|w| w.bound).collect();
                random.pick(&bound).map(|(key, va)| (va.wrapping_add(at), key))
            }
            2 => of_domain(&self.fast, pd, random)
                .map(|mr| (VirtAddr::new(0x5000 + at), mr.rkey.with_variant(9))),
            3 if random.one_in(10) => of_domain(&self.kept, pd, random).map(|mr| (mr.addr, mr.rkey)),
            _ => None,
        }
        .or_else(|| of_domain(&self.mrs, pd, random).map(|mr| (mr.addr.wrapping_add(at), mr.rkey)))
        .unwrap_or((VirtAddr::new(0), RKey::new(0x100)))
    }

    /// Domain of what a peer reaches through a queue pair.
    pub(crate) fn domain(&self, qpn: Qpn, srqn: Option<Srqn>) -> Option<PdId> {
        let of_srq = srqn.and_then(|srqn| self.srqs.get(&srqn)).map(|(pd, _)| *pd);
        self.pairs.get(&qpn).and_then(|pair| pair.pd).or(of_srq)
    }

    pub(crate) fn take(&mut self, now: Instant, packets: &[Sent]) {
        let mut burst = RxBurst::new();
        for (net, body) in packets {
            burst.push(*net, HeaderKnowledge::Seen, body);
        }
        let before = self.nic.drops().total();
        self.nic.handle_burst(now, &burst);
        self.received += packets.len() as u64;
        assert_eq!(self.nic.counters().rcvd_pkts, self.received);
        assert!(self.nic.drops().total() - before <= packets.len() as u64);
        self.collect();
    }

    pub(crate) fn pass(&mut self, now: Instant) {
        self.nic.handle_timeout(now);
        assert!(self.nic.poll_timeout().is_none_or(|at| at > now));
        self.collect();
    }

    pub(crate) fn transmit(&mut self, now: Instant) -> Vec<Sent> {
        let (mut batch, mut out) = (TxBatch::new(), Vec::new());
        while self.nic.poll_transmit(now, &mut batch) {
            assert!(!batch.is_empty());
            out.extend(batch.iter().map(|(net, body)| (net, body.to_vec())));
            assert!(out.len() < 50_000, "it sends without end");
        }
        self.sent += out.len() as u64;
        assert_eq!(self.nic.counters().sent_pkts, self.sent);
        // Rule R-REQ-48.
        let in_flight: u64 =
            self.pairs.keys().filter_map(|qpn| self.nic.in_flight_of(*qpn)).map(u64::from).sum();
        assert_eq!(self.nic.in_flight(), in_flight);
        out
    }

    /// Events first, since a completion queue that overran says so there.
    pub(crate) fn collect(&mut self) {
        while let Some(event) = self.nic.poll_event() {
            if let Event::Async(AsyncEvent::CqErr(cq)) = event {
                self.model.overrun.push(cq);
                let users = self.pairs.values().filter(|pair| pair.cqs.contains(&Some(cq)));
                self.overran_for.extend(users.filter_map(|pair| pair.srq));
            }
        }
        for cq in self.cqs.clone() {
            let mut done = Vec::new();
            let waiting = self.nic.cq_len(cq);
            assert_eq!(self.nic.poll_cq(cq, usize::MAX, &mut done), waiting);
            for wc in &done {
                self.model.completed(wc, false);
            }
        }
    }

    pub(crate) fn all_to(&mut self, now: Instant, state: QpState) {
        for qpn in self.pairs.keys().copied().collect::<Vec<_>>() {
            let attr = QpAttr { state, ..QpAttr::default() };
            let from = self.nic.query_qp(qpn).unwrap().0.state;
            if from != QpState::Reset {
                self.nic.modify_qp(now, qpn, &attr, AttrMask::STATE).unwrap();
            }
        }
        self.collect();
    }

    /// Nothing is under way: what has been posted has completed.
    pub(crate) fn check_rest(&mut self) {
        self.collect();
        assert_eq!(self.nic.in_flight(), 0);
        for (qpn, work) in &self.model.pairs {
            if self.model.is_lossy(work) {
                continue;
            }
            assert!(work.receives.is_empty(), "{qpn}: {work:?}");
            assert!(work.sends.iter().all(|(_, told)| !told && !work.failed), "{qpn}: {work:?}");
        }
        for (srqn, ids) in &self.model.shared {
            let waiting = self.nic.srq_len(*srqn);
            let lossy = self.srqs[srqn].1.is_some_and(|xrc| self.model.overrun.contains(&xrc.cq))
                || self.overran_for.contains(srqn);
            if lossy {
                continue;
            }
            let lost = self.model.lost.get(srqn).copied().unwrap_or(0);
            assert!(ids.len() >= waiting && ids.len() <= waiting + lost, "{srqn:?} {waiting} {lost} {ids:?}");
        }
        for (mr, _) in &self.kept {
            let bytes = self.nic.mr_bytes(mr.lkey, 0, SIZE).unwrap();
            assert!(bytes.iter().all(|byte| *byte == KEPT), "memory that nobody may write to has changed");
        }
    }

    pub(crate) const fn successes(&self) -> u64 {
        self.model.successes
    }

    /// Everything goes, in the one order that is right.
    pub(crate) fn tear_down(&mut self) {
        for qpn in self.pairs.keys().copied().collect::<Vec<_>>() {
            self.end_pair(qpn);
        }
        self.windows.drain(..).for_each(|window| self.nic.dealloc_mw(window.name).unwrap());
        for (mr, _) in self.mrs.drain(..).chain(self.fast.drain(..)).chain(self.kept.drain(..)) {
            self.nic.dereg_mr(mr.lkey).unwrap();
        }
        self.ahs.drain(..).for_each(|(ah, _)| self.nic.destroy_ah(ah).unwrap());
        for pd in &self.pds {
            let used = self.srqs.values().any(|(of, _)| of == pd);
            if used {
                assert_eq!(self.nic.dealloc_pd(*pd), Err(DestroyError::Busy));
            }
        }
        for srqn in core::mem::take(&mut self.srqs).into_keys() {
            self.nic.destroy_srq(srqn).unwrap();
        }
        self.cqs.drain(..).for_each(|cq| self.nic.destroy_cq(cq).unwrap());
        self.xrcds.drain(..).for_each(|xrcd| self.nic.close_xrcd(xrcd).unwrap());
        self.pds.drain(..).for_each(|pd| self.nic.dealloc_pd(pd).unwrap());
        assert_eq!(self.nic.poll_timeout(), None);
    }
}

/// An object of a domain, or now and then of any.
pub(crate) fn of_domain(objects: &[(MrInfo, PdId)], pd: Option<PdId>, random: &mut Random) -> Option<MrInfo> {
    let any = random.one_in(100);
    let fits: Vec<MrInfo> =
        objects.iter().filter(|(_, of)| any || Some(*of) == pd).map(|(mr, _)| *mr).collect();
    random.pick(&fits)
}
