//! A rate in bits per second, as text and as a number.

use core::fmt;
use core::str::FromStr;

/// Bits per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Rate(f64);

/// Text that is no rate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is no rate: a number with k, M or G, in bits per second, as in 200M or 2.5G, is wanted, {} in all",
    Rate::RANGE
)]
#[non_exhaustive]
pub struct RateError {
    /// The text.
    pub text: String,
}

impl Rate {
    /// No rate; as a parameter, none that is set.
    pub const ZERO: Self = Self(0.0);
    /// What text may say, in words.
    pub(crate) const RANGE: &'static str = "1k to 10000G";

    /// `bps` bits per second; what is negative or no number counts as 0.
    #[must_use]
    pub const fn from_bps(bps: f64) -> Self {
        // `max` also turns what is no number into 0.
        Self(bps.max(0.0))
    }

    /// `mbps` million bits per second.
    #[must_use]
    pub const fn from_mbps(mbps: f64) -> Self {
        Self::from_bps(mbps * 1e6)
    }

    /// `gbps` thousand million bits per second.
    #[must_use]
    pub const fn from_gbps(gbps: f64) -> Self {
        Self::from_bps(gbps * 1e9)
    }

    /// Bits per second.
    #[must_use]
    pub const fn bps(self) -> f64 {
        self.0
    }

    /// Million bits per second.
    #[must_use]
    pub const fn mbps(self) -> f64 {
        self.0 / 1e6
    }

    /// Thousand million bits per second.
    #[must_use]
    pub const fn gbps(self) -> f64 {
        self.0 / 1e9
    }
}

impl fmt::Display for Rate {
    /// With the unit that leaves a number of 1 to 1000, as [`Rate::from_str`] reads it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (value, unit) = match self.0 {
            bps if bps >= 1e9 => (bps / 1e9, "G"),
            bps if bps >= 1e6 => (bps / 1e6, "M"),
            bps if bps >= 1e3 => (bps / 1e3, "k"),
            bps => (bps, ""),
        };
        write!(f, "{value}{unit}")
    }
}

impl FromStr for Rate {
    type Err = RateError;

    /// Reads `2.5G`, `200M`, `64k` or plain bits per second; `bit`, `bit/s`, `b/s` and `bps` may follow.
    fn from_str(text: &str) -> Result<Self, RateError> {
        let wrong = || RateError { text: text.to_owned() };
        let bare = ["bit/s", "b/s", "bps", "bit"]
            .iter()
            .find_map(|unit| text.strip_suffix(unit))
            .unwrap_or(text)
            .trim_end();
        let (number, scale) = match bare.as_bytes().last() {
            Some(b'G' | b'g') => (&bare[..bare.len() - 1], 1e9),
            Some(b'M' | b'm') => (&bare[..bare.len() - 1], 1e6),
            Some(b'k' | b'K') => (&bare[..bare.len() - 1], 1e3),
            _ => (bare, 1.0),
        };
        let value: f64 = number.trim().parse().map_err(|_| wrong())?;
        let bps = value * scale;
        if (1e3..=1e13).contains(&bps) { Ok(Self(bps)) } else { Err(wrong()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_as_they_are_printed() {
        for (text, bps) in [
            ("2.5G", 2.5e9),
            ("200Mbit/s", 200e6),
            ("64 kbps", 64e3),
            ("1700", 1.7e3),
            ("1g", 1e9),
            ("10000G", 1e13),
        ] {
            let rate: Rate = text.parse().unwrap();
            assert_eq!(rate.bps(), bps, "{text}");
            assert_eq!(rate.to_string().parse::<Rate>().unwrap(), rate);
        }
        assert_eq!(Rate::from_gbps(2.5).to_string(), "2.5G");
    }

    #[test]
    fn what_is_no_rate_is_refused() {
        for text in [
            "",
            "G",
            "-1M",
            "0",
            "nan",
            "inf",
            "1e400",
            "999",
            "1e-300",
            "10001G",
            "1e30G",
            "12 parsecs",
            "é",
        ] {
            let error = text.parse::<Rate>().unwrap_err();
            assert_eq!(error.text, text);
            assert!(error.to_string().contains("200M"));
        }
        assert_eq!(Rate::from_bps(f64::NAN), Rate::ZERO);
        assert_eq!(Rate::from_bps(-3.0), Rate::ZERO);
    }
}
