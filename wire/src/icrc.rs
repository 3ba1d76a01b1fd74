//! The invariant CRC: CRC-32 over everything a router must not change.

use crate::bth::Bth;
use crate::ip::NetHeader;

/// Size of the ICRC at the end of every packet.
pub const ICRC_LEN: usize = 4;

/// Eight bytes for the absent local route header, the longest network header, and the BTH.
const HEAD_MAX: usize = 8 + NetHeader::MAX_LEN + Bth::SIZE;

/// The ICRC of a packet: `net` as it will be on the wire (lengths and IPv4 ID final), and `body` from the
/// BTH to the last byte before the ICRC, pad included (rules R-WIR-9 and F1).
///
/// A `body` shorter than a BTH has no ICRC; the CRC of what is there is returned.
#[must_use]
pub fn compute(net: &NetHeader, body: &[u8]) -> u32 {
    let mut head = [0xFF_u8; HEAD_MAX];
    let mut at = 8;
    let start = at;
    at += net.emit(&mut head[at..]);
    mask(net, &mut head[start..at]);
    let bth = &body[..body.len().min(Bth::SIZE)];
    head[at..at + bth.len()].copy_from_slice(bth);
    if bth.len() > 4 {
        head[at + 4] = 0xFF;
    }
    at += bth.len();
    let mut crc = crc32fast::Hasher::new();
    crc.update(&head[..at]);
    crc.update(&body[bth.len()..]);
    crc.finalize()
}

/// Puts ones where a router may change the header.
fn mask(net: &NetHeader, raw: &mut [u8]) {
    let udp = match net {
        NetHeader::V4(..) => {
            raw[1] = 0xFF;
            raw[8] = 0xFF;
            raw[10..12].fill(0xFF);
            Some(20)
        }
        NetHeader::V6(..) | NetHeader::V1(_) => {
            raw[0] |= 0x0F;
            raw[1..4].fill(0xFF);
            raw[7] = 0xFF;
            matches!(net, NetHeader::V6(..)).then_some(40)
        }
    };
    if let Some(udp) = udp {
        raw[udp + 6..udp + 8].fill(0xFF);
    }
}

/// Computes the ICRC of `body`, whose last four bytes are its place, and writes it there.
///
/// # Panics
/// Where `body` is shorter than an ICRC.
pub fn fill(net: &NetHeader, body: &mut [u8]) {
    let at = body.len() - ICRC_LEN;
    let crc = compute(net, &body[..at]);
    // Least significant byte first: the only little-endian field of the packet.
    body[at..].copy_from_slice(&crc.to_le_bytes());
}

/// Whether the last four bytes of `body` are its ICRC.
#[must_use]
pub fn verify(net: &NetHeader, body: &[u8]) -> bool {
    match body.split_last_chunk::<ICRC_LEN>() {
        Some((covered, crc)) => compute(net, covered) == u32::from_le_bytes(*crc),
        None => false,
    }
}
