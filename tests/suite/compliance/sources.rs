//! The files of the repository, as far as they can name a rule: code and tests apart, and each test by its name.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::marks::rules_in;

/// Folders and files at the top that are looked at.
const TOP: [&str; 14] = [
    "src",
    "benches",
    "examples",
    "wire",
    "dcqcn",
    "transport",
    "qp",
    "driver-shim",
    "fabric",
    "trace",
    "fuzz",
    "tests",
    "docs",
    "README.md",
];
/// File names that hold nothing but tests, or what tests stand on.
const TEST_FILES: [&str; 3] = ["tests.rs", "kit.rs", "invariants.rs"];

struct Source {
    /// Path from the top of the repository.
    path: String,
    text: String,
    /// Where in `text` the tests begin.
    tests_from: usize,
}

/// The files, in order of their paths.
pub(super) struct Sources(Vec<Source>);

impl Sources {
    pub(super) fn read() -> Self {
        let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut paths = Vec::new();
        for name in TOP {
            collect(&top.join(name), &mut paths);
        }
        paths.sort();
        assert!(paths.len() > 100, "only {} files found", paths.len());
        let read = |path: &PathBuf| {
            let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let path = path.strip_prefix(&top).unwrap().to_str().unwrap().replace('\\', "/");
            let tests_from = tests_from(&path, &text);
            Source { path, text, tests_from }
        };
        Self(paths.iter().map(read).collect())
    }

    /// The rules that hold, each with how often `docs/rules.md` has it.
    pub(super) fn rules(&self) -> BTreeMap<String, usize> {
        let file = self.0.iter().find(|source| source.path == "docs/rules.md").unwrap();
        let mut rules = BTreeMap::new();
        for line in file.text.lines() {
            if let Some((rule, _)) = line.strip_prefix("| ").and_then(|row| row.split_once(" |"))
                && rules_in(rule).contains(rule)
            {
                *rules.entry(rule.to_owned()).or_default() += 1;
            }
        }
        rules
    }

    /// Rules that code outside of tests names.
    pub(super) fn code_marks(&self) -> BTreeSet<String> {
        let code = self.0.iter().filter(|source| source.path.ends_with(".rs"));
        code.flat_map(|source| rules_in(&source.text[..source.tests_from])).collect()
    }

    /// Every rule that any file names, with the files.
    pub(super) fn cited(&self) -> BTreeMap<String, Vec<&str>> {
        let mut cited: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        // The test of the finder of rules names some that there are not.
        for source in self.0.iter().filter(|source| !source.path.ends_with("compliance/marks.rs")) {
            for rule in rules_in(&source.text) {
                cited.entry(rule).or_default().push(&source.path);
            }
        }
        cited
    }

    /// The text of the test `path::function` with its comments and those of its file; `None` where there is none.
    pub(super) fn test(&self, name: &str) -> Option<String> {
        let (path, function) = name.rsplit_once("::")?;
        let source = self.0.iter().find(|source| source.path == path)?;
        let (_, text) = tests_in(&source.text).into_iter().find(|(name, _)| *name == function)?;
        let file_docs = source.text.lines().take_while(|line| line.starts_with("//!")).collect::<Vec<_>>();
        Some(format!("{}\n{text}", file_docs.join("\n")))
    }

    /// Tests that are named after field case `number`, alone or together with others.
    pub(super) fn tests_of_field_case(&self, number: u32) -> Vec<String> {
        let case = |part: &str| part.strip_prefix('f').and_then(|number| number.parse::<u32>().ok());
        let named = |test: &str| test.split('_').map_while(case).any(|case| case == number);
        let rust = self.0.iter().filter(|source| source.path.ends_with(".rs"));
        rust.flat_map(|source| {
            let tests = tests_in(&source.text).into_iter().filter(|(test, _)| named(test));
            tests.map(|(test, _)| format!("{}::{test}", source.path)).collect::<Vec<_>>()
        })
        .collect()
    }
}

fn collect(path: &Path, out: &mut Vec<PathBuf>) {
    if path.is_dir() {
        let skip =
            path.file_name().is_some_and(|name| name == "target" || name == "vectors" || name == "corpus");
        for entry in fs::read_dir(path).into_iter().flatten().flatten().filter(|_| !skip) {
            collect(&entry.path(), out);
        }
    } else if path.extension().is_some_and(|ext| ext == "rs" || ext == "md") {
        out.push(path.to_owned());
    }
}

/// Where the tests of a file begin: at its start, at the module of tests within it, or nowhere.
fn tests_from(path: &str, text: &str) -> usize {
    let name = path.rsplit('/').next().unwrap_or(path);
    let in_tests = path.split('/').any(|part| part == "tests" || part == "fuzz" || part == "benches");
    if in_tests || TEST_FILES.contains(&name) || name.ends_with("_tests.rs") {
        return 0;
    }
    let module = text.match_indices("\n#[cfg(test)]\nmod ").find(|(at, marker)| {
        let rest = &text[at + marker.len()..];
        rest.lines().next().is_some_and(|line| line.ends_with('{'))
    });
    module.map_or(text.len(), |(at, _)| at)
}

/// Every test in `text`: its name, and its lines from the comments before it to its end.
fn tests_in(text: &str) -> Vec<(&str, String)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut tests = Vec::new();
    for at in (0..lines.len()).filter(|at| lines[*at].trim() == "#[test]") {
        let belongs = |line: &&&str| line.trim().starts_with("//") || line.trim().starts_with("#[");
        let start = at - lines[..at].iter().rev().take_while(belongs).count();
        let Some(offset) = lines[at..].iter().position(|line| line.trim().starts_with("fn ")) else {
            continue;
        };
        let signature = lines[at + offset];
        let name = signature.trim()["fn ".len()..].split(['(', '<']).next().unwrap_or("");
        let indent = signature.len() - signature.trim_start().len();
        let end = format!("{}}}", " ".repeat(indent));
        let length = lines[at..].iter().position(|line| **line == end).map_or(lines.len() - at, |n| n + 1);
        tests.push((name, lines[start..at + length].join("\n")));
    }
    tests
}
