//! The headers that may follow the BTH, each as it lies on the wire.

use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::bth::{be24, u24};
use crate::num::{Msn, QKey, Qpn, RKey, Srqn, VirtAddr};
use crate::opcode::ExtHeader;
use crate::syndrome::Syndrome;

macro_rules! header {
    ($(#[$doc:meta])* $name:ident $size:literal { $($field:ident: $ty:ty),* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
        #[repr(C)]
        pub struct $name { $($field: $ty),* }

        impl $name {
            /// Size on the wire.
            pub const SIZE: usize = $size;
        }

        const _: () = assert!(core::mem::size_of::<$name>() == $size);
    };
}

header!(
    /// RDMA extended transport header: the remote range of a WRITE or READ.
    Reth 16 { va: U64, rkey: U32, dma_len: U32 }
);
header!(
    /// ACK extended transport header.
    Aeth 4 { syndrome: u8, msn: [u8; 3] }
);
header!(
    /// Atomic extended transport header.
    AtomicEth 28 { va: U64, rkey: U32, swap_or_add: U64, compare: U64 }
);
header!(
    /// The value found by an atomic.
    AtomicAckEth 8 { original: U64 }
);
header!(
    /// Immediate data: four bytes the transport does not interpret.
    ImmDt 4 { bytes: [u8; 4] }
);
header!(
    /// Invalidate extended transport header.
    Ieth 4 { rkey: U32 }
);
header!(
    /// Datagram extended transport header.
    Deth 8 { qkey: U32, reserved: u8, src_qp: [u8; 3] }
);
header!(
    /// XRC extended transport header.
    Xrceth 4 { reserved: u8, srqn: [u8; 3] }
);
header!(
    /// Flush extended transport header.
    Feth 4 { word: U32 }
);
header!(
    /// The sixteen reserved bytes of a congestion notification.
    CnpReserved 16 { bytes: [u8; 16] }
);

macro_rules! any_header {
    ($($(#[$doc:meta])* $name:ident),*) => {
        /// Any one of the headers that may follow the BTH, by value.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Ext { $($(#[$doc])* $name($name)),* }

        impl Ext {
            /// Which header it is.
            #[must_use]
            pub const fn kind(&self) -> ExtHeader {
                match self { $(Self::$name(_) => ExtHeader::$name),* }
            }

            /// Reads the header of this kind at the start of `bytes`; `None` where they are too few.
            #[must_use]
            pub fn read(kind: ExtHeader, bytes: &[u8]) -> Option<Self> {
                match kind {
                    $(ExtHeader::$name => $name::read_from_prefix(bytes).ok().map(|(h, _)| Self::$name(h))),*
                }
            }

            /// The header as it lies on the wire.
            #[must_use]
            pub fn as_bytes(&self) -> &[u8] {
                match self { $(Self::$name(header) => header.as_bytes()),* }
            }
        }

        $(impl From<$name> for Ext {
            fn from(header: $name) -> Self {
                Self::$name(header)
            }
        })*
    };
}

any_header!(
    /// Target shared receive queue.
    Xrceth,
    /// Datagram.
    Deth,
    /// Flush.
    Feth,
    /// Remote range.
    Reth,
    /// Atomic operands.
    AtomicEth,
    /// Acknowledgement.
    Aeth,
    /// The value an atomic found.
    AtomicAckEth,
    /// Immediate data.
    ImmDt,
    /// Key to invalidate.
    Ieth,
    /// Reserved bytes of a congestion notification.
    CnpReserved
);

impl Reth {
    /// `dma_len` bytes at `va` under `rkey`.
    #[must_use]
    pub fn new(va: VirtAddr, rkey: RKey, dma_len: u32) -> Self {
        Self { va: va.value().into(), rkey: rkey.value().into(), dma_len: dma_len.into() }
    }

    /// Remote address.
    #[must_use]
    pub fn va(&self) -> VirtAddr {
        VirtAddr::new(self.va.get())
    }

    /// Remote key.
    #[must_use]
    pub fn rkey(&self) -> RKey {
        RKey::new(self.rkey.get())
    }

    /// Length of the whole message in bytes.
    #[must_use]
    pub fn dma_len(&self) -> u32 {
        self.dma_len.get()
    }
}

impl Aeth {
    /// `syndrome` with the responder's message count.
    #[must_use]
    pub fn new(syndrome: Syndrome, msn: Msn) -> Self {
        Self { syndrome: syndrome.byte(), msn: be24(msn.value()) }
    }

    /// What the responder says.
    #[must_use]
    pub const fn syndrome(&self) -> Syndrome {
        Syndrome::from_byte(self.syndrome)
    }

    /// Messages the responder has completed.
    #[must_use]
    pub const fn msn(&self) -> Msn {
        Msn::new(u24(self.msn))
    }
}

impl AtomicEth {
    /// An atomic on the eight bytes at `va`: `swap_or_add` and `compare` as numbers (rule R-WIR-26).
    #[must_use]
    pub fn new(va: VirtAddr, rkey: RKey, swap_or_add: u64, compare: u64) -> Self {
        Self {
            va: va.value().into(),
            rkey: rkey.value().into(),
            swap_or_add: swap_or_add.into(),
            compare: compare.into(),
        }
    }

    /// Remote address.
    #[must_use]
    pub fn va(&self) -> VirtAddr {
        VirtAddr::new(self.va.get())
    }

    /// Remote key.
    #[must_use]
    pub fn rkey(&self) -> RKey {
        RKey::new(self.rkey.get())
    }

    /// The value to store (CMP_SWAP) or to add (FETCH_ADD).
    #[must_use]
    pub fn swap_or_add(&self) -> u64 {
        self.swap_or_add.get()
    }

    /// The value to compare with (CMP_SWAP only).
    #[must_use]
    pub fn compare(&self) -> u64 {
        self.compare.get()
    }
}

impl AtomicAckEth {
    /// The value found.
    #[must_use]
    pub fn new(original: u64) -> Self {
        Self { original: original.into() }
    }

    /// The value found.
    #[must_use]
    pub fn original(&self) -> u64 {
        self.original.get()
    }
}

impl ImmDt {
    /// These four bytes, in wire order (rule R-WIR-25).
    #[must_use]
    pub const fn new(bytes: [u8; 4]) -> Self {
        Self { bytes }
    }

    /// The four bytes, in wire order.
    #[must_use]
    pub const fn bytes(&self) -> [u8; 4] {
        self.bytes
    }
}

impl Ieth {
    /// The key to invalidate.
    #[must_use]
    pub fn new(rkey: RKey) -> Self {
        Self { rkey: rkey.value().into() }
    }

    /// The key to invalidate.
    #[must_use]
    pub fn rkey(&self) -> RKey {
        RKey::new(self.rkey.get())
    }
}

impl Deth {
    /// A datagram from `src_qp` for queue pairs with `qkey`.
    #[must_use]
    pub fn new(qkey: QKey, src_qp: Qpn) -> Self {
        Self { qkey: qkey.value().into(), reserved: 0, src_qp: be24(src_qp.value()) }
    }

    /// Queue key.
    #[must_use]
    pub fn qkey(&self) -> QKey {
        QKey::new(self.qkey.get())
    }

    /// The reserved byte.
    #[must_use]
    pub const fn reserved(&self) -> u8 {
        self.reserved
    }

    /// Sender's queue pair.
    #[must_use]
    pub const fn src_qp(&self) -> Qpn {
        Qpn::new(u24(self.src_qp))
    }
}

impl Xrceth {
    /// For the shared receive queue `srqn`.
    #[must_use]
    pub fn new(srqn: Srqn) -> Self {
        Self { reserved: 0, srqn: be24(srqn.value()) }
    }

    /// The reserved byte.
    #[must_use]
    pub const fn reserved(&self) -> u8 {
        self.reserved
    }

    /// Target shared receive queue.
    #[must_use]
    pub const fn srqn(&self) -> Srqn {
        Srqn::new(u24(self.srqn))
    }
}

impl Feth {
    /// Make the data visible to all of the peer's host.
    pub const GLOBAL_VISIBILITY: u32 = 1;
    /// Make the data survive a power failure.
    pub const PERSISTENCE: u32 = 2;

    /// `placement` is made of the constants here; `whole_region` ignores the RETH's range.
    #[must_use]
    pub fn new(placement: u32, whole_region: bool) -> Self {
        Self { word: (placement & 0xF | u32::from(whole_region) << 4).into() }
    }

    /// Placement type bits.
    #[must_use]
    pub fn placement(&self) -> u32 {
        self.word.get() & 0xF
    }

    /// Selectivity: 0 a range, 1 the whole region.
    #[must_use]
    pub fn selectivity(&self) -> u32 {
        self.word.get() >> 4 & 3
    }

    /// The 26 reserved bits.
    #[must_use]
    pub fn reserved(&self) -> u32 {
        self.word.get() >> 6
    }
}

impl CnpReserved {
    /// All zero, as they are sent.
    pub const ZERO: Self = Self { bytes: [0; 16] };

    /// The bytes as they came.
    #[must_use]
    pub const fn bytes(&self) -> [u8; 16] {
        self.bytes
    }
}

#[cfg(test)]
mod tests;
