//! InfiniBand and RoCE packet formats.
//!
//! This crate knows bytes only: it holds no state, reads no clock and does no I/O. Everything above it parses
//! with [`Packet`], writes with the header types and [`icrc::fill`], and passes packets on in
//! [`batch`]es.

#![forbid(unsafe_code)]

pub mod batch;
pub mod bth;
pub mod eth;
pub mod ext;
pub mod icrc;
pub mod ip;
pub mod num;
pub mod opcode;
pub mod packet;
pub mod pretty;
pub mod repr;
pub mod syndrome;
pub mod time;
#[cfg(test)]
mod vectors;

pub use bth::Bth;
pub use eth::{EthHeader, EtherType, Frame, VlanTag, VlanTags};
pub use ext::Ext;
pub use ip::{NetHeader, ROCE_V2_PORT};
pub use num::{Gid, LKey, Mac, Msn, Mtu, PKey, Psn, QKey, Qpn, RKey, Srqn, VirtAddr, WrId};
pub use opcode::{Opcode, Operation};
pub use packet::{Packet, ParseError};
pub use repr::PacketRepr;
pub use syndrome::{Credits, NakCode, RnrTimer, Syndrome};
pub use time::{Duration, Instant};
