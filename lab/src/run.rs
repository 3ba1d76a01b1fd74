//! Runs a scenario: builds its hosts, switches and cables, lets time go from one event to the next, and reports.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use dcqcn::{Algorithm, Profile, Rate};
use fabric::faults::Direction;
use fabric::switched::{FabricError, Threshold};
use fabric::{ETHERNET_OVERHEAD, Fabric, Frame, Node};
use rand_core::RngCore;
use rand_pcg::Pcg64;
use wire::batch::{RxBurst, TxBatch};
use wire::{Duration, Instant};

use crate::flow::{Flow, Plan};
use crate::host::{Desk, Host, HostConfig, address};
use crate::memory::Memory;
use crate::meter::{Meter, Watched};
use crate::report::{Mark, Report, Run, Summary, more};
use crate::scenario::{NodeRef, Scenario, Setup};
use crate::theory;

/// Ethernet, IPv4, UDP, BTH and ICRC of a packet from the middle of a message.
const OVERHEAD: f64 = ETHERNET_OVERHEAD as f64 + 20.0 + 8.0 + 12.0 + 4.0;

/// Who watches a run.
pub trait Observer {
    /// So much of all is done, 0 to 1.
    fn progress(&mut self, part: f64);

    /// A packet left or came to the host whose packets are captured, at this time of the simulated clock. Only asked for
    /// where [`Observer::wants_packets`].
    fn packet(&mut self, at: Instant, frame: &Frame);

    /// Whether it is to be told of packets.
    fn wants_packets(&self) -> bool;
}

/// Nobody watches.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unwatched;

impl Observer for Unwatched {
    fn progress(&mut self, _part: f64) {}

    fn packet(&mut self, _at: Instant, _frame: &Frame) {}

    fn wants_packets(&self) -> bool {
        false
    }
}

/// Why a scenario does not run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// Something of a queue pair cannot be made.
    #[error("a queue pair cannot be made: {0}")]
    Create(#[from] qp::CreateError),
    /// A queue pair does not take its attributes.
    #[error("a queue pair cannot be connected: {0}")]
    Modify(#[from] qp::ModifyQpError),
    /// Memory cannot be registered.
    #[error("memory cannot be registered: {0}")]
    Memory(#[from] qp::MrError),
    /// A receive cannot be posted.
    #[error("a receive cannot be posted: {0}")]
    Post(#[from] qp::PostError),
    /// The network cannot be joined as it says.
    #[error("the network cannot be made: {0}")]
    Fabric(#[from] FabricError),
    /// Neighbours that are none.
    #[error("measure.watch: {0} and {1} are no neighbours")]
    NoNeighbours(String, String),
}

/// Runs all setups of `scenario`, one after the other.
///
/// # Errors
/// Where one cannot be built.
pub fn run(scenario: &Scenario, observer: &mut dyn Observer) -> Result<Report, RunError> {
    let all = scenario.setups.len() as f64;
    let mut runs = Vec::new();
    for (n, setup) in scenario.setups.iter().enumerate() {
        let mut world = World::new(setup, scenario.seed)?;
        world.run(setup, observer, (n as f64 / all, 1.0 / all));
        runs.push(world.finish(setup));
    }
    if let Some(memory) = &scenario.memory {
        let summary = Summary { more: memory.figures(), ..Summary::default() };
        runs.push(Run { summary, ..Run::default() });
    }
    Ok(Report {
        scenario: scenario.name.clone(),
        title: scenario.title.clone(),
        see: scenario.see.clone(),
        seed: scenario.seed,
        parameters: scenario.parameters.clone(),
        summary: runs.first().map(|run| run.summary.clone()).unwrap_or_default(),
        runs,
        plots: scenario.memory.as_ref().map(Memory::plots).unwrap_or_default(),
    })
}

/// Everything of one run.
struct World {
    fabric: Fabric,
    switches: Vec<Node>,
    hosts: Vec<Host>,
    /// Host by node; `None` for switches.
    by_node: Vec<Option<usize>>,
    names: Vec<String>,
    /// Every cable, both ways.
    edges: Vec<(Node, Node)>,
    flows: Vec<Flow>,
    followers: Vec<Vec<usize>>,
    senders: Vec<usize>,
    meter: Meter,
    wakes: BinaryHeap<Reverse<(Instant, usize)>>,
    /// When hosts begin and stop to ask for pauses; the next is the last.
    stuck: Vec<(Instant, usize, u8, bool)>,
    capture: usize,
    batch: TxBatch,
    burst: RxBurst,
}

impl World {
    fn new(setup: &Setup, seed: u64) -> Result<Self, RunError> {
        let mut fabric = Fabric::new(seed);
        fabric.watch_pauses();
        let switches: Vec<Node> = setup.switches.iter().map(|it| fabric.add_switch(it.params)).collect();
        let mut names: Vec<String> = setup.switches.iter().map(|switch| switch.name.clone()).collect();
        let mut edges = Vec::new();
        let mut nodes = Vec::new();
        for (number, host) in setup.hosts.iter().enumerate() {
            let node = fabric.add_host([address(number)]);
            fabric.connect(node, switches[host.switch], host.cable)?;
            edges.extend([(node, switches[host.switch]), (switches[host.switch], node)]);
            names.push(host.name.clone());
            nodes.push(node);
        }
        for &(from, to, cable) in &setup.trunks {
            fabric.connect(switches[from], switches[to], cable)?;
            edges.extend([(switches[from], switches[to]), (switches[to], switches[from])]);
        }
        fabric.find_routes();
        for &(at, host, via) in &setup.routes {
            fabric.set_route(switches[at], address(host), switches[via])?;
        }
        for (number, host) in setup.hosts.iter().enumerate().filter(|(_, host)| !host.faults.is_empty()) {
            fabric.set_faults(nodes[number], host.faults.iter().copied(), seed.wrapping_add(number as u64));
        }
        let mut qp = setup.qp;
        if qp.timeout > 0 {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most 20")]
            let slower = setup.dilation.log2().ceil() as u8;
            qp.timeout = (qp.timeout + slower).min(31);
        }
        let mut work = vec![1; setup.hosts.len()];
        for flow in &setup.flows {
            work[flow.from] += qp.depth as usize;
            work[flow.to] += crate::host::RECEIVES as usize;
        }
        let host = |(number, node): (usize, &Node)| {
            Host::new(&HostConfig {
                number,
                node: *node,
                gid: address(number),
                seed,
                line: Rate::from_bps(setup.hosts[number].cable.rate as f64),
                cc: &setup.cc,
                qp: &qp,
                work: work[number],
            })
        };
        let mut hosts = nodes.iter().enumerate().map(host).collect::<Result<Vec<_>, _>>()?;
        let mut followers = vec![Vec::new(); setup.flows.len()];
        for (index, flow) in setup.flows.iter().enumerate() {
            if let Some(of) = flow.follows {
                followers[of].push(index);
            }
        }
        let mut rng = Pcg64::new(u128::from(seed), 17);
        let (mut flows, mut starts) = (Vec::new(), Vec::new());
        for (index, flow) in setup.flows.iter().enumerate() {
            let ends = pair_mut(&mut hosts, flow.from, flow.to);
            let announces = !followers[index].is_empty();
            let qpn = Host::join(ends, index, flow, &qp, announces)?;
            let jitter = Duration::from_nanos(rng.next_u64() % flow.jitter.as_nanos().max(1));
            let start = Instant::ZERO + flow.start + jitter;
            starts.push(start);
            let plan = Plan {
                messages: flow.messages,
                period: flow.period,
                start,
                stop: Instant::ZERO + flow.stop,
                follows: flow.follows.is_some(),
                announces,
                chunk: qp.chunk,
                depth: qp.depth,
            };
            flows.push(Flow::new(plan, qpn));
        }
        hosts.iter_mut().for_each(|host| host.begin(&flows));
        let lines: Vec<u64> = setup.flows.iter().map(|flow| setup.hosts[flow.from].cable.rate).collect();
        let mut by_node = vec![None; switches.len()];
        by_node.extend((0..hosts.len()).map(Some));
        let mut stuck: Vec<_> = setup
            .stuck
            .iter()
            .flat_map(|&(host, priority, from, to)| {
                [(Instant::ZERO + from, host, priority, true), (Instant::ZERO + to, host, priority, false)]
            })
            .collect();
        stuck.sort_by(|a, b| b.cmp(a));
        let wakes = hosts.iter().enumerate().filter_map(|(n, host)| Some(Reverse((host.wake?, n)))).collect();
        let queues = watched(setup, &switches, &nodes)?;
        Ok(Self {
            fabric,
            switches,
            by_node,
            names,
            edges,
            flows,
            followers,
            senders: setup.flows.iter().map(|flow| flow.from).collect(),
            meter: Meter::new(setup, queues, &lines, &starts),
            hosts,
            wakes,
            stuck,
            capture: setup.measure.capture,
            batch: TxBatch::new(),
            burst: RxBurst::new(),
        })
    }

    /// Lets everything happen until the end.
    fn run(&mut self, setup: &Setup, observer: &mut dyn Observer, (done, part): (f64, f64)) {
        let end = Instant::ZERO + setup.duration;
        let captures = observer.wants_packets();
        loop {
            let measured = self.meter.poll_timeout();
            let wake = self.wakes.peek().map(|Reverse((at, _))| *at);
            let stuck = self.stuck.last().map(|(at, ..)| *at);
            let others = [self.fabric.poll_timeout(), wake, stuck].into_iter().flatten();
            let now = others.fold(measured, Instant::min);
            if now > end {
                return;
            }
            self.fabric.handle_timeout(now);
            while let Some(change) = self.fabric.poll_pause() {
                self.meter.pause(change);
            }
            if stuck == Some(now) {
                self.set_stuck(now);
            }
            while let Some(node) = self.fabric.poll_host() {
                if let Some(Some(host)) = self.by_node.get(node.index()) {
                    self.drive(now, *host, captures.then_some(&mut *observer));
                }
            }
            while let Some(&Reverse((at, host))) = self.wakes.peek().filter(|Reverse((at, _))| *at <= now) {
                self.wakes.pop();
                // What has been set for another time since is not meant.
                if self.hosts[host].wake == Some(at) {
                    self.drive(now, host, captures.then_some(&mut *observer));
                }
            }
            if measured == now {
                let (hosts, flows, senders) = (&self.hosts, &self.flows, &self.senders);
                let states = |flow: usize| hosts[senders[flow]].cc_state(now, flows[flow].qpn);
                if self.meter.handle_timeout(now, &mut self.fabric, &states) {
                    let share = now.as_nanos() as f64 / end.as_nanos() as f64;
                    observer.progress(done + part * share);
                }
            }
        }
    }

    fn drive(&mut self, now: Instant, index: usize, capture: Option<&mut dyn Observer>) {
        let host = &mut self.hosts[index];
        let before = host.wake;
        let mut desk = Desk {
            fabric: &mut self.fabric,
            flows: &mut self.flows,
            followers: &self.followers,
            meter: &mut self.meter,
            batch: &mut self.batch,
            burst: &mut self.burst,
            capture: match capture {
                Some(observer) if index == self.capture => Some(observer),
                _ => None,
            },
        };
        host.drive(now, &mut desk);
        if let Some(wake) = host.wake {
            // A time that has come already is that of something that only a free cable lets happen.
            let wake = wake.max(now + Duration::from_nanos(1));
            host.wake = Some(wake);
            if before != Some(wake) || before <= Some(now) {
                self.wakes.push(Reverse((wake, index)));
            }
        }
    }

    fn set_stuck(&mut self, now: Instant) {
        while let Some((_, host, priority, on)) = self.stuck.pop_if(|(at, ..)| *at <= now) {
            self.fabric.set_stuck(now, self.hosts[host].node, 1 << priority, on);
        }
    }

    fn finish(mut self, setup: &Setup) -> Run {
        let names = self.names;
        let name = |node: Node| names.get(node.index()).cloned().unwrap_or_default();
        let mut run = self.meter.finish(&setup.name, &mut self.fabric, &name);
        let fabric = &self.fabric;
        let summary = &mut run.summary;
        let (mut storms, mut ended, mut watchdog) = (0, 0, 0);
        for &(node, peer) in &self.edges {
            summary.pause_frames += fabric.port_stats(node, peer).map_or(0, |stats| stats.pauses_sent);
            for stats in (0..8).filter_map(|priority| fabric.queue_stats(node, peer, priority)) {
                summary.ce_marked += stats.ce_marked;
                summary.drops += stats.dropped + stats.watchdog_dropped;
                storms += stats.storms;
                ended += stats.storms_ended;
                watchdog += stats.watchdog_dropped;
            }
        }
        summary.drops += self.switches.iter().map(|switch| fabric.unroutable(*switch)).sum::<u64>();
        for host in &self.hosts {
            let dropped = |way| fabric.fault_counts(host.node, way).dropped;
            summary.drops += dropped(Direction::Tx) + dropped(Direction::Rx);
        }
        let mut add = |key: &str, value: f64| {
            summary.more.insert(key.to_owned(), value);
        };
        add("events", fabric.events() as f64);
        if setup.switches.iter().any(|switch| switch.params.watchdog.is_some()) {
            add("storms", storms as f64);
            add("storms_ended", ended as f64);
            add("watchdog_drops", watchdog as f64);
        }
        let failed = self.flows.iter().filter(|flow| flow.has_failed()).count();
        if failed > 0 {
            add("flows_failed", failed as f64);
        }
        if let Some(fair) = fair_gbps(setup) {
            add(more::FAIR_GBPS, fair);
        }
        if let Some(least) = ideal_ms(setup) {
            add(more::IDEAL_MS, least);
        }
        if let Some(found) = fixed_point(setup) {
            add(more::ALPHA_FIXED_POINT, found.alpha);
            add("theory_queue_kb", found.queue / 1e3);
            add("theory_marked", found.marked);
        }
        run
    }
}

fn pair_mut(hosts: &mut [Host], a: usize, b: usize) -> [&mut Host; 2] {
    let (low, high) = hosts.split_at_mut(a.max(b));
    if a < b { [&mut low[a], &mut high[0]] } else { [&mut high[0], &mut low[b]] }
}

/// The queues that are watched, with the lines that belong in their charts.
fn watched(setup: &Setup, switches: &[Node], hosts: &[Node]) -> Result<Vec<Watched>, RunError> {
    let node = |end: NodeRef| match end {
        NodeRef::Host(host) => (hosts[host], &setup.hosts[host].name),
        NodeRef::Switch(switch) => (switches[switch], &setup.switches[switch].name),
    };
    let mut out = Vec::new();
    for &(from, to) in &setup.measure.watch {
        let ((node, from_name), (peer, to_name)) = (node(from), node(to));
        let cable = match (from, to) {
            (NodeRef::Host(host), NodeRef::Switch(switch))
            | (NodeRef::Switch(switch), NodeRef::Host(host)) => {
                (setup.hosts[host].switch == switch).then_some(setup.hosts[host].cable)
            }
            (NodeRef::Switch(a), NodeRef::Switch(b)) => setup
                .trunks
                .iter()
                .find(|(from, to, _)| (*from, *to) == (a, b) || (*to, *from) == (a, b))
                .map(|(.., cable)| *cable),
            _ => None,
        };
        let cable = cable.ok_or_else(|| RunError::NoNeighbours(from_name.clone(), to_name.clone()))?;
        let mut marks = Vec::new();
        let mut mark = |name: &str, bytes: f64| {
            marks.push(Mark { name: name.to_owned(), value: bytes / 1e3 });
        };
        if let NodeRef::Switch(switch) = from {
            let params = &setup.switches[switch].params;
            if let Some(red) = params.red.filter(|_| setup.cc.algorithm.uses_ecn()) {
                mark("Kmin", red.kmin as f64);
                mark("Kmax", red.kmax as f64);
            }
            if let (Some(pfc), NodeRef::Host(host)) = (params.pfc, to)
                && let Threshold::Static(xoff) = pfc.xoff
            {
                let mut senders: Vec<usize> =
                    setup.flows.iter().filter(|flow| flow.to == host).map(|flow| flow.from).collect();
                senders.sort_unstable();
                senders.dedup();
                let here = senders.iter().all(|sender| setup.hosts[*sender].switch == switch);
                if here && !senders.is_empty() {
                    mark("all senders at XOFF", (xoff * senders.len() as u64) as f64);
                }
            }
            if out.is_empty()
                && let Some(found) = fixed_point(setup)
            {
                mark("theory", found.queue);
            }
        }
        out.push(Watched { name: format!("{from_name}→{to_name}"), node, peer, rate: cable.rate, marks });
    }
    Ok(out)
}

/// What each flow gets if all are equal, where the first watched queue is all they share; in Gb/s.
fn fair_gbps(setup: &Setup) -> Option<f64> {
    let (_, NodeRef::Host(host)) = *setup.measure.watch.first()? else { return None };
    let together = setup.flows.iter().all(|flow| flow.to == host && flow.messages.is_none());
    let rate = setup.hosts[host].cable.rate as f64 * setup.dilation / 1e9;
    together.then(|| rate / setup.flows.len() as f64)
}

/// The least time of messages that all begin at once: that of the bytes over the busiest of the hosts' cables, in ms.
fn ideal_ms(setup: &Setup) -> Option<f64> {
    /// What the first packet of a WRITE has beside.
    const RETH: f64 = 16.0;
    let mut bits = vec![[0.0; 2]; setup.hosts.len()];
    for flow in &setup.flows {
        let (bytes, count) =
            flow.messages.filter(|_| flow.period.is_none() && flow.start == Duration::ZERO)?;
        let packets = bytes.div_ceil(u64::from(flow.mtu.bytes())) as f64;
        let requests = bytes.div_ceil(u64::from(setup.qp.chunk)) as f64;
        let message = bytes as f64 + packets * OVERHEAD + requests * RETH;
        bits[flow.from][0] += message * f64::from(count) * 8.0;
        bits[flow.to][1] += message * f64::from(count) * 8.0;
    }
    let seconds =
        setup.hosts.iter().zip(&bits).map(|(host, [out, into])| out.max(*into) / host.cable.rate as f64);
    Some(seconds.fold(0.0, f64::max) * 1e3 / setup.dilation)
}

/// The fixed point of the fluid model, where it is asked for and is about this.
fn fixed_point(setup: &Setup) -> Option<theory::FixedPoint> {
    let is_paper = setup.cc.params.profile == Profile::Paper && setup.cc.algorithm == Algorithm::Dcqcn;
    let (NodeRef::Switch(switch), NodeRef::Host(host)) = *setup.measure.watch.first()? else { return None };
    if !setup.measure.theory || !is_paper {
        return None;
    }
    let incast = theory::Incast {
        flows: setup.flows.len(),
        rate_bps: setup.hosts[host].cable.rate as f64,
        packet: f64::from(setup.flows[0].mtu.bytes()) + OVERHEAD,
    };
    incast.fixed_point(&setup.cc.params, &setup.switches[switch].params.red?)
}
