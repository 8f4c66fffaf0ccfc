//! The rules as pf reads them.
//!
//! They have no tables: pf sometimes refuses to define a table ("Resource busy"), and never a rule.

use std::fmt::Write;

use super::config::{AllowedDestination, FirewallConfig, Transport};

/// The bridges that macOS makes for VMs. A rule may name a bridge before there is one.
const BRIDGES: &str = "{ bridge100, bridge101, bridge102, bridge103 }";

/// What is not the internet: private networks, those of carriers, link-local addresses with the clouds' metadata services, multicast, and
/// what is reserved.
const PRIVATE: &[&str] = &[
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "224.0.0.0/4",
    "240.0.0.0/4",
];

/// The content of the anchor's file. Equal configurations give equal bytes.
pub(super) fn render(config: &FirewallConfig) -> String {
    let vms = config.vm_network;
    let gateways: Vec<_> = vms.gateways().iter().map(ToString::to_string).collect();
    let gateways = gateways.join(", ");
    let private = PRIVATE.join(", ");
    let mut text = String::new();
    let mut add = |line: &str| {
        let _ = writeln!(text, "{line}");
    };
    add("# Written by tart-provider. What the guests of this Mac may reach.");
    add("# pf remembers the connections that begin on the Mac, so that the guests' answers pass.");
    add(&format!("pass out on {BRIDGES} inet all keep state"));
    add("# Guests get their addresses from the Mac, and ask it for names.");
    add(&format!(
        "pass in quick on {BRIDGES} inet proto udp from any port 68 to {{ 255.255.255.255, {gateways} }} port 67"
    ));
    add(&format!("block drop in quick on {BRIDGES} inet from ! {vms} to any"));
    add(&format!("block drop in quick on {BRIDGES} inet6 all"));
    add(&format!(
        "pass in quick on {BRIDGES} inet proto {{ tcp, udp }} from {vms} to {{ {gateways} }} port 53"
    ));
    add(&format!("pass in quick on {BRIDGES} inet proto icmp from {vms} to {{ {gateways} }}"));
    for allowed in &config.allowed {
        add(&allow(allowed, vms.to_string().as_str()));
    }
    add("# Neither the Mac itself nor what is private.");
    add(&format!("block drop in quick on {BRIDGES} inet from any to self"));
    add(&format!("block drop in quick on {BRIDGES} inet from any to {{ {private} }}"));
    add("# The internet. pf remembers these connections, too.");
    add(&format!("pass in on {BRIDGES} inet from {vms} to any keep state"));
    text
}

fn allow(allowed: &AllowedDestination, vms: &str) -> String {
    let protocol = match allowed.transport {
        Transport::Tcp => " proto tcp",
        Transport::Udp => " proto udp",
        Transport::Any => "",
    };
    let ports = match allowed.ports {
        None => String::new(),
        Some((first, last)) if first == last => format!(" port {first}"),
        Some((first, last)) => format!(" port {first}:{last}"),
    };
    let network = allowed.network;
    format!("pass in quick on {BRIDGES} inet{protocol} from {vms} to {network}{ports}")
}
