//! What the API wants of a Pod, as the Pod says it.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;

use super::decide::{Deadline, Wanted};
use super::restart::RestartPolicy;
use super::status::is_final;
use super::time::seconds;

/// When a Pod has been active for long enough. It counts from the start time that the API shows.
pub(super) fn deadline(pod: &Pod) -> Option<Deadline> {
    let spec = pod.spec.as_ref()?;
    let start = pod.status.as_ref()?.start_time.as_ref()?.0;
    let active = Duration::from_secs(spec.active_deadline_seconds?.try_into().unwrap_or(0));
    let at = start.checked_add(active).ok()?;
    Some(Deadline { at, grace: seconds(spec.termination_grace_period_seconds) })
}

/// What the API wants of a Pod.
pub(super) fn wanted(pod: &Pod, gone: bool) -> Wanted {
    let spec = pod.spec.as_ref();
    if gone {
        Wanted::Gone
    } else if pod.metadata.deletion_timestamp.is_some() {
        Wanted::Stop(seconds(pod.metadata.deletion_grace_period_seconds))
    } else if is_final(pod.status.as_ref()) {
        Wanted::Finished(seconds(spec.and_then(|spec| spec.termination_grace_period_seconds)))
    } else {
        Wanted::Run(RestartPolicy::of(spec.and_then(|spec| spec.restart_policy.as_deref())))
    }
}
