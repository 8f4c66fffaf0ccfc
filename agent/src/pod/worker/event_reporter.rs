//! What a person is told of a Pod, by its status and in Events, each thing once, and what the host's figures learn of it.

use k8s_openapi::api::core::v1::Pod;
use tracing::warn;

use super::Worker;
use crate::error_chain::chain;
use crate::guest::script::REASONS;
use crate::names::PodName;
use crate::names::Restart;
use crate::pod::status::{Context, DEADLINE_EXCEEDED, TOO_LONG, ephemeral, is_final, render};
use crate::pod::sync::decide::{Desired, Observation};
use crate::pod::sync::restart::RestartDecision;
use crate::pod::sync::start_progress::{stages, start, waits};
use crate::state::{Ending, InitStage, Stage, VmRunView};
use crate::volume::MountFailure;

/// What has been told in Events already, by this process.
#[derive(Default)]
#[allow(clippy::struct_excessive_bools, reason = "each is told on its own")]
pub(super) struct ReportedEvents {
    pub(super) refused: bool,
    pub(super) crowded: bool,
    pub(super) late: bool,
    pub(super) backed_off: bool,
    pub(super) shortage: Option<String>,
    pub(super) stale: Vec<MountFailure>,
    pub(super) created: Option<Restart>,
    pub(super) started: Option<Restart>,
    pub(super) ended: Option<Restart>,
    pub(super) looping: Option<Restart>,
    /// The init container that was last told to wait, and how often it had been started again.
    pub(super) init_looping: Option<(String, u32)>,
}

impl Worker {
    /// Has the API show what was observed, and Events tell what is new in it.
    pub(super) fn publish(&mut self, seen: &Observation) {
        let pod = self.pod.borrow().clone();
        self.tell(&pod, seen);
        if !waits(seen) {
            self.host.metrics.pod_waits(self.dir.uid(), None);
        }
        if seen.wanted == Desired::Gone {
            self.publisher.cease();
            return;
        }
        // A final phase stays as it is.
        if is_final(pod.status.as_ref()) {
            return;
        }
        // What the API shows of a VM that is to be remembered first is not taken back.
        if seen.forgotten().is_some() {
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
            host_ip: *self.host.address.borrow(),
        };
        let status = render(seen, &context);
        for name in ephemeral::answered(&status, context.before) {
            let note = format!("Error: container {name} cannot be started: {}", ephemeral::WHY);
            self.host.events.warning(&pod, "Failed", &note);
        }
        if let Some(reason) = &status.reason
            && self.shown.as_ref().and_then(|shown| shown.reason.as_ref()) != Some(reason)
        {
            self.host.metrics.failed(reason);
        }
        self.shown = Some(status.clone());
        self.publisher.want(status, &pod);
    }

    /// Tells what is new in an observation.
    fn tell(&mut self, pod: &Pod, seen: &Observation) {
        let events = &self.host.events;
        if let Err(refusal) = &self.plan
            && matches!(seen.wanted, Desired::Run(_))
            && !std::mem::replace(&mut self.told.refused, true)
        {
            events.warning(pod, refusal.reason.as_str(), &refusal.message);
        }
        if let Some(words) = self.image_failure.as_ref().and_then(|failure| failure.back_off(seen.now))
            && matches!(seen.wanted, Desired::Run(_))
            && !std::mem::replace(&mut self.told.backed_off, true)
        {
            events.normal(pod, "BackOff", &words);
        }
        if seen.missed_deadline().is_some() && !std::mem::replace(&mut self.told.late, true) {
            events.normal(pod, DEADLINE_EXCEEDED, TOO_LONG);
        }
        let Some(attempt) = seen.attempts.last() else { return };
        if let Some(start) = start(attempt, self.host.address_patience, seen.now) {
            self.host.starts.tell(&start);
        }
        let told_before = shows_running(pod, attempt.restart);
        if let Some(Stage::Booting | Stage::Up { .. } | Stage::Running { .. }) =
            attempt.progress.as_ref().map(|progress| progress.stage)
            && !told_before
            && attempt.outcome.is_none()
            && self.told.created.replace(attempt.restart) != Some(attempt.restart)
        {
            let container = self.plan.as_ref().map_or("", |plan| &plan.container);
            let vm = self.dir.attempt(attempt.restart).vm();
            events.normal(pod, "Created", &format!("Created container {container}: VM {vm} boots"));
        }
        if let Some(progress) = &attempt.progress
            && !told_before
            && let Stage::Running { address } = progress.stage
            && attempt.outcome.is_none()
            && self.told.started.replace(attempt.restart) != Some(attempt.restart)
        {
            events.normal(
                pod,
                "Started",
                &format!("VM {} runs at {address}", self.dir.attempt(attempt.restart).vm()),
            );
            // Figures are worth no failure.
            for (stage, took) in stages(&self.dir.attempt(attempt.restart).steps().unwrap_or_default()) {
                self.host.metrics.stage_took(stage, took);
            }
        }
        if let Some(outcome) = &attempt.outcome
            && matches!(seen.wanted, Desired::Run(_))
            // Whoever was asked to stop before it had started has not failed.
            && !(attempt.stop.is_some() && matches!(outcome.ending, Ending::NotStarted { .. }))
            && self.told.ended.replace(attempt.restart) != Some(attempt.restart)
        {
            if let Ending::NotStarted { reason, message, .. } = &outcome.ending {
                // The kubelet's word for what its own reasons are about.
                if REASONS.contains(&reason.as_str()) {
                    events.warning(pod, "Failed", &format!("Error: {message}"));
                } else {
                    events.warning(pod, reason, message);
                }
            }
            if let Some(reason) = outcome.ending.failure() {
                self.host.metrics.failed(reason);
            }
        }
        self.tell_back_off(pod, seen, attempt);
        self.tell_notices(pod, attempt);
        let stale = self.belongings.problems();
        let before = std::mem::replace(&mut self.told.stale, stale.clone());
        self.volumes_lack(&stale, &before);
        if before != stale {
            for problem in &stale {
                self.host.events.afresh().warning(pod, "FailedMount", &problem.to_string());
            }
        }
    }

    /// Tells that a container which keeps failing has to wait, once before each start.
    fn tell_back_off(&mut self, pod: &Pod, seen: &Observation, attempt: &VmRunView) {
        let waiting = attempt.init.iter().find(|init| matches!(init.now, InitStage::BackOff(_)));
        if let Some(init) = waiting.map(|init| (init.name.clone(), init.restarts))
            && self.told.init_looping.replace(init.clone()) != Some(init.clone())
        {
            self.host.events.warning(pod, "BackOff", &self.backs_off(&init.0));
        }
        let Some(outcome) = &attempt.outcome else { return };
        match seen.verdict(attempt, outcome) {
            RestartDecision::Restart { delay, at, .. } if !delay.is_zero() && at > seen.now => {}
            _ => return,
        }
        if self.told.looping.replace(attempt.restart) == Some(attempt.restart) {
            return;
        }
        let container = self.plan.as_ref().map_or("", |plan| &plan.container);
        self.host.events.warning(pod, "BackOff", &self.backs_off(container));
    }

    /// The kubelet's words.
    fn backs_off(&self, container: &str) -> String {
        let PodName { namespace, name } = &self.name;
        let uid = self.dir.uid();
        format!("Back-off restarting failed container {container} in pod {name}_{namespace}({uid})")
    }

    /// Tells what the shim has left to be told, each once.
    fn tell_notices(&self, pod: &Pod, attempt: &VmRunView) {
        if attempt.notices.is_empty() {
            return;
        }
        let place = self.dir.attempt(attempt.restart);
        let told = place.told().unwrap_or(attempt.notices.len());
        for notice in attempt.notices.iter().skip(told) {
            self.host.events.warning(pod, &notice.reason, &notice.message);
        }
        if told < attempt.notices.len()
            && let Err(error) = place.mark_told(attempt.notices.len())
        {
            warn!(pod = %self.name, error = chain(&error), "what has been told cannot be written down");
        }
    }
}

/// Whether the API already shows a Pod's container as running, after this many restarts.
fn shows_running(pod: &Pod, restart: Restart) -> bool {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
    statuses.and_then(|all| all.first()).is_some_and(|status| {
        let running = status.state.as_ref().is_some_and(|state| state.running.is_some());
        running && u32::try_from(status.restart_count).is_ok_and(|count| count == restart.0)
    })
}
