//! Addresses and networks as pf writes them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// An address family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Family {
    /// IPv4.
    Inet,
    /// IPv6.
    Inet6,
}

impl Family {
    /// The family of an address.
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::Inet } else { Self::Inet6 }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Inet => "inet",
            Self::Inet6 => "inet6",
        })
    }
}

/// An address or a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Net {
    address: IpAddr,
    prefix: u8,
}

impl Net {
    /// A network; the bits after the prefix are cleared, as pfctl does.
    pub fn new(address: IpAddr, prefix: u8) -> Self {
        let width = width(address);
        let address = if prefix >= width { address } else { masked(address, prefix) };
        Self { address, prefix: prefix.min(width) }
    }

    /// One address.
    pub fn host(address: IpAddr) -> Self {
        Self { address, prefix: width(address) }
    }

    /// Whether an address is in it.
    pub fn contains(self, address: IpAddr) -> bool {
        self.address.is_ipv4() == address.is_ipv4()
            && masked(address, self.prefix) == masked(self.address, self.prefix)
    }

    /// Whether all of another network is in it.
    pub(crate) fn covers(self, other: Self) -> bool {
        self.prefix <= other.prefix && self.contains(other.address)
    }

    /// Its address family.
    pub fn family(self) -> Family {
        Family::of(self.address)
    }
}

fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn masked(address: IpAddr, prefix: u8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
            IpAddr::V4((v4.to_bits() & mask).into())
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
            IpAddr::V6((v6.to_bits() & mask).into())
        }
    }
}

/// A word that is neither an address nor a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no address")]
pub struct NoAddress;

impl FromStr for Net {
    type Err = NoAddress;

    /// Reads `10.0.0.0/8`, `10/8`, `192.168.64.1`, `fe80::/10`.
    fn from_str(text: &str) -> Result<Self, NoAddress> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix.parse::<u8>().map_err(|_| NoAddress)?)),
            None => (text, None),
        };
        let parsed = match address.parse::<IpAddr>() {
            Ok(parsed) => parsed,
            Err(_) if prefix.is_some() => IpAddr::V4(shortened(address).ok_or(NoAddress)?),
            Err(_) => return Err(NoAddress),
        };
        match prefix {
            Some(prefix) if prefix > width(parsed) => Err(NoAddress),
            Some(prefix) => Ok(Self::new(parsed, prefix)),
            None => Ok(Self::host(parsed)),
        }
    }
}

/// `10` or `172.16` before a prefix: the octets that are missing are 0.
fn shortened(text: &str) -> Option<Ipv4Addr> {
    let mut octets = [0_u8; 4];
    for (index, part) in text.split('.').enumerate() {
        *octets.get_mut(index)? = part.parse().ok()?;
    }
    Some(octets.into())
}

impl fmt::Display for Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.address)?;
        if self.prefix < width(self.address) { write!(f, "/{}", self.prefix) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_read_and_printed_as_pfctl_does() {
        for (text, printed) in [
            ("10/8", "10.0.0.0/8"),
            ("172.16.5.9/12", "172.16.0.0/12"),
            ("0/0", "0.0.0.0/0"),
            ("192.168.64.1", "192.168.64.1"),
            ("192.168.64.1/32", "192.168.64.1"),
            ("fe80::1/10", "fe80::/10"),
        ] {
            assert_eq!(text.parse::<Net>().unwrap().to_string(), printed);
        }
        for text in ["", "10", "10.0.0.0/33", "a.b.c.d/8", "1.2.3.4.5/8", "en0"] {
            assert!(text.parse::<Net>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_network_contains_its_addresses_and_no_other() {
        let net: Net = "172.16.0.0/12".parse().unwrap();
        for (address, inside) in [
            ("172.16.0.0", true),
            ("172.31.255.255", true),
            ("172.32.0.0", false),
            ("172.15.255.255", false),
            ("::ffff:172.16.0.1", false),
        ] {
            assert_eq!(net.contains(address.parse().unwrap()), inside, "{address}");
        }
    }
}
