//! Parameters of DCQCN, in SI units, with the two sets that public sources give.

use wire::Duration;

/// Parameters of reaction point and notification point. Field documentation names the vendor's key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Params {
    /// Gain of alpha, 0 to 1 (`dce_tcp_g`).
    pub alpha_g: f64,
    /// Window over which alpha is updated (`dce_tcp_rtt`).
    pub alpha_period: Duration,
    /// Alpha at the first CNP, 0 to 1 (`initial_alpha_value`).
    pub alpha_init: f64,
    /// Least time between two cuts; zero cuts at every CNP (`rate_reduce_monitor_period`).
    pub cut_period: Duration,
    /// Rate set at the first CNP, in Mb/s; 0 for none (`rate_to_set_on_first_cnp`).
    pub first_cnp_rate: u32,
    /// A cut takes alpha / 2^(`cut_shift` - 10) of the rate (`rpg_gd`).
    pub cut_shift: u8,
    /// One cut leaves at least this share of the rate, in percent (`rpg_min_dec_fac`).
    pub min_dec_fac: u8,
    /// Lowest rate, in Mb/s (`rpg_min_rate`).
    pub min_rate: u32,
    /// Highest rate, in Mb/s; 0 for the port's (`rpg_max_rate`).
    pub max_rate: u32,
    /// Period of the increase timer (`rpg_time_reset`).
    pub time_reset: Duration,
    /// Bytes between increases of the byte counter (`rpg_byte_reset`).
    pub byte_reset_bytes: u64,
    /// Increases before the next phase begins (`rpg_threshold`).
    pub threshold: u32,
    /// Additive increase, in Mb/s (`rpg_ai_rate`).
    pub ai_rate: u32,
    /// Hyper increase, in Mb/s (`rpg_hai_rate`).
    pub hai_rate: u32,
    /// Every cut lowers the target rate too (`clamp_tgt_rate`).
    pub clamp_tgt_rate: bool,
    /// A cut after an increase by the timer lowers the target rate too (`clamp_tgt_rate_after_time_inc`).
    pub clamp_tgt_rate_after_time_inc: bool,
    /// Least time between two CNPs of one queue pair; zero for one per mark (`min_time_between_cnps`).
    pub cnp_interval: Duration,
    /// DSCP of CNPs (`cnp_dscp`).
    pub cnp_dscp: u8,
}

/// A parameter outside its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} must be {range}")]
#[non_exhaustive]
pub struct ParamsError {
    /// Name of the field.
    pub field: &'static str,
    /// What it may be.
    pub range: &'static str,
}

impl Params {
    /// The parameters of the paper that introduced DCQCN (SIGCOMM 2015). It gives no lowest rate and no hyper
    /// increase: those are of its authors' simulator.
    pub const PAPER: Self = Self {
        alpha_g: 1.0 / 256.0,
        alpha_period: Duration::from_micros(55),
        alpha_init: 1.0,
        cut_period: Duration::ZERO,
        first_cnp_rate: 0,
        cut_shift: 11,
        min_dec_fac: 50,
        min_rate: 100,
        max_rate: 0,
        time_reset: Duration::from_micros(55),
        byte_reset_bytes: 10_000_000,
        threshold: 5,
        ai_rate: 40,
        hai_rate: 200,
        clamp_tgt_rate: true,
        clamp_tgt_rate_after_time_inc: true,
        cnp_interval: Duration::from_micros(50),
        cnp_dscp: 48,
    };

    /// The defaults of ConnectX NICs, as the vendor and public firmware settings give them. The unit of
    /// `rpg_byte_reset` (32767) is not public; 64 bytes is the reading that fits other vendors' profiles.
    pub const CONNECTX: Self = Self {
        alpha_g: 5.0 / 1024.0,
        alpha_period: Duration::from_micros(1),
        alpha_init: 1023.0 / 1024.0,
        cut_period: Duration::from_micros(4),
        first_cnp_rate: 0,
        cut_shift: 11,
        min_dec_fac: 50,
        min_rate: 1,
        max_rate: 0,
        time_reset: Duration::from_micros(300),
        byte_reset_bytes: 32_767 * 64,
        threshold: 1,
        ai_rate: 5,
        hai_rate: 50,
        clamp_tgt_rate: false,
        clamp_tgt_rate_after_time_inc: true,
        cnp_interval: Duration::from_micros(4),
        cnp_dscp: 48,
    };

    /// The gain that the register value `raw` of `dce_tcp_g` stands for: the old alpha keeps `raw` / 1024.
    #[must_use]
    pub fn gain_from_register(raw: u16) -> Option<f64> {
        (raw <= 1024).then(|| f64::from(1024 - raw) / 1024.0)
    }

    /// Checks that every parameter is in its range.
    ///
    /// # Errors
    /// The first that is not.
    pub fn check(&self) -> Result<(), ParamsError> {
        let unit = "in 0 to 1";
        for (fits, field, range) in [
            ((0.0..=1.0).contains(&self.alpha_g), "alpha_g", unit),
            ((0.0..=1.0).contains(&self.alpha_init), "alpha_init", unit),
            (self.alpha_period > Duration::ZERO, "alpha_period", "longer than 0"),
            (self.time_reset > Duration::ZERO, "time_reset", "longer than 0"),
            (self.byte_reset_bytes > 0, "byte_reset_bytes", "at least 1"),
            ((10..=20).contains(&self.cut_shift), "cut_shift", "10 to 20"),
            (self.min_dec_fac <= 100, "min_dec_fac", "0 to 100 percent"),
            (self.min_rate > 0, "min_rate", "at least 1 Mb/s"),
            (self.max_rate == 0 || self.max_rate >= self.min_rate, "max_rate", "0 or at least min_rate"),
            (self.cnp_dscp < 64, "cnp_dscp", "0 to 63"),
        ] {
            if !fits {
                return Err(ParamsError { field, range });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sets_are_in_range() {
        assert_eq!(Params::PAPER.check(), Ok(()));
        assert_eq!(Params::CONNECTX.check(), Ok(()));
    }

    #[test]
    fn a_value_out_of_range_is_named() {
        let wrong = Params { min_rate: 0, ..Params::PAPER };
        assert_eq!(wrong.check().map_err(|e| e.to_string()), Err("min_rate must be at least 1 Mb/s".into()));
        let wrong = Params { alpha_g: f64::NAN, ..Params::PAPER };
        assert_eq!(wrong.check().map_err(|e| e.field), Err("alpha_g"));
    }

    #[test]
    fn the_register_holds_the_weight_of_the_old_alpha() {
        assert_eq!(Params::gain_from_register(1019), Some(Params::CONNECTX.alpha_g));
        assert_eq!(Params::gain_from_register(1025), None);
    }

    #[test]
    fn alpha_outlives_the_gap_between_cnps() {
        // Otherwise it would decay between CNPs that follow each other as closely as they may.
        assert!(Params::PAPER.alpha_period > Params::PAPER.cnp_interval);
    }
}
