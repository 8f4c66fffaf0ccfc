//! What a guest may reach.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::cidr::Cidr;

/// The firewall of VMs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirewallConfig {
    /// The networks of VMs. macOS gives each of its bridges a `/24`.
    pub vm_network: Cidr,
    /// What guests may reach although it is private.
    pub allowed: Vec<AllowedDestination>,
}

impl Default for FirewallConfig {
    fn default() -> Self {
        Self { vm_network: Cidr::new([192, 168, 64, 0], 22), allowed: Vec::new() }
    }
}

/// A destination that guests may reach although it is private: `tcp 10.1.2.3 443`, `udp 10.0.0.0/8 6000:6010`, `any 10.4.0.0/16`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct AllowedDestination {
    /// By which protocol.
    pub transport: Transport,
    /// Where.
    pub network: Cidr,
    /// The first and the last port; all of them when absent.
    pub ports: Option<(u16, u16)>,
}

/// A transport protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// Any protocol.
    Any,
}

/// A text that is no allowed destination.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no allowed destination: write `tcp 10.1.2.3 443`, `udp 10.0.0.0/8 6000:6010` or `any 10.4.0.0/16`"
)]
pub struct BadAllowedDestination(String);

impl FromStr for AllowedDestination {
    type Err = BadAllowedDestination;

    fn from_str(text: &str) -> Result<Self, BadAllowedDestination> {
        let bad = || BadAllowedDestination(text.to_owned());
        let words: Vec<&str> = text.split_whitespace().collect();
        let (transport, network, ports) = match words[..] {
            [transport, network] => (transport, network, None),
            [transport, network, ports] => (transport, network, Some(ports)),
            _ => return Err(bad()),
        };
        let transport = match transport {
            "tcp" => Transport::Tcp,
            "udp" => Transport::Udp,
            // A port without a protocol is nothing that pf can filter.
            "any" if ports.is_none() => Transport::Any,
            _ => return Err(bad()),
        };
        let network = network.parse().map_err(|_| bad())?;
        let ports = ports.map(|ports| {
            let (first, last) = ports.split_once(':').unwrap_or((ports, ports));
            let range = (first.parse().ok()?, last.parse().ok()?);
            (range.0 > 0 && range.0 <= range.1).then_some(range)
        });
        match ports {
            Some(None) => Err(bad()),
            ports => Ok(Self { transport, network, ports: ports.flatten() }),
        }
    }
}

impl fmt::Display for AllowedDestination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let transport = match self.transport {
            Transport::Tcp => "tcp",
            Transport::Udp => "udp",
            Transport::Any => "any",
        };
        write!(f, "{transport} {}", self.network)?;
        match self.ports {
            None => Ok(()),
            Some((first, last)) if first == last => write!(f, " {first}"),
            Some((first, last)) => write!(f, " {first}:{last}"),
        }
    }
}

impl TryFrom<String> for AllowedDestination {
    type Error = BadAllowedDestination;

    fn try_from(text: String) -> Result<Self, BadAllowedDestination> {
        text.parse()
    }
}

impl From<AllowedDestination> for String {
    fn from(allowed: AllowedDestination) -> Self {
        allowed.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allowed_destination_is_read_strictly_and_printed_the_same() {
        for text in ["tcp 10.1.2.3 443", "udp 10.0.0.0/8 6000:6010", "any 10.4.0.0/16", "tcp 10.0.0.0/8"] {
            assert_eq!(text.parse::<AllowedDestination>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "tcp",
            "any 10.0.0.0/8 53",
            "tcp 10.0.0.0/8 0",
            "tcp 10.0.0.1 9:8",
            "icmp 10.0.0.1",
            "tcp 10.0.0.1 443 keep",
            "tcp 10.0.0.1\npass all",
            "tcp any 443",
        ] {
            assert!(text.parse::<AllowedDestination>().is_err(), "{text:?}");
        }
    }
}
