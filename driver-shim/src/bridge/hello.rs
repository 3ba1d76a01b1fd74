//! What a bridge and its clients say to each other beside packets.
//!
//! Each message on the socket is either one IP packet, whose first four bits are 4 or 6, or one of these, whose first byte
//! is 0. `docs/bridge.md` describes them for other programs.

use std::net::{IpAddr, Ipv6Addr};

/// Longest IP packet that a bridge carries: a path MTU of 4096 and all headers.
pub(crate) const LONGEST: usize = 4200;

/// First bytes of every message that is no packet; the last counts changes of the format.
const MAGIC: [u8; 4] = *b"\0FB\x01";

const HELLO: u8 = 1;
const WELCOME: u8 = 2;
const TAKEN: u8 = 3;
const FULL: u8 = 4;
const NO_HOST: u8 = 5;

/// Length of a hello: the magic, its kind and an address, an IPv4 one mapped to IPv6.
const HELLO_LEN: usize = MAGIC.len() + 1 + 16;
/// Length of an answer: the magic, its kind, the bridge's longest packet and its rate.
const ANSWER_LEN: usize = MAGIC.len() + 1 + 4 + 8;

/// What a bridge answers to a hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Packets to the address come from now on.
    Welcome {
        /// Longest IP packet in bytes.
        mtu: u32,
        /// Bits per second of the way to the address.
        rate: u64,
    },
    /// Another client has the address.
    Taken,
    /// The bridge has no place for one more.
    Full,
    /// No host can have the address.
    NoHost,
}

/// Whether a host can have `address`: it is not that of nobody (0.0.0.0/8, ::), of a group, or of all.
pub(super) fn is_of_a_host(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.octets()[0] != 0 && !v4.is_multicast() && !v4.is_broadcast(),
        IpAddr::V6(v6) => !v6.is_unspecified() && !v6.is_multicast(),
    }
}

/// The message that asks for `address`.
pub(crate) fn hello(address: IpAddr) -> [u8; HELLO_LEN] {
    let mapped = match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    let mut out = [0; HELLO_LEN];
    out[..4].copy_from_slice(&MAGIC);
    out[4] = HELLO;
    out[5..].copy_from_slice(&mapped.octets());
    out
}

/// The address that a message asks for, if it is a hello.
pub(super) fn asked_for(message: &[u8]) -> Option<IpAddr> {
    let (kind, rest) = message.strip_prefix(&MAGIC)?.split_first()?;
    let octets: [u8; 16] = rest.try_into().ok().filter(|_| *kind == HELLO)?;
    Some(Ipv6Addr::from(octets).to_canonical())
}

impl Answer {
    pub(super) fn emit(self) -> [u8; ANSWER_LEN] {
        let (kind, mtu, rate) = match self {
            Self::Welcome { mtu, rate } => (WELCOME, mtu, rate),
            Self::Taken => (TAKEN, 0, 0),
            Self::Full => (FULL, 0, 0),
            Self::NoHost => (NO_HOST, 0, 0),
        };
        let mut out = [0; ANSWER_LEN];
        out[..4].copy_from_slice(&MAGIC);
        out[4] = kind;
        out[5..9].copy_from_slice(&mtu.to_be_bytes());
        out[9..].copy_from_slice(&rate.to_be_bytes());
        out
    }

    /// The answer that a message is, if it is one.
    pub(crate) fn parse(message: &[u8]) -> Option<Self> {
        let (kind, rest) = message.strip_prefix(&MAGIC)?.split_first()?;
        let (mtu, rate) = rest.split_first_chunk()?;
        let rate = u64::from_be_bytes(rate.try_into().ok()?);
        match *kind {
            WELCOME => Some(Self::Welcome { mtu: u32::from_be_bytes(*mtu), rate }),
            TAKEN => Some(Self::Taken),
            FULL => Some(Self::Full),
            NO_HOST => Some(Self::NoHost),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_they_were_written() {
        for address in ["10.0.0.7", "fd00::7"] {
            let address = address.parse().expect("an address");
            assert_eq!(asked_for(&hello(address)), Some(address));
        }
        let welcome = Answer::Welcome { mtu: 4200, rate: 200_000_000 };
        for answer in [welcome, Answer::Taken, Answer::Full, Answer::NoHost] {
            assert_eq!(Answer::parse(&answer.emit()), Some(answer));
            assert_eq!(asked_for(&answer.emit()), None);
        }
    }

    #[test]
    fn anything_else_is_no_message() {
        let hello = hello(IpAddr::from([10, 0, 0, 7]));
        for len in 0..hello.len() {
            assert_eq!((asked_for(&hello[..len]), Answer::parse(&hello[..len])), (None, None));
        }
        let other_version = [&b"\0FB\x02\x01"[..], &[0; 16]].concat();
        assert_eq!(asked_for(&other_version), None);
        assert_eq!(asked_for(&[&hello[..], &[0]].concat()), None);
        assert_eq!(Answer::parse(&[&b"\0FB\x01\x09"[..], &[0; 12]].concat()), None);
    }
}
