//! Two NICs joined by hand: every operation once, without a network between.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::net::Ipv4Addr;

use ferroce_qp::{
    Access, AddressVector, AttrMask, Completion, CqId, MrInfo, Nic, NicConfig, PdId, Profile, QpAttr, QpInit,
    QpState, QpType, RecvWr, SendWr, Sge, WcOpcode, WcStatus,
};
use wire::batch::{Caps, HeaderKnowledge, IpIdRule, RxBurst, TxBatch};
use wire::{Gid, Instant, Mtu, Psn, Qpn, RnrTimer, VirtAddr};

const CAPS: Caps = Caps {
    max_segments: 64,
    max_bytes: 65_000,
    ip_id: IpIdRule::Ours,
    sees_ip_header: true,
    window: 64,
    credit: u32::MAX,
    src_port: None,
};

struct End {
    nic: Nic,
    gid: Gid,
    pd: PdId,
    cq: CqId,
    qpn: Qpn,
    mr: MrInfo,
}

const ALL: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

fn end(host: u8) -> End {
    let gid = Gid::from(Ipv4Addr::new(192, 0, 2, host));
    let config = NicConfig::new(vec![gid], Mtu::B4096, CAPS, u64::from(host), Profile::Strict);
    let mut nic = Nic::new(config);
    let pd = nic.alloc_pd();
    let cq = nic.create_cq(64).unwrap();
    let mr = nic.reg_mr(pd, vec![host; 1 << 16], ALL).unwrap();
    let init = QpInit { sq_sig_all: true, ..QpInit::new(QpType::Rc, pd, cq, cq) };
    let qpn = nic.create_qp(init).unwrap();
    End { nic, gid, pd, cq, qpn, mr }
}

fn connect(a: &mut End, b: &End, psn: (u32, u32)) {
    let now = Instant::ZERO;
    let attr = QpAttr {
        access: ALL,
        addr: AddressVector { dgid: b.gid, ..AddressVector::default() },
        path_mtu: Mtu::B1024,
        dest_qpn: b.qpn,
        rq_psn: Psn::new(psn.1),
        sq_psn: Psn::new(psn.0),
        max_dest_rd_atomic: 4,
        max_rd_atomic: 4,
        min_rnr_timer: RnrTimer::new(12).unwrap(),
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        ..QpAttr::default()
    };
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        let mask = AttrMask::to_enter(QpType::Rc, state);
        a.nic.modify_qp(now, a.qpn, &QpAttr { state, ..attr }, mask).unwrap();
    }
}

fn pair() -> (End, End) {
    let (mut a, mut b) = (end(1), end(2));
    // Both counts soon wrap.
    connect(&mut a, &b, (0xFF_FFFE, 0xFF_FFF0));
    connect(&mut b, &a, (0xFF_FFF0, 0xFF_FFFE));
    (a, b)
}

/// Carries packets from one to the other; returns how many.
fn carry(from: &mut Nic, to: &mut Nic) -> usize {
    let (mut batch, mut burst) = (TxBatch::new(), RxBurst::new());
    let mut n = 0;
    while from.poll_transmit(Instant::ZERO, &mut batch) {
        burst.clear();
        for (net, body) in batch.iter() {
            burst.push(net, HeaderKnowledge::Seen, body);
            n += 1;
        }
        to.handle_burst(Instant::ZERO, &burst);
    }
    n
}

fn drive(a: &mut End, b: &mut End) {
    while carry(&mut a.nic, &mut b.nic) + carry(&mut b.nic, &mut a.nic) > 0 {}
}

fn poll(end: &mut End) -> Vec<Completion> {
    let mut out = Vec::new();
    end.nic.poll_cq(end.cq, 64, &mut out);
    out
}

fn sge(mr: &MrInfo, offset: u64, length: u32) -> Sge {
    Sge { addr: VirtAddr::new(mr.addr.value() + offset), length, lkey: mr.lkey }
}

#[test]
fn every_operation_moves_its_bytes() {
    let (mut a, mut b) = pair();
    let now = Instant::ZERO;
    for size in [0_u32, 1, 33, 1024, 4096, 20_000] {
        let data: Vec<u8> = (0..=250_u8).cycle().take(size as usize).collect();
        let (src, dst) = (sge(&a.mr, 0, size), sge(&b.mr, 0, 20_000));
        a.nic.mr_bytes_mut(a.mr.lkey, 0, data.len()).unwrap().copy_from_slice(&data);

        b.nic.post_recv(now, b.qpn, RecvWr::new(1, &[dst])).unwrap();
        a.nic.post_send(now, a.qpn, SendWr::send_imm(2, &[src], [1, 2, 3, 4])).unwrap();
        drive(&mut a, &mut b);
        let (sent, received) = (poll(&mut a), poll(&mut b));
        assert_eq!((sent.len(), received.len()), (1, 1), "size {size}");
        assert_eq!(sent[0].status, WcStatus::Success);
        assert_eq!((received[0].opcode, received[0].byte_len), (WcOpcode::Recv, size));
        assert_eq!(received[0].imm, Some([1, 2, 3, 4]));
        assert_eq!(b.nic.mr_bytes(b.mr.lkey, 0, data.len()).unwrap(), data);

        let far = VirtAddr::new(b.mr.addr.value() + 30_000);
        a.nic.post_send(now, a.qpn, SendWr::write(3, &[src], far, b.mr.rkey)).unwrap();
        a.nic.post_send(now, a.qpn, SendWr::read(4, &[sge(&a.mr, 30_000, size)], far, b.mr.rkey)).unwrap();
        drive(&mut a, &mut b);
        assert_eq!(poll(&mut a).iter().map(|wc| wc.wr_id.value()).collect::<Vec<_>>(), [3, 4]);
        assert_eq!(b.nic.mr_bytes(b.mr.lkey, 30_000, data.len()).unwrap(), data);
        assert_eq!(a.nic.mr_bytes(a.mr.lkey, 30_000, data.len()).unwrap(), data);
    }
}

#[test]
fn atomics_give_what_they_found() {
    let (mut a, mut b) = pair();
    b.nic.mr_bytes_mut(b.mr.lkey, 8, 8).unwrap().copy_from_slice(&41_u64.to_ne_bytes());
    let far = VirtAddr::new(b.mr.addr.value() + 8);
    let near = sge(&a.mr, 16, 8);
    for (wr, found, left) in [
        (SendWr::fetch_add(1, near, far, b.mr.rkey, u64::MAX), 41, 40),
        (SendWr::cmp_swap(2, near, far, b.mr.rkey, 40, 7), 40, 7),
        (SendWr::cmp_swap(3, near, far, b.mr.rkey, 40, 9), 7, 7_u64),
    ] {
        a.nic.post_send(Instant::ZERO, a.qpn, wr).unwrap();
        drive(&mut a, &mut b);
        assert_eq!(poll(&mut a)[0].status, WcStatus::Success);
        assert_eq!(a.nic.mr_bytes(a.mr.lkey, 16, 8).unwrap(), u64::to_ne_bytes(found));
        assert_eq!(b.nic.mr_bytes(b.mr.lkey, 8, 8).unwrap(), left.to_ne_bytes());
    }
}

#[test]
fn a_bad_key_ends_the_connection_with_its_status_and_flushes_the_rest() {
    let (mut a, mut b) = pair();
    let now = Instant::ZERO;
    let bad = wire::RKey::new(b.mr.rkey.value() ^ 1);
    b.nic.post_recv(now, b.qpn, RecvWr::new(9, &[])).unwrap();
    a.nic.post_send(now, a.qpn, SendWr::write(1, &[sge(&a.mr, 0, 64)], b.mr.addr, bad)).unwrap();
    a.nic.post_send(now, a.qpn, SendWr::send(2, &[])).unwrap();
    drive(&mut a, &mut b);
    let statuses: Vec<_> = poll(&mut a).iter().map(|wc| (wc.wr_id.value(), wc.status)).collect();
    assert_eq!(statuses, [(1, WcStatus::RemAccessErr), (2, WcStatus::WrFlushErr)]);
    assert_eq!(poll(&mut b)[0].status, WcStatus::WrFlushErr);
    assert_eq!(b.nic.query_qp(b.qpn).unwrap().0.state, QpState::Err);
    assert_eq!(a.nic.query_qp(a.qpn).unwrap().0.state, QpState::Err);
    assert!(a.nic.dealloc_pd(a.pd).is_err(), "the domain is in use");
}
