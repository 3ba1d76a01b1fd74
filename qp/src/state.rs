//! Queue pair types and states: what each state permits, and (in the submodules) which transitions there are and
//! which attributes each takes.
//!
//! The NIC asks here before every post, packet and modification; nothing here changes a queue pair.

use core::fmt;

use wire::opcode::Transport;

mod attr;
mod table;

#[cfg(test)]
mod tests;

pub use attr::{AddressVector, AttrMask, ModifyError, ModifyLimits, PathMigState, QpAttr, rnr_timer};
pub use table::{check_transition, dot};

/// Queue pair type, with the numbers of verbs (rule R-QPS-18).
///
/// Dynamically connected (DC) queue pairs, a driver's type 255 in verbs, are not among them and cannot be: their opcodes,
/// headers and keys on the wire are not public.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QpType {
    /// The general services queue pair, QPN 1.
    Gsi = 1,
    /// Reliable connection.
    Rc = 2,
    /// Unreliable connection.
    Uc = 3,
    /// Unreliable datagram.
    Ud = 4,
    /// XRC initiator: sends only.
    XrcIni = 9,
    /// XRC target: receives only.
    XrcTgt = 10,
}

impl QpType {
    /// All types.
    pub const ALL: [Self; 6] = [Self::Gsi, Self::Rc, Self::Uc, Self::Ud, Self::XrcIni, Self::XrcTgt];

    /// The number verbs gives it.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// The type with this verbs number.
    ///
    /// # Errors
    /// That there is none.
    pub fn from_number(number: u8) -> Result<Self, UnknownQpType> {
        Self::ALL.into_iter().find(|ty| ty.number() == number).ok_or(UnknownQpType(number))
    }

    /// The transport service whose opcodes it speaks.
    #[must_use]
    pub const fn transport(self) -> Transport {
        match self {
            Self::Rc => Transport::Rc,
            Self::Uc => Transport::Uc,
            Self::Ud | Self::Gsi => Transport::Ud,
            Self::XrcIni | Self::XrcTgt => Transport::Xrc,
        }
    }

    /// Whether it talks to one peer only, whose addresses every packet must have.
    #[must_use]
    pub const fn is_connected(self) -> bool {
        !matches!(self, Self::Ud | Self::Gsi)
    }

    /// Name as verbs spells it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gsi => "GSI",
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
            Self::XrcIni => "XRC_SEND",
            Self::XrcTgt => "XRC_RECV",
        }
    }
}

/// A queue pair type that is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "queue pair type {0} is not supported: RC 2, UC 3, UD 4, XRC_SEND 9 and XRC_RECV 10 are; DC is not public"
)]
pub struct UnknownQpType(pub u8);

impl UnknownQpType {
    /// The error number verbs would give.
    #[must_use]
    pub const fn errno(&self) -> i32 {
        95
    }
}

impl fmt::Display for QpType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Queue pair state, with the numbers of verbs (rule R-QPS-1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum QpState {
    /// Just created: nothing is possible.
    #[default]
    Reset = 0,
    /// Receives can be posted.
    Init = 1,
    /// Ready to receive: the responder works.
    Rtr = 2,
    /// Ready to send: all works.
    Rts = 3,
    /// Send queue drained: requests begun are finished, no new one starts.
    Sqd = 4,
    /// Send queue error: the send queue of an unreliable queue pair failed, the responder works on.
    Sqe = 5,
    /// Error: all work is flushed.
    Err = 6,
}

/// What a state does with a work request that is posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PostRule {
    /// Posting fails with EINVAL.
    Refuse,
    /// The work request is queued.
    Queue,
    /// The work request is taken and completes with WR_FLUSH_ERR.
    Flush,
}

impl QpState {
    /// All states, in the order of their numbers.
    pub const ALL: [Self; 7] =
        [Self::Reset, Self::Init, Self::Rtr, Self::Rts, Self::Sqd, Self::Sqe, Self::Err];

    /// The number verbs gives it.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// The state with this verbs number.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.number() == number)
    }

    /// Name as verbs spells it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::Rtr => "RTR",
            Self::Rts => "RTS",
            Self::Sqd => "SQD",
            Self::Sqe => "SQE",
            Self::Err => "ERR",
        }
    }

    /// What happens to a posted send (rule R-QPS-10).
    #[must_use]
    pub const fn post_send(self) -> PostRule {
        match self {
            Self::Reset | Self::Init | Self::Rtr => PostRule::Refuse,
            Self::Rts | Self::Sqd => PostRule::Queue,
            Self::Sqe | Self::Err => PostRule::Flush,
        }
    }

    /// What happens to a posted receive (rule R-QPS-11).
    #[must_use]
    pub const fn post_recv(self) -> PostRule {
        match self {
            Self::Reset => PostRule::Refuse,
            Self::Init | Self::Rtr | Self::Rts | Self::Sqd | Self::Sqe => PostRule::Queue,
            Self::Err => PostRule::Flush,
        }
    }

    /// Whether requests of the peer are processed and answered (rules R-ADM-5, R-QPS-12).
    #[must_use]
    pub const fn takes_requests(self) -> bool {
        matches!(self, Self::Rtr | Self::Rts | Self::Sqd | Self::Sqe)
    }

    /// Whether responses of the peer are processed (rules R-ADM-5, R-QPS-12).
    #[must_use]
    pub const fn takes_responses(self) -> bool {
        matches!(self, Self::Rts | Self::Sqd)
    }

    /// Whether a queued send may be started.
    #[must_use]
    pub const fn starts_requests(self) -> bool {
        matches!(self, Self::Rts)
    }

    /// Whether a send that was started goes on, retransmissions included (rule R-REQ-31).
    #[must_use]
    pub const fn continues_requests(self) -> bool {
        matches!(self, Self::Rts | Self::Sqd)
    }
}

impl fmt::Display for QpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
