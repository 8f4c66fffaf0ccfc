//! Pods: how long their VMs take to start, how many wait, how they fail.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use jiff::Timestamp;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

use super::{Label, Metrics, count, histogram, observe};
use crate::mutex::lock;
use crate::names::PodUid;

/// In seconds, from a clone on APFS to the pull of a large image over a slow line.
pub(super) const START_BUCKETS: [f64; 12] =
    [0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0];

metrics! {
    pub(super) struct PodMetrics {
        waiting_since: Mutex<HashMap<PodUid, Timestamp>> = Mutex::default();
        waiting: Gauge = Gauge::default(),
            "tart_kubelet_pods_waiting", "Pods that were accepted and have no running VM yet";
        oldest_waiting: Gauge<f64, AtomicU64> = Gauge::default(),
            "tart_kubelet_oldest_waiting_pod_age_seconds", "How long the first of them has waited";
        stages: Family<Label, Histogram, fn() -> Histogram> = stages(),
            "tart_kubelet_start_stage_duration_seconds",
            "Time that the stages of a VM's start took: pull, clone, configure, boot, command";
        restarts: Counter = Counter::default(),
            "tart_kubelet_container_restarts", "Containers that were started again";
        failures: Family<Label<String>, Counter> = Family::default(),
            "tart_kubelet_failures", "Failures of Pods, containers and images by the reason that their status shows";
    }
}

/// A histogram for each stage, also before the first VM starts: Prometheus sees an increase only from a value that it has scraped.
fn stages() -> Family<Label, Histogram, fn() -> Histogram> {
    let stages =
        Family::<Label, Histogram, fn() -> Histogram>::new_with_constructor(|| histogram(&START_BUCKETS));
    for stage in ["pull", "clone", "configure", "boot", "command"] {
        drop(stages.get_or_create(&[("stage", stage)]));
    }
    stages
}

impl PodMetrics {
    pub(super) fn update_waiting(&self) {
        let waiting = lock(&self.waiting_since);
        let oldest = waiting.values().min().map(|since| Timestamp::now().duration_since(*since));
        self.waiting.set(count(waiting.len()));
        self.oldest_waiting.set(oldest.map_or(0.0, |age| age.as_secs_f64()).max(0.0));
    }
}

impl Metrics {
    /// A Pod has waited for its VM since this time; `None` once it no longer waits.
    pub(crate) fn pod_waits(&self, pod: &PodUid, since: Option<Timestamp>) {
        let mut waiting = lock(&self.0.pods.waiting_since);
        match since {
            Some(since) => {
                waiting.entry(pod.clone()).or_insert(since);
            }
            None => drop(waiting.remove(pod)),
        }
    }

    pub(crate) fn stage_took(&self, stage: &'static str, took: Duration) {
        observe(&self.0.pods.stages.get_or_create(&[("stage", stage)]), took);
    }

    pub(crate) fn container_restarts(&self) {
        self.0.pods.restarts.inc();
    }

    /// A Pod, its container or its image has failed, for a reason that its status shows.
    pub(crate) fn failed(&self, reason: &str) {
        self.0.pods.failures.get_or_create(&[("reason", reason.to_owned())]).inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::tests::assert_lines;

    #[test]
    fn a_pod_waits_since_the_first_time_that_was_given() {
        let metrics = Metrics::new();
        let pod: PodUid = "0b1c".parse().unwrap();
        metrics.pod_waits(&pod, Some(Timestamp::UNIX_EPOCH));
        metrics.pod_waits(&pod, Some(Timestamp::now()));
        assert_eq!(lock(&metrics.0.pods.waiting_since)[&pod], Timestamp::UNIX_EPOCH);
        assert_lines(&metrics, &["tart_kubelet_pods_waiting 1"]);
        metrics.pod_waits(&pod, None);
        assert_lines(
            &metrics,
            &["tart_kubelet_pods_waiting 0", "tart_kubelet_oldest_waiting_pod_age_seconds 0.0"],
        );
    }
}
