//! Gives every Pod of this Node its worker, and tells the worker what the API says.

use std::collections::HashMap;
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
use super::worker::{Host, PodFeed, Worker};
use crate::error_chain::chain;
use crate::fs::file::FileError;
use crate::names::{PodName, PodUid};
use crate::node::node_info::NodeInfos;
use crate::state::{PodDir, StateDir};

/// How long a broken watch may stay quiet in the log.
const COMPLAIN_EVERY: Duration = Duration::from_mins(1);

/// The Pods of this Node.
pub(crate) struct Manager {
    host: Arc<Host>,
    client: Client,
    offers: NodeInfos,
    state: StateDir,
    pods: HashMap<PodUid, Handle>,
    workers: JoinSet<PodUid>,
    /// While the watch lists all Pods: those that it has shown so far.
    listing: HashMap<PodUid, Pod>,
}

/// How a worker is reached.
struct Handle {
    /// What the Pod takes of the Node; nothing when it was refused.
    claim: Option<ResourceRequests>,
    pod: watch::Sender<Arc<Pod>>,
    gone: watch::Sender<bool>,
}

impl Handle {
    /// What the Pod takes of the Node, unless the API says that it is over.
    ///
    /// The watch shows a Pod's end before it shows the next Pod that the scheduler has bound because of it.
    fn counted(&self) -> Option<&ResourceRequests> {
        let is_over = *self.gone.borrow() || is_final(self.pod.borrow().status.as_ref());
        self.claim.as_ref().filter(|_| !is_over)
    }
}

/// A manager that cannot start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ManagerError {
    /// The state directory cannot be read.
    #[error(transparent)]
    State(#[from] FileError),
    /// A Pod is without its worker.
    #[error("the worker of a Pod has died")]
    Worker(#[from] tokio::task::JoinError),
}

impl std::fmt::Debug for Manager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Manager").field("pods", &self.pods.len()).finish_non_exhaustive()
    }
}

impl Manager {
    /// A manager without Pods.
    pub(crate) fn new(host: Arc<Host>, client: Client, offers: NodeInfos, state: StateDir) -> Self {
        let (pods, listing) = (HashMap::new(), HashMap::new());
        Self { host, client, offers, state, pods, workers: JoinSet::new(), listing }
    }

    /// Manages Pods for as long as it is polled.
    pub(crate) async fn run(mut self) -> Result<(), ManagerError> {
        // Until its worker has looked, any Pod of an earlier agent may have a VM.
        for dir in self.state.pods()? {
            self.host.slots.note(dir.uid(), true);
        }
        let api: Api<Pod> = Api::all(self.client.clone());
        let config =
            watcher::Config::default().fields(&format!("spec.nodeName={}", self.offers.known().name));
        let mut pods = watcher(api, config).default_backoff().boxed();
        let mut complained: Option<tokio::time::Instant> = None;
        loop {
            tokio::select! {
                Some(event) = pods.next() => match event {
                    Ok(event) => {
                        if complained.take().is_some() {
                            info!("watching Pods again");
                        }
                        self.take(event).await?;
                    }
                    Err(error) => {
                        let quiet = complained.is_some_and(|at| at.elapsed() < COMPLAIN_EVERY);
                        if !quiet {
                            warn!(error = chain(&error), "cannot watch Pods; trying again");
                            complained = Some(tokio::time::Instant::now());
                        }
                    }
                },
                // No Pod may be without a worker: an agent that starts again finds all that the dead one knew on the disk.
                Some(ended) = self.workers.join_next() => {
                    let uid = ended?;
                    self.host.roster.leave(&uid);
                    self.pods.remove(&uid);
                }
            }
        }
    }

    async fn take(&mut self, event: watcher::Event<Pod>) -> Result<(), FileError> {
        match event {
            watcher::Event::Apply(pod) => self.apply(pod).await,
            watcher::Event::Delete(pod) => {
                if let Some(handle) = uid_of(&pod).and_then(|uid| self.pods.get(&uid)) {
                    handle.gone.send_replace(true);
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
                        handle.gone.send_replace(true);
                    }
                }
                // What an earlier agent left behind, of Pods that are gone meanwhile.
                for dir in self.state.pods()? {
                    if !listed.contains_key(dir.uid()) && !self.pods.contains_key(dir.uid()) {
                        self.finish_off(dir);
                    }
                }
                for pod in self.in_order_of_entry(listed) {
                    self.apply(pod).await;
                }
                self.host.at_work.complete();
            }
        }
        Ok(())
    }

    /// Those that are in already before those that want to come in, the oldest of them first.
    fn in_order_of_entry(&self, listed: HashMap<PodUid, Pod>) -> Vec<Pod> {
        let is_in = |uid: &PodUid| self.pods.contains_key(uid) || self.is_accepted(uid);
        let mut keyed: Vec<_> = listed
            .into_iter()
            .map(|(uid, pod)| ((!is_in(&uid), pod.creation_timestamp().map(|time| time.0), uid), pod))
            .collect();
        keyed.sort_by(|(one, _), (other, _)| one.cmp(other));
        keyed.into_iter().map(|(_, pod)| pod).collect()
    }

    async fn apply(&mut self, pod: Pod) {
        let Some(uid) = uid_of(&pod) else { return };
        if let Some(handle) = self.pods.get_mut(&uid) {
            handle.claim = handle.claim.is_some().then(|| ResourceRequests::of(&pod));
            handle.pod.send_replace(Arc::new(pod));
            return;
        }
        let name = PodName { namespace: pod.namespace().unwrap_or_default(), name: pod.name_any() };
        info!(pod = %name, %uid, "the Pod is bound to this Node");
        let plan = self.admit(&uid, &pod).await;
        self.start(name, self.state.pod(uid), pod, plan, false);
    }

    /// Whether a Pod may run here. This is asked once, for one Pod at a time; who is let in stays in.
    async fn admit(&self, uid: &PodUid, pod: &Pod) -> Result<VmPlan, Refusal> {
        if self.is_accepted(uid) {
            return read(pod);
        }
        let plan = admit(pod)?;
        let is_over = pod.metadata.deletion_timestamp.is_some() || is_final(pod.status.as_ref());
        if !is_over {
            let others: Vec<&ResourceRequests> = self.pods.values().filter_map(Handle::counted).collect();
            match fits(pod, &self.offers.known(), &others) {
                Err(refusal) if refusal.reason.may_be_stale() => {
                    fits(pod, &self.offers.asked().await, &others)?
                }
                result => result?,
            }
        }
        Ok(plan)
    }

    /// Whether this agent, or one before it, has let a Pod in.
    fn is_accepted(&self, uid: &PodUid) -> bool {
        // What cannot be read is there.
        self.state.pod(uid.clone()).record().map_or(true, |record| record.is_some())
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
        let pod = Pod { metadata, ..Pod::default() };
        let plan = admit(&pod);
        self.start(name, dir, pod, plan, true);
    }

    fn start(&mut self, name: PodName, dir: PodDir, pod: Pod, plan: Result<VmPlan, Refusal>, is_gone: bool) {
        let uid = dir.uid().clone();
        let claim = plan.is_ok().then(|| ResourceRequests::of(&pod));
        let (pod, pod_seen) = watch::channel(Arc::new(pod));
        let (gone, gone_seen) = watch::channel(is_gone);
        self.host.roster.enter(uid.clone(), pod_seen.clone());
        let feed = PodFeed { plan, pod: pod_seen, gone: gone_seen };
        let ticket = self.host.at_work.begin(uid.clone());
        let worker = Worker::new(self.host.clone(), self.client.clone(), name, dir, feed);
        self.workers.spawn(async move {
            let _ticket = ticket;
            Box::pin(worker.run()).await
        });
        self.pods.insert(uid, Handle { claim, pod, gone });
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
