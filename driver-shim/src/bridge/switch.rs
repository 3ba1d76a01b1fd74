//! What a bridge does with packets, without sockets and in any time: queues, marks, losses, and what is counted.

use std::collections::HashMap;
use std::net::IpAddr;

use fabric::switched::{Markable, Red};
use fabric::{Bottleneck, BottleneckParams};
use rand_core::RngCore;
use rand_pcg::Pcg64;
use wire::ip::{self, Ecn};
use wire::{Duration, Instant, NetHeader, Opcode, Qpn};

use super::report::{FlowReport, Lost, QueueReport, Report};

/// Flows that are counted one by one; packets of more are only counted in queues.
const MOST_FLOWS: usize = 4096;

/// What the way through a bridge is like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Way {
    /// Bits per second of each output.
    pub rate: u64,
    /// Time that packets take beside.
    pub delay: Duration,
    /// Most bytes that wait for an output.
    pub limit: u64,
    /// Marks; `None` for none.
    pub red: Option<Red>,
    /// Probability of a packet to be lost, 0 to 1.
    pub drop: f64,
    /// Of all luck.
    pub seed: u64,
}

/// Whose a packet is.
type Flow = (IpAddr, IpAddr, Qpn);

/// A packet on its way.
#[derive(Debug)]
pub(super) struct Carried {
    bytes: Vec<u8>,
    /// Where its IP header begins; `None` where it has none.
    ip_at: Option<usize>,
    /// Bytes that it takes on Ethernet.
    len: u64,
    /// Where it goes after the queue, in the sender's terms.
    to: usize,
    flow: Option<Flow>,
    was_marked: bool,
}

impl Carried {
    /// The bytes of a packet, whose IP header begins at `ip_at` and which takes `len` bytes on Ethernet.
    pub(super) fn new(bytes: Vec<u8>, ip_at: Option<usize>, len: u64, to: usize) -> Self {
        let ip = ip_at.and_then(|at| bytes.get(at..)).unwrap_or_default();
        let flow = NetHeader::parse_ip(ip).ok().and_then(|(net, body)| {
            let qpn = body.get(5..8)?;
            Some((net.src(), net.dst(), Qpn::new(u32::from_be_bytes([0, qpn[0], qpn[1], qpn[2]]))))
        });
        let was_marked = ip::ecn(ip) == Some(Ecn::Ce);
        Self { bytes, ip_at, len, to, flow, was_marked }
    }

    fn ip(&self) -> &[u8] {
        self.ip_at.and_then(|at| self.bytes.get(at..)).unwrap_or_default()
    }

    fn is_cnp(&self) -> bool {
        NetHeader::parse_ip(self.ip())
            .is_ok_and(|(_, body)| body.first().copied().map(Opcode::from_byte) == Some(Opcode::CNP))
    }
}

impl Markable for Carried {
    fn ecn(&self) -> Ecn {
        ip::ecn(self.ip()).unwrap_or(Ecn::NotEct)
    }

    fn set_ce(&mut self) {
        if let Some(ip) = self.ip_at.and_then(|at| self.bytes.get_mut(at..)) {
            ip::set_ce(ip);
        }
    }
}

/// Output queues.
#[derive(Debug)]
pub(super) struct Switch {
    way: Way,
    outputs: Vec<Output>,
    flows: HashMap<Flow, FlowReport>,
    pub(super) lost: Lost,
    rng: Pcg64,
    began: Instant,
}

#[derive(Debug)]
struct Output {
    to: Vec<String>,
    queue: Bottleneck<Carried>,
}

impl Switch {
    pub(super) fn new(now: Instant, way: Way) -> Self {
        Self {
            way,
            outputs: Vec::new(),
            flows: HashMap::new(),
            lost: Lost::default(),
            rng: Pcg64::new(u128::from(way.seed), 7),
            began: now,
        }
    }

    /// Adds a queue that leads to `to`, and returns its number.
    pub(super) fn add_output(&mut self, now: Instant, to: String) -> usize {
        let number = self.outputs.len();
        self.outputs.push(self.new_output(now, number, to));
        number
    }

    fn new_output(&self, now: Instant, number: usize, to: String) -> Output {
        let Way { rate, delay, limit, red, .. } = self.way;
        let params = BottleneckParams { rate, delay, limit, red };
        let queue = Bottleneck::new(now, params, self.way.seed.wrapping_add(number as u64));
        Output { to: vec![to], queue }
    }

    /// The queue `output` leads to `to`, too.
    pub(super) fn add_name(&mut self, output: usize, to: String) {
        self.outputs[output].to.push(to);
    }

    /// Nothing is on its way through `output`.
    pub(super) fn is_idle(&self, output: usize) -> bool {
        self.outputs[output].queue.poll_timeout().is_none()
    }

    /// Makes of an idle output a new one that leads to `to`. What the old one has counted is forgotten.
    pub(super) fn renew_output(&mut self, now: Instant, output: usize, to: String) {
        self.outputs[output] = self.new_output(now, output, to);
    }

    /// A packet comes.
    pub(super) fn offer(&mut self, now: Instant, output: usize, packet: Carried) {
        const RANGE: f64 = 4_294_967_296.0;
        let len = packet.len;
        let unlucky = self.way.drop > 0.0 && f64::from(self.rng.next_u32()) < self.way.drop * RANGE;
        let dropped = if unlucky {
            self.lost.by_chance += 1;
            Some(packet)
        } else {
            self.outputs[output].queue.push(now, len, packet).err()
        };
        if let Some(flow) = dropped.and_then(|packet| packet.flow).and_then(|flow| self.flow(flow)) {
            flow.dropped += 1;
        }
    }

    /// The next packet that has come through by `now`, and where it goes: its output, and what the sender said.
    pub(super) fn pop(&mut self, now: Instant) -> Option<(usize, usize, Vec<u8>)> {
        let outputs = self.outputs.iter_mut().enumerate();
        let (output, packet) =
            outputs.filter_map(|(number, output)| Some((number, output.queue.pop(now)?))).next()?;
        let (is_marked, is_cnp) = (packet.ecn() == Ecn::Ce && !packet.was_marked, packet.is_cnp());
        if let Some(flow) = packet.flow.and_then(|flow| self.flow(flow)) {
            flow.packets += 1;
            flow.bytes += packet.len;
            flow.marked += u64::from(is_marked);
            flow.cnps += u64::from(is_cnp);
        }
        Some((output, packet.to, packet.bytes))
    }

    /// When the next packet has come through.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.outputs.iter().filter_map(|output| output.queue.poll_timeout()).min()
    }

    /// Starts all counts anew.
    pub(super) fn restart(&mut self, now: Instant) {
        self.flows.clear();
        self.lost = Lost::default();
        self.outputs.iter_mut().for_each(|output| output.queue.restart_stats(now));
        self.began = now;
    }

    /// What was counted.
    pub(super) fn report(&mut self, now: Instant) -> Report {
        let queue = |Output { to, queue }: &mut Output| {
            let stats = queue.stats(now);
            let (mean, deviation) = stats.mean_and_deviation(now);
            QueueReport {
                to: to.clone(),
                packets: stats.sent_packets,
                bytes: stats.sent_bytes,
                marked: stats.ce_marked,
                dropped: stats.dropped,
                mean,
                deviation,
                most: stats.most,
                utilisation: queue.utilisation(now),
            }
        };
        let mut flows: Vec<FlowReport> = self.flows.values().copied().collect();
        flows.sort_by_key(|flow| (std::cmp::Reverse(flow.bytes), flow.src, flow.dst, flow.qpn));
        Report {
            rate: self.way.rate,
            time: now.since(self.began),
            queues: self.outputs.iter_mut().map(queue).collect(),
            flows,
            lost: self.lost,
        }
    }

    fn flow(&mut self, flow: Flow) -> Option<&mut FlowReport> {
        if self.flows.len() >= MOST_FLOWS && !self.flows.contains_key(&flow) {
            return None;
        }
        let (src, dst, qpn) = flow;
        let new = FlowReport { src, dst, qpn, packets: 0, bytes: 0, marked: 0, dropped: 0, cnps: 0 };
        Some(self.flows.entry(flow).or_insert(new))
    }
}

#[cfg(test)]
#[path = "switch_tests.rs"]
mod tests;
