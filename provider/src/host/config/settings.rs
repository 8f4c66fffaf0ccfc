//! Settings of macOS that a Mac needs to run VMs for months without a person at its screen.

use super::argv;
use crate::host::part::{Part, Reading, Setting, SettingOf};

/// The names by which the Mac is known: to itself, in the local network, and to people.
pub(super) fn host_name(name: &str) -> Vec<Part> {
    // A name in the local network is one label.
    let local = name.replace('.', "-");
    let names = [
        ("HostName", name.to_owned(), "host name"),
        ("LocalHostName", local, "name in the local network"),
        ("ComputerName", name.to_owned(), "name that people see"),
    ];
    let setting = |(key, wanted, what): (&str, String, &'static str)| {
        Part::Setting(Setting {
            what,
            of: SettingOf::Mac,
            read: argv(&["/usr/sbin/scutil", "--get", key]),
            reading: Reading::Whole,
            write: argv(&["/usr/sbin/scutil", "--set", key, &wanted]),
            wanted,
        })
    };
    names.into_iter().map(setting).collect()
}

/// macOS lends addresses for a day unless it is told otherwise, and has about 250 of them.
pub(super) fn dhcp_lease_time(seconds: u32) -> Part {
    const DOMAIN: &str = "/Library/Preferences/SystemConfiguration/com.apple.InternetSharing.default.plist";
    let seconds = seconds.to_string();
    Part::Setting(Setting {
        what: "seconds for which macOS lends an address to a VM",
        of: SettingOf::Mac,
        read: argv(&["/usr/bin/defaults", "read", DOMAIN, "bootpd"]),
        reading: Reading::Key("DHCPLeaseTimeSecs"),
        // Whatever else is set for bootpd stays.
        write: argv(&[
            "/usr/bin/defaults",
            "write",
            DOMAIN,
            "bootpd",
            "-dict-add",
            "DHCPLeaseTimeSecs",
            "-int",
            &seconds,
        ]),
        wanted: seconds,
    })
}

/// A Mac that sleeps, locks its screen or logs its user out runs no VMs.
pub(super) fn no_sleep() -> Vec<Part> {
    let power = |key: &'static str, what, wanted: &str| {
        Part::Setting(Setting {
            what,
            of: SettingOf::Mac,
            read: argv(&["/usr/bin/pmset", "-g"]),
            reading: Reading::Word(key),
            wanted: wanted.to_owned(),
            write: argv(&["/usr/bin/pmset", "-a", key, wanted]),
        })
    };
    let preference = |of, what, host: &[&str], domain: &str, key: &str| {
        let command = |verb, value: &[&str]| {
            argv(&[&["/usr/bin/defaults"][..], host, &[verb, domain, key], value].concat())
        };
        Part::Setting(Setting {
            what,
            of,
            read: command("read", &[]),
            reading: Reading::Whole,
            wanted: "0".to_owned(),
            write: command("write", &["-int", "0"]),
        })
    };
    let screensaver = "com.apple.screensaver";
    let global = "/Library/Preferences/.GlobalPreferences";
    vec![
        power("sleep", "minutes until the Mac sleeps", "0"),
        power("displaysleep", "minutes until the screen sleeps", "0"),
        power("disksleep", "minutes until the disk sleeps", "0"),
        power("autorestart", "restart after a power failure", "1"),
        preference(
            SettingOf::User,
            "seconds until the screen saver",
            &["-currentHost"],
            screensaver,
            "idleTime",
        ),
        preference(SettingOf::User, "password after the screen saver", &[], screensaver, "askForPassword"),
        preference(
            SettingOf::Mac,
            "seconds until the user is logged out",
            &[],
            global,
            "com.apple.autologout.AutoLogOutDelay",
        ),
    ]
}

/// Private addresses that programs may reach without asking at the screen. It takes effect at the next boot; the agent itself, a daemon, needs
/// none of it.
pub(super) fn local_network() -> Vec<Part> {
    const DOMAIN: &str = "com.apple.network.local-network";
    const PRIVATE: [&str; 3] = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"];
    let keys = [
        (
            "AllowedEthernetLocalNetworkAddresses",
            "private addresses that programs reach by Ethernet without asking",
        ),
        ("AllowedWiFiLocalNetworkAddresses", "private addresses that programs reach by Wi-Fi without asking"),
    ];
    let setting = |(key, what): (&str, &'static str)| {
        Part::Setting(Setting {
            what,
            of: SettingOf::Mac,
            read: argv(&["/usr/bin/defaults", "read", DOMAIN, key]),
            reading: Reading::Elements,
            wanted: PRIVATE.join(" "),
            write: argv(&[&["/usr/bin/defaults", "write", DOMAIN, key, "-array"][..], &PRIVATE].concat()),
        })
    };
    keys.into_iter().map(setting).collect()
}
