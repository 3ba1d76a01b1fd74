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
fn the_document_lists_every_key_of_timely_with_its_default() {
    let text = document();
    let table = text.split("## Keys of `[timely]`").nth(1).unwrap();
    let rows: Vec<Vec<&str>> = table
        .lines()
        .filter(|line| line.starts_with("| "))
        .skip(2)
        .map(|line| line.split('|').map(str::trim).collect())
        .collect();
    let file =
        rows.iter().fold(String::from("[timely]\n"), |file, row| format!("{file}{} = {}\n", row[1], row[4]));
    assert_eq!(CcConfig::parse(&file).unwrap(), CcConfig::default());
    let listed: Vec<&str> = rows.iter().map(|row| row[1]).collect();
    let error = CcConfig::parse("[timely]\nno_such_key = 1\n").unwrap_err().to_string();
    assert!(error.ends_with(&format!("the keys here are {}", listed.join(", "))), "{error}");
    for row in &rows {
        let error = CcConfig::parse(&format!("[timely]\n{} = -1\n", row[1])).unwrap_err().to_string();
        let range = row[3].split(", not above").next().unwrap();
        assert!(error.contains(&format!("it must be {range}")), "{error}");
    }
}

#[test]
fn the_documents_example_is_a_configuration() {
    let text = document();
    let example = text.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let config = CcConfig::parse(example).unwrap();
    assert_ne!(config, CcConfig::default());
}
