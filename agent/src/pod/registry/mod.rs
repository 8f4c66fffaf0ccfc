//! The Pods that have a worker, for those who look at all of them at once.

pub(crate) mod active;
pub(crate) mod slots;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::core::v1::Pod;
use tokio::sync::watch;

use crate::names::PodUid;

/// The Pods of this Node as the API last showed them; clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct PodRegistry(Arc<Mutex<HashMap<PodUid, Entry>>>);

#[derive(Debug)]
struct Entry {
    pod: watch::Receiver<Arc<Pod>>,
    is_planned: bool,
}

/// A VM of a Pod is being planned, and its image fetched, until this is dropped.
#[derive(Debug)]
pub(crate) struct PlanGuard {
    uid: PodUid,
    roster: PodRegistry,
}

impl PodRegistry {
    /// A Pod has come.
    pub(crate) fn enter(&self, uid: PodUid, pod: watch::Receiver<Arc<Pod>>) {
        self.lock().insert(uid, Entry { pod, is_planned: false });
    }

    /// A Pod is gone.
    pub(crate) fn leave(&self, uid: &PodUid) {
        self.lock().remove(uid);
    }

    /// All Pods.
    pub(crate) fn pods(&self) -> Vec<(PodUid, Arc<Pod>)> {
        self.lock().iter().map(|(uid, entry)| (uid.clone(), entry.pod.borrow().clone())).collect()
    }

    /// One of them.
    pub(crate) fn pod(&self, uid: &PodUid) -> Option<Arc<Pod>> {
        self.lock().get(uid).map(|entry| entry.pod.borrow().clone())
    }

    /// Planning of a VM for a Pod begins.
    pub(crate) fn plans(&self, uid: &PodUid) -> PlanGuard {
        self.note(uid, true);
        PlanGuard { uid: uid.clone(), roster: self.clone() }
    }

    /// Whether a VM of a Pod is being planned.
    pub(crate) fn is_planned(&self, uid: &PodUid) -> bool {
        self.lock().get(uid).is_some_and(|entry| entry.is_planned)
    }

    fn note(&self, uid: &PodUid, is_planned: bool) {
        if let Some(entry) = self.lock().get_mut(uid) {
            entry.is_planned = is_planned;
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<PodUid, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for PlanGuard {
    fn drop(&mut self) {
        self.roster.note(&self.uid, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_planned_until_that_ends_however_it_does() {
        let (roster, uid) = (PodRegistry::default(), "0b1c".parse::<PodUid>().unwrap());
        drop(roster.plans(&uid));
        assert!(!roster.is_planned(&uid), "nobody knows it");
        roster.enter(uid.clone(), watch::channel(Arc::default()).1);
        let planning = roster.plans(&uid);
        assert!(roster.is_planned(&uid));
        drop(planning);
        assert!(!roster.is_planned(&uid) && roster.pod(&uid).is_some());
    }
}
