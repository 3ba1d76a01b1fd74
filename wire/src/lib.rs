//! InfiniBand and RoCE packet formats.
//!
//! This crate knows bytes only: it holds no state, reads no clock and does no I/O. Everything above it parses
//! with [`Packet`], writes with the header types and [`icrc::fill`], and passes packets on in
//! [`batch`]es.
//!
//! From the outside of a packet to its inside: [`eth`] (Ethernet and VLAN), [`ip`] (IPv4, IPv6, UDP, GRH),
//! [`bth`] and [`ext`] (the InfiniBand headers), [`opcode`] (which header belongs to what), [`icrc`].
//! [`packet`] is the one place where lengths are checked; [`repr`] holds packets by value, to change and write
//! them; [`pretty`] prints them. [`num`], [`syndrome`] and [`time`] are the types of the fields.
//!
//! ```
//! use ferroce_wire::{Bth, NetHeader, Opcode, Operation, Packet, PacketRepr, Psn, Qpn};
//!
//! let net = NetHeader::v2([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 0xC000, 0, 64).unwrap();
//! let bth = Bth::new(Opcode::rc(Operation::SendOnly), Qpn::new(0x12), Psn::new(7)).with_ack_req(true);
//! let mut bytes = Vec::new();
//! PacketRepr::new(net, bth, [], *b"hello").unwrap().emit(&mut bytes);
//!
//! let packet = Packet::parse_ip(&bytes).unwrap();
//! assert!(packet.icrc_ok());
//! assert_eq!(packet.payload(), b"hello");
//! assert_eq!(packet.to_string(), "10.0.0.1 > 10.0.0.2 RC SEND_ONLY qp=0x12 psn=7 len=5 ack");
//! ```

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
