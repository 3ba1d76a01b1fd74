//! Hosts, and what goes wrong on their cables.

use fabric::{FaultKind, FaultSpec};

use crate::scenario::names::Names;
use crate::scenario::section::Section;
use crate::scenario::tree::Value;
use crate::scenario::{HostSetup, ScenarioError};

use super::units::{COUNT, GBPS, Scale, US};

pub(super) fn host_group(
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

pub(super) fn faults(
    mut section: Section<'_>,
    names: &Names,
    hosts: &mut [HostSetup],
) -> Result<(), ScenarioError> {
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
