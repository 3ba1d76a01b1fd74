//! One table of a scenario: values by key, checked against kind and range. The keys that were asked for are the ones
//! that there are; all others are refused by [`Section::finish`].

use super::ScenarioError;
use super::tree::{Node, Source, Table, Value};

/// A table that is being read.
pub(super) struct Section<'a> {
    source: &'a Source,
    table: &'a Table,
    /// What stands in front of its keys in messages: nothing, or a name and a dot.
    path: String,
    known: Vec<&'static str>,
    /// Its first byte.
    at: usize,
}

/// What a number may be.
#[derive(Clone, Copy)]
pub(super) struct Range {
    least: f64,
    most: f64,
    whole: bool,
    unit: &'static str,
}

/// Any number from `least` to `most`.
pub(super) const fn real(least: f64, most: f64, unit: &'static str) -> Range {
    Range { least, most, whole: false, unit }
}

/// Any whole number from `least` to `most`.
pub(super) const fn whole(least: u32, most: u32, unit: &'static str) -> Range {
    Range { least: least as f64, most: most as f64, whole: true, unit }
}

impl std::fmt::Display for Range {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { least, most, whole, unit } = self;
        if *whole {
            f.write_str("a whole number, ")?;
        }
        write!(f, "{least} to {most}")?;
        if unit.is_empty() { Ok(()) } else { write!(f, " {unit}") }
    }
}

impl<'a> Section<'a> {
    pub(super) fn new(source: &'a Source, table: &'a Table) -> Self {
        Self { source, table, path: String::new(), known: Vec::new(), at: 0 }
    }

    fn node(&mut self, key: &'static str) -> Option<&'a Node> {
        self.known.push(key);
        self.table.get(key)
    }

    /// The error that what `key` has should be `range`.
    pub(super) fn wrong(&self, key: &str, range: impl std::fmt::Display) -> ScenarioError {
        let path = format!("{}{key}", self.path);
        match self.table.get(key) {
            Some(node) => {
                let written = self.source.written(node.span.clone());
                let what = format!("{path} = {written}: it must be {range}");
                ScenarioError::new(self.source.place(node.key), Some(path), what)
            }
            None => {
                let what = format!("{path} is missing: it must be {range}");
                ScenarioError::new(self.source.place(self.at), Some(path), what)
            }
        }
    }

    /// Where the value of `key` begins, for who reads it on.
    pub(super) fn place_of(&self, key: &str) -> super::Place {
        self.source.place(self.table.get(key).map_or(self.at, |node| node.key))
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    pub(super) fn number(&mut self, key: &'static str, range: Range) -> Result<Option<f64>, ScenarioError> {
        match self.node(key).map(|node| &node.value) {
            None => Ok(None),
            Some(Value::Number(number))
                if (range.least..=range.most).contains(number) && (!range.whole || number.fract() == 0.0) =>
            {
                Ok(Some(*number))
            }
            Some(_) => Err(self.wrong(key, range)),
        }
    }

    pub(super) fn count(&mut self, key: &'static str, range: Range) -> Result<Option<u32>, ScenarioError> {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "whole, and in a range of this type's"
        )]
        Ok(self.number(key, range)?.map(|number| number as u32))
    }

    pub(super) fn flag(&mut self, key: &'static str) -> Result<Option<bool>, ScenarioError> {
        match self.node(key).map(|node| &node.value) {
            None => Ok(None),
            Some(Value::Flag(flag)) => Ok(Some(*flag)),
            Some(_) => Err(self.wrong(key, "true or false")),
        }
    }

    pub(super) fn text(&mut self, key: &'static str) -> Result<Option<&'a str>, ScenarioError> {
        match self.node(key).map(|node| &node.value) {
            None => Ok(None),
            // Titles and names are printed on terminals as they are.
            Some(Value::Text(text)) if text.chars().any(|c| c.is_control() && c != '\n') => {
                Err(self.wrong(key, "text without control characters"))
            }
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(_) => Err(self.wrong(key, "text in quotes")),
        }
    }

    /// The place of the word in `words`.
    pub(super) fn word(&mut self, key: &'static str, words: &[&str]) -> Result<Option<usize>, ScenarioError> {
        let one_of = || format!("one of {}", words.join(", "));
        match self.node(key).map(|node| &node.value) {
            None => Ok(None),
            Some(Value::Text(text)) => {
                words.iter().position(|word| word == text).ok_or_else(|| self.wrong(key, one_of())).map(Some)
            }
            Some(_) => Err(self.wrong(key, one_of())),
        }
    }

    pub(super) fn texts(&mut self, key: &'static str) -> Result<Option<Vec<&'a str>>, ScenarioError> {
        let Some(node) = self.node(key) else { return Ok(None) };
        let texts = match &node.value {
            Value::Array(items) => items.iter().map(|item| match &item.value {
                Value::Text(text) => Some(text.as_str()),
                _ => None,
            }),
            _ => return Err(self.wrong(key, "a list of texts in quotes")),
        };
        texts.collect::<Option<_>>().map(Some).ok_or_else(|| self.wrong(key, "a list of texts in quotes"))
    }

    /// A list of numbers, each of `range`.
    pub(super) fn numbers(
        &mut self,
        key: &'static str,
        range: Range,
    ) -> Result<Option<Vec<f64>>, ScenarioError> {
        let Some(node) = self.node(key) else { return Ok(None) };
        let fits = |item: &Node| match item.value {
            Value::Number(number) if (range.least..=range.most).contains(&number) => {
                (!range.whole || number.fract() == 0.0).then_some(number)
            }
            _ => None,
        };
        let numbers = match &node.value {
            Value::Array(items) => items.iter().map(fits).collect::<Option<Vec<_>>>(),
            _ => None,
        };
        numbers.map(Some).ok_or_else(|| self.wrong(key, format!("a list of numbers, each {range}")))
    }

    /// A table of it; where it is not there, an empty one.
    pub(super) fn section(&mut self, key: &'static str) -> Result<Self, ScenarioError> {
        static EMPTY: Table = Table::new();
        let path = format!("{}{key}.", self.path);
        let (table, at) = match self.node(key).map(|node| (&node.value, node.key)) {
            None => (&EMPTY, self.at),
            Some((Value::Table(table), at)) => (table, at),
            Some(_) => return Err(self.wrong(key, format!("a table: [{key}]"))),
        };
        Ok(Self { source: self.source, table, path, known: Vec::new(), at })
    }

    /// An array of tables.
    pub(super) fn sections(&mut self, key: &'static str) -> Result<Vec<Self>, ScenarioError> {
        let Some(node) = self.node(key) else { return Ok(Vec::new()) };
        let no_table = match &node.value {
            Value::Array(items) => {
                items.iter().enumerate().find(|(_, item)| !matches!(item.value, Value::Table(_)))
            }
            _ => None,
        };
        if let Some((n, item)) = no_table {
            let (path, written) = (format!("{}{key}.{n}", self.path), self.source.written(item.span.clone()));
            let what = format!("{path} = {written}: it must be a table, as under [[{key}]]");
            return Err(ScenarioError::new(self.source.place(item.key), Some(path), what));
        }
        let all = match &node.value {
            Value::Array(items) => items
                .iter()
                .enumerate()
                .map(|(n, item)| match &item.value {
                    Value::Table(table) => Some(Self {
                        source: self.source,
                        table,
                        path: format!("{}{key}.{n}.", self.path),
                        known: Vec::new(),
                        at: item.span.start,
                    }),
                    _ => None,
                })
                .collect::<Option<_>>(),
            _ => None,
        };
        all.ok_or_else(|| self.wrong(key, format!("a list of tables: [[{key}]]")))
    }

    /// Its keys and values, for who knows what they mean.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&'a str, &'a Node)> + use<'a> {
        self.table.iter().map(|(key, node)| (key.as_str(), node))
    }

    pub(super) const fn source(&self) -> &'a Source {
        self.source
    }

    /// Refuses keys that nobody has asked for.
    pub(super) fn finish(self) -> Result<(), ScenarioError> {
        let unknown = self.table.iter().find(|(key, _)| !self.known.contains(&key.as_str()));
        let Some((key, node)) = unknown else { return Ok(()) };
        let path = format!("{}{key}", self.path);
        let what = format!("there is no key {path}; the keys here are {}", self.known.join(", "));
        Err(ScenarioError::new(self.source.place(node.key), Some(path), what))
    }
}
