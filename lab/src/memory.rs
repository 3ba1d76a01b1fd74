//! What connecting all with all costs in memory: a queue pair for each pair of processes, against XRC.
//!
//! [`super::run`] asks it for a scenario with a table `[memory]`, in which nothing is sent: it counts objects, and
//! takes their bytes as given. Those of the built-in scenario were counted at the allocator, which `tests/memory.rs`
//! does again.

use std::collections::BTreeMap;

use crate::report::{Line, Plot};

/// Hosts whose processes are all connected with those of all other hosts.
#[derive(Clone, Debug, PartialEq)]
pub struct Memory {
    /// How many hosts.
    pub hosts: u32,
    /// Processes of a host, rising: one point of each line for each.
    pub processes: Vec<u32>,
    /// Bytes of one end of an RC connection.
    pub rc_bytes: f64,
    /// Bytes of an XRC initiator and an XRC target together.
    pub xrc_bytes: f64,
    /// Bytes of a shared receive queue.
    pub srq_bytes: f64,
    /// Receives that wait in each receive queue, shared or not.
    pub receives: u32,
    /// Bytes of a receive that waits.
    pub receive_bytes: f64,
}

/// How processes are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// A queue pair for each pair of processes, with receives of its own.
    Rc,
    /// The same, but all queue pairs of a process share their receives.
    RcShared,
    /// An initiator for each process and remote host, a target for each remote process, and a shared receive queue for
    /// each process, which requests name.
    Xrc,
}

impl Way {
    const ALL: [Self; 3] = [Self::Rc, Self::RcShared, Self::Xrc];

    const fn name(self) -> &'static str {
        match self {
            Self::Rc => "RC",
            Self::RcShared => "RC with shared receives",
            Self::Xrc => "XRC",
        }
    }
}

impl Memory {
    /// Queue pairs of one host, of which each has `processes`.
    fn queue_pairs(&self, way: Way, processes: u32) -> f64 {
        let (processes, others) = (f64::from(processes), f64::from(self.hosts - 1));
        match way {
            Way::Rc | Way::RcShared => processes * processes * others,
            Way::Xrc => 2.0 * processes * others,
        }
    }

    /// Bytes of one host, of which each has `processes`.
    fn bytes(&self, way: Way, processes: u32) -> f64 {
        let pairs = self.queue_pairs(way, processes);
        let receives = f64::from(self.receives) * self.receive_bytes;
        let shared = f64::from(processes) * (self.srq_bytes + receives);
        match way {
            Way::Rc => pairs * (self.rc_bytes + receives),
            Way::RcShared => pairs * self.rc_bytes + shared,
            Way::Xrc => pairs / 2.0 * self.xrc_bytes + shared,
        }
    }

    /// The charts.
    pub(crate) fn plots(&self) -> Vec<Plot> {
        let line = |of: fn(&Self, Way, u32) -> f64, scale: f64| {
            move |way: Way| Line {
                name: way.name().to_owned(),
                points: self
                    .processes
                    .iter()
                    .map(|&processes| (f64::from(processes), of(self, way, processes) / scale))
                    .collect(),
            }
        };
        let plot = |title: &str, note: &str, y: &str, lines| Plot {
            title: title.to_owned(),
            note: note.to_owned(),
            x: format!("processes of each of {} hosts", self.hosts),
            y: y.to_owned(),
            logarithmic: true,
            lines,
        };
        vec![
            plot(
                "Memory of the connections of a host",
                "Both axes are logarithmic: RC grows with the square of the processes, XRC with their number.",
                "MB",
                Way::ALL.into_iter().map(line(Self::bytes, 1e6)).collect(),
            ),
            plot(
                "Queue pairs of a host",
                "What a peer, a NIC's cache and whoever watches it have to do with.",
                "queue pairs",
                [Way::Rc, Way::Xrc].into_iter().map(line(Self::queue_pairs, 1.0)).collect(),
            ),
        ]
    }

    /// The figures of the largest hosts.
    pub(crate) fn figures(&self) -> BTreeMap<String, f64> {
        let most = self.processes.last().copied().unwrap_or(1);
        let mb = |way| self.bytes(way, most) / 1e6;
        [
            ("processes_per_host", f64::from(most)),
            ("rc_queue_pairs", self.queue_pairs(Way::Rc, most)),
            ("xrc_queue_pairs", self.queue_pairs(Way::Xrc, most)),
            ("rc_mb", mb(Way::Rc)),
            ("rc_shared_receives_mb", mb(Way::RcShared)),
            ("xrc_mb", mb(Way::Xrc)),
            ("rc_to_xrc", mb(Way::Rc) / mb(Way::Xrc)),
        ]
        .map(|(key, value)| (key.to_owned(), value))
        .into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: fn() -> Memory = || Memory {
        hosts: 5,
        processes: vec![1, 2, 8],
        rc_bytes: 1000.0,
        xrc_bytes: 1500.0,
        srq_bytes: 100.0,
        receives: 10,
        receive_bytes: 50.0,
    };

    #[test]
    fn each_way_has_its_queue_pairs() {
        let memory = MEMORY();
        assert_eq!(memory.queue_pairs(Way::Rc, 8), 8.0 * 8.0 * 4.0);
        assert_eq!(memory.queue_pairs(Way::Xrc, 8), 8.0 * 4.0 + 8.0 * 4.0);
        // With one process for each host XRC saves nothing: it needs two where RC needs one.
        assert_eq!(memory.queue_pairs(Way::Xrc, 1), 2.0 * memory.queue_pairs(Way::Rc, 1));
    }

    #[test]
    fn bytes_are_those_of_the_objects() {
        let memory = MEMORY();
        assert_eq!(memory.bytes(Way::Rc, 2), 16.0 * (1000.0 + 500.0));
        assert_eq!(memory.bytes(Way::RcShared, 2), 16.0 * 1000.0 + 2.0 * 600.0);
        assert_eq!(memory.bytes(Way::Xrc, 2), 8.0 * 1500.0 + 2.0 * 600.0);
    }

    #[test]
    fn charts_and_figures_agree() {
        let memory = MEMORY();
        let (plots, figures) = (memory.plots(), memory.figures());
        let last = |line: &Line| line.points.last().copied();
        assert_eq!(last(&plots[0].lines[0]), Some((8.0, figures["rc_mb"])));
        assert_eq!(last(&plots[0].lines[2]), Some((8.0, figures["xrc_mb"])));
        assert_eq!(last(&plots[1].lines[1]), Some((8.0, figures["xrc_queue_pairs"])));
    }
}
