//! Any bytes into the parsers: nothing panics, nothing is lost, and a refilled ICRC is right.

use wire::icrc;
use wire::opcode::{ExtHeader, Transport};
use wire::{EthHeader, Frame, NetHeader, Packet, ParseError, pretty};

/// `data` is one byte that says what the rest is (an Ethernet frame, an IP packet, a GRH and what follows, or BTH to
/// ICRC), one that says where to damage it later, and the rest.
pub fn parse(data: &[u8]) {
    let [kind, damage, bytes @ ..] = data else { return };
    match kind % 4 {
        0 => ethernet(bytes, *damage),
        1 => network(NetHeader::parse_ip(bytes), bytes, *damage),
        2 => network(NetHeader::parse_grh(bytes), bytes, *damage),
        _ => {
            let addr = core::net::Ipv4Addr::LOCALHOST.into();
            if let Some(net) = NetHeader::v2(addr, addr, 0xC000, 0, 64) {
                body(&net.with_transport_len(bytes.len().min(60_000)), bytes, *damage);
            }
        }
    }
}

/// A frame that parses comes out again byte for byte.
fn ethernet(bytes: &[u8], damage: u8) {
    if let Ok((eth, rest)) = EthHeader::parse(bytes) {
        let mut out = [0; EthHeader::MAX_LEN];
        let len = eth.emit(&mut out);
        assert_eq!([&out[..len], rest].concat(), bytes);
    }
    if let Ok(frame) = Frame::parse(bytes) {
        let mut out = Vec::new();
        frame.emit(&mut out);
        assert_eq!(out, bytes);
        body(&frame.net, frame.body, damage);
    }
}

/// Network headers that parse come out again byte for byte, and their lengths are those of the packet.
fn network(parsed: Result<(NetHeader, &[u8]), ParseError>, bytes: &[u8], damage: u8) {
    let Ok((net, inner)) = parsed else { return };
    let mut out = [0; NetHeader::MAX_LEN];
    let len = net.emit(&mut out);
    assert!(bytes.starts_with(&[&out[..len], inner].concat()));
    assert_eq!(net.transport_len(), inner.len());
    assert_eq!(net.with_transport_len(inner.len()).transport_len(), inner.len());
    body(&net, inner, damage);
}

fn body(net: &NetHeader, bytes: &[u8], damage: u8) {
    for text in [pretty::line(net, bytes).to_string(), pretty::tree_packet(net, bytes).to_string()] {
        assert!(!text.is_empty() && !text.ends_with('\n'));
    }
    match Packet::parse_body(*net, bytes) {
        Ok(packet) => {
            sound(&packet);
            checked(net, bytes, damage);
        }
        Err(ParseError::UnknownOpcode(opcode)) => assert_eq!(opcode.info(), None),
        Err(_) => {}
    }
}

/// The parts of a packet add up, and exactly the headers of its opcode are there.
fn sound(packet: &Packet<'_>) {
    let (info, bytes) = (packet.info(), packet.body());
    assert_eq!(packet.pad().len(), packet.bth().pad_count());
    let head = bytes.len() - icrc::ICRC_LEN - packet.pad().len() - packet.payload().len();
    assert_eq!(head, wire::Bth::SIZE + info.headers_len);
    let headers: usize = packet.ext_headers().map(|header| header.as_bytes().len()).sum();
    assert_eq!(headers, info.headers_len);
    for (header, found) in [
        (ExtHeader::Reth, packet.reth().is_some()),
        (ExtHeader::Aeth, packet.aeth().is_some()),
        (ExtHeader::AtomicEth, packet.atomic_eth().is_some()),
        (ExtHeader::AtomicAckEth, packet.atomic_ack_eth().is_some()),
        (ExtHeader::ImmDt, packet.imm_dt().is_some()),
        (ExtHeader::Ieth, packet.ieth().is_some()),
        (ExtHeader::Deth, packet.deth().is_some()),
        (ExtHeader::Xrceth, packet.xrceth().is_some()),
        (ExtHeader::Feth, packet.feth().is_some()),
    ] {
        assert_eq!(info.has(header), found);
    }
    assert_eq!(info.transport == Transport::Cnp, packet.bth().opcode() == wire::Opcode::CNP);
    if let Some(aeth) = packet.aeth() {
        assert_eq!(aeth.syndrome().byte(), bytes[wire::Bth::SIZE]);
    }
}

/// With its ICRC filled in the packet verifies; with one covered bit turned it does not (rule R-WIR-9).
fn checked(net: &NetHeader, bytes: &[u8], damage: u8) {
    let mut copy = bytes.to_vec();
    icrc::fill(net, &mut copy);
    assert!(icrc::verify(net, &copy));
    let covered = bytes.len() - icrc::ICRC_LEN;
    assert_eq!(copy[..covered], bytes[..covered]);
    // Byte 4 of the BTH, with the congestion bits, is the only one that is not covered.
    let at = usize::from(damage) % covered;
    copy[at] ^= 1 << (damage % 8);
    assert_eq!(icrc::verify(net, &copy), at == 4);
}
