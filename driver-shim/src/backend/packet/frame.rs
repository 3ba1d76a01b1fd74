//! Ethernet frames as a packet socket with offload headers hands them over and takes them.
//!
//! A frame is preceded by a virtio network header. With it the kernel takes a super-frame, many packets behind one
//! header, and segments it where the way needs that; and hands over those of others, which are taken apart here.

use std::net::IpAddr;
use std::ops::Range;

use wire::batch::{HeaderKnowledge, RxBurst};
use wire::{EthHeader, EtherType, Mac, NetHeader, ParseError, icrc};

/// Length of the offload header.
pub(super) const OFFLOAD_LEN: usize = 10;

/// Longest start of a frame that is sent: everything before the BTH.
const HEAD_LEN: usize = OFFLOAD_LEN + EthHeader::MIN_LEN + NetHeader::MAX_LEN;

/// Longest super-frame.
pub(super) const SUPER_FRAME: usize = OFFLOAD_LEN + EthHeader::MAX_LEN + 65_535 + 40;

/// Shortest packet, a BTH and an ICRC: a super-frame of shorter ones is not worth being taken apart.
const SHORTEST: usize = 16;

/// Flag of the offload header: the checksum is still to be made.
const NEEDS_CHECKSUM: u8 = 1;

/// Protocol number of UDP.
const UDP: u8 = 17;

/// Length of a UDP header, and where its checksum stands.
const UDP_LEN: usize = 8;
const CHECKSUM_AT: usize = 6;

/// Segmentation kinds of the offload header; the top bit marks ECN.
const NOT_SEGMENTED: u8 = 0;
const UDP_SEGMENTS: u8 = 5;

/// One received frame, taken apart as far as Ethernet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame<'a> {
    pub(super) dst: Mac,
    ether_type: EtherType,
    /// From the Ethernet header on.
    pub(super) bytes: &'a [u8],
    /// After the Ethernet header.
    payload: &'a [u8],
    /// UDP payload of each packet of a super-frame; 0 for an ordinary frame.
    segment: usize,
}

impl<'a> Frame<'a> {
    /// Reads what the socket gave. `None` for what is too short, or segmented in a way that RoCE is not.
    pub(super) fn parse(received: &'a [u8]) -> Option<Self> {
        let (offload, bytes) = received.split_first_chunk::<OFFLOAD_LEN>()?;
        let segment = match offload[1] & 0x7F {
            NOT_SEGMENTED => 0,
            UDP_SEGMENTS => usize::from(u16::from_ne_bytes([offload[4], offload[5]])),
            _ => return None,
        };
        Some(Self { segment, ..Self::plain(bytes)? })
    }

    /// Reads an ordinary frame that no offload header precedes. `None` for what is too short.
    pub(crate) fn plain(bytes: &'a [u8]) -> Option<Self> {
        let (EthHeader { dst, ether_type, .. }, payload) = EthHeader::parse(bytes).ok()?;
        Some(Self { dst, ether_type, bytes, payload, segment: 0 })
    }

    /// Whether it carries UDP over IP; what else passes the filter is address resolution.
    pub(super) fn is_udp(&self) -> bool {
        let protocol = match self.ether_type {
            EtherType::IPV4 => self.payload.get(9),
            EtherType::IPV6 => self.payload.get(6),
            _ => None,
        };
        protocol == Some(&UDP)
    }

    /// The RoCE packets of an IP frame.
    ///
    /// # Errors
    /// Where it carries none.
    pub(super) fn packets(&self) -> Result<Packets, ParseError> {
        let (mut net, body) = NetHeader::parse_ip(self.payload)?;
        if self.segment > 0
            && let NetHeader::V4(_, udp) | NetHeader::V6(_, udp) = &mut net
        {
            // That of the pseudo-header: each packet's own is not made yet.
            udp.checksum = 0;
        }
        if (1..SHORTEST).contains(&self.segment) {
            return Err(ParseError::TooShort);
        }
        let start = OFFLOAD_LEN + self.bytes.len() - self.payload.len() + net.len();
        let segment = if self.segment == 0 { body.len() } else { self.segment };
        Ok(Packets { net, body: start..start + body.len(), segment })
    }
}

/// The packets of one frame.
#[derive(Clone, Debug)]
pub(super) struct Packets {
    /// The frame's header: that of the first but for the lengths.
    pub(super) net: NetHeader,
    /// All of them from BTH to ICRC, back to back; where they are in the frame as received.
    body: Range<usize>,
    /// Length of each but perhaps the last.
    segment: usize,
}

impl Packets {
    /// Makes packets of `rx` of them, the frame being at `at` in its room.
    ///
    /// What takes a super-frame apart on its way counts the identification up (rule R-WIR-35). One that the host itself
    /// has joined of single packets may be of packets that all have the same one; the second packet's ICRC tells.
    pub(super) fn record(&self, rx: &mut RxBurst, at: usize) {
        let (start, end) = (at + self.body.start, at + self.body.end);
        if start == end || self.segment >= self.body.len() {
            rx.record(self.net, HeaderKnowledge::Seen, start..end);
            return;
        }
        let first_id = if let NetHeader::V4(ip, _) = self.net { ip.id } else { 0 };
        let full = self.net.with_transport_len(self.segment);
        let id = |i: u16| first_id.wrapping_add(i);
        let second = start + self.segment..(start + 2 * self.segment).min(end);
        let second_net = self.net.with_transport_len(second.len()).with_id(id(1));
        let same_id = icrc::solve_id(&second_net, &rx.lent()[second]) == Some(first_id);
        for (i, start) in (0..=u16::MAX).zip((start..end).step_by(self.segment)) {
            let len = self.segment.min(end - start);
            let net = if len == self.segment { full } else { full.with_transport_len(len) };
            let net = net.with_id(if same_id { first_id } else { id(i) });
            rx.record(net, HeaderKnowledge::Seen, start..start + len);
        }
    }
}

/// Everything before the BTH of one frame: offload header, Ethernet, IP and UDP.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    bytes: [u8; HEAD_LEN],
    len: usize,
}

impl Head {
    pub(super) const EMPTY: Self = Self { bytes: [0; HEAD_LEN], len: 0 };

    /// Writes the headers of `net`. The destination's Ethernet address may follow by [`set_destination`].
    pub(super) fn new(src: Mac, dst: Mac, net: &NetHeader) -> Self {
        let mut bytes = [0; HEAD_LEN];
        let at = OFFLOAD_LEN + EthHeader::new(src, dst, net).emit(&mut bytes[OFFLOAD_LEN..]);
        Self { len: at + net.emit(&mut bytes[at..]), bytes }
    }

    /// Writes the headers of a super-frame of `len` bytes from the first BTH to the last ICRC, of packets of `segment`
    /// bytes each, the last perhaps shorter. `net` is the header of the first.
    pub(super) fn of_run(src: Mac, dst: Mac, net: &NetHeader, segment: usize, len: usize) -> Self {
        let net = net.with_transport_len(len);
        let mut head = Self::new(src, dst, &net);
        let udp_at = head.len - UDP_LEN;
        // The kernel makes each packet's checksum, and starts from that of the pseudo-header.
        head.bytes[udp_at + CHECKSUM_AT..udp_at + UDP_LEN].copy_from_slice(&pseudo_sum(&net).to_be_bytes());
        head.bytes[0] = NEEDS_CHECKSUM;
        head.bytes[1] = UDP_SEGMENTS;
        for (at, value) in
            [(2, head.len - OFFLOAD_LEN), (4, segment), (6, udp_at - OFFLOAD_LEN), (8, CHECKSUM_AT)]
        {
            #[expect(clippy::cast_possible_truncation, reason = "lengths within a frame")]
            head.bytes[at..at + 2].copy_from_slice(&(value as u16).to_ne_bytes());
        }
        head
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The sum, not yet inverted, of the pseudo-header that a UDP checksum covers.
fn pseudo_sum(net: &NetHeader) -> u16 {
    let words = |address: IpAddr| match address {
        IpAddr::V4(v4) => u64::from(v4.to_bits()),
        IpAddr::V6(v6) => v6.segments().into_iter().map(u64::from).sum(),
    };
    let len = (UDP_LEN + net.transport_len()) as u64;
    let mut sum = words(net.src()) + words(net.dst()) + u64::from(UDP) + len;
    while sum > 0xFFFF {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    u16::try_from(sum).expect("folded")
}

/// Sets the destination of a whole frame that was made before it was known.
pub(super) fn set_destination(frame: &mut [u8], dst: Mac) {
    if let Some(place) = frame.get_mut(OFFLOAD_LEN..OFFLOAD_LEN + 6) {
        place.copy_from_slice(&dst.0);
    }
}

#[cfg(test)]
mod tests {
    use wire::ROCE_V2_PORT;
    use wire::batch::{Caps, IpIdRule, TxBatch};

    use super::*;

    fn header(len: usize) -> NetHeader {
        let net = NetHeader::v2([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), ROCE_V2_PORT, 0, 64);
        net.expect("one family").with_transport_len(len).with_id(0xFFFF)
    }

    fn frame(segment: u16, body: &[u8]) -> Vec<u8> {
        let mut frame = Head::new(Mac([2; 6]), Mac([4; 6]), &header(body.len())).bytes().to_vec();
        if segment > 0 {
            frame[1] = UDP_SEGMENTS;
            frame[4..6].copy_from_slice(&segment.to_ne_bytes());
        }
        frame.extend_from_slice(body);
        frame
    }

    fn unpack(frame: &[u8]) -> Vec<(NetHeader, Vec<u8>)> {
        let mut rx = RxBurst::new();
        // Not at the beginning of the room, as most frames.
        rx.room(3 + frame.len())[3..].copy_from_slice(frame);
        if let Some(Ok(packets)) = Frame::parse(frame).map(|frame| frame.packets()) {
            packets.record(&mut rx, 3);
        }
        rx.iter().map(|(packet, body)| (packet.net, body.to_vec())).collect()
    }

    #[test]
    fn a_frame_is_read_as_it_was_written() {
        let frame = frame(0, &[7; 32]);
        let parsed = Frame::parse(&frame).expect("whole");
        assert_eq!((parsed.dst, parsed.is_udp()), (Mac([4; 6]), true));
        assert_eq!(unpack(&frame), [(header(32), vec![7; 32])]);
    }

    #[test]
    fn a_vlan_tag_is_skipped() {
        let mut tagged = frame(0, &[7; 32]);
        tagged.splice(OFFLOAD_LEN + 12..OFFLOAD_LEN + 12, [0x81, 0x00, 0x20, 0x05]);
        assert_eq!(unpack(&tagged), [(header(32), vec![7; 32])]);
    }

    #[test]
    fn a_super_frame_is_taken_apart_and_its_identification_counted_up() {
        let body: Vec<u8> = [[1; 40], [2; 40]].concat().into_iter().chain([3; 20]).collect();
        let packets = unpack(&frame(40, &body));
        let expected = [(0xFFFF, 40, 1), (0, 40, 2), (1, 20, 3)]
            .map(|(id, len, byte)| (header(len).with_id(id), vec![byte; len]));
        assert_eq!(packets, expected);
    }

    #[test]
    fn packets_of_one_identification_that_the_host_has_joined_keep_it() {
        let mut body = [[1; 40], [2; 40], [3; 40]].concat();
        for packet in body.chunks_mut(40) {
            icrc::fill(&header(40), packet);
        }
        for (net, packet) in unpack(&frame(40, &body)) {
            assert_eq!(net, header(40));
            assert!(icrc::verify(&net, &packet));
        }
    }

    #[test]
    fn a_super_frame_is_made_of_a_batch() {
        for [src, dst] in [["10.0.0.1", "10.0.0.2"], ["fd00::1", "fd00::2"]] {
            let caps = Caps {
                max_segments: 64,
                max_bytes: 65_507,
                ip_id: IpIdRule::Ours,
                sees_ip_header: true,
                window: 1,
                credit: 1,
                src_port: None,
            };
            let [src, dst] = [src, dst].map(|text| text.parse().expect("address"));
            let mut tx = TxBatch::new();
            tx.begin(NetHeader::v2(src, dst, ROCE_V2_PORT, 0, 64).expect("one family"), &caps, 0xFFFF);
            for len in [40, 40, 20] {
                tx.push(len).fill(1);
            }
            let net = tx.header(0).expect("begun");
            let head = Head::of_run(Mac([2; 6]), Mac([4; 6]), &net, tx.segment_len(), tx.bytes().len());
            let frame = [head.bytes(), tx.bytes()].concat();
            let packets = unpack(&frame);
            assert_eq!(packets.len(), 3);
            for ((net, body), (sent, sent_body)) in packets.into_iter().zip(tx.iter()) {
                // The checksum is the kernel's business.
                assert_eq!(
                    (net.dst(), net.transport_len(), body),
                    (dst, sent_body.len(), sent_body.to_vec())
                );
                assert_eq!(net.with_id(7).len(), sent.len());
            }
            let ip_len = net.len() - UDP_LEN;
            assert_eq!(frame[..2], [NEEDS_CHECKSUM, UDP_SEGMENTS]);
            let fields: Vec<usize> = frame[2..10]
                .chunks(2)
                .map(|pair| usize::from(u16::from_ne_bytes([pair[0], pair[1]])))
                .collect();
            assert_eq!(fields, [14 + net.len(), 40, 14 + ip_len, 6]);
        }
    }

    #[test]
    fn odd_super_frames_give_what_is_in_them() {
        let lens = |segment: u16, len: usize| -> Vec<usize> {
            unpack(&frame(segment, &vec![7; len])).iter().map(|(_, body)| body.len()).collect()
        };
        assert_eq!(lens(33, 100), [33, 33, 33, 1]);
        assert_eq!(lens(100, 100), [100]);
        assert_eq!(lens(u16::MAX, 100), [100]);
        assert_eq!(lens(40, 0), [0]);
        assert_eq!(lens(16, 4000), [16; 250]);
        assert_eq!(lens(1, 4000), [] as [usize; 0], "nobody is to make a multitude of one frame");
    }

    #[test]
    fn what_is_cut_short_gives_no_packet() {
        let frame = frame(0, &[7; 32]);
        for len in 0..frame.len() {
            assert_eq!(unpack(&frame[..len]), [], "cut at {len}");
        }
        let mut tcp = frame;
        tcp[1] = 1;
        assert_eq!(Frame::parse(&tcp), None, "segmented as TCP");
    }
}
