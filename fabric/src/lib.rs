//! A network that exists only in virtual time, and the faults that can happen on it.
//!
//! Used by tests and the lab, and, for the fault options, by `driver-shim`. It does no I/O, reads no clock and
//! knows packets only by their headers: what they mean to a queue pair is not its business.

#![forbid(unsafe_code)]

pub mod faults;
mod injector;

pub use faults::{Direction, FaultKind, FaultParseError, FaultSpec};
pub use injector::{FaultCounts, Injector, Verdict};
