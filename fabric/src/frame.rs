//! A packet that owns its bytes, as it waits on a link.

use wire::NetHeader;

pub use wire::eth::ETHERNET_OVERHEAD;

/// One packet: network header and the bytes from BTH to ICRC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Network header, with the lengths of this packet.
    pub net: NetHeader,
    /// BTH to ICRC.
    pub body: Vec<u8>,
}

impl Frame {
    /// A packet of `net` and `body`; the lengths in `net` are set to those of `body`.
    #[must_use]
    pub fn new(net: NetHeader, body: Vec<u8>) -> Self {
        Self { net: net.with_transport_len(body.len()), body }
    }

    /// Bytes of link time that it takes.
    #[must_use]
    pub fn wire_len(&self) -> usize {
        ETHERNET_OVERHEAD + self.net.len() + self.body.len()
    }

    /// The IP packet (or GRH and what follows) as it is on the wire.
    #[must_use]
    pub fn to_ip(&self) -> Vec<u8> {
        let mut out = vec![0; self.net.len()];
        self.net.emit(&mut out);
        out.extend_from_slice(&self.body);
        out
    }
}
