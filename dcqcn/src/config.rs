//! Congestion control as a file says it.
//!
//! ```toml
//! cc = "dcqcn"           # off, dcqcn, rate=200M or timely
//! profile = "connectx"   # or "paper": what the keys of [dcqcn] start from
//! dilation = 1           # times as slow, for slow machines; burst_us is of real time and stays
//! burst_us = 100         # what a late sender may catch up on
//!
//! [dcqcn]
//! rpg_ai_rate = 5
//! dce_tcp_g = { register = 1019 }
//!
//! [timely]
//! t_low = 50
//! ```

use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};
use wire::Duration;

use crate::controller::Algorithm;
use crate::keys::{Key, nanos};
use crate::params::{Params, Profile};
use crate::rate::Rate;
use crate::timely::TimelyParams;

/// Congestion control of a device.
#[derive(Clone, Debug, PartialEq)]
pub struct CcConfig {
    /// The algorithm of each queue pair.
    pub algorithm: Algorithm,
    /// Parameters of DCQCN.
    pub params: Arc<Params>,
    /// Parameters of TIMELY.
    pub timely: Arc<TimelyParams>,
    /// How much time of sending a queue pair that was late may catch up on; a burst is as much at the rate.
    pub burst: Duration,
}

/// What is wrong with a configuration, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
#[non_exhaustive]
pub struct ConfigError {
    /// The line, from 1.
    pub line: usize,
    /// The key that is meant, if one is.
    pub key: Option<String>,
    /// What is wrong and what would be right.
    pub what: String,
}

impl Default for CcConfig {
    /// Off; with the parameters of the NIC's profile for when it is switched on, and a burst time that outlasts the
    /// wake-ups of an operating system, on a busy machine too. Simulations want none.
    fn default() -> Self {
        Self {
            algorithm: Algorithm::Off,
            params: Arc::new(Params::CONNECTX),
            timely: Arc::new(TimelyParams::PAPER),
            burst: Duration::from_millis(1),
        }
    }
}

impl CcConfig {
    /// Reads the TOML `text`. What it does not say stays as in [`CcConfig::default`], and as the profile it names.
    ///
    /// # Errors
    /// The first thing that is wrong: no TOML, an unknown key, a value of the wrong kind or out of its range.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        check_text(text)?;
        let table = DeTable::parse(text).map_err(|error| ConfigError {
            line: line(text, error.span().map_or(0, |span| span.start)),
            key: None,
            what: error.message().lines().next().unwrap_or_default().to_owned(),
        })?;
        Reader { text }.config(table.get_ref())
    }
}

/// Longest text that is read.
const LONGEST: usize = 1 << 20;
/// Most dots in a line. The parts of a key are tables within tables, and cost the parser time and stack.
const MOST_DOTS: usize = 128;

/// Refuses TOML that is not worth reading: far longer than any that somebody writes, or with keys of very many parts.
///
/// # Errors
/// Which line it is, and what would be right.
pub fn check_text(text: &str) -> Result<(), ConfigError> {
    let wrong = |line, what| Err(ConfigError { line, key: None, what });
    if text.len() > LONGEST {
        return wrong(1, format!("this is {} bytes long: a file has at most {LONGEST}", text.len()));
    }
    let dots = |line: &str| line.bytes().filter(|byte| *byte == b'.').count();
    match text.lines().position(|line| dots(line) > MOST_DOTS) {
        Some(at) => {
            wrong(at + 1, format!("there are more dots in this line than {MOST_DOTS}; break it into several"))
        }
        None => Ok(()),
    }
}

type Entry<'a> = (&'a Spanned<std::borrow::Cow<'a, str>>, &'a Spanned<DeValue<'a>>);

struct Reader<'a> {
    text: &'a str,
}

impl Reader<'_> {
    fn config(&self, table: &DeTable<'_>) -> Result<CcConfig, ConfigError> {
        let mut config = CcConfig::default();
        let mut params = *config.params;
        let mut dilation = 1.0;
        // The profile is what the other keys change, wherever it stands.
        if let Some((key, value)) = table.get_key_value("profile") {
            params = match word(value) {
                Some("paper") => Params::of(Profile::Paper),
                Some("connectx") => Params::of(Profile::Connectx),
                _ => return Err(self.out_of_range((key, value), "one of paper, connectx")),
            };
        }
        for entry in table.iter() {
            match entry.0.get_ref().as_ref() {
                "cc" => {
                    let text = word(entry.1).ok_or_else(|| self.out_of_range(entry, "a word in quotes"))?;
                    config.algorithm = text.parse().map_err(|_| {
                        let forms = Algorithm::FORMS.map(|(form, _)| form);
                        let forms = forms.join(", ");
                        self.out_of_range(entry, &format!("one of {forms}; a rate is {}", Rate::RANGE))
                    })?;
                }
                "profile" => {}
                "dilation" => dilation = self.number(entry, (1.0, 1e6), "1 to 1000000")?,
                "burst_us" => config.burst = nanos(self.number(entry, (0.0, 1e6), "0 to 1000000 us")? * 1e3),
                "dcqcn" => self.dcqcn(self.table(entry)?, &mut params)?,
                "timely" => {
                    let timely = self.timely(entry)?;
                    config.timely = Arc::new(timely);
                }
                _ => {
                    return Err(
                        self.unknown(entry, ["cc", "profile", "dilation", "burst_us", "dcqcn", "timely"])
                    );
                }
            }
        }
        params.check().map_err(|error| ConfigError {
            line: self.line_of_key(table, error.key),
            key: Some(error.key.to_owned()),
            what: error.to_string(),
        })?;
        config.params = Arc::new(params);
        if dilation != 1.0 {
            config.params = Arc::new(params.dilated(dilation));
            config.timely = Arc::new(config.timely.dilated(dilation));
        }
        Ok(config)
    }

    fn dcqcn(&self, table: &DeTable<'_>, params: &mut Params) -> Result<(), ConfigError> {
        for entry in table.iter() {
            let Some(key) = Key::named(entry.0.get_ref()) else {
                return Err(self.unknown(entry, Key::ALL.iter().map(|key| key.name)));
            };
            let set = match entry.1.get_ref() {
                DeValue::Boolean(flag) => key.set_flag(params, *flag),
                DeValue::String(word) => key.set_word(params, word),
                DeValue::Table(register) => {
                    let number = self.register(entry, key, register)?;
                    key.set_number(params, number)
                }
                value => number(value).map_or(Err(crate::keys::NotThis), |n| key.set_number(params, n)),
            };
            set.map_err(|_| self.out_of_range(entry, &key.range()))?;
        }
        Ok(())
    }

    /// The number that `{ register = … }` stands for.
    fn register(&self, entry: Entry<'_>, key: &Key, table: &DeTable<'_>) -> Result<f64, ConfigError> {
        let raw = table.get("register").filter(|_| table.len() == 1).and_then(|raw| number(raw.get_ref()));
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "checked to be a whole number"
        )]
        let raw =
            raw.filter(|raw| (0.0..=65_535.0).contains(raw) && raw.fract() == 0.0).map(|raw| raw as u32);
        raw.and_then(|raw| key.from_register(raw)).ok_or_else(|| {
            let registers = "{ register = n } only for dce_tcp_g and initial_alpha_value (n 0 to 1024) and \
                             rpg_byte_reset (n 1 to 32767)";
            self.out_of_range(entry, &format!("{}, or {registers}", key.range()))
        })
    }

    fn timely(&self, whole: Entry<'_>) -> Result<TimelyParams, ConfigError> {
        let mut params = TimelyParams::PAPER;
        let table = self.table(whole)?;
        for entry in table.iter() {
            let time =
                || self.number(entry, (0.001, 1e9), "0.001 to 1000000000 us").map(|us| nanos(us * 1e3));
            let rate =
                || self.number(entry, (0.000_001, 1e7), "0.000001 to 10000000 Mb/s").map(Rate::from_mbps);
            let share = || self.number(entry, (0.0, 1.0), "0 to 1");
            match entry.0.get_ref().as_ref() {
                "ewma_alpha" => params.ewma_alpha = share()?,
                "t_low" => params.t_low = time()?,
                "t_high" => params.t_high = time()?,
                "min_rtt" => params.min_rtt = time()?,
                "hai_thresh" => {
                    let range = "a whole number, 1 to 1000";
                    let number = self.number(entry, (1.0, 1e3), range)?;
                    if number.fract() != 0.0 {
                        return Err(self.out_of_range(entry, range));
                    }
                    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "1 to 1000")]
                    let samples = number as u32;
                    params.hai_thresh = samples;
                }
                "additive_increment" => params.additive_increment = rate()?,
                "decrease_factor" => params.decrease_factor = share()?,
                "min_rate" => params.min_rate = rate()?,
                _ => {
                    let known = [
                        "ewma_alpha",
                        "t_low",
                        "t_high",
                        "min_rtt",
                        "hai_thresh",
                        "additive_increment",
                        "decrease_factor",
                        "min_rate",
                    ];
                    return Err(self.unknown(entry, known));
                }
            }
        }
        if params.t_low > params.t_high {
            let (low, high) = (params.t_low.as_nanos() as f64 / 1e3, params.t_high.as_nanos() as f64 / 1e3);
            let given = |key| table.get_key_value(key);
            let error = match (given("t_low"), given("t_high")) {
                (Some(entry), _) => self.out_of_range(entry, &format!("at most t_high, {high} us")),
                (_, entry) => self.out_of_range(entry.unwrap_or(whole), &format!("at least t_low, {low} us")),
            };
            return Err(error);
        }
        Ok(params)
    }

    fn table<'e>(&self, entry: Entry<'e>) -> Result<&'e DeTable<'e>, ConfigError> {
        match entry.1.get_ref() {
            DeValue::Table(table) => Ok(table),
            _ => Err(self.out_of_range(entry, "a table")),
        }
    }

    fn number(&self, entry: Entry<'_>, (least, most): (f64, f64), range: &str) -> Result<f64, ConfigError> {
        number(entry.1.get_ref())
            .filter(|number| (least..=most).contains(number))
            .ok_or_else(|| self.out_of_range(entry, range))
    }

    fn out_of_range(&self, (key, value): Entry<'_>, range: &str) -> ConfigError {
        // A list or text may be of several lines, a message is of one.
        let mut lines = self.text.get(value.span()).unwrap_or("this").lines();
        let (written, more) =
            (lines.next().unwrap_or("this"), if lines.next().is_some() { " …" } else { "" });
        ConfigError {
            line: line(self.text, key.span().start),
            key: Some(key.get_ref().to_string()),
            what: format!("{} = {written}{more}: it must be {range}", key.get_ref()),
        }
    }

    fn unknown<'k>(&self, (key, _): Entry<'_>, known: impl IntoIterator<Item = &'k str>) -> ConfigError {
        let known: Vec<&str> = known.into_iter().collect();
        ConfigError {
            line: line(self.text, key.span().start),
            key: Some(key.get_ref().to_string()),
            what: format!("there is no key {}; the keys here are {}", key.get_ref(), known.join(", ")),
        }
    }

    /// The line of `key` of DCQCN; where it is not there, that of the profile that has it.
    fn line_of_key(&self, table: &DeTable<'_>, key: &str) -> usize {
        let in_dcqcn = match table.get("dcqcn").map(Spanned::get_ref) {
            Some(DeValue::Table(dcqcn)) => dcqcn.get_key_value(key),
            _ => None,
        };
        let found = in_dcqcn.or_else(|| table.get_key_value("profile"));
        found.map_or(1, |(key, _)| line(self.text, key.span().start))
    }
}

fn word<'v>(value: &'v Spanned<DeValue<'_>>) -> Option<&'v str> {
    match value.get_ref() {
        DeValue::String(word) => Some(word),
        _ => None,
    }
}

/// The value as a number; `None` where it is none.
fn number(value: &DeValue<'_>) -> Option<f64> {
    match value {
        // Underscores are gone; other bases than ten are nothing that a rate or time is written in.
        DeValue::Integer(integer) => integer.to_string().parse().ok(),
        DeValue::Float(float) => float.to_string().parse().ok(),
        _ => None,
    }
}

/// The line of the byte `at`, from 1.
fn line(text: &str, at: usize) -> usize {
    1 + text.bytes().take(at).filter(|byte| *byte == b'\n').count()
}

#[cfg(test)]
mod tests;
