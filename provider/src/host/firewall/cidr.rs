//! Networks of IPv4.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A network of IPv4 addresses, or one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Cidr {
    address: Ipv4Addr,
    prefix: u8,
}

/// A text that is no network of IPv4.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no IPv4 network such as `10.0.0.0/8`, and no IPv4 address")]
pub struct BadCidr(String);

impl Cidr {
    /// A network whose address has no bits after the prefix.
    pub(super) const fn new(address: [u8; 4], prefix: u8) -> Self {
        let [a, b, c, d] = address;
        Self { address: Ipv4Addr::new(a, b, c, d), prefix }
    }

    /// The address of the Mac in each `/24` of a network of VMs.
    pub(super) fn gateways(self) -> Vec<Ipv4Addr> {
        let subnets = 1_u32 << 24_u8.saturating_sub(self.prefix).min(8);
        (0..subnets).map(|index| Ipv4Addr::from(self.address.to_bits() + index * 256 + 1)).collect()
    }
}

impl FromStr for Cidr {
    type Err = BadCidr;

    fn from_str(text: &str) -> Result<Self, BadCidr> {
        let bad = || BadCidr(text.to_owned());
        let (address, prefix) = text.split_once('/').unwrap_or((text, "32"));
        let address: Ipv4Addr = address.parse().map_err(|_| bad())?;
        let prefix: u8 = prefix.parse().ok().filter(|prefix| *prefix <= 32).ok_or_else(bad)?;
        let rest = u32::MAX.checked_shr(prefix.into()).unwrap_or(0);
        // `10.1.2.3/8` is a mistake: was the address meant, or the network?
        if address.to_bits() & rest == 0 { Ok(Self { address, prefix }) } else { Err(bad()) }
    }
}

impl TryFrom<String> for Cidr {
    type Error = BadCidr;

    fn try_from(text: String) -> Result<Self, BadCidr> {
        text.parse()
    }
}

impl From<Cidr> for String {
    fn from(cidr: Cidr) -> Self {
        cidr.to_string()
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.prefix == 32 { self.address.fmt(f) } else { write!(f, "{}/{}", self.address, self.prefix) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_is_read_strictly_and_printed_the_same() {
        for text in ["10.0.0.0/8", "0.0.0.0/0", "10.1.2.3", "192.168.64.0/22"] {
            assert_eq!(text.parse::<Cidr>().unwrap().to_string(), text);
        }
        for text in ["", "10/8", "10.1.2.3/8", "10.0.0.0/33", "10.0.0.0/", "fd00::/8", "any", "10.0.0.1; x"] {
            assert!(text.parse::<Cidr>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn the_mac_has_the_first_address_of_each_network_of_vms() {
        let gateways: Cidr = "192.168.64.0/22".parse().unwrap();
        let gateways: Vec<_> = gateways.gateways().iter().map(ToString::to_string).collect();
        assert_eq!(gateways, ["192.168.64.1", "192.168.65.1", "192.168.66.1", "192.168.67.1"]);
        assert_eq!("10.9.8.0/24".parse::<Cidr>().unwrap().gateways().len(), 1);
    }
}
