//! Every field of a packet, a line each, indented by layer.

use core::fmt::{self, Display, Formatter};

use zerocopy::FromBytes;

use crate::bth::Bth;
use crate::eth::{EthHeader, Frame};
use crate::ext::Ext;
use crate::icrc::{self, ICRC_LEN};
use crate::ip::{Ecn, Ipv4Header, Ipv6Header, NetHeader, UdpHeader, ipv4_checksum};
use crate::num::Qpn;
use crate::opcode::Operation;
use crate::packet::Packet;
use crate::syndrome::Syndrome;

/// A packet that prints as a tree; made by [`tree`] or [`tree_packet`].
#[derive(Clone, Copy, Debug)]
pub struct Tree<'a> {
    eth: Option<EthHeader>,
    net: NetHeader,
    body: &'a [u8],
    trailer: &'a [u8],
}

/// Every field of `frame`, from the Ethernet header on.
#[must_use]
pub const fn tree<'a>(frame: &Frame<'a>) -> Tree<'a> {
    Tree { eth: Some(frame.eth), net: frame.net, body: frame.body, trailer: frame.trailer }
}

/// Every field of a packet without Ethernet header: `net`, and `body` from BTH to ICRC.
#[must_use]
pub const fn tree_packet<'a>(net: &NetHeader, body: &'a [u8]) -> Tree<'a> {
    Tree { eth: None, net: *net, body, trailer: &[] }
}

impl Display for Tree<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut out = Out { f, depth: 0, started: false };
        if let Some(eth) = &self.eth {
            ethernet(&mut out, eth)?;
        }
        match &self.net {
            NetHeader::V4(ip, header) => {
                ipv4(&mut out, ip)?;
                udp(&mut out, header)?;
            }
            NetHeader::V6(ip, header) => {
                ipv6(&mut out, "Internet Protocol Version 6", "Source", "Destination", ip)?;
                udp(&mut out, header)?;
            }
            NetHeader::V1(grh) => {
                ipv6(&mut out, "Global Route Header (RoCE v1)", "Source GID", "Destination GID", grh)?;
            }
        }
        infiniband(&mut out, &self.net, self.body)?;
        if !self.trailer.is_empty() {
            out.layer("Ethernet padding")?;
            bytes(&mut out, "Padding", self.trailer)?;
        }
        Ok(())
    }
}

/// Most payload bytes that are shown.
const SHOWN: usize = 256;

/// Writes indented lines, with a newline between them.
struct Out<'o, 'f> {
    f: &'o mut Formatter<'f>,
    depth: usize,
    started: bool,
}

impl Out<'_, '_> {
    fn line(&mut self, depth: usize, text: &dyn Display) -> fmt::Result {
        if self.started {
            self.f.write_str("\n")?;
        }
        self.started = true;
        write!(self.f, "{:indent$}{text}", "", indent = 4 * depth)
    }

    /// Begins a layer at the left margin.
    fn layer(&mut self, title: &str) -> fmt::Result {
        self.depth = 1;
        self.line(0, &title)
    }

    /// Begins a header within the InfiniBand layer.
    fn header(&mut self, title: &str) -> fmt::Result {
        self.depth = 2;
        self.line(1, &title)
    }

    /// One field of the layer or header begun last.
    fn field(&mut self, name: &str, value: &dyn Display) -> fmt::Result {
        self.line(self.depth, &format_args!("{name}: {value}"))
    }

    fn bit(&mut self, name: &str, set: bool) -> fmt::Result {
        self.field(name, &u8::from(set))
    }
}

fn ethernet(out: &mut Out<'_, '_>, eth: &EthHeader) -> fmt::Result {
    out.layer("Ethernet II")?;
    out.field("Destination", &eth.dst)?;
    out.field("Source", &eth.src)?;
    for tag in eth.vlan.iter() {
        let drop_eligible = u8::from(tag.drop_eligible());
        let text =
            format_args!("priority {}, drop eligible {drop_eligible}, ID {}", tag.priority(), tag.id());
        out.field("VLAN tag", &format_args!("{} ({:#06x}), {text}", tag.protocol, tag.protocol.0))?;
    }
    out.field("Type", &format_args!("{} ({:#06x})", eth.ether_type, eth.ether_type.0))
}

fn ipv4(out: &mut Out<'_, '_>, ip: &Ipv4Header) -> fmt::Result {
    out.layer("Internet Protocol Version 4")?;
    out.field("Version", &4)?;
    out.field("Header length", &"20 bytes")?;
    traffic_class(out, "Type of service", ip.tos)?;
    out.field("Total length", &ip.total_len)?;
    out.field("Identification", &format_args!("{:#06x} ({})", ip.id, ip.id))?;
    out.bit("Reserved bit", ip.flags & 0x8000 != 0)?;
    out.bit("Don't fragment", ip.flags & 0x4000 != 0)?;
    out.bit("More fragments", ip.flags & 0x2000 != 0)?;
    out.field("Fragment offset", &(ip.flags & 0x1FFF))?;
    out.field("Time to live", &ip.ttl)?;
    out.field("Protocol", &"UDP (17)")?;
    let right = ipv4_checksum(ip);
    if ip.checksum == right {
        out.field("Header checksum", &format_args!("{:#06x} (right)", ip.checksum))?;
    } else {
        out.field("Header checksum", &format_args!("{:#06x} (wrong, should be {right:#06x})", ip.checksum))?;
    }
    out.field("Source", &ip.src)?;
    out.field("Destination", &ip.dst)
}

fn ipv6(out: &mut Out<'_, '_>, title: &str, src: &str, dst: &str, ip: &Ipv6Header) -> fmt::Result {
    out.layer(title)?;
    out.field("Version", &6)?;
    traffic_class(out, "Traffic class", ip.traffic_class)?;
    out.field("Flow label", &format_args!("{:#07x}", ip.flow_label))?;
    out.field("Payload length", &ip.payload_len)?;
    let next = if title.starts_with("Global") { "InfiniBand transport (0x1b)" } else { "UDP (17)" };
    out.field("Next header", &next)?;
    out.field("Hop limit", &ip.hop_limit)?;
    out.field(src, &ip.src)?;
    out.field(dst, &ip.dst)
}

fn traffic_class(out: &mut Out<'_, '_>, name: &str, class: u8) -> fmt::Result {
    let ecn = match Ecn::from_tos(class) {
        Ecn::NotEct => "not ECN-capable",
        Ecn::Ect1 => "ECT(1)",
        Ecn::Ect0 => "ECT(0)",
        Ecn::Ce => "congestion experienced",
    };
    out.field(name, &format_args!("{class:#04x} (DSCP {}, ECN {} {ecn})", class >> 2, class & 3))
}

fn udp(out: &mut Out<'_, '_>, udp: &UdpHeader) -> fmt::Result {
    out.layer("User Datagram Protocol")?;
    out.field("Source port", &udp.src_port)?;
    out.field("Destination port", &format_args!("{} (RoCE v2)", udp.dst_port))?;
    out.field("Length", &udp.len)?;
    let none = if udp.checksum == 0 { " (none)" } else { "" };
    out.field("Checksum", &format_args!("{:#06x}{none}", udp.checksum))
}

fn infiniband(out: &mut Out<'_, '_>, net: &NetHeader, body: &[u8]) -> fmt::Result {
    out.layer("InfiniBand")?;
    let Ok((header, rest)) = Bth::ref_from_prefix(body) else {
        return bytes(out, "Too short for a base transport header", body);
    };
    bth(out, header)?;
    match Packet::parse_body(*net, body) {
        Ok(packet) => {
            for header in packet.ext_headers() {
                ext(out, packet.info().operation, &header)?;
            }
            out.depth = 1;
            if !packet.payload().is_empty() {
                bytes(out, "Payload", packet.payload())?;
            }
            if !packet.pad().is_empty() {
                bytes(out, "Pad", packet.pad())?;
            }
        }
        Err(error) => {
            out.depth = 1;
            out.field("Malformed", &error)?;
            let (data, _) = rest.split_at(rest.len().saturating_sub(ICRC_LEN));
            bytes(out, "Data", data)?;
        }
    }
    match rest.split_last_chunk::<ICRC_LEN>() {
        Some((_, raw)) => crc(out, net, body, *raw),
        None => out.field("Invariant CRC", &"missing"),
    }
}

fn crc(out: &mut Out<'_, '_>, net: &NetHeader, body: &[u8], raw: [u8; ICRC_LEN]) -> fmt::Result {
    let right = icrc::compute(net, &body[..body.len() - ICRC_LEN]).to_le_bytes();
    let (found, right) = (u32::from_be_bytes(raw), u32::from_be_bytes(right));
    let name = "Invariant CRC (bytes as on the wire)";
    if found == right {
        out.field(name, &format_args!("{found:#010x} (right)"))
    } else {
        out.field(name, &format_args!("{found:#010x} (wrong, should be {right:#010x})"))
    }
}

fn bth(out: &mut Out<'_, '_>, bth: &Bth) -> fmt::Result {
    out.header("Base Transport Header")?;
    out.field("Opcode", &format_args!("{} ({:#04x})", bth.opcode(), bth.opcode().byte()))?;
    out.bit("Solicited event", bth.solicited())?;
    out.bit("MigReq", bth.migreq())?;
    out.field("Pad count", &bth.pad_count())?;
    out.field("Transport header version", &bth.tver())?;
    out.field("Partition key", &bth.pkey())?;
    out.bit("FECN", bth.fecn())?;
    out.bit("BECN", bth.becn())?;
    out.field("Reserved (6 bits)", &format_args!("{:#04x}", bth.reserved6()))?;
    qpn(out, "Destination queue pair", bth.dest_qp())?;
    out.bit("Acknowledge request", bth.ack_req())?;
    out.field("Reserved (7 bits)", &format_args!("{:#04x}", bth.reserved7()))?;
    out.field("Packet sequence number", &format_args!("{} ({:#08x})", bth.psn(), bth.psn().value()))
}

fn qpn(out: &mut Out<'_, '_>, name: &str, qpn: Qpn) -> fmt::Result {
    out.field(name, &format_args!("{qpn} ({})", qpn.value()))
}

fn ext(out: &mut Out<'_, '_>, operation: Operation, header: &Ext) -> fmt::Result {
    match header {
        Ext::Xrceth(h) => {
            out.header("XRC Extended Transport Header")?;
            out.field("Reserved", &format_args!("{:#04x}", h.reserved()))?;
            out.field("XRC shared receive queue", &h.srqn())
        }
        Ext::Deth(h) => {
            out.header("Datagram Extended Transport Header")?;
            out.field("Queue key", &h.qkey())?;
            out.field("Reserved", &format_args!("{:#04x}", h.reserved()))?;
            qpn(out, "Source queue pair", h.src_qp())
        }
        Ext::Feth(h) => {
            out.header("Flush Extended Transport Header")?;
            out.field("Reserved", &format_args!("{:#x}", h.reserved()))?;
            out.field("Selectivity", &h.selectivity())?;
            out.field("Placement type", &format_args!("{:#x}", h.placement()))
        }
        Ext::Reth(h) => {
            out.header("RDMA Extended Transport Header")?;
            out.field("Virtual address", &format_args!("{:#018x}", h.va().value()))?;
            out.field("Remote key", &h.rkey())?;
            out.field("DMA length", &h.dma_len())
        }
        Ext::AtomicEth(h) => {
            out.header("Atomic Extended Transport Header")?;
            out.field("Virtual address", &format_args!("{:#018x}", h.va().value()))?;
            out.field("Remote key", &h.rkey())?;
            let (first, second) = match operation {
                Operation::FetchAdd => ("Add", "Compare (not used)"),
                _ => ("Swap", "Compare"),
            };
            out.field(first, &format_args!("{:#018x}", h.swap_or_add()))?;
            out.field(second, &format_args!("{:#018x}", h.compare()))
        }
        Ext::Aeth(h) => {
            out.header("ACK Extended Transport Header")?;
            syndrome(out, h.syndrome())?;
            out.field("Message sequence number", &h.msn())
        }
        Ext::AtomicAckEth(h) => {
            out.header("Atomic ACK Extended Transport Header")?;
            out.field("Original value", &format_args!("{:#018x}", h.original()))
        }
        Ext::ImmDt(h) => {
            out.header("Immediate Data")?;
            out.field("Bytes as on the wire", &format_args!("{:#010x}", u32::from_be_bytes(h.bytes())))
        }
        Ext::Ieth(h) => {
            out.header("Invalidate Extended Transport Header")?;
            out.field("Remote key", &h.rkey())
        }
        Ext::CnpReserved(h) => {
            out.header("Congestion Notification")?;
            bytes(out, "Reserved", &h.bytes())
        }
    }
}

fn syndrome(out: &mut Out<'_, '_>, syndrome: Syndrome) -> fmt::Result {
    let byte = syndrome.byte();
    match syndrome {
        Syndrome::Ack(credits) => match credits.count() {
            Some(n) => out.field("Syndrome", &format_args!("{byte:#04x} (ACK, {n} credits)")),
            None => out.field("Syndrome", &format_args!("{byte:#04x} (ACK, no credit limit)")),
        },
        Syndrome::RnrNak(timer) => {
            let wait = timer.duration();
            out.field("Syndrome", &format_args!("{byte:#04x} (receiver not ready, wait {wait:?})"))
        }
        Syndrome::Nak(code) => out.field("Syndrome", &format_args!("{byte:#04x} (NAK, {code})")),
        Syndrome::Reserved(_) => out.field("Syndrome", &format_args!("{byte:#04x} (reserved)")),
    }
}

/// A run of bytes: its length, and the bytes sixteen to a line.
fn bytes(out: &mut Out<'_, '_>, name: &str, bytes: &[u8]) -> fmt::Result {
    let plural = if bytes.len() == 1 { "" } else { "s" };
    out.field(name, &format_args!("{} byte{plural}", bytes.len()))?;
    for (i, row) in bytes.chunks(16).enumerate().take(SHOWN / 16) {
        out.line(out.depth + 1, &Hex { offset: 16 * i, row })?;
    }
    if bytes.len() > SHOWN {
        out.line(out.depth + 1, &format_args!("and {} more", bytes.len() - SHOWN))?;
    }
    Ok(())
}

/// A row of a hex dump.
struct Hex<'a> {
    offset: usize,
    row: &'a [u8],
}

impl Display for Hex<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x} ", self.offset)?;
        self.row.iter().try_for_each(|byte| write!(f, " {byte:02x}"))
    }
}
