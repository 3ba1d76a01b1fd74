//! Attributes of a connected queue pair that its engines read.

use wire::{Duration, Mtu, PKey, Psn, QKey, Qpn, RnrTimer};

use crate::ports::{Access, PdId, Via};

/// Attributes of a reliable connection. The owner keeps them; the engines only read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RcParams {
    /// Own number.
    pub qpn: Qpn,
    /// The peer's number.
    pub dest_qpn: Qpn,
    /// Protection domain.
    pub pd: PdId,
    /// What the peer may do.
    pub access: Access,
    /// Partition key of outgoing packets.
    pub pkey: PKey,
    /// Path MTU; the same at both ends.
    pub mtu: Mtu,
    /// READs and atomics that may be open as requester.
    pub max_rd_atomic: u8,
    /// READs and atomics of the peer that may be open, and whose answers are remembered.
    pub max_dest_rd_atomic: u8,
    /// What an RNR NAK asks the peer to wait.
    pub min_rnr_timer: RnrTimer,
    /// ACK timeout exponent: 4.096 µs × 2^timeout, 0 for never.
    pub timeout: u8,
    /// How often a request is sent again before the connection is given up, 0 to 7.
    pub retry_cnt: u8,
    /// How often a request is sent again after an RNR NAK; 7 is for ever.
    pub rnr_retry: u8,
    /// Packets in flight at most, requests or READ responses: what the receiver's buffer holds.
    pub window: u32,
    /// Queue key, of datagrams.
    pub qkey: QKey,
    /// First PSN of requests.
    pub sq_psn: Psn,
    /// First PSN expected of the peer.
    pub rq_psn: Psn,
}

impl RcParams {
    /// Value of [`RcParams::rnr_retry`] that never gives up.
    pub const RNR_RETRY_FOREVER: u8 = 7;

    /// How its peer reaches memory.
    #[must_use]
    pub const fn via(&self) -> Via {
        Via { pd: self.pd, qpn: self.qpn }
    }

    /// Path MTU in bytes.
    #[must_use]
    pub const fn mtu_bytes(&self) -> u32 {
        self.mtu.bytes()
    }

    /// Time without progress after which requests are sent again; `None` for never.
    ///
    /// The specification lets a requester take T to 4 T (rule F17); a quarter above T is late enough for a
    /// peer that answers at the last moment.
    #[must_use]
    pub fn ack_timeout(&self) -> Option<Duration> {
        (self.timeout != 0).then(|| {
            let t = 4096_u64 << self.timeout.min(31);
            Duration::from_nanos(t + t / 4)
        })
    }

    /// Packets that `len` bytes take: at least one (rule R-REQ-3).
    #[must_use]
    pub const fn packets(&self, len: u32) -> u32 {
        let n = len.div_ceil(self.mtu_bytes());
        if n == 0 { 1 } else { n }
    }
}

#[cfg(test)]
mod tests {
    use crate::kit::params;
    use wire::Mtu;

    #[test]
    fn a_message_takes_at_least_one_packet() {
        for mtu in Mtu::ALL {
            let p = super::RcParams { mtu, ..params() };
            let m = mtu.bytes();
            for (len, n) in [(0, 1), (1, 1), (m, 1), (m + 1, 2), (10 * m, 10), (1 << 31, (1 << 31) / m)] {
                assert_eq!(p.packets(len), n, "{len} bytes at MTU {mtu}");
            }
        }
        // F35.
        assert_eq!(super::RcParams { mtu: Mtu::B1024, ..params() }.packets(1 << 30), 1_048_576);
    }
}
