//! The statuses of a world's Pods, as the API server has had them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::StreamExt;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, Pod};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{Config, Event, watcher};
use kube::{Api, ResourceExt};
use tokio::task::JoinHandle;

use super::oracle::{ContainerEnd, PodState};

/// All statuses so far, by the UID of their Pod.
#[derive(Debug, Clone, Default)]
pub(crate) struct PodHistory(Arc<Mutex<BTreeMap<String, SeenPod>>>);

/// What was seen of one Pod.
#[derive(Debug, Clone, Default)]
pub(crate) struct SeenPod {
    pub(crate) state: PodState,
    pub(crate) is_gone: bool,
    /// What no Pod may do: come back from its end, or change it.
    pub(crate) contradiction: Option<String>,
}

/// Watches until it is dropped.
#[derive(Debug)]
pub(crate) struct PodWatch {
    pub(crate) history: PodHistory,
    task: JoinHandle<()>,
}

impl Drop for PodWatch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl PodWatch {
    pub(crate) fn start(pods: Api<Pod>) -> Self {
        let history = PodHistory::default();
        let task = tokio::spawn(follow(pods, history.clone()));
        Self { history, task }
    }
}

async fn follow(pods: Api<Pod>, history: PodHistory) {
    let mut events = watcher(pods, Config::default()).default_backoff().boxed();
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Apply(pod) | Event::InitApply(pod)) => history.see(&pod),
            Ok(Event::Delete(pod)) => {
                history.see(&pod);
                let mut seen = history.lock();
                seen.entry(pod.uid().unwrap_or_default()).or_default().is_gone = true;
            }
            Ok(Event::Init | Event::InitDone) | Err(_) => {}
        }
    }
}

impl PodHistory {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, SeenPod>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn of(&self, uid: &str) -> SeenPod {
        self.lock().get(uid).cloned().unwrap_or_default()
    }

    /// Drops what is known of a Pod that is gone.
    pub(crate) fn forget(&self, uid: &str) {
        self.lock().remove(uid);
    }

    fn see(&self, pod: &Pod) {
        let mut seen = self.lock();
        let seen = seen.entry(pod.uid().unwrap_or_default()).or_default();
        let next = state_of(pod);
        if let Some(contradiction) = contradiction(&seen.state, &next) {
            seen.contradiction.get_or_insert(contradiction);
        }
        seen.state = next;
    }
}

/// What the later of two statuses takes back of the earlier one.
fn contradiction(before: &PodState, after: &PodState) -> Option<String> {
    if before.is_over() && (after.phase != before.phase || after.end != before.end) {
        return Some(format!("its end has changed from {before:?} to {after:?}"));
    }
    if after.restarts < before.restarts {
        return Some(format!("its restarts have become fewer: {before:?}, {after:?}"));
    }
    let same_run = after.restarts == before.restarts;
    if let (Some(one), Some(other)) = (&before.end, &after.end)
        && same_run
        && one != other
    {
        return Some(format!("the end of one run has changed from {one:?} to {other:?}"));
    }
    None
}

fn state_of(pod: &Pod) -> PodState {
    let Some(status) = &pod.status else { return PodState::default() };
    let container = status.container_statuses.as_ref().and_then(|all| all.first());
    let state = container.and_then(|one| one.state.as_ref());
    let last = container.and_then(|one| one.last_state.as_ref());
    PodState {
        phase: status.phase.clone().unwrap_or_default(),
        reason: status.reason.clone(),
        waiting: state.and_then(|state| state.waiting.as_ref()?.reason.clone()),
        restarts: container.map_or(0, |one| one.restart_count),
        end: state.and_then(|state| state.terminated.as_ref()).map(end_of),
        last_end: last.and_then(|state| state.terminated.as_ref()).map(end_of),
    }
}

fn end_of(end: &ContainerStateTerminated) -> ContainerEnd {
    ContainerEnd { code: end.exit_code, reason: end.reason.clone().unwrap_or_default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(code: i32, restarts: i32) -> PodState {
        let end = Some(ContainerEnd { code, reason: "Error".to_owned() });
        PodState { phase: "Failed".to_owned(), restarts, end, ..PodState::default() }
    }

    #[test]
    fn an_end_that_changes_is_a_contradiction() {
        let running = PodState { phase: "Running".to_owned(), ..PodState::default() };
        assert_eq!(contradiction(&running, &ended(3, 0)), None);
        assert_eq!(contradiction(&ended(3, 0), &ended(3, 0)), None);
        assert!(contradiction(&ended(3, 0), &ended(0, 0)).is_some());
        assert!(contradiction(&ended(3, 0), &running).is_some());
        let restarted = PodState { restarts: 1, ..running.clone() };
        assert!(contradiction(&restarted, &running).is_some());
    }
}
