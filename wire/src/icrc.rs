//! The invariant CRC: CRC-32 over everything a router must not change.
//!
//! Senders call [`fill`] when everything else of a packet is final, receivers [`verify`] before the packet may
//! have any effect. A receiver that never saw the IPv4 header can still check with [`solve_id`].

use crate::bth::Bth;
use crate::ip::NetHeader;

/// Size of the ICRC at the end of every packet.
pub const ICRC_LEN: usize = 4;

/// Eight bytes for the absent local route header, the longest network header, and the BTH.
const HEAD_MAX: usize = 8 + NetHeader::MAX_LEN + Bth::SIZE;

/// The ICRC of a packet: `net` as it will be on the wire (lengths and IPv4 ID final), and `body` from the
/// BTH to the last byte before the ICRC, pad included (rules R-WIR-9, R-WIR-10 and F1).
///
/// A `body` shorter than a BTH has no ICRC; the CRC of what is there is returned.
#[must_use]
pub fn compute(net: &NetHeader, body: &[u8]) -> u32 {
    Head::new(net).compute(body)
}

/// What the ICRC covers of a network header. Packets that differ in nothing else but the IPv4 identification need it
/// built but once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    /// Ones, and the header with ones where routers may change it; room for a BTH behind.
    bytes: [u8; HEAD_MAX],
    len: usize,
}

/// Ones in front of the network header.
const FRONT: usize = 8;

impl Head {
    pub(crate) fn new(net: &NetHeader) -> Self {
        let mut bytes = [0xFF; HEAD_MAX];
        let len = FRONT + net.emit(&mut bytes[FRONT..]);
        mask(net, &mut bytes[FRONT..len]);
        Self { bytes, len }
    }

    /// Sets the identification, of an IPv4 header only.
    pub(crate) fn set_id(&mut self, id: u16) {
        let at = FRONT + ID_OFFSET;
        self.bytes[at..at + 2].copy_from_slice(&id.to_be_bytes());
    }

    /// The ICRC of `body` behind it.
    pub(crate) fn compute(&mut self, body: &[u8]) -> u32 {
        let bth = &body[..body.len().min(Bth::SIZE)];
        let end = self.len + bth.len();
        self.bytes[self.len..end].copy_from_slice(bth);
        if bth.len() > 4 {
            self.bytes[self.len + 4] = 0xFF;
        }
        let mut crc = crc32fast::Hasher::new();
        crc.update(&self.bytes[..end]);
        crc.update(&body[bth.len()..]);
        crc.finalize()
    }

    /// As [`fill`].
    pub(crate) fn fill(&mut self, body: &mut [u8]) {
        let at = body.len() - ICRC_LEN;
        let crc = self.compute(&body[..at]);
        // Least significant byte first: the only little-endian field of the packet.
        body[at..].copy_from_slice(&crc.to_le_bytes());
    }
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
    Head::new(net).fill(body);
}

/// Whether the last four bytes of `body` are its ICRC.
#[must_use]
pub fn verify(net: &NetHeader, body: &[u8]) -> bool {
    match body.split_last_chunk::<ICRC_LEN>() {
        Some((covered, crc)) => compute(net, covered) == u32::from_le_bytes(*crc),
        None => false,
    }
}

/// The IPv4 identification with which the ICRC of `body` is right, everything else in `net` being as it was
/// on the wire. For receivers that see all but the identification; `None` where no identification makes the
/// ICRC right, or where `net` has none. It costs next to nothing where the identification that `net` holds is right.
///
/// This checks 16 bits of the 32: of packets damaged on the way, one in 65536 passes.
#[must_use]
pub fn solve_id(net: &NetHeader, body: &[u8]) -> Option<u16> {
    let NetHeader::V4(ip, _) = net else { return None };
    let (covered, crc) = body.split_last_chunk::<ICRC_LEN>()?;
    let difference = compute(net, covered) ^ u32::from_le_bytes(*crc);
    if difference == 0 {
        return Some(ip.id);
    }
    // A CRC is linear: this is what the two bytes of the identification, at this distance from the end, change.
    let change = rewind(difference, net.len() - ID_OFFSET + covered.len());
    let [first, second, 0, 0] = change.to_le_bytes() else { return None };
    Some(ip.id ^ u16::from_be_bytes([first, second]))
}

/// Where the identification stands in an IPv4 header.
const ID_OFFSET: usize = 4;

/// The CRC-32 polynomial in the bit order of the register: bit 31 is x^0.
const POLYNOMIAL: u32 = 0xEDB8_8320;

/// Item `k` is x^(-8 * 2^k): what takes back 2^k zero bytes.
const REWIND: [u32; 17] = {
    let mut table = [0; 17];
    let mut factor = 0x8000_0000;
    let mut i = 0;
    while i < 8 {
        factor = divide_by_x(factor);
        i += 1;
    }
    let mut k = 0;
    while k < table.len() {
        table[k] = factor;
        factor = multiply(factor, factor);
        k += 1;
    }
    table
};

/// The register as it was before `count` zero bytes, fewer than 2^17, brought it to `register`.
fn rewind(register: u32, count: usize) -> u32 {
    REWIND
        .iter()
        .enumerate()
        .filter(|(k, _)| count >> k & 1 == 1)
        .fold(register, |register, (_, factor)| multiply(register, *factor))
}

/// The product of two residues.
const fn multiply(a: u32, b: u32) -> u32 {
    let (mut product, mut power, mut i) = (0, b, 31);
    loop {
        product ^= power & (a >> i & 1).wrapping_neg();
        if i == 0 {
            return product;
        }
        power = power >> 1 ^ POLYNOMIAL & (power & 1).wrapping_neg();
        i -= 1;
    }
}

const fn divide_by_x(a: u32) -> u32 {
    match a >> 31 {
        0 => a << 1,
        _ => (a ^ POLYNOMIAL) << 1 | 1,
    }
}

#[cfg(test)]
mod tests;
