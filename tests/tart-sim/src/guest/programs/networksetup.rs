//! `networksetup`: a guest's name servers and search domains, and `/etc/resolv.conf`, which macOS writes from them.
//!
//! Words and exit codes are those of the real program. Only the ones of `NOT_ROOT` and of refused addresses are guesses.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::process::ExitCode;

use nix::sys::stat::{Mode, umask};
use nix::unistd::geteuid;

use super::is_in_own_root;

/// The network service that a VM has.
const SERVICE: &str = "Ethernet";
/// The directory of the settings, and of what the lease said before the first change.
const SETTINGS: &str = "/Library/Preferences/SystemConfiguration";
const RESOLVER: &str = "/etc/resolv.conf";

const BAD_PARAMETERS: u8 = 4;
const NOT_ROOT: u8 = 14;

/// One list of settings.
struct List {
    /// The file that has the settings.
    file: &'static str,
    /// Their name in messages.
    title: &'static str,
}

const SERVERS: List = List { file: "dns-servers", title: "DNS Servers" };
const DOMAINS: List = List { file: "search-domains", title: "Search Domains" };

/// Shows and changes name servers and search domains.
pub(super) fn networksetup(words: &[OsString]) -> ExitCode {
    let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
    let (list, values) = match words.as_slice() {
        ["-listallnetworkservices"] => {
            println!("An asterisk (*) denotes that a network service is disabled.\n{SERVICE}");
            return ExitCode::SUCCESS;
        }
        [_, service, ..] if *service != SERVICE => {
            return refuse(&format!("{service} is not a recognized network service."));
        }
        ["-getdnsservers", _] => return show(&SERVERS),
        ["-getsearchdomains", _] => return show(&DOMAINS),
        ["-setdnsservers", _, values @ ..] if !values.is_empty() => (SERVERS, values),
        ["-setsearchdomains", _, values @ ..] if !values.is_empty() => (DOMAINS, values),
        _ => return refuse("Type \"networksetup -help\" for a list of commands."),
    };
    let values = if values == ["empty"] || values == ["Empty"] { &values[..0] } else { values };
    let is_address = |value: &&str| value.parse::<IpAddr>().is_ok();
    if list.file == SERVERS.file
        && let Some(bad) = values.iter().find(|value| !is_address(value))
    {
        return refuse(&format!("{bad} is not a valid IP address.  No changes were saved."));
    }
    if !geteuid().is_root() || !is_in_own_root() {
        println!("** Error: Command requires admin privileges.");
        return ExitCode::from(NOT_ROOT);
    }
    match change(&list, values) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => refuse(&error.to_string()),
    }
}

fn refuse(why: &str) -> ExitCode {
    println!("{why}\n** Error: The parameters were not valid.");
    ExitCode::from(BAD_PARAMETERS)
}

fn show(list: &List) -> ExitCode {
    match set(list).as_slice() {
        [] => println!("There aren't any {} set on {SERVICE}.", list.title),
        values => println!("{}", values.join("\n")),
    }
    ExitCode::SUCCESS
}

/// The values that a user has set. The lease's values are not among them.
fn set(list: &List) -> Vec<String> {
    let text = fs::read_to_string(Path::new(SETTINGS).join(list.file)).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

fn change(list: &List, values: &[&str]) -> io::Result<()> {
    // Every user can read the files, whatever the caller's umask.
    umask(Mode::S_IWGRP | Mode::S_IWOTH);
    fs::create_dir_all(SETTINGS)?;
    let lease = Path::new(SETTINGS).join("lease");
    if !lease.exists() {
        fs::write(&lease, fs::read(RESOLVER).unwrap_or_default())?;
    }
    fs::write(Path::new(SETTINGS).join(list.file), values.join("\n"))?;
    let lent = fs::read_to_string(lease)?;
    let of_lease = |key: &str| -> Vec<String> {
        let lines = lent.lines().filter_map(|line| line.strip_prefix(key));
        lines.flat_map(str::split_whitespace).map(str::to_owned).collect()
    };
    let or_lease = |list: &List, key: &str| {
        Some(set(list)).filter(|own| !own.is_empty()).unwrap_or_else(|| of_lease(key))
    };
    let (servers, domains) = (or_lease(&SERVERS, "nameserver "), or_lease(&DOMAINS, "search "));
    let mut text = String::from("#\n# macOS Notice\n#\n");
    if !domains.is_empty() {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "search {}", domains.join(" "));
    }
    for server in servers {
        let _ = writeln!(text, "nameserver {server}");
    }
    // A new file: the old one may be the machine's own, shown in the guest.
    let _ = fs::remove_file(RESOLVER);
    fs::write(RESOLVER, text)
}
