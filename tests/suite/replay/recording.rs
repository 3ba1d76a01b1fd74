//! Recorded connections: the packets of one requester and one responder, in the order in which they were seen.

use std::path::Path;

use wire::opcode::Kind;
use wire::repr::PacketRepr;
use wire::{Duration, Frame, Gid, Instant, Mtu, Qpn};

use crate::captures;

/// One recorded packet.
#[derive(Clone)]
pub(super) struct Recorded {
    /// Time since the first packet of the capture.
    pub(super) at: Instant,
    pub(super) is_request: bool,
    pub(super) packet: PacketRepr,
}

/// What one requester asked of one queue pair of a responder, and what that answered.
pub(super) struct Conversation {
    /// Name of the capture file without its extension.
    pub(super) name: String,
    pub(super) mtu: Mtu,
    pub(super) requester: Gid,
    pub(super) responder: Gid,
    pub(super) responder_qpn: Qpn,
    pub(super) packets: Vec<Recorded>,
}

impl Conversation {
    pub(super) fn requests(&self) -> impl Iterator<Item = &PacketRepr> {
        self.packets.iter().filter(|recorded| recorded.is_request).map(|recorded| &recorded.packet)
    }

    pub(super) fn answers(&self) -> impl Iterator<Item = &PacketRepr> {
        self.packets.iter().filter(|recorded| !recorded.is_request).map(|recorded| &recorded.packet)
    }
}

/// The conversations of a capture: one for each requester and each queue pair that it spoke to.
pub(super) fn conversations(file: &Path) -> Vec<Conversation> {
    let name = file.file_stem().and_then(|stem| stem.to_str()).unwrap().to_owned();
    let packets = packets(file);
    let mut found: Vec<Conversation> = Vec::new();
    for recorded in packets.iter().filter(|recorded| recorded.is_request) {
        let (src, dst) = (recorded.packet.net.src_gid(), recorded.packet.net.dst_gid());
        let qpn = recorded.packet.bth.dest_qp();
        if !found.iter().any(|c| (c.requester, c.responder, c.responder_qpn) == (src, dst, qpn)) {
            found.push(Conversation {
                mtu: mtu_of(&name),
                name: name.clone(),
                requester: src,
                responder: dst,
                responder_qpn: qpn,
                packets: Vec::new(),
            });
        }
    }
    // An answer names the requester's queue pair only. The queue pairs of two hosts were made in pairs, so the
    // first that is asked belongs to the first that is answered.
    let mut answered: Vec<(Gid, Gid, Qpn)> = Vec::new();
    for recorded in packets {
        let (src, dst) = (recorded.packet.net.src_gid(), recorded.packet.net.dst_gid());
        let qpn = recorded.packet.bth.dest_qp();
        let of_hosts = if recorded.is_request {
            found.iter_mut().find(|c| (c.requester, c.responder, c.responder_qpn) == (src, dst, qpn))
        } else {
            if !answered.contains(&(src, dst, qpn)) {
                answered.push((src, dst, qpn));
            }
            let mut same_hosts = answered.iter().filter(|(s, d, _)| (*s, *d) == (src, dst));
            let place = same_hosts.position(|(.., q)| *q == qpn).unwrap();
            found.iter_mut().filter(|c| (c.requester, c.responder) == (dst, src)).nth(place)
        };
        of_hosts.unwrap_or_else(|| panic!("{name}: an answer to nothing")).packets.push(recorded);
    }
    found
}

fn packets(file: &Path) -> Vec<Recorded> {
    let mut out = Vec::new();
    let mut start = None;
    captures::each_frame(file, |captured| {
        let frame = Frame::parse(captured.data).unwrap();
        let packet = PacketRepr::parse_body(frame.net, frame.body).unwrap();
        let time = captured.time.unwrap();
        let at = Instant::ZERO + time.since(*start.get_or_insert(time));
        let kind = packet.bth.opcode().info().map(|info| info.kind);
        let is_request = !kind.is_some_and(Kind::is_response);
        out.push(Recorded { at, is_request, packet });
    });
    assert!(!out.is_empty(), "{} is empty", file.display());
    assert!(out.iter().all(|recorded| recorded.at <= Instant::ZERO + Duration::from_secs(60)));
    out
}

/// The path MTU is in the name where it is not 1024.
fn mtu_of(name: &str) -> Mtu {
    let digits = name.split("mtu").nth(1).and_then(|digits| digits.parse().ok());
    digits.map_or(Mtu::B1024, |bytes| Mtu::from_bytes(bytes).unwrap())
}
