//! Packets as text: [`line()`] for logs and traces, [`tree`] for learning.
//!
//! Tracers, the capture reader and test scripts call it. It prints any bytes whatever, whole or broken,
//! never judges a packet by the state of a connection, and adds no newline at the end. A
//! [`Packet`](crate::Packet) that is parsed already prints its line by itself.
//!
//! A line is `SRC > DST TRANSPORT OPERATION qp=Q psn=N`, the fields of the headers that the opcode has,
//! `len=` of the payload without pad, and then what is not usual: `se` (solicited event), `ack` (the packet
//! asks for an acknowledgement), `ce` (marked by a switch), `fecn`, `becn`, `pkey=`, `pad=`, `tver=`.
//!
//! ```text
//! 10.0.0.1 > 10.0.0.2 RC WRITE_FIRST qp=0x12 psn=7 va=0x7f0012345678 rkey=0x00001234 dmalen=2500 len=1024
//! 10.0.0.1 > 10.0.0.2 RC WRITE_LAST qp=0x12 psn=9 len=452 ack
//! 10.0.0.2 > 10.0.0.1 RC ACK qp=0x11 psn=8 nak=psn_sequence msn=1
//! ```

mod line;
mod tree;

pub use line::{Line, line};
pub use tree::{Tree, tree, tree_packet};

#[cfg(test)]
mod tests;
