//! What happens in a device besides packets and completions, for its owner and for whoever watches.

use dcqcn::RateState;
use transport::DropReason;
use wire::{Gid, Instant, Packet, Qpn, Srqn};

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

/// Asynchronous events, with the names of verbs (rule R-CQE-13). Those of the port are of port 1, the only one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// A queue pair went to ERR, and none of its work requests says why: its completion queue has overrun.
    QpFatal(Qpn),
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
    /// The device no longer works: its packet path is gone.
    DeviceFatal,
    /// The port's link has come up.
    PortActive,
    /// The port's link has gone down.
    PortErr,
    /// The port's GID table has changed.
    GidChange,
}

impl AsyncEvent {
    /// What kind of event it is.
    #[must_use]
    pub const fn kind(&self) -> AsyncEventKind {
        match self {
            Self::CqErr(_) => AsyncEventKind::CqErr,
            Self::QpFatal(_) => AsyncEventKind::QpFatal,
            Self::QpReqErr(_) => AsyncEventKind::QpReqErr,
            Self::QpAccessErr(_) => AsyncEventKind::QpAccessErr,
            Self::CommEst(_) => AsyncEventKind::CommEst,
            Self::SqDrained(_) => AsyncEventKind::SqDrained,
            Self::SrqLimitReached(_) => AsyncEventKind::SrqLimitReached,
            Self::LastWqeReached(_) => AsyncEventKind::QpLastWqeReached,
            Self::DeviceFatal => AsyncEventKind::DeviceFatal,
            Self::PortActive => AsyncEventKind::PortActive,
            Self::PortErr => AsyncEventKind::PortErr,
            Self::GidChange => AsyncEventKind::GidChange,
        }
    }

    /// The number verbs gives its kind.
    #[must_use]
    pub const fn number(&self) -> u8 {
        self.kind().number()
    }

    /// The name of its kind as verbs spells it.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.kind().name()
    }

    /// The queue pair it is about, if it is about one.
    #[must_use]
    pub const fn qp(&self) -> Option<Qpn> {
        match self {
            Self::QpFatal(qpn)
            | Self::QpReqErr(qpn)
            | Self::QpAccessErr(qpn)
            | Self::CommEst(qpn)
            | Self::SqDrained(qpn)
            | Self::LastWqeReached(qpn) => Some(*qpn),
            _ => None,
        }
    }

    /// The completion queue it is about, if it is about one.
    #[must_use]
    pub const fn cq(&self) -> Option<CqId> {
        match self {
            Self::CqErr(cq) => Some(*cq),
            _ => None,
        }
    }

    /// The shared receive queue it is about, if it is about one.
    #[must_use]
    pub const fn srq(&self) -> Option<Srqn> {
        match self {
            Self::SrqLimitReached(srqn) => Some(*srqn),
            _ => None,
        }
    }
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $number:literal $name:literal),* $(,)?) => {
        /// Kinds of asynchronous events, with the numbers and names of verbs (rule R-CQE-13). Not all occur.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum AsyncEventKind { $($(#[$doc])* $kind = $number),* }

        impl AsyncEventKind {
            /// All kinds, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$kind),*];

            /// The number verbs gives it.
            #[must_use]
            pub const fn number(self) -> u8 {
                self as u8
            }

            /// The kind with this verbs number.
            #[must_use]
            pub fn from_number(number: u8) -> Option<Self> {
                Self::ALL.get(usize::from(number)).copied()
            }

            /// Name as verbs spells it.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$kind => $name),* }
            }
        }
    };
}

kinds! {
    /// A completion queue has overrun.
    CqErr = 0 "CQ_ERR",
    /// A queue pair went to ERR, and no work request says why.
    QpFatal = 1 "QP_FATAL",
    /// A peer's request broke a rule.
    QpReqErr = 2 "QP_REQ_ERR",
    /// A peer asked for memory it may not touch.
    QpAccessErr = 3 "QP_ACCESS_ERR",
    /// The first packet arrived on a queue pair in RTR.
    CommEst = 4 "COMM_EST",
    /// The send queue is drained.
    SqDrained = 5 "SQ_DRAINED",
    /// The path has migrated. Paths of this device do not.
    PathMig = 6 "PATH_MIG",
    /// The path could not migrate.
    PathMigErr = 7 "PATH_MIG_ERR",
    /// The device no longer works.
    DeviceFatal = 8 "DEVICE_FATAL",
    /// The link has come up.
    PortActive = 9 "PORT_ACTIVE",
    /// The link has gone down.
    PortErr = 10 "PORT_ERR",
    /// The local identifier has changed; RoCE has none.
    LidChange = 11 "LID_CHANGE",
    /// The P_Key table has changed.
    PkeyChange = 12 "PKEY_CHANGE",
    /// The subnet manager has changed; RoCE has none.
    SmChange = 13 "SM_CHANGE",
    /// A shared receive queue no longer works.
    SrqErr = 14 "SRQ_ERR",
    /// A shared receive queue has fallen below its limit.
    SrqLimitReached = 15 "SRQ_LIMIT_REACHED",
    /// A queue pair in ERR takes no more from its shared receive queue.
    QpLastWqeReached = 16 "QP_LAST_WQE_REACHED",
    /// The subnet manager asks to register anew; RoCE has none.
    ClientReregister = 17 "CLIENT_REREGISTER",
    /// The GID table has changed.
    GidChange = 18 "GID_CHANGE",
    /// A work queue no longer works.
    WqFatal = 19 "WQ_FATAL",
    /// The speed of the device has changed.
    DeviceSpeedChange = 20 "DEVICE_SPEED_CHANGE",
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
    /// A CNP for a queue pair was received.
    Notified {
        /// The queue pair.
        qpn: Qpn,
        /// Whether its congestion control heeds it.
        handled: bool,
    },
    /// A CNP is about to be sent.
    Notifies {
        /// The address that it goes to.
        to: Gid,
        /// The queue pair whose packet came with a mark.
        dest: Qpn,
    },
    /// The rate of a queue pair is another than when it last sent or was told of.
    Rate {
        /// The queue pair.
        qpn: Qpn,
        /// What its congestion control thinks.
        state: RateState,
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

#[cfg(test)]
mod tests {
    use super::*;

    /// R-CQE-13.
    #[test]
    fn kinds_have_the_numbers_and_names_of_verbs() {
        for (number, kind) in (0..).zip(AsyncEventKind::ALL) {
            assert_eq!((kind.number(), AsyncEventKind::from_number(number)), (number, Some(*kind)));
        }
        assert_eq!((AsyncEventKind::ALL.len(), AsyncEventKind::from_number(21)), (21, None));
        let qpn = Qpn::new(0x11);
        for (event, number, name, of_qp) in [
            (AsyncEvent::CqErr(CqId(1)), 0, "CQ_ERR", false),
            (AsyncEvent::QpFatal(qpn), 1, "QP_FATAL", true),
            (AsyncEvent::QpReqErr(qpn), 2, "QP_REQ_ERR", true),
            (AsyncEvent::QpAccessErr(qpn), 3, "QP_ACCESS_ERR", true),
            (AsyncEvent::CommEst(qpn), 4, "COMM_EST", true),
            (AsyncEvent::SqDrained(qpn), 5, "SQ_DRAINED", true),
            (AsyncEvent::SrqLimitReached(Srqn::new(5)), 15, "SRQ_LIMIT_REACHED", false),
            (AsyncEvent::LastWqeReached(qpn), 16, "QP_LAST_WQE_REACHED", true),
            (AsyncEvent::DeviceFatal, 8, "DEVICE_FATAL", false),
            (AsyncEvent::PortActive, 9, "PORT_ACTIVE", false),
            (AsyncEvent::PortErr, 10, "PORT_ERR", false),
            (AsyncEvent::GidChange, 18, "GID_CHANGE", false),
        ] {
            assert_eq!((event.number(), event.name()), (number, name));
            assert_eq!(event.qp(), of_qp.then_some(qpn), "{name}");
            assert_eq!((event.cq().is_some(), event.srq().is_some()), (number == 0, number == 15), "{name}");
        }
    }
}
