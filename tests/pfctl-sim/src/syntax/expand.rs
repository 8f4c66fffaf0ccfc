//! A rule with lists is one rule for each combination of their items.

use crate::address::Family;
use crate::rule::{Host, Negated, Peer, Protocol, Rule};

use super::hosts::Hosts;

/// The lists of a rule.
pub(super) struct Lists {
    pub(super) interfaces: Vec<Option<Negated<String>>>,
    pub(super) protocols: Vec<Option<Protocol>>,
    pub(super) hosts: Hosts,
}

/// All combinations. Those whose address families differ are left out, as pfctl does.
pub(super) fn expand(rule: &Rule, lists: &Lists) -> Vec<Rule> {
    let mut rules = Vec::new();
    for interface in &lists.interfaces {
        for &protocol in &lists.protocols {
            for source in &lists.hosts.sources {
                for destination in &lists.hosts.destinations {
                    let families = families(rule.family, protocol, [source, destination]);
                    if families.windows(2).any(|two| two[0] != two[1]) {
                        continue;
                    }
                    rules.push(Rule {
                        interface: interface.clone(),
                        protocol,
                        family: families.first().copied(),
                        source: source.clone(),
                        destination: destination.clone(),
                        ..rule.clone()
                    });
                }
            }
        }
    }
    rules
}

/// The address families of all parts.
fn families(of_rule: Option<Family>, protocol: Option<Protocol>, peers: [&Peer; 2]) -> Vec<Family> {
    let of_protocol = match protocol {
        Some(Protocol::Icmp) => Some(Family::Inet),
        Some(Protocol::Icmp6) => Some(Family::Inet6),
        _ => None,
    };
    let of_peers = peers.into_iter().map(|peer| match &peer.host.value {
        Host::Net(net) => Some(net.family()),
        _ => None,
    });
    [of_rule, of_protocol].into_iter().chain(of_peers).flatten().collect()
}
