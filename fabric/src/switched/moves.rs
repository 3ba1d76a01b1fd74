//! How packets and pauses move: the events of a [`Fabric`].

use super::*;
use crate::frame::ETHERNET_OVERHEAD;

impl Fabric {
    /// Sends what is next at a port, if its cable is free.
    pub(super) fn kick(&mut self, node: usize, at: usize) {
        let now = self.now;
        let Member { kind, ports, .. } = &mut self.members[node];
        let port = &mut ports[at];
        if port.is_busy {
            return;
        }
        let Some(mut sent) = port.next(now) else { return };
        let mut told = None;
        let len = match &mut sent {
            Sent::Pause(..) => PAUSE_LEN as u64,
            Sent::Packet(priority, packet) => {
                if let Kind::Switch(switch) = kind {
                    let Switch { params, buffer, .. } = &mut **switch;
                    let queue = &mut port.queues[usize::from(*priority)];
                    if let Some(red) = params.red.filter(|red| red.at == MarkAt::Dequeue) {
                        let marked = red.mark(&mut packet.frame.net, queue.bytes, &mut self.rng);
                        queue.stats.ce_marked += u64::from(marked);
                    }
                    if let Some(ingress) = packet.ingress {
                        buffer.release(ingress, *priority, packet.len);
                        told = Some((ingress, *priority));
                    }
                }
                packet.len
            }
        };
        let free = port.send(now, len);
        port.is_busy = true;
        let arrives = free + port.cable.delay;
        port.in_flight.push_back((arrives, sent));
        self.schedule(free, node, at, What::Free);
        self.schedule(arrives, node, at, What::Arrives);
        if let Some((ingress, priority)) = told {
            self.signal(node, ingress, priority);
        }
    }

    /// Tells the sender at a switch's ingress port what it has to know, if anything.
    fn signal(&mut self, node: usize, port: usize, priority: u8) {
        let Kind::Switch(switch) = &mut self.members[node].kind else { return };
        if let Some(signal) = switch.buffer.signal(port, priority) {
            self.tell(node, port, priority, signal);
        }
    }

    /// Asks the peer of a port to pause or to go on; and before a pause is over, again.
    pub(super) fn tell(&mut self, node: usize, port: usize, priority: u8, signal: Signal) {
        let quanta = match &self.members[node].kind {
            Kind::Switch(switch) => switch.buffer.pfc().map_or(u16::MAX, |pfc| pfc.quanta),
            Kind::Host(_) => u16::MAX,
        };
        let it = &mut self.members[node].ports[port];
        it.signal(priority, signal, quanta);
        let half = Duration::from_nanos(it.pause_time(quanta).as_nanos() / 2);
        if signal == Signal::Xoff && !it.refreshing[usize::from(priority)] {
            it.refreshing[usize::from(priority)] = true;
            self.schedule(self.now + half, node, port, What::Refresh(priority));
        }
        self.kick(node, port);
    }

    pub(super) fn refresh(&mut self, node: usize, port: usize, priority: u8) {
        let Member { kind, ports, .. } = &mut self.members[node];
        let it = &mut ports[port];
        it.refreshing[usize::from(priority)] = false;
        let wants_pause = match kind {
            Kind::Switch(switch) => switch.buffer.wants_pause(port, priority),
            Kind::Host(_) => it.stuck & 1 << priority != 0,
        };
        if wants_pause {
            self.tell(node, port, priority, Signal::Xoff);
        }
    }

    /// The first of what is on the cable of `port` arrives at its peer.
    pub(super) fn arrive(&mut self, node: usize, port: usize) {
        let it = &mut self.members[node].ports[port];
        let (peer, ingress) = it.peer;
        match it.in_flight.pop_front() {
            Some((_, Sent::Pause(priority, quanta))) => self.paused(peer, ingress, priority, quanta),
            Some((_, Sent::Packet(priority, packet))) => match &mut self.members[peer].kind {
                Kind::Host(host) => {
                    if let Some(stage) = &mut host.stage {
                        stage.push(self.now, Direction::Rx, packet.frame);
                        self.pass(peer);
                    } else {
                        host.inbox.push_back((self.now, packet.frame));
                        self.tell_host(peer);
                    }
                }
                Kind::Switch(_) => self.forward(peer, ingress, priority, packet),
            },
            None => {}
        }
    }

    /// Queues a packet at the port of a host.
    pub(super) fn queue(&mut self, node: usize, frame: Frame) {
        let priority = priority_of(&frame);
        let len = frame.wire_len() as u64;
        let Some(port) = self.members[node].ports.first_mut() else { return };
        port.push(self.now, priority, Queued { frame, ingress: None, len });
        self.kick(node, 0);
    }

    /// Lets go on what a host's faults let through by now, and comes back when there will be more.
    pub(super) fn pass(&mut self, node: usize) {
        let now = self.now;
        while let Kind::Host(host) = &mut self.members[node].kind
            && let Some(frame) = host.stage.as_mut().and_then(|stage| stage.pop(now, Direction::Tx))
        {
            self.queue(node, frame);
        }
        let Kind::Host(host) = &mut self.members[node].kind else { return };
        let Some(stage) = &mut host.stage else { return };
        let before = host.inbox.len();
        host.inbox.extend(std::iter::from_fn(|| stage.pop(now, Direction::Rx)).map(|frame| (now, frame)));
        let came = host.inbox.len() > before;
        let next = [Direction::Tx, Direction::Rx].into_iter().filter_map(|way| stage.poll_timeout(way)).min();
        if let Some(next) = next.filter(|next| host.passes_at.is_none_or(|at| *next < at)) {
            host.passes_at = Some(next);
            self.schedule(next.max(now), node, 0, What::Pass);
        }
        if came {
            self.tell_host(node);
        }
    }

    /// The peer of `port` asks it to pause for `quanta`, or not to.
    fn paused(&mut self, node: usize, port: usize, priority: u8, quanta: u16) {
        let before = self.members[node].ports[port].paused();
        let until = self.members[node].ports[port].pause(self.now, priority, quanta);
        self.note_pauses(node, port, before);
        if quanta > 0 {
            self.schedule(until, node, port, What::Resume);
            self.look_after(node, port, priority);
        } else {
            self.kick(node, port);
            self.tell_host(node);
        }
    }

    /// A packet came to a switch.
    fn forward(&mut self, node: usize, ingress: usize, priority: u8, mut packet: Queued) {
        let now = self.now;
        let member = &mut self.members[node];
        let Kind::Switch(switch) = &mut member.kind else { return };
        let Switch { params, buffer, routes, .. } = &mut **switch;
        let ways = routes.ways(&packet.frame.net);
        let egress = match (ways, params.balance) {
            ([], _) => {
                member.unroutable += 1;
                return;
            }
            (ways, Balance::Ecmp) => routes.of_flow(&packet.frame.net, ways),
            (ways, Balance::Adaptive) => {
                let queued =
                    |way: &&usize| member.ports[**way].queues.iter().map(|queue| queue.bytes).sum::<u64>();
                ways.iter().min_by_key(queued).copied().unwrap_or(ways[0])
            }
        };
        let queue = &mut member.ports[egress].queues[usize::from(priority)];
        if queue.watchdog == Watchdog::Storm(WatchdogAction::Drop) {
            queue.stats.watchdog_dropped += 1;
            return;
        }
        let queued = queue.bytes;
        let is_too_long = packet.len > u64::from(params.mtu) + ETHERNET_OVERHEAD as u64;
        if is_too_long || buffer.admit(ingress, priority, packet.len, queued) == Admission::Full {
            queue.stats.dropped += 1;
        } else {
            if let Some(red) = params.red.filter(|red| red.at == MarkAt::Enqueue) {
                let marked = red.mark(&mut packet.frame.net, queued, &mut self.rng);
                queue.stats.ce_marked += u64::from(marked);
            }
            packet.ingress = Some(ingress);
            member.ports[egress].push(now, priority, packet);
            self.look_after(node, egress, priority);
            self.kick(node, egress);
        }
        self.signal(node, ingress, priority);
    }

    /// Sets the watchdog on a queue that is stuck, unless it looks already.
    fn look_after(&mut self, node: usize, port: usize, priority: u8) {
        let Member { kind, ports, .. } = &mut self.members[node];
        let Kind::Switch(switch) = kind else { return };
        let Switch { params, buffer, polls_at, .. } = &mut **switch;
        let Some(watchdog) = params.watchdog else { return };
        let queue = &mut ports[port].queues[usize::from(priority)];
        if let (Watchdog::Idle, Some(since)) = (queue.watchdog, queue.stuck_since)
            && buffer.is_lossless(priority)
        {
            queue.watchdog = Watchdog::Watching;
            let at = watchdog.next_poll(*polls_at, since + watchdog.detection);
            self.schedule(at, node, port, What::Watch(priority));
        }
    }

    /// The watchdog looks at a queue: a storm may have begun or ended.
    pub(super) fn watch(&mut self, node: usize, port: usize, priority: u8) {
        let now = self.now;
        let Member { kind, ports, .. } = &mut self.members[node];
        let Kind::Switch(switch) = kind else { return };
        let Switch { params, buffer, polls_at, .. } = &mut **switch;
        let Some(watchdog) = params.watchdog else { return };
        let queue = &mut ports[port].queues[usize::from(priority)];
        let mut ingresses = Vec::new();
        let next = match (queue.watchdog, queue.stuck_since) {
            (Watchdog::Storm(_), _) => {
                let quiet_from = queue.last_pause.map_or(now, |last| last + watchdog.restoration);
                if !queue.is_paused(now) && quiet_from <= now {
                    queue.watchdog = Watchdog::Idle;
                    queue.stats.storms_ended += 1;
                    None
                } else {
                    Some(quiet_from.max(now + Duration::from_micros(1)))
                }
            }
            (_, None) => {
                queue.watchdog = Watchdog::Idle;
                None
            }
            (_, Some(since)) if since + watchdog.detection > now => Some(since + watchdog.detection),
            (_, Some(_)) => {
                queue.watchdog = Watchdog::Storm(watchdog.action);
                queue.stats.storms += 1;
                if watchdog.action == WatchdogAction::Drop {
                    for packet in queue.drain(now) {
                        queue.stats.watchdog_dropped += 1;
                        if let Some(ingress) = packet.ingress {
                            buffer.release(ingress, priority, packet.len);
                            ingresses.push(ingress);
                        }
                    }
                }
                Some(now + watchdog.restoration)
            }
        };
        if let Some(at) = next {
            let at = watchdog.next_poll(*polls_at, at);
            self.schedule(at, node, port, What::Watch(priority));
        }
        ingresses.dedup();
        for ingress in ingresses {
            self.signal(node, ingress, priority);
        }
        self.kick(node, port);
    }
}
