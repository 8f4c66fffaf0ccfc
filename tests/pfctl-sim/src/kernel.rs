//! What the kernel knows: whether pf is on, who asked for it, the rulesets with their tables, and the states.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::address::Net;
use crate::evaluate::StateEntry;
use crate::rule::{Action, Host, Rule};

/// The packet filter of one Mac.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Kernel {
    /// When pf was switched on, in seconds since 1970; `None` if it is off.
    pub(crate) enabled_at: Option<u64>,
    pub(crate) references: Vec<Reference>,
    /// The rulesets by the paths of their anchors; the main ruleset has the empty path.
    pub(crate) rulesets: BTreeMap<String, Ruleset>,
    pub(crate) states: Vec<StateEntry>,
    /// The number of the latest load of each anchor. A load whose number is no longer the latest fails.
    pub(crate) tickets: BTreeMap<String, u64>,
    pub(crate) interfaces: Vec<Interface>,
}

/// A request that pf be on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Reference {
    pub(crate) pid: u32,
    pub(crate) process: String,
    pub(crate) token: u64,
    pub(crate) taken_at: u64,
}

/// The rules and tables of one anchor.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ruleset {
    pub(crate) rules: Vec<Rule>,
    pub(crate) tables: BTreeMap<String, Table>,
}

impl Ruleset {
    pub(crate) fn is_empty(&self) -> bool {
        self.rules.is_empty() && self.tables.is_empty()
    }

    /// Whether a rule here names the table.
    pub(crate) fn refers_to(&self, table: &str) -> bool {
        let names = |host: &Host| matches!(host, Host::Table(name) if name == table);
        self.rules.iter().any(|rule| names(&rule.source.host.value) || names(&rule.destination.host.value))
    }
}

/// A table of addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Table {
    /// Whether it stays when no rule names it.
    pub is_persistent: bool,
    /// Whether `pfctl -T` may not change it.
    pub is_constant: bool,
    /// What is in it.
    pub addresses: Vec<Net>,
}

/// A network interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// The networks that it reaches directly.
    pub networks: Vec<Net>,
}

impl Interface {
    /// An interface with addresses such as `192.168.64.1/24`; what is no address is left out.
    pub fn new(name: &str, addresses: &[&str]) -> Self {
        let address = |text: &&str| text.split('/').next().and_then(|text| text.parse().ok());
        Self {
            name: name.to_owned(),
            addresses: addresses.iter().filter_map(address).collect(),
            networks: addresses.iter().filter_map(|text| text.parse().ok()).collect(),
        }
    }
}

impl Kernel {
    /// Whether pf is on.
    pub fn is_enabled(&self) -> bool {
        self.enabled_at.is_some()
    }

    /// How many requests there are that pf be on.
    pub fn references(&self) -> usize {
        self.references.len()
    }

    /// How many loads of an anchor have begun since the start.
    pub fn loads(&self, anchor: &str) -> u64 {
        self.tickets.get(anchor).copied().unwrap_or(0)
    }

    /// The rules of an anchor as pfctl prints them; the main ruleset has the empty path.
    pub fn rules(&self, anchor: &str) -> Vec<String> {
        let ruleset = self.rulesets.get(anchor);
        ruleset.into_iter().flat_map(|ruleset| &ruleset.rules).map(ToString::to_string).collect()
    }

    /// A table of an anchor.
    pub fn table(&self, anchor: &str, name: &str) -> Option<&Table> {
        self.rulesets.get(anchor)?.tables.get(name)
    }

    pub(crate) fn ruleset(&mut self, anchor: &str) -> &mut Ruleset {
        self.rulesets.entry(anchor.to_owned()).or_default()
    }

    /// Forgets rulesets that have neither rules nor tables, as the kernel does.
    pub(crate) fn forget_empty(&mut self) {
        self.rulesets.retain(|_, ruleset| !ruleset.is_empty());
    }

    /// Whether a persistent table was left here by rules that are gone.
    pub(crate) fn has_left(&self, anchor: &str, table: &str) -> bool {
        self.rulesets.get(anchor).is_some_and(|ruleset| {
            ruleset.tables.get(table).is_some_and(|table| table.is_persistent) && !ruleset.refers_to(table)
        })
    }

    /// The anchors directly below a path, or all of them below it.
    pub(crate) fn anchors_below(&self, path: &str, recursive: bool) -> Vec<String> {
        let mut found: Vec<String> = Vec::new();
        for name in self.rulesets.keys().map(String::as_str).chain(self.named_by_anchors(path)) {
            let rest = if path.is_empty() {
                Some(name)
            } else {
                name.strip_prefix(path).and_then(|rest| rest.strip_prefix('/'))
            };
            let Some(rest) = rest.filter(|rest| !rest.is_empty()) else { continue };
            let parts: Vec<_> = rest.split('/').collect();
            for depth in 1..=if recursive { parts.len() } else { 1 } {
                let below = parts[..depth].join("/");
                found.push(if path.is_empty() { below } else { format!("{path}/{below}") });
            }
        }
        found.sort();
        found.dedup();
        found
    }

    /// The anchors that the rules of a ruleset name: they exist though they are empty.
    fn named_by_anchors<'a>(&'a self, path: &str) -> impl Iterator<Item = &'a str> + use<'a> {
        let ruleset = self.rulesets.get(path).filter(|_| path.is_empty());
        ruleset.into_iter().flat_map(|ruleset| &ruleset.rules).filter_map(|rule| match &rule.action {
            Action::Anchor(name) => Some(name.trim_end_matches("/*")),
            _ => None,
        })
    }
}
