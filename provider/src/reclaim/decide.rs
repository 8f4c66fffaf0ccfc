//! Whose a host is.

use super::ReclaimSettings;
use crate::pool::{HostName, ListedHost, MachineRecord};

/// Whose a host is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// A machine has it.
    Owned,
    /// It is free, in this pool or in another.
    Free,
    /// Its name is none that this provider gives.
    Foreign,
    /// It costs money, and no machine has it.
    Orphan(OrphanHost),
}

impl Standing {
    /// All words in metrics.
    pub(crate) const WORDS: [&str; 4] = ["owned", "free", "foreign", "orphan"];

    /// The word in metrics.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Owned => "owned",
            Self::Free => "free",
            Self::Foreign => "foreign",
            Self::Orphan(_) => "orphan",
        }
    }
}

/// Why a host is an orphan host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum OrphanHost {
    /// No machine bears its name.
    NoMachine,
    /// The machine of this name has another host.
    Duplicate,
    /// A claim has begun and did not end. The next claim that it fits takes it.
    Pending,
    /// It failed, and waits for an operator.
    Quarantined,
}

impl OrphanHost {
    /// All reasons.
    pub(crate) const ALL: [Self; 4] = [Self::NoMachine, Self::Duplicate, Self::Pending, Self::Quarantined];

    /// The word in metrics and logs.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::NoMachine => "no_machine",
            Self::Duplicate => "duplicate",
            Self::Pending => "pending",
            Self::Quarantined => "quarantined",
        }
    }
}

/// Whose a host is, by its id in the machines' statuses, and then by its name.
pub(crate) fn standing(host: &ListedHost, settings: &ReclaimSettings, records: &[MachineRecord]) -> Standing {
    if records.iter().any(|record| record.host.as_ref() == Some(&host.id)) {
        return Standing::Owned;
    }
    match HostName::of(&host.name, &settings.prefix) {
        HostName::Free => return Standing::Free,
        HostName::Pending => return Standing::Orphan(OrphanHost::Pending),
        HostName::Quarantined => return Standing::Orphan(OrphanHost::Quarantined),
        HostName::Taken(_) => {}
    }
    let prefixes = records.iter().filter_map(|record| record.prefix.as_ref());
    if prefixes.into_iter().any(|prefix| host.name.starts_with(prefix.as_str())) || is_free_name(&host.name) {
        return Standing::Free;
    }
    let namesakes: Vec<&MachineRecord> =
        records.iter().filter(|record| record.machine.name == host.name).collect();
    match &settings.claim_name_prefix {
        // The machine will find it by its name.
        _ if namesakes.iter().any(|record| record.host.is_none()) => Standing::Owned,
        _ if !namesakes.is_empty() => Standing::Orphan(OrphanHost::Duplicate),
        Some(prefix) if !host.name.starts_with(prefix.as_str()) => Standing::Foreign,
        _ => Standing::Orphan(OrphanHost::NoMachine),
    }
}

/// Whether an orphan may be given back: only if its name begins as those of this provider's machines do. Others wait for a claim or for an
/// operator.
pub(super) fn may_be_reclaimed(orphan: OrphanHost, name: &str, settings: &ReclaimSettings) -> bool {
    let is_left_behind = matches!(orphan, OrphanHost::NoMachine | OrphanHost::Duplicate);
    let prefix = settings.claim_name_prefix.as_ref().filter(|prefix| !prefix.is_empty());
    is_left_behind && prefix.is_some_and(|prefix| name.starts_with(prefix.as_str()))
}

/// Whether a name ends as those do that a release gives, with a UUID: it is free in a pool of which no machine is left.
fn is_free_name(name: &str) -> bool {
    let mut parts = name.rsplit('-');
    [12, 4, 4, 4, 8].into_iter().all(|length| {
        parts.next().is_some_and(|part| part.len() == length && part.chars().all(|c| c.is_ascii_hexdigit()))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::names::{HostId, MachineRef, Zone};
    use crate::pool::PoolPrefix;

    fn host(id: &str, name: &str) -> ListedHost {
        ListedHost { id: HostId::parse(id).unwrap(), name: name.to_owned() }
    }

    fn record(name: &str, host: Option<&str>) -> MachineRecord {
        MachineRecord {
            machine: MachineRef { namespace: "default".to_owned(), name: name.to_owned() },
            zone: Zone::parse("z").unwrap(),
            prefix: PoolPrefix::new("builders-"),
            host: host.map(|id| HostId::parse(id).unwrap()),
        }
    }

    fn settings(claim_name_prefix: Option<&str>) -> ReclaimSettings {
        ReclaimSettings {
            prefix: PoolPrefix::new("pool-").unwrap(),
            zones: Vec::new(),
            claim_name_prefix: claim_name_prefix.map(str::to_owned),
        }
    }

    #[test]
    fn hosts_stand_by_id_then_by_name() {
        use Standing::{Foreign, Free, Owned};
        let orphan = Standing::Orphan;
        let records = [record("tuist-a", Some("1")), record("tuist-b", None)];
        let free = PoolPrefix::new("tuist-old-pool-").unwrap().new_name();
        for (host, reported, gated) in [
            (host("1", "renamed"), Owned, Owned),
            (host("1", "pool-1"), Owned, Owned),
            (host("2", "tuist-b"), Owned, Owned),
            (host("3", "tuist-a"), orphan(OrphanHost::Duplicate), orphan(OrphanHost::Duplicate)),
            (host("4", "tuist-gone"), orphan(OrphanHost::NoMachine), orphan(OrphanHost::NoMachine)),
            (host("5", "pool-5"), Free, Free),
            (host("6", "builders-6"), Free, Free),
            (host("7", &free), Free, Free),
            (host("8", "tuist-claim-pending-8"), orphan(OrphanHost::Pending), orphan(OrphanHost::Pending)),
            (
                host("9", "tuist-quarantined-a"),
                orphan(OrphanHost::Quarantined),
                orphan(OrphanHost::Quarantined),
            ),
            (host("10", "office"), orphan(OrphanHost::NoMachine), Foreign),
        ] {
            assert_eq!(standing(&host, &settings(None), &records), reported, "{}", host.name);
            assert_eq!(standing(&host, &settings(Some("tuist-")), &records), gated, "{}", host.name);
        }
    }

    proptest! {
        #[test]
        fn nothing_is_reclaimed_without_the_gate(name: String, at in 0usize..4) {
            prop_assert!(!may_be_reclaimed(OrphanHost::ALL[at], &name, &settings(None)));
            prop_assert!(!may_be_reclaimed(OrphanHost::ALL[at], &name, &settings(Some(""))));
        }

        #[test]
        fn nothing_is_reclaimed_that_is_owned_or_beyond_the_gate(
            name in "(tuist-|pool-|builders-|tuist-claim-pending-|x)[ab]", id in 1u8..4, owner in 1u8..4,
        ) {
            let records = [record("tuist-a", Some(&owner.to_string())), record("tuist-b", None)];
            let settings = settings(Some("tuist-"));
            let host = host(&id.to_string(), &name);
            if let Standing::Orphan(orphan) = standing(&host, &settings, &records)
                && may_be_reclaimed(orphan, &host.name, &settings)
            {
                prop_assert!(id != owner && name != "tuist-b" && name.starts_with("tuist-"));
                prop_assert!(!name.starts_with("tuist-claim-pending-"));
            }
        }
    }
}
