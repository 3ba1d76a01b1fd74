//! One line per packet.

use core::fmt;

use zerocopy::FromBytes;

use crate::bth::Bth;
use crate::ext::Ext;
use crate::icrc::ICRC_LEN;
use crate::ip::{Ecn, NetHeader};
use crate::num::PKey;
use crate::opcode::{Info, Opcode, Operation, PayloadRule, Transport};
use crate::packet::{Packet, ParseError};

/// A packet that prints as one line; made by [`line()`].
#[derive(Clone, Copy, Debug)]
pub struct Line<'a> {
    net: NetHeader,
    body: &'a [u8],
}

/// One line for the packet with the network header `net` and `body`, its bytes from BTH to ICRC.
#[must_use]
pub const fn line<'a>(net: &NetHeader, body: &'a [u8]) -> Line<'a> {
    Line { net: *net, body }
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Packet::parse_body(self.net, self.body) {
            Ok(packet) => packet.fmt(f),
            Err(error) => broken(f, &self.net, self.body, error),
        }
    }
}

impl fmt::Display for Packet<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (bth, info) = (self.bth(), self.info());
        addresses(f, &self.net)?;
        name(f, info)?;
        write!(f, " qp={:#x}", bth.dest_qp().value())?;
        if info.transport != Transport::Cnp || bth.psn().value() != 0 {
            write!(f, " psn={}", bth.psn())?;
        }
        for header in self.ext_headers() {
            ext(f, info.operation, &header)?;
        }
        let len = self.payload().len();
        if info.payload != PayloadRule::None || len > 0 {
            write!(f, " len={len}")?;
        }
        if bth.pad_count() != len.wrapping_neg() & 3 {
            write!(f, " pad={}", bth.pad_count())?;
        }
        flags(f, &self.net, bth)
    }
}

/// A packet that does not parse: what can be read of it, and what is wrong.
fn broken(f: &mut fmt::Formatter<'_>, net: &NetHeader, body: &[u8], error: ParseError) -> fmt::Result {
    addresses(f, net)?;
    let Ok((bth, rest)) = Bth::ref_from_prefix(body) else {
        return write!(f, "malformed: {error} bytes={}", body.len());
    };
    write!(f, "{} qp={:#x} psn={}", bth.opcode(), bth.dest_qp().value(), bth.psn())?;
    write!(f, " len={}", rest.len().saturating_sub(ICRC_LEN))?;
    flags(f, net, bth)?;
    match error {
        // The opcode is on the line already.
        ParseError::UnknownOpcode(_) => f.write_str(" unknown opcode"),
        _ => write!(f, " malformed: {error}"),
    }
}

fn addresses(f: &mut fmt::Formatter<'_>, net: &NetHeader) -> fmt::Result {
    write!(f, "{net} ")?;
    match net {
        NetHeader::V1(_) => f.write_str("v1 "),
        NetHeader::V4(..) | NetHeader::V6(..) => Ok(()),
    }
}

fn name(f: &mut fmt::Formatter<'_>, info: &Info) -> fmt::Result {
    let operation = match info.operation {
        Operation::Cnp => return f.write_str("CNP"),
        Operation::Acknowledge => "ACK",
        Operation::AtomicAcknowledge => "ATOMIC_ACK",
        _ => info.operation_name(),
    };
    write!(f, "{} {operation}", info.transport)
}

fn ext(f: &mut fmt::Formatter<'_>, operation: Operation, header: &Ext) -> fmt::Result {
    match header {
        Ext::Xrceth(h) => write!(f, " srqn={:#x}", h.srqn().value()),
        Ext::Deth(h) => write!(f, " qkey={} src_qp={:#x}", h.qkey(), h.src_qp().value()),
        Ext::Feth(h) => write!(f, " placement={:#x} selectivity={}", h.placement(), h.selectivity()),
        Ext::Reth(h) => write!(f, " va={} rkey={} dmalen={}", h.va(), h.rkey(), h.dma_len()),
        Ext::AtomicEth(h) => {
            write!(f, " va={} rkey={}", h.va(), h.rkey())?;
            if operation == Operation::FetchAdd {
                write!(f, " add={:#x}", h.swap_or_add())
            } else {
                write!(f, " swap={:#x} compare={:#x}", h.swap_or_add(), h.compare())
            }
        }
        Ext::Aeth(h) => write!(f, " {} msn={}", h.syndrome(), h.msn()),
        Ext::AtomicAckEth(h) => write!(f, " original={:#x}", h.original()),
        Ext::ImmDt(h) => write!(f, " imm={:#010x}", u32::from_be_bytes(h.bytes())),
        Ext::Ieth(h) => write!(f, " inv_rkey={}", h.rkey()),
        Ext::CnpReserved(_) => Ok(()),
    }
}

/// What is not usual about a packet.
fn flags(f: &mut fmt::Formatter<'_>, net: &NetHeader, bth: &Bth) -> fmt::Result {
    let marks = [
        (bth.solicited(), " se"),
        (bth.ack_req(), " ack"),
        (net.ecn() == Ecn::Ce, " ce"),
        (bth.fecn(), " fecn"),
        // A congestion notification always has it.
        (bth.becn() && bth.opcode() != Opcode::CNP, " becn"),
    ];
    for (_, mark) in marks.iter().filter(|(set, _)| *set) {
        f.write_str(mark)?;
    }
    if bth.pkey() != PKey::DEFAULT {
        write!(f, " pkey={}", bth.pkey())?;
    }
    if bth.tver() != 0 {
        write!(f, " tver={}", bth.tver())?;
    }
    Ok(())
}
