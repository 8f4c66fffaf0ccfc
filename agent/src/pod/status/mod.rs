//! What the API server is told about a Pod: a pure function of what was observed.

mod conditions;
pub(crate) mod ephemeral;
mod gates;
mod init;
pub(crate) mod manager;

use std::net::IpAddr;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus,
    HostIP, Pod, PodCondition, PodIP, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};

use self::conditions::Condition;
use super::admission::{Refusal, VmPlan};
use super::sync::decide::{Desired, Observation};
use super::sync::restart::RestartDecision;
use crate::duration;
use crate::names::{Restart, VmName};
use crate::state::RestartPolicy;
use crate::state::{EndReason, Ending, NotStarted, Outcome, Progress, ShimSpec, Stage, StopCause, VmRunView};

/// The kubelet's words for a Pod that `activeDeadlineSeconds` has ended.
pub(crate) const DEADLINE_EXCEEDED: &str = "DeadlineExceeded";
/// The rest of them.
pub(crate) const TOO_LONG: &str = "Pod was active on the node longer than the specified deadline";

/// What a status rests on besides the observation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Context<'a> {
    /// The Pod as the API shows it.
    pub(crate) pod: &'a Pod,
    /// The status that was last to be shown: what has not changed since keeps its time.
    pub(crate) before: Option<&'a PodStatus>,
    /// How the Pod was admitted.
    pub(crate) plan: Result<&'a VmPlan, &'a Refusal>,
    /// When it was accepted.
    pub(crate) accepted_at: Option<Timestamp>,
    /// What keeps its VM from being made, when something does.
    pub(crate) trouble: Option<&'a Trouble>,
    /// The Node's address.
    pub(crate) host_ip: Option<IpAddr>,
}

/// What keeps a VM from being made: its image, or something that the Pod brings along.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Trouble {
    /// The kubelet's word for it.
    pub(crate) reason: &'static str,
    /// What a person can do about it.
    pub(crate) message: String,
    /// The container that waits for it, when it is one alone.
    pub(crate) container: Option<String>,
}

impl Context<'_> {
    /// What keeps a container from being started.
    fn trouble_of(&self, container: &str) -> Option<&Trouble> {
        self.trouble.filter(|trouble| trouble.container.as_deref().is_none_or(|name| name == container))
    }
}

/// The status that the API server should show.
pub(crate) fn render(seen: &Observation, context: &Context<'_>) -> PodStatus {
    let old = context.before.cloned().unwrap_or_default();
    let (unreadable, trouble);
    let (plan, context) = match context.plan {
        Ok(plan) => (plan, *context),
        // Who was let in is not put out: it waits, and what runs goes on.
        Err(refusal) if seen.accepted => {
            unreadable = VmPlan::unreadable(context.pod);
            trouble = Trouble {
                reason: "CreateContainerConfigError",
                message: refusal.message.clone(),
                container: None,
            };
            (&unreadable, Context { trouble: Some(&trouble), ..*context })
        }
        Err(refusal) => {
            return PodStatus {
                phase: Some("Failed".to_owned()),
                reason: Some(refusal.reason.to_owned()),
                // The kubelet's words, in front of any reason.
                message: Some(format!("Pod was rejected: {}", refusal.message)),
                start_time: old.start_time.clone().or(Some(Time(seen.now))),
                observed_generation: context.pod.metadata.generation,
                ..PodStatus::default()
            };
        }
    };
    let context = &context;
    let container = container(seen, context, plan);
    let failure = failure(seen);
    let phase = if failure.is_some() { "Failed" } else { phase(seen, &container) };
    let current = seen.attempts.last();
    let address = address(current);
    let init = init::statuses(context, current);
    let facts = conditions::ConditionFacts {
        phase,
        has_address: address.is_some(),
        incomplete: init::incomplete(&init),
        ready: matches!(container.state, Shown::Running) && container.status.ready,
        container: &container.status.name,
        unmet_gates: gates::unmet(context.pod),
        evicted: seen.eviction(),
    };
    let generation = context.pod.metadata.generation;
    let conditions = conditions::all(&facts).into_iter();
    let conditions = conditions.map(|one| condition(&old, one, seen.now, generation)).collect();
    let mut statuses = (vec![container.status], init);
    if is_final_phase(phase) {
        settle(&mut statuses.0, plan.init.is_empty());
        settle(&mut statuses.1, false);
    }
    let (main, init) = statuses;
    let pod_ip = address.map(|ip| ip.to_string());
    // As for the kubelet: who looks at a Pod that is over may want to know where it was.
    let pod_ip = pod_ip.or_else(|| was_at(current, &old).filter(|_| is_final_phase(phase)));
    PodStatus {
        phase: Some(phase.to_owned()),
        reason: failure.as_ref().map(|(reason, _)| (*reason).to_owned()),
        message: failure.map(|(_, message)| message),
        conditions: Some(conditions),
        container_statuses: Some(main),
        init_container_statuses: (!init.is_empty()).then_some(init),
        ephemeral_container_statuses: ephemeral::statuses(context.pod, &old, seen.now),
        start_time: old.start_time.clone().or_else(|| context.accepted_at.map(Time)),
        host_ip: context.host_ip.map(|ip| ip.to_string()),
        host_ips: context.host_ip.map(|ip| vec![HostIP { ip: ip.to_string() }]),
        pod_ips: pod_ip.clone().map(|ip| vec![PodIP { ip }]),
        pod_ip,
        observed_generation: context.pod.metadata.generation,
        ..PodStatus::default()
    }
}

/// Why the Pod as a whole has failed, once nothing of it runs any more.
fn failure(seen: &Observation) -> Option<(&'static str, String)> {
    if !seen.is_idle() {
        return None;
    }
    if let Some(why) = seen.eviction() {
        return Some(("Evicted", why.to_owned()));
    }
    seen.missed_deadline()?;
    Some((DEADLINE_EXCEEDED, TOO_LONG.to_owned()))
}

/// Whether a phase is one that a Pod never leaves.
pub(crate) fn is_final(status: Option<&PodStatus>) -> bool {
    status.and_then(|status| status.phase.as_deref()).is_some_and(is_final_phase)
}

fn is_final_phase(phase: &str) -> bool {
    matches!(phase, "Succeeded" | "Failed")
}

struct ShownContainer {
    status: ContainerStatus,
    state: Shown,
}

enum Shown {
    Waiting,
    Running,
    /// It has ended; what follows is the Pod's restart policy's to say.
    Over(RestartDecision),
}

fn container(seen: &Observation, context: &Context<'_>, plan: &VmPlan) -> ShownContainer {
    let current = seen.attempts.last();
    let previous = seen.attempts.len().checked_sub(2).map(|index| &seen.attempts[index]);
    let restart = current.map_or(Restart(0), |attempt| attempt.restart);
    let (state, last, shown) = match current {
        None => (waiting(context, plan), None, Shown::Waiting),
        Some(attempt) => match (&attempt.outcome, &attempt.progress) {
            (Some(outcome), _) => over(seen, context, plan, attempt, outcome),
            (None, Some(Progress { stage: Stage::Running { .. }, since, .. })) => {
                let running = ContainerStateRunning { started_at: Some(Time(*since)) };
                let state = ContainerState { running: Some(running), ..ContainerState::default() };
                (state, None, Shown::Running)
            }
            (None, _) => (waiting(context, plan), None, Shown::Waiting),
        },
    };
    let before = previous.and_then(|view| view.outcome.as_ref().map(|outcome| end_of(view, outcome)));
    let running = matches!(shown, Shown::Running);
    let spec = current.and_then(|attempt| attempt.spec.as_ref());
    let status = ContainerStatus {
        name: plan.container.clone(),
        image: image_of(spec, plan),
        image_id: spec.map(|spec| spec.image.clone()).unwrap_or_default(),
        container_id: spec.map(|spec| container_id(&spec.vm)),
        ready: running && seen.health.is_none_or(|health| health.ready),
        started: Some(running && seen.health.is_none_or(|health| health.started)),
        restart_count: i32::try_from(restart.0).unwrap_or(i32::MAX),
        state: Some(state),
        last_state: Some(last.or(before).unwrap_or_default()),
        ..ContainerStatus::default()
    };
    ShownContainer { status, state: shown }
}

/// The image of the VM that there is: the Pod may name another one by now.
fn image_of(spec: Option<&ShimSpec>, plan: &VmPlan) -> String {
    spec.and_then(|spec| spec.image_name.clone()).unwrap_or_else(|| plan.image.clone())
}

/// A container that has ended: final, or waiting for its next start with the end as its last state.
fn over(
    seen: &Observation,
    context: &Context<'_>,
    plan: &VmPlan,
    attempt: &VmRunView,
    outcome: &Outcome,
) -> (ContainerState, Option<ContainerState>, Shown) {
    let end = match &outcome.ending {
        // It never came to the main container.
        Ending::InitFailed { .. } => waiting_for("PodInitializing", None),
        _ => end_of(attempt, outcome),
    };
    match (seen.verdict(attempt, outcome), context.trouble_of(&plan.container)) {
        // Its time has come, but something is in the way.
        (next @ RestartDecision::Restart { at, .. }, Some(trouble)) if at <= seen.now => {
            let state = waiting_for(trouble.reason, Some(trouble.message.clone()));
            (state, Some(end), Shown::Over(next))
        }
        // It starts again at once, from an end that the API server takes for final.
        (next @ RestartDecision::Restart { delay: Duration::ZERO, .. }, _)
            if is_final_end(seen.wanted, &end) =>
        {
            (waiting(context, plan), Some(end), Shown::Over(next))
        }
        (next @ RestartDecision::Restart { delay: Duration::ZERO, .. }, _) => (end, None, Shown::Over(next)),
        (next @ RestartDecision::Restart { delay, .. }, _) => {
            let name = attempt.spec.as_ref().map_or("", |spec| &spec.main.name);
            (backing_off(context.pod, name, delay), Some(end), Shown::Over(next))
        }
        (next, _) => (end, None, Shown::Over(next)),
    }
}

/// In a Pod that is over nothing waits: what was to start again has ended as it did the last time. Where all must have ended, so has
/// what never began.
fn settle(statuses: &mut [ContainerStatus], all: bool) {
    for status in statuses {
        let waits = status.state.as_ref().is_some_and(|state| state.waiting.is_some());
        let last = status.last_state.take_if(|last| waits && last.terminated.is_some());
        if let Some(end) = last.or_else(|| (waits && all).then(never_ran)) {
            status.state = Some(end);
            status.last_state.get_or_insert_default();
        }
    }
}

/// The end of a container that there never was, in the kubelet's word for it.
fn never_ran() -> ContainerState {
    let terminated = ContainerStateTerminated {
        exit_code: 137,
        reason: Some(EndReason::ContainerStatusUnknown.to_string()),
        message: Some("the Pod was over before its container had started".to_owned()),
        ..ContainerStateTerminated::default()
    };
    ContainerState { terminated: Some(terminated), ..ContainerState::default() }
}

/// Whether a container that the API server has once seen to end like this may never be seen in another state. The policy would
/// not have it start again, but a failed probe or another image does.
fn is_final_end(wanted: Desired, end: &ContainerState) -> bool {
    let succeeded = end.terminated.as_ref().is_some_and(|end| end.exit_code == 0);
    match wanted {
        Desired::Run(RestartPolicy::Always) => false,
        Desired::Run(RestartPolicy::OnFailure) => succeeded,
        _ => true,
    }
}

/// A container that has failed, and is not started again yet, in the kubelet's words.
fn backing_off(pod: &Pod, container: &str, delay: Duration) -> ContainerState {
    let ObjectMeta { name, namespace, uid, .. } = &pod.metadata;
    let or_empty = |field: &Option<String>| field.clone().unwrap_or_default();
    let message = format!(
        "back-off {} restarting failed container={container} pod={}_{}({})",
        duration::show(delay),
        or_empty(name),
        or_empty(namespace),
        or_empty(uid),
    );
    waiting_for("CrashLoopBackOff", Some(message))
}

fn waiting(context: &Context<'_>, plan: &VmPlan) -> ContainerState {
    match context.trouble_of(&plan.container) {
        Some(error) => waiting_for(error.reason, Some(error.message.clone())),
        None if plan.init.is_empty() => waiting_for("ContainerCreating", None),
        None => waiting_for("PodInitializing", None),
    }
}

/// The guest's address, for as long as it has one.
fn address(current: Option<&VmRunView>) -> Option<IpAddr> {
    let current = current.filter(|attempt| attempt.outcome.is_none())?;
    current.progress.as_ref()?.stage.address()
}

/// The last address that the guest is known to have had.
fn was_at(current: Option<&VmRunView>, old: &PodStatus) -> Option<String> {
    let progress = current.and_then(|attempt| attempt.progress.as_ref());
    let last = progress.and_then(|progress| progress.stage.address());
    last.map(|ip| ip.to_string()).or_else(|| old.pod_ip.clone())
}

fn waiting_for(reason: &str, message: Option<String>) -> ContainerState {
    let waiting = ContainerStateWaiting { reason: Some(reason.to_owned()), message };
    ContainerState { waiting: Some(waiting), ..ContainerState::default() }
}

fn end_of(attempt: &VmRunView, outcome: &Outcome) -> ContainerState {
    let cause = attempt.effective_stop().and_then(|stop| stop.cause);
    terminated(attempt.spec.as_ref(), cause.filter(|cause| cause.is_failure()), outcome)
}

/// The end of a container; `failed` is what it was stopped for, if that was its own failure.
fn terminated(spec: Option<&ShimSpec>, failed: Option<StopCause>, outcome: &Outcome) -> ContainerState {
    let (mut code, mut reason) = (outcome.ending.exit_code(), outcome.ending.reason());
    let message = match &outcome.ending {
        Ending::Stopped { .. } if let Some(cause) = failed => {
            // A stop that nobody wanted is no success; 143 is what it looks like elsewhere.
            code = if code == 0 { 143 } else { code };
            reason = EndReason::Error;
            Some(format!("the container {cause} and was stopped"))
        }
        Ending::Exited { message, .. } => {
            message.clone().or_else(|| failed.map(|cause| format!("the container {cause} and was stopped")))
        }
        Ending::InitFailed { container, .. } => Some(format!("init container {container} failed")),
        Ending::Stopped { killed: false } => None,
        Ending::Stopped { killed: true } => {
            Some("the VM did not shut down within its grace period and was killed".to_owned())
        }
        Ending::NotStarted(NotStarted { message, .. }) => Some(message.clone()),
        Ending::Lost => Some(
            "the VM was gone when the agent looked for it: it was killed, or the host was restarted".to_owned(),
        ),
    };
    let terminated = ContainerStateTerminated {
        exit_code: code,
        reason: Some(reason.to_string()),
        message,
        started_at: outcome.started_at.map(Time),
        finished_at: Some(Time(outcome.finished_at)),
        container_id: spec.map(|spec| container_id(&spec.vm)),
        ..ContainerStateTerminated::default()
    };
    ContainerState { terminated: Some(terminated), ..ContainerState::default() }
}

/// How the name of a VM begins where it is a container's.
const SCHEME: &str = "tart://";

pub(super) fn container_id(vm: &VmName) -> String {
    format!("{SCHEME}{vm}")
}

/// The VM that a container's ID names; `None` when it is none of this agent's.
pub(super) fn vm_of(container_id: &str) -> Option<VmName> {
    container_id.strip_prefix(SCHEME)?.parse().ok()
}

fn phase(seen: &Observation, container: &ShownContainer) -> &'static str {
    let stopping = matches!(seen.wanted, Desired::Stop(_) | Desired::Finished(_) | Desired::Gone);
    match container.state {
        Shown::Running | Shown::Over(RestartDecision::Restart { .. }) => "Running",
        Shown::Over(RestartDecision::Succeeded) => "Succeeded",
        Shown::Over(RestartDecision::Failed) => "Failed",
        // A Pod that is deleted before it ever ran has not done what it was for.
        Shown::Waiting if stopping && seen.attempts.is_empty() => "Failed",
        Shown::Waiting if container.status.restart_count > 0 => "Running",
        Shown::Waiting => "Pending",
    }
}

/// A condition that keeps its transition time for as long as it does not change.
fn condition(old: &PodStatus, new: Condition, now: Timestamp, generation: Option<i64>) -> PodCondition {
    let status = if new.holds { "True" } else { "False" };
    let before = old.conditions.iter().flatten().find(|c| c.type_ == new.kind && c.status == status);
    PodCondition {
        type_: new.kind.to_owned(),
        status: status.to_owned(),
        reason: new.reason.map(str::to_owned),
        message: new.message,
        last_transition_time: before.and_then(|c| c.last_transition_time.clone()).or(Some(Time(now))),
        observed_generation: generation,
        ..PodCondition::default()
    }
}

#[cfg(test)]
mod tests;
