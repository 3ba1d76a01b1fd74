//! Parameters of DCQCN, in SI units, with the two sets that public sources give.
//!
//! The vendor's name of each, its unit, range and source are in [`crate::Key`].

use wire::Duration;
use wire::ip::Ecn;

use crate::keys::{self, Value};
use crate::rate::Rate;

/// How the reaction point keeps time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// As in the paper: each CNP cuts at once and raises alpha; alpha decays after each period without one.
    Paper,
    /// As in shipped NICs: CNPs are noted, and periods counted from the first of them cut and update alpha.
    Connectx,
}

/// What a CNP of [`Profile::Paper`] does first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlphaOrder {
    /// The cut takes the alpha from before the CNP, as in the paper.
    CutFirst,
    /// Alpha is raised before the cut, as in its authors' simulator.
    AlphaFirst,
}

/// Which step of increase is the first of the next phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StageTest {
    /// The stage is tested and then counted up: as many fast-recovery steps as the threshold says.
    Before,
    /// The stage is counted up and then tested: one fewer.
    After,
}

/// When the notification point answers a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NpMode {
    /// At once, unless the last CNP is too recent; such a mark is forgotten.
    Immediate,
    /// At the end of a free-running window in which there was a mark.
    Window,
}

/// What may get one CNP per interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CnpScope {
    /// Each local queue pair.
    Qp,
    /// Each pair of addresses.
    IpPair,
    /// Each address that CNPs go to.
    DestIp,
    /// All together.
    Port,
}

/// Parameters of notification point and reaction point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Params {
    /// How the reaction point keeps time.
    pub profile: Profile,
    /// Gain of alpha, 0 to 1 (`dce_tcp_g`).
    pub alpha_g: f64,
    /// Period of the update of alpha (`dce_tcp_rtt`); in [`Profile::Paper`] the silence after which it decays.
    pub alpha_period: Duration,
    /// Alpha at the first CNP, 0 to 1 (`initial_alpha_value`).
    pub alpha_init: f64,
    /// Count alpha in 1024ths and round down, as hardware may. Otherwise it is a real number.
    pub alpha_10_bits: bool,
    /// What a CNP does first; for [`Profile::Paper`].
    pub alpha_order: AlphaOrder,
    /// Period after which a noted CNP cuts; zero in [`Profile::Paper`], which cuts at every CNP
    /// (`rate_reduce_monitor_period`).
    pub cut_period: Duration,
    /// Rate set at the first CNP instead of a cut; zero for none (`rate_to_set_on_first_cnp`).
    pub first_cnp_rate: Rate,
    /// A cut takes alpha / 2^(`cut_shift` - 10) of the rate (`rpg_gd`).
    pub cut_shift: u8,
    /// One cut leaves at least this share of the rate, in percent (`rpg_min_dec_fac`).
    pub min_dec_fac: u8,
    /// Lowest rate (`rpg_min_rate`).
    pub min_rate: Rate,
    /// Highest rate; zero for the port's (`rpg_max_rate`).
    pub max_rate: Rate,
    /// Period of the increase timer (`rpg_time_reset`).
    pub time_reset: Duration,
    /// Bytes between increases of the byte counter (`rpg_byte_reset`).
    pub byte_reset_bytes: u64,
    /// Increases before the next phase begins (`rpg_threshold`).
    pub threshold: u32,
    /// Which step is the first of the next phase.
    pub stage_test: StageTest,
    /// Additive increase (`rpg_ai_rate`).
    pub ai_rate: Rate,
    /// Hyper increase (`rpg_hai_rate`).
    pub hai_rate: Rate,
    /// A hyper increase grows with each stage past the threshold.
    pub hyper_multiplier: bool,
    /// Every cut lowers the target rate too (`clamp_tgt_rate`).
    pub clamp_tgt_rate: bool,
    /// A cut after an increase by the timer lowers the target rate too (`clamp_tgt_rate_after_time_inc`).
    pub clamp_tgt_rate_after_time_inc: bool,
    /// A queue pair whose rate has come back to the highest is forgotten, as if there never had been a CNP.
    pub release_at_line: bool,
    /// When marks are answered.
    pub np_mode: NpMode,
    /// Least time between two CNPs of one scope; zero for one per mark (`min_time_between_cnps`).
    pub cnp_interval: Duration,
    /// What the interval is kept for.
    pub cnp_scope: CnpScope,
    /// How many scopes are remembered at the same time.
    pub cnp_flows: u32,
    /// DSCP of CNPs (`cnp_dscp`).
    pub cnp_dscp: u8,
    /// ECN bits of CNPs, 0 to 3.
    pub cnp_ecn: u8,
    /// Priority of CNPs in a VLAN tag (`cnp_802p_prio`).
    pub cnp_802p_prio: u8,
    /// Marked datagrams are answered too.
    pub cnp_for_ud: bool,
    /// A NAK of a gap in the sequence comes with a CNP.
    pub nack_triggers_cnp: bool,
    /// Priorities that take part, bit i for priority i (`ROCE_CC_PRIO_MASK`).
    pub cc_prio_mask: u8,
}

/// A parameter outside its range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key} must be {range}")]
#[non_exhaustive]
pub struct ParamsError {
    /// Name of the key.
    pub key: &'static str,
    /// What it may be.
    pub range: String,
}

impl Params {
    /// The parameters of the paper that introduced DCQCN (SIGCOMM 2015). It gives no lowest rate and no hyper
    /// increase: those are of its authors' simulator.
    pub const PAPER: Self = Self {
        profile: Profile::Paper,
        alpha_g: 1.0 / 256.0,
        alpha_period: Duration::from_micros(55),
        alpha_init: 1.0,
        alpha_10_bits: false,
        alpha_order: AlphaOrder::CutFirst,
        cut_period: Duration::ZERO,
        first_cnp_rate: Rate::ZERO,
        cut_shift: 11,
        min_dec_fac: 50,
        min_rate: Rate::from_mbps(100.0),
        max_rate: Rate::ZERO,
        time_reset: Duration::from_micros(55),
        byte_reset_bytes: 10_000_000,
        threshold: 5,
        stage_test: StageTest::Before,
        ai_rate: Rate::from_mbps(40.0),
        hai_rate: Rate::from_mbps(200.0),
        hyper_multiplier: true,
        clamp_tgt_rate: true,
        clamp_tgt_rate_after_time_inc: true,
        release_at_line: false,
        np_mode: NpMode::Immediate,
        cnp_interval: Duration::from_micros(50),
        cnp_scope: CnpScope::Qp,
        cnp_flows: 1024,
        cnp_dscp: 48,
        cnp_ecn: 2,
        cnp_802p_prio: 6,
        cnp_for_ud: false,
        nack_triggers_cnp: false,
        cc_prio_mask: 0xFF,
    };

    /// The defaults of ConnectX NICs, as the vendor and public firmware settings give them. The unit of
    /// `rpg_byte_reset` (32767) is not public; 64 bytes is the reading that fits other vendors' profiles.
    pub const CONNECTX: Self = Self {
        profile: Profile::Connectx,
        alpha_g: 5.0 / 1024.0,
        alpha_period: Duration::from_micros(1),
        alpha_init: 1023.0 / 1024.0,
        cut_period: Duration::from_micros(4),
        min_rate: Rate::from_mbps(1.0),
        time_reset: Duration::from_micros(300),
        byte_reset_bytes: 32_767 * 64,
        threshold: 1,
        ai_rate: Rate::from_mbps(5.0),
        hai_rate: Rate::from_mbps(50.0),
        hyper_multiplier: false,
        clamp_tgt_rate: false,
        release_at_line: true,
        cnp_interval: Duration::from_micros(4),
        ..Self::PAPER
    };

    /// The set a profile starts from.
    #[must_use]
    pub const fn of(profile: Profile) -> Self {
        match profile {
            Profile::Paper => Self::PAPER,
            Profile::Connectx => Self::CONNECTX,
        }
    }

    /// The same in slow motion: times `factor` times as long, rates as many times as low, bytes as they are. A slow
    /// machine on a slow link then goes through the same states as fast hardware.
    #[must_use]
    pub fn dilated(mut self, factor: f64) -> Self {
        let times =
            [&mut self.alpha_period, &mut self.cut_period, &mut self.time_reset, &mut self.cnp_interval];
        for time in times {
            *time = keys::nanos(time.as_nanos() as f64 * factor);
        }
        let rates = [
            &mut self.first_cnp_rate,
            &mut self.min_rate,
            &mut self.max_rate,
            &mut self.ai_rate,
            &mut self.hai_rate,
        ];
        for rate in rates {
            *rate = Rate::from_bps(rate.bps() / factor);
        }
        self
    }

    /// Traffic class of CNPs, from DSCP and ECN bits.
    #[must_use]
    pub const fn cnp_traffic_class(&self) -> u8 {
        // Rule R-CNP-8.
        self.cnp_dscp << 2 | self.cnp_ecn & 3
    }

    /// Whether packets of this traffic class take part.
    #[must_use]
    pub const fn covers(&self, traffic_class: u8) -> bool {
        self.cc_prio_mask & 1 << priority_of(traffic_class) != 0
    }

    /// Checks that every parameter is in its range, and that they go together.
    ///
    /// # Errors
    /// The first that is not.
    pub fn check(&self) -> Result<(), ParamsError> {
        for key in keys::KEYS {
            if let Value::Number(value) = key.value(self)
                && !key.holds(value)
            {
                return Err(ParamsError { key: key.name, range: key.range() });
            }
        }
        let wrong = |key, range: &str| Err(ParamsError { key, range: range.to_owned() });
        match self.profile {
            Profile::Paper if self.cut_period > Duration::ZERO => {
                wrong("rate_reduce_monitor_period", "0 in the profile paper, which cuts at every CNP")
            }
            Profile::Connectx if self.cut_period == Duration::ZERO => {
                wrong("rate_reduce_monitor_period", "above 0 in the profile connectx")
            }
            _ if self.max_rate > Rate::ZERO && self.max_rate < self.min_rate => {
                let (least, most) = (self.min_rate.mbps(), self.max_rate.mbps());
                wrong("rpg_max_rate", &format!("0 or at least rpg_min_rate, {least} Mb/s: it is {most}"))
            }
            _ => Ok(()),
        }
    }
}

/// The priority that a traffic class has by default: the upper three bits of its DSCP.
const fn priority_of(traffic_class: u8) -> u8 {
    traffic_class >> 5
}

/// The traffic class of data packets under congestion control: ECT(0) where the user has set no ECN bits.
#[must_use]
pub const fn data_traffic_class(traffic_class: u8) -> u8 {
    match Ecn::from_tos(traffic_class) {
        Ecn::NotEct => traffic_class | 2,
        _ => traffic_class,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sets_are_in_range() {
        assert_eq!(Params::PAPER.check(), Ok(()));
        assert_eq!(Params::CONNECTX.check(), Ok(()));
        assert_eq!(Params::PAPER.dilated(200.0).check(), Ok(()));
        assert_eq!(Params::of(Profile::Connectx), Params::CONNECTX);
        assert_eq!(Params::of(Profile::Paper), Params::PAPER);
    }

    #[test]
    fn a_value_out_of_range_is_named() {
        let wrong = Params { min_rate: Rate::ZERO, ..Params::PAPER };
        let error = wrong.check().unwrap_err();
        assert_eq!(error.key, "rpg_min_rate");
        let wrong = Params { alpha_g: f64::NAN, ..Params::PAPER };
        let text = wrong.check().map_err(|e| e.to_string());
        assert_eq!(text, Err("dce_tcp_g must be 0 to 1".into()));
    }

    #[test]
    fn what_does_not_go_together_is_refused() {
        for (wrong, key) in [
            (Params { cut_period: Duration::from_micros(4), ..Params::PAPER }, "rate_reduce_monitor_period"),
            (Params { cut_period: Duration::ZERO, ..Params::CONNECTX }, "rate_reduce_monitor_period"),
            (Params { max_rate: Rate::from_mbps(99.0), ..Params::PAPER }, "rpg_max_rate"),
        ] {
            assert_eq!(wrong.check().map_err(|e| e.key), Err(key));
        }
    }

    #[test]
    fn alpha_outlives_the_gap_between_cnps() {
        // Otherwise it would decay between CNPs that follow each other as closely as they may.
        assert!(Params::PAPER.alpha_period > Params::PAPER.cnp_interval);
    }

    #[test]
    fn slow_motion_keeps_the_bytes_of_every_period() {
        let (fast, slow) = (Params::PAPER, Params::PAPER.dilated(200.0));
        assert_eq!(slow.time_reset, Duration::from_millis(11));
        assert_eq!(slow.cnp_interval, Duration::from_millis(10));
        assert_eq!(slow.ai_rate, Rate::from_mbps(0.2));
        assert_eq!(slow.byte_reset_bytes, fast.byte_reset_bytes);
    }

    /// Rule R-CNP-8.
    #[test]
    fn a_cnps_traffic_class_is_c2_and_data_is_ect() {
        assert_eq!(Params::CONNECTX.cnp_traffic_class(), 0xC2);
        assert_eq!(data_traffic_class(0x68), 0x6A);
        for set in [0x69, 0x6A, 0x6B] {
            assert_eq!(data_traffic_class(set), set);
        }
    }

    #[test]
    fn the_mask_picks_priorities() {
        let params = Params { cc_prio_mask: 1 << 3, ..Params::PAPER };
        assert!(params.covers(26 << 2 | 2));
        assert!(!params.covers(48 << 2));
    }
}
