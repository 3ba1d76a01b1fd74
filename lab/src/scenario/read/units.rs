//! What several tables of a scenario have in common: ranges, slow motion, priorities.

use fabric::switched::Cable;
use wire::Duration;

use crate::scenario::ScenarioError;
use crate::scenario::section::{Range, Section, real, whole};

pub(super) const MS: Range = real(0.0, 1e7, "ms");
pub(super) const US: Range = real(0.0, 1e9, "us");
pub(super) const GBPS: Range = real(1e-6, 1e4, "Gb/s");
pub(super) const KB: Range = real(0.0, 1e8, "KB");
pub(super) const COUNT: Range = whole(1, 4096, "");
pub(super) const PRIORITY: Range = whole(0, 7, "");

/// How much slower everything is, and from what is written to what is simulated.
#[derive(Clone, Copy)]
pub(super) struct Scale(pub(super) f64);

impl Scale {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "floats saturate; whole ns")]
    pub(super) fn time(self, nanos: f64) -> Duration {
        Duration::from_nanos((nanos * self.0).round() as u64)
    }

    pub(super) fn ms(self, ms: f64) -> Duration {
        self.time(ms * 1e6)
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at least 1, saturating")]
    pub(super) fn cable(self, gbps: f64, us: f64) -> Cable {
        Cable { rate: (gbps * 1e9 / self.0).max(1.0) as u64, delay: self.time(us * 1e3) }
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "in a range of this type's")]
pub(super) fn bytes(kb: f64) -> u64 {
    (kb * 1e3).round() as u64
}

pub(super) fn priority(section: &mut Section<'_>, default: u8) -> Result<u8, ScenarioError> {
    #[expect(clippy::cast_possible_truncation, reason = "0 to 7")]
    Ok(section.count("priority", PRIORITY)?.map_or(default, |priority| priority as u8))
}
