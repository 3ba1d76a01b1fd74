//! What a scenario measured: the figures and series that its JSON holds and its page draws.
//!
//! Times are of the simulated clock. A time dilation is taken out again: the figures are those of the undilated
//! network.

use serde::Serialize;

/// One scenario: one run, or several that are compared side by side.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// Name of the scenario, as the command line takes it.
    pub scenario: String,
    /// A heading.
    pub title: String,
    /// A sentence or two: what to see in it, and why.
    pub see: String,
    /// Seed of everything that is random.
    pub seed: u64,
    /// The parameters, all of them, as the scenario's file has them after `--set`.
    pub parameters: serde_json::Value,
    /// The first run's, which scripts look for here.
    pub summary: Summary,
    /// The runs, at least one.
    pub runs: Vec<Run>,
    /// Further charts of this scenario, whose horizontal axis is not time.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub plots: Vec<Plot>,
}

/// Keys of [`Summary::more`] that the page draws as lines to compare with.
pub mod more {
    /// What theory says alpha settles at.
    pub const ALPHA_FIXED_POINT: &str = "alpha_fixed_point";
    /// The rate of each flow if all shared fairly, in Gb/s of frames.
    pub const FAIR_GBPS: &str = "fair_gbps";
    /// The least time that all messages together could take, in ms.
    pub const IDEAL_MS: &str = "ideal_ms";
}

/// A chart whose horizontal axis is not time.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Plot {
    /// A heading.
    pub title: String,
    /// A sentence: how to read it.
    pub note: String,
    /// What the horizontal axis is, with its unit.
    pub x: String,
    /// What the vertical axis is, with its unit.
    pub y: String,
    /// Whether both axes are logarithmic; points that are not above zero are left out then.
    pub logarithmic: bool,
    /// The lines.
    pub lines: Vec<Line>,
}

/// A line of a [`Plot`].
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Line {
    /// Its name.
    pub name: String,
    /// Its points, from left to right.
    pub points: Vec<(f64, f64)>,
}

/// One run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Run {
    /// What sets it apart from the others; empty where there is only one.
    pub name: String,
    /// From when on it was measured, in ms.
    pub warmup_ms: f64,
    /// When it ended, in ms.
    pub end_ms: f64,
    /// Its figures.
    pub summary: Summary,
    /// Its flows.
    pub flows: Vec<Flow>,
    /// The egress queues that are watched, the bottleneck first.
    pub queues: Vec<Queue>,
    /// Links that were paused.
    pub links: Vec<Link>,
    /// Jain's index of the flows' rates, window by window.
    pub jain: Trace,
}

/// The figures of a run, from the end of its warm-up on unless said otherwise.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// Mean of the bottleneck's queue over time, in KB (1000 bytes).
    pub queue_mean_kb: f64,
    /// Its standard deviation, in KB.
    pub queue_sd_kb: f64,
    /// The most it held, in KB.
    pub queue_max_kb: f64,
    /// Part of the time that the bottleneck sent, 0 to 1.
    pub utilisation: f64,
    /// Jain's index of the flows' mean rates, 0 to 1.
    pub jain: f64,
    /// The flows.
    pub flows: Vec<FlowSummary>,
    /// CNPs sent, over the whole run.
    pub cnp_sent: u64,
    /// Packets that switches marked, over the whole run.
    pub ce_marked: u64,
    /// Pause frames sent, over the whole run; those that end a pause are not counted.
    pub pause_frames: u64,
    /// Time that links were paused, summed over links and priorities, over the whole run, in ms.
    pub pause_ms: f64,
    /// Packets dropped, over the whole run.
    pub drops: u64,
    /// Packets sent again, over the whole run.
    pub retransmissions: u64,
    /// Further figures of this scenario, by name (memory per queue pair, theory's prediction, …).
    pub more: std::collections::BTreeMap<String, f64>,
}

/// The figures of one flow.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct FlowSummary {
    /// Its name.
    pub name: String,
    /// Mean rate at which it arrived, in Gb/s of frames.
    pub rate_mean_gbps: f64,
    /// Bytes of complete messages per time, in Gb/s: neither headers nor what came twice.
    pub goodput_mean_gbps: f64,
    /// Mean of alpha over time; `null` where its algorithm has none.
    pub alpha_mean: Option<f64>,
    /// Completion time of its last message, in ms from its start; `null` where it does not end.
    pub fct_ms: Option<f64>,
}

/// The series of one flow.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Flow {
    /// Its name.
    pub name: String,
    /// What of it arrived, averaged over each step, in Gb/s of frames.
    pub rate_gbps: Trace,
    /// The rate that congestion control allows, in Gb/s; empty where there is none.
    pub allowed_gbps: Trace,
    /// Its target rate, in Gb/s; empty where there is none.
    pub target_gbps: Trace,
    /// Alpha; empty where there is none.
    pub alpha: Trace,
    /// When CNPs reached it, in ms.
    pub cnps_ms: Vec<f64>,
    /// Its messages that are told of: when each was posted and when it was complete, in ms.
    pub messages_ms: Vec<(f64, f64)>,
}

/// The series of one egress queue.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Queue {
    /// Its name.
    pub name: String,
    /// What it held, in KB: the mean of each step.
    pub depth_kb: Trace,
    /// The most it held in each step, in KB.
    pub peak_kb: Trace,
    /// Horizontal lines to compare it with: Kmin, Kmax, XOFF, the prediction of theory.
    pub marks: Vec<Mark>,
}

/// A value worth a line in a chart.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Mark {
    /// What it is.
    pub name: String,
    /// In the chart's unit.
    pub value: f64,
}

/// A link that was paused.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Link {
    /// Its name.
    pub name: String,
    /// When it was paused.
    pub pauses: Vec<Pause>,
}

/// A pause of one priority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Pause {
    /// Priority, 0 to 7.
    pub priority: u8,
    /// When it began, in ms.
    pub from_ms: f64,
    /// When it ended, in ms.
    pub to_ms: f64,
}

/// Values over time.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Trace {
    /// When, in ms, rising.
    pub t_ms: Vec<f64>,
    /// What, at each.
    pub value: Vec<f64>,
}
