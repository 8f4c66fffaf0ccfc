//! What becomes of a packet: the states first, then the rules.
//!
//! Of the filter rules that match, the last one decides, or the first with `quick`. Of the translation rules, the first one decides. A
//! packet that no rule matches passes, and pf keeps no state of it.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::address::Family;
use crate::kernel::Kernel;
use crate::rule::{Action, Direction, Host, Kind, Negated, Peer, Protocol, Rule, State, Translation};

/// How deep anchors may be nested.
const MAX_DEPTH: usize = 64;

/// A packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Packet {
    /// Its protocol.
    pub protocol: Protocol,
    /// Where it comes from.
    pub source: IpAddr,
    /// The port there; 0 for ICMP.
    pub source_port: u16,
    /// Where it goes.
    pub destination: IpAddr,
    /// The port there; 0 for ICMP.
    pub destination_port: u16,
    /// Whether it is the first packet of a connection.
    pub is_first: bool,
}

impl Packet {
    /// The first packet of a connection.
    pub fn new(protocol: Protocol, source: (IpAddr, u16), destination: (IpAddr, u16)) -> Self {
        Self {
            protocol,
            source: source.0,
            source_port: source.1,
            destination: destination.0,
            destination_port: destination.1,
            is_first: true,
        }
    }

    /// The answer to it.
    #[must_use]
    pub fn reply(self) -> Self {
        Self {
            protocol: self.protocol,
            source: self.destination,
            source_port: self.destination_port,
            destination: self.source,
            destination_port: self.source_port,
            is_first: false,
        }
    }

    fn has_ends_of(&self, other: &Self) -> bool {
        Self { is_first: other.is_first, ..*self } == *other
    }
}

/// What becomes of a packet at one interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It passes, with these addresses.
    Pass(Packet),
    /// This rule blocks it.
    Block(String),
}

/// A connection that pf remembers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StateEntry {
    pub(crate) direction: Direction,
    /// The first packet before its translation.
    pub(crate) original: Packet,
    /// The first packet after its translation.
    pub(crate) translated: Packet,
}

impl StateEntry {
    /// The packet with the addresses that it has behind the filter, if it belongs to this connection.
    fn translate(&self, direction: Direction, packet: &Packet) -> Option<Packet> {
        if direction == self.direction {
            packet
                .has_ends_of(&self.original)
                .then_some(Packet { is_first: packet.is_first, ..self.translated })
        } else {
            packet
                .has_ends_of(&self.translated.reply())
                .then_some(Packet { is_first: packet.is_first, ..self.original.reply() })
        }
    }

    pub(crate) fn is_of(&self, address: IpAddr) -> bool {
        self.original.source == address || self.translated.source == address
    }
}

/// A packet at an interface.
struct Passing<'a> {
    direction: Direction,
    interface: &'a str,
    packet: Packet,
}

impl Kernel {
    /// What becomes of a packet that comes in or goes out at an interface.
    pub fn filter(&mut self, direction: Direction, interface: &str, packet: Packet) -> Verdict {
        if !self.is_enabled() {
            return Verdict::Pass(packet);
        }
        if let Some(known) = self.states.iter().find_map(|state| state.translate(direction, &packet)) {
            return Verdict::Pass(known);
        }
        let kind = if direction == Direction::Out { Kind::Nat } else { Kind::Rdr };
        let mut passing = Passing { direction, interface, packet };
        let translation = match self.last_match("", kind, &passing, 0) {
            Some((Action::Translate(Some(target)), _)) => self.target(&target),
            _ => None,
        };
        if let Some(address) = translation {
            match kind {
                Kind::Nat => passing.packet.source = address,
                _ => passing.packet.destination = address,
            }
        }
        let decision = self.last_match("", Kind::Filter, &passing, 0);
        let (remembers, translated) = (translation.is_some(), passing.packet);
        match decision {
            Some((Action::Block(_), rule)) => return Verdict::Block(rule),
            Some((Action::Pass(State::KeepFromStart | State::KeepFromAny), _)) => {
                self.states.push(StateEntry { direction, original: packet, translated });
            }
            _ if remembers => self.states.push(StateEntry { direction, original: packet, translated }),
            _ => (),
        }
        Verdict::Pass(translated)
    }

    /// The rule that decides in a ruleset and the anchors that it names, with its text.
    fn last_match(
        &self,
        path: &str,
        kind: Kind,
        passing: &Passing<'_>,
        depth: usize,
    ) -> Option<(Action, String)> {
        self.walk(path, kind, passing, depth).map(|found| (found.action, found.text))
    }

    fn walk(&self, path: &str, kind: Kind, passing: &Passing<'_>, depth: usize) -> Option<Match> {
        let mut last = None;
        let rules = &self.rulesets.get(path).filter(|_| depth < MAX_DEPTH)?.rules;
        for rule in rules.iter().filter(|rule| rule.kind == kind && self.matches(path, rule, passing)) {
            let found = match &rule.action {
                Action::Anchor(name) => self
                    .anchors(path, name)
                    .iter()
                    .fold(Walk::default(), |walk, anchor| {
                        walk.then(|| self.walk(anchor, kind, passing, depth + 1))
                    })
                    .found
                    .map(|found| Match { is_final: found.is_final || rule.quick, ..found }),
                action => Some(Match {
                    action: action.clone(),
                    text: rule.to_string(),
                    // The first translation rule decides.
                    is_final: rule.quick || kind != Kind::Filter,
                }),
            };
            if let Some(found) = found {
                let is_final = found.is_final;
                last = Some(found);
                if is_final {
                    break;
                }
            }
        }
        last
    }

    /// The rulesets that an anchor rule names: one, or all directly below a path in alphabetical order.
    fn anchors(&self, path: &str, name: &str) -> Vec<String> {
        let absolute = match name.strip_prefix('/') {
            Some(name) => name.to_owned(),
            None if path.is_empty() => name.to_owned(),
            None => format!("{path}/{name}"),
        };
        match absolute.strip_suffix("/*") {
            Some(parent) => self.anchors_below(parent, false),
            None => vec![absolute],
        }
    }

    fn matches(&self, path: &str, rule: &Rule, passing: &Passing<'_>) -> bool {
        let packet = &passing.packet;
        let opens = match rule.action {
            Action::Pass(State::KeepFromStart) => packet.is_first || packet.protocol != Protocol::Tcp,
            _ => true,
        };
        let at_interface = rule
            .interface
            .as_ref()
            .is_none_or(|interface| (interface.value == passing.interface) != interface.not);
        opens
            && at_interface
            && rule.direction.is_none_or(|direction| direction == passing.direction)
            && rule.family.is_none_or(|family| family == Family::of(packet.source))
            && rule.protocol.is_none_or(|protocol| protocol == packet.protocol)
            && self.is_peer(path, &rule.source, packet.source, packet.source_port)
            && self.is_peer(path, &rule.destination, packet.destination, packet.destination_port)
    }

    fn is_peer(&self, path: &str, peer: &Peer, address: IpAddr, port: u16) -> bool {
        let Negated { not, value } = &peer.host;
        let has_address = match value {
            Host::Any => true,
            Host::Net(net) => net.contains(address),
            Host::Table(name) => self.is_in_table(path, name, address),
            Host::Interface(name) => self
                .interfaces
                .iter()
                .any(|interface| interface.name == *name && interface.addresses.contains(&address)),
        };
        has_address != *not && peer.port.is_none_or(|ports| ports.contains(port))
    }

    /// A table of the anchor, or else the main ruleset's table of that name.
    fn is_in_table(&self, path: &str, name: &str, address: IpAddr) -> bool {
        let table = self.table(path, name).or_else(|| self.table("", name));
        table.is_some_and(|table| table.addresses.iter().any(|net| net.contains(address)))
    }

    fn target(&self, translation: &Translation) -> Option<IpAddr> {
        match translation {
            Translation::Address(net) => net.to_string().parse().ok(),
            Translation::Interface(name) => {
                let interface = self.interfaces.iter().find(|interface| interface.name == *name)?;
                interface.addresses.iter().find(|address| address.is_ipv4()).copied()
            }
        }
    }
}

/// A rule that matches.
struct Match {
    action: Action,
    text: String,
    /// Whether no later rule may overrule it.
    is_final: bool,
}

/// Several rulesets one after another.
#[derive(Default)]
struct Walk {
    found: Option<Match>,
}

impl Walk {
    fn then(self, next: impl FnOnce() -> Option<Match>) -> Self {
        if self.found.as_ref().is_some_and(|found| found.is_final) {
            return self;
        }
        Self { found: next().or(self.found) }
    }
}
