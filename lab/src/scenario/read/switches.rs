//! What a switch is like: buffer, marks, pauses, scheduling and watchdog.

use fabric::SwitchParams;
use fabric::switched::{Balance, MarkAt, Pfc, Red, Scheduling, Threshold, WatchdogAction, WatchdogParams};

use crate::scenario::ScenarioError;
use crate::scenario::section::{Range, Section, real, whole};

use super::units::{KB, PRIORITY, Scale, bytes};

const SHARE: Range = real(0.0, 1.0, "");
const FACTOR: Range = real(0.001, 1e3, "");

/// What a switch is like: what the section says, and `base` where it says nothing.
pub(super) fn switch_params(
    section: &mut Section<'_>,
    base: SwitchParams,
    scale: Scale,
) -> Result<SwitchParams, ScenarioError> {
    let mut params = base;
    if let Some(kb) = section.number("buffer_kb", real(1.0, 1e8, "KB"))? {
        params.buffer = bytes(kb);
    }
    if let Some(mtu) = section.count("mtu", whole(256, 65_535, "bytes of an IP packet"))? {
        params.mtu = mtu;
    }
    let lossy = threshold(section, "lossy_kb", "lossy_share")?;
    params.lossy = lossy.unwrap_or(base.lossy);
    let old = base.red.unwrap_or(Red { kmin: 5_000, kmax: 200_000, pmax: 0.01, at: MarkAt::Dequeue });
    let kmin = section.number("kmin_kb", KB)?.map_or(old.kmin, bytes);
    let kmax = section.number("kmax_kb", KB)?.map_or(old.kmax, bytes);
    if kmin > kmax {
        let key = if section.has("kmin_kb") { "kmin_kb" } else { "kmax_kb" };
        return Err(section.wrong(
            key,
            format!("such that kmin_kb ({}) is not above kmax_kb ({})", kmin / 1000, kmax / 1000),
        ));
    }
    let pmax = section.number("pmax", SHARE)?.unwrap_or(old.pmax);
    let at = match section.word("mark", &["dequeue", "enqueue"])? {
        Some(0) => MarkAt::Dequeue,
        Some(_) => MarkAt::Enqueue,
        None => old.at,
    };
    let ecn = section.flag("ecn")?.unwrap_or(true);
    params.red = ecn.then_some(Red { kmin, kmax, pmax, at });
    let had_pfc = base.pfc.is_some();
    let mut pfc = base.pfc.unwrap_or(Pfc::new(1 << 3, 100_000, 100_000));
    pfc.xoff = threshold(section, "xoff_kb", "xoff_share")?.unwrap_or(pfc.xoff);
    pfc.xon_gap = section.number("xon_gap_kb", KB)?.map_or(pfc.xon_gap, bytes);
    pfc.headroom = section.number("headroom_kb", KB)?.map_or(pfc.headroom, bytes);
    pfc.lossless = mask(section, "lossless", pfc.lossless)?;
    params.pfc = section.flag("pfc")?.unwrap_or(had_pfc).then_some(pfc);
    let mut scheduling = params.scheduling;
    scheduling.strict = mask(section, "strict", scheduling.strict)?;
    if let Some(weights) = section.numbers("weights", whole(1, 255, ""))? {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "1 to 255")]
        let weights: Vec<u8> = weights.into_iter().map(|weight| weight as u8).collect();
        scheduling.weights =
            weights.try_into().map_err(|_| section.wrong("weights", "eight, of priorities 0 to 7"))?;
    }
    params.scheduling = Scheduling { ..scheduling };
    params.balance = match section.word("balance", &["ecmp", "adaptive"])? {
        Some(0) => Balance::Ecmp,
        Some(_) => Balance::Adaptive,
        None => base.balance,
    };
    let old = base.watchdog.unwrap_or(WatchdogParams {
        detection: scale.ms(200.0),
        poll: scale.ms(200.0),
        restoration: scale.ms(200.0),
        action: WatchdogAction::Drop,
    });
    let mut time = |key, old| Ok(section.number(key, real(0.001, 1e6, "ms"))?.map_or(old, |ms| scale.ms(ms)));
    let (detection, restoration) =
        (time("detection_ms", old.detection)?, time("restoration_ms", old.restoration)?);
    let poll = time("poll_ms", old.poll)?;
    let dog = |action| Some(WatchdogParams { detection, poll, restoration, action });
    params.watchdog = match section.word("watchdog", &["off", "drop", "forward", "alert"])? {
        Some(0) => None,
        Some(1) => dog(WatchdogAction::Drop),
        Some(2) => dog(WatchdogAction::Forward),
        Some(_) => dog(WatchdogAction::Alert),
        None => base.watchdog.and_then(|old| dog(old.action)),
    };
    Ok(params)
}

fn threshold(
    section: &mut Section<'_>,
    kb: &'static str,
    share: &'static str,
) -> Result<Option<Threshold>, ScenarioError> {
    let fixed = section.number(kb, KB)?.map(|kb| Threshold::Static(bytes(kb)));
    let dynamic = section.number(share, FACTOR)?.map(Threshold::Dynamic);
    if fixed.is_some() && dynamic.is_some() {
        return Err(section.wrong(share, format!("left out where there is {kb}")));
    }
    Ok(fixed.or(dynamic))
}

/// Priorities as bits.
fn mask(section: &mut Section<'_>, key: &'static str, default: u8) -> Result<u8, ScenarioError> {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 7")]
    let bit = |priority: f64| 1 << priority as u8;
    Ok(section.numbers(key, PRIORITY)?.map_or(default, |all| all.into_iter().map(bit).fold(0, |a, b| a | b)))
}
