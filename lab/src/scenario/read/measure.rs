//! What is measured: which queues are watched, and over which windows.

use fabric::switched::Cable;

use crate::scenario::names::Names;
use crate::scenario::section::{Section, real, whole};
use crate::scenario::{FlowSetup, HostSetup, Measure, NodeRef, ScenarioError};

use super::units::{Scale, priority};

/// Each is two series.
const MOST_WATCHED: usize = 64;

/// Whether a cable joins the two.
pub(super) fn are_neighbours(
    ends: (NodeRef, NodeRef),
    hosts: &[HostSetup],
    trunks: &[(usize, usize, Cable)],
) -> bool {
    match ends {
        (NodeRef::Host(host), NodeRef::Switch(switch)) | (NodeRef::Switch(switch), NodeRef::Host(host)) => {
            hosts[host].switch == switch
        }
        (NodeRef::Switch(a), NodeRef::Switch(b)) => {
            trunks.iter().any(|&(from, to, _)| (from, to) == (a, b) || (from, to) == (b, a))
        }
        (NodeRef::Host(_), NodeRef::Host(_)) => false,
    }
}

pub(super) fn measure(
    section: &mut Section<'_>,
    names: &Names,
    (hosts, flows): (&[HostSetup], &[FlowSetup]),
    are_neighbours: impl Fn(&(NodeRef, NodeRef)) -> bool,
    scale: Scale,
) -> Result<Measure, ScenarioError> {
    let first = &flows[0];
    let mut watch = Vec::new();
    for text in section.texts("watch")?.unwrap_or_default() {
        let ends = text.split_once("->").and_then(|(from, to)| {
            let joined = names.node(from.trim()).zip(names.node(to.trim()));
            joined.filter(&are_neighbours)
        });
        let ends = ends.ok_or_else(|| {
            section.wrong("watch", "a list of queues, as \"switch->host\" with names of neighbours")
        })?;
        if watch.contains(&ends) || watch.len() == MOST_WATCHED {
            return Err(section.wrong("watch", format!("{MOST_WATCHED} queues at most, each once")));
        }
        watch.push(ends);
    }
    if watch.is_empty() {
        watch.push((NodeRef::Switch(hosts[first.to].switch), NodeRef::Host(first.to)));
    }
    let capture = match section.text("capture")? {
        Some(name) => names.hosts(section, "capture", name)?[0],
        None => first.to,
    };
    Ok(Measure {
        watch,
        priority: priority(section, first.priority)?,
        window: scale.ms(section.number("window_ms", real(0.001, 1e6, "ms"))?.unwrap_or(100.0)),
        steps: section.count("steps", whole(10, 10_000, ""))?.unwrap_or(500),
        capture,
        theory: section.flag("theory")?.unwrap_or(false),
    })
}
