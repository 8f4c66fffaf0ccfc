//! Probes and their results: the kubelet's `/metrics/probes`.

use std::collections::HashSet;
use std::sync::Mutex;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::{Metrics, lock};

type Labels = Vec<(&'static str, String)>;

/// The container that probes are of.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct ProbedContainer {
    pub(crate) namespace: String,
    pub(crate) pod: String,
    pub(crate) uid: String,
    pub(crate) container: String,
}

/// In a registry of its own: the kubelet serves them at a path of their own.
#[derive(Debug)]
pub(super) struct ProbeMetrics {
    registry: Mutex<Registry>,
    results: Family<Labels, Counter>,
    known: Mutex<HashSet<Labels>>,
}

impl Default for ProbeMetrics {
    fn default() -> Self {
        let (mut registry, results) = (Registry::default(), Family::default());
        let help = "Cumulative number of a liveness, readiness or startup probe for a container by result";
        registry.register("prober_probe", help, Family::clone(&results));
        Self { registry: Mutex::new(registry), results, known: Mutex::default() }
    }
}

impl Metrics {
    /// A probe was made.
    pub(crate) fn probed(&self, container: &ProbedContainer, kind: &str, result: &str) {
        let ProbedContainer { namespace, pod, uid, container } = container;
        let labels = vec![
            ("container", container.clone()),
            ("namespace", namespace.clone()),
            ("pod", pod.clone()),
            ("pod_uid", uid.clone()),
            ("probe_type", kind.to_owned()),
            ("result", result.to_owned()),
        ];
        let probes = &self.0.probes;
        probes.results.get_or_create(&labels).inc();
        lock(&probes.known).insert(labels);
    }

    /// The Pod is gone.
    pub(crate) fn forget_probes(&self, uid: &str) {
        let probes = &self.0.probes;
        lock(&probes.known).retain(|labels| {
            let is_gone = labels.iter().any(|(name, value)| *name == "pod_uid" && value == uid);
            if is_gone {
                probes.results.remove(labels);
            }
            !is_gone
        });
    }

    /// The results of probes, in the format of [`Metrics::text`].
    pub(crate) fn probes_text(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = encode(&mut text, &lock(&self.0.probes.registry));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_are_counted_until_their_pod_is_gone() {
        let metrics = Metrics::new();
        let container = |uid: &str| ProbedContainer {
            namespace: "n".into(),
            pod: "p".into(),
            uid: uid.into(),
            container: "c".into(),
        };
        for uid in ["a", "a", "b"] {
            metrics.probed(&container(uid), "Liveness", "successful");
        }
        let line = |uid: &str, count: u32| {
            format!(
                "prober_probe_total{{container=\"c\",namespace=\"n\",pod=\"p\",pod_uid=\"{uid}\",probe_type=\"Liveness\",result=\"successful\"}} {count}\n"
            )
        };
        let text = metrics.probes_text();
        assert!(text.contains(&line("a", 2)) && text.contains(&line("b", 1)), "{text}");
        metrics.forget_probes("a");
        let text = metrics.probes_text();
        assert!(!text.contains("pod_uid=\"a\"") && text.contains(&line("b", 1)), "{text}");
        assert!(!metrics.text().contains("prober_probe"), "they have a page of their own");
    }
}
