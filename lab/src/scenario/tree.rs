//! A scenario's file as a tree that remembers where everything stands, with what `--set` changes.
//!
//! The text of the changes follows that of the file, so that a place in it tells which of them is meant. Nothing here
//! knows keys: see [`super::section`].

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::ScenarioError;

/// Where something stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In this line of the file, from 1.
    Line(usize),
    /// In this change, as it was given.
    Set(String),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(line) => write!(f, "line {line}"),
            Self::Set(set) => write!(f, "--set {set}"),
        }
    }
}

/// Keys and what they have.
pub(super) type Table = BTreeMap<String, Node>;

/// A value and where it stands.
#[derive(Clone, Debug)]
pub(super) struct Node {
    /// The first byte of its key.
    pub(super) key: usize,
    /// Its own bytes.
    pub(super) span: Range<usize>,
    pub(super) value: Value,
}

#[derive(Clone, Debug)]
pub(super) enum Value {
    Text(String),
    Number(f64),
    Flag(bool),
    Array(Vec<Node>),
    Table(Table),
}

/// The text of a file and of the changes to it.
#[derive(Clone, Debug)]
pub(super) struct Source {
    text: String,
    /// Bytes of the file; what follows are changes, one a line, as they were read.
    file: usize,
    /// Where each of them begins, and how it was given.
    sets: Vec<(usize, String)>,
}

impl Source {
    /// Where the byte `at` stands.
    pub(super) fn place(&self, at: usize) -> Place {
        if at < self.file {
            let lines = self.text.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count();
            return Place::Line(lines + 1);
        }
        let given = self.sets.iter().rev().find(|(begin, _)| *begin <= at);
        Place::Set(given.map_or_else(String::new, |(_, set)| set.clone()))
    }

    /// What is written at `span`, for messages: its first line, and whether there are more.
    pub(super) fn written(&self, span: Range<usize>) -> String {
        let mut lines = self.text.get(span).unwrap_or("this").lines();
        let (first, more) = (lines.next().unwrap_or("this"), if lines.next().is_some() { " …" } else { "" });
        format!("{first}{more}")
    }
}

/// Reads `text` and applies `sets`, each `key.path=value`.
pub(super) fn parse(text: &str, sets: &[String]) -> Result<(Source, Table), ScenarioError> {
    let mut source = Source { text: format!("{text}\n"), file: text.len() + 1, sets: Vec::new() };
    let mut table = read(text, 0).map_err(|(at, what)| ScenarioError::new(source.place(at), None, what))?;
    for set in sets {
        let wrong = |what: String| ScenarioError::new(Place::Set(set.clone()), None, what);
        let at = source.text.len();
        source.sets.push((at, set.clone()));
        let (key, value) = set.split_once('=').ok_or_else(|| wrong("a change is key.path=value".into()))?;
        let (change, text) = match read(set, at) {
            Ok(change) => (change, set.clone()),
            // A word needs no quotes on a command line.
            Err((_, what)) if value.is_empty() || value.contains(['"', '\'', '[', '{', '#']) => {
                return Err(wrong(what));
            }
            Err(_) => {
                let quoted = format!("{key}={:?}", value.trim());
                (read(&quoted, at).map_err(|(_, what)| wrong(what))?, quoted)
            }
        };
        source.text.push_str(&text);
        source.text.push('\n');
        merge(&mut table, change).map_err(wrong)?;
    }
    Ok((source, table))
}

/// The table of `text`, whose first byte counts as byte `at`; else where it is wrong and why.
fn read(text: &str, at: usize) -> Result<Table, (usize, String)> {
    let line_begins = |line: usize| text.split_inclusive('\n').take(line - 1).map(str::len).sum::<usize>();
    dcqcn::check_text(text).map_err(|error| (at + line_begins(error.line), error.what))?;
    // Blanks in front shift all places.
    let shifted = " ".repeat(at) + text;
    let table = DeTable::parse(&shifted).map_err(|error| {
        let what = error.message().lines().next().unwrap_or_default().to_owned();
        (error.span().map_or(at, |span| span.start), what)
    })?;
    nodes(table.get_ref())
}

fn nodes(table: &DeTable<'_>) -> Result<Table, (usize, String)> {
    let node = |(key, value): (&Spanned<_>, &_)| {
        let name: &std::borrow::Cow<'_, str> = key.get_ref();
        Ok((name.to_string(), node(value, key.span().start)?))
    };
    table.iter().map(node).collect()
}

fn node(spanned: &Spanned<DeValue<'_>>, key: usize) -> Result<Node, (usize, String)> {
    let span = spanned.span();
    let number = |text: String| {
        text.parse().map(Value::Number).map_err(|_| (span.start, format!("{text} is no decimal number")))
    };
    let value = match spanned.get_ref() {
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Integer(integer) => number(integer.to_string())?,
        DeValue::Float(float) => number(float.to_string())?,
        DeValue::Boolean(flag) => Value::Flag(*flag),
        DeValue::Datetime(_) => return Err((span.start, "no key here has a date or time of day".into())),
        DeValue::Array(array) => {
            let item = |item: &Spanned<_>| node(item, item.span().start);
            Value::Array(array.iter().map(item).collect::<Result<_, _>>()?)
        }
        DeValue::Table(table) => Value::Table(nodes(table)?),
    };
    Ok(Node { key, span, value })
}

/// Puts `change` over `table`: tables key by key, everything else as a whole. In an array of tables, as of hosts, a key
/// is the number of one, from 0, or its name.
pub(super) fn merge(table: &mut Table, change: Table) -> Result<(), String> {
    for (key, node) in change {
        match table.get_mut(&key).map(|old| &mut old.value) {
            Some(Value::Table(old)) => {
                if let Value::Table(new) = node.value {
                    merge(old, new)?;
                    continue;
                }
            }
            Some(Value::Array(old)) => {
                if let Value::Table(new) = node.value {
                    merge_items(&key, old, new)?;
                    continue;
                }
            }
            _ => {}
        }
        table.insert(key, node);
    }
    Ok(())
}

fn merge_items(of: &str, array: &mut [Node], change: Table) -> Result<(), String> {
    for (key, node) in change {
        let is_it = |(at, item): &(usize, &mut Node)| {
            let name = match &item.value {
                Value::Table(table) => table.get("name").map(|name| &name.value),
                _ => None,
            };
            key.parse() == Ok(*at) || matches!(name, Some(Value::Text(name)) if *name == key)
        };
        let items = array.len();
        let (_, item) = array.iter_mut().enumerate().find(is_it).ok_or_else(|| {
            format!("there is no {of}.{key}: say the name of one, or its number, 0 to {}", items.max(1) - 1)
        })?;
        match (&mut item.value, node.value) {
            (Value::Table(old), Value::Table(new)) => merge(old, new)?,
            (_, new) => *item = Node { value: new, ..node },
        }
    }
    Ok(())
}

/// The tree as JSON.
pub(super) fn to_json(table: &Table) -> serde_json::Value {
    table.iter().map(|(key, node)| (key.clone(), value_to_json(&node.value))).collect()
}

fn value_to_json(value: &Value) -> serde_json::Value {
    match value {
        Value::Text(text) => text.as_str().into(),
        #[expect(clippy::cast_possible_truncation, reason = "a whole number that a float holds exactly")]
        Value::Number(number) if number.fract() == 0.0 && number.abs() < 1e15 => (*number as i64).into(),
        Value::Number(number) => (*number).into(),
        Value::Flag(flag) => (*flag).into(),
        Value::Array(items) => items.iter().map(|item| value_to_json(&item.value)).collect(),
        Value::Table(table) => to_json(table),
    }
}
