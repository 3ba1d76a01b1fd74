//! Which ports lead to which address: all shortest ways, or what a scenario says.

use std::collections::{BTreeMap, VecDeque};

use wire::{Gid, NetHeader};

/// How one of several ways is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Balance {
    /// By a hash of addresses and UDP source port: a flow keeps its way, and flows may meet.
    #[default]
    Ecmp,
    /// By the shortest queue, packet by packet: nobody meets, but packets overtake each other.
    Adaptive,
}

/// The routes of one switch.
#[derive(Debug, Default)]
pub(super) struct Routes {
    ports: BTreeMap<Gid, Vec<usize>>,
    /// Makes the switches of a path choose differently.
    salt: u64,
}

impl Routes {
    pub(super) fn new(salt: u64) -> Self {
        Self { ports: BTreeMap::new(), salt }
    }

    pub(super) fn set(&mut self, gid: Gid, ports: Vec<usize>) {
        self.ports.insert(gid, ports);
    }

    /// The ports that lead to where `net` goes.
    pub(super) fn ways(&self, net: &NetHeader) -> &[usize] {
        self.ports.get(&net.dst_gid()).map_or(&[], Vec::as_slice)
    }

    /// One of `ways` by what is the same for all packets of a flow.
    pub(super) fn of_flow(&self, net: &NetHeader, ways: &[usize]) -> usize {
        let port = net.udp().map_or(0, |udp| udp.src_port);
        let [from, to] = [net.src_gid(), net.dst_gid()].map(|gid| u128::from_be_bytes(gid.raw()));
        let mut hash = u128::from(self.salt) << 16 | u128::from(port);
        for word in [from, to] {
            hash = (hash ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835);
            hash ^= hash >> 61;
        }
        #[expect(clippy::cast_possible_truncation, reason = "less than the number of ways")]
        let chosen = ((hash >> 64) % ways.len() as u128) as usize;
        ways[chosen]
    }
}

/// For each node its ports on a shortest way to `target`. `links` has for each node the peers of its ports; `relays`
/// says which nodes pass packets on.
pub(super) fn shortest(links: &[Vec<usize>], relays: &[bool], target: usize) -> Vec<Vec<usize>> {
    let mut distance = vec![usize::MAX; links.len()];
    distance[target] = 0;
    let mut next = VecDeque::from([target]);
    while let Some(node) = next.pop_front() {
        for &peer in links[node].iter().filter(|_| node == target || relays[node]) {
            if distance[peer] == usize::MAX {
                distance[peer] = distance[node] + 1;
                next.push_back(peer);
            }
        }
    }
    let nearer = |node: usize, peer: usize| {
        distance[node] != usize::MAX
            && distance[peer].checked_add(1) == Some(distance[node])
            && (peer == target || relays[peer])
    };
    links
        .iter()
        .enumerate()
        .map(|(node, peers)| (0..peers.len()).filter(|port| nearer(node, peers[*port])).collect())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_shortest_ways_and_no_others() {
        // Hosts 0 and 5 at leaves 1 and 4, with spines 2 and 3 between them; 6 is a host on both leaves.
        let links =
            [vec![1], vec![0, 2, 3, 6], vec![1, 4], vec![1, 4], vec![2, 3, 5, 6], vec![4], vec![1, 4]];
        let relays = [false, true, true, true, true, false, false];
        let to_5 = shortest(&links, &relays, 5);
        assert_eq!(to_5, [vec![0], vec![1, 2], vec![1], vec![1], vec![2], vec![], vec![1]]);
    }

    #[test]
    fn flows_keep_their_way_and_source_ports_spread_them() {
        let routes = Routes::new(7);
        let ways = [3, 4, 5, 6];
        let mut counts = [0; 7];
        for port in 49_152..=65_535 {
            let ip = |n| std::net::IpAddr::from([10, 0, 0, n]);
            let net = NetHeader::v2(ip(1), ip(2), port, 0, 64).unwrap();
            let way = routes.of_flow(&net, &ways);
            assert_eq!(routes.of_flow(&net.with_traffic_class(3), &ways), way);
            counts[way] += 1;
        }
        assert!(counts[3..].iter().all(|count| (3_800..4_400).contains(count)), "{counts:?}");
        let other = Routes::new(8);
        let differs = (49_152..49_352).filter(|port| {
            let ip = |n| std::net::IpAddr::from([10, 0, 0, n]);
            let net = NetHeader::v2(ip(1), ip(2), *port, 0, 64).unwrap();
            routes.of_flow(&net, &ways) != other.of_flow(&net, &ways)
        });
        assert!((100..190).contains(&differs.count()));
    }
}
