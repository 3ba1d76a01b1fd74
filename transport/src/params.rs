//! Attributes of a connected queue pair that its engines read.

use wire::opcode::Transport;
use wire::{Duration, Mtu, Opcode, Operation, PKey, Psn, QKey, Qpn, RnrTimer};

use crate::ports::{Access, PdId, Via};
use crate::profile::Behaviour;

/// Attributes of a reliable connection. The owner keeps them; the engines only read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RcParams {
    /// Own number.
    pub qpn: Qpn,
    /// The peer's number.
    pub dest_qpn: Qpn,
    /// Whose opcodes its packets have, where it is reliable: RC or XRC.
    pub transport: Transport,
    /// Protection domain that counts; at an XRC target, that of the shared receive queue which the request at hand
    /// names (rule R-RSP-45).
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
    /// Work requests that the send queue holds.
    pub max_send_wr: u32,
    /// Packets in flight at most, requests or READ responses: what the receiver's buffer holds.
    pub window: u32,
    /// Queue key, of datagrams.
    pub qkey: QKey,
    /// First PSN of requests.
    pub sq_psn: Psn,
    /// First PSN expected of the peer.
    pub rq_psn: Psn,
    /// What the engines do where NICs differ.
    pub behaviour: &'static Behaviour,
}

impl RcParams {
    /// Value of [`RcParams::rnr_retry`] that never gives up.
    pub const RNR_RETRY_FOREVER: u8 = 7;

    /// Value of [`RcParams::retry_cnt`] that some peers take as for ever, against rule R-REQ-24.
    pub const RETRY_CNT_FOREVER: u8 = 7;

    /// How its peer reaches memory.
    #[must_use]
    pub const fn via(&self) -> Via {
        Via { pd: self.pd, qpn: self.qpn }
    }

    /// The opcode of an operation.
    #[must_use]
    pub fn opcode(&self, operation: Operation) -> Opcode {
        Opcode::new(self.transport, operation).unwrap_or(Opcode::rc(operation))
    }

    /// Path MTU in bytes.
    #[must_use]
    pub const fn mtu_bytes(&self) -> u32 {
        self.mtu.bytes()
    }

    /// The ACK timeout in nanoseconds, 4.096 µs × 2^timeout, or the least that the profile takes; `None` for
    /// never.
    fn timeout_nanos(&self) -> Option<u64> {
        (self.timeout != 0).then(|| 4096 << self.timeout.max(self.behaviour.min_timeout).min(31))
    }

    /// Time without progress after which requests are sent again; `None` for never.
    ///
    /// The specification lets a requester take T to 4 T (rule F17); a quarter above T is late enough for a
    /// peer that answers at the last moment.
    #[must_use]
    pub fn ack_timeout(&self) -> Option<Duration> {
        self.timeout_nanos().map(|t| Duration::from_nanos(t + t / 4))
    }

    /// Time after which requests are sent again where `timeouts` have passed in a row; `None` for never.
    ///
    /// It is the ACK timeout, or less where the profile repeats early and less and less often (rule R-REQ-45):
    /// the first wait is between one and two times its own, so that queue pairs do not keep step, and each
    /// further one twice the one before.
    #[must_use]
    pub fn retransmission_timeout(&self, timeouts: u8) -> Option<Duration> {
        let most = self.ack_timeout()?;
        let Some(first) = self.behaviour.adaptive else { return Some(most) };
        let t = 4096_u64 << first.saturating_add(timeouts).min(31);
        let spread = if timeouts == 0 { t * self.spread() / 256 } else { 0 };
        Some(most.min(Duration::from_nanos(t + spread)))
    }

    /// Time without progress after which a connection that repeats early is given up; `None` for never.
    #[must_use]
    pub fn give_up_after(&self) -> Option<Duration> {
        self.timeout_nanos().map(|t| Duration::from_nanos(t.saturating_mul(self.retry_cnt.into())))
    }

    /// A number below 256 that differs between queue pairs and connections.
    fn spread(&self) -> u64 {
        let mixed = (self.qpn.value() ^ self.sq_psn.value()).wrapping_mul(0x9E37_79B1);
        u64::from(mixed >> 24)
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
    }

    #[test]
    fn f35_a_gibibyte_takes_a_psn_for_each_of_its_packets() {
        let params = super::RcParams { mtu: Mtu::B1024, ..params() };
        assert_eq!((params.packets(1 << 30), params.packets((1 << 30) + 1)), (1_048_576, 1_048_577));
    }
}
