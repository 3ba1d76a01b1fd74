//! Two hosts, the links between them, and what happens at random.

use std::collections::VecDeque;

use ferroce_qp::{QpState, QpType};
use rand_core::{RngCore, SeedableRng};
use rand_pcg::Pcg32;
use wire::{Duration, Instant, NetHeader, Psn, icrc};

use super::host::{Host, Peer};

pub(crate) type Sent = (NetHeader, Vec<u8>);

/// Rounds after which everything must have come to rest.
const MAX_ROUNDS: usize = 20_000;

pub(crate) struct Random(Pcg32);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Pcg32::seed_from_u64(seed))
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0.next_u32() as usize % limit.max(1)
    }

    /// True once in `n` times.
    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> Option<T> {
        (!of.is_empty()).then(|| of[self.below(of.len())])
    }
}

pub(crate) struct World {
    random: Random,
    now: Instant,
    hosts: [Host; 2],
    /// On their way to each host.
    links: [VecDeque<Sent>; 2],
    hostile: bool,
}

impl World {
    pub(crate) fn new(seed: u64, hostile: bool) -> Self {
        let mut random = Random::new(seed);
        let hosts = [1, 2].map(|n| Host::new(n, &mut random));
        let mut world = Self { random, now: Instant::ZERO, hosts, links: Default::default(), hostile };
        for _ in 0..40 {
            let at = world.random.below(2);
            world.hosts[at].make(&mut world.random);
        }
        for _ in 0..12 {
            world.connect();
        }
        world
    }

    pub(crate) fn step(&mut self) {
        let (at, now) = (self.random.below(2), self.now);
        let [left, right] = &mut self.hosts;
        let (host, other) = if at == 0 { (left, right) } else { (right, left) };
        match self.random.below(100) {
            0..=7 => host.make(&mut self.random),
            8..=9 => host.end(&mut self.random),
            10..=12 => host.change(now, &mut self.random),
            13..=22 => self.connect(),
            23..=50 => host.send(now, other, &mut self.random),
            51..=70 => {
                for _ in 0..4 {
                    host.receive(now, &mut self.random);
                }
            }
            71..=94 => self.carry(at),
            _ => self.wait(),
        }
        self.pump();
    }

    /// Two queue pairs that fit find each other, perhaps one and the same.
    fn connect(&mut self) {
        let at = self.random.below(2);
        let again = self.hosts[at].broken(&mut self.random).filter(|_| !self.random.one_in(4));
        let again = again.filter(|(_, b)| self.hosts.iter().any(|host| host.has(b)));
        let Some((a, b)) = again.or_else(|| self.strangers()) else { return };
        let sides = [a, b].map(|peer| usize::from(peer.gid == self.hosts[1].gid));
        let psns = [0, 1].map(|_| match self.random.below(3) {
            0 => Psn::new(0xFF_FFF0),
            1 => Psn::new(0),
            _ => Psn::new(u32::try_from(self.random.below(1 << 24)).unwrap()),
        });
        let one_end = self.random.one_in(10);
        let psns_of = if sides[0] == sides[1] && a.qpn == b.qpn { [psns[0]; 2] } else { psns };
        self.hosts[sides[0]].connect(self.now, &a, &b, psns_of, &mut self.random);
        if !one_end {
            self.hosts[sides[1]].connect(self.now, &b, &a, [psns_of[1], psns_of[0]], &mut self.random);
        }
    }

    /// Two queue pairs that fit, wherever they are.
    fn strangers(&mut self) -> Option<(Peer, Peer)> {
        let sides = [self.random.below(2), self.random.below(2)];
        let a = self.hosts[sides[0]].any_pair(&mut self.random, None)?;
        let wanted = match a.qp_type {
            QpType::XrcIni => QpType::XrcTgt,
            QpType::XrcTgt => QpType::XrcIni,
            other => other,
        };
        Some((a, self.hosts[sides[1]].any_pair(&mut self.random, Some(wanted))?))
    }

    fn carry(&mut self, to: usize) {
        let count = self.random.below(self.links[to].len() + 1);
        let mut packets = Vec::new();
        for _ in 0..count {
            let Some(mut packet) = self.links[to].pop_front() else { break };
            match self.random.below(64) {
                0 => continue,
                2 => self.links[to].push_back(packet.clone()),
                3 => {
                    self.links[to].push_back(packet);
                    continue;
                }
                4 => self.damage(&mut packet, false),
                5..=6 if self.hostile => self.damage(&mut packet, true),
                _ => {}
            }
            packets.push(packet);
        }
        self.hosts[to].take(self.now, &packets);
    }

    /// Turns bits, and makes the ICRC right again where `lies`; then it is often the opcode that changes.
    fn damage(&mut self, packet: &mut Sent, lies: bool) {
        let (net, body) = packet;
        let at = match self.random.below(3) {
            0 if lies => 0,
            1 => self.random.below(body.len().min(40)),
            _ => self.random.below(body.len()),
        };
        let mask = 1 << self.random.below(8);
        if at != 4 {
            body[at] ^= mask;
        }
        if lies {
            icrc::fill(net, body);
        }
    }

    fn wait(&mut self) {
        let next = self.hosts.iter().filter_map(|host| host.nic.poll_timeout()).min();
        let soon = self.now + Duration::from_micros(self.random.below(200) as u64);
        self.now = if self.random.one_in(2) { next.unwrap_or(soon).max(soon) } else { soon };
        for host in &mut self.hosts {
            host.pass(self.now);
        }
    }

    fn pump(&mut self) {
        for at in 0..2 {
            for packet in self.hosts[at].transmit(self.now) {
                // Groups reach all; everything else whom it is addressed to.
                for to in 0..2 {
                    if packet.0.dst_gid().is_multicast() || packet.0.dst_gid() == self.hosts[to].gid {
                        self.links[to].push_back(packet.clone());
                    }
                }
            }
            self.hosts[at].collect();
        }
    }

    /// All queue pairs fail, everything comes to rest, and all objects go. Gives the number of work requests that have
    /// succeeded.
    pub(crate) fn finish(mut self) -> u64 {
        for host in &mut self.hosts {
            host.all_to(self.now, QpState::Err);
        }
        for round in 0.. {
            assert!(round < MAX_ROUNDS, "no rest");
            self.pump();
            if self.links.iter().all(VecDeque::is_empty) {
                let next = self.hosts.iter().filter_map(|host| host.nic.poll_timeout()).min();
                let Some(next) = next else { break };
                self.now = next.max(self.now);
                self.hosts.iter_mut().for_each(|host| host.pass(self.now));
            }
            for to in 0..2 {
                let packets: Vec<_> = self.links[to].drain(..).collect();
                self.hosts[to].take(self.now, &packets);
            }
        }
        for host in &mut self.hosts {
            host.check_rest();
            host.tear_down();
        }
        self.hosts.iter().map(Host::successes).sum()
    }
}
