//! Packet I/O back ends, clocks, threads and safe device handles.
//!
//! The one crate of the project that touches the operating system. [`backend`] moves packets; a [`Device`]
//! drives the sans-IO core with them, inline when the program posts and polls and from a thread of its own
//! while the program does something else, or as the [`Driver`] says. Handles are reference-counted: any order of drops is legal.

#![deny(unsafe_code)]

mod ah;
pub mod backend;
pub mod bridge;
pub mod capture;
mod channel;
mod clock;
mod cq;
mod device;
mod engine;
pub mod interfaces;
mod mcast;
mod mr;
mod mw;
mod neigh;
pub mod oob;
mod pd;
mod private;
mod queue_pair;
mod ring;
mod srq;
pub mod stat;
#[expect(unsafe_code, reason = "system calls that no crate wraps")]
mod sys;
mod tracer;
mod xrc;

pub use ah::{AddressHandle, ConnectError};
pub use channel::{CompletionChannel, CqEvent};
pub use cq::CompletionQueue;
pub use device::{Device, DeviceBuilder, PairCc};
pub use engine::{Driver, UnknownDriver};
pub use mcast::AttachError;
pub use mr::{FastRegion, MemoryRegion};
pub use mw::MemoryWindow;
pub use pd::ProtectionDomain;
pub use queue_pair::{ConnectOptions, Endpoint, PreparedQp, QpBuilder, QueuePair};
pub use srq::SharedReceiveQueue;
pub use xrc::XrcDomain;
