//! The keys of the parameters: the vendor's name, unit, range and source of each. One table for reading and checking
//! configurations and for explaining them.

use wire::Duration;

use crate::params::{AlphaOrder, CnpScope, NpMode, Params, StageTest};
use crate::rate::Rate;

/// The value of a parameter as a configuration has it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// A number in the key's unit.
    Number(f64),
    /// On or off.
    Flag(bool),
    /// One of some words.
    Word(&'static str),
}

/// A parameter as users see it.
#[derive(Debug)]
pub struct Key {
    /// The vendor's name where there is one.
    pub name: &'static str,
    /// What it does.
    pub meaning: &'static str,
    /// Unit of its numbers; empty for none.
    pub unit: &'static str,
    /// Where its meaning and defaults are from.
    pub source: &'static str,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Number { least: f64, most: f64, whole: bool, get: fn(&Params) -> f64, set: fn(&mut Params, f64) },
    Flag { get: fn(&Params) -> bool, set: fn(&mut Params, bool) },
    Word { words: &'static [&'static str], get: fn(&Params) -> usize, set: fn(&mut Params, usize) },
}

/// Why a value cannot be set.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NotThis;

impl Key {
    /// All keys, in the order in which they are explained.
    pub const ALL: &'static [Self] = KEYS;

    /// The key of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        KEYS.iter().find(|key| key.name == name)
    }

    /// What `params` has for it.
    #[must_use]
    pub fn value(&self, params: &Params) -> Value {
        match self.kind {
            Kind::Number { get, .. } => Value::Number(get(params)),
            Kind::Flag { get, .. } => Value::Flag(get(params)),
            Kind::Word { words, get, .. } => Value::Word(words[get(params)]),
        }
    }

    /// What it may be, in words.
    #[must_use]
    pub fn range(&self) -> String {
        let unit = if self.unit.is_empty() { String::new() } else { format!(" {}", self.unit) };
        match self.kind {
            Kind::Number { least, most, whole, .. } => {
                let whole = if whole { "a whole number, " } else { "" };
                format!("{whole}{least} to {most}{unit}")
            }
            Kind::Flag { .. } => "true or false".into(),
            Kind::Word { words, .. } => format!("one of {}", words.join(", ")),
        }
    }

    /// Whether the number is in its range.
    pub(crate) fn holds(&self, number: f64) -> bool {
        match self.kind {
            Kind::Number { least, most, whole, .. } => {
                (least..=most).contains(&number) && (!whole || number.fract() == 0.0)
            }
            _ => false,
        }
    }

    pub(crate) fn set_number(&self, params: &mut Params, number: f64) -> Result<(), NotThis> {
        match self.kind {
            Kind::Number { set, .. } if self.holds(number) => {
                set(params, number);
                Ok(())
            }
            _ => Err(NotThis),
        }
    }

    pub(crate) fn set_flag(&self, params: &mut Params, flag: bool) -> Result<(), NotThis> {
        let Kind::Flag { set, .. } = self.kind else { return Err(NotThis) };
        set(params, flag);
        Ok(())
    }

    pub(crate) fn set_word(&self, params: &mut Params, word: &str) -> Result<(), NotThis> {
        let Kind::Word { words, set, .. } = self.kind else { return Err(NotThis) };
        let at = words.iter().position(|known| *known == word).ok_or(NotThis)?;
        set(params, at);
        Ok(())
    }

    /// The number that the register value `raw` stands for; `None` where the register is not of 10 or 16 bits as it
    /// should be, and for keys whose value in registers is the same.
    #[must_use]
    pub fn from_register(&self, raw: u32) -> Option<f64> {
        let raw = f64::from(raw);
        match self.name {
            // The register is the weight of the old alpha.
            "dce_tcp_g" => (raw <= 1024.0).then(|| (1024.0 - raw) / 1024.0),
            "initial_alpha_value" => (raw <= 1024.0).then(|| raw / 1024.0),
            // The reading that fits other vendors' profiles: units of 64 bytes.
            "rpg_byte_reset" => (1.0..=32_767.0).contains(&raw).then_some(raw * 64.0),
            _ => None,
        }
    }
}

/// `nanos` nanoseconds, rounded; negative ones are none.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "floats saturate, which is wanted"
)]
pub(crate) fn nanos(nanos: f64) -> Duration {
    Duration::from_nanos(nanos.round() as u64)
}

fn micros(span: Duration) -> f64 {
    span.as_nanos() as f64 / 1e3
}

/// An hour: no period is longer.
const LONG: f64 = 3.6e9;
/// Rates of up to 10 Tb/s.
const FAST: f64 = 1e7;

/// A number of the given field, which goes in and out by the given conversions.
macro_rules! number {
    ($field:ident: $least:literal to $most:expr, $to:expr, $from:expr) => {
        Kind::Number {
            least: $least,
            most: $most,
            whole: false,
            get: |p| $to(p.$field),
            set: |p, value| p.$field = $from(value),
        }
    };
}

macro_rules! time {
    ($field:ident from $least:literal) => {
        number!($field: $least to LONG, micros, |us: f64| nanos(us * 1e3))
    };
}

macro_rules! rate {
    ($field:ident from $least:literal) => {
        number!($field: $least to FAST, Rate::mbps, Rate::from_mbps)
    };
}

macro_rules! count {
    ($field:ident: $type:ty, $least:literal to $most:literal) => {
        Kind::Number {
            least: $least,
            most: $most,
            whole: true,
            get: |p| p.$field as f64,
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "in a range of the type's"
            )]
            set: |p, value| p.$field = value as $type,
        }
    };
}

macro_rules! flag {
    ($field:ident) => {
        Kind::Flag { get: |p| p.$field, set: |p, on| p.$field = on }
    };
}

macro_rules! word {
    ($field:ident: $($word:literal = $value:path),+) => {
        Kind::Word {
            words: &[$($word),+],
            get: |p| [$($value),+].iter().position(|value| *value == p.$field).unwrap_or(0),
            set: |p, at| p.$field = [$($value),+][at],
        }
    };
}

macro_rules! keys {
    ($($name:literal, $meaning:literal, $unit:literal, $source:literal, $kind:expr;)+) => {
        pub(crate) static KEYS: &[Key] = &[$(Key {
            name: $name, meaning: $meaning, unit: $unit, source: $source, kind: $kind,
        }),+];
    };
}

keys! {
    "dce_tcp_g", "gain of alpha; as a register, 1024 times the weight of the old alpha", "",
        "paper 1/256; vendor page 1019, that is 5/1024", number!(alpha_g: 0.0 to 1.0, f64::from, f64::from);
    "dce_tcp_rtt", "period of the update of alpha; in the paper, the silence after which it decays", "us",
        "paper 55; vendor page 1", time!(alpha_period from 0.001);
    "initial_alpha_value", "alpha at the first CNP; as a register, in 1024ths", "",
        "paper 1; vendor page 1023", number!(alpha_init: 0.0 to 1.0, f64::from, f64::from);
    "alpha_10_bits", "count alpha in 1024ths and round down", "",
        "our option", flag!(alpha_10_bits);
    "alpha_order", "what a CNP does first in the profile paper", "",
        "paper cut_first; its authors' simulator alpha_first",
        word!(alpha_order: "cut_first" = AlphaOrder::CutFirst, "alpha_first" = AlphaOrder::AlphaFirst);
    "rate_reduce_monitor_period", "period after which a CNP cuts; 0 in the profile paper", "us",
        "vendor page 4", time!(cut_period from 0.0);
    "rate_to_set_on_first_cnp", "rate at the first CNP instead of a cut; 0 for none", "Mb/s",
        "vendor page 0", rate!(first_cnp_rate from 0.0);
    "rpg_gd", "a cut takes alpha / 2^(this - 10)", "",
        "vendor page 11", count!(cut_shift: u8, 10.0 to 20.0);
    "rpg_min_dec_fac", "what one cut leaves of the rate at least", "%",
        "vendor page 50", count!(min_dec_fac: u8, 0.0 to 100.0);
    "rpg_min_rate", "lowest rate", "Mb/s",
        "vendor page 1; the paper's authors' simulator 100", rate!(min_rate from 0.000001);
    "rpg_max_rate", "highest rate; 0 for the port's", "Mb/s",
        "vendor page 0", rate!(max_rate from 0.0);
    "rpg_time_reset", "period of the increase timer", "us",
        "paper 55; vendor page 300", time!(time_reset from 0.001);
    "rpg_byte_reset", "bytes between increases; as a register, in units of 64 (its unit is disputed)", "B",
        "paper 10 MB; vendor page 32767", count!(byte_reset_bytes: u64, 1.0 to 1000000000000.0);
    "rpg_threshold", "increases before the next phase", "",
        "paper 5; vendor page 1", count!(threshold: u32, 1.0 to 31.0);
    "stage_test", "whether a stage is tested before or after it is counted up", "",
        "paper's fluid model before; its authors' simulator after",
        word!(stage_test: "before" = StageTest::Before, "after" = StageTest::After);
    "rpg_ai_rate", "additive increase", "Mb/s",
        "paper 40; vendor page 5", rate!(ai_rate from 0.0);
    "rpg_hai_rate", "hyper increase", "Mb/s",
        "the paper's authors' simulator 200; vendor page 50", rate!(hai_rate from 0.0);
    "hyper_multiplier", "a hyper increase grows with each stage past the threshold", "",
        "paper true; public simulators of the NIC false", flag!(hyper_multiplier);
    "clamp_tgt_rate", "every cut lowers the target rate too", "",
        "paper true by its equations; vendor page false", flag!(clamp_tgt_rate);
    "clamp_tgt_rate_after_time_inc", "a cut after an increase by the timer lowers the target rate too", "",
        "vendor page true", flag!(clamp_tgt_rate_after_time_inc);
    "release_at_line", "a queue pair that is back at the highest rate is as before its first CNP", "",
        "one source, for the NIC", flag!(release_at_line);
    "np_mode", "whether a mark is answered at once or at the end of a window", "",
        "paper immediate; its authors' simulator window",
        word!(np_mode: "immediate" = NpMode::Immediate, "window" = NpMode::Window);
    "min_time_between_cnps", "least time between CNPs of one scope; 0 for one per mark", "us",
        "paper 50; public firmware settings 0, 2 or 4", time!(cnp_interval from 0.0);
    "cnp_scope", "what the time between CNPs is kept for", "",
        "NICs differ, as a public NIC test shows",
        word!(cnp_scope: "qp" = CnpScope::Qp, "ip_pair" = CnpScope::IpPair, "dest_ip" = CnpScope::DestIp,
            "port" = CnpScope::Port);
    "cnp_flows", "scopes that are remembered at the same time", "",
        "our option", count!(cnp_flows: u32, 4.0 to 1048576.0);
    "cnp_dscp", "DSCP of CNPs", "",
        "vendor page 48", count!(cnp_dscp: u8, 0.0 to 63.0);
    "cnp_ecn", "ECN bits of CNPs", "",
        "2 in a capture of the NIC", count!(cnp_ecn: u8, 0.0 to 3.0);
    "cnp_802p_prio", "priority of CNPs in a VLAN tag; no effect, since none is sent", "",
        "vendor page 6", count!(cnp_802p_prio: u8, 0.0 to 7.0);
    "cnp_for_ud", "marked datagrams are answered too", "",
        "our option; not documented for NICs", flag!(cnp_for_ud);
    "nack_triggers_cnp", "the NAK of a gap in the sequence comes with a CNP", "",
        "some NICs, as a public NIC test shows", flag!(nack_triggers_cnp);
    "roce_cc_prio_mask", "priorities that take part, bit i for priority i", "",
        "public firmware settings 255", count!(cc_prio_mask: u8, 0.0 to 255.0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_takes_what_it_gives() {
        for from in [Params::PAPER, Params::CONNECTX] {
            let mut to = if from == Params::PAPER { Params::CONNECTX } else { Params::PAPER };
            to.profile = from.profile;
            for key in Key::ALL {
                let set = match key.value(&from) {
                    Value::Number(number) => key.set_number(&mut to, number),
                    Value::Flag(flag) => key.set_flag(&mut to, flag),
                    Value::Word(word) => key.set_word(&mut to, word),
                };
                assert_eq!(set, Ok(()), "{}", key.name);
                assert_eq!(key.value(&to), key.value(&from), "{}", key.name);
            }
            assert_eq!(to, from);
        }
    }

    #[test]
    fn names_are_unique_and_the_ends_of_ranges_fit_their_types() {
        for (at, key) in KEYS.iter().enumerate() {
            assert!(KEYS[..at].iter().all(|other| other.name != key.name), "{}", key.name);
            let Kind::Number { least, most, .. } = key.kind else { continue };
            let mut params = Params::PAPER;
            for end in [least, most] {
                assert_eq!(key.set_number(&mut params, end), Ok(()), "{}", key.name);
                let Value::Number(back) = key.value(&params) else { panic!("{} is no number", key.name) };
                assert!((back - end).abs() <= end * 1e-12, "{}: {end} came back as {back}", key.name);
            }
            let below = if least == 0.0 { -1.0 } else { least / 2.0 };
            for beyond in [below, most * 2.0, f64::NAN] {
                assert_eq!(key.set_number(&mut params, beyond), Err(NotThis), "{} {beyond}", key.name);
            }
        }
    }

    #[test]
    fn the_wrong_kind_of_value_is_refused() {
        let mut params = Params::PAPER;
        let (number, flag, word) = (
            Key::named("rpg_gd").unwrap(),
            Key::named("clamp_tgt_rate").unwrap(),
            Key::named("np_mode").unwrap(),
        );
        assert_eq!(number.set_number(&mut params, 11.5), Err(NotThis));
        assert_eq!(number.set_flag(&mut params, true), Err(NotThis));
        assert_eq!(flag.set_number(&mut params, 1.0), Err(NotThis));
        assert_eq!(word.set_word(&mut params, "sometimes"), Err(NotThis));
        assert_eq!(word.range(), "one of immediate, window");
        assert_eq!(params, Params::PAPER);
    }

    #[test]
    fn registers_are_converted_and_never_guessed() {
        let from = |name, raw| Key::named(name).unwrap().from_register(raw);
        assert_eq!(from("dce_tcp_g", 1019), Some(Params::CONNECTX.alpha_g));
        assert_eq!(from("dce_tcp_g", 1025), None);
        assert_eq!(from("initial_alpha_value", 1023), Some(Params::CONNECTX.alpha_init));
        assert_eq!(from("rpg_byte_reset", 32_767), Some(2_097_088.0));
        assert_eq!(from("rpg_time_reset", 300), None);
    }
}
