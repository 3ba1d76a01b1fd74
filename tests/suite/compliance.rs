//! Holds the protocol rules, the code that keeps them and the tests that prove them against each other.
//!
//! `docs/rules.md` numbers the rules; the number stands at the check in the code and in the test of the rule; and
//! `tests/compliance.toml` says for each rule which tests those are, or why there is none. Whatever of this does not
//! agree with the rest fails here, all of it at once.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;

mod ledger;
mod marks;
mod sources;

use ledger::{Entry, Ledger};
use sources::Sources;

/// Prefix of a rule's number that says what it is about: `R-RSP`.
fn group(rule: &str) -> &str {
    rule.rsplit_once('-').map_or(rule, |(group, _)| group)
}

#[test]
fn every_rule_is_kept_in_the_code_and_proven_by_a_test() {
    let sources = Sources::read();
    let rules = sources.rules();
    let ledger = ledger::read();
    let mut problems = Vec::new();
    for rule in rules.keys().filter(|rule| !ledger.contains_key(*rule)) {
        problems.push(format!("{rule}: tests/compliance.toml has no entry"));
    }
    for (rule, count) in rules.iter().filter(|(_, count)| **count > 1) {
        problems.push(format!("{rule}: docs/rules.md has it {count} times"));
    }
    let marked = sources.code_marks();
    for (rule, entry) in ledger.iter().filter(|(name, _)| !ledger::is_field_case(name)) {
        if !rules.contains_key(rule) {
            problems.push(format!("{rule}: docs/rules.md has no such rule"));
        }
        problems
            .extend(check(rule, entry, &sources, &marked).into_iter().map(|what| format!("{rule}: {what}")));
    }
    for (rule, files) in sources.cited() {
        if !rules.contains_key(&rule) {
            problems.push(format!("{rule}: cited in {files:?}, but docs/rules.md has no such rule"));
        }
    }
    assert!(problems.is_empty(), "{} problems:\n{}", problems.len(), problems.join("\n"));
    print(&ledger);
}

/// What is wrong with the entry of `rule`.
fn check(rule: &str, entry: &Entry, sources: &Sources, marked: &BTreeSet<String>) -> Vec<String> {
    let mut problems = Vec::new();
    match (&entry.tested[..], &entry.exception) {
        ([], None) => problems.push("neither tests nor an exception".to_owned()),
        ([], Some(reason)) if reason.trim().is_empty() => {
            problems.push("an exception without a reason".to_owned())
        }
        ([], Some(_)) => {}
        (_, Some(_)) => problems.push("both tests and an exception".to_owned()),
        (tests, None) => {
            let mut seen = BTreeSet::new();
            for name in tests {
                if !seen.insert(name) {
                    problems.push(format!("{name} is listed twice"));
                }
                match sources.test(name) {
                    None => problems.push(format!("there is no test {name}")),
                    Some(text) if !marks::rules_in(&text).contains(rule) => {
                        problems.push(format!("{name} does not cite the rule"));
                    }
                    Some(_) => {}
                }
            }
            match (marked.contains(rule), &entry.in_code) {
                (false, None) => problems.push("no mark in the code, and no in_code to say why".to_owned()),
                (true, Some(_)) => problems.push("the code has a mark: in_code is not needed".to_owned()),
                (false, Some(reason)) if reason.trim().is_empty() => {
                    problems.push("an in_code without a reason".to_owned());
                }
                _ => {}
            }
        }
    }
    problems
}

/// The field cases that this repository can show, each by tests named after it (`f11_…`); the others with a reason.
#[test]
fn every_field_case_has_tests_named_after_it() {
    let sources = Sources::read();
    let ledger = ledger::read();
    let mut problems = Vec::new();
    let mut text = String::new();
    for number in 1..=44 {
        let case = format!("F{number}");
        let tests = sources.tests_of_field_case(number);
        match (tests.is_empty(), ledger.get(&case)) {
            (true, None) => problems.push(format!("{case}: no test f{number}_…, and no exception")),
            (false, Some(_)) => problems.push(format!("{case}: an exception, but there are {tests:?}")),
            (true, Some(Entry { tested, exception: Some(_), .. })) if tested.is_empty() => {}
            (true, Some(_)) => {
                problems.push(format!("{case}: an entry of a field case is an exception with a reason"))
            }
            (false, None) => text += &format!("  {case:<4} {:>3} tests\n", tests.len()),
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    say(&text);
}

/// How many rules there are, tested and not, by group.
fn print(ledger: &Ledger) {
    let mut groups: BTreeMap<&str, [usize; 2]> = BTreeMap::new();
    for (rule, entry) in ledger.iter().filter(|(name, _)| !ledger::is_field_case(name)) {
        groups.entry(group(rule)).or_default()[usize::from(entry.exception.is_some())] += 1;
    }
    let total = groups.values().fold([0, 0], |[a, b], [tested, excepted]| [a + tested, b + excepted]);
    let mut text = String::new();
    for (name, [tested, excepted]) in
        groups.iter().map(|(name, counts)| (*name, *counts)).chain([("all", total)])
    {
        text += &format!(
            "  {name:<5} {:>4} rules, {tested:>4} tested, {excepted:>3} exceptions\n",
            tested + excepted
        );
    }
    say(&text);
}

/// Straight to the stream: what is printed with the macros, a passing test does not show.
fn say(text: &str) {
    std::io::stderr().write_all(text.as_bytes()).unwrap();
}
