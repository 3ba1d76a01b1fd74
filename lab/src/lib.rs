//! The lab bench: the real queue pairs and congestion control on simulated hosts and switches, in virtual time.

#![forbid(unsafe_code)]

pub mod page;
mod report;

pub use report::{
    Flow, FlowSummary, Line, Link, Mark, Pause, Plot, Queue, Report, Run, Summary, Trace, more,
};
