//! Connection management messages: who offered which queue pair and start PSN to whom.
//!
//! Reads only what the summary lists. It checks no message against another.

use std::net::IpAddr;

use serde::Serialize;
use wire::Qpn;
use wire::opcode::{ExtHeader, Kind};

use crate::dissect::RocePacket;

/// A management datagram to queue pair 1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CmMessage {
    /// Number of its frame, from 1.
    pub frame: u64,
    /// Name of the message; `None` for a datagram of another management class.
    pub kind: Option<&'static str>,
    /// Sender.
    pub src: IpAddr,
    /// Receiver.
    pub dst: IpAddr,
    /// The sender's queue pair, of REQ and REP.
    pub qpn: Option<u32>,
    /// The PSN that the sender wants to receive first, of REQ and REP.
    pub start_psn: Option<u32>,
}

/// Management class of connection management.
const CLASS_CM: u8 = 0x07;
/// Size of the header that all management datagrams share.
const MAD_HEADER_LEN: usize = 24;

impl CmMessage {
    /// The message in `packet`, which is frame number `frame`; `None` where that is no datagram to queue
    /// pair 1 or holds no whole header.
    #[must_use]
    pub fn read(frame: u64, packet: &RocePacket<'_>) -> Option<Self> {
        let info = packet.info()?;
        if info.kind != Kind::Send || !info.has(ExtHeader::Deth) || packet.bth()?.dest_qp() != Qpn::GSI {
            return None;
        }
        let (header, body) = packet.payload()?.split_first_chunk::<MAD_HEADER_LEN>()?;
        let attribute = u16::from_be_bytes([header[16], header[17]]);
        let kind = if header[1] == CLASS_CM { name(attribute) } else { None };
        // Where the two messages that offer a queue pair have its number and the start PSN.
        let (qpn, start_psn) = match kind {
            Some("REQ") => (be24(body, 32), be24(body, 44)),
            Some("REP") => (be24(body, 12), be24(body, 20)),
            _ => (None, None),
        };
        Some(Self { frame, kind, src: packet.net.src(), dst: packet.net.dst(), qpn, start_psn })
    }
}

/// Name of the message with this attribute ID.
const fn name(attribute: u16) -> Option<&'static str> {
    Some(match attribute {
        0x10 => "REQ",
        0x11 => "MRA",
        0x12 => "REJ",
        0x13 => "REP",
        0x14 => "RTU",
        0x15 => "DREQ",
        0x16 => "DREP",
        0x17 => "SIDR_REQ",
        0x18 => "SIDR_REP",
        0x19 => "LAP",
        0x1A => "APR",
        _ => return None,
    })
}

fn be24(bytes: &[u8], at: usize) -> Option<u32> {
    let [a, b, c] = *bytes.get(at..)?.first_chunk::<3>()?;
    Some(u32::from_be_bytes([0, a, b, c]))
}
