//! Scenarios: files that say which hosts, switches and flows there are, and what is measured.
//!
//! A file is TOML; `docs/lab.md` explains every key. [`Scenario::parse`] reads one, applies the changes of `--set`, and
//! gives one [`Setup`] for each of its variants, with all names resolved and all times and rates dilated. Nothing here
//! simulates anything.

mod builtin;
mod cc;
mod names;
mod read;
mod section;
mod tree;

pub use builtin::{BUILTIN, Builtin};
pub use tree::Place;

use dcqcn::{CcConfig, Rate};
use fabric::switched::Cable;
use fabric::{FaultSpec, SwitchParams};
use qp::QpType;
use wire::{Duration, Mtu};

use crate::memory::Memory;

/// A scenario, ready to run.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// A heading.
    pub title: String,
    /// What to see in it, and why.
    pub see: String,
    /// Seed of everything that is random.
    pub seed: u64,
    /// What the file says, after all changes.
    pub parameters: serde_json::Value,
    /// What runs, side by side: at least one, or [`Scenario::memory`].
    pub setups: Vec<Setup>,
    /// What is counted in place of all that, where nothing runs.
    pub memory: Option<Memory>,
}

/// What is wrong with a scenario, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {what}")]
#[non_exhaustive]
pub struct ScenarioError {
    /// Where it stands.
    pub place: Place,
    /// The key that is meant, if one is.
    pub key: Option<String>,
    /// What is wrong and what would be right.
    pub what: String,
}

impl ScenarioError {
    const fn new(place: Place, key: Option<String>, what: String) -> Self {
        Self { place, key, what }
    }
}

/// One run. Its times and rates are dilated already.
#[derive(Clone, Debug)]
pub struct Setup {
    /// What sets it apart from the others; empty where there is only one.
    pub name: String,
    /// How much slower everything is than what the figures are of.
    pub dilation: f64,
    /// How long it runs.
    pub duration: Duration,
    /// From when on it is measured.
    pub warmup: Duration,
    /// Congestion control of all hosts.
    pub cc: CcConfig,
    /// Queue pairs.
    pub qp: QpSetup,
    /// Switches.
    pub switches: Vec<SwitchSetup>,
    /// Hosts.
    pub hosts: Vec<HostSetup>,
    /// Cables between switches: their indices.
    pub trunks: Vec<(usize, usize, Cable)>,
    /// Ways that are not the shortest: at this switch, to this host, over this switch.
    pub routes: Vec<(usize, usize, usize)>,
    /// Flows.
    pub flows: Vec<FlowSetup>,
    /// Hosts that ask for a pause: which, of which priority, from when until when.
    pub stuck: Vec<(usize, u8, Duration, Duration)>,
    /// What is measured.
    pub measure: Measure,
}

/// What all queue pairs have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpSetup {
    /// Payload of a full packet.
    pub mtu: Mtu,
    /// Packets in flight.
    pub window: u32,
    /// ACK timer code.
    pub timeout: u8,
    /// Repeats without progress.
    pub retry_count: u8,
    /// Bytes of one work request; longer messages are several.
    pub chunk: u32,
    /// Work requests that wait.
    pub depth: u32,
}

/// A switch.
#[derive(Clone, Debug)]
pub struct SwitchSetup {
    /// Its name.
    pub name: String,
    /// What it is like.
    pub params: SwitchParams,
}

/// A host.
#[derive(Clone, Debug)]
pub struct HostSetup {
    /// Its name.
    pub name: String,
    /// Its switch.
    pub switch: usize,
    /// The cable there.
    pub cable: Cable,
    /// What goes wrong on it.
    pub faults: Vec<FaultSpec>,
}

/// What one queue pair sends.
#[derive(Clone, Debug)]
pub struct FlowSetup {
    /// Its name.
    pub name: String,
    /// The host that sends.
    pub from: usize,
    /// The host that receives.
    pub to: usize,
    /// RC, or UC, which sends on whatever is lost.
    pub qp_type: QpType,
    /// Its priority, which is the upper three bits of its DSCP.
    pub priority: u8,
    /// Payload of a full packet.
    pub mtu: Mtu,
    /// Bytes of a message, and how many there are; `None` for one that does not end.
    pub messages: Option<(u64, u32)>,
    /// Time from one message to the next; `None` where the next begins when the last is complete.
    pub period: Option<Duration>,
    /// When it begins.
    pub start: Duration,
    /// From when on it posts nothing more.
    pub stop: Duration,
    /// It begins up to so much later, at random.
    pub jitter: Duration,
    /// Its rate at the start, as if congestion control had come there; `None` for the line's.
    pub initial: Option<Rate>,
    /// Whether its UDP source port is its own, as routing by hash wants it.
    pub has_own_port: bool,
    /// The flow whose messages it waits for: message n begins when n of that one have come.
    pub follows: Option<usize>,
}

/// What is measured.
#[derive(Clone, Debug)]
pub struct Measure {
    /// Egress queues that are watched, the bottleneck first: of which node, to which.
    pub watch: Vec<(NodeRef, NodeRef)>,
    /// Priority of these queues.
    pub priority: u8,
    /// Jain's index is taken over windows of this length.
    pub window: Duration,
    /// Points of a series.
    pub steps: u32,
    /// The host whose packets a capture has.
    pub capture: usize,
    /// Whether the fixed point of the fluid model is put beside the figures.
    pub theory: bool,
}

/// A node by its place among its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeRef {
    /// A host.
    Host(usize),
    /// A switch.
    Switch(usize),
}

impl Scenario {
    /// Reads the file `text` of the scenario `name`, with the changes `sets`, each `key.path=value`, and with `seed`
    /// where it is given.
    ///
    /// # Errors
    /// The first thing that is wrong: no TOML, an unknown key, a value of the wrong kind or out of its range, a name
    /// that nothing has.
    pub fn parse(name: &str, text: &str, sets: &[String], seed: Option<u64>) -> Result<Self, ScenarioError> {
        read::scenario(name, text, sets, seed)
    }

    /// The built-in scenario `name`, changed as by [`Scenario::parse`]; `None` where there is none of this name.
    #[must_use]
    pub fn builtin(name: &str, sets: &[String], seed: Option<u64>) -> Option<Result<Self, ScenarioError>> {
        let builtin = BUILTIN.iter().find(|builtin| builtin.name == name)?;
        Some(Self::parse(name, builtin.text, sets, seed))
    }
}

#[cfg(test)]
mod tests;
