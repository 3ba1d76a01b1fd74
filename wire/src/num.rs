//! Newtypes for the numbers of the wire: each one knows its width, and none can be mixed up with another.

use core::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Mask of a 24-bit field.
pub const MASK24: u32 = 0x00FF_FFFF;

/// Packet sequence number: a point on a circle of 2^24 numbers (rule R-REQ-1).
///
/// There is no order on a circle, so `Psn` has none: ask for the signed distance with [`Psn::diff`], or
/// whether it lies in a window with [`Psn::in_window`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Psn(u32);

impl Psn {
    /// The PSN with the low 24 bits of `value`.
    #[must_use]
    pub const fn new(value: u32) -> Self {
        Self(value & MASK24)
    }

    /// The 24-bit number.
    #[must_use]
    pub const fn value(self) -> u32 {
        self.0
    }

    /// `self` moved forward by `n` around the circle.
    #[must_use]
    pub const fn wrapping_add(self, n: u32) -> Self {
        Self(self.0.wrapping_add(n) & MASK24)
    }

    /// `self` moved back by `n` around the circle.
    #[must_use]
    pub const fn wrapping_sub(self, n: u32) -> Self {
        Self(self.0.wrapping_sub(n) & MASK24)
    }

    /// Signed distance from `base` to `self`, in -2^23 ..= 2^23 - 1.
    #[must_use]
    pub const fn diff(self, base: Self) -> i32 {
        ((self.0.wrapping_sub(base.0) << 8) as i32) >> 8
    }

    /// Number of steps forward from `base` to `self`, in 0 .. 2^24.
    #[must_use]
    pub const fn steps_from(self, base: Self) -> u32 {
        self.0.wrapping_sub(base.0) & MASK24
    }

    /// Whether `self` is one of the `len` numbers that start at `start`.
    #[must_use]
    pub const fn in_window(self, start: Self, len: u32) -> bool {
        self.steps_from(start) < len
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Psn({:#08x})", self.0)
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

macro_rules! number {
    ($(#[$doc:meta])* $name:ident, $repr:ty, $mask:expr, $format:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
        pub struct $name($repr);

        impl $name {
            #[doc = concat!("The `", stringify!($name), "` with the low bits of `value` that the field holds.")]
            #[must_use]
            pub const fn new(value: $repr) -> Self {
                Self(value & $mask)
            }

            /// The plain number.
            #[must_use]
            pub const fn value(self) -> $repr {
                self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "(", $format, ")"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $format, self.0)
            }
        }
    };
}

number!(
    /// Queue pair number, 24 bits.
    Qpn, u32, MASK24, "{:#08x}"
);
number!(
    /// Message sequence number, 24 bits: how many request messages the responder has completed.
    Msn, u32, MASK24, "{}"
);
number!(
    /// Shared receive queue number, 24 bits (XRC).
    Srqn, u32, MASK24, "{:#08x}"
);
number!(
    /// Partition key: bit 15 is full membership.
    PKey, u16, 0xFFFF, "{:#06x}"
);
number!(
    /// Queue key of an unreliable datagram.
    QKey, u32, u32::MAX, "{:#010x}"
);
number!(
    /// Local key of a memory region.
    LKey, u32, u32::MAX, "{:#010x}"
);
number!(
    /// Remote key of a memory region or window.
    RKey, u32, u32::MAX, "{:#010x}"
);
number!(
    /// An address in registered memory, as the owner of the region numbers it.
    VirtAddr, u64, u64::MAX, "{:#x}"
);
number!(
    /// The caller's own mark on a work request, given back with its completion.
    WrId, u64, u64::MAX, "{}"
);

impl Msn {
    /// The next message number, around the 24-bit circle.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1) & MASK24)
    }
}

impl Qpn {
    /// The general services queue pair.
    pub const GSI: Self = Self(1);
    /// The multicast queue pair number.
    pub const MULTICAST: Self = Self(MASK24);
}

impl RKey {
    /// The key of the same region or window with another low byte: what its owner may choose.
    #[must_use]
    pub const fn with_variant(self, variant: u8) -> Self {
        Self(self.0 & !0xFF | variant as u32)
    }

    /// Its low byte.
    #[must_use]
    pub const fn variant(self) -> u8 {
        self.0.to_le_bytes()[0]
    }
}

impl PKey {
    /// The default partition with full membership, the only one RoCE uses in practice.
    pub const DEFAULT: Self = Self(0xFFFF);

    /// Whether packets of `self` may enter partition `other`: same low 15 bits, not zero, and at least one
    /// full member (rule R-ADR-3).
    #[must_use]
    pub const fn matches(self, other: Self) -> bool {
        let low = self.0 & 0x7FFF;
        low != 0 && low == other.0 & 0x7FFF && (self.0 | other.0) & 0x8000 != 0
    }
}

impl VirtAddr {
    /// `self + n`, or `None` where that leaves the 64-bit address space.
    #[must_use]
    pub const fn checked_add(self, n: u64) -> Option<Self> {
        match self.0.checked_add(n) {
            Some(value) => Some(Self(value)),
            None => None,
        }
    }

    /// `self + n` modulo 2^64. Only for addresses whose range was checked before.
    #[must_use]
    pub const fn wrapping_add(self, n: u64) -> Self {
        Self(self.0.wrapping_add(n))
    }
}

/// Path MTU: the payload of a full packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mtu {
    /// 256 bytes.
    B256 = 1,
    /// 512 bytes.
    B512 = 2,
    /// 1024 bytes.
    B1024 = 3,
    /// 2048 bytes.
    B2048 = 4,
    /// 4096 bytes.
    B4096 = 5,
}

impl Mtu {
    /// All path MTUs, smallest first.
    pub const ALL: [Self; 5] = [Self::B256, Self::B512, Self::B1024, Self::B2048, Self::B4096];

    /// Bytes that IP, UDP, the longest transport headers and the ICRC may add to a payload (rule R-ADR-1).
    pub const OVERHEAD: u32 = 96;

    /// Size in bytes.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        128 << (self as u32)
    }

    /// The verbs code: 1 for 256 … 5 for 4096 (rule R-ADR-20).
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The MTU of a verbs code.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|mtu| mtu.code() == code)
    }

    /// The MTU of exactly `bytes`.
    #[must_use]
    pub fn from_bytes(bytes: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|mtu| mtu.bytes() == bytes)
    }

    /// The largest path MTU that fits an interface whose IP packets hold `interface_mtu` bytes.
    #[must_use]
    pub fn for_interface(interface_mtu: u32) -> Option<Self> {
        Self::ALL.into_iter().rev().find(|mtu| mtu.bytes() + Self::OVERHEAD <= interface_mtu)
    }
}

impl fmt::Display for Mtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.bytes())
    }
}

/// Global identifier: on RoCE, an IPv6 address or a v4-mapped IPv4 address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Gid([u8; 16]);

impl Gid {
    /// All zero: an unused entry of a GID table.
    pub const ZERO: Self = Self([0; 16]);

    /// The GID with these 16 bytes, in network order.
    #[must_use]
    pub const fn new(raw: [u8; 16]) -> Self {
        Self(raw)
    }

    /// The 16 bytes, in network order.
    #[must_use]
    pub const fn raw(self) -> [u8; 16] {
        self.0
    }

    /// The IP address it stands for: IPv4 where it is v4-mapped (rule R-ADR-5).
    #[must_use]
    pub fn ip(self) -> IpAddr {
        let v6 = Ipv6Addr::from(self.0);
        v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
    }

    /// Whether it stands for an IPv4 address.
    #[must_use]
    pub fn is_v4(self) -> bool {
        self.ip().is_ipv4()
    }

    /// Whether it names a multicast group: ff00::/8, or an IPv4 group as a v4-mapped address (rule R-ADR-22).
    #[must_use]
    pub fn is_multicast(self) -> bool {
        self.ip().is_multicast()
    }

    /// Whether it is a link-local address, fe80::/10.
    #[must_use]
    pub const fn is_link_local(self) -> bool {
        self.0[0] == 0xFE && self.0[1] & 0xC0 == 0x80
    }
}

impl From<Ipv4Addr> for Gid {
    fn from(addr: Ipv4Addr) -> Self {
        Self(addr.to_ipv6_mapped().octets())
    }
}

impl From<Ipv6Addr> for Gid {
    fn from(addr: Ipv6Addr) -> Self {
        Self(addr.octets())
    }
}

impl From<IpAddr> for Gid {
    fn from(addr: IpAddr) -> Self {
        match addr {
            IpAddr::V4(v4) => v4.into(),
            IpAddr::V6(v6) => v6.into(),
        }
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

/// Ethernet address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// The broadcast address.
    pub const BROADCAST: Self = Self([0xFF; 6]);

    /// The Ethernet address of a multicast group (rule R-ADR-23): 33:33 and the last four bytes of an IPv6 group,
    /// 01:00:5e and the last 23 bits of an IPv4 group.
    #[must_use]
    pub fn of_group(group: IpAddr) -> Self {
        match group {
            IpAddr::V4(v4) => {
                let [_, b, c, d] = v4.octets();
                Self([0x01, 0x00, 0x5E, b & 0x7F, c, d])
            }
            IpAddr::V6(v6) => {
                let [.., a, b, c, d] = v6.octets();
                Self([0x33, 0x33, a, b, c, d])
            }
        }
    }

    /// EUI-64 of this address: the low half of its link-local GID, and the node GUID (rule R-ADR-19).
    #[must_use]
    pub const fn eui64(self) -> [u8; 8] {
        let m = self.0;
        [m[0] ^ 2, m[1], m[2], 0xFF, 0xFE, m[3], m[4], m[5]]
    }

    /// The link-local GID of this address (rule R-ADR-7).
    #[must_use]
    pub fn link_local_gid(self) -> Gid {
        let mut raw = [0u8; 16];
        raw[0] = 0xFE;
        raw[1] = 0x80;
        raw[8..].copy_from_slice(&self.eui64());
        Gid::new(raw)
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let m = self.0;
        write!(f, "{:02x}:{:02x}:{:02x}:{:02x}:{:02x}:{:02x}", m[0], m[1], m[2], m[3], m[4], m[5])
    }
}

#[cfg(test)]
mod tests;
