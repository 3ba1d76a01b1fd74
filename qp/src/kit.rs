//! Two NICs joined by hand, for the unit tests: nothing is lost unless a test says so.

use std::net::Ipv4Addr;

use transport::{Access, Completion, DropReason, PdId, Profile, WcStatus};
use wire::batch::{Caps, HeaderKnowledge, IpIdRule, RxBurst, TxBatch};
use wire::{Gid, Instant, Mtu, PacketRepr, Psn, Qpn, RnrTimer, VirtAddr};

use crate::cq::CqId;
use crate::event::Event;
use crate::mr::MrInfo;
use crate::nic::{Nic, NicConfig};
use crate::pair::QpInit;
use crate::state::{AddressVector, AttrMask, QpAttr, QpState, QpType};
use crate::wr::{QpCap, RecvWr, SendWr};
use transport::wqe::Sge;

pub(crate) const CAPS: Caps = Caps {
    max_segments: 8,
    max_bytes: 65_000,
    ip_id: IpIdRule::Ours,
    sees_ip_header: true,
    window: 16,
    credit: u32::MAX,
    src_port: None,
};

pub(crate) const ALL: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

/// Of the NIC of host `number`.
pub(crate) fn config(number: u8) -> NicConfig {
    NicConfig::new(
        vec![Ipv4Addr::new(192, 0, 2, number).into()],
        Mtu::B4096,
        CAPS,
        number.into(),
        Profile::Strict,
    )
}

/// A NIC with one queue pair, one completion queue for each side of it, and one region.
pub(crate) struct Host {
    pub(crate) nic: Nic,
    pub(crate) gid: Gid,
    pub(crate) pd: PdId,
    pub(crate) send_cq: CqId,
    pub(crate) recv_cq: CqId,
    pub(crate) init: QpInit,
    pub(crate) qpn: Qpn,
    pub(crate) mr: MrInfo,
}

impl Host {
    /// A host that is made by `change` of what most tests want: not every send is signalled, queues of 16.
    pub(crate) fn with(number: u8, change: impl FnOnce(&mut QpInit)) -> Self {
        Self::on(config(number), number, change)
    }

    /// The same with a NIC of its own configuration.
    pub(crate) fn on(config: NicConfig, number: u8, change: impl FnOnce(&mut QpInit)) -> Self {
        let gid = Gid::from(Ipv4Addr::new(192, 0, 2, number));
        let mut nic = Nic::new(config);
        let pd = nic.alloc_pd();
        let (send_cq, recv_cq) = (nic.create_cq(4096).unwrap(), nic.create_cq(4096).unwrap());
        let mr = nic.reg_mr(pd, vec![number; 1 << 16], ALL).unwrap();
        let cap = QpCap { max_send_wr: 16, max_recv_wr: 16, ..QpCap::default() };
        let mut init = QpInit { cap, ..QpInit::new(QpType::Rc, pd, send_cq, recv_cq) };
        change(&mut init);
        let qpn = nic.create_qp(init).unwrap();
        Self { nic, gid, pd, send_cq, recv_cq, init, qpn, mr }
    }

    pub(crate) fn new(number: u8) -> Self {
        Self::with(number, |_| {})
    }

    /// Attributes to talk to `peer`: MTU 1024, PSNs from 0, 7 retries of either kind, depth 4.
    pub(crate) fn attr(&self, peer: &Self) -> QpAttr {
        QpAttr {
            access: ALL,
            addr: AddressVector { dgid: peer.gid, ..AddressVector::default() },
            path_mtu: Mtu::B1024,
            dest_qpn: peer.qpn,
            rq_psn: Psn::new(0),
            sq_psn: Psn::new(0),
            max_dest_rd_atomic: 4,
            max_rd_atomic: 4,
            min_rnr_timer: RnrTimer::new(12).unwrap(),
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            ..QpAttr::default()
        }
    }

    pub(crate) fn modify(&mut self, state: QpState, attr: &QpAttr, mask: AttrMask) {
        self.nic
            .modify_qp(Instant::ZERO, self.qpn, &QpAttr { state, ..*attr }, mask | AttrMask::STATE)
            .unwrap();
    }

    /// To a state that takes no attributes.
    pub(crate) fn go(&mut self, state: QpState) {
        self.modify(state, &QpAttr::default(), AttrMask::STATE);
    }

    /// From RESET to `state`, through those between.
    pub(crate) fn bring(&mut self, state: QpState, attr: &QpAttr) {
        for to in [QpState::Init, QpState::Rtr, QpState::Rts] {
            if to.number() <= state.number() {
                self.modify(to, attr, AttrMask::to_enter(self.init.qp_type, to));
            }
        }
    }

    pub(crate) fn state(&self) -> QpState {
        self.nic.query_qp(self.qpn).unwrap().0.state
    }

    pub(crate) fn send(&mut self, wr: SendWr) {
        self.nic.post_send(Instant::ZERO, self.qpn, wr).unwrap();
    }

    pub(crate) fn recv(&mut self, wr: RecvWr) {
        self.nic.post_recv(Instant::ZERO, self.qpn, wr).unwrap();
    }

    pub(crate) fn sge(&self, offset: u64, length: u32) -> Sge {
        Sge { addr: self.va(offset), length, lkey: self.mr.lkey }
    }

    pub(crate) fn va(&self, offset: u64) -> VirtAddr {
        VirtAddr::new(self.mr.addr.value() + offset)
    }

    pub(crate) fn sends_done(&mut self) -> Vec<Completion> {
        let mut out = Vec::new();
        self.nic.poll_cq(self.init.send_cq, 1024, &mut out);
        out
    }

    pub(crate) fn receives_done(&mut self) -> Vec<Completion> {
        let mut out = Vec::new();
        self.nic.poll_cq(self.init.recv_cq, 1024, &mut out);
        out
    }

    pub(crate) fn events(&mut self) -> Vec<Event> {
        core::iter::from_fn(|| self.nic.poll_event()).collect()
    }

    /// Everything that may leave at `now`.
    pub(crate) fn transmit_at(&mut self, now: Instant) -> Vec<PacketRepr> {
        let (mut batch, mut packets) = (TxBatch::new(), Vec::new());
        while self.nic.poll_transmit(now, &mut batch) {
            for (net, body) in batch.iter() {
                packets.push(PacketRepr::parse_body(net, body).unwrap());
            }
        }
        packets
    }

    pub(crate) fn transmit(&mut self) -> Vec<PacketRepr> {
        self.transmit_at(Instant::ZERO)
    }

    /// Takes packets in one burst.
    pub(crate) fn take_at(&mut self, now: Instant, packets: &[PacketRepr]) {
        let mut burst = RxBurst::new();
        for packet in packets {
            let mut body = Vec::new();
            packet.emit_body(&mut body);
            burst.push(packet.net, HeaderKnowledge::Seen, &body);
        }
        self.nic.handle_burst(now, &burst);
    }

    pub(crate) fn take(&mut self, packets: &[PacketRepr]) {
        self.take_at(Instant::ZERO, packets);
    }

    /// Why packets were dropped, with how many.
    pub(crate) fn dropped(&self) -> Vec<(DropReason, u64)> {
        self.nic.drops().iter().filter(|(_, n)| *n > 0).collect()
    }
}

/// Two hosts in RTS with each other.
pub(crate) fn connected() -> (Host, Host) {
    join(Host::new(1), Host::new(2), |_| {})
}

/// Two hosts in RTS with each other, with attributes changed by `change`.
pub(crate) fn join(mut a: Host, mut b: Host, change: impl Fn(&mut QpAttr)) -> (Host, Host) {
    let (mut of_a, mut of_b) = (a.attr(&b), b.attr(&a));
    change(&mut of_a);
    change(&mut of_b);
    a.bring(QpState::Rts, &of_a);
    b.bring(QpState::Rts, &of_b);
    (a, b)
}

/// Carries packets both ways until there are none.
pub(crate) fn drive(a: &mut Host, b: &mut Host) {
    drive_at(Instant::ZERO, a, b);
}

pub(crate) fn drive_at(now: Instant, a: &mut Host, b: &mut Host) {
    loop {
        let (from_a, from_b) = (a.transmit_at(now), b.transmit_at(now));
        if from_a.is_empty() && from_b.is_empty() {
            return;
        }
        b.take_at(now, &from_a);
        a.take_at(now, &from_b);
    }
}

/// Marks and statuses.
pub(crate) fn statuses(completions: &[Completion]) -> Vec<(u64, WcStatus)> {
    completions.iter().map(|wc| (wc.wr_id.value(), wc.status)).collect()
}
