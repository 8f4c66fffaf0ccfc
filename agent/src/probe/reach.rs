//! What the probes and hooks of a guest may connect to. They run on the Mac, so that a Pod that names a `host` could reach what no guest can:
//! services that listen for this Mac alone, and those of its links.

use std::net::{IpAddr, Ipv4Addr};

use crate::os::interface::{Interface, interfaces};

/// What the probes and hooks of one guest reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reach {
    /// The guest's own address, which they always reach.
    pub(crate) guest: IpAddr,
    /// Whether they reach this Mac and its links too: `--allow-local-probe-hosts`.
    pub(crate) local: bool,
}

/// An address that they do not reach.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{address} is {what}, and probes and hooks of this Node do not reach it; leave `host` out to reach the guest, or see \
     --allow-local-probe-hosts of the Node's tart-kubelet"
)]
pub(crate) struct Unreachable {
    address: IpAddr,
    what: &'static str,
}

impl Reach {
    /// Whether they may connect to an address.
    pub(super) fn check(self, address: IpAddr) -> Result<(), Unreachable> {
        if self.local || address.to_canonical() == self.guest.to_canonical() {
            return Ok(());
        }
        match local(address, interfaces().ok().as_deref()) {
            None => Ok(()),
            Some(what) => Err(Unreachable { address, what }),
        }
    }
}

/// What a local address is; `None` for one of another machine. `own` are the addresses of this machine, if it can tell them.
fn local(address: IpAddr, own: Option<&[Interface]>) -> Option<&'static str> {
    let address = address.to_canonical();
    let is_own = |own: &[Interface]| own.iter().any(|one| one.address.to_canonical() == address);
    let by_form = match address {
        IpAddr::V4(v4) => local_v4(v4),
        IpAddr::V6(v6) if v6.is_loopback() => Some("a loopback address"),
        IpAddr::V6(v6) if v6.is_unspecified() => Some("the Mac itself"),
        IpAddr::V6(v6) if v6.is_unicast_link_local() => Some("a link-local address"),
        // `::127.0.0.1` is an old form of an IPv4 address.
        IpAddr::V6(v6) => v6.to_ipv4().and_then(local_v4),
    };
    by_form.or_else(|| match own {
        Some(own) => is_own(own).then_some("an address of the Mac itself"),
        None => Some("perhaps an address of the Mac itself, which could not tell its addresses"),
    })
}

fn local_v4(address: Ipv4Addr) -> Option<&'static str> {
    if address.is_loopback() {
        Some("a loopback address")
    } else if address.is_link_local() {
        Some("a link-local address")
    } else if address.octets()[0] == 0 || address.is_broadcast() {
        // 0.0.0.0/8 is this host on this network.
        Some("the Mac itself")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mac() -> Vec<Interface> {
        let of = |name: &str, address: &str, is_up| Interface {
            name: name.into(),
            address: address.parse().unwrap(),
            is_up,
        };
        vec![
            of("en0", "10.0.0.2", true),
            of("bridge100", "192.168.64.1", true),
            of("utun3", "100.64.0.7", true),
            of("en0", "2001:db8::2", true),
            of("en5", "10.9.0.2", false),
        ]
    }

    #[test]
    fn the_mac_loopback_and_links_are_local_and_other_machines_are_not() {
        let table = [
            ("127.0.0.1", true),
            ("127.8.7.6", true),
            ("::1", true),
            ("::ffff:127.0.0.1", true),
            ("::127.0.0.1", true),
            ("0.0.0.0", true),
            ("0.1.2.3", true),
            ("::", true),
            ("::ffff:0.0.0.0", true),
            ("255.255.255.255", true),
            ("169.254.169.254", true),
            ("::ffff:169.254.169.254", true),
            ("fe80::1", true),
            ("febf::1", true),
            ("10.0.0.2", true),
            ("::ffff:10.0.0.2", true),
            ("192.168.64.1", true),
            ("100.64.0.7", true),
            ("2001:db8::2", true),
            ("10.9.0.2", true),
            ("10.0.0.3", false),
            ("192.168.64.5", false),
            ("203.0.113.9", false),
            ("2001:db8::3", false),
            ("fd00::1", false),
        ];
        for (address, is_local) in table {
            assert_eq!(local(address.parse().unwrap(), Some(&mac())).is_some(), is_local, "{address}");
        }
    }

    #[test]
    fn no_address_is_anothers_while_the_mac_cannot_tell_its_own() {
        assert!(local("203.0.113.9".parse().unwrap(), None).is_some());
    }

    #[test]
    fn the_guests_own_address_is_reached_whatever_it_is() {
        let guest: IpAddr = "127.0.0.5".parse().unwrap();
        let reach = |local| Reach { guest, local };
        assert_eq!(reach(false).check(guest), Ok(()));
        assert_eq!(reach(false).check("::ffff:127.0.0.5".parse().unwrap()), Ok(()));
        let other: IpAddr = "127.0.0.6".parse().unwrap();
        let words = reach(false).check(other).unwrap_err().to_string();
        assert!(words.starts_with("127.0.0.6 is a loopback address, and") && words.contains("--allow-local"));
        assert_eq!(reach(true).check(other), Ok(()));
    }
}
