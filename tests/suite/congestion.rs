//! Congestion control with whole NICs: the captured CNP, counters beside the wire, a crowded switch, and hostile CNPs.

use std::net::Ipv4Addr;
use std::sync::Arc;

use dcqcn::{Algorithm, Params};
use fabric::switched::{Cable, MarkAt, Red};
use fabric::{Fabric, FaultKind, FaultSpec, Frame, Node, SwitchParams, TapPoint};
use qp::{CcConfig, MrInfo, Nic, NicConfig, Profile, QpCap, QpInit, QpType, Rate, RecvWr, SendWr, Sge};
use rand_core::{RngCore, SeedableRng};
use rand_pcg::Pcg64Mcg;
use transport::{Access, DropReason};
use wire::batch::{Caps, HeaderKnowledge, IpIdRule, RxBurst, TxBatch};
use wire::ip::Ecn;
use wire::opcode::Kind;
use wire::{Duration, Gid, Instant, Mtu, Operation, Packet, PacketRepr, Psn, Qpn};

use crate::harness::{Conn, Crafted, Lone, World, WorldConfig, seed};

fn dcqcn(params: Params) -> CcConfig {
    CcConfig {
        algorithm: Algorithm::Dcqcn,
        params: Arc::new(params),
        burst: Duration::ZERO,
        ..CcConfig::default()
    }
}

/// Caps of a NIC that sends single packets from `src_port`.
const fn caps(src_port: Option<u16>) -> Caps {
    Caps {
        max_segments: 1,
        max_bytes: 65_000,
        ip_id: IpIdRule::Ours,
        sees_ip_header: true,
        window: 64,
        credit: u32::MAX,
        src_port,
    }
}

fn gid(address: [u8; 4]) -> Gid {
    Gid::from(Ipv4Addr::from(address))
}

fn bytes_of(hex: &str) -> Vec<u8> {
    let digits: String = hex.split_whitespace().collect();
    let pairs = (0..digits.len()).step_by(2).map(|at| &digits[at..at + 2]);
    pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
}

/// What a ConnectX-4 Lx sent from 10.0.17.1 to 10.0.18.1 for queue pair 0x118: the IP packet, and in it the ICRC.
const CAPTURED: &str = "45c2003c 718c4000 40119161 0a001101 0a001201 000012b7 00280000
    8100ffff 40000118 00000000 00000000 00000000 00000000 00000000 82fd002a";

/// Rules R-CNP-1, R-CNP-2 and R-CNP-8.
#[test]
fn f44_the_cnp_is_that_of_real_hardware_byte_for_byte() {
    let (own, peer) = (gid([10, 0, 17, 1]), gid([10, 0, 18, 1]));
    let config = NicConfig::new(vec![own], Mtu::B4096, caps(Some(0)), 1, Profile::Strict);
    let mut nic = Nic::new(NicConfig { cc: dcqcn(Params::CONNECTX), ..config });
    let (pd, cq) = (nic.alloc_pd(), nic.create_cq(16).unwrap());
    let qpn = nic.create_qp(QpInit::new(QpType::Rc, pd, cq, cq)).unwrap();
    Conn::default().establish(&mut nic, Instant::ZERO, qpn, (peer, Qpn::new(0x118)), [0, 0]).unwrap();
    let marked = wire::NetHeader::v2(peer.ip(), own.ip(), 0, 3, 64).unwrap();
    let mut burst = RxBurst::new();
    let (net, body) = Crafted::rc(Operation::SendOnly, qpn, Psn::new(0)).finish(marked);
    burst.push(net, HeaderKnowledge::Seen, &body);
    nic.handle_burst(Instant::ZERO, &burst);
    let mut batch = TxBatch::new();
    assert!(nic.poll_transmit(Instant::ZERO, &mut batch));
    let (net, body) = batch.iter().next().unwrap();
    // Of what the hardware counts, the identification is another.
    let (net, mut body) = (net.with_id(0x718C), body.to_vec());
    wire::icrc::fill(&net, &mut body);
    assert_eq!(Frame::new(net, body).to_ip(), bytes_of(CAPTURED));
}

/// Rules R-CNP-5 and R-CNP-6: the hardware's packet cuts the rate of the queue pair it names.
#[test]
fn f44_the_hardwares_cnp_cuts_the_rate_of_a_live_queue_pair() {
    let own = gid([10, 0, 18, 1]);
    let config = NicConfig::new(vec![own], Mtu::B4096, caps(None), 1, Profile::Strict);
    let mut nic = Nic::new(NicConfig { cc: dcqcn(Params::PAPER), ..config });
    let (pd, cq) = (nic.alloc_pd(), nic.create_cq(16).unwrap());
    let captured = Qpn::new(0x118);
    let qpn = std::iter::repeat_with(|| nic.create_qp(QpInit::new(QpType::Rc, pd, cq, cq)).unwrap());
    let qpn = qpn.into_iter().find(|qpn| *qpn == captured).unwrap();
    let peer = (gid([10, 0, 17, 1]), Qpn::new(0x11));
    Conn::default().establish(&mut nic, Instant::ZERO, qpn, peer, [0, 0]).unwrap();
    let mut burst = RxBurst::new();
    burst.push_ip(&bytes_of(CAPTURED));
    nic.handle_burst(Instant::ZERO, &burst);
    let state = nic.cc_state(Instant::ZERO, qpn).unwrap();
    assert_eq!((state.rate.rate, state.cnps_handled), (Some(Rate::from_gbps(5.0)), 1));
    assert_eq!((nic.drops().total(), nic.poll_event()), (0, None));
}

/// Rule R-CNP-3: two queue pairs count apart, and so do two NICs.
#[test]
fn f44_each_queue_pair_has_an_interval_of_its_own() {
    let mut world = World::controlled(WorldConfig::new("f44", seed(44)), &dcqcn(Params::PAPER));
    let conn = Conn { traffic_class: 3, ..Conn::default() };
    let ends = [(); 2].map(|()| world.connect([0, 1], conn, QpCap::default()));
    let [near, far] = [0, 1].map(|host| world.register(host, vec![0; 8], Access::all()));
    for end in ends {
        let (now, sge) = (world.now, Sge { addr: near.addr, length: 8, lkey: near.lkey });
        for id in 0..4 {
            let wr = SendWr::write(id, &[sge], far.addr, far.rkey).signaled();
            world.nic(end[0]).post_send(now, end[0].qpn, wr).unwrap();
        }
    }
    world.drive();
    let [a, b] = [0, 1].map(|host| *world.hosts[host].nic.counters());
    assert_eq!((b.np_ecn_marked_roce_packets, b.np_cnp_sent, a.rp_cnp_handled), (8, 2, 2));
}

/// Rules R-CNP-2 to R-CNP-5: marks, losses and missing receives, with the counters of the NICs beside what is on the
/// wire.
#[test]
fn f43_counters_are_what_the_wire_shows() {
    let mut world = World::controlled(
        WorldConfig::new("f43", seed(43)),
        &dcqcn(Params { cnp_interval: Duration::ZERO, ..Params::PAPER }),
    );
    world.net.record();
    world.allow(&[DropReason::OutOfSequence]);
    let conn = Conn { traffic_class: 3, timeout: 18, ..Conn::default() };
    let [a, b] = world.connect([0, 1], conn, QpCap::default());
    let drops = ["psn=+10", "psn=+90", "psn=+170"].map(|at| FaultSpec::parse(FaultKind::Drop, at).unwrap());
    let node = world.hosts[0].node;
    world.net.set_faults(node, drops);
    let [near, far] = [0, 1].map(|host| world.register(host, vec![0; 1 << 17], Access::all()));
    let sge = |mr: &MrInfo, length| Sge { addr: mr.addr, length, lkey: mr.lkey };
    // One loss in each.
    for id in 0..3 {
        let now = world.now;
        let write = SendWr::write(id, &[sge(&near, 80 << 10)], far.addr, far.rkey);
        world.nic(a).post_send(now, a.qpn, write).unwrap();
        world.drive();
    }
    // A receive that comes too late, twice.
    for id in 3..5 {
        let now = world.now;
        world.nic(a).post_send(now, a.qpn, SendWr::send(id, &[sge(&near, 8)])).unwrap();
        world.drive_until(now + Duration::from_micros(300));
        world.post_recv(b, RecvWr::new(id, &[sge(&far, 8)]));
        world.drive();
    }
    let seen = |from: usize, point: TapPoint, what: &dyn Fn(&Packet<'_>) -> bool| {
        let node = world.hosts[from].node;
        let records = world.net.records().iter();
        let records = records.filter(|record| record.node == node && record.point == point);
        records
            .filter(|record| what(&Packet::parse_body(record.frame.net, &record.frame.body).unwrap()))
            .count() as u64
    };
    let cnp = |packet: &Packet<'_>| packet.info().kind == Kind::Cnp;
    let marked = |packet: &Packet<'_>| packet.net.ecn() == Ecn::Ce;
    let nak = |code: u8| {
        move |packet: &Packet<'_>| packet.aeth().is_some_and(|aeth| aeth.syndrome().byte() & 0xE0 == code)
    };
    let (sequence_nak, rnr_nak) = (nak(0x60), nak(0x20));
    let [of_a, of_b] = [0, 1].map(|host| *world.hosts[host].nic.counters());
    assert_eq!(of_b.np_ecn_marked_roce_packets, seen(1, TapPoint::Delivered, &marked));
    assert_eq!(of_a.np_ecn_marked_roce_packets, seen(0, TapPoint::Delivered, &marked));
    assert_eq!(of_b.np_cnp_sent, seen(1, TapPoint::Sent, &cnp));
    assert_eq!(of_a.rp_cnp_handled, seen(0, TapPoint::Delivered, &cnp));
    assert_eq!(
        of_b.np_cnp_sent, of_b.np_ecn_marked_roce_packets,
        "each packet of data is marked and answered"
    );
    assert_eq!(of_a.packet_seq_err, seen(0, TapPoint::Delivered, &sequence_nak));
    assert_eq!(of_a.rnr_nak_retry_err, seen(0, TapPoint::Delivered, &rnr_nak));
    assert_eq!(of_b.send_rnr_err, seen(1, TapPoint::Sent, &rnr_nak));
    assert_eq!((of_a.packet_seq_err, of_a.rnr_nak_retry_err), (3, 2));
    assert!(of_b.np_cnp_sent >= 242);
    assert_eq!(of_b.out_of_sequence, world.hosts[1].nic.drops().get(DropReason::OutOfSequence) + 3);
    assert_eq!(world.net.counts(node).tx_faults.dropped, 3);
}

const LINE: u64 = 10_000_000_000;
/// Class of data, as it leaves.
const DATA: u8 = 0x02;

/// Hosts around one switch that marks, each with a port of [`LINE`]; the first receives what all others send.
struct Crowd {
    fabric: Fabric,
    switch: Node,
    hosts: Vec<(Nic, Node, MrInfo, Vec<Qpn>)>,
    now: Instant,
    batch: TxBatch,
}

impl Crowd {
    fn new(senders: u8, cc: &CcConfig, qp_type: QpType) -> Self {
        let mut fabric = Fabric::new(seed(7));
        let red = Red { kmin: 5_000, kmax: 200_000, pmax: 0.01, at: MarkAt::Dequeue };
        let switch = fabric.add_switch(SwitchParams { red: Some(red), ..SwitchParams::default() });
        let cable = Cable { rate: LINE, delay: Duration::from_micros(1) };
        let mut hosts: Vec<_> = (1..=senders + 1)
            .map(|n| {
                let gid = gid([10, 0, 0, n]);
                let node = fabric.add_host([gid]);
                fabric.connect(node, switch, cable).unwrap();
                let config = NicConfig::new(vec![gid], Mtu::B1024, caps(None), n.into(), Profile::Strict);
                let line_rate = Rate::from_bps(LINE as f64);
                let mut nic = Nic::new(NicConfig { cc: cc.clone(), line_rate, ..config });
                let pd = nic.alloc_pd();
                let mr = nic.reg_mr(pd, vec![0; 1 << 16], Access::all()).unwrap();
                let cq = nic.create_cq(4096).unwrap();
                let count = if n == 1 { senders } else { 1 };
                let init = QpInit { sq_sig_all: false, ..QpInit::new(qp_type, pd, cq, cq) };
                let qps: Vec<_> = (0..count).map(|_| nic.create_qp(init).unwrap()).collect();
                (nic, node, mr, qps)
            })
            .collect();
        fabric.find_routes();
        for n in 1..=senders {
            let (at, last) = (usize::from(n), n + 1);
            let ends = [hosts[0].3[at - 1], hosts[at].3[0]];
            let (near, far) = (gid([10, 0, 0, 1]), gid([10, 0, 0, last]));
            for (host, own, peer) in [(0, ends[0], (far, ends[1])), (at, ends[1], (near, ends[0]))] {
                let nic = &mut hosts[host].0;
                let conn = Conn { timeout: 18, ..Conn::default() };
                conn.establish(nic, Instant::ZERO, own, peer, [0, 0]).unwrap();
            }
        }
        Self { fabric, switch, hosts, now: Instant::ZERO, batch: TxBatch::new() }
    }

    /// What a host asks for as long as its queue takes it.
    fn refill(&mut self, host: usize, make: impl Fn(Sge, &MrInfo) -> SendWr) {
        let far = self.hosts[0].2;
        let (nic, _, mr, qps) = &mut self.hosts[host];
        let sge = Sge { addr: mr.addr, length: 32 << 10, lkey: mr.lkey };
        while nic.post_send(self.now, qps[0], make(sge, &far)).is_ok() {}
    }

    /// Lets `senders` send until `end`.
    fn run(&mut self, end: Instant, senders: &[usize], make: impl Fn(Sge, &MrInfo) -> SendWr) {
        loop {
            for &sender in senders {
                self.refill(sender, &make);
            }
            for host in 0..self.hosts.len() {
                self.settle(host);
            }
            let timers = self.hosts.iter().filter_map(|host| host.0.poll_timeout());
            let next = timers.chain(self.fabric.poll_timeout()).min().unwrap();
            if next > end {
                return;
            }
            self.now = self.now.max(next);
            self.fabric.handle_timeout(self.now);
        }
    }

    fn settle(&mut self, host: usize) {
        let (nic, node, ..) = &mut self.hosts[host];
        let mut burst = RxBurst::new();
        while let Some((_, frame)) = self.fabric.receive(*node) {
            burst.push(frame.net, HeaderKnowledge::Seen, &frame.body);
        }
        nic.handle_burst(self.now, &burst);
        if nic.poll_timeout().is_some_and(|at| at <= self.now) {
            nic.handle_timeout(self.now);
        }
        while self.fabric.may_send(*node, DATA >> 5) && nic.poll_transmit(self.now, &mut self.batch) {
            for (net, body) in self.batch.iter() {
                self.fabric.send(self.now, *node, Frame::new(net, body.to_vec()));
            }
        }
    }

    /// Share of the receiver's port that was used from `begin` on.
    fn utilisation(&self, begin: Instant) -> f64 {
        let stats = self.fabric.queue_stats(self.switch, self.hosts[0].1, DATA >> 5).unwrap();
        stats.sent_bytes as f64 * 8e9 / self.now.since(begin).as_nanos() as f64 / LINE as f64
    }

    fn rate(&self, host: usize) -> Option<Rate> {
        let (nic, _, _, qps) = &self.hosts[host];
        nic.cc_state(self.now, qps[0]).unwrap().rate.rate
    }
}

fn at_millis(millis: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(millis)
}

/// Rule R-CNP-2: marks make CNPs, CNPs cut, two share the port; and who is left alone comes back. With reliable and unreliable
/// connections.
#[test]
fn two_nics_share_a_port_and_one_alone_gets_it_all() {
    for qp_type in [QpType::Rc, QpType::Uc] {
        let mut crowd = Crowd::new(2, &dcqcn(Params::PAPER), qp_type);
        let write = |sge, far: &MrInfo| SendWr::write(1, &[sge], far.addr, far.rkey);
        crowd.run(at_millis(5), &[1, 2], write);
        crowd.fabric.restart_stats();
        crowd.run(at_millis(15), &[1, 2], write);
        let used = crowd.utilisation(at_millis(5));
        assert!(used > 0.95, "{qp_type:?}: {used} of the port");
        let rates = [1, 2].map(|host| crowd.rate(host).unwrap().gbps());
        let sum = rates[0] + rates[1];
        assert!((8.0..13.0).contains(&sum) && rates.iter().all(|rate| *rate > 2.0), "{qp_type:?}: {rates:?}");
        let stats = crowd.fabric.queue_stats(crowd.switch, crowd.hosts[0].1, DATA >> 5).unwrap();
        assert!(stats.mean_and_deviation(crowd.now).0 < 200_000.0, "the queue stays between the marks");
        let counters: Vec<_> = crowd.hosts.iter().map(|host| *host.0.counters()).collect();
        let handled = counters[1].rp_cnp_handled + counters[2].rp_cnp_handled;
        let sent = counters[0].np_cnp_sent;
        assert!(sent > 20 && (handled..=handled + 2).contains(&sent), "{sent} sent, {handled} handled");
        assert!(sent <= counters[0].np_ecn_marked_roce_packets);
        // The second has nothing to send any more.
        crowd.run(at_millis(60), &[1], write);
        let rate = crowd.rate(1).map_or(LINE as f64, Rate::bps);
        assert!(rate > 0.95 * LINE as f64, "{qp_type:?}: came back to {rate}");
    }
}

/// Rule R-CNP-9: who reads is paced by the responders: the marks on their answers come back to them as CNPs.
#[test]
fn responders_of_reads_slow_down() {
    // The receiver asks both others for more than its port takes.
    let mut crowd = Crowd::new(2, &dcqcn(Params::PAPER), QpType::Rc);
    for step in 1..=150 {
        for n in [1, 2] {
            let far = crowd.hosts[n].2;
            let (nic, _, mr, qps) = &mut crowd.hosts[0];
            let sge = Sge { addr: mr.addr, length: 32 << 10, lkey: mr.lkey };
            let read = SendWr::read(1, &[sge], far.addr, far.rkey);
            while nic.post_send(crowd.now, qps[n - 1], read.clone()).is_ok() {}
        }
        crowd.run(Instant::ZERO + Duration::from_micros(100 * step), &[], |sge, _| SendWr::send(1, &[sge]));
    }
    let rates = [1, 2].map(|host| crowd.rate(host).unwrap().gbps());
    assert!(rates.iter().all(|rate| (1.0..9.0).contains(rate)), "{rates:?}");
    assert!(crowd.hosts[1].0.counters().rp_cnp_handled > 10);
    assert_eq!(crowd.hosts[0].0.counters().rp_cnp_handled, 0, "it sends next to nothing");
    let used = crowd.utilisation(Instant::ZERO);
    assert!(used > 0.9, "{used} of the port");
}

/// Rule R-CNP-5: CNPs for any queue pair, at any time and in any number, forged ones too: nothing panics, no memory grows, the rate
/// stays at or above its floor, and whoever they were for works on.
#[test]
fn f44_floods_of_cnps_do_no_more_than_slow_down() {
    let floor = Rate::from_mbps(100.0);
    for (cc, controlled) in [
        (dcqcn(Params { min_rate: floor, ..Params::PAPER }), true),
        (dcqcn(Params { min_rate: floor, ..Params::CONNECTX }), true),
        (CcConfig::default(), false),
    ] {
        let mut lone = Lone::controlled(QpType::Rc, cc);
        let mut random = Pcg64Mcg::seed_from_u64(seed(44));
        let (mut ours, mut others) = (0, 0);
        for _ in 0..20_000 {
            lone.now += Duration::from_nanos(u64::from(random.next_u32() % 20_000));
            let qpn =
                if random.next_u32() % 2 == 0 { lone.qpn } else { Qpn::new(random.next_u32() & 0xFF_FFFF) };
            ours += u64::from(qpn == lone.qpn);
            others += u64::from(qpn != lone.qpn);
            let mut cnp =
                PacketRepr::cnp(lone.peer_header.with_traffic_class(random.next_u32().to_be_bytes()[0]), qpn);
            // Reserved bytes and flags mean nothing.
            let flags = random.next_u32();
            cnp.bth = cnp.bth.with_ack_req(flags & 1 != 0).with_congestion(flags & 2 != 0, flags & 4 != 0);
            cnp.finish();
            let mut body = Vec::new();
            cnp.emit_body(&mut body);
            lone.inject_raw(cnp.net, &body);
            assert!(lone.sent_raw().is_empty(), "nothing is said to a CNP");
            let state = lone.nic.cc_state(lone.now, lone.qpn);
            assert_eq!(state.is_some(), controlled);
            assert!(state.is_none_or(|state| state.rate.rate.is_none_or(|rate| rate >= floor)));
            assert_eq!(lone.nic.poll_timeout(), None, "nobody waits");
        }
        let counters = *lone.nic.counters();
        let expected = if controlled { (ours, 0) } else { (0, ours) };
        assert_eq!((counters.rp_cnp_handled, counters.rp_cnp_ignored), expected);
        let drops = lone.nic.drops();
        assert_eq!((drops.get(DropReason::NoSuchQp), drops.total()), (others, others));
        let sge = lone.sge(0, 8);
        lone.post(SendWr::send(1, &[sge]));
        let sent = lone.pass(Duration::from_millis(2));
        assert_eq!(sent.iter().filter(|(_, packet)| packet.operation == Operation::SendOnly).count(), 1);
    }
}

/// A flood of marks for the same queue pair or many, with nobody taking what is to be sent, costs no more than a bounded
/// queue of CNPs.
#[test]
fn marks_that_nobody_can_be_told_of_cost_no_memory() {
    let mut lone =
        Lone::controlled(QpType::Rc, dcqcn(Params { cnp_interval: Duration::ZERO, ..Params::PAPER }));
    lone.peer_header = lone.peer_header.with_traffic_class(3);
    let duplicate =
        Crafted::rc(Operation::WriteOnly, lone.qpn, Lone::psn(0)).reth(lone.va(0), lone.mr.rkey, 0);
    for _ in 0..10_000 {
        lone.inject(std::slice::from_ref(&duplicate));
    }
    let cnps = lone.sent_raw().iter().filter(|(net, _)| net.traffic_class() == 0xC2).count();
    assert_eq!(cnps, 1024);
    assert_eq!(lone.nic.counters().np_cnp_sent, 1024);
    assert_eq!(lone.nic.counters().np_ecn_marked_roce_packets, 10_000);
}
