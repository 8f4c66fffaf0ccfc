//! The Mac's DHCP server for its VMs, and the file in which it keeps its leases.
//!
//! Guests that share the machine's network have a piece of the loopback network as their subnet: the host reaches a
//! server on a guest's address, and two guests can use the same port.

use std::fmt::Write as _;
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tart_sim::fault::{self, Fault};

use crate::host::{self, faults};
use crate::output::file_error;

/// How long macOS lends an address unless told otherwise by the knob `dhcp-lease-time`.
const LEASE_TIME: Duration = Duration::from_hours(24);

/// A hardware address: six numbers, however they are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MacAddress([u8; 6]);

impl MacAddress {
    /// Reads six hexadecimal numbers, with or without leading zeros.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let octets: Vec<u8> =
            text.split(':').map(|octet| u8::from_str_radix(octet, 16).ok()).collect::<Option<_>>()?;
        octets.try_into().ok().map(Self)
    }
}

impl std::fmt::Display for MacAddress {
    /// As macOS does: without leading zeros.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.map(|octet| format!("{octet:x}")).join(":"))
    }
}

/// The addresses of a Mac's guests, but for their last number. Every simulated Mac has a subnet of its own, so that tests on one
/// machine do not meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Subnet([u8; 3]);

impl Subnet {
    /// The one that the knob `subnet` names, which the host cannot reach.
    pub(crate) fn unreachable() -> Option<Self> {
        faults::parameter(Fault::Subnet).and_then(|text| fault::subnet(&text)).map(Self)
    }

    /// That of guests that share the machine's network: a piece of the loopback network.
    pub(crate) fn loopback() -> Self {
        Self::of_this_mac(127)
    }

    /// That of guests with a network of their own.
    pub(crate) fn own() -> Self {
        Self::of_this_mac(10)
    }

    fn of_this_mac(first: u8) -> Self {
        let mut hasher = DefaultHasher::new();
        host::dir().hash(&mut hasher);
        let [second, third, ..] = hasher.finish().to_be_bytes();
        Self([first, 64 + second % 128, third])
    }

    fn has(self, address: Ipv4Addr) -> bool {
        address.octets().starts_with(&self.0)
    }
}

/// One entry of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Lease {
    name: String,
    address: Ipv4Addr,
    mac: MacAddress,
    /// Seconds since 1970.
    expires: u64,
}

/// All leases, also those that have expired or whose VMs are gone.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Leases {
    lent: Vec<Lease>,
    /// The entries of clients that are not known by an Ethernet address, as they are in the file.
    others: String,
}

impl Leases {
    /// Reads the file; there is none before the first lease.
    pub(crate) fn read() -> io::Result<Self> {
        match fs::read_to_string(path()) {
            Ok(text) => Ok(Self::parse(&text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error),
        }
    }

    /// Reads the file as `tart ip` does, which fails for all VMs if one entry is not as it expects.
    pub(crate) fn read_strictly() -> Result<Self, String> {
        match fs::read(path()) {
            Ok(content) => Self::parse_strictly(content),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(file_error::reading(&path(), &error)),
        }
    }

    fn parse_strictly(content: Vec<u8>) -> Result<Self, String> {
        let text = String::from_utf8(content)
            .map_err(|_| "The file “dhcpd_leases” couldn’t be opened using text encoding Unicode (UTF-8).")?;
        for (number, line) in (1..).zip(text.lines().filter(|line| !line.is_empty())) {
            let pair = line.trim_start_matches([' ', '\t']);
            let has_value =
                pair.split_once('=').is_some_and(|(key, value)| !key.is_empty() && !value.is_empty());
            if !["", "{", "}"].contains(&pair) && !has_value {
                return Err(format!(
                    "UnexpectedFormat(name: \"unexpected DHCPD leases file format\", \
                     message: \"key-value pair with only a key\", line: {number})"
                ));
            }
        }
        Ok(Self::parse(&text))
    }

    /// The address that is lent to this hardware address: of several leases the one that expires last. Expired ones do not count.
    pub(crate) fn find(&self, mac: MacAddress) -> Option<Ipv4Addr> {
        let now = unix_time();
        let valid = self.lent.iter().filter(|lease| lease.mac == mac && lease.expires > now);
        valid.max_by_key(|lease| lease.expires).map(|lease| lease.address)
    }

    /// Lends an address that is not in use: the one from last time if possible.
    pub(crate) fn lend(
        &mut self,
        subnet: Subnet,
        mac: MacAddress,
        name: &str,
        in_use: &[Ipv4Addr],
    ) -> Option<Ipv4Addr> {
        let is_free = |address| subnet.has(address) && !in_use.contains(&address);
        let known = self.lent.iter().find(|lease| lease.mac == mac && is_free(lease.address));
        let address = known.map(|lease| lease.address).or_else(|| self.unused(subnet, in_use))?;
        self.lent.retain(|lease| lease.mac != mac && lease.address != address);
        let expires = unix_time() + faults::duration(Fault::DhcpLeaseTime).unwrap_or(LEASE_TIME).as_secs();
        // The newest comes first.
        self.lent.insert(0, Lease { name: name.into(), address, mac, expires });
        Some(address)
    }

    /// An address without a lease. If there is none, the one whose lease expired first.
    pub(crate) fn unused(&self, subnet: Subnet, in_use: &[Ipv4Addr]) -> Option<Ipv4Addr> {
        let Subnet([first, second, third]) = subnet;
        let lent = |address: &Ipv4Addr| self.lent.iter().any(|lease| lease.address == *address);
        let fresh = (2..=254)
            .map(|last| Ipv4Addr::new(first, second, third, last))
            .find(|address| !in_use.contains(address) && !lent(address));
        fresh.or_else(|| {
            let now = unix_time();
            let is_free = |address| subnet.has(address) && !in_use.contains(&address);
            let expired = self.lent.iter().filter(|lease| lease.expires <= now && is_free(lease.address));
            expired.min_by_key(|lease| lease.expires).map(|lease| lease.address)
        })
    }

    /// Whether there is an entry for this hardware address, expired or not.
    pub(crate) fn knows(&self, mac: MacAddress) -> bool {
        self.lent.iter().any(|lease| lease.mac == mac)
    }

    /// Replaces the file.
    pub(crate) fn write(&self) -> io::Result<()> {
        let path = path();
        let unfinished = path.with_extension("new");
        fs::write(&unfinished, self.text())?;
        fs::rename(unfinished, path)
    }

    fn text(&self) -> String {
        self.lent.iter().fold(self.others.clone(), |mut text, Lease { name, address, mac, expires }| {
            // Writing to a string cannot fail.
            let _ = write!(
                text,
                "{{\n\tname={name}\n\tip_address={address}\n\thw_address=1,{mac}\n\tidentifier=1,{mac}\n\tlease={expires:#x}\n}}\n"
            );
            text
        })
    }

    /// Reads the file, and keeps what is not of an Ethernet address as it is.
    fn parse(text: &str) -> Self {
        let mut leases = Self::default();
        for entry in text.split_inclusive("}\n") {
            match Lease::parse(entry) {
                Some(lease) => leases.lent.push(lease),
                None => leases.others.push_str(entry),
            }
        }
        leases
    }
}

impl Lease {
    fn parse(entry: &str) -> Option<Self> {
        let field =
            |name: &str| entry.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix('='));
        Some(Self {
            name: field("name").unwrap_or_default().into(),
            address: field("ip_address")?.parse().ok()?,
            mac: MacAddress::parse(field("hw_address")?.strip_prefix("1,")?)?,
            expires: u64::from_str_radix(field("lease")?.strip_prefix("0x")?, 16).ok()?,
        })
    }
}

fn path() -> PathBuf {
    host::dir().join("dhcpd_leases")
}

fn unix_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: MacAddress = MacAddress([0x0e, 0, 2, 0xab, 0xc, 0xd]);

    const SUBNET: Subnet = Subnet([127, 64, 0]);

    #[test]
    fn the_file_has_the_form_of_macos() {
        let address = Ipv4Addr::new(127, 64, 0, 5);
        let lease = Lease { name: "admins-Virtual-Machine".into(), address, mac: MAC, expires: 0x66a5_b3c2 };
        let leases = Leases { lent: vec![lease], ..Leases::default() };
        let text = "{\n\tname=admins-Virtual-Machine\n\tip_address=127.64.0.5\n\thw_address=1,e:0:2:ab:c:d\n\t\
                    identifier=1,e:0:2:ab:c:d\n\tlease=0x66a5b3c2\n}\n";
        assert_eq!(leases.text(), text);
        assert_eq!(Leases::parse(text), leases);
    }

    #[test]
    fn tart_reads_no_lease_of_a_file_with_one_bad_entry() {
        let good =
            "{\n\tname=a\n\tip_address=127.64.0.6\n\thw_address=1,e:0:2:ab:c:d\n\tlease=0x7fffffff\n}\n";
        assert_eq!(Leases::parse_strictly(good.into()), Ok(Leases::parse(good)));
        let nameless = format!("{good}{{\n\tname=\n}}\n");
        let words = Leases::parse_strictly(nameless.into()).unwrap_err();
        assert!(words.ends_with("message: \"key-value pair with only a key\", line: 8)"), "{words}");
        let words = Leases::parse_strictly([good.as_bytes(), b"{\n\tname=\xff\n}\n"].concat()).unwrap_err();
        assert!(words.contains("text encoding"), "{words}");
    }

    #[test]
    fn entries_of_other_kinds_are_kept_and_no_vms() {
        let text = "{\n\tname=ubuntu\n\tip_address=127.64.0.6\n\thw_address=ff,f1:f5:dd:7f:0:2\n\tlease=0x66a5b3c2\n}\n";
        let leases = Leases::parse(text);
        assert_eq!((leases.lent.len(), leases.text().as_str()), (0, text));
    }

    #[test]
    fn hardware_addresses_are_compared_as_numbers() {
        assert_eq!(MacAddress::parse("0e:00:02:ab:0c:0d"), Some(MAC));
        assert_eq!(MacAddress::parse("e:0:2:ab:c:d"), Some(MAC));
        assert_eq!(MacAddress::parse("e:0:2"), None);
    }

    #[test]
    fn expired_leases_do_not_count_and_the_latest_wins() {
        let lease = |last, expires| Lease {
            name: String::new(),
            address: Ipv4Addr::new(127, 64, 0, last),
            mac: MAC,
            expires,
        };
        let now = unix_time();
        let of = |lent| Leases { lent, ..Leases::default() };
        assert_eq!(of(vec![lease(2, now - 1)]).find(MAC), None);
        let leases = of(vec![lease(3, now + 10), lease(4, now + 20), lease(5, now - 1)]);
        assert_eq!(leases.find(MAC), Some(Ipv4Addr::new(127, 64, 0, 4)));
    }

    #[test]
    fn a_mac_address_keeps_its_lease_unless_another_vm_uses_the_address() {
        let mut leases = Leases::default();
        let first = leases.lend(SUBNET, MAC, "guest", &[]).unwrap();
        assert_eq!(leases.lend(SUBNET, MAC, "guest", &[]), Some(first));
        let second = leases.lend(SUBNET, MAC, "guest", &[first]).unwrap();
        assert_ne!(second, first);
        assert_eq!(leases.find(MAC), Some(second));
    }

    #[test]
    fn a_lease_of_another_subnet_is_not_used_again() {
        let mut leases = Leases::default();
        let own = leases.lend(Subnet([10, 64, 0]), MAC, "guest", &[]).unwrap();
        let loopback = leases.lend(SUBNET, MAC, "guest", &[]).unwrap();
        assert_eq!((own.octets()[0], loopback.octets()[0]), (10, 127));
        assert_eq!(leases.find(MAC), Some(loopback));
    }

    #[test]
    fn the_subnet_has_no_address_left_until_a_lease_expires() {
        let mut leases = Leases::default();
        for last in 0..253 {
            assert!(leases.lend(SUBNET, MacAddress([2, 0, 0, 0, 0, last]), "guest", &[]).is_some());
        }
        assert_eq!(leases.lend(SUBNET, MAC, "guest", &[]), None);
        let oldest = leases.lent.last_mut().unwrap();
        oldest.expires = 1;
        let address = oldest.address;
        assert_eq!(leases.lend(SUBNET, MAC, "guest", &[]), Some(address));
    }
}
