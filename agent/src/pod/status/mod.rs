//! A Pod's status: a pure function of the observation.

mod conditions;
pub(crate) mod ephemeral;
mod gates;
mod init;
pub(crate) mod manager;
mod phase;

pub(crate) use phase::Phase;

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
use crate::apiserver::events::EventReason;
use crate::duration;
use crate::names::VmName;
use crate::state::{
    EndReason, Ending, NotStarted, Outcome, Progress, RestartPolicy, ShimSpec, Stage, StopCause, VmRunView,
};

/// The kubelet's message for a Pod that `activeDeadlineSeconds` has ended.
pub(crate) const TOO_LONG: &str = "Pod was active on the node longer than the specified deadline";

/// What a status depends on besides the observation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Context<'a> {
    /// The Pod as the API shows it.
    pub(crate) pod: &'a Pod,
    /// The last status. A condition that has not changed since keeps its transition time.
    pub(crate) before: Option<&'a PodStatus>,
    pub(crate) plan: Result<&'a VmPlan, &'a Refusal>,
    pub(crate) accepted_at: Option<Timestamp>,
    /// Why its VM cannot be created.
    pub(crate) trouble: Option<&'a Trouble>,
    pub(crate) host_ip: Option<IpAddr>,
}

/// Why a VM cannot be created: its image, an environment or a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Trouble {
    pub(crate) reason: &'static str,
    /// What is wrong, and what the user can do about it.
    pub(crate) message: String,
    /// The container that waits; all containers when absent.
    pub(crate) container: Option<String>,
}

impl Context<'_> {
    /// The main container's name.
    pub(crate) fn container(&self) -> &str {
        self.plan.map_or("", |plan| &plan.container)
    }

    /// The kubelet's word for a container that has not started, if nothing is wrong.
    fn creating(&self) -> &'static str {
        let has_init = self.plan.is_ok_and(|plan| !plan.init.is_empty());
        if has_init { "PodInitializing" } else { "ContainerCreating" }
    }

    /// Why a container does not start.
    fn trouble_of(&self, container: &str) -> Option<&Trouble> {
        self.trouble.filter(|trouble| trouble.container.as_deref().is_none_or(|name| name == container))
    }

    /// The state of a container that has not started, with a reason to show if nothing is wrong.
    fn waiting_of(&self, container: &str, otherwise: &str) -> ContainerState {
        match self.trouble_of(container) {
            Some(trouble) => waiting_for(trouble.reason, Some(trouble.message.clone())),
            None => waiting_for(otherwise, None),
        }
    }
}

/// The status that the API server should show.
pub(crate) fn render(seen: &Observation, context: &Context<'_>) -> PodStatus {
    let old = context.before.cloned().unwrap_or_default();
    let (unreadable, trouble);
    let (plan, context) = match context.plan {
        Ok(plan) => (plan, *context),
        // An admitted Pod stays admitted: it waits, and its VM runs on.
        Err(refusal) if seen.accepted => {
            unreadable = VmPlan::unreadable(context.pod);
            let message = refusal.message.clone();
            trouble = Trouble { reason: "CreateContainerConfigError", message, container: None };
            (&unreadable, Context { trouble: Some(&trouble), ..*context })
        }
        Err(refusal) => {
            return PodStatus {
                phase: Some(Phase::Failed.to_string()),
                reason: Some(refusal.reason.to_string()),
                // The kubelet's word comes before any other reason.
                message: Some(format!("Pod was rejected: {}", refusal.message)),
                start_time: old.start_time.clone().or(Some(Time(seen.wall))),
                observed_generation: context.pod.metadata.generation,
                ..PodStatus::default()
            };
        }
    };
    let context = &context;
    let (container, shown) = container(seen, context, plan);
    let failure = failure(seen);
    let phase = if failure.is_some() { Phase::Failed } else { phase(seen, &shown, container.restart_count) };
    let current = seen.runs.last();
    let address = address(current);
    let init = init::statuses(seen, context);
    let facts = conditions::ConditionFacts {
        phase,
        has_address: address.is_some(),
        incomplete: init::incomplete(&init),
        ready: container.ready,
        container: &container.name,
        unmet_gates: gates::unmet(context.pod),
        evicted: seen.eviction(),
    };
    let generation = context.pod.metadata.generation;
    let conditions = conditions::all(&facts).into_iter();
    let conditions = conditions.map(|one| condition(&old, one, seen.wall, generation)).collect();
    let (mut main, mut init) = (vec![container], init);
    if phase.is_final() {
        settle(&mut main, plan.init.is_empty());
        settle(&mut init, false);
    }
    let pod_ip = address.map(|ip| ip.to_string());
    // As in the kubelet, a Pod that is over keeps its address.
    let pod_ip = pod_ip.or_else(|| was_at(current, &old).filter(|_| phase.is_final()));
    PodStatus {
        phase: Some(phase.to_string()),
        reason: failure.as_ref().map(|(reason, _)| reason.to_string()),
        message: failure.map(|(_, message)| message),
        conditions: Some(conditions),
        container_statuses: Some(main),
        init_container_statuses: (!init.is_empty()).then_some(init),
        ephemeral_container_statuses: ephemeral::statuses(context.pod, &old, seen.wall),
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
fn failure(seen: &Observation) -> Option<(EventReason, String)> {
    if !seen.is_idle() {
        return None;
    }
    if let Some(why) = seen.eviction() {
        return Some((EventReason::Evicted, why.to_owned()));
    }
    seen.missed_deadline()?;
    Some((EventReason::DeadlineExceeded, TOO_LONG.to_owned()))
}

/// Whether a phase is one that a Pod never leaves.
pub(crate) fn is_final(status: Option<&PodStatus>) -> bool {
    Phase::of(status).is_some_and(Phase::is_final)
}

/// What the main container's status shows.
enum Shown {
    Waiting,
    Running,
    /// The VM has ended. The restart policy decides what follows.
    Over(RestartDecision),
}

fn container(seen: &Observation, context: &Context<'_>, plan: &VmPlan) -> (ContainerStatus, Shown) {
    let current = seen.runs.last();
    let previous = seen.runs.iter().rev().skip(1).find(|run| run.has_main());
    let (state, last, shown) = match current {
        None => (waiting(context, plan), None, Shown::Waiting),
        Some(run) if !run.has_main() => (waiting(context, plan), None, shown_before_main(seen, run)),
        Some(run) => match (&run.outcome, &run.progress) {
            (Some(outcome), _) => {
                let end = match &outcome.ending {
                    // The main container never started.
                    Ending::InitFailed { .. } => waiting_for("PodInitializing", None),
                    _ => end_of(run, outcome),
                };
                let next = seen.verdict(run, outcome);
                let (state, last) = over(seen, context, &plan.container, end, next);
                (state, last, Shown::Over(next))
            }
            (None, Some(Progress { stage: Stage::Running { .. }, since, .. })) => {
                (running(*since), None, Shown::Running)
            }
            (None, _) => (waiting(context, plan), None, Shown::Waiting),
        },
    };
    let before = previous.and_then(|view| view.outcome.as_ref().map(|outcome| end_of(view, outcome)));
    let runs = matches!(shown, Shown::Running);
    let spec = current.and_then(|run| run.spec.as_ref()).filter(|spec| spec.main.is_some());
    let status = ContainerStatus {
        name: plan.container.clone(),
        image: image_of(spec, plan),
        image_id: spec.map(|spec| spec.image.clone()).unwrap_or_default(),
        container_id: spec.map(|spec| container_id(&spec.vm)),
        ready: runs && seen.health.is_none_or(|health| health.ready),
        started: Some(runs && seen.health.is_none_or(|health| health.started)),
        restart_count: i32::try_from(VmRunView::main_restarts(&seen.runs)).unwrap_or(i32::MAX),
        state: Some(state),
        last_state: Some(last.or(before).unwrap_or_default()),
        ..ContainerStatus::default()
    };
    (status, shown)
}

/// What follows from a VM that is only for init containers, for a main container that waits for it.
fn shown_before_main(seen: &Observation, run: &VmRunView) -> Shown {
    match run.outcome.as_ref().map(|outcome| seen.verdict(run, outcome)) {
        Some(end @ (RestartDecision::Succeeded | RestartDecision::Failed)) => Shown::Over(end),
        Some(RestartDecision::Restart { .. }) | None => Shown::Waiting,
    }
}

/// The image of the current VM. The Pod may name another one by now.
fn image_of(spec: Option<&ShimSpec>, plan: &VmPlan) -> String {
    spec.and_then(|spec| spec.image_name.clone()).unwrap_or_else(|| plan.image.clone())
}

/// A container that has ended with its VM: final, or waiting for its next start with the end as its last state.
fn over(
    seen: &Observation,
    context: &Context<'_>,
    container: &str,
    end: ContainerState,
    next: RestartDecision,
) -> (ContainerState, Option<ContainerState>) {
    match (next, context.trouble_of(container)) {
        // The restart is due, but the VM cannot be created.
        (RestartDecision::Restart { at, .. }, Some(trouble)) if at <= seen.now => {
            (waiting_for(trouble.reason, Some(trouble.message.clone())), Some(end))
        }
        // The container starts again at once, but the API server would take this end for final.
        (RestartDecision::Restart { delay: Duration::ZERO, .. }, _) if is_final_end(seen.desired, &end) => {
            (context.waiting_of(container, context.creating()), Some(end))
        }
        (RestartDecision::Restart { delay, .. }, _) if delay > Duration::ZERO => {
            (backing_off(context.pod, container, delay), Some(end))
        }
        (_, _) => (end, None),
    }
}

/// In a Pod that is over no container waits. One that was to start again shows its last end. Where the API server wants all containers
/// terminated, so does one that never started.
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

/// The terminated state of a container that never started, with the kubelet's reason.
fn never_ran() -> ContainerState {
    let terminated = ContainerStateTerminated {
        exit_code: 137,
        reason: Some(EndReason::ContainerStatusUnknown.to_string()),
        message: Some("the Pod was over before its container had started".to_owned()),
        ..ContainerStateTerminated::default()
    };
    ContainerState { terminated: Some(terminated), ..ContainerState::default() }
}

/// Whether the API server lets a container never leave this terminated state: the restart policy would not start it again. A failed probe
/// or another image does.
fn is_final_end(desired: Desired, end: &ContainerState) -> bool {
    let succeeded = end.terminated.as_ref().is_some_and(|end| end.exit_code == 0);
    match desired {
        Desired::Run(RestartPolicy::Always) => false,
        Desired::Run(RestartPolicy::OnFailure) => succeeded,
        _ => true,
    }
}

/// A container in back-off, in the kubelet's words.
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
    context.waiting_of(&plan.container, context.creating())
}

fn running(since: Timestamp) -> ContainerState {
    let running = ContainerStateRunning { started_at: Some(Time(since)) };
    ContainerState { running: Some(running), ..ContainerState::default() }
}

/// The guest's current address.
fn address(current: Option<&VmRunView>) -> Option<IpAddr> {
    let current = current.filter(|run| run.outcome.is_none())?;
    current.progress.as_ref()?.stage.address()
}

/// The guest's last known address.
fn was_at(current: Option<&VmRunView>, old: &PodStatus) -> Option<String> {
    let progress = current.and_then(|run| run.progress.as_ref());
    let last = progress.and_then(|progress| progress.stage.address());
    last.map(|ip| ip.to_string()).or_else(|| old.pod_ip.clone())
}

fn waiting_for(reason: &str, message: Option<String>) -> ContainerState {
    let waiting = ContainerStateWaiting { reason: Some(reason.to_owned()), message };
    ContainerState { waiting: Some(waiting), ..ContainerState::default() }
}

fn end_of(run: &VmRunView, outcome: &Outcome) -> ContainerState {
    let cause = run.effective_stop().and_then(|stop| stop.cause);
    let vm = run.spec.as_ref().map(|spec| &spec.vm);
    terminated(vm, cause.filter(|cause| cause.is_failure()), outcome)
}

/// The end of a container; `failed` is what it was stopped for, if that was its own failure.
fn terminated(vm: Option<&VmName>, failed: Option<StopCause>, outcome: &Outcome) -> ContainerState {
    let (mut code, mut reason) = (outcome.ending.exit_code(), outcome.ending.reason());
    let message = match &outcome.ending {
        Ending::Stopped { .. } if let Some(cause) = failed => {
            // A VM that was stopped from outside is no success. 143 is SIGTERM's exit code.
            code = if code == 0 { 143 } else { code };
            reason = EndReason::Error;
            Some(format!("the container {cause} and was stopped"))
        }
        Ending::Exited { message, .. } => {
            message.clone().or_else(|| failed.map(|cause| format!("the container {cause} and was stopped")))
        }
        Ending::InitFailed { container, .. } => Some(format!("init container {container} failed")),
        Ending::Stopped { killed: false } | Ending::Initialized => None,
        Ending::Stopped { killed: true } => {
            Some("the VM did not shut down within its grace period and was killed".to_owned())
        }
        Ending::NotStarted(NotStarted { message, .. }) => Some(message.clone()),
        Ending::Newer { ending, .. } => {
            Some(format!("a newer release of the agent has recorded this end: {ending}"))
        }
        Ending::Lost => Some(
            "the VM was gone when the agent looked for it: it was killed, or the host was restarted"
                .to_owned(),
        ),
    };
    let terminated = ContainerStateTerminated {
        exit_code: code,
        reason: Some(reason.to_string()),
        message,
        started_at: outcome.started_at.map(Time),
        finished_at: Some(Time(outcome.finished_at)),
        container_id: vm.map(container_id),
        ..ContainerStateTerminated::default()
    };
    ContainerState { terminated: Some(terminated), ..ContainerState::default() }
}

/// The prefix of a container ID; the VM's name follows.
const SCHEME: &str = "tart://";

pub(super) fn container_id(vm: &VmName) -> String {
    format!("{SCHEME}{vm}")
}

/// The VM of a container ID; `None` if the VM is not this agent's.
pub(super) fn vm_of(container_id: &str) -> Option<VmName> {
    container_id.strip_prefix(SCHEME)?.parse().ok()
}

fn phase(seen: &Observation, shown: &Shown, restart_count: i32) -> Phase {
    let stopping = !matches!(seen.desired, Desired::Run(_));
    match shown {
        Shown::Running | Shown::Over(RestartDecision::Restart { .. }) => Phase::Running,
        Shown::Over(RestartDecision::Succeeded) => Phase::Succeeded,
        Shown::Over(RestartDecision::Failed) => Phase::Failed,
        // A Pod that is deleted before it ever ran has failed.
        Shown::Waiting if stopping && seen.runs.is_empty() => Phase::Failed,
        Shown::Waiting if restart_count > 0 => Phase::Running,
        Shown::Waiting => Phase::Pending,
    }
}

/// A condition keeps its transition time until its status changes.
fn condition(old: &PodStatus, new: Condition, now: Timestamp, generation: Option<i64>) -> PodCondition {
    let status = if new.holds { "True" } else { "False" };
    let kind = new.kind.to_string();
    let before = old.conditions.iter().flatten().find(|one| one.type_ == kind && one.status == status);
    PodCondition {
        type_: kind,
        status: status.to_owned(),
        reason: new.reason.map(str::to_owned),
        message: new.message,
        last_transition_time: before.and_then(|one| one.last_transition_time.clone()).or(Some(Time(now))),
        observed_generation: generation,
        ..PodCondition::default()
    }
}

#[cfg(test)]
mod tests;
