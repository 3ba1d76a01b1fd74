//! The table `[cc]`: handed to the reader of congestion control as a file of its own, in which each line knows where
//! it came from.

use std::fmt::Write;

use dcqcn::{Algorithm, CcConfig, Rate};
use wire::Duration;

use super::section::Section;
use super::tree::{Node, Table, Value};
use super::{Place, ScenarioError};

/// The text that the reader is given, and where each of its lines is from.
struct Text {
    text: String,
    origin: Vec<Place>,
}

impl Text {
    fn line(&mut self, place: Place, line: impl std::fmt::Display) {
        // Writing to a string does not fail.
        let _ = writeln!(self.text, "{line}");
        self.origin.push(place);
    }
}

/// Reads `[cc]`, whose times and rates are dilated by `dilation`. Its defaults are those of the lab: DCQCN with the
/// parameters of the paper, no bursts, and queue pairs that are not forgotten when they are back at the line's rate.
pub(super) fn read(section: &Section<'_>, dilation: f64) -> Result<CcConfig, ScenarioError> {
    let here = section.place_of("");
    let mut text = Text { text: String::new(), origin: Vec::new() };
    text.line(here.clone(), format_args!("dilation = {dilation:?}"));
    for (key, default) in
        [("algorithm", "cc = \"dcqcn\""), ("profile", "profile = \"paper\""), ("burst_us", "burst_us = 0")]
    {
        if !section.has(key) {
            text.line(here.clone(), default);
        }
    }
    let mut tables: Vec<(&str, &Table, Place)> = Vec::new();
    let mut has_dcqcn = false;
    for (key, node) in section.entries() {
        let place = section.source().place(node.key);
        match &node.value {
            Value::Table(table) => tables.push((key, table, place)),
            value => {
                let key = if key == "algorithm" { "cc" } else { key };
                text.line(place, format_args!("{} = {}", quoted(key), toml(value)));
            }
        }
    }
    for (name, table, place) in tables {
        text.line(place, format_args!("[{}]", quoted(name)));
        if name == "dcqcn" {
            has_dcqcn = true;
            if !table.contains_key("release_at_line") {
                text.line(here.clone(), "release_at_line = false");
            }
        }
        for (key, node) in table {
            let Node { key: at, value, .. } = node;
            text.line(section.source().place(*at), format_args!("{} = {}", quoted(key), toml(value)));
        }
    }
    if !has_dcqcn {
        text.line(here.clone(), "[dcqcn]");
        text.line(here, "release_at_line = false");
    }
    let read = CcConfig::parse(&text.text).map_err(|error| {
        let place = text.origin.get(error.line.max(1) - 1).cloned().unwrap_or_else(|| section.place_of(""));
        let what = match error.what.strip_prefix("cc = ") {
            Some(rest) => format!("algorithm = {rest}"),
            None => error
                .what
                .replace("the keys here are cc, profile, dilation,", "the keys here are algorithm, profile,"),
        };
        let key =
            error.key.map(|key| if key == "cc" { "cc.algorithm".to_owned() } else { format!("cc.{key}") });
        ScenarioError::new(place, key, format!("[cc] {what}"))
    })?;
    // Devices keep a rate that is given, and catch up, in real time; hosts here do so in the dilated one.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "floats saturate; whole ns")]
    let burst = Duration::from_nanos((read.burst.as_nanos() as f64 * dilation).round() as u64);
    let algorithm = match read.algorithm {
        Algorithm::Rate(rate) => Algorithm::Rate(Rate::from_bps(rate.bps() / dilation)),
        other => other,
    };
    Ok(CcConfig { algorithm, burst, ..read })
}

/// A key as TOML has it, whatever it is.
fn quoted(key: &str) -> String {
    let is_bare = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    if is_bare { key.to_owned() } else { format!("{key:?}") }
}

/// A value as TOML has it, on one line.
fn toml(value: &Value) -> String {
    let list = |items: Vec<String>| items.join(", ");
    match value {
        Value::Text(text) => serde_json::Value::from(text.as_str()).to_string(),
        Value::Number(number) if number.fract() == 0.0 && number.abs() < 1e15 => format!("{number:.0}"),
        Value::Number(number) => format!("{number:?}"),
        Value::Flag(flag) => flag.to_string(),
        Value::Array(items) => format!("[{}]", list(items.iter().map(|item| toml(&item.value)).collect())),
        Value::Table(table) => {
            let entry = |(key, node): (&String, &Node)| format!("{} = {}", quoted(key), toml(&node.value));
            format!("{{ {} }}", list(table.iter().map(entry).collect()))
        }
    }
}
