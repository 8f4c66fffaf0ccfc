//! Places for VMs. macOS counts a VM until the last of it is gone, however long ago the API has forgotten its Pod: a Pod that was let in
//! since then waits for the place.

use std::collections::HashSet;

use tokio::sync::watch;

use crate::names::PodUid;

/// The places, and which Pods have a VM in one; clones share them.
#[derive(Debug, Clone)]
pub(crate) struct VmSlots {
    limit: usize,
    held: watch::Sender<HashSet<PodUid>>,
}

impl VmSlots {
    /// This many places, all free.
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, held: watch::Sender::new(HashSet::new()) }
    }

    /// Takes a place for a Pod that is about to start a VM; `false` when there is none.
    pub(crate) fn take(&self, pod: &PodUid) -> bool {
        let mut taken = false;
        self.held.send_if_modified(|held| {
            taken = held.contains(pod) || held.len() < self.limit;
            taken && held.insert(pod.clone())
        });
        taken
    }

    /// Notes whether a Pod is seen to have a VM, whether or not there was a place for it.
    pub(crate) fn note(&self, pod: &PodUid, has_vm: bool) {
        self.held.send_if_modified(|held| if has_vm { held.insert(pod.clone()) } else { held.remove(pod) });
    }

    /// Tells of every place that is taken or left from now on.
    pub(crate) fn changes(&self) -> watch::Receiver<HashSet<PodUid>> {
        self.held.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_only_so_many_places() {
        let slots = VmSlots::new(2);
        let [a, b, c] = ["a", "b", "c"].map(|uid| uid.parse::<PodUid>().unwrap());
        assert!(slots.take(&a) && slots.take(&b) && slots.take(&b));
        let mut changes = slots.changes();
        assert!(!slots.take(&c));
        assert!(!changes.has_changed().unwrap(), "nobody is woken in vain");
        slots.note(&a, false);
        assert!(changes.has_changed().unwrap());
        changes.mark_unchanged();
        assert!(slots.take(&c));
    }

    #[test]
    fn a_vm_that_is_there_counts_in_any_case() {
        let slots = VmSlots::new(1);
        let [a, b, c] = ["a", "b", "c"].map(|uid| uid.parse::<PodUid>().unwrap());
        slots.note(&a, true);
        slots.note(&b, true);
        slots.note(&a, false);
        assert!(!slots.take(&c), "one of two too many is gone");
        slots.note(&b, false);
        assert!(slots.take(&c));
    }
}
