//! Random packets for property tests.

use proptest::prelude::*;

use super::{PacketRepr, headers};
use crate::bth::Bth;
use crate::ext::Ext;
use crate::ip::{Ipv4Header, Ipv6Header, NetHeader, ROCE_V2_PORT, UdpHeader};
use crate::opcode::Opcode;

/// Network headers with every field that is free; lengths are 0.
pub(crate) fn nets() -> impl Strategy<Value = NetHeader> {
    prop_oneof![
        (ipv4(), udp()).prop_map(|(ip, udp)| NetHeader::V4(ip, udp)),
        (ipv6(), udp()).prop_map(|(ip, udp)| NetHeader::V6(ip, udp)),
        ipv6().prop_map(NetHeader::V1),
    ]
}

fn ipv4() -> impl Strategy<Value = Ipv4Header> {
    (any::<[u8; 4]>(), any::<[u8; 4]>(), any::<(u8, u16, u8, u16)>(), 0..4_u16).prop_map(
        |(src, dst, (tos, id, ttl, checksum), flags)| Ipv4Header {
            tos,
            total_len: 0,
            id,
            // The reserved bit and "don't fragment": fragments are not RoCE.
            flags: flags << 14,
            ttl,
            checksum,
            src: src.into(),
            dst: dst.into(),
        },
    )
}

fn ipv6() -> impl Strategy<Value = Ipv6Header> {
    (any::<[u8; 16]>(), any::<[u8; 16]>(), any::<u8>(), 0..1_u32 << 20, any::<u8>()).prop_map(
        |(src, dst, traffic_class, flow_label, hop_limit)| Ipv6Header {
            traffic_class,
            flow_label,
            payload_len: 0,
            hop_limit,
            src: src.into(),
            dst: dst.into(),
        },
    )
}

fn udp() -> impl Strategy<Value = UdpHeader> {
    any::<(u16, u16)>().prop_map(|(src_port, checksum)| UdpHeader {
        src_port,
        dst_port: ROCE_V2_PORT,
        len: 0,
        checksum,
    })
}

/// Base transport headers with all bits free but the opcode, which is a known one three times of four.
fn bths() -> impl Strategy<Value = Bth> {
    let known: Vec<_> = Opcode::all().collect();
    let opcode = prop_oneof![
        3 => prop::sample::select(known),
        1 => any::<u8>().prop_map(Opcode::from_byte),
    ];
    (any::<[u8; Bth::SIZE]>(), opcode).prop_map(|(raw, opcode)| {
        let bth: Bth = zerocopy::transmute!(raw);
        bth.with_opcode(opcode)
    })
}

/// Packets as [`PacketRepr::new`] makes them, with random bytes wherever bytes may be random: every header's
/// reserved bits too, and then wrong checksums, ICRCs and pad bytes.
pub(crate) fn packets() -> impl Strategy<Value = PacketRepr> {
    (
        nets(),
        bths(),
        prop::collection::vec(any::<u8>(), 64),
        prop::collection::vec(any::<u8>(), 0..300),
        any::<(u32, [u8; 3])>(),
    )
        .prop_map(|(net, bth, raw, payload, (icrc, pad))| {
            let mut raw = raw.as_slice();
            let mut ext = Vec::new();
            for kind in headers(bth.opcode()) {
                ext.extend(Ext::read(*kind, raw));
                raw = &raw[kind.size()..];
            }
            let mut packet = PacketRepr::new(net, bth, ext, payload).unwrap();
            if let (NetHeader::V4(ip, _), NetHeader::V4(random, _)) = (&mut packet.net, &net) {
                ip.checksum = random.checksum;
            }
            let pad_len = packet.pad.len();
            packet.pad.copy_from_slice(&pad[..pad_len]);
            packet.icrc = icrc;
            packet
        })
}
