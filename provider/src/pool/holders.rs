//! Which machine holds which host, by the ids in the machines' statuses.

use std::collections::BTreeMap;

use super::MachineRecord;
use crate::names::{HostId, MachineRef};

/// Who holds what.
#[derive(Debug)]
pub(super) struct Holders<'a> {
    records: &'a [MachineRecord],
    claimed: &'a BTreeMap<HostId, MachineRef>,
}

impl<'a> Holders<'a> {
    /// `claimed`: the claims of this process, whose ids may not be in a status yet. Such a claim counts until the machine's status has a
    /// host, or the machine is gone.
    pub(super) fn new(records: &'a [MachineRecord], claimed: &'a BTreeMap<HostId, MachineRef>) -> Self {
        Self { records, claimed }
    }

    /// Whether there is such a machine.
    pub(super) fn knows(&self, machine: &MachineRef) -> bool {
        self.record(machine).is_some()
    }

    /// Whether a machine has this name, in whatever namespace.
    pub(super) fn knows_name(&self, name: &str) -> bool {
        self.records.iter().any(|record| record.machine.name == name)
    }

    /// The host in a machine's status.
    pub(super) fn host_of(&self, machine: &MachineRef) -> Option<&HostId> {
        self.record(machine)?.host.as_ref()
    }

    /// Whether another machine holds this host.
    pub(super) fn is_held_by_other(&self, id: &HostId, machine: &MachineRef) -> bool {
        let recorded =
            self.records.iter().any(|record| record.host.as_ref() == Some(id) && record.machine != *machine);
        let claimed = self.claimed.get(id).is_some_and(|claimer| {
            claimer != machine && self.record(claimer).is_some_and(|record| record.host.is_none())
        });
        recorded || claimed
    }

    fn record(&self, machine: &MachineRef) -> Option<&MachineRecord> {
        self.records.iter().find(|record| record.machine == *machine)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::Zone;

    fn machine(name: &str) -> MachineRef {
        MachineRef { namespace: "default".to_owned(), name: name.to_owned() }
    }

    fn id(text: &str) -> HostId {
        HostId::parse(text).unwrap()
    }

    fn record(name: &str, host: Option<&str>) -> MachineRecord {
        let zone = Zone::parse("z").unwrap();
        MachineRecord { machine: machine(name), zone, prefix: None, host: host.map(id) }
    }

    #[test]
    fn a_host_is_held_by_the_machine_whose_status_has_it() {
        let (records, claimed) = ([record("a", Some("h")), record("b", None)], BTreeMap::new());
        let holders = Holders::new(&records, &claimed);
        assert!(holders.is_held_by_other(&id("h"), &machine("b")));
        assert!(!holders.is_held_by_other(&id("h"), &machine("a")));
        assert!(!holders.is_held_by_other(&id("i"), &machine("b")));
    }

    #[test]
    fn a_machine_of_the_same_name_in_another_namespace_is_another() {
        let (records, claimed) = ([record("a", Some("h"))], BTreeMap::new());
        let other = MachineRef { namespace: "other".to_owned(), name: "a".to_owned() };
        assert!(Holders::new(&records, &claimed).is_held_by_other(&id("h"), &other));
    }

    #[test]
    fn a_claim_counts_until_the_status_says_more_or_the_machine_is_gone() {
        let claimed = BTreeMap::from([(id("h"), machine("a"))]);
        for (records, is_held) in [
            (vec![record("a", None)], true),
            (vec![record("a", Some("h"))], true),
            (vec![record("a", Some("i"))], false),
            (vec![], false),
        ] {
            let holders = Holders::new(&records, &claimed);
            assert_eq!(holders.is_held_by_other(&id("h"), &machine("b")), is_held, "{records:?}");
        }
    }
}
