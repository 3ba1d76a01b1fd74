//! The NIC under attack: its queue pairs, each of another kind, and its memory.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use qp::{
    Access, AttrMask, CqId, MrInfo, MwRange, MwType, Nic, NicConfig, PdId, Profile, QpAttr, QpInit, QpState,
    QpType, RecvWr, SendWr, Sge, SrqInit, SrqXrc, XrcdId,
};
use transport::{DropReason, WcOpcode, WcStatus};
use wire::batch::{Caps, HeaderKnowledge, IpIdRule, RxBurst, TxBatch};
use wire::{
    Bth, Duration, Gid, Instant, LKey, Mtu, Operation, Psn, QKey, Qpn, RKey, Srqn, Syndrome, VirtAddr,
};
use zerocopy::FromBytes;

use super::craft::Packet;
use super::healthy::{self, End};
use crate::harness::Conn;

/// What a queue pair is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Allows everything, and has receives posted.
    Open,
    /// Allows everything, but never has a receive.
    NoReceive,
    /// Allows no remote access.
    Closed,
    /// Has one READ of the peer open at most, and requests of its own under way.
    Asking,
    /// An unreliable connection, with a receive posted now and then.
    Uc,
    /// A queue pair of datagrams, with a receive posted now and then.
    Ud,
    /// An XRC target; one shared receive queue of its domain has receives, another never has.
    XrcTgt,
    /// An XRC initiator, with requests under way.
    XrcIni,
    /// Not yet ready to receive.
    Init,
}

/// What came of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fate {
    Done,
    Refused,
}

/// A queue pair under attack.
pub(super) struct Target {
    pub(super) kind: Kind,
    pub(super) qpn: Qpn,
    /// The PSN it expects, as far as its answers have told.
    pub(super) expected: Psn,
    /// The last PSN it has sent a request with.
    pub(super) requested: Psn,
    /// It has been torn down and set up again so often.
    generation: u32,
    receives: usize,
    requests: usize,
}

/// The NIC, its queue pairs, its memory and its clock.
pub(super) struct Targets {
    nic: Nic,
    far: Nic,
    now: Instant,
    pub(super) all: Vec<Target>,
    cq: CqId,
    /// Peers may do all with it.
    pub(super) open: MrInfo,
    buffer: MrInfo,
    /// Regions that no peer may write, with what they hold.
    guarded: Vec<(LKey, Vec<u8>)>,
    /// Shared receive queues for XRC: one with receives, one without, one of another domain; and one that was.
    pub(super) srqns: [Srqn; 4],
    /// Key of a window that the first queue pair has bound, unless a peer has taken it back.
    pub(super) window: RKey,
    /// Low byte of the key that it was made with.
    window_name: u8,
    pd: PdId,
    /// What came of each ATOMIC WRITE, FLUSH and invalidation.
    pub(super) rare: BTreeMap<(&'static str, Fate), u64>,
    /// Those that were received and not answered.
    asked: BTreeMap<(u32, u32), &'static str>,
    /// Keys that give no right to write: of the guarded regions, and one that is no longer a key.
    pub(super) keys: Vec<(RKey, VirtAddr)>,
    healthy: (End, End),
    rounds: u8,
    received: u64,
}

impl Targets {
    /// Where the packets come from.
    pub(super) const ATTACKER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 3);
    /// Where they go.
    pub(super) const VICTIM: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    /// Bytes of the open region.
    pub(super) const OPEN_LEN: usize = 16 << 10;
    const GUARDED_LEN: usize = 4096;
    /// A group that the queue pair of datagrams is a member of.
    pub(super) const GROUP: Ipv4Addr = Ipv4Addr::new(239, 1, 2, 3);
    /// The queue key of the datagrams that are taken.
    pub(super) const QKEY: QKey = QKey::new(0x1234_5678);
    /// The attacker's queue pair.
    const PEER: Qpn = Qpn::new(0x77);

    pub(super) fn new() -> Self {
        let mut nic = new_nic(Self::VICTIM);
        let mut far = new_nic(Ipv4Addr::new(10, 0, 0, 2));
        let (pd, other_pd) = (nic.alloc_pd(), nic.alloc_pd());
        let cq = nic.create_cq(1024).unwrap();
        let remote =
            Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC | Access::FLUSH_GLOBAL;
        let mut guarded = Vec::new();
        let mut keys = Vec::new();
        for (pd, access) in [
            (pd, Access::REMOTE_READ),
            (pd, Access::LOCAL_WRITE),
            (other_pd, Access::LOCAL_WRITE | remote),
            (pd, Access::empty()),
        ] {
            let bytes: Vec<u8> = (0..=250).cycle().take(Self::GUARDED_LEN).collect();
            let mr = nic.reg_mr(pd, bytes.clone(), access).unwrap();
            guarded.push((mr.lkey, bytes));
            keys.push((mr.rkey, mr.addr));
        }
        let open =
            nic.reg_mr(pd, vec![0; Self::OPEN_LEN], Access::LOCAL_WRITE | Access::MW_BIND | remote).unwrap();
        let buffer = nic.reg_mr(pd, vec![0; 8192], Access::LOCAL_WRITE).unwrap();
        let stale = nic.reg_mr(pd, vec![0; Self::GUARDED_LEN], Access::LOCAL_WRITE | remote).unwrap();
        nic.dereg_mr(stale.lkey).unwrap();
        keys.push((stale.rkey, stale.addr));
        let (near_end, far_end) = (End::new(&mut nic), End::new(&mut far));
        near_end.connect(&mut nic, (far.config().gids[0], far_end.qpn));
        far_end.connect(&mut far, (nic.config().gids[0], near_end.qpn));
        let kinds = [
            Kind::Open,
            Kind::Open,
            Kind::NoReceive,
            Kind::Closed,
            Kind::Asking,
            Kind::Asking,
            Kind::Uc,
            Kind::Ud,
            Kind::XrcTgt,
            Kind::XrcIni,
            Kind::Init,
        ];
        let [xrcd, other_xrcd] = [(); 2].map(|()| nic.alloc_xrcd());
        let srqns = [xrcd, xrcd, other_xrcd, xrcd].map(|xrcd| {
            let xrc = Some(SrqXrc { xrcd, cq });
            nic.create_srq(SrqInit { xrc, ..SrqInit::new(pd, 4, 1) }).unwrap()
        });
        nic.destroy_srq(srqns[3]).unwrap();
        let all = kinds.map(|kind| Target::new(&mut nic, pd, cq, xrcd, kind)).into();
        let mut targets = Self {
            nic,
            far,
            now: Instant::ZERO,
            all,
            cq,
            open,
            buffer,
            guarded,
            srqns,
            pd,
            window: RKey::new(0),
            window_name: 0,
            rare: BTreeMap::new(),
            asked: BTreeMap::new(),
            keys,
            healthy: (near_end, far_end),
            rounds: 0,
            received: 0,
        };
        for index in 0..targets.all.len() {
            targets.set_up(index);
        }
        targets
    }

    /// One of the queue pairs of a kind.
    pub(super) fn some(&self, number: u32, kind: Kind) -> usize {
        let of_kind: Vec<_> = (0..self.all.len()).filter(|index| self.all[*index].kind == kind).collect();
        of_kind[number as usize % of_kind.len()]
    }

    /// Gives a packet to the NIC; returns how many drops were counted.
    pub(super) fn receive(&mut self, packet: &Packet) -> u64 {
        self.now += Duration::from_nanos(500);
        if self.nic.poll_timeout().is_some_and(|at| at <= self.now) {
            self.nic.handle_timeout(self.now);
        }
        let mut burst = RxBurst::new();
        match &packet.net {
            Some(net) => burst.push(*net, HeaderKnowledge::Seen, &packet.bytes),
            None => burst.push_ip(&packet.bytes),
        }
        // Nobody is answered by an unreliable connection; but it expects what follows the last packet it saw.
        if let Some(index) = packet.target.filter(|index| self.all[*index].kind == Kind::Uc)
            && self.may_accept(packet)
            && let Some((bth, _)) = Bth::read_from_prefix(&packet.bytes).ok()
        {
            self.all[index].expected = bth.psn().wrapping_add(1);
        }
        if let Some(net) = packet.net.filter(|_| self.may_accept(packet))
            && let Ok(parsed) = wire::Packet::parse_body(net, &packet.bytes)
            && matches!(parsed.info().operation, Operation::AtomicWrite | Operation::Flush)
        {
            let bth = parsed.bth();
            self.asked.insert((bth.dest_qp().value(), bth.psn().value()), parsed.info().operation_name());
        }
        let before = self.nic.drops().total();
        self.nic.handle_burst(self.now, &burst);
        self.received += 1;
        assert_eq!(self.nic.counters().rcvd_pkts, self.received, "not counted: {packet:?}");
        self.nic.drops().total() - before
    }

    /// Whether the NIC had the right to take `packet`, judged from outside.
    pub(super) fn may_accept(&self, packet: &Packet) -> bool {
        let Some(net) = packet.net else { return false };
        let Ok(parsed) = wire::Packet::parse_body(net, &packet.bytes) else { return false };
        let qpn = parsed.bth().dest_qp();
        let to_group = qpn == Qpn::MULTICAST && net.dst() == Self::GROUP;
        let attacked = to_group || self.all.iter().any(|target| target.qpn == qpn);
        let is_cnp = parsed.info().kind == wire::opcode::Kind::Cnp;
        parsed.icrc_ok() && parsed.bth().tver() == 0 && (attacked || is_cnp && qpn == self.healthy.0.qpn)
    }

    /// Takes all answers away, telling `answered` their syndromes; learns from them what is expected.
    pub(super) fn drain(&mut self, mut answered: impl FnMut(Syndrome)) {
        let mut batch = TxBatch::new();
        while self.nic.poll_transmit(self.now, &mut batch) {
            for (net, body) in batch.iter() {
                let packet = wire::Packet::parse_body(net, body).unwrap();
                assert!(packet.icrc_ok() && packet.bth().dest_qp() == Self::PEER, "sent: {packet}");
                let from = net.udp().unwrap().src_port;
                let Some(target) = self.all.iter_mut().find(|target| target.port() == from) else { continue };
                let psn = packet.bth().psn();
                if packet.info().kind.is_request() {
                    target.requested = psn;
                }
                let Some(aeth) = packet.aeth() else { continue };
                answered(aeth.syndrome());
                let fate = if aeth.syndrome().is_ack() { Fate::Done } else { Fate::Refused };
                let own = packet.info().operation == Operation::ReadResponseOnly || fate == Fate::Refused;
                if own && let Some(operation) = self.asked.remove(&(target.qpn.value(), psn.value())) {
                    *self.rare.entry((operation, fate)).or_default() += 1;
                }
                target.expected = if aeth.syndrome().is_ack() { psn.wrapping_add(1) } else { psn };
            }
        }
        while self.nic.poll_event().is_some() {}
        self.revive();
        self.refill();
    }

    /// The regions that peers may not write are as they were, and the connection beside works.
    pub(super) fn check(&mut self) {
        for (lkey, bytes) in &self.guarded {
            assert!(self.nic.mr_bytes(*lkey, 0, bytes.len()).unwrap() == bytes, "guarded memory has changed");
        }
        let before = self.nic.counters().rcvd_pkts;
        self.rounds = self.rounds.wrapping_add(1);
        let (near, far) = &self.healthy;
        healthy::exchange(self.now, (&mut self.nic, near), (&mut self.far, far), self.rounds);
        self.received += self.nic.counters().rcvd_pkts - before;
    }

    pub(super) fn drops(&self) -> BTreeMap<DropReason, u64> {
        self.nic.drops().iter().collect()
    }

    /// Whether the queue pair that a packet was made for has ended.
    pub(super) fn has_ended(&self, index: usize) -> bool {
        self.nic.query_qp(self.all[index].qpn).unwrap().0.state == QpState::Err
    }

    /// Sets up again what an attack has ended: to end a queue pair is in any peer's power.
    fn revive(&mut self) {
        for index in 0..self.all.len() {
            if self.has_ended(index) {
                let reset = QpAttr { state: QpState::Reset, ..QpAttr::default() };
                self.nic.modify_qp(self.now, self.all[index].qpn, &reset, AttrMask::STATE).unwrap();
                self.set_up(index);
            }
        }
    }

    fn set_up(&mut self, index: usize) {
        let target = &mut self.all[index];
        target.generation = target.generation.wrapping_add(1);
        let access = match target.kind {
            Kind::Closed => Access::empty(),
            _ => Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC | Access::FLUSH_GLOBAL,
        };
        let max_dest_rd_atomic = if target.kind == Kind::Asking { 1 } else { 4 };
        let conn = Conn { access, max_dest_rd_atomic, timeout: 0, min_rnr_timer: 1, ..Conn::default() };
        // Near the wrap of the circle, and somewhere else each time.
        let first = target.generation.wrapping_mul(0x0003_0D41).wrapping_sub(8);
        let (sq_psn, rq_psn) = (Psn::new(first ^ 0x55), Psn::new(first));
        let qp_type = self.nic.query_qp(target.qpn).unwrap().1.qp_type;
        let steps = conn.steps(qp_type, (Gid::from(Self::ATTACKER), Self::PEER), sq_psn, rq_psn);
        let wanted = if target.kind == Kind::Init { 1 } else { 3 };
        for (attr, mask) in &steps[..wanted] {
            let attr = QpAttr { qkey: Self::QKEY, ..*attr };
            self.nic.modify_qp(self.now, target.qpn, &attr, *mask).unwrap();
        }
        target.expected = rq_psn;
        target.requested = sq_psn;
        target.receives = 0;
        target.requests = 0;
        if index == 0 {
            self.bind_window();
        }
        self.refill();
    }

    /// The first queue pair opens a new window on the open region.
    fn bind_window(&mut self) {
        let pd = self.pd;
        let _ = self.nic.dealloc_mw(self.window.with_variant(self.window_name));
        let window = self.nic.alloc_mw(pd, MwType::Type2).unwrap();
        self.window_name = window.variant();
        self.window = window.with_variant(window.variant().wrapping_add(1));
        let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
        let range = MwRange { mr: self.open.lkey, va: self.open.addr, length: 4096, access };
        let bind = SendWr::bind_mw(5, window, self.window.variant(), &range);
        self.nic.post_send(self.now, self.all[0].qpn, bind).unwrap();
    }

    /// Posts receives and requests in place of those that are done.
    fn refill(&mut self) {
        let mut done = Vec::new();
        self.nic.poll_cq(self.cq, usize::MAX, &mut done);
        for wc in done {
            let fate = match (wc.invalidated, wc.status) {
                (Some(_), _) => Some(Fate::Done),
                (None, WcStatus::RemInvReqErr) if wc.opcode == WcOpcode::Recv => Some(Fate::Refused),
                _ => None,
            };
            if let Some(fate) = fate {
                *self.rare.entry(("INVALIDATION", fate)).or_default() += 1;
            }
            let Some(target) = self.all.iter_mut().find(|target| target.qpn == wc.qp_num) else { continue };
            let left = if wc.wr_id.value() == 0 { &mut target.receives } else { &mut target.requests };
            *left = left.saturating_sub(1);
        }
        let piece = |mr: &MrInfo, length| Sge { addr: mr.addr, length, lkey: mr.lkey };
        let (far_va, far_rkey) = (VirtAddr::new(0x4000), RKey::new(0x4242));
        for target in &mut self.all {
            if !self.nic.query_qp(target.qpn).is_some_and(|(attr, _)| attr.state == QpState::Rts) {
                continue;
            }
            let wanted = match target.kind {
                Kind::Open | Kind::Asking => 2,
                Kind::Uc | Kind::Ud => 1,
                _ => 0,
            };
            while target.receives < wanted {
                target.receives += 1;
                let wr = RecvWr::new(0, &[piece(&self.buffer, 3000)]);
                self.nic.post_recv(self.now, target.qpn, wr).unwrap();
            }
            while target.kind == Kind::XrcTgt && self.nic.srq_len(self.srqns[0]) < 2 {
                let wr = RecvWr::new(0, &[piece(&self.buffer, 3000)]);
                self.nic.post_srq_recv(self.srqns[0], wr).unwrap();
            }
            while matches!(target.kind, Kind::Asking | Kind::XrcIni) && target.requests < 4 {
                let at = piece(&self.buffer, 2500);
                let wr = match target.requests {
                    0 => SendWr::read(1, &[at], far_va, far_rkey),
                    1 => SendWr::fetch_add(2, piece(&self.buffer, 8), far_va, far_rkey, 1),
                    2 => SendWr::write(3, &[at], far_va, far_rkey),
                    _ => SendWr::send(4, &[at]),
                };
                target.requests += 1;
                self.nic.post_send(self.now, target.qpn, wr.for_srq(Srqn::new(7))).unwrap();
            }
        }
    }
}

impl Target {
    fn new(nic: &mut Nic, pd: PdId, cq: CqId, xrcd: XrcdId, kind: Kind) -> Self {
        let qp_type = match kind {
            Kind::Uc => QpType::Uc,
            Kind::Ud => QpType::Ud,
            _ => QpType::Rc,
        };
        let init = match kind {
            Kind::XrcTgt => QpInit::xrc_target(xrcd),
            Kind::XrcIni => QpInit { sq_sig_all: true, ..QpInit::xrc_initiator(pd, cq) },
            _ => QpInit { sq_sig_all: true, ..QpInit::new(qp_type, pd, cq, cq) },
        };
        let qpn = nic.create_qp(init).unwrap();
        if kind == Kind::Ud {
            nic.attach_mcast(qpn, Targets::GROUP.into()).unwrap();
        }
        let (expected, requested) = (Psn::new(0), Psn::new(0));
        Self { kind, qpn, expected, requested, generation: 0, receives: 0, requests: 0 }
    }

    /// The UDP source port that its packets leave with (rule R-ADR-6).
    fn port(&self) -> u16 {
        wire::ip::source_port(0, self.qpn.value(), Targets::PEER.value())
    }
}

fn new_nic(addr: Ipv4Addr) -> Nic {
    let caps = Caps {
        max_segments: 16,
        max_bytes: 65_000,
        ip_id: IpIdRule::Ours,
        sees_ip_header: true,
        window: 64,
        credit: u32::MAX,
        src_port: None,
    };
    Nic::new(NicConfig::new(vec![addr.into()], Mtu::B4096, caps, 1, Profile::Strict))
}
