//! Verbs objects and the sans-IO NIC.
//!
//! [`Nic`] holds everything a network card holds: protection domains, memory regions, completion queues and
//! queue pairs. It is driven from outside with packets and time; see its module for the order of calls.

#![forbid(unsafe_code)]

mod cc;
mod cq;
mod credit;
mod demux;
mod engines;
pub mod error;
pub mod event;
#[cfg(test)]
mod kit;
mod limits;
pub mod mr;
pub mod nic;
mod pair;
mod sched;
mod slab;
pub mod srq;
pub mod state;
mod table;
mod timer;
pub mod wr;

pub use cc::CcState;
pub use cq::CqId;
pub use dcqcn::{Algorithm, CcConfig, ConfigError, Params as CcParams, Rate, RateState};
pub use error::{CreateError, DestroyError, McastError, ModifyQpError, ResizeCqError};
pub use event::{AsyncEvent, AsyncEventKind, Drops, Event, TraceEvent, Tracer};
pub use limits::Limits;
pub use mr::{MrError, MrInfo, MwType, Rereg};
pub use nic::{Nic, NicConfig};
pub use pair::QpInit;
pub use srq::{ModifySrqError, SrqAttr, SrqInit, SrqMask, SrqXrc, XrcdId};
pub use state::{AddressVector, AttrMask, QpAttr, QpState, QpType, UnknownQpType};
pub use table::Lane;
pub use transport::wqe::Placement;
pub use transport::wqe::{SendFlags, SendOp, Sge, SgeList};
pub use transport::{
    Access, Completion, Counters, DropReason, LocalOp, PdId, Profile, UnknownProfile, WcOpcode, WcStatus,
};
pub use wr::{AhId, BadWr, MwRange, PostError, QpCap, RecvWr, SendData, SendTo, SendWr};
