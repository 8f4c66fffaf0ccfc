//! A Pod as the API server last showed it to the manager, for the Pod's worker.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use tokio::sync::{Notify, watch};
use tokio::time::sleep;

use crate::clock;
use crate::pod::admission::read;
use crate::pod::sync::decide::Desired;
use crate::pod::sync::desired::{PodPresence, deadline, desired};
use crate::pod::sync::time::between;

/// The updates of one Pod, and the last one that its worker has taken in.
#[derive(Debug)]
pub(crate) struct PodUpdates {
    pub(super) pods: watch::Receiver<Arc<Pod>>,
    presence: watch::Receiver<PodPresence>,
    pod: Arc<Pod>,
    pub(super) desired: Desired,
    /// Whether the API server has said anything of the Pod to this agent.
    pub(super) is_confirmed: bool,
}

impl PodUpdates {
    pub(crate) fn new(pods: watch::Receiver<Arc<Pod>>, presence: watch::Receiver<PodPresence>) -> Self {
        let pod = pods.borrow().clone();
        let desired = desired(&pod, *presence.borrow());
        let is_confirmed = *presence.borrow() != PodPresence::Unconfirmed;
        Self { pods, presence, pod, desired, is_confirmed }
    }

    /// Takes in the last update. Later ones end [`changed`](Self::changed).
    pub(super) fn refresh(&mut self) {
        let presence = *self.presence.borrow_and_update();
        self.pod = self.pods.borrow_and_update().clone();
        self.desired = desired(&self.pod, presence);
        self.is_confirmed = presence != PodPresence::Unconfirmed;
    }

    pub(super) fn pod(&self) -> Arc<Pod> {
        self.pod.clone()
    }

    /// Waits for the next update. Safe to cancel.
    pub(super) async fn changed(&mut self) {
        tokio::select! {
            Ok(()) = self.pods.changed() => {}
            Ok(()) = self.presence.changed() => {}
            // The manager has ended, and the agent ends with it.
            else => pending().await,
        }
    }

    /// Waits until something else is desired of the Pod than when the worker last took in an update.
    pub(super) fn desired_otherwise(&self) -> impl Future<Output = ()> + Send + use<> {
        let (before, mut pods, mut presence) = (self.desired, self.pods.clone(), self.presence.clone());
        async move {
            while desired(&pods.borrow_and_update(), *presence.borrow_and_update()) == before {
                tokio::select! {
                    Ok(()) = pods.changed() => {}
                    Ok(()) = presence.changed() => {}
                    // Both senders are gone: the desired state cannot change any more.
                    else => return pending().await,
                }
            }
        }
    }

    /// Waits until the Pod is not to run any more, not for longer, or its main container not with this image. The eviction manager and the worker evict
    /// with a file, which wakes `state_changed`.
    pub(super) fn called_off<F: Fn() -> bool + Send>(
        &self,
        image: Option<String>,
        state_changed: Arc<Notify>,
        is_evicted: F,
    ) -> impl Future<Output = ()> + Send + use<F> {
        let (mut pods, mut presence) = (self.pods.clone(), self.presence.clone());
        async move {
            loop {
                let deadline = deadline(&pods.borrow_and_update());
                let is_other = |image: &String| read(&pods.borrow()).is_ok_and(|plan| plan.image != *image);
                let has_changed = image.as_ref().is_some_and(is_other);
                let is_to_run =
                    matches!(desired(&pods.borrow(), *presence.borrow_and_update()), Desired::Run(_));
                let left = deadline.map(|deadline| between(clock::now(), deadline.at));
                if !is_to_run || has_changed || left == Some(Duration::ZERO) || is_evicted() {
                    return;
                }
                tokio::select! {
                    () = state_changed.notified() => {}
                    Ok(()) = pods.changed() => {}
                    Ok(()) = presence.changed() => {}
                    () = sleep(left.unwrap_or(Duration::MAX)) => {}
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use serde_json::{Value, json};
    use std::sync::atomic::{AtomicBool, Ordering};

    fn active_for(seconds: i64) -> Arc<Pod> {
        Arc::new(
            serde_json::from_value(json!({
                "spec": {"activeDeadlineSeconds": seconds, "containers": [{"name": "main", "image": "i"}]},
                "status": {"phase": "Pending", "startTime": "2000-01-01T00:00:00Z"},
            }))
            .unwrap(),
        )
    }

    fn with_image(image: &str) -> Arc<Pod> {
        let mut pod = Arc::unwrap_or_clone(active_for(i64::MAX));
        pod.spec.as_mut().unwrap().containers[0].image = Some(image.to_owned());
        Arc::new(pod)
    }

    #[tokio::test]
    async fn work_is_called_off_when_the_pod_is_late_or_gone_or_evicted_or_has_another_image() {
        let (pods, pod) = watch::channel(active_for(i64::MAX));
        let (presences, presence) = watch::channel(PodPresence::Present);
        let (state_changed, evicted) = (Arc::new(Notify::new()), Arc::new(AtomicBool::new(false)));
        let updates = PodUpdates::new(pod, presence);
        let begin = || {
            let evicted = evicted.clone();
            let is_evicted = move || evicted.load(Ordering::Relaxed);
            Box::pin(updates.called_off(Some("i".to_owned()), state_changed.clone(), is_evicted))
        };
        let mut waiting = begin();
        assert_eq!(waiting.as_mut().now_or_never(), None);
        presences.send_replace(PodPresence::Gone);
        waiting.await;
        presences.send_replace(PodPresence::Present);
        let mut waiting = begin();
        assert_eq!(waiting.as_mut().now_or_never(), None);
        pods.send_replace(with_image("j"));
        waiting.await;
        pods.send_replace(with_image("i"));
        let mut waiting = begin();
        assert_eq!(waiting.as_mut().now_or_never(), None);
        state_changed.notify_one();
        assert_eq!(waiting.as_mut().now_or_never(), None, "another file has changed");
        evicted.store(true, Ordering::Relaxed);
        state_changed.notify_one();
        waiting.await;
        evicted.store(false, Ordering::Relaxed);
        let mut waiting = begin();
        assert_eq!(waiting.as_mut().now_or_never(), None);
        pods.send_replace(active_for(60));
        waiting.await;
    }

    #[test]
    fn a_pod_is_confirmed_by_the_api_server() {
        let (_pods, pod) = watch::channel(Arc::default());
        let (presences, presence) = watch::channel(PodPresence::Unconfirmed);
        let mut updates = PodUpdates::new(pod, presence);
        assert!(!updates.is_confirmed && matches!(updates.desired, Desired::Run(_)));
        for (presence, is_gone) in [(PodPresence::Present, false), (PodPresence::Gone, true)] {
            presences.send_replace(presence);
            updates.refresh();
            assert!(updates.is_confirmed);
            assert_eq!(updates.desired == Desired::Gone, is_gone);
        }
    }

    #[tokio::test]
    async fn a_changed_pod_does_not_always_change_the_desired_state() {
        let pod = |value: Value| -> Arc<Pod> { Arc::new(serde_json::from_value(value).unwrap()) };
        let (pods, pod_seen) = watch::channel(pod(json!({})));
        let (presences, presence) = watch::channel(PodPresence::Present);
        let mut updates = PodUpdates::new(pod_seen, presence);
        let otherwise = updates.desired_otherwise();
        tokio::pin!(otherwise);
        assert_eq!(otherwise.as_mut().now_or_never(), None);
        pods.send_replace(pod(json!({"metadata": {"labels": {"a": "b"}}})));
        assert_eq!(otherwise.as_mut().now_or_never(), None, "it is to run, as before");
        pods.send_replace(pod(json!({"metadata": {"deletionTimestamp": "2000-01-01T00:00:00Z"}})));
        otherwise.await;
        updates.refresh();
        let otherwise = updates.desired_otherwise();
        tokio::pin!(otherwise);
        assert_eq!(otherwise.as_mut().now_or_never(), None, "it was to go before");
        presences.send_replace(PodPresence::Gone);
        otherwise.await;
        updates.refresh();
        drop((pods, presences));
        assert_eq!(updates.desired_otherwise().now_or_never(), None);
    }
}
