//! One NIC with one queue pair, and a peer whose packets are made by hand.

use std::net::Ipv4Addr;

use qp::{
    AddressVector, AhId, AttrMask, CcConfig, CqId, MrInfo, Nic, NicConfig, QpAttr, QpCap, QpInit, QpType,
    RecvWr, SendWr, Sge,
};
use transport::{Access, Completion, Profile};
use wire::batch::{Caps, HeaderKnowledge, IpIdRule, RxBurst, TxBatch};
use wire::{Duration, Gid, Instant, Mtu, NetHeader, Psn, QKey, Qpn, VirtAddr};

use super::connect::Conn;
use super::packets::{Crafted, Sent};

/// The NIC, its clock, its only queue pair and its only memory region.
pub(crate) struct Lone {
    pub(crate) nic: Nic,
    pub(crate) now: Instant,
    pub(crate) qpn: Qpn,
    pub(crate) mr: MrInfo,
    pub(crate) cq: CqId,
    /// Network header of the peer's packets.
    pub(crate) peer_header: NetHeader,
    /// The way to the peer, for datagrams.
    pub(crate) ah: AhId,
    next_wr: u64,
}

impl Lone {
    /// First PSN that the NIC sends.
    pub(crate) const SQ_PSN: u32 = 40;
    /// First PSN that it expects.
    pub(crate) const RQ_PSN: u32 = 10;
    /// The peer's queue pair.
    pub(crate) const PEER: Qpn = Qpn::new(0x77);
    /// Bytes of the memory region, which allows everything.
    pub(crate) const MR_LEN: usize = 64 << 10;

    /// The peer's address.
    pub(crate) fn peer_gid() -> Gid {
        Ipv4Addr::new(10, 0, 0, 2).into()
    }

    /// Queue key of its queue pair, where that is for datagrams.
    pub(crate) const QKEY: QKey = QKey::new(0x1111_1111);

    /// A NIC connected to the hand-made peer; its PSNs are those above.
    pub(crate) fn new(conn: Conn) -> Self {
        Self::of_type(QpType::Rc, conn)
    }

    /// The same with a queue pair of another type: RC, UC or UD.
    pub(crate) fn of_type(qp_type: QpType, conn: Conn) -> Self {
        Self::between(qp_type, conn, Gid::from(Ipv4Addr::new(10, 0, 0, 1)), Self::peer_gid())
    }

    /// A NIC with congestion control.
    pub(crate) fn controlled(qp_type: QpType, cc: CcConfig) -> Self {
        Self::on(qp_type, Conn::default(), Gid::from(Ipv4Addr::new(10, 0, 0, 1)), Self::peer_gid(), cc)
    }

    /// A NIC without between two addresses of one family.
    pub(crate) fn between(qp_type: QpType, conn: Conn, own: Gid, peer: Gid) -> Self {
        Self::on(qp_type, conn, own, peer, CcConfig::default())
    }

    fn on(qp_type: QpType, conn: Conn, own: Gid, peer: Gid, cc: CcConfig) -> Self {
        let caps = Caps {
            max_segments: 16,
            max_bytes: 65_000,
            ip_id: IpIdRule::Ours,
            sees_ip_header: true,
            window: 64,
            credit: u32::MAX,
            src_port: None,
        };
        let config = NicConfig::new(vec![own], Mtu::B4096, caps, 1, Profile::Strict);
        let mut nic = Nic::new(NicConfig { cc, ..config });
        let pd = nic.alloc_pd();
        let cq = nic.create_cq(256).expect("a completion queue");
        let cap = QpCap::default();
        let init = QpInit { cap, sq_sig_all: true, ..QpInit::new(qp_type, pd, cq, cq) };
        let qpn = nic.create_qp(init).expect("a queue pair");
        let steps = conn.steps(qp_type, (peer, Self::PEER), Psn::new(Self::SQ_PSN), Psn::new(Self::RQ_PSN));
        for (attr, mask) in steps {
            let attr = QpAttr { qkey: Self::QKEY, ..attr };
            nic.modify_qp(Instant::ZERO, qpn, &attr, mask).expect("the attributes");
        }
        let addr = AddressVector { dgid: peer, ..AddressVector::default() };
        let ah = nic.create_ah(pd, addr).expect("an address handle");
        let remote = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let access = Access::LOCAL_WRITE | Access::MW_BIND | remote;
        let mr = nic.reg_mr(pd, vec![0; Self::MR_LEN], access).expect("a memory region");
        let peer_header = NetHeader::v2(peer.ip(), own.ip(), 50_000, 0, 64).expect("one family");
        Self { nic, now: Instant::ZERO, qpn, mr, cq, peer_header, ah, next_wr: 0 }
    }

    /// `len` bytes of the memory region from `offset` on.
    pub(crate) fn sge(&self, offset: u64, len: u32) -> Sge {
        Sge { addr: VirtAddr::new(self.va(offset)), length: len, lkey: self.mr.lkey }
    }

    /// Address of a byte of the memory region.
    pub(crate) fn va(&self, offset: u64) -> u64 {
        self.mr.addr.value() + offset
    }

    /// Bytes of the memory region.
    pub(crate) fn bytes(&mut self, offset: usize, len: usize) -> &mut [u8] {
        self.nic.mr_bytes_mut(self.mr.lkey, offset, len).expect("inside the region")
    }

    /// A word of the memory region.
    pub(crate) fn word(&mut self, offset: usize) -> u64 {
        u64::from_ne_bytes(self.bytes(offset, 8).try_into().expect("eight bytes"))
    }

    /// Posts a send.
    pub(crate) fn post(&mut self, wr: SendWr) {
        self.nic.post_send(self.now, self.qpn, wr).expect("the post");
    }

    /// Posts `n` receives of `len` bytes each at the start of the region.
    pub(crate) fn post_recv(&mut self, n: usize, len: u32) {
        for _ in 0..n {
            let wr = RecvWr::new(self.next_wr, &[self.sge(0, len)]);
            self.next_wr += 1;
            self.nic.post_recv(self.now, self.qpn, wr).expect("the post");
        }
    }

    /// Changes attributes.
    pub(crate) fn modify(&mut self, attr: &QpAttr, mask: AttrMask) -> Result<(), qp::ModifyQpError> {
        self.nic.modify_qp(self.now, self.qpn, attr, mask)
    }

    /// Gives packets of the peer to the NIC, as one burst.
    pub(crate) fn inject(&mut self, packets: &[Crafted]) {
        let mut burst = RxBurst::new();
        for packet in packets {
            let (net, body) = packet.finish(self.peer_header);
            burst.push(net, HeaderKnowledge::Seen, &body);
        }
        self.nic.handle_burst(self.now, &burst);
    }

    /// Gives bytes of the peer to the NIC, from BTH to ICRC, as they are.
    pub(crate) fn inject_raw(&mut self, net: NetHeader, body: &[u8]) {
        let mut burst = RxBurst::new();
        burst.push(net, HeaderKnowledge::Seen, body);
        self.nic.handle_burst(self.now, &burst);
    }

    /// Everything that the NIC has to send at this moment.
    pub(crate) fn sent(&mut self) -> Vec<Sent> {
        self.sent_raw().iter().map(|(net, body)| Sent::parse(*net, body)).collect()
    }

    /// The same as the bytes they are, from BTH to ICRC.
    pub(crate) fn sent_raw(&mut self) -> Vec<(NetHeader, Vec<u8>)> {
        let mut batch = TxBatch::new();
        let mut out = Vec::new();
        while self.nic.poll_transmit(self.now, &mut batch) {
            out.extend(batch.iter().map(|(net, body)| (net, body.to_vec())));
        }
        out
    }

    /// Injects and returns what the NIC sends at once.
    pub(crate) fn answer(&mut self, packets: &[Crafted]) -> Vec<Sent> {
        self.inject(packets);
        self.sent()
    }

    /// Lets time pass; everything sent meanwhile, with its time.
    pub(crate) fn pass(&mut self, time: Duration) -> Vec<(Instant, Sent)> {
        let end = self.now + time;
        let mut out = Vec::new();
        loop {
            let now = self.now;
            out.extend(self.sent().into_iter().map(|sent| (now, sent)));
            match self.nic.poll_timeout().filter(|at| *at <= end) {
                Some(at) => self.now = self.now.max(at),
                None => break,
            }
            self.nic.handle_timeout(self.now);
        }
        self.now = end;
        out
    }

    /// All completions that wait.
    pub(crate) fn completions(&mut self) -> Vec<Completion> {
        let mut out = Vec::new();
        self.nic.poll_cq(self.cq, usize::MAX, &mut out);
        out
    }

    /// Marks of all completions that wait; all must be good.
    pub(crate) fn completed(&mut self) -> Vec<u64> {
        let completions = self.completions();
        let good = |wc: &Completion| wc.status == transport::WcStatus::Success;
        assert!(completions.iter().all(good), "{completions:?}");
        completions.iter().map(|wc| wc.wr_id.value()).collect()
    }

    /// A PSN of the peer: `n` after the first.
    pub(crate) fn psn(n: u32) -> Psn {
        Psn::new(Self::RQ_PSN).wrapping_add(n)
    }
}
