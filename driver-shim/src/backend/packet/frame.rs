//! Ethernet frames as a packet socket with offload headers hands them over and takes them.
//!
//! A frame is preceded by a virtio network header. With it the kernel may hand over a super-frame, as a
//! sender with segmentation offload made it, which is taken apart here.

use wire::batch::{HeaderKnowledge, RxBurst};
use wire::{EthHeader, EtherType, Mac, NetHeader};

/// Length of the offload header.
pub(super) const OFFLOAD_LEN: usize = 10;

/// Longest start of a frame that is sent: everything before the BTH.
const HEAD_LEN: usize = OFFLOAD_LEN + EthHeader::MIN_LEN + NetHeader::MAX_LEN;

/// Longest super-frame.
pub(super) const SUPER_FRAME: usize = OFFLOAD_LEN + EthHeader::MAX_LEN + 65_535 + 40;

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
        let (EthHeader { dst, ether_type, .. }, payload) = EthHeader::parse(bytes).ok()?;
        Some(Self { dst, ether_type, bytes, payload, segment })
    }

    /// Whether it carries UDP over IP; what else passes the filter is address resolution.
    pub(super) fn is_udp(&self) -> bool {
        const UDP: u8 = 17;
        let protocol = match self.ether_type {
            EtherType::IPV4 => self.payload.get(9),
            EtherType::IPV6 => self.payload.get(6),
            _ => None,
        };
        protocol == Some(&UDP)
    }

    /// Puts the RoCE packets of an IP frame into `rx`, where `ours` says so of the header.
    pub(super) fn unpack(&self, rx: &mut RxBurst, ours: impl Fn(&NetHeader) -> bool) {
        match NetHeader::parse_ip(self.payload) {
            Ok((net, body)) if ours(&net) => {
                if self.segment == 0 {
                    rx.push(net, HeaderKnowledge::Seen, body);
                    return;
                }
                let id = if let NetHeader::V4(ip, _) = net { ip.id } else { 0 };
                // What takes a super-frame apart on its way counts the identification up.
                for (i, body) in (0..=u16::MAX).zip(body.chunks(self.segment)) {
                    let net = net.with_transport_len(body.len()).with_id(id.wrapping_add(i));
                    rx.push(net, HeaderKnowledge::Seen, body);
                }
            }
            Ok(_) => {}
            // Also counts what is malformed.
            Err(_) => rx.push_ip(self.payload),
        }
    }
}

/// Everything before the BTH of one frame: offload header (nothing offloaded), Ethernet, IP and UDP.
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

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
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
        if let Some(frame) = Frame::parse(frame) {
            frame.unpack(&mut rx, |_| true);
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
