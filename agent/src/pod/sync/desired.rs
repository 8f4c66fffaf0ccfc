//! The desired state of a Pod, read from the API object.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;

use super::decide::{Deadline, Desired};
use super::time::seconds;
use crate::clock;
use crate::names::{PodUid, Restart};
use crate::pod::status::{is_final, vm_of};
use crate::state::RestartPolicy;

/// What the API server has said of a Pod to this agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PodPresence {
    /// Nothing yet: the Pod is as an earlier agent last saw it.
    Unconfirmed,
    Present,
    /// The API server no longer has the Pod.
    Gone,
}

/// When `activeDeadlineSeconds` ends. It counts from the start time that the API shows.
pub(crate) fn deadline(pod: &Pod) -> Option<Deadline> {
    let spec = pod.spec.as_ref()?;
    let start = clock::of_record(pod.status.as_ref()?.start_time.as_ref()?.0);
    let active = Duration::from_secs(spec.active_deadline_seconds?.try_into().unwrap_or(0));
    let at = start.checked_add(active).ok()?;
    Some(Deadline { at, grace: seconds(spec.termination_grace_period_seconds) })
}

/// The last VM of a Pod that the API shows as started: one that runs, or has ended.
pub(crate) fn started(pod: &Pod, uid: &PodUid) -> Option<Restart> {
    let status = pod.status.as_ref()?.container_statuses.as_ref()?.first()?;
    let (state, last) = (status.state.as_ref(), status.last_state.as_ref());
    let running = state.and_then(|state| state.running.as_ref()).and(status.container_id.as_ref());
    let ended = [state, last].into_iter().flatten();
    let ended = ended.filter_map(|state| state.terminated.as_ref()?.container_id.as_ref());
    let vms = running.into_iter().chain(ended).filter_map(|id| vm_of(id));
    vms.filter(|vm| vm.uid() == uid).map(|vm| vm.restart()).max()
}

/// The desired state of a Pod.
pub(crate) fn desired(pod: &Pod, presence: PodPresence) -> Desired {
    let spec = pod.spec.as_ref();
    if presence == PodPresence::Gone {
        Desired::Gone
    } else if pod.metadata.deletion_timestamp.is_some() {
        Desired::Stop(seconds(pod.metadata.deletion_grace_period_seconds))
    } else if is_final(pod.status.as_ref()) {
        Desired::Finished(seconds(spec.and_then(|spec| spec.termination_grace_period_seconds)))
    } else {
        Desired::Run(RestartPolicy::of(spec.and_then(|spec| spec.restart_policy.as_deref())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn the_last_started_vm_is_read_from_container_ids() {
        const UID: &str = "0b1c0b1c-0000-4000-8000-000000000000";
        let uid: PodUid = UID.parse().unwrap();
        let vm = |restart: u32| format!("tart://tk-{UID}-{restart}");
        let last = |state: &Value, id: Option<String>, last_state: &Value| {
            let status = json!({
                "name": "main", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
                "state": state, "lastState": last_state, "containerID": id,
            });
            let pod = json!({"status": {"containerStatuses": [status]}});
            started(&serde_json::from_value(pod).unwrap(), &uid).map(|restart| restart.0)
        };
        let ended = |restart: u32| json!({"terminated": {"exitCode": 0, "containerID": vm(restart)}});
        let (running, waiting) =
            (json!({"running": {}}), json!({"waiting": {"reason": "ContainerCreating"}}));
        assert_eq!(last(&running, Some(vm(2)), &json!({})), Some(2));
        assert_eq!(last(&ended(2), Some(vm(2)), &ended(1)), Some(2));
        // The next VM is planned and may never start.
        assert_eq!(last(&waiting, Some(vm(2)), &ended(1)), Some(1));
        assert_eq!(last(&waiting, Some(vm(0)), &json!({})), None);
        assert_eq!(last(&running, Some(format!("containerd://{UID}")), &json!({})), None);
        assert_eq!(last(&running, Some(vm(0).replace("0b1c", "0b1d")), &json!({})), None);
        assert_eq!(last(&running, None, &json!({})), None);
        assert_eq!(started(&Pod::default(), &uid), None);
    }
}
