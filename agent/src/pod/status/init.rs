//! Statuses of init containers.

use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus};

use super::{Context, backing_off, container_id, over, running, terminated};
use crate::names::VmName;
use crate::pod::sync::decide::Observation;
use crate::pod::sync::next_vm::init_states;
use crate::state::{InitStage, InitState, InitVm, Outcome, RestartPolicy, VmRunView};

/// The statuses of a Pod's init containers, in the Pod's order.
pub(super) fn statuses(seen: &Observation, context: &Context<'_>) -> Vec<ContainerStatus> {
    let Ok(plan) = context.plan else { return Vec::new() };
    let current = seen.runs.last();
    let states = init_states(&seen.runs);
    let status = |name: &String| {
        let state = states.iter().find(|state| state.name == *name);
        let (now, last) =
            state.map_or_else(|| (pending(context, name), None), |state| shown(seen, context, state));
        let is_lost = state.is_none() && !current.is_some_and(is_to_run);
        if now.terminated.is_none()
            && let Some(kept) = ended_before(context, name)
            && (is_lost || is_final(context, &kept))
        {
            return kept;
        }
        let vm = vm_of(current, name, state);
        let named = vm.as_ref().and_then(|vm| vm.image_name.clone());
        ContainerStatus {
            name: name.clone(),
            image: named.unwrap_or_else(|| named_by_pod(context, name).unwrap_or_else(|| plan.image.clone())),
            image_id: vm.as_ref().map(|vm| vm.image.clone()).unwrap_or_default(),
            container_id: state.and(vm).map(|vm| container_id(&vm.vm)),
            ready: state.is_some_and(InitState::has_succeeded),
            started: Some(now.running.is_some()),
            restart_count: state.map_or(0, |state| i32::try_from(state.restarts).unwrap_or(i32::MAX)),
            state: Some(now),
            last_state: Some(last.unwrap_or_default()),
            ..ContainerStatus::default()
        }
    };
    plan.init.iter().map(status).collect()
}

/// The VM of an init container: the one that it has run in, or the current one if that runs it.
fn vm_of(current: Option<&VmRunView>, name: &str, state: Option<&InitState>) -> Option<InitVm> {
    let spec = current.and_then(|run| run.spec.as_ref());
    let own = spec.filter(|spec| spec.init.iter().any(|container| container.name == *name));
    let own = own.map(|spec| InitVm {
        vm: spec.vm.clone(),
        image: spec.image.clone(),
        image_name: spec.image_name.clone(),
    });
    own.or_else(|| state.and_then(|state| state.ran_in.clone()))
}

/// The image that the Pod names for an init container.
fn named_by_pod(context: &Context<'_>, name: &str) -> Option<String> {
    let mut all = context.pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
    all.find(|container| container.name == name).and_then(|container| container.image.clone())
}

/// Whether a VM has yet to run its init containers. A new VM runs all of its own again.
fn is_to_run(run: &VmRunView) -> bool {
    run.spec.is_some() && run.outcome.is_none() && run.running_since().is_none()
}

/// What the API shows of an init container that has ended.
fn ended_before(context: &Context<'_>, name: &str) -> Option<ContainerStatus> {
    // The agent's last status may not be what the API server has accepted.
    let shown = [context.before, context.pod.status.as_ref()].into_iter().flatten();
    let mut statuses = shown.flat_map(|status| status.init_container_statuses.iter().flatten());
    let has_ended =
        |status: &ContainerStatus| status.state.as_ref().is_some_and(|state| state.terminated.is_some());
    statuses.find(|status| status.name == name && has_ended(status)).cloned()
}

/// Whether the API server would refuse the whole status if this init container left its terminated state: the restart policy would not
/// start it again. A new VM does run it again; the status says so once it has ended there.
fn is_final(context: &Context<'_>, ended: &ContainerStatus) -> bool {
    let code = ended.state.as_ref().and_then(|state| state.terminated.as_ref()).map(|end| end.exit_code);
    match RestartPolicy::of(context.pod.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref())) {
        RestartPolicy::Always => false,
        RestartPolicy::OnFailure => code == Some(0),
        RestartPolicy::Never => true,
    }
}

/// The init containers that have not succeeded yet.
pub(super) fn incomplete(statuses: &[ContainerStatus]) -> Vec<String> {
    statuses.iter().filter(|status| !status.ready).map(|status| status.name.clone()).collect()
}

fn pending(context: &Context<'_>, name: &str) -> ContainerState {
    context.waiting_of(name, "PodInitializing")
}

fn shown(
    seen: &Observation,
    context: &Context<'_>,
    state: &InitState,
) -> (ContainerState, Option<ContainerState>) {
    let current = seen.runs.last();
    let ran_in = state.ran_in.as_ref().map(|vm| &vm.vm);
    let vm: Option<&VmName> = ran_in.or_else(|| current.and_then(|run| Some(&run.spec.as_ref()?.vm)));
    let last = state.last.as_ref().map(|outcome| terminated(vm, None, outcome));
    let now = match (&state.now, current.and_then(|run| run.outcome.as_ref())) {
        (InitStage::Waiting | InitStage::Newer(_), _) => pending(context, &state.name),
        (InitStage::BackOff(delay), _) => backing_off(context.pod, &state.name, *delay),
        (InitStage::Running(since), None) => running(*since),
        (InitStage::Running(since), Some(end)) => terminated(vm, None, &Outcome::lost_with_vm(*since, end)),
        (InitStage::Over(outcome), _) => terminated(vm, None, outcome),
    };
    // The end of a VM that was only for init containers is that of the container whose turn it was.
    let failed = current.and_then(|run| Some((run, run.failed_init()?)));
    match failed.filter(|(_, (name, _))| **name == state.name && now.terminated.is_some()) {
        Some((run, (_, outcome))) => {
            let (now, ended) = over(seen, context, &state.name, now, seen.verdict(run, outcome));
            (now, ended.or(last))
        }
        None => (now, last),
    }
}
