//! What queue pairs take, counted at the allocator: the figures of `scenarios/xrc_memory.toml` are held against it.

#![expect(clippy::unwrap_used, reason = "what fails is the test")]

use std::alloc::System;
use std::net::Ipv4Addr;

use cap::Cap;
use ferroce_lab::Scenario;
use qp::{
    Access, AddressVector, AttrMask, CqId, MrInfo, Nic, NicConfig, PdId, Profile, QpAttr, QpInit, QpState,
    QpType, RecvWr, SendWr, Sge, SrqInit, SrqXrc, WcStatus, XrcdId,
};
use wire::batch::{Caps, HeaderKnowledge, IpIdRule, RxBurst, TxBatch};
use wire::{Gid, Instant, Mtu, QKey, Qpn, RnrTimer, Srqn};

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

/// Queue pairs of each kind that are counted.
const COUNT: u16 = 4_000;
const ACCESS: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE);

/// One of two NICs.
struct End {
    nic: Nic,
    gid: Gid,
    pd: PdId,
    cq: CqId,
    mr: MrInfo,
    xrcd: XrcdId,
}

impl End {
    fn new(host: u8) -> Self {
        let gid = Gid::from(Ipv4Addr::new(192, 0, 2, host));
        let caps = Caps {
            max_segments: 8,
            max_bytes: 65_000,
            ip_id: IpIdRule::Ours,
            sees_ip_header: true,
            window: 64,
            credit: u32::MAX,
            src_port: None,
        };
        let mut nic = Nic::new(NicConfig::new(vec![gid], Mtu::B1024, caps, host.into(), Profile::Strict));
        let (pd, cq, xrcd) = (nic.alloc_pd(), nic.create_cq(1 << 16).unwrap(), nic.alloc_xrcd());
        let mr = nic.reg_mr(pd, vec![host; 64], ACCESS).unwrap();
        Self { nic, gid, pd, cq, mr, xrcd }
    }

    fn create(&mut self, qp_type: QpType) -> Qpn {
        let init = match qp_type {
            QpType::XrcIni => QpInit::xrc_initiator(self.pd, self.cq),
            QpType::XrcTgt => QpInit::xrc_target(self.xrcd),
            _ => QpInit::new(qp_type, self.pd, self.cq, self.cq),
        };
        self.nic.create_qp(init).unwrap()
    }

    fn connect(&mut self, qp_type: QpType, qpn: Qpn, (peer_gid, peer): (Gid, Qpn)) {
        let mut attr = QpAttr {
            access: ACCESS,
            qkey: QKey::new(1),
            addr: AddressVector { dgid: peer_gid, ..AddressVector::default() },
            path_mtu: Mtu::B1024,
            dest_qpn: peer,
            min_rnr_timer: RnrTimer::new(12).unwrap(),
            timeout: 18,
            retry_cnt: 7,
            rnr_retry: 7,
            ..QpAttr::default()
        };
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            attr.state = state;
            self.nic.modify_qp(Instant::ZERO, qpn, &attr, AttrMask::to_enter(qp_type, state)).unwrap();
        }
    }

    fn sge(&self) -> Sge {
        Sge { addr: self.mr.addr, length: 64, lkey: self.mr.lkey }
    }

    fn reap(&mut self, done: &mut Vec<qp::Completion>) {
        done.clear();
        self.nic.poll_cq(self.cq, usize::MAX, done);
        assert!(done.iter().all(|wc| wc.status == WcStatus::Success));
    }
}

fn allocated() -> f64 {
    ALLOCATOR.allocated() as f64
}

/// Carries everything both ways.
fn carry(ends: &mut [End; 2], tx: &mut TxBatch, rx: &mut RxBurst) {
    loop {
        let mut idle = true;
        for (from, to) in [(0, 1), (1, 0)] {
            while ends[from].nic.poll_transmit(Instant::ZERO, tx) {
                idle = false;
                rx.clear();
                tx.iter().for_each(|(net, body)| rx.push(net, HeaderKnowledge::Seen, body));
                ends[to].nic.handle_burst(Instant::ZERO, rx);
            }
        }
        if idle {
            return;
        }
    }
}

/// Bytes that both ends of a connection take together, each of which has carried a message.
fn connection(near: QpType, far: QpType) -> f64 {
    let mut ends = [End::new(1), End::new(2)];
    let srqn = shared_queue(&mut ends[1]);
    let (mut tx, mut rx, mut done) = (TxBatch::new(), RxBurst::new(), Vec::with_capacity(64));
    let mut before = 0.0;
    // What all share has its room after the first of them.
    for n in 0..=COUNT {
        if n == 1 {
            before = allocated();
        }
        let (a, b) = (ends[0].create(near), ends[1].create(far));
        let gids = [ends[0].gid, ends[1].gid];
        ends[0].connect(near, a, (gids[1], b));
        ends[1].connect(far, b, (gids[0], a));
        let (from, to) = (ends[0].sge(), ends[1].sge());
        let mut send = SendWr::send(1, &[from]).signaled();
        if far == QpType::XrcTgt {
            send = send.for_srq(srqn);
            ends[1].nic.post_srq_recv(srqn, RecvWr::new(1, &[to])).unwrap();
        } else {
            ends[1].nic.post_recv(Instant::ZERO, b, RecvWr::new(1, &[to])).unwrap();
        }
        ends[0].nic.post_send(Instant::ZERO, a, send).unwrap();
        carry(&mut ends, &mut tx, &mut rx);
        for end in &mut ends {
            end.reap(&mut done);
            assert_eq!(done.len(), 1);
        }
    }
    (allocated() - before) / f64::from(COUNT)
}

fn shared_queue(end: &mut End) -> Srqn {
    let xrc = Some(SrqXrc { xrcd: end.xrcd, cq: end.cq });
    end.nic.create_srq(SrqInit { xrc, ..SrqInit::new(end.pd, 64, 1) }).unwrap()
}

/// Bytes of a shared receive queue.
fn shared() -> f64 {
    let mut end = End::new(1);
    shared_queue(&mut end);
    let before = allocated();
    for _ in 0..COUNT {
        shared_queue(&mut end);
    }
    (allocated() - before) / f64::from(COUNT)
}

/// Bytes of a receive that waits in a shared queue.
fn receive() -> f64 {
    let mut end = End::new(1);
    let srqn = end.nic.create_srq(SrqInit::new(end.pd, u32::from(COUNT), 1)).unwrap();
    let (before, piece) = (allocated(), end.sge());
    for id in 0..u64::from(COUNT) {
        end.nic.post_srq_recv(srqn, RecvWr::new(id, &[piece])).unwrap();
    }
    (allocated() - before) / f64::from(COUNT)
}

/// What the scenario says is what is counted here, within a tenth.
#[test]
fn the_scenario_has_the_figures_of_this_library() {
    let scenario = Scenario::builtin("xrc_memory", &[], None).unwrap().unwrap();
    let memory = scenario.memory.unwrap();
    for (key, said, counted) in [
        ("rc_bytes", memory.rc_bytes, connection(QpType::Rc, QpType::Rc) / 2.0),
        ("xrc_bytes", memory.xrc_bytes, connection(QpType::XrcIni, QpType::XrcTgt)),
        ("srq_bytes", memory.srq_bytes, shared()),
        ("receive_bytes", memory.receive_bytes, receive()),
    ] {
        println!("{key}: {said} in the file, {counted:.0} counted");
        assert!(
            (counted / said - 1.0).abs() < 0.1,
            "{key} = {counted:.0} in scenarios/xrc_memory.toml, not {said}"
        );
    }
}
