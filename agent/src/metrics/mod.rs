//! What the agent counts for Prometheus. A lower layer than what it counts: callers pass plain values.
//!
//! Each file holds the metrics of one subject, with the methods that record them.

/// Declares the metrics of one subject. Each stands beside its first value, its name and the help of its name; a field without a name is
/// no metric.
macro_rules! metrics {
    ($vis:vis struct $group:ident {
        $($(#[$doc:meta])* $field:ident: $type:ty = $value:expr $(, $name:literal, $help:literal)?;)+
    }) => {
        #[derive(Debug)]
        $vis struct $group { $($(#[$doc])* $field: $type),+ }

        impl Default for $group {
            fn default() -> Self {
                Self { $($field: $value),+ }
            }
        }

        impl $group {
            $vis fn register(&self, registry: &mut prometheus_client::registry::Registry) {
                $($(registry.register($name, $help, self.$field.clone());)?)+
            }
        }
    };
}

mod api_calls;
mod images;
mod node;
mod pods;
mod probes;
mod vm_gc;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use api_calls::ApiCallMetrics;
use images::{ImageGcMetrics, ImagePullMetrics};
use node::NodeMetrics;
use pods::PodMetrics;
use probes::ProbeMetrics;
pub(crate) use probes::ProbedContainer;
use vm_gc::VmGcMetrics;

use crate::mutex::lock;

/// The format of [`Metrics::text`]: the only text format that the crate writes. Prometheus goes by this header.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The label of a sample that has one.
type Label<V = &'static str> = [(&'static str, V); 1];

/// Counters that are 0, and not absent, before the first event: Prometheus sees an increase only from a value that it has scraped.
fn zero(label: &'static str, values: &[&'static str]) -> Family<Label, Counter> {
    let counters = Family::<Label, Counter>::default();
    for value in values {
        drop(counters.get_or_create(&[(label, *value)]));
    }
    counters
}

/// All metrics of one agent; clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Metrics(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    registry: Mutex<Registry>,
    node: NodeMetrics,
    pods: PodMetrics,
    probes: ProbeMetrics,
    image_pulls: ImagePullMetrics,
    image_gc: ImageGcMetrics,
    vm_gc: VmGcMetrics,
    api_calls: ApiCallMetrics,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let metrics = Arc::<Inner>::default();
        let mut registry = lock(&metrics.registry);
        metrics.node.register(&mut registry);
        metrics.pods.register(&mut registry);
        metrics.image_pulls.register(&mut registry);
        metrics.api_calls.register(&mut registry);
        drop(registry);
        // Those of the collectors are registered later: a host without a collector serves no metrics of one.
        Self(metrics)
    }

    /// All metrics in the format that [`CONTENT_TYPE`] names.
    pub(crate) fn text(&self) -> String {
        self.0.node.update_heartbeat_age();
        self.0.pods.update_waiting();
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = encode(&mut text, &lock(&self.0.registry));
        text
    }
}

fn histogram(buckets: &[f64]) -> Histogram {
    Histogram::new(buckets.iter().copied())
}

fn observe(histogram: &Histogram, took: Duration) {
    histogram.observe(took.as_secs_f64());
}

fn count(number: usize) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn assert_lines(metrics: &Metrics, lines: &[&str]) {
        let text = metrics.text();
        for line in lines {
            assert!(text.contains(&format!("\n{line}\n")), "{line} in\n{text}");
        }
    }

    #[test]
    fn what_is_shown_as_an_increase_is_zero_at_the_start() {
        let stages = ["pull", "clone", "configure", "boot", "command"];
        let mut lines = stages
            .map(|stage| format!("tart_kubelet_start_stage_duration_seconds_count{{stage=\"{stage}\"}} 0"))
            .to_vec();
        lines.push("tart_kubelet_image_pulls_total{result=\"success\"} 0".to_owned());
        assert_lines(&Metrics::new(), &lines.iter().map(String::as_str).collect::<Vec<_>>());
    }

    #[test]
    fn text_is_open_metrics_with_escaped_labels() {
        let metrics = Metrics::new();
        metrics.failed("c\"d\\e\nf");
        assert_lines(
            &metrics,
            &[
                "# HELP tart_kubelet_failures Failures of Pods, containers and images by the reason that their status shows.",
                "# TYPE tart_kubelet_failures counter",
                "tart_kubelet_failures_total{reason=\"c\\\"d\\\\e\\nf\"} 1",
            ],
        );
        assert!(metrics.text().ends_with("\n# EOF\n"));
    }

    #[test]
    fn a_duration_counts_in_every_bucket_that_it_fits() {
        let metrics = Metrics::new();
        for millis in [500, 501, 3_700_000] {
            metrics.pull_ended("success", Duration::from_millis(millis));
        }
        assert_lines(
            &metrics,
            &[
                "tart_kubelet_image_pull_duration_seconds_bucket{le=\"0.1\"} 0",
                "tart_kubelet_image_pull_duration_seconds_bucket{le=\"0.5\"} 1",
                "tart_kubelet_image_pull_duration_seconds_bucket{le=\"1.0\"} 2",
                "tart_kubelet_image_pull_duration_seconds_bucket{le=\"+Inf\"} 3",
                "tart_kubelet_image_pull_duration_seconds_sum 3701.001",
                "tart_kubelet_image_pull_duration_seconds_count 3",
            ],
        );
    }

    #[test]
    fn a_collector_that_never_ran_has_no_metrics() {
        let metrics = Metrics::new();
        metrics.image_deleted(1);
        assert!(!metrics.text().contains("_gc_"), "{}", metrics.text());
        metrics.images_collected(Duration::ZERO, true);
        assert!(metrics.text().contains("tart_kubelet_image_gc_deleted_total 1\n"), "{}", metrics.text());
        assert!(!metrics.text().contains("_vm_gc_"), "{}", metrics.text());
    }
}
