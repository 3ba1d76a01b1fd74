//! Flows, and the queue pairs that carry them.

use dcqcn::Rate;
use qp::QpType;
use wire::Mtu;

use crate::scenario::names::Names;
use crate::scenario::section::{Section, real, whole};
use crate::scenario::{FlowSetup, QpSetup, ScenarioError};

use super::reach::Reach;
use super::units::{GBPS, MS, Scale, US, bytes, priority};

/// Each is two queue pairs with their memory.
const MOST_FLOWS: usize = 65_536;

fn mtu(section: &mut Section<'_>, default: Mtu) -> Result<Mtu, ScenarioError> {
    let range = "256, 512, 1024, 2048 or 4096 bytes";
    let Some(bytes) = section.count("mtu", whole(0, u32::MAX, ""))? else { return Ok(default) };
    Mtu::from_bytes(bytes).ok_or_else(|| section.wrong("mtu", range))
}

pub(super) fn qp(section: &mut Section<'_>) -> Result<QpSetup, ScenarioError> {
    #[expect(clippy::cast_possible_truncation, reason = "at most 31")]
    let small = |value: Option<u32>, default: u8| value.map_or(default, |value| value as u8);
    Ok(QpSetup {
        mtu: mtu(section, Mtu::B1024)?,
        window: section.count("window", whole(1, 1 << 22, "packets"))?.unwrap_or(1 << 16),
        timeout: small(section.count("timeout", whole(0, 31, ""))?, 17),
        retry_count: small(section.count("retry_count", whole(0, 7, ""))?, 7),
        chunk: section.count("chunk_kib", whole(1, 4096, "KiB"))?.unwrap_or(64) << 10,
        depth: section.count("depth", whole(1, 4096, ""))?.unwrap_or(128),
    })
}

pub(super) fn flow_group(
    mut section: Section<'_>,
    (names, reach): (&Names, &Reach<'_>),
    flows: &mut Vec<FlowSetup>,
    qp: &QpSetup,
    scale: Scale,
) -> Result<(), ScenarioError> {
    let name = section.text("name")?.unwrap_or("flow");
    let from = section.text("from")?.ok_or_else(|| section.wrong("from", "the name of hosts"))?;
    let from = names.hosts(&section, "from", from)?;
    let pairs = section.word("pairs", &["each", "all", "ring"])?.unwrap_or(0);
    let to = match section.text("to")? {
        Some(to) => names.hosts(&section, "to", to)?,
        None if pairs == 2 => from.clone(),
        None => return Err(section.wrong("to", "the name of hosts")),
    };
    let qps = section.count("qps", whole(1, 1024, ""))?.unwrap_or(1);
    let pairs_there_are = match pairs {
        0 => from.len().max(to.len()),
        1 => from.len().saturating_mul(to.len()),
        _ => from.len(),
    };
    // Counted before they are made: two large groups have more pairs than memory holds.
    let first = flows.len();
    let all = pairs_there_are.saturating_mul(qps as usize);
    if first.saturating_add(all) > MOST_FLOWS {
        let key = if qps > 1 { "qps" } else { "from" };
        return Err(section.wrong(key, format!("such that there are {MOST_FLOWS} flows at most")));
    }
    let ends: Vec<(usize, usize)> = match pairs {
        0 => (0..from.len().max(to.len())).map(|n| (from[n % from.len()], to[n % to.len()])).collect(),
        1 => from.iter().flat_map(|from| to.iter().map(|to| (*from, *to))).collect(),
        _ => (0..from.len()).map(|n| (from[n], from[(n + 1) % from.len()])).collect(),
    };
    if ends.iter().any(|(from, to)| from == to) {
        return Err(section.wrong("to", "hosts other than those that send"));
    }
    if let Some(gap) = ends.iter().find_map(|ends| reach.gap(name, *ends)) {
        return Err(section.wrong(if section.has("to") { "to" } else { "from" }, gap));
    }
    let size = section.number("size_kb", real(0.001, 1e9, "KB"))?;
    let count = section.count("messages", whole(1, 1_000_000, ""))?;
    let messages = match (size, pairs) {
        (None, 2) => return Err(section.wrong("size_kb", "0.001 to 1000000000 KB in a ring")),
        (None, _) if count.is_some() => {
            return Err(section.wrong("messages", "left out where there is no size_kb"));
        }
        (None, _) => None,
        // Reduce and gather: twice as many steps as there are others, with a share of the whole each.
        (Some(kb), 2) => {
            let ranks = ends.len() as f64;
            #[expect(clippy::cast_possible_truncation, reason = "at most 4096 hosts")]
            let steps = 2 * (ends.len() as u32 - 1);
            let range = format!("{} at most, with {steps} steps each", u32::MAX / steps);
            let all = steps.checked_mul(count.unwrap_or(1));
            Some((bytes(kb / ranks).max(1), all.ok_or_else(|| section.wrong("messages", range))?))
        }
        (Some(kb), _) => Some((bytes(kb), count.unwrap_or(1))),
    };
    let period = section.number("period_ms", real(0.0, 1e6, "ms"))?.map(|ms| scale.ms(ms));
    if period.is_some() && (messages.is_none() || pairs == 2) {
        return Err(section.wrong("period_ms", "left out of rings and where there is no size_kb"));
    }
    let start = section.number("start_ms", MS)?.unwrap_or(0.0);
    let stop = section.number("stop_ms", real(start, 1e7, "ms, not before start_ms"))?;
    let jitter = section.number("jitter_us", US)?.unwrap_or(0.0);
    let initial = section.number("initial_gbps", GBPS)?;
    let qp_type = match section.word("service", &["rc", "uc"])? {
        Some(1) => QpType::Uc,
        _ => QpType::Rc,
    };
    let priority = priority(&mut section, 3)?;
    let mtu = mtu(&mut section, qp.mtu)?;
    let has_own_port = section.flag("own_port")?.unwrap_or(true);
    for (n, (from, to)) in ends.iter().flat_map(|ends| std::iter::repeat_n(*ends, qps as usize)).enumerate() {
        let name = if all == 1 { name.to_owned() } else { format!("{name}{}", n + 1) };
        let before = (n + all - qps as usize) % all;
        flows.push(FlowSetup {
            name,
            from,
            to,
            qp_type,
            priority,
            mtu,
            messages,
            period,
            start: scale.ms(start),
            stop: scale.ms(stop.unwrap_or(1e7)),
            jitter: scale.time(jitter * 1e3),
            initial: initial.map(|gbps| Rate::from_gbps(gbps / scale.0)),
            has_own_port,
            follows: (pairs == 2).then_some(first + before),
        });
    }
    section.finish()
}
