//! Where our answers under a profile are not the kernel's, and by which rule.

use std::path::Path;

use qp::Profile;

/// Answers of ours that are not the kernel's.
pub(super) struct Difference {
    /// The capture.
    pub(super) name: &'static str,
    /// The kernel's answer, as [`describe`](super::describe) puts it; empty for none.
    pub(super) theirs: &'static str,
    /// Ours.
    pub(super) ours: &'static str,
    /// The rule that ours keeps.
    pub(super) rule: &'static str,
    /// What the kernel does otherwise.
    pub(super) reason: &'static str,
}

/// Under the profile `strict`. Besides, every answer has MigReq 1 where the kernel has 0: rule R-WIR-34.
const STRICT: &[Difference] = &[
    Difference {
        name: "nak_send_too_long",
        theirs: "Acknowledge psn=0xfffffb nak=remote_operational msn=1",
        ours: "Acknowledge psn=0xfffffb nak=invalid_request msn=1",
        rule: "R-RSP-14",
        reason: "a SEND that its receive cannot hold is an invalid request; rxe 6.1 sends NAK 3",
    },
    Difference {
        name: "first_short",
        theirs: "Acknowledge psn=0x1000 ack msn=0",
        ours: "Acknowledge psn=0x1000 nak=invalid_request msn=0",
        rule: "R-RSP-12",
        reason: "a FIRST is as long as the path MTU; rxe 6.1 does not check it",
    },
    Difference {
        name: "last_empty",
        theirs: "Acknowledge psn=0x1001 ack msn=1",
        ours: "Acknowledge psn=0x1000 nak=invalid_request msn=0",
        rule: "R-RSP-13",
        reason: "a message that one packet holds is an ONLY, so this FIRST is wrong; rxe 6.1 takes it",
    },
    Difference {
        name: "read_dmalen_2g",
        theirs: "Acknowledge psn=0x1000 nak=remote_access msn=0",
        ours: "Acknowledge psn=0x1000 nak=invalid_request msn=0",
        rule: "R-WIR-31",
        reason: "longer than any message can be; rxe 6.1 sees only that the region is shorter",
    },
    Difference {
        name: "write_dmalen_2g",
        theirs: "Acknowledge psn=0x1000 nak=remote_access msn=0",
        ours: "Acknowledge psn=0x1000 nak=invalid_request msn=0",
        rule: "R-WIR-31",
        reason: "as for the READ",
    },
    Difference {
        name: "read_partial_dup",
        theirs: "ReadResponseMiddle psn=0x1001",
        ours: "ReadResponseFirst psn=0x1001 ack msn=1",
        rule: "R-RSP-30",
        reason: "the rest of a READ is answered as a READ of its own; rxe goes on with MIDDLE",
    },
    Difference {
        name: "rnr",
        theirs: "Acknowledge psn=0xfffffa nak=psn_sequence msn=0",
        ours: "",
        rule: "R-RSP-3",
        reason: "behind an RNR NAK there is silence; rxe sends a sequence NAK for the packet that follows",
    },
];

/// Under the profile `rxe` there is none.
const RXE: &[Difference] = &[];

/// The differences that are right under `profile`.
pub(super) const fn listed(profile: Profile) -> &'static [Difference] {
    match profile {
        Profile::Rxe => RXE,
        // ConnectX answers by the rules as far as anything is known of it.
        _ => STRICT,
    }
}

/// The rules exist, and the list in the documentation is this one.
#[test]
fn the_documentation_lists_the_differences() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let [rules, profiles] =
        ["rules.md", "profiles.md"].map(|file| std::fs::read_to_string(docs.join(file)).unwrap());
    for Difference { name, rule, .. } in STRICT {
        assert!(rules.contains(&format!("| {rule} |")), "{rule} is no rule");
        let line = format!("| {name} | {rule} |");
        assert!(profiles.contains(&line), "docs/profiles.md lacks {line}");
    }
    let section = profiles.split("## Where `strict` and Linux 6.1 differ").nth(1).unwrap();
    let lines = section.lines().filter(|line| line.starts_with("| ") && line.contains("| R-")).count();
    assert_eq!(lines, STRICT.len() + 1, "one line for each difference, and one for MigReq");
}
