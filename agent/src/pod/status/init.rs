//! Statuses of init containers.

use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus};

use super::{Context, backing_off, container_id, image_of, running, terminated};
use crate::state::{InitStage, InitState, Outcome, RestartPolicy, VmRunView};

/// The statuses of a Pod's init containers, in the Pod's order.
pub(super) fn statuses(context: &Context<'_>, current: Option<&VmRunView>) -> Vec<ContainerStatus> {
    let Ok(plan) = context.plan else { return Vec::new() };
    let states = current.map_or(&[][..], VmRunView::init_states);
    let spec = current.and_then(|run| run.spec.as_ref());
    let status = |name: &String| {
        let state = states.iter().find(|state| state.name == *name);
        let (now, last) =
            state.map_or_else(|| (pending(context, name), None), |state| shown(context, current, state));
        let is_lost = state.is_none() && !current.is_some_and(is_to_run);
        if now.terminated.is_none()
            && let Some(kept) = ended_before(context, name)
            && (is_lost || is_final(context, &kept))
        {
            return kept;
        }
        ContainerStatus {
            name: name.clone(),
            image: image_of(spec, plan),
            image_id: spec.map(|spec| spec.image.clone()).unwrap_or_default(),
            container_id: state.and(spec).map(|spec| container_id(&spec.vm)),
            ready: state.is_some_and(succeeded),
            started: Some(now.running.is_some()),
            restart_count: state.map_or(0, |state| i32::try_from(state.restarts).unwrap_or(i32::MAX)),
            state: Some(now),
            last_state: Some(last.unwrap_or_default()),
            ..ContainerStatus::default()
        }
    };
    plan.init.iter().map(status).collect()
}

/// Whether a VM has yet to run its init containers. A new VM runs all of them again.
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

fn succeeded(state: &InitState) -> bool {
    matches!(&state.now, InitStage::Over(outcome) if outcome.ending.exit_code() == 0)
}

fn pending(context: &Context<'_>, name: &str) -> ContainerState {
    context.waiting_of(name, "PodInitializing")
}

fn shown(
    context: &Context<'_>,
    current: Option<&VmRunView>,
    state: &InitState,
) -> (ContainerState, Option<ContainerState>) {
    let spec = current.and_then(|run| run.spec.as_ref());
    let last = state.last.as_ref().map(|outcome| terminated(spec, None, outcome));
    let now = match (&state.now, current.and_then(|run| run.outcome.as_ref())) {
        (InitStage::Waiting | InitStage::Newer(_), _) => pending(context, &state.name),
        (InitStage::BackOff(delay), _) => backing_off(context.pod, &state.name, *delay),
        (InitStage::Running(since), None) => running(*since),
        (InitStage::Running(since), Some(end)) => terminated(spec, None, &Outcome::lost_with_vm(*since, end)),
        (InitStage::Over(outcome), _) => terminated(spec, None, outcome),
    };
    (now, last)
}
