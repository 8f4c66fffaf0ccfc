//! What a test reads of a Pod's status.

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateTerminated, ContainerStatus, Pod, PodCondition, PodStatus,
};
use k8s_openapi::jiff::Timestamp;

/// A Pod's status, without the wrappers of the API's types.
pub(crate) trait PodView {
    fn status(&self) -> Option<&PodStatus>;

    /// The Pod's UID; an error for a Pod that has none.
    fn uid_of(&self) -> Result<&str>;

    fn phase(&self) -> &str {
        self.status().and_then(|status| status.phase.as_deref()).unwrap_or_default()
    }

    /// Why the Pod as a whole has failed, for instance `Evicted`.
    fn reason(&self) -> Option<&str> {
        self.status()?.reason.as_deref()
    }

    fn message(&self) -> Option<&str> {
        self.status()?.message.as_deref()
    }

    fn ip(&self) -> Option<&str> {
        self.status()?.pod_ip.as_deref()
    }

    /// The main container.
    fn main(&self) -> ContainerView<'_> {
        let statuses = self.status().and_then(|status| status.container_statuses.as_ref());
        ContainerView(statuses.and_then(|all| all.first()))
    }

    fn init_containers(&self) -> Vec<ContainerView<'_>> {
        let statuses = self.status().and_then(|status| status.init_container_statuses.as_deref());
        statuses.unwrap_or_default().iter().map(|status| ContainerView(Some(status))).collect()
    }

    /// The first init container.
    fn init(&self) -> ContainerView<'_> {
        self.init_containers().into_iter().next().unwrap_or(ContainerView(None))
    }

    /// A condition; an empty one when the Pod has none of this kind.
    fn condition(&self, kind: &str) -> PodCondition {
        let mut conditions = self.status().into_iter().flat_map(|status| status.conditions.iter().flatten());
        conditions.find(|condition| condition.type_ == kind).cloned().unwrap_or_default()
    }

    fn is_ready(&self) -> bool {
        self.condition("Ready").status == "True"
    }

    /// Since when the Pod is ready, or is not.
    fn ready_since(&self) -> Option<Timestamp> {
        self.condition("Ready").last_transition_time.map(|time| time.0)
    }

    /// The name of the Pod's current VM.
    fn vm(&self) -> Result<String> {
        let id = self.main().status()?.container_id.as_deref();
        Ok(id.and_then(|id| id.strip_prefix("tart://")).context("the Pod has no VM")?.to_owned())
    }
}

impl PodView for Pod {
    fn status(&self) -> Option<&PodStatus> {
        self.status.as_ref()
    }

    fn uid_of(&self) -> Result<&str> {
        self.metadata.uid.as_deref().context("no UID")
    }
}

/// A container's status. Its values are `None` while the Pod has no status of the container.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ContainerView<'a>(Option<&'a ContainerStatus>);

impl<'a> ContainerView<'a> {
    pub(crate) fn status(self) -> Result<&'a ContainerStatus> {
        self.0.context("no container status")
    }

    pub(crate) fn restart_count(self) -> Option<i32> {
        self.0.map(|status| status.restart_count)
    }

    pub(crate) fn is_ready(self) -> bool {
        self.0.is_some_and(|status| status.ready)
    }

    pub(crate) fn started(self) -> Option<bool> {
        self.0?.started
    }

    pub(crate) fn image(self) -> Option<&'a str> {
        self.0.map(|status| status.image.as_str())
    }

    pub(crate) fn image_id(self) -> Option<&'a str> {
        self.0.map(|status| status.image_id.as_str())
    }

    fn state(self) -> Option<&'a ContainerState> {
        self.0?.state.as_ref()
    }

    pub(crate) fn is_running(self) -> bool {
        self.state().is_some_and(|state| state.running.is_some())
    }

    pub(crate) fn is_waiting(self) -> bool {
        self.state().is_some_and(|state| state.waiting.is_some())
    }

    pub(crate) fn waiting_reason(self) -> Option<&'a str> {
        self.state()?.waiting.as_ref()?.reason.as_deref()
    }

    pub(crate) fn waiting_message(self) -> Option<&'a str> {
        self.state()?.waiting.as_ref()?.message.as_deref()
    }

    /// How the container ended; an error while it has not.
    pub(crate) fn end(self) -> Result<ContainerStateTerminated> {
        self.ended().cloned().context("not terminated")
    }

    fn ended(self) -> Option<&'a ContainerStateTerminated> {
        self.state()?.terminated.as_ref()
    }

    pub(crate) fn has_ended(self) -> bool {
        self.ended().is_some()
    }

    pub(crate) fn exit_code(self) -> Option<i32> {
        Some(self.ended()?.exit_code)
    }

    /// The reason of its end, for instance `Completed`.
    pub(crate) fn reason(self) -> Option<&'a str> {
        self.ended()?.reason.as_deref()
    }

    /// The termination message.
    pub(crate) fn message(self) -> Option<&'a str> {
        self.ended()?.message.as_deref()
    }

    /// How the container ended the time before; an error when this is its first run.
    pub(crate) fn last_end(self) -> Result<ContainerStateTerminated> {
        self.last_ended().cloned().context("no last state")
    }

    fn last_ended(self) -> Option<&'a ContainerStateTerminated> {
        self.0?.last_state.as_ref()?.terminated.as_ref()
    }

    pub(crate) fn last_exit_code(self) -> Option<i32> {
        Some(self.last_ended()?.exit_code)
    }

    pub(crate) fn last_reason(self) -> Option<&'a str> {
        self.last_ended()?.reason.as_deref()
    }
}
