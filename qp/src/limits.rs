//! What a device can hold. The NIC refuses more, with the limit in the error; programs ask here first.

use crate::nic::{MAX_CQE, MAX_RD_ATOMIC};
use crate::srq::{MAX_SRQ_SGE, MAX_SRQ_WR, MAX_SRQS};
use crate::wr::QpCap;
use crate::{mr, table};

macro_rules! limits {
    ($($(#[$doc:meta])* $name:ident = $value:expr),* $(,)?) => {
        /// Limits of a device, with the names of verbs. Protection domains, completion queues and address handles
        /// are limited by memory alone.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Limits { $($(#[$doc])* pub $name: u64),* }

        impl Limits {
            /// Those of every device.
            pub const DEVICE: Self = Self { $($name: $value as u64),* };

            /// Every limit with its name, in a fixed order.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }
        }
    };
}

limits! {
    /// Queue pairs, the one of general services aside.
    max_qp = table::MAX_QPS,
    /// Work requests that may wait in a queue of a queue pair.
    max_qp_wr = QpCap::MAX.max_send_wr,
    /// Bytes of a message (rule R-WIR-31).
    max_msg_sz = transport::responder::MAX_MESSAGE,
    /// Pieces of a work request.
    max_sge = QpCap::MAX.max_send_sge,
    /// Bytes of an inline send.
    max_inline_data = QpCap::MAX.max_inline_data,
    /// READs and atomics that a queue pair answers at a time.
    max_qp_rd_atom = MAX_RD_ATOMIC,
    /// READs and atomics that a queue pair may have open.
    max_qp_init_rd_atom = MAX_RD_ATOMIC,
    /// Completions of a completion queue.
    max_cqe = MAX_CQE,
    /// Memory regions; windows count with them, for each has a key.
    max_mr = mr::MAX_KEYS,
    /// Memory windows; regions count with them.
    max_mw = mr::MAX_KEYS,
    /// Bytes of a region.
    max_mr_size = isize::MAX,
    /// Shared receive queues.
    max_srq = MAX_SRQS,
    /// Receives that may wait in a shared receive queue.
    max_srq_wr = MAX_SRQ_WR,
    /// Pieces of a receive of a shared receive queue.
    max_srq_sge = MAX_SRQ_SGE,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_holds_a_million_queue_pairs_and_regions() {
        let limits = Limits::DEVICE;
        assert!(limits.max_qp >= 1_000_000 && limits.max_mr >= 1_000_000);
        assert_eq!(limits.iter().find(|(name, _)| *name == "max_qp_wr"), Some(("max_qp_wr", 16_384)));
        assert!(limits.iter().all(|(_, limit)| limit > 0));
    }
}
