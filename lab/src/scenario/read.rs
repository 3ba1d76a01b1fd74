//! What the keys of a scenario mean.

use std::collections::BTreeMap;

use dcqcn::Rate;
use fabric::switched::{
    Balance, Cable, MarkAt, Pfc, Red, Scheduling, Threshold, WatchdogAction, WatchdogParams,
};
use fabric::{FaultKind, FaultSpec, SwitchParams};
use qp::QpType;
use wire::{Duration, Mtu};

use crate::memory::Memory;

use super::names::Names;
use super::section::{Range, Section, real, whole};
use super::tree::{self, Source, Table, Value};
use super::{
    FlowSetup, HostSetup, Measure, NodeRef, QpSetup, Scenario, ScenarioError, Setup, SwitchSetup, cc,
};

const MS: Range = real(0.0, 1e7, "ms");
const US: Range = real(0.0, 1e9, "us");
const GBPS: Range = real(1e-6, 1e4, "Gb/s");
const KB: Range = real(0.0, 1e8, "KB");
const SHARE: Range = real(0.0, 1.0, "");
const FACTOR: Range = real(0.001, 1e3, "");
const PRIORITY: Range = whole(0, 7, "");
const COUNT: Range = whole(1, 4096, "");
/// Each is two queue pairs with their memory.
const MOST_FLOWS: usize = 65_536;
/// Each is two series.
const MOST_WATCHED: usize = 64;

pub(super) fn scenario(
    name: &str,
    text: &str,
    sets: &[String],
    seed: Option<u64>,
) -> Result<Scenario, ScenarioError> {
    let (source, table) = tree::parse(text, sets)?;
    let mut top = Section::new(&source, &table);
    let variants = variants(&table, &mut top)?;
    let (title, see) = (top.text("title")?.unwrap_or(name), top.text("see")?.unwrap_or_default());
    let file_seed = top.count("seed", whole(0, u32::MAX, ""))?;
    let memory = memory(&mut top)?;
    let setups = match memory {
        Some(_) => Vec::new(),
        None => variants.iter().map(|(name, table)| setup(name, &source, table)).collect::<Result<_, _>>()?,
    };
    if memory.is_some() {
        top.finish()?;
    }
    let scenario = Scenario {
        name: name.to_owned(),
        title: title.to_owned(),
        see: see.to_owned(),
        seed: seed.or(file_seed.map(u64::from)).unwrap_or(1),
        parameters: tree::to_json(&table),
        setups,
        memory,
    };
    Ok(scenario)
}

/// The table `[memory]`, where there is one.
fn memory(top: &mut Section<'_>) -> Result<Option<Memory>, ScenarioError> {
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

/// The file with each of its variants put over it; without any, as it is.
fn variants(table: &Table, top: &mut Section<'_>) -> Result<Vec<(String, Table)>, ScenarioError> {
    let mut out = Vec::new();
    for mut section in top.sections("variants")? {
        let name = section.text("name")?.ok_or_else(|| section.wrong("name", "text in quotes"))?;
        if name.is_empty() || out.iter().any(|(other, _)| other == name) {
            return Err(section.wrong("name", "a name that no other variant has"));
        }
        let mut whole = table.clone();
        whole.remove("variants");
        let change: Table = section
            .entries()
            .filter(|(key, _)| *key != "name")
            .map(|(key, node)| (key.to_owned(), node.clone()))
            .collect();
        let place = section.place_of("name");
        tree::merge(&mut whole, change).map_err(|what| ScenarioError::new(place, None, what))?;
        out.push((name.to_owned(), whole));
    }
    if out.is_empty() {
        let mut whole = table.clone();
        whole.remove("variants");
        out.push((String::new(), whole));
    }
    Ok(out)
}

/// How much slower everything is, and from what is written to what is simulated.
#[derive(Clone, Copy)]
struct Scale(f64);

impl Scale {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "floats saturate; whole ns")]
    fn time(self, nanos: f64) -> Duration {
        Duration::from_nanos((nanos * self.0).round() as u64)
    }

    fn ms(self, ms: f64) -> Duration {
        self.time(ms * 1e6)
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at least 1, saturating")]
    fn cable(self, gbps: f64, us: f64) -> Cable {
        Cable { rate: (gbps * 1e9 / self.0).max(1.0) as u64, delay: self.time(us * 1e3) }
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "in a range of this type's")]
fn bytes(kb: f64) -> u64 {
    (kb * 1e3).round() as u64
}

fn setup(name: &str, source: &Source, table: &Table) -> Result<Setup, ScenarioError> {
    let mut top = Section::new(source, table);
    for text in ["title", "see"] {
        top.text(text)?;
    }
    top.count("seed", whole(0, u32::MAX, ""))?;
    let dilation = top.number("dilation", real(1.0, 1e6, ""))?.unwrap_or(1.0);
    let scale = Scale(dilation);
    let duration_ms = top.number("duration_ms", real(0.001, 1e6, "ms"))?.unwrap_or(100.0);
    // A run that is cut short is warmed up for less, so that something is left to measure.
    let warmup_ms = match top.number("warmup_ms", MS)? {
        Some(ms) if ms >= duration_ms => duration_ms / 5.0,
        ms => ms.unwrap_or(0.0),
    };
    let sizes = [("senders", top.count("senders", COUNT)?), ("receivers", top.count("receivers", COUNT)?)];
    let mut link = top.section("link")?;
    let line = (link.number("rate_gbps", GBPS)?.unwrap_or(40.0), link.number("delay_us", US)?.unwrap_or(1.0));
    link.finish()?;
    // Its keys are known there.
    let cc = cc::read(&top.section("cc")?, dilation)?;
    let mut base = top.section("switch")?;
    let params = switch_params(&mut base, SwitchParams::default(), scale)?;
    base.finish()?;

    let mut switches = Vec::new();
    for mut section in top.sections("switches")? {
        let name = section.text("name")?.ok_or_else(|| section.wrong("name", "text in quotes"))?;
        if name.is_empty() || switches.iter().any(|switch: &SwitchSetup| switch.name == name) {
            return Err(section.wrong("name", "a name that no other switch has"));
        }
        let params = switch_params(&mut section, params, scale)?;
        switches.push(SwitchSetup { name: name.to_owned(), params });
        section.finish()?;
    }
    if switches.is_empty() {
        switches.push(SwitchSetup { name: "switch".to_owned(), params });
    }
    let mut names = Names {
        switches: switches.iter().map(|switch| switch.name.clone()).collect(),
        groups: BTreeMap::new(),
        hosts: BTreeMap::new(),
    };
    let mut hosts = Vec::new();
    for section in top.sections("hosts")? {
        host_group(section, &mut names, &mut hosts, &sizes, (line, scale))?;
    }
    if hosts.is_empty() {
        return Err(top.wrong("hosts", "a list of tables: [[hosts]]"));
    }
    let mut trunks = Vec::new();
    for mut section in top.sections("trunks")? {
        let mut end = |key| {
            let name = section.text(key)?.ok_or_else(|| section.wrong(key, "the name of a switch"))?;
            names.switch(&section, key, name)
        };
        let (from, to) = (end("from")?, end("to")?);
        if from == to {
            return Err(section.wrong("to", "a switch other than the one that it comes from"));
        }
        let gbps = section.number("rate_gbps", GBPS)?.unwrap_or(line.0);
        let us = section.number("delay_us", US)?.unwrap_or(line.1);
        trunks.push((from, to, scale.cable(gbps, us)));
        section.finish()?;
    }
    let mut routes = Vec::new();
    for mut section in top.sections("routes")? {
        let at = section.text("at")?.ok_or_else(|| section.wrong("at", "the name of a switch"))?;
        let via = section.text("via")?.ok_or_else(|| section.wrong("via", "the name of a switch"))?;
        let to = section.text("to")?.ok_or_else(|| section.wrong("to", "the name of hosts"))?;
        let (at, via) = (names.switch(&section, "at", at)?, names.switch(&section, "via", via)?);
        if !trunks.iter().any(|(a, b, _)| (*a, *b) == (at, via) || (*b, *a) == (at, via)) {
            return Err(section.wrong("via", "a switch with a trunk to the one that the route is at"));
        }
        routes.extend(names.hosts(&section, "to", to)?.into_iter().map(|host| (at, host, via)));
        section.finish()?;
    }
    let mut qp_section = top.section("qp")?;
    let qp = qp(&mut qp_section)?;
    qp_section.finish()?;
    let mut flows = Vec::new();
    for section in top.sections("flows")? {
        flow_group(section, &names, &mut flows, &qp, scale)?;
    }
    if flows.is_empty() {
        return Err(top.wrong("flows", "a list of tables: [[flows]]"));
    }
    let mut stuck = Vec::new();
    for mut section in top.sections("stuck")? {
        let host = section.text("host")?.ok_or_else(|| section.wrong("host", "the name of a host"))?;
        let priority = priority(&mut section, 3)?;
        let from = section.number("from_ms", MS)?.unwrap_or(0.0);
        // A run that is cut short ends before it.
        let to = section.number("to_ms", MS)?.unwrap_or(duration_ms.max(from));
        if to < from {
            return Err(section.wrong("to_ms", format!("{from} ms (from_ms) or later")));
        }
        for host in names.hosts(&section, "host", host)? {
            stuck.push((host, priority, scale.ms(from), scale.ms(to)));
        }
        section.finish()?;
    }
    for section in top.sections("faults")? {
        faults(section, &names, &mut hosts)?;
    }
    let mut section = top.section("measure")?;
    let measure = {
        let joined = |ends: &(NodeRef, NodeRef)| are_neighbours(*ends, &hosts, &trunks);
        measure(&mut section, &names, (&hosts, &flows), joined, scale)?
    };
    section.finish()?;
    top.finish()?;
    Ok(Setup {
        name: name.to_owned(),
        dilation,
        duration: scale.ms(duration_ms),
        warmup: scale.ms(warmup_ms),
        cc,
        qp,
        switches,
        hosts,
        trunks,
        routes,
        flows,
        stuck,
        measure,
    })
}

fn priority(section: &mut Section<'_>, default: u8) -> Result<u8, ScenarioError> {
    #[expect(clippy::cast_possible_truncation, reason = "0 to 7")]
    Ok(section.count("priority", PRIORITY)?.map_or(default, |priority| priority as u8))
}

/// Priorities as bits.
fn mask(section: &mut Section<'_>, key: &'static str, default: u8) -> Result<u8, ScenarioError> {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 7")]
    let bit = |priority: f64| 1 << priority as u8;
    Ok(section.numbers(key, PRIORITY)?.map_or(default, |all| all.into_iter().map(bit).fold(0, |a, b| a | b)))
}

/// What a switch is like: what the section says, and `base` where it says nothing.
fn switch_params(
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

fn host_group(
    mut section: Section<'_>,
    names: &mut Names,
    hosts: &mut Vec<HostSetup>,
    sizes: &[(&str, Option<u32>)],
    ((gbps, us), scale): ((f64, f64), Scale),
) -> Result<(), ScenarioError> {
    let name = section.text("name")?.ok_or_else(|| section.wrong("name", "text in quotes"))?;
    if name.is_empty() || names.has(name) {
        return Err(section.wrong("name", "a name that no other hosts and no switch have"));
    }
    let given = section.entries().find(|(key, _)| *key == "count").map(|(_, node)| &node.value);
    let (count, is_group) = if let Some(Value::Text(of)) = given {
        section.text("count")?;
        let size = sizes.iter().find(|(name, _)| name == of).and_then(|(_, size)| *size);
        let range = "a whole number, 1 to 4096, or \"senders\" or \"receivers\" where there is that key";
        (size.ok_or_else(|| section.wrong("count", range))?, true)
    } else {
        section.count("count", COUNT)?.map_or((1, false), |count| (count, true))
    };
    let switch = match section.text("switch")? {
        Some(name) => names.switch(&section, "switch", name)?,
        None => 0,
    };
    let gbps = section.number("rate_gbps", GBPS)?.unwrap_or(gbps);
    let us = section.number("delay_us", US)?.unwrap_or(us);
    let cable = scale.cable(gbps, us);
    if hosts.len() + count as usize > 16_384 {
        return Err(section.wrong("count", "such that there are 16384 hosts at most"));
    }
    let mut group = Vec::new();
    for n in 1..=count {
        let name = if is_group { format!("{name}{n}") } else { name.to_owned() };
        if is_group && names.has(&name) {
            let range = format!("a name whose hosts ({name}) no other hosts and no switch are called as");
            return Err(section.wrong("name", range));
        }
        group.push(hosts.len());
        names.hosts.insert(name.clone(), hosts.len());
        hosts.push(HostSetup { name, switch, cable, faults: Vec::new() });
    }
    names.groups.insert(name.to_owned(), group);
    section.finish()
}

fn mtu(section: &mut Section<'_>, default: Mtu) -> Result<Mtu, ScenarioError> {
    let range = "256, 512, 1024, 2048 or 4096 bytes";
    let Some(bytes) = section.count("mtu", whole(0, u32::MAX, ""))? else { return Ok(default) };
    Mtu::from_bytes(bytes).ok_or_else(|| section.wrong("mtu", range))
}

fn qp(section: &mut Section<'_>) -> Result<QpSetup, ScenarioError> {
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

fn flow_group(
    mut section: Section<'_>,
    names: &Names,
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

fn faults(mut section: Section<'_>, names: &Names, hosts: &mut [HostSetup]) -> Result<(), ScenarioError> {
    let host = section.text("host")?.ok_or_else(|| section.wrong("host", "the name of hosts"))?;
    let its = names.hosts(&section, "host", host)?;
    let mut specs = Vec::new();
    for (key, kind) in [
        ("drop", FaultKind::Drop),
        ("dup", FaultKind::Duplicate),
        ("corrupt", FaultKind::Corrupt),
        ("reorder", FaultKind::Reorder),
        ("delay", FaultKind::Delay),
    ] {
        if let Some(text) = section.text(key)? {
            let spec = FaultSpec::parse(kind, text);
            specs.push(spec.map_err(|error| section.wrong(key, format!("as the option --{key}: {error}")))?);
        }
    }
    for host in its {
        hosts[host].faults.extend(&specs);
    }
    section.finish()
}

/// Whether a cable joins the two.
fn are_neighbours(ends: (NodeRef, NodeRef), hosts: &[HostSetup], trunks: &[(usize, usize, Cable)]) -> bool {
    match ends {
        (NodeRef::Host(host), NodeRef::Switch(switch)) | (NodeRef::Switch(switch), NodeRef::Host(host)) => {
            hosts[host].switch == switch
        }
        (NodeRef::Switch(a), NodeRef::Switch(b)) => {
            trunks.iter().any(|&(from, to, _)| (from, to) == (a, b) || (from, to) == (b, a))
        }
        (NodeRef::Host(_), NodeRef::Host(_)) => false,
    }
}

fn measure(
    section: &mut Section<'_>,
    names: &Names,
    (hosts, flows): (&[HostSetup], &[FlowSetup]),
    are_neighbours: impl Fn(&(NodeRef, NodeRef)) -> bool,
    scale: Scale,
) -> Result<Measure, ScenarioError> {
    let first = &flows[0];
    let mut watch = Vec::new();
    for text in section.texts("watch")?.unwrap_or_default() {
        let ends = text.split_once("->").and_then(|(from, to)| {
            let joined = names.node(from.trim()).zip(names.node(to.trim()));
            joined.filter(&are_neighbours)
        });
        let ends = ends.ok_or_else(|| {
            section.wrong("watch", "a list of queues, as \"switch->host\" with names of neighbours")
        })?;
        if watch.contains(&ends) || watch.len() == MOST_WATCHED {
            return Err(section.wrong("watch", format!("{MOST_WATCHED} queues at most, each once")));
        }
        watch.push(ends);
    }
    if watch.is_empty() {
        watch.push((NodeRef::Switch(hosts[first.to].switch), NodeRef::Host(first.to)));
    }
    let capture = match section.text("capture")? {
        Some(name) => names.hosts(section, "capture", name)?[0],
        None => first.to,
    };
    Ok(Measure {
        watch,
        priority: priority(section, first.priority)?,
        window: scale.ms(section.number("window_ms", real(0.001, 1e6, "ms"))?.unwrap_or(100.0)),
        steps: section.count("steps", whole(10, 10_000, ""))?.unwrap_or(500),
        capture,
        theory: section.flag("theory")?.unwrap_or(false),
    })
}
