//! Which hosts have a way to each other.

use fabric::switched::Cable;

use crate::scenario::HostSetup;

/// Switches and the trunks that join them.
pub(super) struct Reach<'a> {
    hosts: &'a [HostSetup],
    switches: &'a [String],
    /// The first switch of those that each is joined with, over however many trunks.
    island: Vec<usize>,
}

impl<'a> Reach<'a> {
    pub(super) fn new(
        hosts: &'a [HostSetup],
        switches: &'a [String],
        trunks: &[(usize, usize, Cable)],
    ) -> Self {
        let mut island: Vec<usize> = (0..switches.len()).collect();
        for &(a, b, _) in trunks {
            let (low, high) = (island[a].min(island[b]), island[a].max(island[b]));
            island.iter_mut().filter(|of| **of == high).for_each(|of| *of = low);
        }
        Self { hosts, switches, island }
    }

    /// What is missing on the way of a flow called `flow`; `None` where there is one.
    pub(super) fn gap(&self, flow: &str, (from, to): (usize, usize)) -> Option<String> {
        let [from, to] = [from, to].map(|host| &self.hosts[host]);
        if self.island[from.switch] == self.island[to.switch] {
            return None;
        }
        let [near, far] = [from, to].map(|host| &self.switches[host.switch]);
        Some(format!(
            "hosts that have a way to each other: {flow} goes from {} at {near} to {} at {far}, and no [[trunks]] join \
             these two switches",
            from.name, to.name
        ))
    }
}
