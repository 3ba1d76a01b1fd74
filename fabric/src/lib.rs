//! A network that exists only in virtual time, and the faults that can happen on it.
//!
//! Used by tests and the lab, and, for the fault options, by `driver-shim`. It does no I/O, reads no clock and
//! knows packets only by their headers: what they mean to a queue pair is not its business.

#![forbid(unsafe_code)]

mod bottleneck;
pub mod faults;
mod frame;
mod injector;
mod line;
mod link;
mod network;
mod stage;
pub mod switched;

pub use bottleneck::{Bottleneck, BottleneckParams};
pub use faults::{Direction, FaultKind, FaultParseError, FaultSpec};
pub use frame::{ETHERNET_OVERHEAD, Frame};
pub use injector::{FaultCounts, Injector, Verdict};
pub use link::LinkParams;
pub use network::{Network, NodeCounts, NodeId, Record, TapPoint};
pub use stage::{MAX_HOLD, Stage};
pub use switched::{Fabric, Node, SwitchParams};
