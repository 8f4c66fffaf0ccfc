//! Which labels are disabled: kept in a file, so that it outlives the job and the boot.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::PathBuf;

use mac_sim::control::Domain;

/// The file of a domain. `gui` and `user` of one user share theirs.
fn file(domain: Domain) -> PathBuf {
    let name = match domain {
        Domain::System => "disabled.plist".to_owned(),
        Domain::User(uid) | Domain::Gui(uid) => format!("disabled.{uid}.plist"),
    };
    PathBuf::from("/private/var/db/com.apple.xpc.launchd").join(name)
}

/// Every label that was enabled or disabled, and whether it is disabled.
pub(super) fn read(domain: Domain) -> BTreeMap<String, bool> {
    let read = fs::read(file(domain)).ok().and_then(|bytes| plist::from_bytes(&bytes).ok());
    read.unwrap_or_default()
}

/// Whether a label is disabled. A label that was never enabled or disabled is as its property list says.
pub(super) fn is_disabled(domain: Domain, label: &str, in_plist: bool) -> bool {
    read(domain).get(label).copied().unwrap_or(in_plist)
}

/// Enables or disables a label.
pub(super) fn write(domain: Domain, label: &str, disabled: bool) -> io::Result<()> {
    let mut labels = read(domain);
    labels.insert(label.to_owned(), disabled);
    let path = file(domain);
    let hidden = path.with_extension("new");
    plist::to_file_xml(&hidden, &labels).map_err(io::Error::other)?;
    fs::rename(hidden, path)
}

/// What `launchctl print-disabled` prints.
pub(super) fn print(domain: Domain) -> String {
    let row = |(label, disabled): (&String, &bool)| {
        format!("\t\t\"{label}\" => {}\n", if *disabled { "disabled" } else { "enabled" })
    };
    let rows: String = read(domain).iter().map(row).collect();
    format!("\n\tdisabled services = {{\n{rows}\t}}\n")
}
