//! The Node's address, at which other machines reach this one.

mod tailscale;

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use crate::os::interface::{Interface, interfaces};
use tailscale::TailscaleError;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AddressSource {
    /// `--node-ip`.
    Given(IpAddr),
    /// The first routable address of the machine.
    Auto,
    /// The address that this `tailscale` program prints.
    Tailscale(PathBuf),
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum AddressError {
    #[error("--node-ip {0} is not an address that other machines can reach this one at")]
    Unusable(IpAddr),
    #[error(
        "--node-ip {0} is the address of {1}, where this machine meets its VMs; no other machine reaches it there"
    )]
    Bridge(IpAddr, String),
    #[error("--node-ip-source=tailscale: no address; see `tailscale status`")]
    Tailscale(#[from] TailscaleError),
}

impl AddressSource {
    /// The address at the start of the agent. With `Auto`, the network may come up later: no address is no error then.
    pub(crate) async fn first(&self) -> Result<Option<IpAddr>, AddressError> {
        match self {
            Self::Given(address) => check(*address, &up()).map(Some),
            Self::Auto => Ok(choose(&up())),
            Self::Tailscale(program) => Ok(Some(tailscale::address(program).await?)),
        }
    }

    /// The current address, after `before`. The network may come up after the agent, and DHCP may change the address.
    pub(crate) fn next(&self, before: Option<IpAddr>) -> Option<IpAddr> {
        match self {
            Self::Given(_) | Self::Tailscale(_) => before,
            Self::Auto => {
                let found = up();
                // An address that is still there stays, because the order of interfaces may change.
                let still = before.filter(|before| found.iter().any(|known| known.address == *before));
                still.or_else(|| choose(&found)).or(before)
            }
        }
    }
}

/// The interfaces that are up; none while the machine cannot tell.
fn up() -> Vec<Interface> {
    interfaces().unwrap_or_default().into_iter().filter(|one| one.is_up).collect()
}

fn choose(found: &[Interface]) -> Option<IpAddr> {
    let routable =
        |address: Ipv4Addr| !(address.is_loopback() || address.is_link_local() || address.is_unspecified());
    found
        .iter()
        .find(|one| !is_bridge(&one.name) && matches!(one.address, IpAddr::V4(address) if routable(address)))
        .map(|one| one.address)
}

fn check(given: IpAddr, found: &[Interface]) -> Result<IpAddr, AddressError> {
    if given.is_unspecified() || given.is_multicast() {
        return Err(AddressError::Unusable(given));
    }
    match found.iter().find(|one| one.address == given && is_bridge(&one.name)) {
        Some(bridge) => Err(AddressError::Bridge(given, bridge.name.clone())),
        None => Ok(given),
    }
}

/// Whether an interface connects the host with its own guests.
fn is_bridge(name: &str) -> bool {
    ["bridge", "vmnet", "vmenet", "docker", "veth"].iter().any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(list: &[(&str, &str)]) -> Vec<Interface> {
        let interface = |(name, address): &(&str, &str)| Interface {
            name: (*name).to_owned(),
            address: address.parse().unwrap(),
            is_up: true,
        };
        list.iter().map(interface).collect()
    }

    #[test]
    fn the_address_of_a_bridge_for_vms_is_not_chosen() {
        type Row = (&'static [(&'static str, &'static str)], Option<&'static str>);
        let table: [Row; 5] = [
            (&[("lo0", "127.0.0.1"), ("bridge100", "192.168.64.1"), ("en0", "10.0.0.2")], Some("10.0.0.2")),
            (&[("bridge100", "192.168.64.1"), ("vmnet8", "192.168.65.1")], None),
            (&[("en0", "169.254.1.1"), ("en1", "192.168.1.5")], Some("192.168.1.5")),
            (&[("en0", "fe80::1"), ("en0", "10.0.0.2")], Some("10.0.0.2")),
            (&[], None),
        ];
        for (interfaces, expected) in table {
            assert_eq!(choose(&found(interfaces)), expected.map(|ip| ip.parse().unwrap()), "{interfaces:?}");
        }
    }

    #[test]
    fn a_given_address_is_used_unless_no_machine_can_reach_it() {
        let known = found(&[("en0", "10.0.0.2"), ("bridge100", "192.168.64.1")]);
        for good in ["10.0.0.2", "203.0.113.9", "127.0.0.1", "fd00::1"] {
            assert!(check(good.parse().unwrap(), &known).is_ok(), "{good}");
        }
        let bridge = check("192.168.64.1".parse().unwrap(), &known).unwrap_err();
        assert!(bridge.to_string().contains("bridge100"), "{bridge}");
        assert!(check("0.0.0.0".parse().unwrap(), &known).is_err());
        assert!(check("224.0.0.1".parse().unwrap(), &known).is_err());
    }
}
