//! Statuses of ephemeral containers, which `kubectl debug` adds to a Pod: no container can join a VM.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateTerminated, ContainerStatus, EphemeralContainer, Pod, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::state::NotStartedReason;

/// Why the container does not run, and what the user can do instead.
pub(crate) const WHY: &str = "a VM cannot be joined by a container; `kubectl exec` has all that is in the VM, and \
                              `kubectl debug POD --copy-to=NAME --container=CONTAINER -- COMMAND` runs another command in a VM of its own";

/// Whether a Pod has an ephemeral container of this name.
pub(crate) fn is_ephemeral(pod: &Pod, name: &str) -> bool {
    let added = pod.spec.as_ref().and_then(|spec| spec.ephemeral_containers.as_ref());
    added.into_iter().flatten().any(|container| container.name == name)
}

/// What a client is told that asks for the container: `kubectl debug` shows it.
pub(crate) fn refusal(name: &str) -> String {
    format!("container {name} cannot be started: {WHY}")
}

/// The ephemeral containers that `status` answers for the first time.
pub(crate) fn answered<'a>(
    status: &'a PodStatus,
    before: Option<&'a PodStatus>,
) -> impl Iterator<Item = &'a String> {
    let all = status.ephemeral_container_statuses.iter().flatten().map(|container| &container.name);
    all.filter(move |name| known(before, name).is_none())
}

/// Each has failed, so that `kubectl debug` stops waiting at once.
pub(super) fn statuses(pod: &Pod, before: &PodStatus, now: Timestamp) -> Option<Vec<ContainerStatus>> {
    let added = pod.spec.as_ref()?.ephemeral_containers.as_ref()?.iter();
    let status = |container: &EphemeralContainer| {
        let known = known(Some(before), &container.name).cloned();
        known.unwrap_or_else(|| refused(container, now))
    };
    Some(added.map(status).collect())
}

fn known<'a>(status: Option<&'a PodStatus>, name: &str) -> Option<&'a ContainerStatus> {
    status?.ephemeral_container_statuses.as_ref()?.iter().find(|one| one.name == name)
}

fn refused(container: &EphemeralContainer, now: Timestamp) -> ContainerStatus {
    let terminated = ContainerStateTerminated {
        exit_code: 128,
        reason: Some(NotStartedReason::StartError.to_string()),
        message: Some(WHY.to_owned()),
        finished_at: Some(Time(now)),
        ..ContainerStateTerminated::default()
    };
    ContainerStatus {
        name: container.name.clone(),
        image: container.image.clone().unwrap_or_default(),
        state: Some(ContainerState { terminated: Some(terminated), ..ContainerState::default() }),
        last_state: Some(ContainerState::default()),
        started: Some(false),
        ..ContainerStatus::default()
    }
}
