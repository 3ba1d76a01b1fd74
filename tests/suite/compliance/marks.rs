//! Finds the numbers of rules in text.

use std::collections::BTreeSet;

/// All rules that `text` names, as `R-RSP-9` or as all of `R-RSP-4 to R-RSP-7`.
pub(super) fn rules_in(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut last: Option<(&str, u32, usize)> = None;
    for (at, _) in text.match_indices("R-") {
        let Some((group, number, end)) = rule_at(text, at) else { continue };
        let first = match last {
            Some((before, first, its_end)) if before == group && &text[its_end..at] == " to " => first,
            _ => number,
        };
        found.extend((first..=number).map(|n| format!("{group}-{n}")));
        last = Some((group, number, end));
    }
    found
}

/// The rule whose number begins at `at`: its group, its number, and where it ends.
fn rule_at(text: &str, at: usize) -> Option<(&str, u32, usize)> {
    let rest = &text[at + 2..];
    let letters = rest.bytes().take_while(u8::is_ascii_uppercase).count();
    let digits = rest.get(letters..)?.strip_prefix('-')?.bytes().take_while(u8::is_ascii_digit).count();
    let end = at + 2 + letters + 1 + digits;
    let number = text.get(end - digits..end)?.parse().ok()?;
    (letters == 3).then_some((&text[at..at + 5], number, end))
}

#[test]
fn numbers_are_found_alone_and_in_rows() {
    let rules = |text| rules_in(text).into_iter().collect::<Vec<_>>();
    assert_eq!(rules("Rules R-RSP-9, R-QPS-10 (R-WIR-1)."), ["R-QPS-10", "R-RSP-9", "R-WIR-1"]);
    assert_eq!(rules("R-RSP-4 to R-RSP-6"), ["R-RSP-4", "R-RSP-5", "R-RSP-6"]);
    assert_eq!(rules("R-RSP-4 to R-QPS-6"), ["R-QPS-6", "R-RSP-4"]);
    assert_eq!(rules("FOR-ME R-X-1 R-ABCD-2 R-ABC- R-ABC"), [""; 0]);
}
