//! The Pods that have a worker: for the eviction manager, for the collector of orphans, and for Pods that wait for a VM slot.

pub(crate) mod slots;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use k8s_openapi::api::core::v1::Pod;
use tokio::sync::watch;

use crate::names::PodUid;
use slots::VmSlots;

/// The Pods of this Node as the API server last showed them, and the VM slots that they share. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct PodRegistry {
    workers: watch::Sender<Workers>,
    pub(super) slots: VmSlots,
    /// Held by the worker that gives its Pod's VM a size, until the plan with the size is written.
    pub(super) sizing: Arc<Mutex<()>>,
}

#[derive(Debug, Default)]
struct Workers {
    /// Whether every Pod that needs a worker has one. The manager must have listed the Pods for that.
    complete: bool,
    pods: HashMap<PodUid, Entry>,
}

#[derive(Debug)]
struct Entry {
    pod: watch::Receiver<Arc<Pod>>,
    is_planned: bool,
}

/// The worker of a Pod lasts until this is dropped. A worker that panics drops it too.
#[derive(Debug)]
pub(crate) struct WorkerGuard {
    uid: PodUid,
    registry: PodRegistry,
}

/// A worker fetches what a VM of its Pod is made of, and writes the VM's plan, until this is dropped.
#[derive(Debug)]
pub(crate) struct PlanGuard {
    uid: PodUid,
    registry: PodRegistry,
}

impl PodRegistry {
    /// For a Mac that runs so many VMs at once.
    pub(crate) fn new(vm_limit: usize) -> Self {
        Self {
            workers: watch::Sender::new(Workers::default()),
            slots: VmSlots::new(vm_limit),
            sizing: Arc::default(),
        }
    }

    /// Pods without workers.
    #[cfg(test)]
    pub(crate) fn with_pod(uid: PodUid, pod: Pod) -> (Self, WorkerGuard) {
        let registry = Self::new(1);
        let (_, pod) = watch::channel(Arc::new(pod));
        let guard = registry.enter(uid, pod);
        (registry, guard)
    }

    /// Enters a Pod that gets a worker.
    pub(super) fn enter(&self, uid: PodUid, pod: watch::Receiver<Arc<Pod>>) -> WorkerGuard {
        let entry = Entry { pod, is_planned: false };
        self.workers.send_modify(|workers| drop(workers.pods.insert(uid.clone(), entry)));
        WorkerGuard { uid, registry: self.clone() }
    }

    /// From now on, a Pod without a worker needs none.
    pub(super) fn complete(&self) {
        self.workers.send_if_modified(|workers| !std::mem::replace(&mut workers.complete, true));
    }

    /// Whether the API server has shown the Pods of this Node.
    pub(crate) fn is_complete(&self) -> bool {
        self.workers.borrow().complete
    }

    /// The Pods that have a worker, as soon as every Pod that needs one has it.
    pub(crate) async fn with_worker(&self) -> HashSet<PodUid> {
        let mut workers = self.workers.subscribe();
        let complete = workers.wait_for(|workers| workers.complete).await;
        // `self` has the sender, so this cannot fail.
        complete.map(|workers| workers.pods.keys().cloned().collect()).unwrap_or_default()
    }

    pub(crate) fn pods(&self) -> Vec<(PodUid, Arc<Pod>)> {
        let workers = self.workers.borrow();
        workers.pods.iter().map(|(uid, entry)| (uid.clone(), entry.pod.borrow().clone())).collect()
    }

    pub(crate) fn pod(&self, uid: &PodUid) -> Option<Arc<Pod>> {
        self.workers.borrow().pods.get(uid).map(|entry| entry.pod.borrow().clone())
    }

    /// Notes that a VM of a Pod is being planned.
    pub(super) fn plan(&self, uid: &PodUid) -> PlanGuard {
        self.note_plan(uid, true);
        PlanGuard { uid: uid.clone(), registry: self.clone() }
    }

    pub(crate) fn is_planned(&self, uid: &PodUid) -> bool {
        self.workers.borrow().pods.get(uid).is_some_and(|entry| entry.is_planned)
    }

    fn note_plan(&self, uid: &PodUid, is_planned: bool) {
        self.workers.send_if_modified(|workers| {
            let entry = workers.pods.get_mut(uid);
            entry.is_some_and(|entry| std::mem::replace(&mut entry.is_planned, is_planned) != is_planned)
        });
    }
}

impl Drop for WorkerGuard {
    fn drop(&mut self) {
        self.registry.workers.send_if_modified(|workers| workers.pods.remove(&self.uid).is_some());
    }
}

impl Drop for PlanGuard {
    fn drop(&mut self) {
        self.registry.note_plan(&self.uid, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter(registry: &PodRegistry, uid: &PodUid) -> WorkerGuard {
        registry.enter(uid.clone(), watch::channel(Arc::default()).1)
    }

    #[test]
    fn a_pod_is_planned_until_the_guard_is_dropped() {
        let (registry, uid) = (PodRegistry::new(2), "0b1c".parse::<PodUid>().unwrap());
        drop(registry.plan(&uid));
        assert!(!registry.is_planned(&uid), "the registry does not know the Pod");
        let _worker = enter(&registry, &uid);
        let plan = registry.plan(&uid);
        assert!(registry.is_planned(&uid));
        drop(plan);
        assert!(!registry.is_planned(&uid) && registry.pod(&uid).is_some());
    }

    #[tokio::test]
    async fn workers_are_shown_once_they_are_complete_and_a_guard_ends_with_its_worker() {
        let (registry, uid) = (PodRegistry::new(2), "0b1c".parse::<PodUid>().unwrap());
        let guard = enter(&registry, &uid);
        let asked = tokio::spawn({
            let registry = registry.clone();
            async move { registry.with_worker().await }
        });
        tokio::task::yield_now().await;
        assert!(!asked.is_finished() && !registry.is_complete());
        registry.complete();
        assert!(registry.is_complete());
        assert_eq!(asked.await.unwrap(), HashSet::from([uid.clone()]));
        let worker = tokio::spawn(async move {
            let _guard = guard;
            panic!("the worker dies");
        });
        assert!(worker.await.is_err());
        assert_eq!(registry.with_worker().await, HashSet::new());
        assert!(registry.pod(&uid).is_none() && registry.pods().is_empty());
    }
}
