//! What a worker reports of its Pod: the status, Events, each of them once, and metrics.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ObjectReference, Pod, PodStatus};
use tracing::warn;

use super::fetch::inputs::MissingInput;
use super::host::ReportTargets;
use crate::apiserver::events::{EventReason, Events, LastReported};
use crate::error_chain::chain;
use crate::fs::file::FileError;
use crate::metrics::Metrics;
use crate::names::{PodName, Restart};
use crate::pod::status::manager::StatusManager;
use crate::pod::status::{Context, TOO_LONG, Trouble, ephemeral, is_final, render};
use crate::pod::sync::decide::{Desired, Observation};
use crate::pod::sync::image_backoff::ImageFailure;
use crate::pod::sync::restart::RestartDecision;
use crate::pod::sync::start_progress::{stages, start, waits};
use crate::state::segment::init_field_path;
use crate::state::{EndReason, Ending, InitStage, NotStarted, PodDir, Stage, VmRunView};
use crate::volume::MountFailure;

/// Reports on one Pod.
#[derive(Debug)]
pub(super) struct EventReporter {
    name: PodName,
    dir: PodDir,
    targets: ReportTargets,
    pub(super) status: StatusManager,
    /// The last status that the worker has handed to its status manager.
    last_status: Option<PodStatus>,
    reported: ReportedEvents,
}

/// The Events that this process has written already.
#[derive(Debug, Default)]
struct ReportedEvents {
    refused: LastReported<()>,
    waits_for_slot: LastReported<()>,
    deadline_exceeded: LastReported<()>,
    image_backs_off: LastReported<()>,
    missing_input: LastReported<String>,
    unreadable_state: LastReported<String>,
    stale_volumes: Vec<MountFailure>,
    created: LastReported<Restart>,
    started: LastReported<Restart>,
    /// Init containers, and how often each had been restarted.
    init_started: BTreeMap<String, u32>,
    ended: LastReported<Restart>,
    backs_off: LastReported<Restart>,
    /// The init container that was last reported to back off, and how often it had been restarted.
    init_backs_off: LastReported<(String, u32)>,
}

impl EventReporter {
    pub(super) fn new(name: PodName, dir: PodDir, targets: ReportTargets, status: StatusManager) -> Self {
        Self { name, dir, targets, status, last_status: None, reported: ReportedEvents::default() }
    }

    pub(super) fn events(&self) -> &Events {
        &self.targets.events
    }

    /// Reports that the Pod's state cannot be read. Nothing happens to the Pod until it can be.
    pub(super) fn state_is_unreadable(&mut self, pod: &Pod, error: &FileError) {
        let problem = chain(error);
        if self.reported.unreadable_state.is_new(problem.clone()) {
            warn!(pod = %self.name, error = problem, "cannot read the Pod's state; trying again");
            self.events().warning(pod, EventReason::FailedSync, &problem);
        }
    }

    pub(super) fn metrics(&self) -> &Metrics {
        &self.targets.metrics
    }

    /// Publishes what was observed, and writes Events about what is new in it.
    pub(super) fn report(
        &mut self,
        seen: &Observation,
        context: &Context<'_>,
        image_failure: Option<&ImageFailure>,
    ) {
        let pod = context.pod;
        self.report_observation(seen, context, image_failure);
        if !waits(seen) {
            self.metrics().pod_waits(self.dir.uid(), None);
        }
        if seen.desired == Desired::Gone {
            self.status.cease();
            return;
        }
        // A final phase stays as it is.
        if is_final(pod.status.as_ref()) {
            return;
        }
        // The status still has the VM that only the API server knows of. It must stay there until the worker has recorded that VM.
        if seen.forgotten().is_some() {
            return;
        }
        let accepted_at = self.dir.record().ok().flatten().map(|record| record.accepted_at);
        if waits(seen) {
            self.metrics().pod_waits(self.dir.uid(), accepted_at);
        }
        // As in the kubelet, only the init container whose turn it is lacks its image.
        let next = seen.segments.get(seen.next_segment()).filter(|segment| segment.main.is_none());
        let container = next.and_then(|segment| segment.init.first().cloned());
        let image_trouble = image_failure.map(|failure| Trouble { container, ..failure.shown(seen.now) });
        let before = self.last_status.as_ref().or(pod.status.as_ref());
        let trouble = image_trouble.as_ref().or(context.trouble);
        let context = Context { before, accepted_at, trouble, ..*context };
        let status = render(seen, &context);
        for name in ephemeral::answered(&status, context.before) {
            let note = format!("Error: {}", ephemeral::refusal(name));
            self.events().warning(pod, EventReason::Failed, &note);
        }
        if let Some(reason) = &status.reason
            && self.last_status.as_ref().and_then(|last| last.reason.as_ref()) != Some(reason)
        {
            self.metrics().failed(reason);
        }
        self.last_status = Some(status.clone());
        self.status.want(status, pod);
    }

    fn report_observation(
        &mut self,
        seen: &Observation,
        context: &Context<'_>,
        image_failure: Option<&ImageFailure>,
    ) {
        let (pod, is_to_run) = (context.pod, matches!(seen.desired, Desired::Run(_)));
        let ReportTargets { events, starts, address_patience, .. } = &self.targets;
        if let Err(refusal) = context.plan
            && is_to_run
            && self.reported.refused.is_new(())
        {
            events.warning(pod, refusal.reason, &refusal.message);
        }
        if let Some(words) = image_failure.and_then(|failure| failure.back_off(seen.now))
            && is_to_run
            && self.reported.image_backs_off.is_new(())
        {
            events.normal(pod, EventReason::BackOff, &words);
        }
        if seen.missed_deadline().is_some() && self.reported.deadline_exceeded.is_new(()) {
            events.normal(pod, EventReason::DeadlineExceeded, TOO_LONG);
        }
        let Some(run) = seen.runs.last() else { return };
        if let Some(start) = start(run, *address_patience, seen.now) {
            starts.report(&start);
        }
        self.report_start(run, VmRunView::main_restarts(&seen.runs), context);
        self.report_init_starts(run, pod);
        self.report_end(seen, run, pod);
        self.report_back_off(seen, run, context);
        self.report_notices(pod, run);
    }

    fn report_start(&mut self, run: &VmRunView, main_restarts: u32, context: &Context<'_>) {
        let (pod, Some(progress)) = (context.pod, &run.progress) else { return };
        if run.outcome.is_some() || (run.has_main() && shows_running(pod, main_restarts)) {
            return;
        }
        let place = self.dir.run(run.restart);
        if let Stage::Booting | Stage::Up { .. } | Stage::Running { .. } = progress.stage
            && self.reported.created.is_new(run.restart)
        {
            let init = run.spec.as_ref().and_then(|spec| spec.init.first()).map(|first| first.name.as_str());
            let (name, field_path) = match init {
                Some(name) => (name, init_field_path(name)),
                None => (context.container(), main_field_path(context)),
            };
            let note = format!("Created container {name}: VM {} boots", place.vm());
            let container = Events::container(pod, field_path);
            self.events().about(container, false, EventReason::Created, &note);
        }
        if let Stage::Running { address } = progress.stage
            && self.reported.started.is_new(run.restart)
        {
            let note = format!("VM {} runs at {address}", place.vm());
            let container = Events::container(pod, main_field_path(context));
            self.events().about(container, false, EventReason::Started, &note);
            // Steps that cannot be read cost the metrics only.
            for (stage, took) in stages(&place.steps().unwrap_or_default()) {
                self.metrics().stage_took(stage, took);
            }
        }
    }

    /// Reports each start of an init container, once. One that the API server shows as started was reported before.
    fn report_init_starts(&mut self, run: &VmRunView, pod: &Pod) {
        for state in &run.init {
            let has_started = match &state.now {
                InitStage::Running(_) | InitStage::BackOff(_) => true,
                InitStage::Over(outcome) => outcome.started_at.is_some(),
                InitStage::Waiting | InitStage::Newer(_) => false,
            };
            let before = self.reported.init_started.get(&state.name);
            if !has_started || before == Some(&state.restarts) {
                continue;
            }
            self.reported.init_started.insert(state.name.clone(), state.restarts);
            if !shows_init_started(pod, &state.name, state.restarts) {
                let container = Events::container(pod, init_field_path(&state.name));
                let note = format!("Started container {}", state.name);
                self.events().about(container, false, EventReason::Started, &note);
            }
        }
    }

    fn report_end(&mut self, seen: &Observation, run: &VmRunView, pod: &Pod) {
        let Some(outcome) = &run.outcome else { return };
        // A VM that was asked to stop before it had started has not failed.
        let was_stopped = run.stop.is_some() && matches!(outcome.ending, Ending::NotStarted { .. });
        if !matches!(seen.desired, Desired::Run(_)) || was_stopped || !self.reported.ended.is_new(run.restart)
        {
            return;
        }
        if let Ending::NotStarted(NotStarted { reason, message, .. }) = &outcome.ending {
            // The kubelet's word for its own reasons.
            if reason.is_kubelets() {
                self.events().warning(pod, EventReason::Failed, &format!("Error: {message}"));
            } else {
                self.events().warning(pod, reason, message);
            }
        }
        let reason = outcome.ending.reason();
        if reason != EndReason::Completed {
            self.metrics().failed(&reason.to_string());
        }
    }

    /// Reports that a container which keeps failing backs off, once before each start.
    fn report_back_off(&mut self, seen: &Observation, run: &VmRunView, context: &Context<'_>) {
        let waiting = run.init.iter().find(|init| matches!(init.now, InitStage::BackOff(_)));
        if let Some(init) = waiting.map(|init| (init.name.clone(), init.restarts))
            && self.reported.init_backs_off.is_new(init.clone())
        {
            self.events().warning(context.pod, EventReason::BackOff, &self.backs_off(&init.0));
        }
        let Some(outcome) = &run.outcome else { return };
        match seen.verdict(run, outcome) {
            RestartDecision::Restart { delay, at, .. } if !delay.is_zero() && at > seen.now => {}
            _ => return,
        }
        if self.reported.backs_off.is_new(run.restart) {
            let container = run.failed_init().map_or_else(|| context.container(), |(name, _)| name);
            self.events().warning(context.pod, EventReason::BackOff, &self.backs_off(container));
        }
    }

    /// The kubelet's words.
    fn backs_off(&self, container: &str) -> String {
        let PodName { namespace, name } = &self.name;
        let uid = self.dir.uid();
        format!("Back-off restarting failed container {container} in pod {name}_{namespace}({uid})")
    }

    /// Writes Events about the shim's notices, each once.
    fn report_notices(&self, pod: &Pod, run: &VmRunView) {
        if run.notices.is_empty() {
            return;
        }
        let place = self.dir.run(run.restart);
        let reported = place.notices_reported().unwrap_or(run.notices.len());
        for notice in run.notices.iter().skip(reported) {
            self.events().warning(pod, &notice.reason, &notice.message);
        }
        if reported < run.notices.len()
            && let Err(error) = place.mark_notices_reported(run.notices.len())
        {
            warn!(pod = %self.name, error = chain(&error), "cannot record which of the shim's notices are reported");
        }
    }

    /// Reports the volumes of the current VM that could not be updated. Returns those that were reported before.
    pub(super) fn stale_volumes(&mut self, pod: &Pod, stale: &[MountFailure]) -> Vec<MountFailure> {
        let before = std::mem::replace(&mut self.reported.stale_volumes, stale.to_vec());
        if before != stale {
            for failure in stale {
                self.events().afresh().warning(pod, EventReason::FailedMount, &failure.to_string());
            }
        }
        before
    }

    /// Reports an input that is missing, once.
    pub(super) fn missing_input(&mut self, pod: &Pod, missing: &MissingInput) {
        if !self.reported.missing_input.is_new(missing.message.clone()) {
            return;
        }
        let note = match missing.event {
            EventReason::Failed => format!("Error: {}", missing.message),
            _ => missing.message.clone(),
        };
        self.events().afresh().warning(pod, missing.event, &note);
    }

    /// No input is missing any more.
    pub(super) fn inputs_are_complete(&mut self) {
        self.reported.missing_input = LastReported::default();
    }

    pub(super) fn image_failed(&mut self, container: ObjectReference, failure: &ImageFailure) {
        self.events().about(container, true, EventReason::Failed, &failure.message);
        self.metrics().failed(failure.reason());
        self.reported.image_backs_off = LastReported::default();
    }

    /// Reports that the Pod's VM waits for a slot, once.
    pub(super) fn waits_for_slot(&mut self, pod: &Pod) {
        if self.reported.waits_for_slot.is_new(()) {
            let note = "waiting until the VM of a Pod that has ended is gone; macOS still counts it";
            self.events().normal(pod, EventReason::WaitingForVM, note);
        }
    }
}

/// Whether the API already shows a Pod's container as running, after this many restarts.
fn shows_running(pod: &Pod, restarts: u32) -> bool {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
    statuses.and_then(|all| all.first()).is_some_and(|status| {
        let running = status.state.as_ref().is_some_and(|state| state.running.is_some());
        running && u32::try_from(status.restart_count).is_ok_and(|count| count == restarts)
    })
}

/// The same for an init container, which may have ended since.
fn shows_init_started(pod: &Pod, name: &str, restarts: u32) -> bool {
    let statuses = pod.status.as_ref().and_then(|status| status.init_container_statuses.as_ref());
    statuses.into_iter().flatten().filter(|status| status.name == name).any(|status| {
        let state = status.state.as_ref();
        let has_started = state.is_some_and(|state| state.running.is_some() || state.terminated.is_some());
        has_started && u32::try_from(status.restart_count).is_ok_and(|count| count == restarts)
    })
}

/// The main container's place in its Pod, as Events name it.
fn main_field_path(context: &Context<'_>) -> String {
    format!("spec.containers{{{}}}", context.container())
}
