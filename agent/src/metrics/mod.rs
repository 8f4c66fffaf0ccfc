//! What the agent tells about itself on a port of the host: whether it is well, and figures for Prometheus.

pub(crate) mod exposition;
pub(crate) mod histogram;
mod images;
mod pods;
mod vm_collection;

pub(crate) use crate::api::local::serve;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use kube::Client;
use tokio::sync::watch;

use crate::apiserver::call_metrics::{ApiCalls, CountCalls};
use crate::identity::ApiAccess;
use crate::image::gc::ImageVerdict;
use crate::names::ImageDigest;
use crate::names::PodUid;
use crate::node::conditions::conditions;
use crate::node::health::NodeHealth;
use crate::node::lease;
use crate::os::availability::Availability;
use exposition::Page;
use images::ImageFigures;
use pods::PodFigures;
use vm_collection::VmCollection;

/// The heartbeat looks at the clock at least every ten seconds; one that has not for this long is stuck.
const STUCK: Duration = Duration::from_mins(1);

/// All figures; clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Metrics(Arc<Figures>);

#[derive(Debug)]
struct Figures {
    started: Instant,
    health: watch::Receiver<Option<NodeHealth>>,
    calls: Arc<Mutex<ApiCalls>>,
    heart: Mutex<HeartFigures>,
    waiting: Mutex<HashMap<PodUid, Timestamp>>,
    pods: Mutex<PodFigures>,
    images: Mutex<ImageFigures>,
    /// Addresses for VMs, where it is known how many there are.
    addresses: Mutex<Option<Availability>>,
    /// Absent on a host where VMs are not collected.
    vm_collection: Mutex<Option<VmCollection>>,
}

#[derive(Debug, Default, Clone, Copy)]
struct HeartFigures {
    awake: Option<Instant>,
    renewed: Option<Instant>,
}

/// One thing that must hold, and why it does not.
pub(crate) type Check = (&'static str, Result<(), String>);

impl Metrics {
    /// Figures that are all zero.
    pub(crate) fn new(health: watch::Receiver<Option<NodeHealth>>) -> Self {
        Self(Arc::new(Figures {
            started: Instant::now(),
            health,
            calls: Arc::default(),
            heart: Mutex::default(),
            waiting: Mutex::default(),
            pods: Mutex::default(),
            images: Mutex::default(),
            addresses: Mutex::default(),
            vm_collection: Mutex::default(),
        }))
    }

    /// A client of the API server whose calls are counted.
    pub(crate) fn client(&self, access: &ApiAccess) -> Result<Client, kube::Error> {
        access.client(&CountCalls::new(self.0.calls.clone()))
    }

    /// The heartbeat is at work.
    pub(crate) fn heart_is_awake(&self) {
        lock(&self.0.heart).awake = Some(Instant::now());
    }

    /// The Lease was renewed.
    pub(crate) fn lease_renewed(&self) {
        lock(&self.0.heart).renewed = Some(Instant::now());
    }

    /// A Pod waits for its VM since a time, or does no longer.
    pub(crate) fn pod_waits(&self, pod: &PodUid, since: Option<Timestamp>) {
        let mut waiting = lock(&self.0.waiting);
        match since {
            Some(since) => {
                waiting.entry(pod.clone()).or_insert(since);
            }
            None => drop(waiting.remove(pod)),
        }
    }

    /// A stage of a VM's start is over.
    pub(crate) fn stage_took(&self, stage: &'static str, took: Duration) {
        lock(&self.0.pods).stage(stage, took);
    }

    /// The pull of an image is over.
    pub(crate) fn pull_ended(&self, result: &'static str, took: Duration) {
        lock(&self.0.pods).pull(result, took);
    }

    /// A container is started again.
    pub(crate) fn container_restarts(&self) {
        lock(&self.0.pods).restart();
    }

    /// A Pod, its container or its image has failed, for a reason that its status shows.
    pub(crate) fn failed(&self, reason: &str) {
        lock(&self.0.pods).failure(reason);
    }

    /// The images were looked at, and those that had to go are gone, or not.
    pub(crate) fn images_collected(&self, took: Duration, succeeded: bool) {
        lock(&self.0.images).pass(took, succeeded, Timestamp::now());
    }

    /// An image was deleted, and so many bytes more are free.
    pub(crate) fn image_deleted(&self, freed: u64) {
        lock(&self.0.images).deleted(freed);
    }

    /// What was kept of images that are not whole is gone, and so many bytes more are free.
    pub(crate) fn partials_deleted(&self, freed: u64) {
        lock(&self.0.images).partials_deleted(freed);
    }

    /// What becomes of each image; so many others are somebody else's.
    pub(crate) fn images_judged(&self, verdicts: &[(ImageDigest, ImageVerdict)], foreign: usize) {
        lock(&self.0.images).judged(verdicts, foreign);
    }

    /// So many addresses for VMs are left.
    pub(crate) fn addresses(&self, left: Option<Availability>) {
        *lock(&self.0.addresses) = left;
    }

    /// VMs are collected on this host.
    pub(crate) fn collects_vms(&self) {
        lock(&self.0.vm_collection).get_or_insert_default();
    }

    /// A look for VMs to collect is over; `kept` has a word for each that was kept.
    pub(crate) fn vms_judged(&self, success: bool, took: Duration, kept: impl Iterator<Item = &'static str>) {
        lock(&self.0.vm_collection).get_or_insert_default().pass(success, took, kept, Timestamp::now());
    }

    /// A VM, or what a Pod had left, was collected, and so many more bytes are free.
    pub(crate) fn collected(&self, kind: &'static str, freed: u64) {
        lock(&self.0.vm_collection).get_or_insert_default().deleted(kind, freed);
    }

    /// Whether the process is to be left alone: only what a restart could cure counts.
    pub(crate) fn alive(&self) -> Vec<Check> {
        let heart = *lock(&self.0.heart);
        let stuck = heart.awake.map(|at| at.elapsed()).filter(|age| *age > STUCK);
        let loop_ =
            stuck.map_or(Ok(()), |age| Err(format!("has not looked at the clock for {} s", age.as_secs())));
        vec![("heartbeat-loop", loop_)]
    }

    /// Whether the Node is alive in the cluster's eyes, and VMs can start on it.
    pub(crate) fn ready(&self) -> Vec<Check> {
        let heart = *lock(&self.0.heart);
        let renewed = match heart.renewed {
            None => Err("the Node's Lease was not renewed yet".to_owned()),
            Some(at) if at.elapsed() > lease::DURATION => {
                Err(format!("the Node's Lease was last renewed {} s ago", at.elapsed().as_secs()))
            }
            Some(_) => Ok(()),
        };
        let health = self.0.health.borrow().clone();
        let vms = match health.map(|health| health.problem) {
            None => Err("tart has not answered yet".to_owned()),
            Some(Some(problem)) => Err(format!("{}: {}", problem.reason, problem.message)),
            Some(None) => Ok(()),
        };
        let mut checks = self.alive();
        checks.extend([("heartbeat", renewed), ("vms", vms)]);
        checks
    }

    /// The figures as Prometheus reads them.
    pub(crate) fn page(&self) -> String {
        let figures = &self.0;
        let mut page = Page::default();
        page.family("tart_kubelet_build_info", "gauge", "The version of the agent.");
        page.sample("tart_kubelet_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1.0);
        let heart = *lock(&figures.heart);
        let age = heart.renewed.unwrap_or(figures.started).elapsed();
        page.family(
            "tart_kubelet_heartbeat_age_seconds",
            "gauge",
            "Time since the Node's Lease was last renewed, or since the start.",
        );
        page.sample("tart_kubelet_heartbeat_age_seconds", &[], age.as_secs_f64());
        self.conditions(&mut page);
        let waiting = lock(&figures.waiting).clone();
        page.family(
            "tart_kubelet_pods_waiting",
            "gauge",
            "Pods that were accepted and have no running VM yet.",
        );
        page.sample("tart_kubelet_pods_waiting", &[], exposition::number(waiting.len()));
        let now = Timestamp::now();
        let oldest = waiting.values().min().map_or(0.0, |since| now.duration_since(*since).as_secs_f64());
        page.family(
            "tart_kubelet_oldest_waiting_pod_age_seconds",
            "gauge",
            "How long the first of them has waited.",
        );
        page.sample("tart_kubelet_oldest_waiting_pod_age_seconds", &[], oldest.max(0.0));
        lock(&figures.pods).write(&mut page);
        lock(&figures.images).write(&mut page);
        if let Some(addresses) = *lock(&figures.addresses) {
            let name = "tart_kubelet_dhcp_addresses";
            page.family(name, "gauge", "Addresses that macOS has for VMs: those that can be lent, and all.");
            for (state, count) in [("available", addresses.available), ("total", addresses.total)] {
                page.sample(
                    name,
                    &[("state", state)],
                    exposition::number(count.try_into().unwrap_or(usize::MAX)),
                );
            }
        }
        if let Some(figures) = lock(&figures.vm_collection).as_ref() {
            figures.write(&mut page);
        }
        lock(&figures.calls).write(&mut page);
        page.text()
    }

    fn conditions(&self, page: &mut Page) {
        let name = "tart_kubelet_node_condition";
        page.family(name, "gauge", "The Node's conditions as the agent says them.");
        let health = self.0.health.borrow().clone();
        for condition in health.iter().flat_map(|health| conditions(health, None, Timestamp::now())) {
            for status in ["True", "False"] {
                let labels = [("condition", condition.type_.as_str()), ("status", status)];
                page.sample(name, &labels, f64::from(u8::from(condition.status == status)));
            }
        }
    }
}

/// What was being written when a thread died is still a figure.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::health::HealthProblem;

    fn failing(checks: Vec<Check>) -> Vec<&'static str> {
        checks.into_iter().filter(|(_, check)| check.is_err()).map(|(name, _)| name).collect()
    }

    #[test]
    fn readiness_names_what_is_missing() {
        let (health, seen) = watch::channel(None);
        let metrics = Metrics::new(seen);
        assert_eq!(failing(metrics.alive()), Vec::<&str>::new());
        assert_eq!(failing(metrics.ready()), ["heartbeat", "vms"]);
        metrics.lease_renewed();
        health.send_replace(Some(NodeHealth::default()));
        assert_eq!(failing(metrics.ready()), Vec::<&str>::new());
        let problem = HealthProblem { reason: "TartMissing", message: "no tart".into() };
        health.send_replace(Some(NodeHealth { problem: Some(problem), ..NodeHealth::default() }));
        assert_eq!(failing(metrics.ready()), ["vms"]);
        let page = metrics.page();
        for line in [
            "tart_kubelet_node_condition{condition=\"Ready\",status=\"False\"} 1\n",
            "tart_kubelet_node_condition{condition=\"Ready\",status=\"True\"} 0\n",
            "tart_kubelet_pods_waiting 0\n",
        ] {
            assert!(page.contains(line), "{page}");
        }
    }

    #[test]
    fn a_pod_waits_since_it_was_first_told() {
        let (_health, seen) = watch::channel(None);
        let metrics = Metrics::new(seen);
        let pod: PodUid = "0b1c".parse().unwrap();
        metrics.pod_waits(&pod, Some(Timestamp::UNIX_EPOCH));
        metrics.pod_waits(&pod, Some(Timestamp::now()));
        assert_eq!(lock(&metrics.0.waiting)[&pod], Timestamp::UNIX_EPOCH);
        assert!(metrics.page().contains("tart_kubelet_pods_waiting 1\n"));
        metrics.pod_waits(&pod, None);
        assert!(metrics.page().contains("tart_kubelet_oldest_waiting_pod_age_seconds 0\n"));
    }
}
