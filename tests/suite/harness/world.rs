//! NICs on a simulated network. Time moves from one thing that happens to the next, so that a second of retries
//! takes no time at all, and every run with the same seed is the same run.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use fabric::{LinkParams, Network, NodeId};
use qp::{CcConfig, CqId, Event, Nic, NicConfig, QpCap, QpInit, QpType, Rate, RecvWr, SrqInit, SrqXrc};
use transport::{Access, Completion, DropReason, PdId, Profile};
use wire::batch::{Caps, IpIdRule, RxBurst, TxBatch};
use wire::{Duration, Gid, Instant, Mtu, Qpn, Srqn};

use super::connect::Conn;
use super::pcap;

/// What a world is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorldConfig {
    /// Name in messages and of the packet dump.
    pub(crate) name: &'static str,
    pub(crate) seed: u64,
    pub(crate) link: LinkParams,
    pub(crate) caps: Caps,
    pub(crate) ipv6: bool,
    pub(crate) hosts: u8,
    /// Of the first and the second host, and in turn of further ones.
    pub(crate) profiles: [Profile; 2],
}

impl WorldConfig {
    /// Two hosts at 10 Gbit/s and 2 µs, and a NIC that sends batches of up to 16 packets.
    pub(crate) fn new(name: &'static str, seed: u64) -> Self {
        Self {
            name,
            seed,
            link: LinkParams::new(10_000_000_000, Duration::from_micros(2)),
            caps: Caps {
                max_segments: 16,
                max_bytes: 65_000,
                ip_id: IpIdRule::BasePlusIndex,
                sees_ip_header: true,
                window: 64,
                credit: u32::MAX,
                src_port: None,
            },
            ipv6: false,
            hosts: 2,
            profiles: [Profile::Strict; 2],
        }
    }
}

/// A NIC and its place on the network.
pub(crate) struct Host {
    pub(crate) nic: Nic,
    pub(crate) node: NodeId,
    pub(crate) gid: Gid,
    pub(crate) pd: PdId,
    pub(crate) events: Vec<Event>,
}

/// One end of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Endpoint {
    /// Index of its host.
    pub(crate) host: usize,
    /// The queue pair that sends.
    pub(crate) qpn: Qpn,
    /// The one that receives: the same, but for XRC.
    pub(crate) receiver: Qpn,
    /// Where its receives are posted, if not to the queue pair.
    pub(crate) srqn: Option<Srqn>,
    pub(crate) send_cq: CqId,
    pub(crate) recv_cq: CqId,
}

/// What the ends of a connection are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    /// A reliable connection.
    Rc,
    /// A reliable connection whose ends have a shared receive queue each.
    Shared,
    /// XRC: an initiator and a target at each end.
    Xrc,
}

/// What a test's program wants after it has looked at the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// To be called again when something has happened, or at this time at the latest.
    Wait(Option<Instant>),
    /// The end.
    Done,
}

/// Hosts around one switch.
pub(crate) struct World {
    pub(crate) net: Network,
    pub(crate) hosts: Vec<Host>,
    pub(crate) now: Instant,
    config: WorldConfig,
    allowed: Vec<DropReason>,
    /// Every n-th batch is refused once, as a full socket would.
    pub(crate) refuse_every: Option<u64>,
    batches: u64,
    batch: TxBatch,
    burst: RxBurst,
}

impl World {
    pub(crate) fn new(config: WorldConfig) -> Self {
        Self::controlled(config, &CcConfig::default())
    }

    /// With congestion control on ports of the links' rate.
    pub(crate) fn controlled(config: WorldConfig, cc: &CcConfig) -> Self {
        let mut net = Network::new(config.seed);
        if std::env::var_os("FERROCE_PCAP").is_some() {
            net.record();
        }
        let hosts = (1..=config.hosts)
            .map(|n| {
                let ip: IpAddr = if config.ipv6 {
                    Ipv6Addr::new(0xFD00, 0, 0, 0, 0, 0, 0, n.into()).into()
                } else {
                    Ipv4Addr::new(10, 0, 0, n).into()
                };
                let gid = Gid::from(ip);
                let plain = NicConfig::new(
                    vec![gid],
                    Mtu::B4096,
                    config.caps,
                    config.seed.wrapping_add(n.into()),
                    config.profiles[usize::from(n - 1) % config.profiles.len()],
                );
                let line_rate =
                    config.link.rate.map_or(NicConfig::LINE_RATE, |rate| Rate::from_bps(rate as f64));
                let mut nic = Nic::new(NicConfig { cc: cc.clone(), line_rate, ..plain });
                let pd = nic.alloc_pd();
                Host { nic, node: net.add_node([gid], config.link), gid, pd, events: Vec::new() }
            })
            .collect();
        Self {
            net,
            hosts,
            now: Instant::ZERO,
            config,
            allowed: Vec::new(),
            refuse_every: None,
            batches: 0,
            batch: TxBatch::new(),
            burst: RxBurst::new(),
        }
    }

    /// Two hosts with one connection, at ease.
    pub(crate) fn pair(config: WorldConfig, conn: Conn) -> (Self, [Endpoint; 2]) {
        let mut world = Self::new(config);
        let ends = world.connect([0, 1], conn, QpCap::default());
        (world, ends)
    }

    /// Declares that packets may be dropped for these reasons. Any other drop fails the test.
    pub(crate) fn allow(&mut self, reasons: &[DropReason]) {
        self.allowed.extend(reasons);
    }

    /// A queue pair on each of two hosts, connected to each other, with completion queues of their own.
    pub(crate) fn connect(&mut self, hosts: [usize; 2], conn: Conn, cap: QpCap) -> [Endpoint; 2] {
        let ends = hosts.map(|host| self.create(host, cap, false));
        for (mine, peer) in [(0, 1), (1, 0)] {
            let peer_name = (self.hosts[ends[peer].host].gid, ends[peer].qpn);
            let psns = [conn.psns[mine], conn.psns[peer]];
            let nic = &mut self.hosts[ends[mine].host].nic;
            conn.establish(nic, self.now, ends[mine].qpn, peer_name, psns)
                .expect("the connection's attributes");
        }
        ends
    }

    /// As [`World::connect`], with ends of another kind.
    pub(crate) fn connect_as(
        &mut self,
        service: Service,
        hosts: [usize; 2],
        conn: Conn,
        cap: QpCap,
    ) -> [Endpoint; 2] {
        let ends = hosts.map(|host| self.create_as(service, host, cap));
        for (mine, peer) in [(0, 1), (1, 0)] {
            let [sq_psn, rq_psn] = [conn.psns[mine], conn.psns[peer]];
            let peer_gid = self.hosts[ends[peer].host].gid;
            let (end, now) = (ends[mine], self.now);
            let nic = self.nic(end);
            let sender = (end.qpn, ends[peer].receiver);
            let receiver = (end.receiver, ends[peer].qpn);
            let pairs = if service == Service::Xrc { vec![sender, receiver] } else { vec![sender] };
            for (qpn, peer_qpn) in pairs {
                conn.establish(nic, now, qpn, (peer_gid, peer_qpn), [sq_psn, rq_psn])
                    .expect("the connection's attributes");
            }
        }
        ends
    }

    fn create_as(&mut self, service: Service, host: usize, cap: QpCap) -> Endpoint {
        let plain = self.create(host, cap, false);
        if service == Service::Rc {
            return plain;
        }
        let Host { nic, pd, .. } = &mut self.hosts[host];
        nic.destroy_qp(plain.qpn).expect("the queue pair");
        let (send_cq, cq) = (plain.send_cq, plain.recv_cq);
        let shared = SrqInit::new(*pd, cap.max_recv_wr, cap.max_recv_sge);
        if service == Service::Shared {
            let srqn = nic.create_srq(shared).expect("a shared receive queue");
            let init = QpInit { cap, srq: Some(srqn), ..QpInit::new(QpType::Rc, *pd, send_cq, cq) };
            let qpn = nic.create_qp(init).expect("a queue pair");
            return Endpoint { qpn, receiver: qpn, srqn: Some(srqn), ..plain };
        }
        let xrcd = nic.alloc_xrcd();
        let shared = SrqInit { xrc: Some(SrqXrc { xrcd, cq }), ..shared };
        let srqn = nic.create_srq(shared).expect("a shared receive queue");
        let qpn = nic.create_qp(QpInit { cap, ..QpInit::xrc_initiator(*pd, send_cq) }).expect("an initiator");
        let receiver = nic.create_qp(QpInit::xrc_target(xrcd)).expect("a target");
        Endpoint { qpn, receiver, srqn: Some(srqn), ..plain }
    }

    /// Posts a receive at an end, wherever its receives come from.
    pub(crate) fn post_recv(&mut self, end: Endpoint, wr: RecvWr) {
        let now = self.now;
        let nic = self.nic(end);
        match end.srqn {
            Some(srqn) => nic.post_srq_recv(srqn, wr),
            None => nic.post_recv(now, end.qpn, wr),
        }
        .expect("the post");
    }

    /// A queue pair in RESET, with completion queues of its own.
    pub(crate) fn create(&mut self, host: usize, cap: QpCap, sq_sig_all: bool) -> Endpoint {
        let Host { nic, pd, .. } = &mut self.hosts[host];
        let send_cq = nic.create_cq(4096).expect("a completion queue");
        let recv_cq = nic.create_cq(4096).expect("a completion queue");
        let init = QpInit { cap, sq_sig_all, ..QpInit::new(QpType::Rc, *pd, send_cq, recv_cq) };
        let qpn = nic.create_qp(init).expect("a queue pair");
        Endpoint { host, qpn, receiver: qpn, srqn: None, send_cq, recv_cq }
    }

    /// Registers `bytes` on a host.
    pub(crate) fn register(&mut self, host: usize, bytes: Vec<u8>, access: Access) -> qp::MrInfo {
        let Host { nic, pd, .. } = &mut self.hosts[host];
        nic.reg_mr(*pd, bytes, access).expect("a memory region")
    }

    pub(crate) fn nic(&mut self, end: Endpoint) -> &mut Nic {
        &mut self.hosts[end.host].nic
    }

    /// All send completions of an end that wait.
    pub(crate) fn send_completions(&mut self, end: Endpoint) -> Vec<Completion> {
        self.poll(end, end.send_cq)
    }

    /// All receive completions of an end that wait.
    pub(crate) fn recv_completions(&mut self, end: Endpoint) -> Vec<Completion> {
        self.poll(end, end.recv_cq)
    }

    fn poll(&mut self, end: Endpoint, cq: CqId) -> Vec<Completion> {
        let mut out = Vec::new();
        self.nic(end).poll_cq(cq, usize::MAX, &mut out);
        out
    }

    /// Lets everything happen until nothing is left to wait for.
    pub(crate) fn drive(&mut self) {
        let limit = self.now + Duration::from_secs(3600);
        self.drive_until(limit);
        assert!(self.now < limit, "still busy after an hour");
    }

    /// Lets everything happen up to `end`, where the clock then stands unless nothing was left to wait for.
    pub(crate) fn drive_until(&mut self, end: Instant) {
        self.run(end, |_| Flow::Wait(None));
    }

    /// Lets everything happen, calling `program` after each thing that did, until it says that it is done, or
    /// nothing is left to wait for, or time is over. Returns whether it said so.
    pub(crate) fn run(&mut self, end: Instant, mut program: impl FnMut(&mut Self) -> Flow) -> bool {
        loop {
            self.settle();
            let wake = match program(self) {
                Flow::Done => return true,
                Flow::Wait(wake) => wake,
            };
            self.settle();
            let timers = self.hosts.iter().filter_map(|host| host.nic.poll_timeout());
            let Some(next) = timers.chain(self.net.poll_timeout()).chain(wake).min() else { return false };
            if next >= end {
                self.now = end;
                return false;
            }
            self.now = self.now.max(next);
        }
    }

    /// Does all that can be done without time passing.
    fn settle(&mut self) {
        let mut busy = true;
        while busy {
            busy = false;
            for host in 0..self.hosts.len() {
                busy |= self.settle_host(host);
            }
        }
    }

    fn settle_host(&mut self, host: usize) -> bool {
        let Host { nic, node, events, .. } = &mut self.hosts[host];
        self.burst.clear();
        let mut busy = self.net.deliver(self.now, *node, &mut self.burst) > 0;
        if busy {
            nic.handle_burst(self.now, &self.burst);
        }
        if nic.poll_timeout().is_some_and(|at| at <= self.now) {
            nic.handle_timeout(self.now);
        }
        while nic.poll_transmit(self.now, &mut self.batch) {
            busy = true;
            self.batches += 1;
            if self.refuse_every.is_some_and(|n| self.batches.is_multiple_of(n)) {
                // Field case F18: the back end could not send; it gets the very same bytes a moment later.
                self.now += Duration::from_micros(5);
            }
            self.net.send_batch(self.now, *node, &self.batch);
        }
        events.extend(std::iter::from_fn(|| nic.poll_event()));
        busy
    }
}

impl Drop for World {
    /// The last checks of a test, and what helps to repeat it where it has failed.
    fn drop(&mut self) {
        let WorldConfig { name, seed, .. } = self.config;
        if let Some(folder) = std::env::var_os("FERROCE_PCAP") {
            let path = std::path::Path::new(&folder).join(format!("{name}-{seed}.pcap"));
            if let Err(error) = pcap::write(&path, self.net.records()) {
                eprintln!("{}: {error}", path.display());
            }
        }
        if std::thread::panicking() {
            eprintln!("{name}: FERROCE_SEED={seed} repeats it; FERROCE_PCAP=folder writes its packets");
            return;
        }
        for host in &self.hosts {
            let undeclared: Vec<_> =
                host.nic.drops().iter().filter(|(why, n)| *n > 0 && !self.allowed.contains(why)).collect();
            assert!(
                undeclared.is_empty(),
                "{name}: FERROCE_SEED={seed}: undeclared drops at {}: {undeclared:?}",
                host.gid
            );
        }
    }
}
