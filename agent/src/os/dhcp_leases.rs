//! The DHCP leases of macOS for VMs. macOS has 253 addresses and leases each for a day. When a busy host has leased them all, the next VM gets
//! none.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::path::Path;
use std::str::FromStr;

use jiff::Timestamp;

use super::availability::Availability;

/// A network of 256 addresses, without the network's, the host's and the broadcast address.
const POOL: u64 = 253;
/// The agent warns when less than a tenth is left, which a busy host uses up in hours.
const LEAST: u64 = POOL / 10;
/// No file of leases is larger.
const MAX_BYTES: u64 = 4 << 20;

/// How many addresses are left; `None` without a file of leases.
pub(crate) fn read(path: &Path, now: Timestamp) -> Option<Availability> {
    Some(left(&text(path).ok()?, now))
}

/// The client that has leased an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeaseHolder {
    /// A client with a MAC address, by which tart knows its VMs.
    Mac,
    /// A client with another identifier, as some Linux guests have. It cannot be matched to a VM.
    Other,
    /// The address is free.
    None,
    NoFile,
    /// The file cannot be read.
    Unknown,
}

/// The client that has leased an address.
pub(crate) fn holder(path: &Path, address: Ipv4Addr, now: Timestamp) -> LeaseHolder {
    let text = match text(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return LeaseHolder::NoFile,
        Err(_) => return LeaseHolder::Unknown,
    };
    let has_mac =
        leases(&text, now).filter(|lease| lease.address == address).map(|lease| lease.mac.is_some());
    match has_mac.max() {
        Some(true) => LeaseHolder::Mac,
        Some(false) => LeaseHolder::Other,
        None => LeaseHolder::None,
    }
}

/// A hardware address, however it is written: macOS leaves out leading zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MacAddress([u8; 6]);

/// A text is no hardware address.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is no MAC address")]
pub(crate) struct BadMacAddress(String);

impl FromStr for MacAddress {
    type Err = BadMacAddress;

    fn from_str(text: &str) -> Result<Self, BadMacAddress> {
        let octets = text.split(':').map(|octet| u8::from_str_radix(octet, 16).ok());
        let octets = octets.collect::<Option<Vec<_>>>().and_then(|octets| octets.try_into().ok());
        octets.map(Self).ok_or_else(|| BadMacAddress(text.to_owned()))
    }
}

/// The address that is leased to a MAC address: of several, the one that is leased for longest. Unlike `tart ip`, this skips entries that
/// cannot be read: a guest chooses the name in its entry, and must not hide the addresses of others.
///
/// A lease that has expired counts until macOS has leased its address to another machine. It may have expired because the clock was set, or
/// because the Mac slept, and its guest renews it only later.
pub(crate) fn leased_to(path: &Path, mac: MacAddress) -> io::Result<Option<Ipv4Addr>> {
    let text = text(path)?;
    let own = entries(&text).filter(|lease| lease.mac == Some(mac)).max_by_key(|lease| lease.until);
    let is_taken = |own: &Lease| {
        entries(&text)
            .any(|other| other.address == own.address && other.mac != own.mac && other.until > own.until)
    };
    Ok(own.filter(|own| !is_taken(own)).map(|own| own.address))
}

fn text(path: &Path) -> io::Result<String> {
    let metadata = fs::metadata(path)?;
    if !metadata.is_file() || metadata.len() > MAX_BYTES {
        return Err(io::ErrorKind::InvalidData.into());
    }
    // Guests choose the names in it, which may not be UTF-8.
    Ok(String::from_utf8_lossy(&fs::read(path)?).into_owned())
}

/// The warning when too few addresses are left.
pub(crate) fn shortage(left: Availability) -> Option<String> {
    let leased = left.total.saturating_sub(left.available);
    (left.available < LEAST).then(|| {
        format!(
            "{leased} of the {} addresses for VMs are lent, and VMs that find none will not start: have macOS lend them for a shorter time, \
             with packaging/host/dhcp-lease-time.sh or `sudo defaults write \
             /Library/Preferences/SystemConfiguration/com.apple.InternetSharing.default.plist bootpd -dict-add DHCPLeaseTimeSecs -int 600`",
            left.total
        )
    })
}

struct Lease {
    address: Ipv4Addr,
    /// The client's MAC address, if that is what macOS knows the client by.
    mac: Option<MacAddress>,
    /// In seconds since 1970.
    until: i64,
}

/// The leases that have not expired. macOS leases an expired address again.
fn leases(text: &str, now: Timestamp) -> impl Iterator<Item = Lease> {
    entries(text).filter(move |lease| lease.until > now.as_second())
}

/// All leases that can be read.
fn entries(text: &str) -> impl Iterator<Item = Lease> {
    text.split('}').filter_map(|entry| {
        let field =
            |name: &str| entry.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix('='));
        let address = field("ip_address").and_then(|address| address.parse::<Ipv4Addr>().ok());
        let until = field("lease").and_then(|hex| i64::from_str_radix(hex.strip_prefix("0x")?, 16).ok());
        // The address follows its type; Ethernet is 1.
        let mac = field("hw_address").and_then(|hardware| hardware.strip_prefix("1,")?.parse().ok());
        Some(Lease { address: address?, mac, until: until? })
    })
}

/// Of several networks, the fullest counts.
fn left(text: &str, now: Timestamp) -> Availability {
    let mut networks: HashMap<[u8; 3], HashSet<u8>> = HashMap::new();
    for lease in leases(text, now) {
        let [a, b, c, host] = lease.address.octets();
        networks.entry([a, b, c]).or_default().insert(host);
    }
    let leased = networks.values().map(HashSet::len).max().unwrap_or(0);
    Availability { available: POOL.saturating_sub(leased.try_into().unwrap_or(u64::MAX)), total: POOL }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use proptest::prelude::*;
    use std::fs::File;

    fn entry(address: &str, until: i64) -> String {
        format!(
            "{{\n\tname=admins-Virtual-Machine\n\tip_address={address}\n\thw_address=1,e:0:2:ab:c:d\n\tlease={until:#x}\n}}\n"
        )
    }

    fn now() -> Timestamp {
        Timestamp::from_second(1000).unwrap()
    }

    #[test]
    fn leases_that_have_not_expired_count_once() {
        let mut text: String = (2..=10).map(|host| entry(&format!("192.168.64.{host}"), 2000)).collect();
        text += &entry("192.168.64.10", 3000);
        text += &entry("192.168.64.11", 1000);
        text += &entry("10.0.0.2", 2000);
        text += "{\n\tip_address=192.168.64.12\n\tlease=soon\n}\n";
        assert_eq!(left(&text, now()), Availability { available: POOL - 9, total: POOL });
        assert_eq!(left("", now()).available, POOL);
        assert_eq!(read(Path::new("/nowhere/dhcpd_leases"), now()), None);
    }

    #[test]
    fn the_holder_of_an_address_is_read_from_valid_leases() {
        let dir = testing::dir();
        let path = dir.path().join("dhcpd_leases");
        let linux = |host| {
            entry(&format!("192.168.64.{host}"), 2000).replace("=1,e:0:2:ab:c:d", "=ff,f1:f5:dd:7f:0:2")
        };
        let mut text = (entry("192.168.64.2", 2000) + &entry("192.168.64.3", 1000) + &linux(4)).into_bytes();
        text.extend(b"{\n\tname=\xff\xfe\n}\n");
        text.extend((linux(6) + &entry("192.168.64.6", 2000) + &linux(6)).into_bytes());
        fs::write(&path, text).unwrap();
        let of = |path: &Path, last: u8| holder(path, Ipv4Addr::from([192, 168, 64, last]), now());
        for (last, expected) in [
            (2, LeaseHolder::Mac),
            (3, LeaseHolder::None),
            (4, LeaseHolder::Other),
            (5, LeaseHolder::None),
            (6, LeaseHolder::Mac),
        ] {
            assert_eq!(of(&path, last), expected, "{last}");
        }
        assert_eq!(of(Path::new("/nowhere"), 2), LeaseHolder::NoFile);
        assert_eq!(of(dir.path(), 2), LeaseHolder::Unknown);
        File::create(&path).unwrap().set_len(MAX_BYTES + 1).unwrap();
        assert_eq!(of(&path, 2), LeaseHolder::Unknown);
    }

    #[test]
    fn one_bad_entry_does_not_hide_the_lease_of_another_vm() {
        let dir = testing::dir();
        let path = dir.path().join("dhcpd_leases");
        let (mac, other): (MacAddress, MacAddress) =
            ("0e:00:02:ab:0c:0d".parse().unwrap(), "e:0:2:ab:c:e".parse().unwrap());
        let mut text = b"{\n\tname=\n\tip_address=\n}\n{\n\tname=\xff}\n\tlease=\n}\n{\n".to_vec();
        text.extend((entry("192.168.64.2", 2000) + &entry("192.168.64.3", 3000)).into_bytes());
        text.extend((entry("192.168.64.4", 1000) + "{\n\tname=truncated").into_bytes());
        fs::write(&path, text).unwrap();
        assert_eq!(leased_to(&path, mac).unwrap(), Some(Ipv4Addr::new(192, 168, 64, 3)));
        assert_eq!(leased_to(&path, other).unwrap(), None);
        assert!(leased_to(Path::new("/nowhere"), mac).is_err());
        for bad in ["", "e:0:2", "e:0:2:ab:c:d:e", "e:0:2:ab:c:100"] {
            assert!(bad.parse::<MacAddress>().is_err(), "{bad}");
        }
    }

    #[test]
    fn an_expired_lease_counts_until_another_machine_has_the_address() {
        let dir = testing::dir();
        let path = dir.path().join("dhcpd_leases");
        let mac: MacAddress = "e:0:2:ab:c:d".parse().unwrap();
        let others = |until| entry("192.168.64.2", until).replace("e:0:2:ab:c:d", "e:0:2:ab:c:e");
        let own = Some(Ipv4Addr::new(192, 168, 64, 2));
        for (others, expected) in [(String::new(), own), (others(500), own), (others(2000), None)] {
            // The clock was set ahead since: the lease ended long ago.
            fs::write(&path, others + &entry("192.168.64.2", 600)).unwrap();
            assert_eq!(leased_to(&path, mac).unwrap(), expected);
        }
    }

    #[test]
    fn the_agent_warns_before_the_last_address_is_leased() {
        let short = |available| shortage(Availability { available, total: POOL });
        assert_eq!(short(LEAST), None);
        let words = short(LEAST - 1).unwrap();
        assert!(
            words.starts_with("229 of the 253 addresses") && words.contains("DHCPLeaseTimeSecs"),
            "{words}"
        );
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in "(\\{\n|\\}\n|\tip_address=[0-9.]{0,9}\n|\tlease=(0x)?[0-9a-z]{0,20}\n|.){0,20}") {
            prop_assert!(left(&text, now()).available <= POOL);
        }
    }
}
