//! One task per Pod: observe, decide, do one thing, and again.

use std::collections::HashSet;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus, Secret};
use kube::Client;
use kube::api::{Api, DeleteParams, Preconditions};
use tokio::sync::{Notify, watch};
use tokio::task::block_in_place;
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};

use super::admission::{Refusal, VmPlan};
use super::at_work::AtWork;
use super::belongings::Belongings;
use super::decide::{Deadline, Decision, Observation, Wanted, decide};
use super::events::Events;
use super::probing::Probing;
use super::publisher::Publisher;
use super::pulling::Failure;
use super::restart::RestartPolicy;
use super::roster::Roster;
use super::slots::Slots;
use super::starting::waits;
use super::status::{Context, is_final, render};
use super::telling::Told;
use super::time::{later, seconds};
use super::world::World;
use super::{PodName, PodUid};
use crate::crash;
use crate::gc::images::Collector;
use crate::image::Images;
use crate::metrics::Metrics;
use crate::node::health::Health;
use crate::node::starts::StartBoard;
use crate::probe;
use crate::report::{self, chain};
use crate::shim::{self, LaunchError, LeftoversError};
use crate::state::{Attempt, Ending, Outcome, PodDir, PodRecord, Stage, StateError, StopCause, StopRequest};
use crate::tart::{Fault, Tart, TartError};
use crate::vm::Restart;
use crate::volume::HostPaths;

/// How often a Pod is looked at even though nothing was seen to change.
const SAFETY_NET: Duration = Duration::from_secs(10);
/// After an effect has failed, and after a VM that should be gone is still there.
const RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_mins(1);
/// How long a VM that has lost its shim may take to stop before it is killed.
const ORPHAN_PATIENCE: Duration = Duration::from_secs(5);
const API_LIMIT: Duration = Duration::from_secs(15);
/// What is told when a VM or its log has found no space, and the agent cannot help.
const NO_ROOM: &str = "the Pod's VM has found no space on the disk, and no image on this host may be deleted for it; free some disk space on \
                       the host";

/// What all workers share.
#[derive(Debug, Clone)]
pub struct Host {
    /// The program to start as a shim: the agent's own.
    pub program: PathBuf,
    /// The `tart` program.
    pub tart: Tart,
    /// The images on this host.
    pub images: Arc<Images>,
    /// The host's health, which has the Node's address.
    pub health: watch::Receiver<Option<Health>>,
    /// Where Events go.
    pub events: Events,
    /// Where starts of VMs are told, for the Node's sake.
    pub starts: StartBoard,
    /// How long a VM may be without an address before the host is to blame.
    pub address_patience: Duration,
    /// The file in which macOS writes down whom it has lent addresses to.
    pub dhcp_leases: PathBuf,
    /// The domain of the cluster's Services and Pods.
    pub cluster_domain: String,
    /// How long a guest may take to boot.
    pub boot_limit: Duration,
    /// Where what Pods bring along comes from.
    pub world: World,
    /// Which directories of the host Pods may have.
    pub host_paths: Arc<HostPaths>,
    /// Where Pods that wait for a VM are counted.
    pub metrics: Metrics,
    /// The places for VMs.
    pub slots: Slots,
    /// The Pods.
    pub roster: Roster,
    /// Who makes room on the disk; nobody with `--disable-vm-gc`.
    pub collector: Option<Arc<Collector>>,
    /// Which Pods have a worker.
    pub at_work: AtWork,
}

/// An effect that failed; the worker tries again.
#[derive(Debug, thiserror::Error)]
pub(super) enum WorkError {
    #[error(transparent)]
    State(#[from] StateError),
    #[error(transparent)]
    Tart(#[from] TartError),
    #[error(transparent)]
    Launch(#[from] LaunchError),
    #[error(transparent)]
    Leftovers(#[from] LeftoversError),
    #[error("cannot make the directories of a guest that only boots")]
    Boot(#[source] io::Error),
    #[error("cannot delete the Pod from the API")]
    Delete(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl WorkError {
    /// Whether the disk was full, tart's or that of the state directory.
    fn is_for_want_of_space(&self) -> bool {
        match self {
            Self::Tart(error) => error.fault() == Some(Fault::NoSpace),
            Self::State(_) | Self::Launch(_) | Self::Boot(_) => report::is_for_want_of_space(self),
            Self::Leftovers(_) | Self::Delete(_) => false,
        }
    }
}

/// The task of one Pod.
pub struct Worker {
    pub(super) host: Arc<Host>,
    pub(super) dir: PodDir,
    api: Api<Pod>,
    pub(super) secrets: Api<Secret>,
    pub(super) name: PodName,
    /// The Pod as the API last showed it.
    pub(super) pod: watch::Receiver<Arc<Pod>>,
    /// Whether the API no longer knows the Pod.
    pub(super) gone: watch::Receiver<bool>,
    /// Rung when something changed in the Pod's directory.
    stirred: Arc<Notify>,
    publisher: Publisher,
    pub(super) plan: Result<VmPlan, Refusal>,
    probing: Probing,
    pub(super) belongings: Belongings,
    pub(super) image_failure: Option<Failure>,
    setback: Option<Setback>,
    /// How often in a row a VM without a shim was told to stop.
    vain_stops: u32,
    /// The status that was last asked to be published.
    shown: Option<PodStatus>,
    pub(super) told: Told,
}

/// An effect that keeps failing.
struct Setback {
    problem: String,
    /// How long it was waited for the last time; not at all after room was made for it.
    delay: Option<Duration>,
}

/// What a worker is told of its Pod.
#[derive(Debug)]
pub struct PodFeed {
    /// How it was admitted.
    pub plan: Result<VmPlan, Refusal>,
    /// The Pod as the API shows it.
    pub pod: watch::Receiver<Arc<Pod>>,
    /// Whether the API no longer knows it.
    pub gone: watch::Receiver<bool>,
    /// Rung when something changed in the Pod's directory.
    pub stirred: Arc<Notify>,
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker").field("pod", &self.name).finish_non_exhaustive()
    }
}

impl Worker {
    /// A worker for one Pod.
    pub fn new(host: Arc<Host>, client: Client, name: PodName, dir: PodDir, feed: PodFeed) -> Self {
        let api: Api<Pod> = Api::namespaced(client.clone(), &name.namespace);
        let secrets = Api::namespaced(client, &name.namespace);
        let publisher = Publisher::spawn(api.clone(), name.clone(), dir.uid().clone());
        let PodFeed { plan, pod, gone, stirred } = feed;
        let belongings = Belongings::new(&dir, pod.clone(), host.world.clone(), host.host_paths.clone());
        Self {
            host,
            dir,
            api,
            secrets,
            name,
            pod,
            gone,
            stirred,
            publisher,
            plan,
            probing: Probing::default(),
            belongings,
            image_failure: None,
            setback: None,
            vain_stops: 0,
            shown: None,
            told: Told::default(),
        }
    }

    /// Works until the Pod is gone and forgotten.
    pub async fn run(mut self) -> PodUid {
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
            crash::point(&format!("agent.{}.before", decision.name()));
            if let Err(error) = self.act(decision).await {
                self.failed(decision, &error).await;
                continue;
            }
            self.setback = None;
            if !matches!(decision, Decision::StopOrphan(_)) {
                self.vain_stops = 0;
            }
            crash::point(&format!("agent.{}.after", decision.name()));
            if decision == Decision::Forget {
                self.host.metrics.pod_waits(self.dir.uid(), None);
                info!(pod = %self.name, uid = %self.dir.uid(), "the Pod is gone");
                return self.dir.uid().clone();
            }
        }
    }

    /// Tells about an effect that failed, once, and waits before it is tried again: longer each time. When the disk is full, room
    /// is made, and it is tried once more before anybody is told.
    async fn failed(&mut self, decision: Decision, error: &WorkError) {
        let is_full = error.is_for_want_of_space();
        let advice = if is_full { Fault::NoSpace.advice() } else { "" };
        let problem = format!("{}: {}{advice}", describe(decision), chain(error));
        let before = self.setback.take().filter(|before| before.problem == problem);
        if is_full && before.is_none() && self.make_room(error).await {
            self.setback = Some(Setback { problem, delay: None });
            return;
        }
        let delay = match before.and_then(|before| before.delay) {
            Some(delay) => (delay * 2).min(LONGEST_RETRY),
            None => {
                let pod = self.pod.borrow().clone();
                self.host.events.warning(&pod, "FailedSync", &problem);
                RETRY
            }
        };
        self.setback = Some(Setback { problem, delay: Some(delay) });
        // What the failed effect itself has stirred in the directory is no reason to hurry.
        tokio::select! {
            Ok(()) = self.pod.changed() => {}
            Ok(()) = self.gone.changed() => {}
            () = sleep(delay) => {}
        }
    }

    /// Makes room where an effect has found none; whether there is more than before.
    async fn make_room(&self, error: &WorkError) -> bool {
        let Some(collector) = &self.host.collector else { return false };
        let place = if let WorkError::Tart(_) = error { self.host.tart.home() } else { self.dir.logs_path() };
        collector.make_room_at(place).await
    }

    pub(super) fn observe(&mut self) -> Result<Observation, StateError> {
        let gone = *self.gone.borrow_and_update();
        let pod = self.pod.borrow_and_update().clone();
        let attempts = self.dir.attempts()?.iter().map(Attempt::view).collect::<Result<Vec<_>, _>>()?;
        let wanted = wanted(&pod, gone);
        let image = pod.spec.as_ref().and_then(|spec| spec.containers.first()?.image.clone());
        // That another image could not be had says nothing of this one.
        self.image_failure = self.image_failure.take().filter(|failure| failure.is_about(image.as_deref()));
        let (tart, events) = (&self.host.tart, &self.host.events);
        let health = self.probing.follow(&pod, wanted, attempts.last(), tart, events);
        if matches!(wanted, Wanted::Run(_) | Wanted::Stop(_))
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
            health,
            retry_at: self.image_failure.as_ref().map(Failure::retry_at).max(self.belongings.retry_at()),
            too_large: self.belongings.exceeded().is_some(),
            evicted: self.dir.evicted()?,
            has_volumes: self.dir.has_volumes(),
            deadline: deadline(&pod),
            vain_stops: self.vain_stops,
            final_status_published: is_final(pod.status.as_ref()) || self.publisher.has_published_final(),
            now: Timestamp::now(),
        })
    }

    pub(super) fn publish(&mut self, seen: &Observation) {
        let pod = self.pod.borrow().clone();
        self.tell(&pod, seen);
        if !waits(seen) {
            self.host.metrics.pod_waits(self.dir.uid(), None);
        }
        // A final phase stays as it is, and nobody reads the status of a Pod that is gone.
        if seen.wanted == Wanted::Gone || is_final(pod.status.as_ref()) {
            return;
        }
        let accepted_at = self.dir.record().ok().flatten().map(|record| record.accepted_at);
        if waits(seen) {
            self.host.metrics.pod_waits(self.dir.uid(), accepted_at);
        }
        let image_error = self.image_failure.as_ref().map(|failure| failure.shown(seen.now));
        let trouble = image_error.or_else(|| self.belongings.trouble());
        let context = Context {
            pod: &pod,
            before: self.shown.as_ref().or(pod.status.as_ref()),
            plan: self.plan.as_ref(),
            accepted_at,
            trouble: trouble.as_ref(),
            host_ip: self.host.health.borrow().as_ref().and_then(|health| health.address),
        };
        let status = render(seen, &context);
        if let Some(reason) = &status.reason
            && self.shown.as_ref().and_then(|shown| shown.reason.as_ref()) != Some(reason)
        {
            self.host.metrics.failed(reason);
        }
        self.shown = Some(status.clone());
        self.publisher.want(status);
    }

    async fn wait(&mut self, until: Option<Timestamp>) {
        let turn =
            self.image_failure.as_ref().and_then(Failure::turns_at).filter(|at| *at > Timestamp::now());
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

    /// Waits until a VM that is no longer wanted has gone: there was no place for this Pod's.
    async fn wait_for_place(&mut self, changes: &mut watch::Receiver<HashSet<PodUid>>) {
        if !std::mem::replace(&mut self.told.crowded, true) {
            let pod = self.pod.borrow().clone();
            let note = "waiting until the VM of a Pod that has ended is gone; macOS still counts it";
            self.host.events.normal(&pod, "WaitingForVM", note);
        }
        tokio::select! {
            Ok(()) = changes.changed() => {}
            () = self.wait_at_most(SAFETY_NET) => {}
        }
    }

    async fn act(&mut self, decision: Decision) -> Result<(), WorkError> {
        match decision {
            Decision::Accept => {
                let record = PodRecord { pod: self.name.clone(), accepted_at: Timestamp::now() };
                self.dir.accept(&record)?;
            }
            Decision::Plan { restart, crashes } => self.plan(restart, crashes).await?,
            Decision::Launch(restart) => {
                let mut changes = self.host.slots.changes();
                if !self.host.slots.take(self.dir.uid()) {
                    self.wait_for_place(&mut changes).await;
                    return Ok(());
                }
                let (attempt, stirred) = (self.dir.attempt(restart), self.stirred.clone());
                let ended = move || stirred.notify_one();
                block_in_place(|| shim::launch(&self.host.program, &self.dir, &attempt, ended))?;
            }
            Decision::MakeRoom(restart) => {
                let made = match &self.host.collector {
                    // The shim asks only for the volume that images are on.
                    Some(collector) => collector.make_room_at(self.host.tart.home()).await,
                    None => false,
                };
                if !made {
                    let pod = self.pod.borrow().clone();
                    self.host.events.warning(&pod, "FreeDiskSpaceFailed", NO_ROOM);
                }
                self.dir.attempt(restart).tell_room_is_made()?;
            }
            Decision::AskToStop(restart, grace) => {
                let pod = self.pod.borrow().clone();
                let attempt = self.dir.attempt(restart);
                self.host.events.normal(
                    &pod,
                    "Killing",
                    &format!("stopping VM {} within {} s", attempt.vm(), grace.as_secs()),
                );
                attempt
                    .request_stop(StopRequest { deadline: later(Timestamp::now(), grace), cause: None })?;
            }
            Decision::StopUnhealthy(restart, cause) => self.stop_unhealthy(restart, cause)?,
            Decision::KillShim(restart) => {
                let attempt = self.dir.attempt(restart);
                let pod = self.pod.borrow().clone();
                let note = format!("the shim of VM {} does not stop it; killing both", attempt.vm());
                self.host.events.warning(&pod, "ShimStuck", &note);
                if !attempt.kill_shim()? {
                    // Nobody knows which process it is.
                    block_in_place(|| shim::kill_leftovers(&attempt))?;
                }
                self.wait_at_most(RETRY).await;
            }
            Decision::StopOrphan(restart) => {
                let vm = self.dir.attempt(restart).vm();
                warn!(pod = %self.name, %vm, "the VM has lost its shim; stopping it");
                // Counted first: a stop that hangs is in vain, too.
                self.vain_stops += 1;
                self.host.tart.stop(&vm, ORPHAN_PATIENCE).await?;
                self.wait_at_most(RETRY).await;
            }
            Decision::KillLeftovers(restart) => {
                let attempt = self.dir.attempt(restart);
                let killed = block_in_place(|| shim::free(&attempt))?;
                warn!(pod = %self.name, vm = %attempt.vm(), ?killed, "killed what the VM's shim has left running");
                self.wait_at_most(RETRY).await;
            }
            Decision::RecordLoss(restart) => self.record_loss(restart)?,
            Decision::Clean(restart) => self.clean(restart).await?,
            Decision::Evict => self.evict()?,
            Decision::Wipe => {
                self.belongings.end();
                let dir = self.dir.clone();
                block_in_place(|| dir.wipe_volumes())?;
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

    /// Writes down that the Pod is evicted, before anything is done about it.
    fn evict(&self) -> Result<(), WorkError> {
        let Some(exceeded) = self.belongings.exceeded() else { return Ok(()) };
        let pod = self.pod.borrow().clone();
        self.host.events.warning(&pod, "Evicted", &exceeded.to_string());
        Ok(self.dir.evict(&exceeded.to_string())?)
    }

    /// Asks for a VM to be stopped whose container has failed a probe or is to have another image. Why is part of the request, so
    /// that whoever sees the VM end knows what to do next.
    fn stop_unhealthy(&self, restart: Restart, cause: StopCause) -> Result<(), WorkError> {
        let pod = self.pod.borrow().clone();
        let container = self.plan.as_ref().map_or("", |plan| &plan.container);
        let once = matches!(wanted(&pod, false), Wanted::Run(RestartPolicy::Never));
        let restarts = !(once && cause.is_failure());
        let next = if restarts { ", will be restarted" } else { "" };
        self.host.events.normal(&pod, "Killing", &format!("Container {container} {cause}{next}"));
        let grace = seconds(probe::spec::grace(&pod, cause));
        let request = StopRequest { deadline: later(Timestamp::now(), grace), cause: Some(cause) };
        Ok(self.dir.attempt(restart).request_stop(request)?)
    }

    fn record_loss(&self, restart: Restart) -> Result<(), WorkError> {
        let attempt = self.dir.attempt(restart);
        // A shim that was launched a moment ago may be about to begin; whoever has the lock decides.
        let Some(_lock) = block_in_place(|| attempt.seal())? else { return Ok(()) };
        let view = attempt.view()?;
        if let Some(result) = &view.result {
            attempt.finish(result)?;
        } else if view.outcome.is_none() {
            let started_at =
                view.progress.as_ref().filter(|p| matches!(p.stage, Stage::Running { .. })).map(|p| p.since);
            attempt.finish(&Outcome { ending: Ending::Lost, started_at, finished_at: Timestamp::now() })?;
        }
        Ok(())
    }

    async fn clean(&self, restart: Restart) -> Result<(), WorkError> {
        let attempt = self.dir.attempt(restart);
        // A shim that has written its outcome is gone in a moment.
        let Some(_lock) = block_in_place(|| attempt.seal())? else { return Ok(()) };
        let view = attempt.view()?;
        self.host.tart.delete(&attempt.vm()).await?;
        crash::point("agent.clean.deleted");
        attempt.scrub()?;
        crash::point("agent.clean.scrubbed");
        attempt.mark_cleaned()?;
        // A clone that failed may mean that the image is no longer where it was.
        if let (Some(Outcome { ending: Ending::NotStarted { .. }, .. }), Ok(plan)) =
            (view.outcome, &self.plan)
        {
            self.host.images.forget(&plan.image);
        }
        Ok(())
    }

    async fn delete_pod(&mut self) -> Result<(), WorkError> {
        let uid = Some(self.dir.uid().to_string());
        let parameters = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(Preconditions { uid, resource_version: None }),
            ..DeleteParams::default()
        };
        match timeout(API_LIMIT, self.api.delete(&self.name.name, &parameters)).await {
            Ok(Ok(_)) => {}
            Ok(Err(kube::Error::Api(answer))) if matches!(answer.code, 404 | 409) => {}
            Ok(Err(error)) => return Err(WorkError::Delete(error.into())),
            Err(late) => return Err(WorkError::Delete(late.into())),
        }
        // The watch says when it is gone.
        self.wait_at_most(SAFETY_NET).await;
        Ok(())
    }
}

/// When a Pod has been active for long enough. It counts from the start time that the API shows.
pub(super) fn deadline(pod: &Pod) -> Option<Deadline> {
    let spec = pod.spec.as_ref()?;
    let start = pod.status.as_ref()?.start_time.as_ref()?.0;
    let active = Duration::from_secs(spec.active_deadline_seconds?.try_into().unwrap_or(0));
    let at = start.checked_add(active).ok()?;
    Some(Deadline { at, grace: seconds(spec.termination_grace_period_seconds) })
}

/// What the API wants of a Pod.
pub(super) fn wanted(pod: &Pod, gone: bool) -> Wanted {
    let spec = pod.spec.as_ref();
    if gone {
        Wanted::Gone
    } else if pod.metadata.deletion_timestamp.is_some() {
        Wanted::Stop(seconds(pod.metadata.deletion_grace_period_seconds))
    } else if is_final(pod.status.as_ref()) {
        Wanted::Finished(seconds(spec.and_then(|spec| spec.termination_grace_period_seconds)))
    } else {
        Wanted::Run(RestartPolicy::of(spec.and_then(|spec| spec.restart_policy.as_deref())))
    }
}

/// A step in words, for the Event that says that it failed.
fn describe(decision: Decision) -> &'static str {
    match decision {
        Decision::Accept => "cannot write the Pod down",
        Decision::Plan { .. } => "cannot plan a VM",
        Decision::Launch(_) => "cannot start the VM",
        Decision::MakeRoom(_) => "cannot tell the VM's shim that there is room",
        Decision::AskToStop(..)
        | Decision::StopUnhealthy(..)
        | Decision::KillShim(_)
        | Decision::StopOrphan(_)
        | Decision::KillLeftovers(_) => "cannot stop the VM",
        Decision::RecordLoss(_) => "cannot write down how the VM ended",
        Decision::Clean(_) => "cannot delete the VM",
        Decision::Evict => "cannot evict the Pod",
        Decision::Wipe => "cannot remove the Pod's volumes",
        Decision::Drop(_) | Decision::Forget => "cannot clean up after the Pod",
        Decision::DeletePod => "cannot finish the Pod's deletion",
        Decision::Wait(_) => "cannot wait",
    }
}
