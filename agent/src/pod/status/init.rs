//! What the API server is told about init containers.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerState, ContainerStateRunning, ContainerStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{Context, backing_off, container_id, image_of, terminated, waiting_for};
use crate::state::{AttemptView, InitStage, InitState, Outcome};

/// The statuses of a Pod's init containers, in the Pod's order.
pub(super) fn statuses(context: &Context<'_>, current: Option<&AttemptView>) -> Vec<ContainerStatus> {
    let Ok(plan) = context.plan else { return Vec::new() };
    let states = current.map_or(&[][..], AttemptView::init_states);
    let spec = current.and_then(|attempt| attempt.spec.as_ref());
    let status = |name: &String| {
        let state = states.iter().find(|state| state.name == *name);
        let (now, last) =
            state.map_or_else(|| (pending(context, name), None), |state| shown(context, current, state));
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

/// The names of those that have not succeeded yet.
pub(super) fn incomplete(context: &Context<'_>, current: Option<&AttemptView>) -> Vec<String> {
    let Ok(plan) = context.plan else { return Vec::new() };
    let done = |name: &String| {
        current
            .is_some_and(|attempt| attempt.init.iter().any(|state| state.name == *name && succeeded(state)))
    };
    plan.init.iter().filter(|name| !done(name)).cloned().collect()
}

fn succeeded(state: &InitState) -> bool {
    matches!(&state.now, InitStage::Over(outcome) if outcome.ending.exit_code() == 0)
}

/// One whose turn has not come.
fn pending(context: &Context<'_>, name: &str) -> ContainerState {
    match context.trouble_of(name) {
        Some(error) => waiting_for(error.reason, Some(error.message.clone())),
        None => waiting_for("PodInitializing", None),
    }
}

fn shown(
    context: &Context<'_>,
    current: Option<&AttemptView>,
    state: &InitState,
) -> (ContainerState, Option<ContainerState>) {
    let spec = current.and_then(|attempt| attempt.spec.as_ref());
    let last = state.last.as_ref().map(|outcome| terminated(spec, None, outcome));
    let now = match (&state.now, current.and_then(|attempt| attempt.outcome.as_ref())) {
        (InitStage::Waiting, _) => pending(context, &state.name),
        (InitStage::BackOff(delay), _) => backing_off(context.pod, &state.name, *delay),
        (InitStage::Running(since), None) => running(*since),
        (InitStage::Running(since), Some(end)) => terminated(spec, None, &Outcome::lost_with(*since, end)),
        (InitStage::Over(outcome), _) => terminated(spec, None, outcome),
    };
    (now, last)
}

fn running(since: Timestamp) -> ContainerState {
    let running = ContainerStateRunning { started_at: Some(Time(since)) };
    ContainerState { running: Some(running), ..ContainerState::default() }
}
