//! Names of hosts, groups of them and switches while a scenario is read, and what they name.

use std::collections::BTreeMap;

use super::section::Section;
use super::{NodeRef, ScenarioError};

/// Hosts, switches and groups by name.
pub(super) struct Names {
    pub(super) switches: Vec<String>,
    pub(super) groups: BTreeMap<String, Vec<usize>>,
    pub(super) hosts: BTreeMap<String, usize>,
}

impl Names {
    /// Whether anything is called so.
    pub(super) fn has(&self, name: &str) -> bool {
        self.groups.contains_key(name)
            || self.hosts.contains_key(name)
            || self.switches.iter().any(|switch| switch == name)
    }

    pub(super) fn switch(
        &self,
        section: &Section<'_>,
        key: &str,
        name: &str,
    ) -> Result<usize, ScenarioError> {
        self.switches
            .iter()
            .position(|switch| switch == name)
            .ok_or_else(|| section.wrong(key, format!("a switch: {}", self.switches.join(", "))))
    }

    /// The hosts of a group, or the one of this name.
    pub(super) fn hosts(
        &self,
        section: &Section<'_>,
        key: &str,
        name: &str,
    ) -> Result<Vec<usize>, ScenarioError> {
        if let Some(group) = self.groups.get(name) {
            return Ok(group.clone());
        }
        self.hosts.get(name).map(|host| vec![*host]).ok_or_else(|| {
            let groups: Vec<&str> = self.groups.keys().map(String::as_str).collect();
            section.wrong(key, format!("hosts, or one of them: {}", groups.join(", ")))
        })
    }

    pub(super) fn node(&self, name: &str) -> Option<NodeRef> {
        let switch = self.switches.iter().position(|switch| switch == name).map(NodeRef::Switch);
        switch.or_else(|| {
            let host = self.hosts.get(name).copied();
            let only = self.groups.get(name).filter(|group| group.len() == 1).map(|group| group[0]);
            host.or(only).map(NodeRef::Host)
        })
    }
}
