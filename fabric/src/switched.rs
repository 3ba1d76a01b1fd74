//! Hosts and switches in virtual time: output-queued switches with a shared buffer, ECN marks, pauses by priority with
//! a watchdog, and several ways through them.
//!
//! Whoever drives it sends packets from hosts, moves the clock to [`Fabric::poll_timeout`], and asks by
//! [`Fabric::poll_host`] which hosts have received something or may send again. It knows no queue pairs and draws all
//! its luck from one seed.

mod buffer;
mod port;
mod red;
mod routes;
mod stats;

pub use buffer::{Pfc, Threshold};
pub use port::{Cable, Scheduling, WatchdogAction};
pub use red::{MarkAt, Markable, Red};
pub use routes::Balance;
pub use stats::{PortStats, QueueStats};

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use rand_core::RngCore;
use rand_pcg::Pcg64;
use wire::{Duration, Gid, Instant};

use crate::faults::{Direction, FaultSpec};
use crate::frame::Frame;
use crate::injector::FaultCounts;
use crate::stage::Stage;
use buffer::{Admission, Buffer, Signal};
use port::{PAUSE_LEN, Port, Queued, Sent, Watchdog};
use routes::Routes;

/// A host or switch of one [`Fabric`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Node(usize);

impl Node {
    /// Its place among all nodes of its fabric, in the order in which they were added, from 0.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0
    }
}

/// What a switch is like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SwitchParams {
    /// Bytes of memory that all ports share, beside the headroom of [`Pfc`].
    pub buffer: u64,
    /// Most that one egress queue holds of a priority that may be dropped.
    pub lossy: Threshold,
    /// Marks, of each egress queue by itself; `None` for none.
    pub red: Option<Red>,
    /// Pauses; without them everything may be dropped.
    pub pfc: Option<Pfc>,
    /// Who is next.
    pub scheduling: Scheduling,
    /// What is done about pauses that do not end; `None` for nothing.
    pub watchdog: Option<WatchdogParams>,
    /// How one of several ways is chosen.
    pub balance: Balance,
    /// Bytes of the longest IP packet that it takes; longer ones are dropped, and nobody is told.
    pub mtu: u32,
}

impl Default for SwitchParams {
    /// 12 MB that one queue may have half of, jumbo frames, no marks or pauses.
    fn default() -> Self {
        Self {
            buffer: 12_000_000,
            lossy: Threshold::Dynamic(1.0),
            red: None,
            pfc: None,
            scheduling: Scheduling::default(),
            watchdog: None,
            balance: Balance::Ecmp,
            mtu: 9_216,
        }
    }
}

/// The watchdog of pauses. A storm is found when a queue with packets has been paused for [`Self::detection`] and sent
/// none; it ends when no pause has come for [`Self::restoration`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchdogParams {
    /// Time until a storm is found.
    pub detection: Duration,
    /// It looks at queues so often, each switch at times of its own; zero looks exactly when it is time.
    pub poll: Duration,
    /// Time until it is over.
    pub restoration: Duration,
    /// What is done in between.
    pub action: WatchdogAction,
}

impl WatchdogParams {
    /// When a switch that polls at `phase` first looks at or after `at`.
    fn next_poll(&self, phase: Duration, at: Instant) -> Instant {
        let every = self.poll.as_nanos();
        if every == 0 {
            return at;
        }
        let polls = at.since(Instant::ZERO + phase).as_nanos().div_ceil(every);
        Instant::ZERO + phase + Duration::from_nanos(polls.saturating_mul(every))
    }
}

/// What goes wrong while a fabric is put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FabricError {
    /// A host with a second cable.
    #[error("a host has one port: it cannot have a second cable")]
    SecondCable,
    /// A route by a node that is no neighbour, or from a host.
    #[error("a route leads from a switch over one of its neighbours")]
    NoNeighbour,
}

enum Kind {
    Host(Box<Host>),
    Switch(Box<Switch>),
}

/// A host, and the faults of its last metre.
struct Host {
    inbox: VecDeque<(Instant, Frame)>,
    has_news: bool,
    stage: Option<Stage>,
    /// When its faults are looked at next.
    passes_at: Option<Instant>,
}

struct Switch {
    params: SwitchParams,
    buffer: Buffer,
    routes: Routes,
    /// Phase of the watchdog's polls.
    polls_at: Duration,
}

struct Member {
    kind: Kind,
    gids: Vec<Gid>,
    ports: Vec<Port>,
    unroutable: u64,
}

/// When something happens; of one time, the first made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    at: Instant,
    order: u64,
    node: usize,
    port: usize,
    what: What,
}

/// What happens at a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// The first of what is on the cable arrives at the other end.
    Arrives,
    /// The cable is free.
    Free,
    /// A pause may be over.
    Resume,
    /// The sender is asked again to pause this priority, if that is still needed.
    Refresh(u8),
    /// The watchdog looks at this priority.
    Watch(u8),
    /// A host's faults let something through.
    Pass,
}

/// A queue was paused, or goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PauseChange {
    /// When.
    pub at: Instant,
    /// Whose queue.
    pub node: Node,
    /// In front of the cable to whom, who asked for it.
    pub peer: Node,
    /// Of which priority.
    pub priority: u8,
    /// Whether it is paused now.
    pub paused: bool,
}

/// Hosts, switches and cables.
pub struct Fabric {
    now: Instant,
    members: Vec<Member>,
    events: BinaryHeap<Reverse<Event>>,
    made: u64,
    handled: u64,
    rng: Pcg64,
    news: VecDeque<usize>,
    /// Where somebody watches.
    pauses: Option<VecDeque<PauseChange>>,
}

impl Fabric {
    /// A fabric of nothing. All its luck comes from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            now: Instant::ZERO,
            members: Vec::new(),
            events: BinaryHeap::new(),
            made: 0,
            handled: 0,
            rng: Pcg64::new(u128::from(seed), 3),
            news: VecDeque::new(),
            pauses: None,
        }
    }

    /// Adds a host that owns `gids`.
    pub fn add_host(&mut self, gids: impl IntoIterator<Item = Gid>) -> Node {
        let host = Host { inbox: VecDeque::new(), has_news: false, stage: None, passes_at: None };
        self.add(Kind::Host(Box::new(host)), gids.into_iter().collect())
    }

    /// Adds a switch.
    pub fn add_switch(&mut self, params: SwitchParams) -> Node {
        let buffer = Buffer::new(params.buffer, params.pfc, params.lossy);
        let routes = Routes::new(self.members.len() as u64);
        let every = params.watchdog.map_or(0, |watchdog| watchdog.poll.as_nanos()).max(1);
        let polls_at = Duration::from_nanos(self.rng.next_u64() % every);
        self.add(Kind::Switch(Box::new(Switch { params, buffer, routes, polls_at })), Vec::new())
    }

    fn add(&mut self, kind: Kind, gids: Vec<Gid>) -> Node {
        self.members.push(Member { kind, gids, ports: Vec::new(), unroutable: 0 });
        Node(self.members.len() - 1)
    }

    /// Joins two nodes; call [`Fabric::find_routes`] when all are joined.
    ///
    /// # Errors
    /// [`FabricError::SecondCable`] for a host that has one.
    pub fn connect(&mut self, a: Node, b: Node, cable: Cable) -> Result<(), FabricError> {
        for node in [a, b] {
            let member = &self.members[node.0];
            if matches!(member.kind, Kind::Host(_)) && !member.ports.is_empty() {
                return Err(FabricError::SecondCable);
            }
        }
        let ports = [a, b].map(|node| self.members[node.0].ports.len());
        for (node, peer) in [(a, (b.0, ports[1])), (b, (a.0, ports[0]))] {
            let member = &mut self.members[node.0];
            let scheduling = match &mut member.kind {
                Kind::Host(_) => Scheduling::default(),
                Kind::Switch(switch) => {
                    switch.buffer.add_port();
                    switch.params.scheduling
                }
            };
            member.ports.push(Port::new(cable, peer, scheduling));
        }
        Ok(())
    }

    /// Gives every switch all shortest ways to all hosts.
    pub fn find_routes(&mut self) {
        let peers = |member: &Member| member.ports.iter().map(|port| port.peer.0).collect();
        let links: Vec<Vec<usize>> = self.members.iter().map(peers).collect();
        let relays: Vec<bool> =
            self.members.iter().map(|member| matches!(member.kind, Kind::Switch(_))).collect();
        for host in 0..self.members.len() {
            let gids = self.members[host].gids.clone();
            if gids.is_empty() {
                continue;
            }
            for (member, ways) in self.members.iter_mut().zip(routes::shortest(&links, &relays, host)) {
                if let Kind::Switch(switch) = &mut member.kind {
                    gids.iter().for_each(|gid| switch.routes.set(*gid, ways.clone()));
                }
            }
        }
    }

    /// Leads what `switch` has for `gid` over its neighbour `over`, whatever is shortest: rings are made so.
    ///
    /// # Errors
    /// [`FabricError::NoNeighbour`].
    pub fn set_route(&mut self, switch: Node, gid: Gid, over: Node) -> Result<(), FabricError> {
        let port = self.port_to(switch, over).ok_or(FabricError::NoNeighbour)?;
        match &mut self.members[switch.0].kind {
            Kind::Switch(switch) => switch.routes.set(gid, vec![port]),
            Kind::Host(_) => return Err(FabricError::NoNeighbour),
        }
        Ok(())
    }

    /// Queues a packet at the port of `host`, at `now`. A host without a cable loses it.
    pub fn send(&mut self, now: Instant, host: Node, frame: Frame) {
        self.now = self.now.max(now);
        if let Kind::Host(it) = &mut self.members[host.0].kind
            && let Some(stage) = &mut it.stage
        {
            stage.push(self.now, Direction::Tx, frame);
            self.pass(host.0);
        } else {
            self.queue(host.0, frame);
        }
    }

    /// Replaces the faults of what `host` sends and of what comes to it; their luck comes from `seed`.
    pub fn set_faults(&mut self, host: Node, specs: impl IntoIterator<Item = FaultSpec>, seed: u64) {
        if let Kind::Host(host) = &mut self.members[host.0].kind {
            host.stage.get_or_insert_with(|| Stage::new([], seed)).set_faults(specs);
        }
    }

    /// What the faults of `host` have done in `direction`.
    #[must_use]
    pub fn fault_counts(&self, host: Node, direction: Direction) -> FaultCounts {
        match &self.members[host.0].kind {
            Kind::Host(host) => {
                host.stage.as_ref().map_or(FaultCounts::default(), |stage| stage.counts(direction))
            }
            Kind::Switch(_) => FaultCounts::default(),
        }
    }

    /// Whether a packet of `priority` that `host` sends now would leave at once: its cable is free and nobody has
    /// paused it. A host that waits for this keeps no queue behind its own back.
    #[must_use]
    pub fn may_send(&self, host: Node, priority: u8) -> bool {
        self.members[host.0].ports.first().is_some_and(|port| port.is_free(self.now, priority & 7))
    }

    /// Whether the cable of `host` is free. What is in front of it has been paused, then.
    #[must_use]
    pub fn is_idle(&self, host: Node) -> bool {
        self.members[host.0].ports.first().is_some_and(|port| !port.is_busy)
    }

    /// Bytes in front of the cable of `host`, of all priorities.
    #[must_use]
    pub fn backlog(&self, host: Node) -> u64 {
        self.members[host.0].ports.first().map_or(0, |port| port.queues.iter().map(|queue| queue.bytes).sum())
    }

    /// The next packet that came to `host`, and when.
    pub fn receive(&mut self, host: Node) -> Option<(Instant, Frame)> {
        match &mut self.members[host.0].kind {
            Kind::Host(host) => host.inbox.pop_front(),
            Kind::Switch(_) => None,
        }
    }

    /// The next host that has received something, or whose port has become free, since it was last returned.
    pub fn poll_host(&mut self) -> Option<Node> {
        let index = self.news.pop_front()?;
        if let Kind::Host(host) = &mut self.members[index].kind {
            host.has_news = false;
        }
        Some(Node(index))
    }

    /// Makes a host ask for a pause of all `priorities` (bit i for priority i) for ever, as one that is stuck does, or
    /// with `false` stop.
    pub fn set_stuck(&mut self, now: Instant, host: Node, priorities: u8, stuck: bool) {
        self.now = self.now.max(now);
        let Some(port) = self.members[host.0].ports.first_mut() else { return };
        let before = port.stuck;
        port.stuck = if stuck { before | priorities } else { before & !priorities };
        let changed = before ^ port.stuck;
        for priority in (0..8).filter(|priority| changed & 1 << priority != 0) {
            self.tell(host.0, 0, priority, if stuck { Signal::Xoff } else { Signal::Xon });
        }
    }

    /// When something happens next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.events.peek().map(|Reverse(event)| event.at)
    }

    /// Lets happen what is due by `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(Reverse(Event { at, node, port, what, .. })) =
            self.events.peek().copied().filter(|Reverse(event)| event.at <= now)
        {
            self.events.pop();
            self.handled += 1;
            self.now = at;
            match what {
                What::Arrives => self.arrive(node, port),
                What::Free => {
                    self.members[node].ports[port].is_busy = false;
                    self.kick(node, port);
                    self.tell_host(node);
                }
                What::Resume => {
                    let before = self.members[node].ports[port].paused();
                    self.members[node].ports[port].end_pauses(at);
                    self.note_pauses(node, port, before);
                    self.kick(node, port);
                    self.tell_host(node);
                }
                What::Refresh(priority) => self.refresh(node, port, priority),
                What::Watch(priority) => self.watch(node, port, priority),
                What::Pass => {
                    if let Kind::Host(host) = &mut self.members[node].kind {
                        host.passes_at = None;
                    }
                    self.pass(node);
                }
            }
        }
        self.now = self.now.max(now);
    }

    /// Events that happened so far: what a simulation costs.
    #[must_use]
    pub const fn events(&self) -> u64 {
        self.handled
    }

    /// Packets that `switch` had no route for.
    #[must_use]
    pub fn unroutable(&self, switch: Node) -> u64 {
        self.members[switch.0].unroutable
    }

    /// What happened in the queue of `priority` of `node`'s port to `peer`; `None` where they are not joined.
    #[must_use]
    pub fn queue_stats(&self, node: Node, peer: Node, priority: u8) -> Option<QueueStats> {
        let port = &self.members[node.0].ports[self.port_to(node, peer)?];
        Some(port.queues[usize::from(priority & 7)].stats)
    }

    /// Whether that queue is paused now.
    #[must_use]
    pub fn is_paused(&self, node: Node, peer: Node, priority: u8) -> Option<bool> {
        let port = &self.members[node.0].ports[self.port_to(node, peer)?];
        Some(port.queues[usize::from(priority & 7)].is_paused(self.now))
    }

    /// Lets [`Fabric::poll_pause`] tell of pauses from now on.
    pub fn watch_pauses(&mut self) {
        self.pauses.get_or_insert_default();
    }

    /// The next pause that began or ended; whoever has called [`Fabric::watch_pauses`] should take them all now and
    /// then.
    pub fn poll_pause(&mut self) -> Option<PauseChange> {
        self.pauses.as_mut()?.pop_front()
    }

    /// Tells of priorities of a port that were paused as in `before`, bit i for priority i, and no longer are so.
    fn note_pauses(&mut self, node: usize, port: usize, before: u8) {
        let Some(pauses) = &mut self.pauses else { return };
        let it = &self.members[node].ports[port];
        let (after, peer) = (it.paused(), it.peer.0);
        for priority in (0..8).filter(|priority| (before ^ after) & 1 << priority != 0) {
            let paused = after & 1 << priority != 0;
            pauses.push_back(PauseChange {
                at: self.now,
                node: Node(node),
                peer: Node(peer),
                priority,
                paused,
            });
        }
    }

    /// The most bytes in that queue since this was asked last.
    pub fn take_peak(&mut self, node: Node, peer: Node, priority: u8) -> Option<u64> {
        let port = self.port_to(node, peer)?;
        let queue = &mut self.members[node.0].ports[port].queues[usize::from(priority & 7)];
        Some(queue.stats.take_peak())
    }

    /// What happened at `node`'s port to `peer`.
    #[must_use]
    pub fn port_stats(&self, node: Node, peer: Node) -> Option<PortStats> {
        Some(self.members[node.0].ports[self.port_to(node, peer)?].stats)
    }

    /// Starts all counts of queues and ports anew, as after warming up.
    pub fn restart_stats(&mut self) {
        let now = self.now;
        for port in self.members.iter_mut().flat_map(|member| &mut member.ports) {
            port.stats = PortStats::default();
            port.queues.iter_mut().for_each(|queue| queue.stats.restart(now));
        }
    }

    fn port_to(&self, node: Node, peer: Node) -> Option<usize> {
        self.members[node.0].ports.iter().position(|port| port.peer.0 == peer.0)
    }

    fn schedule(&mut self, at: Instant, node: usize, port: usize, what: What) {
        self.events.push(Reverse(Event { at, order: self.made, node, port, what }));
        self.made += 1;
    }

    fn tell_host(&mut self, node: usize) {
        if let Kind::Host(host) = &mut self.members[node].kind
            && !host.has_news
        {
            host.has_news = true;
            self.news.push_back(node);
        }
    }
}

/// The priority of a packet: the upper three bits of its DSCP.
fn priority_of(frame: &Frame) -> u8 {
    frame.net.traffic_class() >> 5
}

mod moves;

#[cfg(test)]
mod tests;
