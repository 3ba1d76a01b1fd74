//! The lab bench: the real queue pairs and congestion control on simulated hosts and switches, in virtual time.

#![forbid(unsafe_code)]

mod flow;
mod host;
mod memory;
mod meter;
pub mod page;
mod report;
mod run;
pub mod scenario;
pub mod theory;

pub use memory::Memory;
pub use report::{
    Flow, FlowSummary, Line, Link, Mark, Pause, Plot, Queue, Report, Run, Summary, Trace, more,
};
pub use run::{Observer, RunError, Unwatched, run};
pub use scenario::{BUILTIN, Builtin, Scenario, ScenarioError};
