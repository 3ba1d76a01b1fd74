//! The document on congestion control lists every key as it is: name, unit, range, both defaults, meaning.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::collections::BTreeSet;

use ferroce_dcqcn::{CcConfig, Key, Params, Value};

fn document() -> String {
    std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/congestion-control.md")).unwrap()
}

fn shown(value: &Value) -> String {
    match value {
        Value::Number(number) => number.to_string(),
        Value::Flag(flag) => flag.to_string(),
        Value::Word(word) => (*word).to_string(),
    }
}

fn row(key: &Key) -> String {
    let of = |params| shown(&key.value(params));
    let cells = [
        key.name,
        key.unit,
        &key.range(),
        &of(&Params::PAPER),
        &of(&Params::CONNECTX),
        key.meaning,
        key.source,
    ];
    cells.iter().fold(String::from("|"), |row, cell| format!("{row} {cell} |"))
}

#[test]
fn the_document_lists_every_key_with_what_it_is() {
    let text = document();
    let listed: BTreeSet<&str> = text.lines().filter(|line| line.starts_with("| ")).collect();
    let missing: Vec<String> =
        Key::ALL.iter().map(row).filter(|row| !listed.contains(row.as_str())).collect();
    assert!(missing.is_empty(), "rows that are not in the document:\n{}", missing.join("\n"));
}

#[test]
fn the_documents_example_is_a_configuration() {
    let text = document();
    let example = text.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let config = CcConfig::parse(example).unwrap();
    assert_ne!(config, CcConfig::default());
}
