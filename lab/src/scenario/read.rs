//! What the keys of a scenario mean: the whole file here, its tables in the submodules.

use std::collections::BTreeMap;

use fabric::SwitchParams;

use super::names::Names;
use super::section::{Section, real, whole};
use super::tree::{self, Source, Table};
use super::{NodeRef, Scenario, ScenarioError, Setup, SwitchSetup, cc};

mod flows;
mod hosts;
mod measure;
mod memory;
mod reach;
mod switches;
mod units;

use flows::{flow_group, qp};
use hosts::{faults, host_group};
use measure::{are_neighbours, measure};
use memory::memory;
use reach::Reach;
use switches::switch_params;
use units::{COUNT, GBPS, MS, Scale, US, priority};

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
    let reach = Reach::new(&hosts, &names.switches, &trunks);
    for section in top.sections("flows")? {
        flow_group(section, (&names, &reach), &mut flows, &qp, scale)?;
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
