//! Gives every Pod of this Node a worker, and passes on to it what the API server says of the Pod.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::Api;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, ResourceExt};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::{info, warn};

use super::admission::fit::{ResourceRequests, fits};
use super::admission::{Refusal, VmPlan, admit, read};
use super::status::is_final;
use super::sync::desired::PodPresence;
use super::worker::host::Host;
use super::worker::{PodUpdates, Worker};
use crate::error_chain::chain;
use crate::fs::file::FileError;
use crate::names::{PodName, PodUid};
use crate::node::node_info::NodeInfos;
use crate::state::{PodDir, StateDir};

/// How often the log has a warning about a broken watch.
const WARN_INTERVAL: Duration = Duration::from_mins(1);

/// The Pods of this Node.
pub(crate) struct Manager {
    host: Arc<Host>,
    client: Client,
    node_infos: NodeInfos,
    state: StateDir,
    pods: HashMap<PodUid, Handle>,
    workers: JoinSet<PodUid>,
    /// While the watch lists all Pods: those that it has shown so far.
    listing: HashMap<PodUid, Pod>,
}

/// A Pod that has a worker.
struct Handle {
    /// The Pod's resource requests; absent when it was refused.
    requests: Option<ResourceRequests>,
    pod: watch::Sender<Arc<Pod>>,
    presence: watch::Sender<PodPresence>,
}

impl Handle {
    /// The Pod's resource requests, unless the API server says that it is over.
    ///
    /// The watch shows a Pod's end before it shows the next Pod that the scheduler has bound because of it.
    fn counted(&self) -> Option<&ResourceRequests> {
        let is_over =
            *self.presence.borrow() == PodPresence::Gone || is_final(self.pod.borrow().status.as_ref());
        self.requests.as_ref().filter(|_| !is_over)
    }
}

/// Why a manager cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ManagerError {
    #[error(transparent)]
    State(#[from] FileError),
    #[error("the worker of a Pod has died")]
    Worker(#[from] tokio::task::JoinError),
}

impl Manager {
    pub(crate) fn new(host: Arc<Host>, client: Client, node_infos: NodeInfos, state: StateDir) -> Self {
        let (pods, listing) = (HashMap::new(), HashMap::new());
        Self { host, client, node_infos, state, pods, workers: JoinSet::new(), listing }
    }

    /// Gives the Pods that an earlier agent has left their workers, as that agent last saw them. The API server may be away: until it shows
    /// a Pod, the worker attends to what runs of it and begins nothing.
    pub(crate) fn adopt(&mut self) -> Result<(), ManagerError> {
        for dir in self.state.pods()? {
            let manifest = dir.record().and_then(|record| match record {
                Some(record) => Ok(dir.manifest()?.map(|pod| (record.pod, pod))),
                None => Ok(None),
            });
            match manifest {
                Ok(Some((name, pod))) if uid_of(&pod).as_ref() == Some(dir.uid()) => {
                    info!(pod = %name, uid = %dir.uid(), "attending to a Pod of an earlier agent");
                    let plan = read(&pod);
                    self.start(name, dir, pod, plan, PodPresence::Unconfirmed);
                }
                // The API server will say what becomes of it.
                Ok(_) => {}
                Err(error) => {
                    warn!(uid = %dir.uid(), error = chain(&error), "cannot attend to a Pod of an earlier agent yet");
                }
            }
        }
        Ok(())
    }

    /// Waits for workers that end before the manager [runs](Self::run): none should.
    pub(crate) async fn attend(&mut self) -> Result<Infallible, ManagerError> {
        while let Some(ended) = self.workers.join_next().await {
            self.pods.remove(&ended?);
        }
        pending().await
    }

    /// Manages Pods for as long as it is polled.
    pub(crate) async fn run(mut self) -> Result<(), ManagerError> {
        // Any Pod of an earlier agent may have a VM until its worker has looked.
        for dir in self.state.pods()? {
            if !self.pods.contains_key(dir.uid()) {
                self.host.registry.slots.note(dir.uid(), true);
            }
        }
        let api: Api<Pod> = Api::all(self.client.clone());
        let config =
            watcher::Config::default().fields(&format!("spec.nodeName={}", self.node_infos.cached().name));
        let mut pods = watcher(api, config).default_backoff().boxed();
        let mut warned_at: Option<tokio::time::Instant> = None;
        loop {
            tokio::select! {
                Some(event) = pods.next() => match event {
                    Ok(event) => {
                        if warned_at.take().is_some() {
                            info!("watching Pods again");
                        }
                        self.take(event).await?;
                    }
                    Err(error) => {
                        if warned_at.is_none_or(|at| at.elapsed() >= WARN_INTERVAL) {
                            warn!(error = chain(&error), "cannot watch Pods; trying again");
                            warned_at = Some(tokio::time::Instant::now());
                        }
                    }
                },
                // No Pod may be without a worker. The agent ends with a worker that has panicked, and the next one reads the state again.
                Some(ended) = self.workers.join_next() => drop(self.pods.remove(&ended?)),
            }
        }
    }

    async fn take(&mut self, event: watcher::Event<Pod>) -> Result<(), FileError> {
        match event {
            watcher::Event::Apply(pod) => self.apply(pod).await,
            watcher::Event::Delete(pod) => {
                if let Some(handle) = uid_of(&pod).and_then(|uid| self.pods.get(&uid)) {
                    handle.presence.send_replace(PodPresence::Gone);
                }
            }
            watcher::Event::Init => self.listing.clear(),
            watcher::Event::InitApply(pod) => {
                if let Some(uid) = uid_of(&pod) {
                    self.listing.insert(uid, pod);
                }
            }
            watcher::Event::InitDone => {
                let listed = std::mem::take(&mut self.listing);
                for (uid, handle) in &self.pods {
                    if !listed.contains_key(uid) {
                        handle.presence.send_replace(PodPresence::Gone);
                    }
                }
                // Pods of an earlier agent that are gone meanwhile.
                for dir in self.state.pods()? {
                    if !listed.contains_key(dir.uid()) && !self.pods.contains_key(dir.uid()) {
                        self.clean_up(dir);
                    }
                }
                for pod in self.in_order_of_admission(listed) {
                    self.apply(pod).await;
                }
                self.host.registry.complete();
            }
        }
        Ok(())
    }

    /// The Pods that are admitted before those that are not, the oldest first.
    fn in_order_of_admission(&self, listed: HashMap<PodUid, Pod>) -> Vec<Pod> {
        let is_admitted = |uid: &PodUid| self.pods.contains_key(uid) || self.is_accepted(uid);
        let mut listed: Vec<(PodUid, Pod)> = listed.into_iter().collect();
        listed.sort_by_cached_key(|(uid, pod)| {
            (!is_admitted(uid), pod.creation_timestamp().map(|time| time.0), uid.clone())
        });
        listed.into_iter().map(|(_, pod)| pod).collect()
    }

    async fn apply(&mut self, pod: Pod) {
        let Some(uid) = uid_of(&pod) else { return };
        if let Some(handle) = self.pods.get_mut(&uid) {
            handle.requests = handle.requests.is_some().then(|| ResourceRequests::of(&pod));
            handle.pod.send_replace(Arc::new(pod));
            handle.presence.send_if_modified(|presence| {
                let is_news = *presence == PodPresence::Unconfirmed;
                if is_news {
                    *presence = PodPresence::Present;
                }
                is_news
            });
            return;
        }
        let name = PodName { namespace: pod.namespace().unwrap_or_default(), name: pod.name_any() };
        info!(pod = %name, %uid, "the Pod is bound to this Node");
        let plan = self.admit(&uid, &pod).await;
        self.start(name, self.state.pod(uid), pod, plan, PodPresence::Present);
    }

    /// Whether a Pod may run here. The manager asks once, for one Pod at a time; an admitted Pod stays admitted.
    async fn admit(&self, uid: &PodUid, pod: &Pod) -> Result<VmPlan, Refusal> {
        if self.is_accepted(uid) {
            return read(pod);
        }
        let plan = admit(pod)?;
        let is_over = pod.metadata.deletion_timestamp.is_some() || is_final(pod.status.as_ref());
        if !is_over {
            let others: Vec<&ResourceRequests> = self.pods.values().filter_map(Handle::counted).collect();
            match fits(pod, &self.node_infos.cached(), &others) {
                Err(refusal) if refusal.reason.may_be_stale() => {
                    fits(pod, &self.node_infos.fresh().await, &others)?;
                }
                result => result?,
            }
        }
        Ok(plan)
    }

    /// Whether this agent, or an earlier one, has admitted a Pod.
    fn is_accepted(&self, uid: &PodUid) -> bool {
        // A record that cannot be read exists.
        self.state.pod(uid.clone()).record().map_or(true, |record| record.is_some())
    }

    fn clean_up(&mut self, dir: PodDir) {
        let unknown = || PodName { namespace: String::new(), name: dir.uid().to_string() };
        let name = dir.record().ok().flatten().map_or_else(unknown, |record| record.pod);
        info!(pod = %name, uid = %dir.uid(), "the Pod is gone, cleaning up after it");
        let metadata = ObjectMeta {
            name: Some(name.name.clone()),
            namespace: Some(name.namespace.clone()),
            uid: Some(dir.uid().to_string()),
            ..ObjectMeta::default()
        };
        let pod = Pod { metadata, ..Pod::default() };
        let plan = admit(&pod);
        self.start(name, dir, pod, plan, PodPresence::Gone);
    }

    fn start(
        &mut self,
        name: PodName,
        dir: PodDir,
        pod: Pod,
        plan: Result<VmPlan, Refusal>,
        presence: PodPresence,
    ) {
        let uid = dir.uid().clone();
        let requests = plan.is_ok().then(|| ResourceRequests::of(&pod));
        let (pod, pod_seen) = watch::channel(Arc::new(pod));
        let (presence, presence_seen) = watch::channel(presence);
        let guard = self.host.registry.enter(uid.clone(), pod_seen.clone());
        let updates = PodUpdates::new(pod_seen, presence_seen);
        let worker = Worker::new(self.host.clone(), self.client.clone(), name, dir, plan, updates);
        self.workers.spawn(async move {
            let _guard = guard;
            Box::pin(worker.run()).await
        });
        self.pods.insert(uid, Handle { requests, pod, presence });
    }
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
