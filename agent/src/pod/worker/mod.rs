//! One task per Pod: observe, decide, take one step, and again.

mod command_request;
mod disk_space;
mod event_reporter;
mod fetch;
pub(crate) mod host;
mod plan;
mod probe_manager;
mod retry;
mod shim_spec;
mod shims;
mod state_watcher;
mod teardown;
mod updates;
mod vm_size;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::Api;
use tokio::task::block_in_place;
use tokio::time::{Instant, sleep};
use tracing::{debug, info, warn};

use super::admission::{Refusal, VmPlan};
use super::status::manager::StatusManager;
use super::status::{Context, is_final};
use super::sync::decide::{Decision, Desired, Observation, decide};
use super::sync::desired::{deadline, started};
use super::sync::image_backoff::ImageFailure;
use super::sync::next_vm::next_segment;
use super::sync::time::between;
use crate::clock;
use crate::crash_point;
use crate::error_chain::chain;
use crate::fs::file::FileError;
use crate::names::{PodName, PodUid};
use crate::state::{PodDir, PodRecord, Segment, VmRun, VmRunView};
use disk_space::PodDiskSpace;
use event_reporter::EventReporter;
use fetch::Fetches;
use fetch::inputs::Inputs;
use host::Host;
use probe_manager::ProbeManager;
use retry::{Retries, StepError};
use shims::ShimHistory;
use state_watcher::StateWatcher;
pub(super) use updates::PodUpdates;

/// How often a worker looks at its Pod even though nothing was seen to change.
const SAFETY_NET: Duration = Duration::from_secs(10);
/// After a step has failed, and after a VM that should be gone is still there.
const RETRY: Duration = Duration::from_secs(1);
/// How long a VM that has lost its shim may take to stop before tart kills it.
const STOP_LIMIT: Duration = Duration::from_secs(5);

/// The task of one Pod.
pub(super) struct Worker {
    host: Arc<Host>,
    client: Client,
    name: PodName,
    dir: PodDir,
    updates: PodUpdates,
    /// How the Pod was admitted, or what its last VM was planned by.
    plan: Result<VmPlan, Refusal>,
    watcher: StateWatcher,
    probes: ProbeManager,
    inputs: Inputs,
    fetches: Fetches,
    shims: ShimHistory,
    retries: Retries,
    disk_space: PodDiskSpace,
    reporter: EventReporter,
    /// The version of the Pod that the state directory has.
    kept: Option<String>,
}

impl Worker {
    pub(super) fn new(
        host: Arc<Host>,
        client: Client,
        name: PodName,
        dir: PodDir,
        plan: Result<VmPlan, Refusal>,
        updates: PodUpdates,
    ) -> Self {
        let pods = Api::namespaced(client.clone(), &name.namespace);
        let targets = host.reports.clone();
        let status = StatusManager::spawn(pods, name.clone(), dir.uid().clone(), targets.events.clone());
        Self {
            watcher: StateWatcher::default(),
            probes: ProbeManager::new(&host),
            inputs: Inputs::new(&dir, updates.pods.clone(), &host.inputs, &host.tart),
            fetches: Fetches::default(),
            shims: ShimHistory::default(),
            retries: Retries::default(),
            disk_space: PodDiskSpace::new(host.images.disk_space.clone(), dir.volumes_path()),
            reporter: EventReporter::new(name.clone(), dir.clone(), targets, status),
            host,
            client,
            name,
            dir,
            updates,
            plan,
            kept: None,
        }
    }

    /// Works until the Pod is gone and nothing is left of it.
    pub(super) async fn run(mut self) -> PodUid {
        loop {
            let seen = match self.follow().and_then(|runs| self.observe(runs)) {
                Ok(seen) => seen,
                Err(error) => {
                    self.reporter.state_is_unreadable(&self.updates.pod(), &error);
                    if !matches!(self.updates.desired, Desired::Run(_)) {
                        self.fetches.keep_for(None);
                    }
                    // Other Pods wait for what a fetch holds, so it goes on.
                    tokio::select! {
                        () = sleep(RETRY) => {}
                        () = self.fetches.run_on() => {}
                    }
                    continue;
                }
            };
            self.host.registry.slots.note(self.dir.uid(), seen.has_vm());
            // Before the agent has the Node's Lease, it publishes nothing.
            if seen.is_confirmed {
                self.report(&seen);
            }
            let decision = decide(&seen);
            debug!(pod = %self.name, ?decision, "decided");
            // A fetch lasts for as long as a VM with its image is to be planned.
            let is_plan = matches!(decision, Decision::Plan { .. });
            let planned = seen.segments.get(seen.next_segment()).filter(|_| is_plan);
            if self.fetches.keep_for(planned) {
                self.retries.called_off();
                continue;
            }
            match decision {
                Decision::Wait(until) => {
                    if let Some(restart) = self.shims.stuck(&seen.runs, Instant::now()) {
                        self.shim_is_stuck(restart).await;
                    }
                    self.wait(until).await;
                    continue;
                }
                Decision::Plan { .. } if !self.fetches.is_over() => {
                    self.fetch(decision, &seen).await;
                    continue;
                }
                // The step begins with the fetch.
                Decision::Plan { .. } => {}
                _ => crash_point::point(&format!("agent.{}.before", decision.name())),
            }
            if let Err(error) = self.step(decision).await {
                self.failed(decision, &error).await;
                continue;
            }
            self.retries.succeeded(decision);
            self.shims.succeeded(decision);
            crash_point::point(&format!("agent.{}.after", decision.name()));
            if decision == Decision::ForgetPod {
                self.reporter.metrics().pod_waits(self.dir.uid(), None);
                self.reporter.metrics().forget_probes(&self.dir.uid().to_string());
                info!(pod = %self.name, uid = %self.dir.uid(), "the Pod is gone");
                return self.dir.uid().clone();
            }
        }
    }

    /// Takes in what has changed, and has everything that runs beside the worker follow it. Returns what the Pod's VMs are like.
    fn follow(&mut self) -> Result<Vec<VmRunView>, FileError> {
        self.updates.refresh();
        let (pod, desired) = (self.updates.pod(), self.updates.desired);
        let runs = self.dir.runs()?;
        // Before any of their files is read: a later change wakes the worker.
        let lasting: Vec<_> = runs.iter().filter(|run| !run.is_cleaned()).map(VmRun::path).collect();
        // The file of an eviction is in the Pod's own directory. It may come while the image is fetched.
        let is_of_interest = !lasting.is_empty() || matches!(desired, Desired::Run(_));
        let own = Some(self.dir.path()).filter(|path| is_of_interest && path.is_dir());
        self.watcher.watch(lasting.into_iter().chain(own));
        let runs = runs.iter().map(VmRun::view).collect::<Result<Vec<_>, _>>()?;
        let segments = segments(&pod);
        let next = segments.get(next_segment(&segments, &runs)).map(|segment| segment.image.as_str());
        // The failure of another image says nothing of this one.
        self.fetches.image_failure.take_if(|failure| !failure.is_about(next));
        self.probes.follow(&pod, &self.updates, runs.last());
        if matches!(desired, Desired::Run(_) | Desired::Stop(_))
            && runs.iter().any(|run| run.outcome.is_none())
        {
            self.inputs.follow();
        }
        self.inputs.refresh();
        if let Some(missing) = self.fetches.missing() {
            // The user learns of it while the image comes.
            self.lacks(&pod, &missing);
        }
        Ok(runs)
    }

    /// All that a decision rests on. Changes nothing.
    fn observe(&self, runs: Vec<VmRunView>) -> Result<Observation, FileError> {
        let pod = self.updates.pod();
        let inputs = self.inputs.status();
        let image_retry_at = self.fetches.image_failure.as_ref().map(ImageFailure::retry_at);
        Ok(Observation {
            desired: self.updates.desired,
            is_confirmed: self.updates.is_confirmed,
            refused: self.plan.is_err(),
            accepted: self.dir.record()?.is_some(),
            segments: segments(&pod),
            runs,
            started: started(&pod, self.dir.uid()),
            health: self.probes.health(),
            // A fetch that has begun looks for what is missing by itself.
            retry_at: image_retry_at.max(inputs.retry_at()).filter(|_| !self.fetches.has_begun()),
            too_large: inputs.exceeded.is_some(),
            evicted: self.dir.evicted()?,
            has_volumes: self.dir.has_volumes(),
            vain_wipe: self.retries.vain_wipe,
            deadline: deadline(&pod),
            asked: self.shims.asked,
            vain_stops: self.shims.vain_stops,
            vain_cleans: self.shims.vain_cleans,
            final_status_published: is_final(pod.status.as_ref())
                || self.reporter.status.has_published_final(),
            now: clock::now(),
            wall: Timestamp::now(),
        })
    }

    fn report(&mut self, seen: &Observation) {
        let (pod, inputs) = (self.updates.pod(), self.inputs.status());
        let (plan, trouble) = (self.plan.as_ref(), inputs.trouble());
        let host_ip = *self.host.vms.address.borrow();
        let context =
            Context { pod: &pod, before: None, plan, accepted_at: None, trouble: trouble.as_ref(), host_ip };
        self.reporter.report(seen, &context, self.fetches.image_failure.as_ref());
        if !seen.runs.is_empty() {
            let before = self.reporter.stale_volumes(&pod, &inputs.stale);
            self.disk_space.volumes_are_stale(&inputs.stale, &before);
        }
    }

    /// Fetches what the next VM is made of, until that is over or anything changes.
    async fn fetch(&mut self, decision: Decision, seen: &Observation) {
        if !self.fetches.has_begun() {
            crash_point::point("agent.plan.before");
            if let Err(error) = self.begin_fetch(seen) {
                self.failed(decision, &error).await;
                return;
            }
        }
        // Nothing has begun for a Pod that cannot be read any more.
        if self.fetches.has_begun() {
            self.wait(seen.deadline.map(|deadline| deadline.at)).await;
        }
    }

    async fn wait(&mut self, until: Option<Timestamp>) {
        let failure = self.fetches.image_failure.as_ref();
        let turn = failure.and_then(ImageFailure::turns_at).filter(|at| *at > clock::now());
        let until = until.into_iter().chain(turn).min();
        let longest = until.map_or(SAFETY_NET, |at| between(clock::now(), at).min(SAFETY_NET));
        self.keep_manifest();
        self.wait_at_most(longest).await;
    }

    /// Keeps the Pod as the API server shows it, for an agent that starts while the API server is away.
    fn keep_manifest(&mut self) {
        let (pod, is_gone) = (self.updates.pod(), self.updates.desired == Desired::Gone);
        let version = &pod.metadata.resource_version;
        if is_gone || !self.updates.is_confirmed || self.kept == *version || !self.dir.path().is_dir() {
            return;
        }
        match self.dir.keep_manifest(&pod) {
            Ok(()) => self.kept.clone_from(version),
            Err(error) => {
                warn!(pod = %self.name, error = chain(&error), "cannot keep the Pod's manifest; trying again");
            }
        }
    }

    /// Waits for anything that could change the decision.
    async fn wait_at_most(&mut self, longest: Duration) {
        tokio::select! {
            () = self.watcher.changed() => {}
            () = self.updates.changed() => {}
            () = self.reporter.status.changed() => {}
            () = self.probes.changed() => {}
            // A fetch has the inputs until it is over.
            () = self.inputs.changed(), if !self.fetches.has_begun() => {}
            () = self.fetches.progress() => {}
            () = sleep(longest) => {}
        }
    }

    async fn step(&mut self, decision: Decision) -> Result<(), StepError> {
        match decision {
            Decision::Accept => {
                let record = PodRecord { pod: self.name.clone(), accepted_at: Timestamp::now() };
                self.dir.accept(&record)?;
            }
            Decision::Plan { restart, crashes, .. } => self.plan(restart, crashes)?,
            Decision::RecordMissingRun(restart) => self.recall(restart).await?,
            Decision::Launch(restart) => self.launch(restart).await?,
            Decision::SendCommand(restart) => self.answer_command_request(restart).await?,
            Decision::FreeSpace(restart) => self.free_space_for_vm(restart).await?,
            Decision::AskToStop(restart, grace) => self.ask_to_stop(restart, grace)?,
            Decision::StopFor(restart, cause) => self.stop_for(restart, cause)?,
            Decision::KillShim(restart) => self.kill_shim(restart).await?,
            Decision::AskGuest(restart) => self.ask_guest(restart).await?,
            Decision::StopWithoutShim(restart) => self.stop_without_shim(restart).await?,
            Decision::KillStrayProcesses(restart) => self.kill_leftovers(restart).await?,
            Decision::RecordLoss(restart) => self.record_loss(restart)?,
            Decision::DeleteVm(restart) => self.clean(restart).await?,
            Decision::Evict => self.evict()?,
            Decision::RemoveVolumes => {
                self.inputs.end().await;
                block_in_place(|| self.dir.wipe_volumes())?;
            }
            Decision::ForgetRun(restart) => block_in_place(|| self.dir.forget_run(restart))?,
            Decision::DeletePod => self.delete_pod().await?,
            Decision::ForgetPod => {
                self.inputs.end().await;
                block_in_place(|| self.dir.remove())?;
            }
            Decision::Wait(_) => {}
        }
        Ok(())
    }
}

/// The containers of a Pod by the VMs that they run in.
fn segments(pod: &Pod) -> Vec<Segment> {
    pod.spec.as_ref().map(Segment::all).unwrap_or_default()
}
