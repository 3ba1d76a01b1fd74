//! What may go wrong on purpose, as a user writes it on the command line.
//!
//! `--drop`, `--dup`, `--corrupt` and `--reorder` take `[tx:|rx:]P` or `[tx:|rx:]qp=Q,psn=N,pass=K`; `--delay`
//! takes the same and `:TIME` behind it. This file only reads and prints them: [`crate::Injector`] decides.

use core::fmt;

use wire::num::MASK24;
use wire::{Duration, Psn, Qpn};

/// Which way a packet goes, seen from the device that has the faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Direction {
    /// Leaving the device.
    #[default]
    Tx,
    /// Coming to the device.
    Rx,
}

/// What is done to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// `--drop`: it never arrives.
    Drop,
    /// `--dup`: it arrives twice.
    Duplicate,
    /// `--corrupt`: one bit that the ICRC covers is flipped, after the ICRC was made.
    Corrupt,
    /// `--reorder`: it arrives behind the packet that follows it.
    Reorder,
    /// `--delay`: it arrives later.
    Delay,
}

impl FaultKind {
    /// All kinds, in the order of the documentation.
    pub const ALL: [Self; 5] = [Self::Drop, Self::Duplicate, Self::Corrupt, Self::Reorder, Self::Delay];

    /// Its command line option, with the dashes.
    #[must_use]
    pub const fn flag(self) -> &'static str {
        match self {
            Self::Drop => "--drop",
            Self::Duplicate => "--dup",
            Self::Corrupt => "--corrupt",
            Self::Reorder => "--reorder",
            Self::Delay => "--delay",
        }
    }
}

/// A number from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Probability(f64);

impl Probability {
    /// Always.
    pub const ONE: Self = Self(1.0);

    /// `value`, or `None` where it does not lie in 0 to 1.
    #[must_use]
    pub fn new(value: f64) -> Option<Self> {
        (0.0..=1.0).contains(&value).then_some(Self(value))
    }

    /// Reads `0.01` or `1%`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (digits, scale) = text.strip_suffix('%').map_or((text, 1.0), |digits| (digits, 100.0));
        Self::new(digits.parse::<f64>().ok()? / scale)
    }

    /// The number.
    #[must_use]
    pub const fn value(self) -> f64 {
        self.0
    }
}

/// Which sequence number an addressed fault waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PsnRule {
    /// `psn=N`: this number.
    Absolute(Psn),
    /// `psn=+N`: the first that was seen of the same flow and kind, and so many more.
    FromFirst(u32),
}

/// Requests and responses to one queue pair count in different circles of PSNs; an address may name one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PacketKind {
    /// From requester to responder.
    Request,
    /// From responder to requester: acknowledges, READ responses, atomic responses.
    Response,
}

/// One packet of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// Destination queue pair in the packet's BTH; `None` is any.
    pub qp: Option<Qpn>,
    /// Its PSN.
    pub psn: PsnRule,
    /// Which passing of that PSN, counted from 1: 2 is the first repeat.
    pub pass: u32,
    /// Only requests or only responses; `None` is both.
    pub kind: Option<PacketKind>,
}

/// Which packets a fault hits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum When {
    /// Each with this probability.
    Chance(Probability),
    /// Exactly this one.
    At(Address),
}

/// One fault.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FaultSpec {
    /// What is done.
    pub kind: FaultKind,
    /// Packets of which direction.
    pub direction: Direction,
    /// Which of them.
    pub when: When,
    /// How much later a delayed packet arrives; zero for other kinds.
    pub delay: Duration,
}

/// Why a fault on the command line cannot be understood. Each says in one line what would be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FaultParseError {
    /// Neither a number from 0 to 1 nor a percentage.
    #[error("\"{0}\" is neither a probability (0 to 1, or 0% to 100%) nor an address (qp=Q,psn=+N,pass=K)")]
    Probability(String),
    /// A key that an address does not have, or a part without `=`.
    #[error(
        "\"{0}\" is no part of an address: these are qp=Q, psn=N or psn=+N, pass=K, kind=req or kind=resp"
    )]
    Key(String),
    /// A key twice.
    #[error("{0}= is given twice")]
    Twice(&'static str),
    /// An address without a PSN.
    #[error("\"{0}\" needs a psn: psn=+N counts from the connection's first, psn=N is absolute")]
    NoPsn(String),
    /// Not a number of 24 bits.
    #[error("\"{1}\" is no {0} number: 0 to 16777215, decimal or 0x hexadecimal")]
    Number(&'static str, String),
    /// Not a positive number.
    #[error("\"{0}\" is no pass: 1 is the first time a PSN passes, 2 its first repeat")]
    Pass(String),
    /// Neither `req` nor `resp`.
    #[error("\"{0}\" is no kind of packet: req or resp")]
    PacketKind(String),
    /// A delay without a time.
    #[error("\"{0}\" has no time at its end: write 2ms, 1%:2ms or qp=Q,psn=+N:2ms (ns, us, ms or s)")]
    Time(String),
}

impl FaultSpec {
    /// A fault that hits each packet with probability `chance`; `None` where that is not in 0 to 1.
    #[must_use]
    pub fn chance(kind: FaultKind, direction: Direction, chance: f64) -> Option<Self> {
        let when = When::Chance(Probability::new(chance)?);
        Some(Self { kind, direction, when, delay: Duration::ZERO })
    }

    /// A fault that hits the packet to `qp` with number `psn` when it passes for the `pass`th time.
    #[must_use]
    pub const fn at(kind: FaultKind, direction: Direction, qp: Qpn, psn: Psn, pass: u32) -> Self {
        let address = Address { qp: Some(qp), psn: PsnRule::Absolute(psn), pass, kind: None };
        Self { kind, direction, when: When::At(address), delay: Duration::ZERO }
    }

    /// The same, with packets delayed by `delay` (for [`FaultKind::Delay`]).
    #[must_use]
    pub const fn with_delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// Reads the argument of the option `kind.flag()`.
    ///
    /// # Errors
    /// What is wrong and what would be right, in one line.
    pub fn parse(kind: FaultKind, argument: &str) -> Result<Self, FaultParseError> {
        let (direction, rest) = match (argument.strip_prefix("tx:"), argument.strip_prefix("rx:")) {
            (Some(rest), _) => (Direction::Tx, rest),
            (_, Some(rest)) => (Direction::Rx, rest),
            _ => (Direction::Tx, argument),
        };
        let (rest, delay) = if kind == FaultKind::Delay {
            let (which, time) = rest.rsplit_once(':').unwrap_or(("1", rest));
            (which, parse_time(time).ok_or_else(|| FaultParseError::Time(argument.to_owned()))?)
        } else {
            (rest, Duration::ZERO)
        };
        let when = if rest.contains('=') {
            When::At(parse_address(rest)?)
        } else {
            When::Chance(parse_probability(rest)?)
        };
        Ok(Self { kind, direction, when, delay })
    }
}

fn parse_probability(text: &str) -> Result<Probability, FaultParseError> {
    Probability::parse(text).ok_or_else(|| FaultParseError::Probability(text.to_owned()))
}

fn parse_address(text: &str) -> Result<Address, FaultParseError> {
    let (mut qp, mut psn, mut pass, mut kind) = (None, None, None, None);
    for part in text.split(',') {
        let (key, value) = part.split_once('=').ok_or_else(|| FaultParseError::Key(part.to_owned()))?;
        match key {
            "qp" => once(&mut qp, "qp", Qpn::new(parse_24(value, "queue pair")?))?,
            "psn" => {
                let rule = match value.strip_prefix('+') {
                    Some(offset) => PsnRule::FromFirst(parse_24(offset, "packet")?),
                    None => PsnRule::Absolute(Psn::new(parse_24(value, "packet")?)),
                };
                once(&mut psn, "psn", rule)?;
            }
            "pass" => {
                let number = value.parse().ok().filter(|pass: &u32| *pass > 0);
                once(&mut pass, "pass", number.ok_or_else(|| FaultParseError::Pass(value.to_owned()))?)?;
            }
            "kind" => {
                let named = match value {
                    "req" => PacketKind::Request,
                    "resp" => PacketKind::Response,
                    _ => return Err(FaultParseError::PacketKind(value.to_owned())),
                };
                once(&mut kind, "kind", named)?;
            }
            _ => return Err(FaultParseError::Key(part.to_owned())),
        }
    }
    let psn = psn.ok_or_else(|| FaultParseError::NoPsn(text.to_owned()))?;
    Ok(Address { qp, psn, pass: pass.unwrap_or(1), kind })
}

fn once<T>(slot: &mut Option<T>, key: &'static str, value: T) -> Result<(), FaultParseError> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(FaultParseError::Twice(key)),
    }
}

fn parse_24(text: &str, what: &'static str) -> Result<u32, FaultParseError> {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed
        .ok()
        .filter(|value| *value <= MASK24 && !text.starts_with('+'))
        .ok_or_else(|| FaultParseError::Number(what, text.to_owned()))
}

/// Reads a decimal number and its unit (ns, us, ms or s), such as `2ms` or `0.5s`.
#[must_use]
pub fn parse_time(text: &str) -> Option<Duration> {
    let unit_at = text.find(|c: char| c.is_ascii_alphabetic())?;
    let (digits, unit) = text.split_at(unit_at);
    let nanos_per_unit = match unit {
        "ns" => 1.0,
        "us" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => return None,
    };
    let value = digits.parse::<f64>().ok().filter(|value| value.is_finite() && *value >= 0.0)?;
    core::time::Duration::try_from_secs_f64(value * nanos_per_unit / 1e9).ok().map(Duration::from)
}

impl fmt::Display for FaultSpec {
    /// The option and its argument, as [`FaultSpec::parse`] reads it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let direction = match self.direction {
            Direction::Tx => "tx",
            Direction::Rx => "rx",
        };
        write!(f, "{} {direction}:", self.kind.flag())?;
        match self.when {
            When::Chance(p) => write!(f, "{}", p.value())?,
            When::At(address) => {
                if let Some(qp) = address.qp {
                    write!(f, "qp={},", qp.value())?;
                }
                match address.psn {
                    PsnRule::Absolute(psn) => write!(f, "psn={psn}")?,
                    PsnRule::FromFirst(offset) => write!(f, "psn=+{offset}")?,
                }
                write!(f, ",pass={}", address.pass)?;
                match address.kind {
                    Some(PacketKind::Request) => f.write_str(",kind=req")?,
                    Some(PacketKind::Response) => f.write_str(",kind=resp")?,
                    None => {}
                }
            }
        }
        if self.kind == FaultKind::Delay {
            write!(f, ":{}ns", self.delay.as_nanos())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(argument: &str) -> FaultSpec {
        FaultSpec::parse(FaultKind::Drop, argument).unwrap()
    }

    fn error(kind: FaultKind, argument: &str) -> String {
        FaultSpec::parse(kind, argument).unwrap_err().to_string()
    }

    #[test]
    fn probabilities_are_numbers_or_percentages_and_tx_is_the_default() {
        let one_percent = |direction| FaultSpec::chance(FaultKind::Drop, direction, 0.01).unwrap();
        assert_eq!(parse("0.01"), one_percent(Direction::Tx));
        assert_eq!(parse("tx:1%"), one_percent(Direction::Tx));
        assert_eq!(parse("rx:1%"), one_percent(Direction::Rx));
        assert_eq!(parse("1").when, When::Chance(Probability::ONE));
        assert_eq!(parse("100%").when, When::Chance(Probability::ONE));
    }

    #[test]
    fn addresses_name_queue_pair_psn_and_pass() {
        let spec = parse("rx:qp=0x11,psn=+3,pass=2");
        let address = Address { qp: Some(Qpn::new(0x11)), psn: PsnRule::FromFirst(3), pass: 2, kind: None };
        assert_eq!((spec.direction, spec.when), (Direction::Rx, When::At(address)));
        let spec = parse("psn=16777215,kind=resp");
        let address = Address {
            qp: None,
            psn: PsnRule::Absolute(Psn::new(MASK24)),
            pass: 1,
            kind: Some(PacketKind::Response),
        };
        assert_eq!(spec.when, When::At(address));
    }

    #[test]
    fn delays_end_with_a_time() {
        let delay = |argument| FaultSpec::parse(FaultKind::Delay, argument).unwrap();
        assert_eq!(delay("2ms").delay, Duration::from_millis(2));
        assert_eq!(delay("2ms").when, When::Chance(Probability::ONE));
        assert_eq!(
            (delay("rx:2ms").direction, delay("rx:2ms").delay),
            (Direction::Rx, Duration::from_millis(2))
        );
        assert_eq!(delay("tx:5%:1.5us").delay, Duration::from_nanos(1500));
        assert_eq!(delay("qp=7,psn=+1,pass=1:1s").delay, Duration::from_secs(1));
    }

    #[test]
    fn errors_say_what_would_be_right() {
        for bad in ["", "1.5", "-0.1", "nan", "101%", "tx:", "one", "up:1%"] {
            assert!(error(FaultKind::Drop, bad).contains("0% to 100%"), "{bad}");
        }
        assert!(error(FaultKind::Drop, "qp=3").contains("psn=+N"));
        assert!(error(FaultKind::Drop, "qp=3,psn").contains("\"psn\" is no part"));
        assert!(error(FaultKind::Drop, "port=3,psn=1").contains("\"port=3\" is no part"));
        assert!(error(FaultKind::Drop, "psn=1,psn=2").contains("psn= is given twice"));
        assert!(error(FaultKind::Drop, "psn=16777216").contains("0 to 16777215"));
        assert!(error(FaultKind::Drop, "psn=++1").contains("no packet number"));
        assert!(error(FaultKind::Drop, "qp=x,psn=1").contains("no queue pair number"));
        assert!(error(FaultKind::Drop, "psn=1,pass=0").contains("1 is the first"));
        assert!(error(FaultKind::Drop, "psn=1,kind=ack").contains("req or resp"));
        for bad in ["", "1%", "2", "1%:2", "2min", "1%:-2ms", "ms"] {
            assert!(error(FaultKind::Delay, bad).contains("2ms"), "{bad}");
        }
    }

    fn address() -> impl Strategy<Value = Address> {
        let psn = prop_oneof![
            (0..=MASK24).prop_map(|n| PsnRule::Absolute(Psn::new(n))),
            (0..=MASK24).prop_map(PsnRule::FromFirst),
        ];
        let kind = prop::option::of(prop_oneof![Just(PacketKind::Request), Just(PacketKind::Response)]);
        (prop::option::of((0..=MASK24).prop_map(Qpn::new)), psn, 1..u32::MAX, kind)
            .prop_map(|(qp, psn, pass, kind)| Address { qp, psn, pass, kind })
    }

    proptest! {
        #[test]
        fn what_is_printed_parses_to_the_same(
            kind in prop::sample::select(FaultKind::ALL.to_vec()),
            direction in prop_oneof![Just(Direction::Tx), Just(Direction::Rx)],
            when in prop_oneof![
                (0.0..=1.0).prop_map(|p| When::Chance(Probability(p))),
                address().prop_map(When::At),
            ],
            nanos in 0..10_000_000_u64,
        ) {
            let delay = Duration::from_nanos(if kind == FaultKind::Delay { nanos } else { 0 });
            let spec = FaultSpec { kind, direction, when, delay };
            let printed = spec.to_string();
            let (flag, argument) = printed.split_once(' ').unwrap();
            prop_assert_eq!(flag, kind.flag());
            prop_assert_eq!(FaultSpec::parse(kind, argument).unwrap(), spec);
        }

        #[test]
        fn no_argument_panics(argument in "\\PC*", kind in prop::sample::select(FaultKind::ALL.to_vec())) {
            let _ = FaultSpec::parse(kind, &argument);
        }
    }
}
