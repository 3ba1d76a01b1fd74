//! Two NICs joined in memory, with as many connections between them as are asked for. Nothing is lost.

use std::net::Ipv4Addr;

use ferroce_qp::{
    Access, AddressVector, AttrMask, CcConfig, Completion, CqId, MrInfo, Nic, NicConfig, PdId, Profile,
    QpAttr, QpCap, QpInit, QpState, QpType, Rate, RecvWr, SendWr, Sge, WcStatus,
};
use wire::batch::{Caps, HeaderKnowledge, IpIdRule, RxBurst, TxBatch};
use wire::{Duration, Gid, Instant, Mtu, QKey, Qpn, RnrTimer};

/// Packets of one batch at most, as segmentation offload of small packets has it.
const BATCH: usize = 8;
/// Bytes of the region of each NIC.
const REGION: usize = 1 << 20;
const ACCESS: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);
/// Time that carrying one batch takes.
const STEP: Duration = Duration::from_micros(1);

/// One of the two NICs, and what of it all its queue pairs share.
pub(crate) struct End {
    pub(crate) nic: Nic,
    gid: Gid,
    pub(crate) pd: PdId,
    pub(crate) cq: CqId,
    /// The region that messages come from and go to.
    pub(crate) mr: MrInfo,
    /// Traffic class of its packets: where marks mean something, all have one.
    class: u8,
}

/// A connection: its queue pair at each end.
#[derive(Clone, Copy)]
pub(crate) struct Pair {
    pub(crate) near: Qpn,
    pub(crate) far: Qpn,
}

/// What the near end asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    Send,
    Write,
    Read,
    FetchAdd,
}

pub(crate) struct Link {
    pub(crate) near: End,
    pub(crate) far: End,
    pub(crate) now: Instant,
    mtu: Mtu,
    tx: TxBatch,
    rx: RxBurst,
    done: Vec<Completion>,
}

impl End {
    fn new(host: u8, caps: Caps, mtu: Mtu, cc: &CcConfig) -> Self {
        let gid = Gid::from(Ipv4Addr::new(192, 0, 2, host));
        let mut nic = Nic::new(NicConfig {
            cc: cc.clone(),
            line_rate: Rate::from_gbps(100.0),
            ..NicConfig::new(vec![gid], mtu, caps, host.into(), Profile::Strict)
        });
        let pd = nic.alloc_pd();
        let cq = nic.create_cq(1 << 20).expect("a depth below the limit");
        let mr = nic.reg_mr(pd, vec![host; REGION], ACCESS).expect("rights that go together");
        let class = if cc.algorithm.uses_ecn() { 3 } else { 0 };
        Self { nic, gid, pd, cq, mr, class }
    }

    /// A queue pair of `qp_type` in RESET.
    pub(crate) fn create(&mut self, qp_type: QpType, cap: QpCap) -> Qpn {
        let (pd, cq) = (self.pd, self.cq);
        let init = QpInit { cap, ..QpInit::new(qp_type, pd, cq, cq) };
        self.nic.create_qp(init).expect("room for a queue pair")
    }

    /// Takes a queue pair of any type from RESET to RTS.
    pub(crate) fn bring_up(&mut self, qpn: Qpn, peer_gid: Gid, peer: Qpn, mtu: Mtu) {
        let qp_type = self.nic.query_qp(qpn).expect("it was just made").1.qp_type;
        let mut attr = QpAttr {
            state: QpState::Init,
            access: ACCESS,
            qkey: QKey::new(0x1234),
            addr: AddressVector { dgid: peer_gid, traffic_class: self.class, ..AddressVector::default() },
            path_mtu: mtu,
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
            dest_qpn: peer,
            min_rnr_timer: RnrTimer::new(12).expect("a code below 32"),
            timeout: 18,
            retry_cnt: 7,
            rnr_retry: 7,
            ..QpAttr::default()
        };
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            attr.state = state;
            let mask = AttrMask::to_enter(qp_type, state);
            self.nic.modify_qp(Instant::ZERO, qpn, &attr, mask).expect("a full mask");
        }
    }

    /// Every completion that waits; all of them are successes.
    fn poll(&mut self, done: &mut Vec<Completion>) {
        done.clear();
        self.nic.poll_cq(self.cq, usize::MAX, done);
        assert!(done.iter().all(|wc| wc.status == WcStatus::Success), "nothing fails here");
    }
}

/// The first `length` bytes of a region.
pub(crate) fn sge(mr: &MrInfo, length: u32) -> Sge {
    Sge { addr: mr.addr, length, lkey: mr.lkey }
}

impl Link {
    /// Two NICs without queue pairs, that may have `window` packets of each in flight.
    pub(crate) fn new(window: u32) -> Self {
        let caps = Caps {
            max_segments: BATCH,
            max_bytes: 65_000,
            ip_id: IpIdRule::Ours,
            sees_ip_header: true,
            window,
            credit: u32::MAX,
            src_port: None,
        };
        Self::with(caps, Mtu::B1024)
    }

    /// Two NICs whose packet I/O can do what `caps` say, at the ends of a path of MTU `mtu`.
    pub(crate) fn with(caps: Caps, mtu: Mtu) -> Self {
        Self::controlled(caps, mtu, &CcConfig::default())
    }

    /// With congestion control.
    pub(crate) fn controlled(caps: Caps, mtu: Mtu, cc: &CcConfig) -> Self {
        Self {
            near: End::new(1, caps, mtu, cc),
            far: End::new(2, caps, mtu, cc),
            now: Instant::ZERO,
            mtu,
            tx: TxBatch::new(),
            rx: RxBurst::new(),
            done: Vec::new(),
        }
    }

    /// Two queue pairs in RTS, connected with each other.
    pub(crate) fn connect(&mut self, qp_type: QpType, cap: QpCap) -> Pair {
        let pair = Pair { near: self.near.create(qp_type, cap), far: self.far.create(qp_type, cap) };
        self.near.bring_up(pair.near, self.far.gid, pair.far, self.mtu);
        self.far.bring_up(pair.far, self.near.gid, pair.near, self.mtu);
        pair
    }

    /// So many reliable connections.
    pub(crate) fn connect_many(&mut self, count: usize) -> Vec<Pair> {
        (0..count).map(|_| self.connect(QpType::Rc, QpCap::default())).collect()
    }

    /// Posts `count` messages of `length` bytes on a connection, from region to region.
    pub(crate) fn post(&mut self, pair: Pair, work: Work, length: u32, count: u64) {
        let (from, to) = (self.near.mr, self.far.mr);
        for id in 0..count {
            self.post_one(pair, work, id, (&from, &to), length);
        }
    }

    /// Posts one message from a region of the near end to one of the far end.
    pub(crate) fn post_one(
        &mut self,
        pair: Pair,
        work: Work,
        id: u64,
        (from, to): (&MrInfo, &MrInfo),
        length: u32,
    ) {
        let wr = match work {
            Work::Send => {
                let recv = RecvWr::new(id, &[sge(to, length)]);
                self.far.nic.post_recv(self.now, pair.far, recv).expect("room for a receive");
                SendWr::send(id, &[sge(from, length)])
            }
            Work::Write => SendWr::write(id, &[sge(from, length)], to.addr, to.rkey),
            Work::Read => SendWr::read(id, &[sge(from, length)], to.addr, to.rkey),
            Work::FetchAdd => SendWr::fetch_add(id, sge(from, 8), to.addr, to.rkey, 1),
        };
        self.near.nic.post_send(self.now, pair.near, wr.signaled()).expect("room for a send");
    }

    /// Carries packets both ways, a batch of each in turn, until there are none; lets time pass.
    pub(crate) fn carry(&mut self) {
        loop {
            let there =
                move_batch(self.now, &mut self.near.nic, &mut self.far.nic, &mut self.tx, &mut self.rx);
            let back =
                move_batch(self.now, &mut self.far.nic, &mut self.near.nic, &mut self.tx, &mut self.rx);
            self.now += STEP;
            for nic in [&mut self.near.nic, &mut self.far.nic] {
                if nic.poll_timeout().is_some_and(|due| due <= self.now) {
                    nic.handle_timeout(self.now);
                }
            }
            if !there && !back {
                return;
            }
        }
    }

    /// Takes all completions; how many there were at the near end.
    pub(crate) fn reap(&mut self) -> u64 {
        self.far.poll(&mut self.done);
        self.near.poll(&mut self.done);
        self.done.len() as u64
    }

    /// As [`Link::reap`]: the completions of the near end.
    pub(crate) fn completions(&mut self) -> &[Completion] {
        self.reap();
        &self.done
    }

    /// Packets that both ends have sent so far.
    pub(crate) fn packets(&self) -> u64 {
        self.near.nic.counters().sent_pkts + self.far.nic.counters().sent_pkts
    }
}

/// Carries one batch; false where there is none.
fn move_batch(now: Instant, from: &mut Nic, to: &mut Nic, tx: &mut TxBatch, rx: &mut RxBurst) -> bool {
    if !take_batch(now, from, tx, rx) {
        return false;
    }
    to.handle_burst(now, rx);
    true
}

/// Takes one batch out of a NIC, as the other will receive it; false where there is none.
pub(crate) fn take_batch(now: Instant, from: &mut Nic, tx: &mut TxBatch, rx: &mut RxBurst) -> bool {
    rx.clear();
    if !from.poll_transmit(now, tx) {
        return false;
    }
    for (net, body) in tx.iter() {
        rx.push(net, HeaderKnowledge::Seen, body);
    }
    true
}
