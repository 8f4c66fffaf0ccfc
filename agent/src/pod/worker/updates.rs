//! A Pod as the API server last showed it to the manager, for the Pod's worker.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use tokio::sync::{Notify, watch};
use tokio::time::sleep;

use crate::pod::admission::read;
use crate::pod::sync::decide::Desired;
use crate::pod::sync::desired::{deadline, desired, desired_otherwise};

/// The updates of one Pod, and the last one that its worker has taken in.
#[derive(Debug)]
pub(crate) struct PodUpdates {
    pods: watch::Receiver<Arc<Pod>>,
    /// Whether the API server no longer has the Pod.
    gone: watch::Receiver<bool>,
    pod: Arc<Pod>,
    desired: Desired,
}

impl PodUpdates {
    pub(crate) fn new(pods: watch::Receiver<Arc<Pod>>, gone: watch::Receiver<bool>) -> Self {
        let pod = pods.borrow().clone();
        let desired = desired(&pod, *gone.borrow());
        Self { pods, gone, pod, desired }
    }

    /// Takes in the last update. Later ones end [`changed`](Self::changed).
    pub(super) fn refresh(&mut self) {
        let gone = *self.gone.borrow_and_update();
        self.pod = self.pods.borrow_and_update().clone();
        self.desired = desired(&self.pod, gone);
    }

    pub(super) fn pod(&self) -> Arc<Pod> {
        self.pod.clone()
    }

    pub(super) fn desired(&self) -> Desired {
        self.desired
    }

    pub(super) fn pods(&self) -> watch::Receiver<Arc<Pod>> {
        self.pods.clone()
    }

    /// Waits for the next update. Safe to cancel.
    pub(super) async fn changed(&mut self) {
        tokio::select! {
            Ok(()) = self.pods.changed() => {}
            Ok(()) = self.gone.changed() => {}
            // The manager has ended, and the agent ends with it.
            else => pending().await,
        }
    }

    /// Waits until something else is desired of the Pod than when the worker last took in an update.
    pub(super) fn desired_otherwise(&self) -> impl Future<Output = ()> + Send + use<> {
        desired_otherwise(self.desired, self.pods.clone(), self.gone.clone())
    }

    /// Waits until the Pod is not to run any more, not for longer, or not with this image. The eviction manager and the worker evict
    /// with a file, which wakes `state_changed`.
    pub(super) fn called_off<F: Fn() -> bool + Send>(
        &self,
        image: String,
        state_changed: Arc<Notify>,
        is_evicted: F,
    ) -> impl Future<Output = ()> + Send + use<F> {
        called_off(self.pods.clone(), self.gone.clone(), image, state_changed, is_evicted)
    }
}

async fn called_off(
    mut pods: watch::Receiver<Arc<Pod>>,
    mut gone: watch::Receiver<bool>,
    image: String,
    state_changed: Arc<Notify>,
    is_evicted: impl Fn() -> bool,
) {
    loop {
        let deadline = deadline(&pods.borrow_and_update());
        let has_changed = read(&pods.borrow()).is_ok_and(|plan| plan.image != image);
        let is_desired = matches!(desired(&pods.borrow(), *gone.borrow_and_update()), Desired::Run(_));
        let left = deadline.map(|deadline| {
            Duration::try_from(deadline.at.duration_since(Timestamp::now())).unwrap_or(Duration::ZERO)
        });
        if !is_desired || has_changed || left == Some(Duration::ZERO) || is_evicted() {
            return;
        }
        tokio::select! {
            () = state_changed.notified() => {}
            Ok(()) = pods.changed() => {}
            Ok(()) = gone.changed() => {}
            () = sleep(left.unwrap_or(Duration::MAX)) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
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
        let (gones, gone) = watch::channel(false);
        let (state_changed, evicted) = (Arc::new(Notify::new()), Arc::new(AtomicBool::new(false)));
        let begin = || {
            let evicted = evicted.clone();
            let is_evicted = move || evicted.load(Ordering::Relaxed);
            tokio::spawn(called_off(
                pod.clone(),
                gone.clone(),
                "i".to_owned(),
                state_changed.clone(),
                is_evicted,
            ))
        };
        let waiting = begin();
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        gones.send_replace(true);
        waiting.await.unwrap();
        gones.send_replace(false);
        let waiting = begin();
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        pods.send_replace(with_image("j"));
        waiting.await.unwrap();
        pods.send_replace(with_image("i"));
        let waiting = begin();
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        state_changed.notify_one();
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished(), "another file has changed");
        evicted.store(true, Ordering::Relaxed);
        state_changed.notify_one();
        waiting.await.unwrap();
        evicted.store(false, Ordering::Relaxed);
        let waiting = begin();
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        pods.send_replace(active_for(60));
        waiting.await.unwrap();
    }
}
