//! The AETH syndrome: acknowledge with credits, RNR NAK with a timer, or NAK with a code.

use core::fmt;

use crate::time::Duration;

/// The syndrome byte of an AETH, decoded (rule R-WIR-24). Every byte decodes, and encodes back to itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Syndrome {
    /// Positive acknowledgement.
    Ack(Credits),
    /// Receiver not ready: try again after the timer.
    RnrNak(RnrTimer),
    /// Negative acknowledgement.
    Nak(NakCode),
    /// Bits 6:5 are 10, or bit 7 is set: reserved.
    Reserved(u8),
}

impl Syndrome {
    /// The ACK that sets no limit: what software responders send (rules R-REQ-19, R-RSP-49).
    pub const ACK: Self = Self::Ack(Credits::UNLIMITED);

    /// Decodes the byte.
    #[must_use]
    pub const fn from_byte(byte: u8) -> Self {
        let low = byte & 0x1F;
        match byte >> 5 {
            0 => Self::Ack(Credits(low)),
            1 => Self::RnrNak(RnrTimer(low)),
            3 => Self::Nak(NakCode::from_code(low)),
            _ => Self::Reserved(byte),
        }
    }

    /// The byte on the wire.
    #[must_use]
    pub const fn byte(self) -> u8 {
        match self {
            Self::Ack(credits) => credits.0,
            Self::RnrNak(timer) => 0x20 | timer.0,
            Self::Nak(code) => 0x60 | code.code(),
            Self::Reserved(byte) => byte,
        }
    }

    /// Whether it is a positive acknowledgement.
    #[must_use]
    pub const fn is_ack(self) -> bool {
        matches!(self, Self::Ack(_))
    }
}

impl fmt::Display for Syndrome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ack(credits) => match credits.count() {
                Some(n) => write!(f, "ack credits={n}"),
                None => f.write_str("ack"),
            },
            Self::RnrNak(timer) => write!(f, "rnr_nak timer={:?}", timer.duration()),
            Self::Nak(code) => write!(f, "nak={code}"),
            Self::Reserved(byte) => write!(f, "syndrome={byte:#04x}"),
        }
    }
}

/// NAK codes (rule R-CMP-9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NakCode {
    /// A packet was lost: send again from this PSN.
    PsnSequenceError,
    /// The request breaks a rule.
    InvalidRequest,
    /// The memory access is not allowed.
    RemoteAccessError,
    /// The responder failed.
    RemoteOperationalError,
    /// RD only.
    InvalidRdRequest,
    /// Codes 5 to 31.
    Reserved(u8),
}

impl NakCode {
    const fn from_code(code: u8) -> Self {
        match code {
            0 => Self::PsnSequenceError,
            1 => Self::InvalidRequest,
            2 => Self::RemoteAccessError,
            3 => Self::RemoteOperationalError,
            4 => Self::InvalidRdRequest,
            other => Self::Reserved(other & 0x1F),
        }
    }

    /// The five-bit code.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::PsnSequenceError => 0,
            Self::InvalidRequest => 1,
            Self::RemoteAccessError => 2,
            Self::RemoteOperationalError => 3,
            Self::InvalidRdRequest => 4,
            Self::Reserved(code) => code & 0x1F,
        }
    }
}

impl fmt::Display for NakCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PsnSequenceError => f.write_str("psn_sequence"),
            Self::InvalidRequest => f.write_str("invalid_request"),
            Self::RemoteAccessError => f.write_str("remote_access"),
            Self::RemoteOperationalError => f.write_str("remote_operational"),
            Self::InvalidRdRequest => f.write_str("invalid_rd_request"),
            Self::Reserved(code) => write!(f, "reserved_{code}"),
        }
    }
}

/// The five-bit RNR NAK timer code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct RnrTimer(u8);

impl RnrTimer {
    /// The timer with this code, if it has five bits.
    #[must_use]
    pub const fn new(code: u8) -> Option<Self> {
        if code < 32 { Some(Self(code)) } else { None }
    }

    /// The code.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }

    /// How long the requester must wait (rule R-REQ-22). Above code 4 the steps alternate between ×1.5 and
    /// ×4⁄3, so two codes double the time; code 0 is where code 32 would be.
    #[must_use]
    pub const fn duration(self) -> Duration {
        let code = if self.0 == 0 { 32 } else { self.0 as u64 };
        let tens_of_micros = match code {
            1..=4 => code,
            _ if code % 2 == 0 => 1 << (code / 2),
            _ => 3 << ((code - 3) / 2),
        };
        Duration::from_micros(tens_of_micros * 10)
    }
}

/// The five-bit credit code of an ACK.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Credits(u8);

impl Credits {
    /// No limit: end-to-end credits are not in use.
    pub const UNLIMITED: Self = Self(31);

    /// The credits with this code, if it has five bits.
    #[must_use]
    pub const fn new(code: u8) -> Option<Self> {
        if code < 32 { Some(Self(code)) } else { None }
    }

    /// The code.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }

    /// Receive work requests the responder can take, or `None` for no limit (rule R-REQ-18).
    #[must_use]
    pub const fn count(self) -> Option<u32> {
        match self.0 {
            0 => Some(0),
            1..=3 => Some(self.0 as u32),
            31.. => None,
            code if code % 2 == 0 => Some(1 << (code / 2)),
            code => Some(3 << ((code - 3) / 2)),
        }
    }
}

#[cfg(test)]
mod tests;
