//! The table `[memory]`: what is counted where nothing runs.

use crate::memory::Memory;
use crate::scenario::ScenarioError;
use crate::scenario::section::{Section, real, whole};

use super::units::COUNT;

/// The table `[memory]`, where there is one.
pub(super) fn memory(top: &mut Section<'_>) -> Result<Option<Memory>, ScenarioError> {
    if !top.has("memory") {
        return Ok(None);
    }
    if top.has("variants") {
        return Err(top.wrong("variants", "left out where there is [memory]"));
    }
    let mut section = top.section("memory")?;
    let hosts = section.count("hosts", whole(2, 100_000, ""))?.unwrap_or(2);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "1 to 4096")]
    let processes: Vec<u32> = match section.numbers("processes", COUNT)? {
        Some(numbers) => numbers.into_iter().map(|number| number as u32).collect(),
        None => vec![1],
    };
    if processes.is_empty() || processes.windows(2).any(|pair| pair[0] >= pair[1]) {
        return Err(
            section.wrong("processes", "a list of whole numbers, 1 to 4096, each above the one before")
        );
    }
    let receives = section.count("receives", whole(0, 1 << 20, ""))?.unwrap_or(0);
    let mut bytes = |key| Ok(section.number(key, real(0.0, 1e9, "bytes"))?.unwrap_or(0.0));
    let memory = Memory {
        hosts,
        processes,
        rc_bytes: bytes("rc_bytes")?,
        xrc_bytes: bytes("xrc_bytes")?,
        srq_bytes: bytes("srq_bytes")?,
        receives,
        receive_bytes: bytes("receive_bytes")?,
    };
    section.finish()?;
    Ok(Some(memory))
}
