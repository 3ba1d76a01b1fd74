//! A bridge between two network interfaces: whole frames, of any kind, from one to the other. Needs CAP_NET_RAW.
//!
//! The kernel hands over frames with an offload header in front, which goes along unchanged: what has no checksum yet gets
//! one where the way needs it, and a run of packets that the kernel has joined is passed on as one, at the price of the
//! frames that it stands for. The bridge has no address; whatever the two sides ask each other passes.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use mio::event::Event;
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use socket2::{Domain, Socket, Type};
use wire::{EthHeader, EtherType, Instant, VlanTag};

use super::switch::{Carried, Switch};
use super::{BridgeError, PORTS, Ports};
use crate::backend::{OpenError, receive_buffer, send_buffer};
use crate::sys::{self, Inbox, Incoming};

/// Length of the offload header, and where it says what is segmented, how long the headers and the segments are, and
/// where the missing checksum begins.
const OFFLOAD_LEN: usize = 10;
const KIND_AT: usize = 1;
const HEADERS_AT: usize = 2;
const SEGMENT_AT: usize = 4;
const CHECKSUM_AT: usize = 6;

/// What a frame takes on the cable beside its bytes: frame check, preamble and gap.
const FRAME_OVERHEAD: usize = 24;
/// Shortest frame without its check.
const SHORTEST: usize = 60;
/// Longest frame, joined of many.
const PLACE: usize = OFFLOAD_LEN + EthHeader::MAX_LEN + 65_535 + 40;
/// Frames that there is room for with each call.
const PLACES: usize = 16;
/// Where Ethernet's addresses end, and tags go.
const TAG_AT: usize = 12;
const SEND_BUFFER: i32 = 4 << 20;

#[derive(Debug)]
pub(super) struct Between {
    sides: [Side; 2],
    inbox: Inbox,
    room: Vec<u8>,
}

#[derive(Debug)]
struct Side {
    socket: Socket,
    is_ready: bool,
    /// Queue of what goes out here.
    output: usize,
}

impl Between {
    pub(super) fn open(
        names: [&str; 2],
        registry: &Registry,
        now: Instant,
        switch: &mut Switch,
    ) -> Result<Self, BridgeError> {
        let [a, b] = names;
        if a == b {
            return Err(BridgeError::SameInterface { name: a.to_owned() });
        }
        let mut side = |name: &str, token: usize| -> Result<Side, BridgeError> {
            let socket = open_side(name)?;
            registry
                .register(&mut SourceFd(&socket.as_raw_fd()), Token(token), Interest::READABLE)
                .map_err(BridgeError::io("wait for frames"))?;
            Ok(Side { socket, is_ready: true, output: switch.add_output(now, name.to_owned()) })
        };
        let sides = [side(a, PORTS)?, side(b, PORTS + 1)?];
        Ok(Self { sides, inbox: Inbox::new(), room: vec![0; PLACE * PLACES] })
    }
}

/// A socket for all frames of the interface called `name`, and none that leave by it.
fn open_side(name: &str) -> Result<Socket, OpenError> {
    let interface = OpenError::interface(name)?;
    if !interface.is_up {
        return Err(OpenError::Interface { name: name.to_owned(), reason: "is down; `ip link set` it up" });
    }
    let failed = OpenError::io("set up a packet socket");
    // Protocol 0 receives nothing, until the socket is bound.
    let socket = Socket::new(Domain::PACKET, Type::RAW, None).map_err(OpenError::privileged("bridge"))?;
    socket.set_nonblocking(true).map_err(&failed)?;
    for option in [libc::PACKET_VNET_HDR, libc::PACKET_IGNORE_OUTGOING, libc::PACKET_AUXDATA] {
        sys::set_option(&socket, libc::SOL_PACKET, option, 1).map_err(&failed)?;
    }
    receive_buffer(&socket).map_err(&failed)?;
    send_buffer(&socket, SEND_BUFFER).map_err(&failed)?;
    sys::join_promiscuous(&socket, interface.index).map_err(&failed)?;
    sys::bind_link(&socket, interface.index).map_err(&failed)?;
    Ok(socket)
}

/// The tag that the kernel has taken off a frame.
fn tag_of(frame: &Incoming<'_>) -> Option<[u8; VlanTag::SIZE]> {
    /// Places in what the kernel says: status, the tag's control field, and its protocol where that is known.
    const CONTROL_AT: usize = 16;
    const PROTOCOL_AT: usize = 18;
    let told = frame.control().find(|item| item.is(libc::SOL_PACKET, libc::PACKET_AUXDATA))?.data;
    let number = |at: usize| Some(u16::from_ne_bytes([*told.get(at)?, *told.get(at + 1)?]));
    let status = u32::from_ne_bytes(*told.first_chunk()?);
    if status & libc::TP_STATUS_VLAN_VALID == 0 {
        return None;
    }
    let known = status & libc::TP_STATUS_VLAN_TPID_VALID != 0;
    let protocol = if known { number(PROTOCOL_AT)? } else { EtherType::VLAN.0 };
    let [[a, b], [c, d]] = [protocol.to_be_bytes(), number(CONTROL_AT)?.to_be_bytes()];
    Some([a, b, c, d])
}

/// A frame as it is sent on: with its offload header, and with its tag where it belongs.
fn with_tag(bytes: &[u8], tag: Option<[u8; VlanTag::SIZE]>) -> Vec<u8> {
    let mut frame = bytes.to_vec();
    if let Some(tag) = tag.filter(|_| bytes.len() >= OFFLOAD_LEN + TAG_AT) {
        let at = OFFLOAD_LEN + TAG_AT;
        frame.splice(at..at, tag);
        let shifted = u16::try_from(VlanTag::SIZE).unwrap_or_default();
        for at in [HEADERS_AT, CHECKSUM_AT] {
            let place = u16::from_ne_bytes([frame[at], frame[at + 1]]);
            if place > 0 {
                frame[at..at + 2].copy_from_slice(&place.saturating_add(shifted).to_ne_bytes());
            }
        }
    }
    frame
}

/// Bytes of the cable that a frame takes, or those that it stands for.
fn wire_len(frame: &[u8]) -> usize {
    let number = |at: usize| usize::from(u16::from_ne_bytes([frame[at], frame[at + 1]]));
    let len = frame.len() - OFFLOAD_LEN;
    let (headers, segment) = (number(HEADERS_AT), number(SEGMENT_AT));
    if frame[KIND_AT] == 0 || segment == 0 || headers >= len {
        return len.max(SHORTEST) + FRAME_OVERHEAD;
    }
    let payload = len - headers;
    payload + payload.div_ceil(segment) * (headers + FRAME_OVERHEAD)
}

impl Ports for Between {
    fn handle(&mut self, _now: Instant, event: &Event, _switch: &mut Switch) {
        if let Some(side) = event.token().0.checked_sub(PORTS).and_then(|side| self.sides.get_mut(side)) {
            side.is_ready = true;
        }
    }

    fn receive(&mut self, now: Instant, switch: &mut Switch) -> bool {
        let outputs = [self.sides[1].output, self.sides[0].output];
        for ((side, output), other) in self.sides.iter_mut().zip(outputs).zip([1, 0]) {
            if !side.is_ready {
                continue;
            }
            let count =
                self.inbox.receive(side.socket.as_fd(), &mut self.room, PLACE).unwrap_or_else(|error| {
                    // The interface is down, and may come up again.
                    tracing::debug!(%error, "no frames come from an interface");
                    0
                });
            side.is_ready = count == PLACES;
            for got in self.inbox.iter() {
                if got.truncated || got.at.len() < OFFLOAD_LEN {
                    switch.lost.malformed += 1;
                    continue;
                }
                let tag = tag_of(&got);
                let frame = with_tag(&self.room[got.at], tag);
                let ip_at = EthHeader::parse(&frame[OFFLOAD_LEN..])
                    .ok()
                    .filter(|(eth, _)| matches!(eth.ether_type, EtherType::IPV4 | EtherType::IPV6))
                    .map(|(eth, _)| OFFLOAD_LEN + eth.len());
                let len = wire_len(&frame) as u64;
                switch.offer(now, output, Carried::new(frame, ip_at, len, other));
            }
        }
        self.sides.iter().any(|side| side.is_ready)
    }

    fn deliver(&mut self, to: usize, bytes: Vec<u8>) -> bool {
        let sent = self.sides.get(to).map(|side| side.socket.send_with_flags(&bytes, libc::MSG_DONTWAIT));
        match sent {
            Some(Ok(_)) => true,
            Some(Err(error)) if error.kind() != io::ErrorKind::WouldBlock => {
                tracing::debug!(%error, "an interface takes no frame");
                false
            }
            _ => false,
        }
    }

    fn frame_at(&self) -> Option<usize> {
        Some(OFFLOAD_LEN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, headers: u16, segment: u16, checksum_at: u16, len: usize) -> Vec<u8> {
        let mut frame = vec![1, kind];
        for number in [headers, segment, checksum_at, 6] {
            frame.extend_from_slice(&number.to_ne_bytes());
        }
        frame.extend((0..len).map(|i| u8::try_from(i % 251).unwrap_or(0)));
        frame
    }

    #[test]
    fn joined_frames_cost_what_they_stand_for() {
        assert_eq!(wire_len(&frame(0, 0, 0, 0, 1_000)), 1_024);
        assert_eq!(wire_len(&frame(0, 0, 0, 0, 14)), 84);
        // Ten packets of 1,000 bytes behind 42 bytes of headers, and one of 500.
        assert_eq!(wire_len(&frame(5, 42, 1_000, 34, 42 + 10_500)), 10 * 1_066 + 566);
        // Nonsense costs its length.
        assert_eq!(wire_len(&frame(5, 9_000, 1_000, 34, 500)), 524);
        assert_eq!(wire_len(&frame(1, 42, 0, 34, 500)), 524);
    }

    #[test]
    fn a_tag_goes_back_where_it_was() {
        let plain = frame(5, 42, 1_000, 34, 100);
        let tagged = with_tag(&plain, Some([0x81, 0, 0x60, 7]));
        assert_eq!(tagged[OFFLOAD_LEN + 12..OFFLOAD_LEN + 16], [0x81, 0, 0x60, 7]);
        assert_eq!(tagged.len(), plain.len() + 4);
        assert_eq!(tagged[2..4], 46_u16.to_ne_bytes());
        assert_eq!(tagged[6..8], 38_u16.to_ne_bytes());
        assert_eq!(with_tag(&plain, None), plain);
        let short = frame(0, 0, 0, 0, 3);
        assert_eq!(with_tag(&short, Some([0x81, 0, 0, 7])), short);
    }
}
