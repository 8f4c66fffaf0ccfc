//! A sample for Prometheus: `/metrics/resource`, which metrics-server reads for `kubectl top`, and `/metrics/cadvisor`. Names and labels
//! are the kubelet's and cAdvisor's.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::sample::{Sample, VmSample};

type Labels = Vec<(&'static str, String)>;

/// Metrics that are made for one answer.
#[derive(Default)]
struct Exposition(Registry);

impl Exposition {
    /// Registers a counter. The text has its name with `_total`.
    fn counter(&mut self, name: &str, help: &str, samples: impl IntoIterator<Item = (Labels, f64)>) {
        let family = Family::<Labels, Counter<f64, AtomicU64>>::default();
        for (labels, value) in samples {
            family.get_or_create(&labels).inc_by(value);
        }
        self.0.register(name, help, family);
    }

    #[expect(clippy::cast_precision_loss, reason = "no host has so many bytes")]
    fn gauge(&mut self, name: &str, help: &str, samples: impl IntoIterator<Item = (Labels, u64)>) {
        let family = Family::<Labels, Gauge<f64, AtomicU64>>::default();
        for (labels, value) in samples {
            family.get_or_create(&labels).set(value as f64);
        }
        self.0.register(name, help, family);
    }

    /// Registers a counter without labels.
    fn total(&mut self, name: &str, help: &str, value: Option<f64>) {
        let counter = Counter::<f64, AtomicU64>::default();
        if let Some(value) = value {
            counter.inc_by(value);
            self.0.register(name, help, counter);
        }
    }

    /// Registers a gauge without labels.
    #[expect(clippy::cast_precision_loss, reason = "no host has so many bytes")]
    fn amount(&mut self, name: &str, help: &str, value: Option<u64>) {
        let gauge = Gauge::<f64, AtomicU64>::default();
        if let Some(value) = value {
            gauge.set(value as f64);
            self.0.register(name, help, gauge);
        }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = encode(&mut text, &self.0);
        text
    }
}

/// `/metrics/resource`.
pub(in crate::api) fn resource(sample: &Sample) -> String {
    let mut all = Exposition::default();
    let node_cpu = sample.node.cpu.map(|cpu| cpu.total.as_secs_f64());
    all.total("node_cpu_usage_seconds", "Cumulative cpu time consumed by the node in core-seconds", node_cpu);
    let node_memory = sample.node.memory.map(|memory| memory.total.saturating_sub(memory.available));
    all.amount("node_memory_working_set_bytes", "Current working set of the node in bytes", node_memory);
    let of = |labels: fn(&VmSample) -> Labels| sample.vms.iter().map(move |vm| (labels(vm), vm));
    all.counter(
        "container_cpu_usage_seconds",
        "Cumulative cpu time consumed by the container in core-seconds",
        of(container_labels).map(|(labels, vm)| (labels, vm.cpu.total.as_secs_f64())),
    );
    all.gauge(
        "container_memory_working_set_bytes",
        "Current working set of the container in bytes",
        of(container_labels).map(|(labels, vm)| (labels, vm.memory)),
    );
    all.gauge(
        "container_start_time_seconds",
        "Start time of the container since unix epoch in seconds",
        of(container_labels).map(|(labels, vm)| (labels, start_time(vm))),
    );
    all.counter(
        "pod_cpu_usage_seconds",
        "Cumulative cpu time consumed by the pod in core-seconds",
        of(pod_labels).map(|(labels, vm)| (labels, vm.cpu.total.as_secs_f64())),
    );
    all.gauge(
        "pod_memory_working_set_bytes",
        "Current working set of the pod in bytes",
        of(pod_labels).map(|(labels, vm)| (labels, vm.memory)),
    );
    let help = "1 if there was an error while getting container metrics, 0 otherwise";
    all.amount("resource_scrape_error", help, Some(0));
    all.text()
}

/// `/metrics/cadvisor`.
pub(in crate::api) fn cadvisor(sample: &Sample, cores: usize) -> String {
    let mut all = Exposition::default();
    let of = |figure: fn(&VmSample) -> Option<u64>| {
        sample.vms.iter().filter_map(move |vm| Some((cadvisor_labels(vm), figure(vm)?)))
    };
    all.counter(
        "container_cpu_usage_seconds",
        "Cumulative cpu time consumed in seconds",
        sample.vms.iter().map(|vm| {
            let mut labels = cadvisor_labels(vm);
            labels.push(("cpu", "total".to_owned()));
            (labels, vm.cpu.total.as_secs_f64())
        }),
    );
    all.gauge("container_memory_usage_bytes", "Current memory usage in bytes", of(|vm| Some(vm.memory)));
    all.gauge("container_memory_rss", "Size of RSS in bytes", of(|vm| Some(vm.memory)));
    all.gauge("container_memory_working_set_bytes", "Current working set in bytes", of(|vm| Some(vm.memory)));
    all.gauge("container_fs_usage_bytes", "Number of bytes consumed on this filesystem", of(|vm| vm.disk));
    all.gauge(
        "container_start_time_seconds",
        "Start time of the container since unix epoch in seconds",
        of(|vm| Some(start_time(vm))),
    );
    let seen = u64::try_from(sample.at.as_second()).unwrap_or_default();
    all.gauge(
        "container_last_seen",
        "Last time a container was seen by the exporter",
        sample.vms.iter().map(|vm| (cadvisor_labels(vm), seen)),
    );
    all.amount("machine_cpu_cores", "Number of logical CPU cores", u64::try_from(cores).ok());
    let memory = sample.node.memory.map(|memory| memory.total);
    all.amount("machine_memory_bytes", "Amount of memory installed on the machine", memory);
    all.text()
}

fn start_time(vm: &VmSample) -> u64 {
    u64::try_from(vm.started_at.as_second()).unwrap_or_default()
}

fn pod_labels(vm: &VmSample) -> Labels {
    vec![("namespace", vm.pod.namespace.clone()), ("pod", vm.pod.name.clone())]
}

fn container_labels(vm: &VmSample) -> Labels {
    let mut labels = vec![("container", vm.container.clone())];
    labels.extend(pod_labels(vm));
    labels
}

fn cadvisor_labels(vm: &VmSample) -> Labels {
    let mut labels = container_labels(vm);
    labels.push(("id", format!("/tart/{}", vm.vm)));
    labels.push(("image", vm.image.clone()));
    labels.push(("name", vm.vm.to_string()));
    labels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resource_metrics_have_the_names_that_metrics_server_reads() {
        let text = resource(&Sample::example());
        for line in [
            "node_cpu_usage_seconds_total 100.0",
            "node_memory_working_set_bytes 5368709120.0",
            "container_cpu_usage_seconds_total{container=\"main\",namespace=\"n\",pod=\"p\"} 7.0",
            "container_memory_working_set_bytes{container=\"main\",namespace=\"n\",pod=\"p\"} 1048576.0",
            "container_start_time_seconds{container=\"main\",namespace=\"n\",pod=\"p\"} 1794816000.0",
            "pod_cpu_usage_seconds_total{namespace=\"n\",pod=\"p\"} 7.0",
            "pod_memory_working_set_bytes{namespace=\"n\",pod=\"p\"} 1048576.0",
        ] {
            assert!(text.contains(&format!("\n{line}\n")), "{line} in\n{text}");
        }
    }

    #[test]
    fn cadvisor_metrics_name_vm_and_image() {
        let text = cadvisor(&Sample::example(), 8);
        let labels = "container=\"main\",namespace=\"n\",pod=\"p\",id=\"/tart/tk-0b1c-0\",image=\"registry.test/macos:15\",name=\"tk-0b1c-0\"";
        for line in [
            &format!("container_cpu_usage_seconds_total{{{labels},cpu=\"total\"}} 7.0"),
            &format!("container_fs_usage_bytes{{{labels}}} 30.0"),
            "machine_cpu_cores 8.0",
        ] {
            assert!(text.contains(&format!("\n{line}\n")), "{line} in\n{text}");
        }
    }
}
