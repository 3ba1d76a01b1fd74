//! Nodes around one switch, in virtual time.
//!
//! A packet goes through the sender's faults, over its link to the switch, over the receiver's link, through the
//! receiver's faults, and waits in its inbox. A test sends, asks when something happens next, moves its clock
//! there, and collects what has arrived; nothing happens in between.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap};

use wire::batch::{HeaderKnowledge, RxBurst, TxBatch};
use wire::{Gid, Instant, NetHeader};

use crate::faults::{Direction, FaultSpec};
use crate::frame::Frame;
use crate::injector::FaultCounts;
use crate::link::{Link, LinkParams};
use crate::stage::Stage;

/// A node of one [`Network`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(usize);

impl NodeId {
    /// Its place in the order of [`Network::add_node`], from 0.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0
    }
}

/// What became of the packets of one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeCounts {
    /// Packets that it sent.
    pub sent: u64,
    /// Packets put into its inbox.
    pub delivered: u64,
    /// Faults on what it sent.
    pub tx_faults: FaultCounts,
    /// Faults on what came to it.
    pub rx_faults: FaultCounts,
    /// Packets lost to a full queue, on its way out or in.
    pub overflows: u64,
    /// Packets that it sent to an address that no node has.
    pub unroutable: u64,
}

/// Where on its way a packet was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TapPoint {
    /// As its sender sent it, before any fault.
    Sent,
    /// As its receiver got it.
    Delivered,
}

/// A recorded packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// When.
    pub at: Instant,
    /// The node that sent or got it.
    pub node: NodeId,
    /// Which of the two.
    pub point: TapPoint,
    /// The packet.
    pub frame: Frame,
}

struct Node {
    stage: Stage,
    uplink: Link,
    downlink: Link,
    inbox: Vec<(Instant, Frame)>,
    sent: u64,
    delivered: u64,
    unroutable: u64,
}

/// A packet that reaches the switch or the far end of a downlink at `at`.
struct Event {
    at: Instant,
    order: u64,
    hop: Hop,
    frame: Frame,
}

#[derive(Clone, Copy)]
enum Hop {
    Switch { from: usize },
    Node { to: usize },
}

/// A network of nodes around one switch.
pub struct Network {
    seed: u64,
    now: Instant,
    nodes: Vec<Node>,
    routes: BTreeMap<Gid, usize>,
    events: BinaryHeap<Event>,
    scheduled: u64,
    records: Option<Vec<Record>>,
}

impl Network {
    /// A network without nodes. All its luck comes from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            now: Instant::ZERO,
            nodes: Vec::new(),
            routes: BTreeMap::new(),
            events: BinaryHeap::new(),
            scheduled: 0,
            records: None,
        }
    }

    /// The seed it was made with: print it where a test fails.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Adds a node that owns `gids`, with the same kind of link each way.
    pub fn add_node(&mut self, gids: impl IntoIterator<Item = Gid>, link: LinkParams) -> NodeId {
        let index = self.nodes.len();
        self.routes.extend(gids.into_iter().map(|gid| (gid, index)));
        self.nodes.push(Node {
            stage: Stage::new([], self.seed.wrapping_add(index as u64)),
            uplink: Link::new(link),
            downlink: Link::new(link),
            inbox: Vec::new(),
            sent: 0,
            delivered: 0,
            unroutable: 0,
        });
        NodeId(index)
    }

    /// Replaces the faults of `node`: `tx` hits what it sends, `rx` what comes to it.
    pub fn set_faults(&mut self, node: NodeId, specs: impl IntoIterator<Item = FaultSpec>) {
        self.nodes[node.0].stage.set_faults(specs);
    }

    /// Starts to record every packet, where it is sent and where it is delivered.
    pub fn record(&mut self) {
        self.records.get_or_insert_default();
    }

    /// What was recorded so far, in order of time.
    #[must_use]
    pub fn records(&self) -> &[Record] {
        self.records.as_deref().unwrap_or_default()
    }

    /// What became of the packets of `node`.
    #[must_use]
    pub fn counts(&self, node: NodeId) -> NodeCounts {
        let node = &self.nodes[node.0];
        NodeCounts {
            sent: node.sent,
            delivered: node.delivered,
            tx_faults: node.stage.counts(Direction::Tx),
            rx_faults: node.stage.counts(Direction::Rx),
            overflows: node.uplink.overflows() + node.downlink.overflows(),
            unroutable: node.unroutable,
        }
    }

    /// `node` sends one packet: `body` is BTH to ICRC.
    pub fn send(&mut self, now: Instant, node: NodeId, net: NetHeader, body: &[u8]) {
        let now = self.advance(now);
        let frame = Frame::new(net, body.to_vec());
        self.tap(now, node.0, TapPoint::Sent, &frame);
        self.nodes[node.0].sent += 1;
        self.nodes[node.0].stage.push(now, Direction::Tx, frame);
        self.advance(now);
    }

    /// `node` sends all packets of `batch`.
    pub fn send_batch(&mut self, now: Instant, node: NodeId, batch: &TxBatch) {
        for (net, body) in batch.iter() {
            self.send(now, node, net, body);
        }
    }

    /// When something next arrives or moves; it may be in the past where packets wait to be collected.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let waiting = self.nodes.iter().filter_map(|node| node.inbox.first().map(|(at, _)| *at));
        waiting.chain(self.next_move()).min()
    }

    /// Moves everything on to `now` and adds to `burst` what has arrived at `node` since it was last asked;
    /// returns how many packets these are. Time never runs back: an earlier `now` is taken as the last one.
    pub fn deliver(&mut self, now: Instant, node: NodeId, burst: &mut RxBurst) -> usize {
        self.advance(now);
        let inbox = std::mem::take(&mut self.nodes[node.0].inbox);
        for (_, frame) in &inbox {
            burst.push(frame.net, HeaderKnowledge::Seen, &frame.body);
        }
        inbox.len()
    }

    fn next_move(&self) -> Option<Instant> {
        let stages = self.nodes.iter().flat_map(|node| {
            [Direction::Tx, Direction::Rx].into_iter().filter_map(|way| node.stage.poll_timeout(way))
        });
        stages.chain(self.events.peek().map(|event| event.at)).min()
    }

    /// Lets everything happen that is due by `now`, in order of time.
    fn advance(&mut self, now: Instant) -> Instant {
        while let Some(at) = self.next_move().filter(|at| *at <= now) {
            self.now = self.now.max(at);
            self.step(self.now);
        }
        self.now = self.now.max(now);
        self.now
    }

    fn step(&mut self, now: Instant) {
        for index in 0..self.nodes.len() {
            while let Some(frame) = self.nodes[index].stage.pop(now, Direction::Tx) {
                if let Some(at) = self.nodes[index].uplink.transmit(now, frame.wire_len()) {
                    self.schedule(at, Hop::Switch { from: index }, frame);
                }
            }
            while let Some(frame) = self.nodes[index].stage.pop(now, Direction::Rx) {
                self.tap(now, index, TapPoint::Delivered, &frame);
                let node = &mut self.nodes[index];
                node.delivered += 1;
                node.inbox.push((now, frame));
            }
        }
        while self.events.peek().is_some_and(|event| event.at <= now) {
            let Some(Event { hop, frame, .. }) = self.events.pop() else { break };
            match hop {
                Hop::Switch { from } => match self.routes.get(&frame.net.dst_gid()) {
                    Some(&to) => {
                        if let Some(at) = self.nodes[to].downlink.transmit(now, frame.wire_len()) {
                            self.schedule(at, Hop::Node { to }, frame);
                        }
                    }
                    None => self.nodes[from].unroutable += 1,
                },
                Hop::Node { to } => self.nodes[to].stage.push(now, Direction::Rx, frame),
            }
        }
    }

    fn schedule(&mut self, at: Instant, hop: Hop, frame: Frame) {
        self.events.push(Event { at, order: self.scheduled, hop, frame });
        self.scheduled += 1;
    }

    fn tap(&mut self, at: Instant, node: usize, point: TapPoint, frame: &Frame) {
        if let Some(records) = &mut self.records {
            records.push(Record { at, node: NodeId(node), point, frame: frame.clone() });
        }
    }
}

impl Ord for Event {
    /// Turned around, so that the heap's greatest is the earliest; of one instant, the first scheduled.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Event {}

#[cfg(test)]
#[path = "network_tests.rs"]
mod tests;
