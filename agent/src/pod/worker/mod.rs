//! One task per Pod: observe, decide, do one thing, and again.

pub(crate) mod disk_space;
pub(crate) mod event_reporter;
pub(crate) mod image_pull;
pub(crate) mod inputs;
pub(crate) mod late_command;
pub(crate) mod launch;
pub(crate) mod plan;
pub(crate) mod probe_manager;
pub(crate) mod retry;
pub(crate) mod shim_spec;
pub(crate) mod state_watcher;
pub(crate) mod teardown;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus, Secret};
use kube::Client;
use kube::api::Api;
use tokio::sync::{Notify, watch};
use tokio::task::block_in_place;
use tokio::time::sleep;
use tracing::{debug, info, warn};

use super::admission::{Refusal, VmPlan};
use super::registry::PodRegistry;
use super::registry::active::ActiveWorkers;
use super::registry::slots::VmSlots;
use super::status::is_final;
use super::status::manager::StatusManager;
use super::sync::decide::{Decision, Desired, Observation, decide};
use super::sync::desired::{deadline, started, wanted};
use super::sync::image_backoff::ImageFailure;
use crate::apiserver::events::Events;
use crate::crash_point;
use crate::env::sources::InputSources;
use crate::error_chain::chain;
use crate::fs::file::FileError;
use crate::image::ImageStore;
use crate::image::gc::{DiskSpace, VmSpaceLimit, VolumeSpaceLimit};
use crate::metrics::Metrics;
use crate::names::Restart;
use crate::names::{PodName, PodUid};
use crate::node::start_failures::StartReports;
use crate::shim;
use crate::state::{PodDir, PodRecord, StopRequest, VmRun};
use crate::tart::Tart;
use crate::volume::HostPaths;
use event_reporter::ReportedEvents;
use inputs::Inputs;
use launch::Launched;
use probe_manager::ProbeManager;
use retry::{FailedStep, StepError};
use state_watcher::StateWatcher;
use std::net::IpAddr;

/// How often a Pod is looked at even though nothing was seen to change.
pub(super) const SAFETY_NET: Duration = Duration::from_secs(10);
/// After an effect has failed, and after a VM that should be gone is still there.
pub(super) const RETRY: Duration = Duration::from_secs(1);
/// How long a VM that has lost its shim may take to stop before it is killed.
pub(super) const ORPHAN_PATIENCE: Duration = Duration::from_secs(5);
/// What all workers share.
#[derive(Debug, Clone)]
pub(crate) struct Host {
    /// The program to start as a shim: the agent's own.
    pub(crate) program: PathBuf,
    /// The `tart` program.
    pub(crate) tart: Tart,
    /// The images on this host.
    pub(crate) images: Arc<ImageStore>,
    /// The Node's address.
    pub(crate) address: watch::Receiver<Option<IpAddr>>,
    /// Where Events go.
    pub(crate) events: Events,
    /// Where starts of VMs are told, for the Node's sake.
    pub(crate) starts: StartReports,
    /// How long a VM may be without an address before the host is to blame.
    pub(crate) address_patience: Duration,
    /// The file in which macOS writes down whom it has lent addresses to.
    pub(crate) dhcp_leases: PathBuf,
    /// The domain of the cluster's Services and Pods.
    pub(crate) cluster_domain: String,
    /// How long a guest may take to boot.
    pub(crate) boot_limit: Duration,
    /// Where what Pods bring along comes from.
    pub(crate) world: InputSources,
    /// Which directories of the host Pods may have.
    pub(crate) host_paths: Arc<HostPaths>,
    /// Where Pods that wait for a VM are counted.
    pub(crate) metrics: Metrics,
    /// The places for VMs.
    pub(crate) slots: VmSlots,
    /// The Pods.
    pub(crate) roster: PodRegistry,
    /// Frees disk space.
    pub(crate) disk_space: DiskSpace,
    /// Which Pods have a worker.
    pub(crate) at_work: ActiveWorkers,
}

/// The task of one Pod.
pub(crate) struct Worker {
    host: Arc<Host>,
    dir: PodDir,
    api: Api<Pod>,
    secrets: Api<Secret>,
    name: PodName,
    /// The Pod as the API last showed it.
    pod: watch::Receiver<Arc<Pod>>,
    /// Whether the API no longer knows the Pod.
    gone: watch::Receiver<bool>,
    /// What was wanted of the Pod when it was last looked at.
    wanted: Desired,
    /// Rung when something has happened to one of the Pod's VMs.
    stirred: Arc<Notify>,
    bell: StateWatcher,
    publisher: StatusManager,
    plan: Result<VmPlan, Refusal>,
    probing: ProbeManager,
    belongings: Inputs,
    image_failure: Option<ImageFailure>,
    setback: Option<FailedStep>,
    launched: Option<Launched>,
    /// The VM without a shim whose guest was asked last.
    asked: Option<Restart>,
    /// The VM without a shim that was told to stop last.
    stopped: Option<Restart>,
    /// How often in a row a VM without a shim was told to stop.
    vain_stops: u32,
    /// How often in a row a VM could not be deleted because its shim has not gone.
    vain_cleans: u32,
    /// Whether the Pod's volumes could not be removed when that was tried last.
    vain_wipe: bool,
    /// The status that was last asked to be published.
    shown: Option<PodStatus>,
    told: ReportedEvents,
    volume_space: VolumeSpaceLimit,
    vm_space: VmSpaceLimit,
}

/// What a worker is told of its Pod.
#[derive(Debug)]
pub(crate) struct PodFeed {
    /// How it was admitted.
    pub(crate) plan: Result<VmPlan, Refusal>,
    /// The Pod as the API shows it.
    pub(crate) pod: watch::Receiver<Arc<Pod>>,
    /// Whether the API no longer knows it.
    pub(crate) gone: watch::Receiver<bool>,
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker").field("pod", &self.name).finish_non_exhaustive()
    }
}

impl Worker {
    /// A worker for one Pod.
    pub(crate) fn new(host: Arc<Host>, client: Client, name: PodName, dir: PodDir, feed: PodFeed) -> Self {
        let api: Api<Pod> = Api::namespaced(client.clone(), &name.namespace);
        let secrets = Api::namespaced(client, &name.namespace);
        let publisher = StatusManager::spawn(api.clone(), name.clone(), dir.uid().clone());
        let PodFeed { plan, pod, gone } = feed;
        let stirred = Arc::new(Notify::new());
        let wanted = wanted(&pod.borrow(), *gone.borrow());
        let (world, host_paths) = (host.world.clone(), host.host_paths.clone());
        let belongings = Inputs::new(&dir, pod.clone(), world, host_paths, &host.tart);
        Self {
            host,
            dir,
            api,
            secrets,
            name,
            wanted,
            pod,
            gone,
            bell: StateWatcher::new(stirred.clone()),
            stirred,
            publisher,
            plan,
            probing: ProbeManager::default(),
            belongings,
            image_failure: None,
            setback: None,
            launched: None,
            asked: None,
            stopped: None,
            vain_stops: 0,
            vain_cleans: 0,
            vain_wipe: false,
            shown: None,
            told: ReportedEvents::default(),
            volume_space: VolumeSpaceLimit::default(),
            vm_space: VmSpaceLimit::default(),
        }
    }

    /// Works until the Pod is gone and forgotten.
    pub(crate) async fn run(mut self) -> PodUid {
        loop {
            let seen = match self.observe() {
                Ok(seen) => seen,
                Err(error) => {
                    warn!(pod = %self.name, error = chain(&error), "cannot read the Pod's state; trying again");
                    sleep(RETRY).await;
                    continue;
                }
            };
            self.host.slots.note(self.dir.uid(), seen.has_vm());
            self.publish(&seen);
            let decision = decide(&seen);
            debug!(pod = %self.name, ?decision, "decided");
            if let Decision::Wait(until) = decision {
                self.wait(until).await;
                continue;
            }
            crash_point::point(&format!("agent.{}.before", decision.name()));
            if let Err(error) = self.act(decision).await {
                self.failed(decision, &error).await;
                continue;
            }
            // Whether a shim that was started is of any use is seen later.
            if !matches!(decision, Decision::Launch(_)) {
                self.setback = None;
            }
            if !matches!(decision, Decision::StopOrphan(_)) {
                self.vain_stops = 0;
            }
            if !matches!(decision, Decision::Clean(_)) {
                self.vain_cleans = 0;
            }
            crash_point::point(&format!("agent.{}.after", decision.name()));
            if decision == Decision::Forget {
                self.host.metrics.pod_waits(self.dir.uid(), None);
                info!(pod = %self.name, uid = %self.dir.uid(), "the Pod is gone");
                return self.dir.uid().clone();
            }
        }
    }

    fn observe(&mut self) -> Result<Observation, FileError> {
        let gone = *self.gone.borrow_and_update();
        let pod = self.pod.borrow_and_update().clone();
        let attempts = self.dir.attempts()?;
        // Before anything is read: what happens after that rings.
        let lasting: Vec<_> = attempts.iter().filter(|one| !one.is_cleaned()).map(VmRun::path).collect();
        let wanted = wanted(&pod, gone);
        self.wanted = wanted;
        // That it is evicted is written down beside them, also while its image comes.
        let is_of_interest = !lasting.is_empty() || matches!(wanted, Desired::Run(_));
        let own = Some(self.dir.path()).filter(|path| is_of_interest && path.is_dir());
        self.bell.hang_over(lasting.into_iter().chain(own));
        let attempts = attempts.iter().map(VmRun::view).collect::<Result<Vec<_>, _>>()?;
        let image = pod.spec.as_ref().and_then(|spec| spec.containers.first()?.image.clone());
        // That another image could not be had says nothing of this one.
        self.image_failure = self.image_failure.take().filter(|failure| failure.is_about(image.as_deref()));
        let (tart, events) = (&self.host.tart, &self.host.events);
        let health = self.probing.follow(&pod, wanted, attempts.last(), tart, events);
        if matches!(wanted, Desired::Run(_) | Desired::Stop(_))
            && attempts.iter().any(|one| one.outcome.is_none())
        {
            self.belongings.follow();
        }
        Ok(Observation {
            wanted,
            refused: self.plan.is_err(),
            accepted: self.dir.record()?.is_some(),
            image,
            attempts,
            started: started(&pod, self.dir.uid()),
            health,
            retry_at: self.image_failure.as_ref().map(ImageFailure::retry_at).max(self.belongings.retry_at()),
            too_large: self.belongings.exceeded().is_some(),
            evicted: self.dir.evicted()?,
            has_volumes: self.dir.has_volumes(),
            vain_wipe: self.vain_wipe,
            deadline: deadline(&pod),
            asked: self.asked,
            vain_stops: self.vain_stops,
            vain_cleans: self.vain_cleans,
            final_status_published: is_final(pod.status.as_ref()) || self.publisher.has_published_final(),
            now: Timestamp::now(),
        })
    }

    async fn wait(&mut self, until: Option<Timestamp>) {
        let turn =
            self.image_failure.as_ref().and_then(ImageFailure::turns_at).filter(|at| *at > Timestamp::now());
        let longest = until.into_iter().chain(turn).min().map_or(SAFETY_NET, |at| {
            Duration::try_from(at.duration_since(Timestamp::now())).unwrap_or(Duration::ZERO).min(SAFETY_NET)
        });
        self.wait_at_most(longest).await;
    }

    /// Waits for anything that could change the decision.
    async fn wait_at_most(&mut self, longest: Duration) {
        tokio::select! {
            () = self.stirred.notified() => {}
            Ok(()) = self.pod.changed() => {}
            Ok(()) = self.gone.changed() => {}
            () = self.publisher.changed() => {}
            () = self.probing.changed() => {}
            () = self.belongings.changed() => {}
            () = sleep(longest) => {}
        }
    }

    async fn act(&mut self, decision: Decision) -> Result<(), StepError> {
        match decision {
            Decision::Accept => {
                let record = PodRecord { pod: self.name.clone(), accepted_at: Timestamp::now() };
                self.dir.accept(&record)?;
            }
            Decision::Plan { restart, crashes } => self.plan(restart, crashes).await?,
            Decision::Recall(restart) => self.recall(restart).await?,
            Decision::Launch(restart) => self.launch(restart).await?,
            Decision::Deliver(restart) => self.deliver(restart).await?,
            Decision::MakeRoom(restart) => self.give_room(restart).await?,
            Decision::AskToStop(restart, grace) => {
                let pod = self.pod.borrow().clone();
                let attempt = self.dir.attempt(restart);
                self.host.events.normal(
                    &pod,
                    "Killing",
                    &format!("stopping VM {} within {} s", attempt.vm(), grace.as_secs()),
                );
                attempt.request_stop(StopRequest::within(grace, None))?;
            }
            Decision::StopFor(restart, cause) => self.stop_for(restart, cause)?,
            Decision::KillShim(restart) => self.kill_shim(restart).await?,
            Decision::AskGuest(restart) => {
                let attempt = self.dir.attempt(restart);
                warn!(pod = %self.name, vm = %attempt.vm(), "the VM has lost its shim; asking its guest what it knows");
                // Noted first: a VM that nobody minds is stopped next, also when nothing can be written down.
                self.asked = Some(restart);
                shim::ask_guest(&attempt, &self.host.tart).await?;
            }
            Decision::StopOrphan(restart) => {
                let attempt = self.dir.attempt(restart);
                warn!(pod = %self.name, vm = %attempt.vm(), "the VM has lost its shim; stopping it");
                self.stopped = Some(restart);
                // Counted first: a stop that hangs is in vain, too.
                self.vain_stops += 1;
                self.host.tart.stop(&attempt.vm(), ORPHAN_PATIENCE).await?;
                shim::gone(&attempt, RETRY).await?;
            }
            Decision::KillLeftovers(restart) => {
                let attempt = self.dir.attempt(restart);
                let killed = block_in_place(|| shim::free(&attempt))?;
                warn!(pod = %self.name, vm = %attempt.vm(), ?killed, "killed what the VM's shim has left running");
                shim::gone(&attempt, RETRY).await?;
            }
            Decision::RecordLoss(restart) => self.record_loss(restart)?,
            Decision::Clean(restart) => self.clean(restart).await?,
            Decision::Evict => self.evict()?,
            Decision::Wipe => {
                self.belongings.end();
                let dir = self.dir.clone();
                block_in_place(|| dir.wipe_volumes())?;
                self.vain_wipe = false;
            }
            Decision::Drop(restart) => block_in_place(|| self.dir.forget_attempt(restart))?,
            Decision::DeletePod => self.delete_pod().await?,
            Decision::Forget => {
                self.belongings.end();
                block_in_place(|| self.dir.remove())?;
            }
            Decision::Wait(_) => {}
        }
        Ok(())
    }
}
