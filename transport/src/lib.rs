//! The reliable transport engines: one queue pair's worth of requester, completer and responder.
//!
//! Nothing here does I/O or reads a clock. The owner of a queue pair (crate `qp`) hands in time, memory and
//! receive work through [`ports::Ctx`], feeds packets to [`Requester::on_response`] and
//! [`Responder::on_request`], and asks both for the next packet to send with `prepare` and `write`.

#![forbid(unsafe_code)]

pub mod completer;
pub mod completion;
pub mod counters;
pub mod datagram;
pub mod drop;
#[cfg(test)]
mod kit;
pub mod local;
mod message;
#[cfg(test)]
mod pair_tests;
pub mod params;
pub mod ports;
pub mod profile;
pub mod replay;
pub mod requester;
pub mod responder;
mod segment;
pub mod sge;
pub mod unreliable;
pub mod wqe;

pub use completion::{Completion, WcOpcode, WcStatus};
pub use counters::Counters;
pub use datagram::Datagrams;
pub use drop::DropReason;
pub use local::{KeyError, LocalOp};
pub use params::RcParams;
pub use ports::{Access, AccessError, AtomicOp, Ctx, Effects, Memory, PdId, RecvQueue, Via};
pub use profile::{Behaviour, Profile, UnknownProfile};
pub use requester::Requester;
pub use responder::Responder;
pub use unreliable::{Receiver, Sender};
pub use wqe::{Datagram, Placement, RecvWqe, SendFlags, SendOp, SendWqe, Sge, SgeList};
