//! The ledger, `tests/compliance.toml`.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

/// Entries by rule (`R-RSP-9`), or by field case (`F15`) where that has no test.
pub(super) type Ledger = BTreeMap<String, Entry>;

/// How a rule is proven.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Entry {
    /// Tests that would fail if the rule were broken, each as `path/of/file.rs::function`.
    #[serde(default)]
    pub(super) tested: Vec<String>,
    /// Why there is no test.
    pub(super) exception: Option<String>,
    /// Why no place in the code carries the number.
    pub(super) in_code: Option<String>,
}

pub(super) fn read() -> Ledger {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("compliance.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    toml::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Whether an entry is about a field case instead of a rule.
pub(super) fn is_field_case(name: &str) -> bool {
    name.strip_prefix('F').is_some_and(|number| number.parse::<u32>().is_ok())
}
