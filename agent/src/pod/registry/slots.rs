//! VM slots. macOS limits how many VMs run at once, and counts a VM until its last process is gone. The API server may have forgotten the
//! VM's Pod long before: a Pod that was admitted since then waits for the slot.

use std::collections::HashSet;

use tokio::sync::watch;

use crate::names::PodUid;

/// The slots, and which Pods have a VM in one. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct VmSlots {
    limit: usize,
    held: watch::Sender<HashSet<PodUid>>,
}

impl VmSlots {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, held: watch::Sender::new(HashSet::new()) }
    }

    /// Takes a slot for a Pod that is about to start a VM; `false` when none is free.
    pub(in crate::pod) fn take(&self, pod: &PodUid) -> bool {
        let mut taken = false;
        self.held.send_if_modified(|held| {
            taken = held.contains(pod) || held.len() < self.limit;
            taken && held.insert(pod.clone())
        });
        taken
    }

    /// Notes whether a Pod has a VM. A VM counts even if no slot was free for it.
    pub(in crate::pod) fn note(&self, pod: &PodUid, has_vm: bool) {
        self.held.send_if_modified(|held| if has_vm { held.insert(pod.clone()) } else { held.remove(pod) });
    }

    /// Changes whenever a slot is taken or freed from now on.
    pub(in crate::pod) fn changes(&self) -> watch::Receiver<HashSet<PodUid>> {
        self.held.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_slots_are_taken_than_there_are() {
        let slots = VmSlots::new(2);
        let [a, b, c] = ["a", "b", "c"].map(|uid| uid.parse::<PodUid>().unwrap());
        assert!(slots.take(&a) && slots.take(&b) && slots.take(&b));
        let mut changes = slots.changes();
        assert!(!slots.take(&c));
        assert!(!changes.has_changed().unwrap(), "a worker would wake up in vain");
        slots.note(&a, false);
        assert!(changes.has_changed().unwrap());
        changes.mark_unchanged();
        assert!(slots.take(&c));
    }

    #[test]
    fn a_vm_counts_even_without_a_slot() {
        let slots = VmSlots::new(1);
        let [a, b, c] = ["a", "b", "c"].map(|uid| uid.parse::<PodUid>().unwrap());
        slots.note(&a, true);
        slots.note(&b, true);
        slots.note(&a, false);
        assert!(!slots.take(&c), "one of two VMs beyond the limit is left");
        slots.note(&b, false);
        assert!(slots.take(&c));
    }
}
