//! The Pods that have a worker, for those who look at all of them at once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::core::v1::Pod;
use tokio::sync::watch;

use super::PodUid;

/// The Pods of this Node as the API last showed them; clones share it.
#[derive(Debug, Clone, Default)]
pub struct Roster(Arc<Mutex<HashMap<PodUid, watch::Receiver<Arc<Pod>>>>>);

impl Roster {
    /// A Pod has come.
    pub fn enter(&self, uid: PodUid, pod: watch::Receiver<Arc<Pod>>) {
        self.lock().insert(uid, pod);
    }

    /// A Pod is gone.
    pub fn leave(&self, uid: &PodUid) {
        self.lock().remove(uid);
    }

    /// All Pods.
    pub fn pods(&self) -> Vec<(PodUid, Arc<Pod>)> {
        self.lock().iter().map(|(uid, pod)| (uid.clone(), pod.borrow().clone())).collect()
    }

    /// One of them.
    pub fn pod(&self, uid: &PodUid) -> Option<Arc<Pod>> {
        self.lock().get(uid).map(|pod| pod.borrow().clone())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<PodUid, watch::Receiver<Arc<Pod>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
