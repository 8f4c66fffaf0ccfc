//! A Mac of the list: its entry, and who has it.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::host;
use crate::names::{HostId, MachineRef, Zone};
use crate::pool::{ClaimRequest, Host, HostName, HostState, OsFamily, Password};
use crate::ssh::{Fingerprint, SshAddress, SshKey};

/// `claim.tuist.dev/<Mac>`: the machine that has it.
const CLAIM: &str = "claim.tuist.dev/";
/// `quarantine.tuist.dev/<Mac>`: the machine that it failed. An operator removes it.
const QUARANTINE: &str = "quarantine.tuist.dev/";
/// The longest name of an annotation.
const LONGEST_NAME: usize = 63;

/// An entry of the Secret. The entry's key is the Mac's name.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Entry {
    /// `USER@HOST` or `USER@HOST:PORT`.
    ssh: String,
    /// The fingerprint of the Mac's host key, as `ssh-keygen -l` prints it.
    host_key: Option<String>,
    /// The private key that opens the Mac. Otherwise the fleet's does.
    key: Option<String>,
    /// The user's password. It is needed once, on a Mac that was not prepared.
    password: Option<String>,
    /// The machines of this zone can have it.
    #[serde(default = "default_zone")]
    zone: String,
    /// The machines of this type can have it; of all types if there is none.
    r#type: Option<String>,
    /// The machines with this macOS can have it; with every one if there is none.
    os: Option<String>,
}

fn default_zone() -> String {
    "local".to_owned()
}

/// Who has a Mac.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Use {
    /// No machine.
    Free,
    /// This machine, `NAMESPACE/NAME`.
    By(String),
    /// No machine, until an operator has looked at it.
    Quarantined,
}

impl Use {
    /// A machine without a namespace stands for any of this name.
    pub(super) fn is_by(&self, machine: &MachineRef) -> bool {
        match self {
            Self::By(user) if machine.namespace.is_empty() => {
                user.split_once('/').is_some_and(|(_, name)| name == machine.name)
            }
            Self::By(user) => *user == machine.to_string(),
            Self::Free | Self::Quarantined => false,
        }
    }
}

/// A Mac.
#[derive(Debug, Clone)]
pub(super) struct Mac {
    pub(super) id: HostId,
    pub(super) zone: Zone,
    pub(super) used: Use,
    kind: Option<String>,
    os: Option<OsFamily>,
    ssh: SshAddress,
    fingerprint: Option<Fingerprint>,
    key: Option<SshKey>,
    password: Password,
}

impl Mac {
    /// Reads an entry. `None` if it is not understood: why would have to be told in the words of the entry, which are secret.
    pub(super) fn parse(name: &str, entry: &[u8], annotations: &BTreeMap<String, String>) -> Option<Self> {
        let entry: Entry = serde_saphyr::from_str(std::str::from_utf8(entry).ok()?).ok()?;
        let id = HostId::parse(name).ok().filter(|_| name.len() <= LONGEST_NAME)?;
        let used = match (
            annotations.get(&format!("{QUARANTINE}{name}")),
            annotations.get(&format!("{CLAIM}{name}")),
        ) {
            (Some(_), _) => Use::Quarantined,
            (None, Some(machine)) => Use::By(machine.clone()),
            (None, None) => Use::Free,
        };
        Some(Self {
            id,
            zone: Zone::parse(&entry.zone).ok()?,
            used,
            kind: entry.r#type,
            os: entry.os.map(|os| OsFamily::of_image(&os).ok_or(())).transpose().ok()?,
            ssh: entry.ssh.parse().ok()?,
            fingerprint: entry.host_key.map(|text| text.parse()).transpose().ok()?,
            key: entry.key.map(|text| text.parse()).transpose().ok()?,
            password: entry.password.map_or(Password::Absent, |password| {
                Password::Known(host::Secret::new(password.into_bytes()))
            }),
        })
    }

    pub(super) fn claim_annotation(&self) -> String {
        format!("{CLAIM}{}", self.id)
    }

    pub(super) fn quarantine_annotation(&self) -> String {
        format!("{QUARANTINE}{}", self.id)
    }

    /// Whether a machine can have it.
    pub(super) fn fits(&self, request: &ClaimRequest) -> bool {
        self.used == Use::Free
            && HostName::of(self.id.as_str(), &request.prefix) == HostName::Free
            && self.zone == request.zone
            && self.kind.as_ref().is_none_or(|kind| *kind == request.kind)
            && self.os.as_ref().is_none_or(|os| *os == request.os)
    }

    /// What it is called: by its machine's name, as a server of Scaleway is.
    pub(super) fn shown_name(&self) -> String {
        match &self.used {
            Use::Free => self.id.to_string(),
            Use::By(machine) => machine.split_once('/').map_or(machine.as_str(), |(_, name)| name).to_owned(),
            Use::Quarantined => HostName::new_quarantined(self.id.as_str()),
        }
    }

    pub(super) fn host(&self) -> Host {
        Host {
            id: self.id.clone(),
            name: self.shown_name(),
            state: HostState::Ready,
            ssh: Some(self.ssh.clone()),
            fingerprint: self.fingerprint.clone(),
            key: self.key.clone(),
            password: self.password.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(name: &str, entry: &str) -> Option<Mac> {
        Mac::parse(name, entry.as_bytes(), &BTreeMap::new())
    }

    #[test]
    fn an_entry_needs_an_address_and_has_no_unknown_field() {
        let mac = parse("mac-1", "ssh: admin@10.0.0.5:2222\npassword: p\nos: Tahoe").unwrap();
        assert_eq!((mac.ssh.port, mac.zone.to_string(), &mac.used), (2222, "local".to_owned(), &Use::Free));
        assert_eq!(mac.password, Password::Known(host::Secret::new(b"p".to_vec())));
        for (name, entry) in [
            ("mac-1", ""),
            ("mac-1", "zone: local"),
            ("mac-1", "ssh: 10.0.0.5"),
            ("mac-1", "ssh: admin@mac\nhostkey: x"),
            ("mac-1", "ssh: admin@mac\nhostKey: x"),
            ("mac-1", "ssh: admin@mac\nkey: x"),
            ("a/b", "ssh: admin@mac"),
            (&*"m".repeat(64), "ssh: admin@mac"),
        ] {
            assert!(parse(name, entry).is_none(), "{name} {entry}");
        }
    }

    #[test]
    fn a_machine_without_a_namespace_stands_for_any_of_its_name() {
        let used = Use::By("ns/runner-1".to_owned());
        for (namespace, name, is_by) in [
            ("ns", "runner-1", true),
            ("", "runner-1", true),
            ("other", "runner-1", false),
            ("", "ns", false),
        ] {
            let machine = MachineRef { namespace: namespace.to_owned(), name: name.to_owned() };
            assert_eq!(used.is_by(&machine), is_by, "{machine}");
        }
    }
}
