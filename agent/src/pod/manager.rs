//! Gives every Pod of this Node its worker, and tells the worker what the API and the state directory say.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::Api;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, ResourceExt};
use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tracing::{info, warn};

use super::worker::{Host, PodFeed, Worker};
use super::{PodName, PodUid};
use crate::node::NodeName;
use crate::report::chain;
use crate::state::{PodDir, StateDir, StateError};

/// How long a broken watch may stay quiet in the log.
const COMPLAIN_EVERY: Duration = Duration::from_mins(1);

/// The Pods of this Node.
pub struct Manager {
    host: Arc<Host>,
    client: Client,
    node: NodeName,
    state: StateDir,
    pods: HashMap<PodUid, Handle>,
    workers: JoinSet<PodUid>,
    /// While the watch lists all Pods: those that it has named so far.
    listing: Option<HashSet<PodUid>>,
}

/// How a worker is reached.
struct Handle {
    pod: watch::Sender<Arc<Pod>>,
    gone: watch::Sender<bool>,
    stirred: Arc<Notify>,
}

/// A manager that cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ManagerError {
    /// The state directory cannot be read.
    #[error(transparent)]
    State(#[from] StateError),
    /// The state directory cannot be watched.
    #[error("cannot watch {0}")]
    Watch(String, #[source] notify::Error),
}

impl std::fmt::Debug for Manager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Manager").field("node", &self.node).finish_non_exhaustive()
    }
}

impl Manager {
    /// A manager without Pods.
    pub fn new(host: Arc<Host>, client: Client, node: NodeName, state: StateDir) -> Self {
        Self { host, client, node, state, pods: HashMap::new(), workers: JoinSet::new(), listing: None }
    }

    /// Manages Pods for as long as it is polled.
    pub async fn run(mut self) -> Result<(), ManagerError> {
        let (stirred, mut stirs) = mpsc::unbounded_channel();
        let _watcher = watch_state(&self.state, stirred)?;
        let api: Api<Pod> = Api::all(self.client.clone());
        let config = watcher::Config::default().fields(&format!("spec.nodeName={}", self.node));
        let mut pods = watcher(api, config).default_backoff().boxed();
        let mut complained: Option<tokio::time::Instant> = None;
        loop {
            tokio::select! {
                Some(event) = pods.next() => match event {
                    Ok(event) => {
                        if complained.take().is_some() {
                            info!("watching Pods again");
                        }
                        self.take(event)?;
                    }
                    Err(error) => {
                        let quiet = complained.is_some_and(|at| at.elapsed() < COMPLAIN_EVERY);
                        if !quiet {
                            warn!(error = chain(&error), "cannot watch Pods; trying again");
                            complained = Some(tokio::time::Instant::now());
                        }
                    }
                },
                Some(uid) = stirs.recv() => {
                    if let Some(handle) = self.pods.get(&uid) {
                        handle.stirred.notify_one();
                    }
                }
                Some(ended) = self.workers.join_next() => self.ended(ended),
            }
        }
    }

    fn take(&mut self, event: watcher::Event<Pod>) -> Result<(), StateError> {
        match event {
            watcher::Event::Apply(pod) => self.apply(pod),
            watcher::Event::Delete(pod) => {
                if let Some(handle) = uid_of(&pod).and_then(|uid| self.pods.get(&uid)) {
                    handle.gone.send_replace(true);
                }
            }
            watcher::Event::Init => self.listing = Some(HashSet::new()),
            watcher::Event::InitApply(pod) => {
                if let (Some(listing), Some(uid)) = (&mut self.listing, uid_of(&pod)) {
                    listing.insert(uid);
                }
                self.apply(pod);
            }
            watcher::Event::InitDone => {
                let listed = self.listing.take().unwrap_or_default();
                for (uid, handle) in &self.pods {
                    if !listed.contains(uid) {
                        handle.gone.send_replace(true);
                    }
                }
                // What an earlier agent left behind, of Pods that are gone meanwhile.
                for dir in self.state.pods()? {
                    if !listed.contains(dir.uid()) && !self.pods.contains_key(dir.uid()) {
                        self.finish_off(dir);
                    }
                }
            }
        }
        Ok(())
    }

    fn apply(&mut self, pod: Pod) {
        let Some(uid) = uid_of(&pod) else { return };
        if let Some(handle) = self.pods.get(&uid) {
            handle.pod.send_replace(Arc::new(pod));
            return;
        }
        let name = PodName { namespace: pod.namespace().unwrap_or_default(), name: pod.name_any() };
        info!(pod = %name, %uid, "the Pod is bound to this Node");
        self.start(name, self.state.pod(uid), pod, false);
    }

    fn finish_off(&mut self, dir: PodDir) {
        let unknown = || PodName { namespace: String::new(), name: dir.uid().to_string() };
        let name = dir.record().ok().flatten().map_or_else(unknown, |record| record.pod);
        info!(pod = %name, uid = %dir.uid(), "the Pod is gone, cleaning up after it");
        let metadata = ObjectMeta {
            name: Some(name.name.clone()),
            namespace: Some(name.namespace.clone()),
            uid: Some(dir.uid().to_string()),
            ..ObjectMeta::default()
        };
        self.start(name, dir, Pod { metadata, ..Pod::default() }, true);
    }

    fn start(&mut self, name: PodName, dir: PodDir, pod: Pod, is_gone: bool) {
        let uid = dir.uid().clone();
        let (pod, pod_seen) = watch::channel(Arc::new(pod));
        let (gone, gone_seen) = watch::channel(is_gone);
        let stirred = Arc::new(Notify::new());
        let feed = PodFeed { pod: pod_seen, gone: gone_seen, stirred: stirred.clone() };
        self.workers.spawn(Worker::new(self.host.clone(), self.client.clone(), name, dir, feed).run());
        self.pods.insert(uid, Handle { pod, gone, stirred });
    }

    fn ended(&mut self, ended: Result<PodUid, tokio::task::JoinError>) {
        match ended {
            Ok(uid) => drop(self.pods.remove(&uid)),
            Err(error) => warn!(%error, "the worker of a Pod has died"),
        }
    }
}

/// Rings for every Pod in whose directory something changes.
fn watch_state(
    state: &StateDir,
    stirred: mpsc::UnboundedSender<PodUid>,
) -> Result<RecommendedWatcher, ManagerError> {
    let watched = state.clone();
    let ring = move |event: notify::Result<notify::Event>| {
        let Ok(event) = event else { return };
        // Opening a lock to probe it is an event too; it must not ring the bell that made us probe.
        if event.kind.is_access() {
            return;
        }
        // A file that is being written says nothing until it is renamed.
        let settled =
            event.paths.iter().filter(|path| path.extension().is_none_or(|extension| extension != "tmp"));
        for uid in settled.filter_map(|path| watched.pod_of(path)) {
            let _ = stirred.send(uid);
        }
    };
    let path = state.pods_path();
    let failed = |error| ManagerError::Watch(path.display().to_string(), error);
    let mut watcher = notify::recommended_watcher(ring).map_err(failed)?;
    watcher.watch(&path, RecursiveMode::Recursive).map_err(failed)?;
    Ok(watcher)
}

fn uid_of(pod: &Pod) -> Option<PodUid> {
    match pod.metadata.uid.as_deref().unwrap_or_default().parse() {
        Ok(uid) => Some(uid),
        Err(error) => {
            warn!(pod = pod.name_any(), %error, "ignoring a Pod that cannot be named");
            None
        }
    }
}
