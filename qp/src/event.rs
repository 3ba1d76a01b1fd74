//! What happens in a device besides packets and completions, for its owner and for whoever watches.

use transport::DropReason;
use wire::{Instant, Packet, Qpn, Srqn};

use crate::cq::CqId;
use crate::state::QpState;

/// Something the owner of the device asked to be told, or has to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// An armed completion queue has a completion it was armed for.
    CqReady(CqId),
    /// An asynchronous event.
    Async(AsyncEvent),
}

/// Asynchronous events, with the names of verbs (rule R-CQE-13).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// A completion queue has overrun.
    CqErr(CqId),
    /// The first packet arrived on a queue pair that is only ready to receive.
    CommEst(Qpn),
    /// All sends that had started are done; the queue pair is in SQD.
    SqDrained(Qpn),
    /// A peer's request broke a rule, and no receive reports it; the queue pair is in ERR.
    QpReqErr(Qpn),
    /// A peer asked for memory it may not touch, and no receive reports it; the queue pair is in ERR.
    QpAccessErr(Qpn),
    /// Fewer receives than its limit wait in a shared receive queue; the limit is 0 again.
    SrqLimitReached(Srqn),
    /// A queue pair with a shared receive queue is in ERR and will take no more from there; the receive that it had
    /// in use has completed.
    LastWqeReached(Qpn),
}

/// What a [`Tracer`] is told.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum TraceEvent<'a> {
    /// A packet was taken in by a queue pair.
    Received(&'a Packet<'a>),
    /// A packet was dropped. The queue pair is what its BTH says, if it got that far.
    Dropped {
        /// Destination queue pair of the packet.
        qpn: Option<Qpn>,
        /// Why.
        reason: DropReason,
    },
    /// A batch of packets is about to be sent.
    Sent {
        /// The queue pair that sends.
        qpn: Qpn,
        /// Number of packets.
        packets: usize,
    },
    /// A queue pair changed its state.
    State {
        /// The queue pair.
        qpn: Qpn,
        /// The state before.
        from: QpState,
        /// The state now.
        to: QpState,
    },
}

/// Watches a device. It is called with the device locked: it must be quick, and cannot call back.
pub trait Tracer: Send {
    /// Something happened.
    fn event(&mut self, now: Instant, event: &TraceEvent<'_>);
}

/// How many packets were dropped for which reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drops([u64; DropReason::ALL.len()]);

impl Default for Drops {
    fn default() -> Self {
        Self([0; DropReason::ALL.len()])
    }
}

impl Drops {
    pub(crate) fn count(&mut self, reason: DropReason, packets: u64) {
        self.0[reason as usize] += packets;
    }

    /// Packets dropped for `reason`.
    #[must_use]
    pub fn get(&self, reason: DropReason) -> u64 {
        self.0[reason as usize]
    }

    /// Packets dropped for any reason.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Every reason with its count.
    pub fn iter(&self) -> impl Iterator<Item = (DropReason, u64)> {
        DropReason::ALL.iter().map(|&reason| (reason, self.get(reason)))
    }
}
