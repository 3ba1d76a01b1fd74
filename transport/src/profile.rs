//! Profiles: how a NIC behaves where the rules leave it a choice, or where a known peer bends them.
//!
//! A [`Profile`] is a name; the [`Behaviour`] behind it is what the engines read, through
//! [`RcParams`](crate::RcParams). `docs/profiles.md` gives the source of every value and how sure it is. What
//! nothing public tells is as in [`Behaviour::STRICT`]; nothing here is guessed.

use std::fmt;
use std::str::FromStr;

use wire::NakCode;

use crate::completion::WcStatus;

/// Whose behaviour a NIC shows on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Profile {
    /// The rules to the letter.
    #[default]
    Strict,
    /// Linux's rdma_rxe, as of 6.1.
    Rxe,
    /// NVIDIA ConnectX-4 and later with its default settings.
    ConnectX,
}

impl Profile {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Strict, Self::Rxe, Self::ConnectX];

    /// Its name on command lines.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Strict => "strict",
            Self::Rxe => "rxe",
            Self::ConnectX => "connectx",
        }
    }

    /// What it means.
    #[must_use]
    pub const fn behaviour(self) -> &'static Behaviour {
        match self {
            Self::Strict => &Behaviour::STRICT,
            Self::Rxe => &Behaviour::RXE,
            Self::ConnectX => &Behaviour::CONNECTX,
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that is no profile's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no profile {0:?}; there are strict, rxe and connectx")]
pub struct UnknownProfile(String);

impl FromStr for Profile {
    type Err = UnknownProfile;

    fn from_str(name: &str) -> Result<Self, UnknownProfile> {
        let found = Self::ALL.into_iter().find(|profile| profile.name() == name);
        found.ok_or_else(|| UnknownProfile(name.to_owned()))
    }
}

/// What the engines of a queue pair do where NICs differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Behaviour {
    /// MigReq of every packet (rule R-WIR-34).
    pub migreq: bool,
    /// Datagrams leave from a UDP source port made of the own QPN alone; otherwise, as all others, from one
    /// made of the flow label or both QPNs (rule R-ADR-6).
    pub datagram_port_of_qpn: bool,
    /// Packets of a long message of which one at least asks for an ACK; `None` for a quarter of the
    /// window or, where that is less, a full batch.
    pub ack_req_every: Option<u32>,
    /// A SEND or WRITE asks for no ACK with its last packet where another one follows at once.
    pub ack_req_when_idle: bool,
    /// A SEND or WRITE asks for an ACK even where it is not signalled; otherwise some may be left out (rule R-REQ-49).
    pub ack_req_if_unsignaled: bool,
    /// Whatever is sent again asks for an ACK.
    pub ack_req_on_repeats: bool,
    /// One ACK may answer several packets that ask (rule R-RSP-26).
    pub coalesces_acks: bool,
    /// The rest of a READ that is asked for again goes on with MIDDLE or LAST; otherwise it is a READ of its
    /// own (rule R-RSP-30).
    pub goes_on_with_reads: bool,
    /// The packet behind one that found no receive causes a sequence NAK (rule R-RSP-3).
    pub nak_behind_rnr: bool,
    /// The payload of a packet has to be as long as its opcode says (rule R-RSP-12). Otherwise that of a SEND may
    /// have any length, and that of a WRITE is a full packet while more is due, else what is due.
    pub checks_lengths: bool,
    /// NAK of a SEND that is longer than its receive, and how that receive completes (rule R-RSP-14).
    pub send_too_long: (NakCode, WcStatus),
    /// NAK of a READ or WRITE that is longer than any message (rule R-WIR-31).
    pub range_too_long: NakCode,
    /// A retry count of 7 never runs out (rule R-REQ-24).
    pub retries_forever: bool,
    /// Smallest ACK timeout exponent that counts; less is taken as this. 0 stays never.
    pub min_timeout: u8,
    /// ACK timeout exponent with which an unanswered request begins to be repeated, doubled each time up to
    /// the queue pair's own; `None` for the queue pair's own at once.
    pub adaptive: Option<u8>,
}

impl Behaviour {
    /// Of [`Profile::Strict`].
    pub const STRICT: Self = Self {
        migreq: true,
        datagram_port_of_qpn: false,
        ack_req_every: None,
        ack_req_when_idle: false,
        ack_req_if_unsignaled: false,
        ack_req_on_repeats: true,
        coalesces_acks: true,
        goes_on_with_reads: false,
        nak_behind_rnr: false,
        checks_lengths: true,
        send_too_long: (NakCode::InvalidRequest, WcStatus::LocLenErr),
        range_too_long: NakCode::InvalidRequest,
        retries_forever: false,
        min_timeout: 0,
        adaptive: None,
    };

    /// Of [`Profile::Rxe`].
    pub const RXE: Self = Self {
        migreq: false,
        datagram_port_of_qpn: true,
        ack_req_every: Some(66),
        ack_req_if_unsignaled: true,
        ack_req_on_repeats: false,
        coalesces_acks: false,
        goes_on_with_reads: true,
        nak_behind_rnr: true,
        checks_lengths: false,
        send_too_long: (NakCode::RemoteOperationalError, WcStatus::LocQpOpErr),
        range_too_long: NakCode::RemoteAccessError,
        retries_forever: true,
        ..Self::STRICT
    };

    /// Of [`Profile::ConnectX`].
    pub const CONNECTX: Self = Self {
        ack_req_every: Some(256),
        ack_req_when_idle: true,
        min_timeout: 16,
        adaptive: Some(9),
        ..Self::STRICT
    };
}

#[cfg(test)]
mod tests;
