//! The unit of packet I/O: bursts in, batches out. A batch is what segmentation offload can send with one
//! call: one flow's header, bodies of equal size back to back, and an odd last one.

use core::ops::Range;

use crate::icrc;
use crate::ip::NetHeader;
use crate::num::Qpn;

/// How the IPv4 identification of the segments of a batch comes to be. The ICRC covers it, so whoever
/// fills the ICRC must know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpIdRule {
    /// Every packet leaves with ID 0 (an unconnected UDP socket that forbids fragmentation).
    Fixed0,
    /// Segment `i` leaves with ID `i` (the same socket, with segmentation offload).
    Index,
    /// Segment `i` leaves with the batch's ID + `i` (segmentation offload).
    BasePlusIndex,
    /// The back end sends the header as the core wrote it; the core counts IDs up.
    Ours,
}

/// What a packet I/O back end can do, told to the core when the device opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// Most segments in one batch, at least 1.
    pub max_segments: usize,
    /// Most bytes of bodies in one batch; at least one full packet.
    pub max_bytes: usize,
    /// Rule of the IPv4 identification.
    pub ip_id: IpIdRule,
    /// Whether received packets come with the IP header that was on the wire.
    pub sees_ip_header: bool,
    /// Packets that a queue pair may have in flight, requests or READ responses, before the receiver's
    /// buffer may overflow.
    pub window: u32,
    /// Packets that all its reliable queue pairs together may have in flight. A receive buffer serves all queue pairs
    /// of its device, so this is what it holds; `window` keeps one of them from taking it all.
    pub credit: u32,
    /// UDP source port that every packet leaves with, where the back end cannot choose it per packet. The
    /// ICRC covers it.
    pub src_port: Option<u16>,
}

/// How much of a received packet's network header was really seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderKnowledge {
    /// All of it, as it was on the wire.
    Seen,
    /// Rebuilt, with every field that the ICRC covers known by a rule that the back end enforces.
    Assumed,
    /// Rebuilt; the IPv4 identification is most likely that of the header and below [`ID_BOUND`] in any case, by a
    /// rule that the back end enforces: offload counts identifications up from 0, and what it has joined may have
    /// been taken apart on the way and joined again differently.
    Near,
    /// Rebuilt; the IPv4 identification is not known.
    Unknown,
}

/// Bound of the identifications of [`IpIdRule::Index`] and [`HeaderKnowledge::Near`], which is also the most
/// segments of a batch under that rule.
pub const ID_BOUND: u16 = 64;

/// One received packet of a burst.
#[derive(Clone, Debug)]
pub struct RxPacket {
    /// Network header.
    pub net: NetHeader,
    /// How far `net` can be trusted.
    pub knowledge: HeaderKnowledge,
    /// Where its bytes from BTH to ICRC lie in the burst's buffer.
    pub body: Range<usize>,
}

/// Packets received with one call.
#[derive(Debug, Default)]
pub struct RxBurst {
    /// Bodies, and behind them what bursts before have left.
    buf: Vec<u8>,
    /// Bytes up to the end of the last body.
    used: usize,
    /// Where the room lent last begins.
    room: usize,
    packets: Vec<RxPacket>,
    malformed: u32,
}

impl RxBurst {
    /// An empty burst.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Forgets all packets; keeps the memory.
    pub fn clear(&mut self) {
        self.used = 0;
        self.packets.clear();
        self.malformed = 0;
    }

    /// Number of packets.
    #[must_use]
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Whether it holds no packet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Adds a packet whose network header is known: `body` is BTH to ICRC.
    pub fn push(&mut self, net: NetHeader, knowledge: HeaderKnowledge, body: &[u8]) {
        self.room(body.len()).copy_from_slice(body);
        self.record(net, knowledge, 0..body.len());
    }

    /// Lends `len` bytes to receive into, behind the packets that there are; [`RxBurst::record`] makes packets of
    /// what has come. They hold whatever was received before.
    pub fn room(&mut self, len: usize) -> &mut [u8] {
        self.room = self.used;
        let end = self.room + len;
        if self.buf.len() < end {
            self.buf.resize(end, 0);
        }
        &mut self.buf[self.room..end]
    }

    /// What is in the room lent last.
    #[must_use]
    pub fn lent(&self) -> &[u8] {
        &self.buf[self.room..]
    }

    /// Adds a packet whose bytes from BTH to ICRC are at `body` in the room lent last.
    ///
    /// # Panics
    /// Where `body` goes beyond that room.
    pub fn record(&mut self, net: NetHeader, knowledge: HeaderKnowledge, body: Range<usize>) {
        let body = self.room + body.start..self.room + body.end;
        assert!(body.start <= body.end && body.end <= self.buf.len(), "within the room");
        self.used = self.used.max(body.end);
        self.packets.push(RxPacket { net, knowledge, body });
    }

    /// Adds an IP packet as it was on the wire. What is not RoCE v2 is left out; what claims to be but has
    /// impossible lengths is counted as malformed.
    pub fn push_ip(&mut self, packet: &[u8]) {
        match NetHeader::parse_ip(packet) {
            Ok((net, body)) => self.push(net, HeaderKnowledge::Seen, body),
            Err(crate::packet::ParseError::NotRoce) => {}
            Err(_) => self.malformed += 1,
        }
    }

    /// Counts `count` more malformed packets: those of another burst that is passed on into this one.
    pub fn add_malformed(&mut self, count: u32) {
        self.malformed += count;
    }

    /// Packets for the RoCE port whose IP or UDP lengths were impossible.
    #[must_use]
    pub fn malformed(&self) -> u32 {
        self.malformed
    }

    /// The packets with their bodies, in order of arrival.
    pub fn iter(&self) -> impl Iterator<Item = (&RxPacket, &[u8])> {
        self.packets.iter().map(|packet| (packet, &self.buf[packet.body.clone()]))
    }
}

/// Packets to send: one flow, bodies of equal size back to back, an odd last one.
#[derive(Debug)]
pub struct TxBatch {
    net: Option<NetHeader>,
    id_rule: IpIdRule,
    base_id: u16,
    /// Bodies, and behind them what batches before have left.
    buf: Vec<u8>,
    /// Bytes of bodies.
    used: usize,
    segment_len: usize,
    count: usize,
    /// Packets from the first on whose ICRC is in place.
    filled: usize,
    /// What the ICRC covers of the network header, for bodies of this length.
    head: Option<(usize, icrc::Head)>,
    sealed: bool,
}

/// Pad and ICRC, which are zero in a place that is given to be written.
const TAIL: usize = 3 + icrc::ICRC_LEN;

impl Default for TxBatch {
    fn default() -> Self {
        Self::new()
    }
}

impl TxBatch {
    /// Lanes that a receiver may spread its queue pairs over, by their number modulo this. It steers what
    /// segmentation offload sent as one, so all packets of a batch are for queue pairs of one lane.
    pub const LANES: usize = 8;

    /// The lane of a queue pair of the receiver.
    #[must_use]
    pub const fn lane(dest: Qpn) -> usize {
        dest.value() as usize % Self::LANES
    }

    /// An empty batch.
    #[must_use]
    pub fn new() -> Self {
        Self {
            net: None,
            id_rule: IpIdRule::Ours,
            base_id: 0,
            buf: Vec::new(),
            used: 0,
            segment_len: 0,
            count: 0,
            filled: 0,
            head: None,
            sealed: false,
        }
    }

    /// Empties the batch and starts one for the flow of `net`; lengths in `net` do not matter. `base_id` is
    /// the IPv4 identification of the first segment where `caps` leave it to the core.
    pub fn begin(&mut self, net: NetHeader, caps: &Caps, base_id: u16) {
        self.net = Some(net);
        self.id_rule = caps.ip_id;
        self.base_id = base_id;
        self.used = 0;
        self.segment_len = 0;
        self.count = 0;
        self.filled = 0;
        self.head = None;
        self.sealed = false;
    }

    /// Empties the batch.
    pub fn clear(&mut self) {
        *self = Self { buf: core::mem::take(&mut self.buf), ..Self::new() };
    }

    /// Number of packets.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether it holds no packet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Length of every body but perhaps the last, which may be shorter. BTH to ICRC.
    #[must_use]
    pub fn segment_len(&self) -> usize {
        self.segment_len
    }

    /// Whether a body of `len` bytes (BTH to ICRC) may still join.
    #[must_use]
    pub fn accepts(&self, len: usize, caps: &Caps) -> bool {
        if self.net.is_none() || self.sealed {
            return false;
        }
        if self.count == 0 {
            return true;
        }
        let full = self.used == self.count * self.segment_len;
        full && len <= self.segment_len && self.count < caps.max_segments && self.used + len <= caps.max_bytes
    }

    /// Adds a body of `len` bytes (BTH to ICRC), which [`TxBatch::accepts`] must allow, and gives its place to
    /// be written: all of it, for it holds whatever was sent before, but for the last seven bytes, which are
    /// zero. So pad need not be written, and [`TxBatch::seal`] fills the ICRC.
    pub fn push(&mut self, len: usize) -> &mut [u8] {
        debug_assert!(self.net.is_some() && !self.sealed, "a batch takes bodies between begin and seal");
        // The one before is complete, and still in the cache.
        self.fill();
        if self.count == 0 {
            self.segment_len = len;
        }
        self.count += 1;
        let start = self.used;
        self.used += len;
        if self.buf.len() < self.used {
            self.buf.resize(self.used, 0);
        }
        let body = &mut self.buf[start..self.used];
        let (head, tail) = body.split_at_mut(len.saturating_sub(TAIL));
        if cfg!(debug_assertions) {
            // A byte that a writer leaves out is to show in tests, not only where a batch is used again.
            head.fill(0xEE);
        }
        tail.fill(0);
        body
    }

    /// The last body, to be changed: its ICRC is filled later.
    pub fn last_mut(&mut self) -> Option<&mut [u8]> {
        let last = self.count.checked_sub(1).filter(|last| *last >= self.filled)?;
        let range = self.range(last);
        Some(&mut self.buf[range])
    }

    /// Takes the last body out again: it could not be written.
    pub fn cancel_last(&mut self) {
        if self.count > 0 {
            self.count -= 1;
            self.used = self.count * self.segment_len;
        }
    }

    /// Fills the ICRC of every packet; after this the batch is ready to send and takes no more.
    pub fn seal(&mut self) {
        self.fill();
        self.sealed = true;
    }

    /// Fills the ICRC of the packets that have none yet.
    fn fill(&mut self) {
        for i in self.filled..self.count {
            let (range, id) = (self.range(i), self.id(i));
            if self.head.as_ref().is_none_or(|(len, _)| *len != range.len()) {
                // The ICRC does not cover the checksum.
                let net = self.header_without_checksum(i);
                self.head = net.map(|net| (range.len(), icrc::Head::new(&net)));
            }
            if let Some((_, head)) = &mut self.head {
                if let Some(NetHeader::V4(..)) = self.net {
                    head.set_id(id);
                }
                head.fill(&mut self.buf[range]);
            }
        }
        self.filled = self.count;
    }

    /// Network header of the flow, with the lengths and ID of packet `i`.
    #[must_use]
    pub fn header(&self, i: usize) -> Option<NetHeader> {
        let mut net = self.header_without_checksum(i)?;
        net.set_checksum();
        Some(net)
    }

    /// IPv4 identification of packet `i` (rule R-WIR-35).
    fn id(&self, i: usize) -> u16 {
        match self.id_rule {
            IpIdRule::Fixed0 => 0,
            #[expect(
                clippy::cast_possible_truncation,
                reason = "a batch has at most as many as there are IDs"
            )]
            IpIdRule::Index => i as u16,
            #[expect(clippy::cast_possible_truncation, reason = "identifications count modulo 2^16")]
            IpIdRule::BasePlusIndex | IpIdRule::Ours => self.base_id.wrapping_add(i as u16),
        }
    }

    fn header_without_checksum(&self, i: usize) -> Option<NetHeader> {
        let mut net = self.net?;
        net.set_transport_len(self.range(i).len());
        net.set_id(self.id(i));
        Some(net)
    }

    /// All bodies back to back.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.buf[..self.used]
    }

    /// The packets in order: header and body.
    pub fn iter(&self) -> impl Iterator<Item = (NetHeader, &[u8])> {
        self.iter_from(0)
    }

    /// The packets from index `from` on: header and body.
    pub fn iter_from(&self, from: usize) -> impl Iterator<Item = (NetHeader, &[u8])> {
        (from..self.count).filter_map(|i| Some((self.header(i)?, &self.buf[self.range(i)])))
    }

    /// The bodies alone, from index `from` on.
    pub fn bodies_from(&self, from: usize) -> impl Iterator<Item = &[u8]> {
        (from..self.count).map(|i| &self.buf[self.range(i)])
    }

    fn range(&self, i: usize) -> Range<usize> {
        let start = i * self.segment_len;
        start..(start + self.segment_len).min(self.used)
    }
}

#[cfg(test)]
mod tests;
