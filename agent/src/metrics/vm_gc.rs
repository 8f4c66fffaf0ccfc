//! What the collector of orphan VMs does.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, Once};
use std::time::Duration;

use jiff::Timestamp;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

use super::{Label, Metrics, histogram, observe, zero};
use crate::mutex::lock;

const BUCKETS: [f64; 7] = [0.1, 0.5, 1.0, 5.0, 30.0, 120.0, 600.0];

metrics! {
    pub(super) struct VmGcMetrics {
        registered: Once = Once::new();
        passes: Family<Label, Counter> = zero("result", &["success", "failure"]),
            "tart_kubelet_vm_gc_passes", "Searches for orphan VMs; a failed one may have deleted some";
        durations: Histogram = histogram(&BUCKETS),
            "tart_kubelet_vm_gc_duration_seconds", "Time that such a look took, with all deletions";
        last_success: Gauge<f64, AtomicU64> = Gauge::default(),
            "tart_kubelet_vm_gc_last_success_timestamp_seconds", "When the last one succeeded; 0 before the first";
        deleted: Family<Label, Counter> = zero("kind", &["vm", "base", "state"]),
            "tart_kubelet_vm_gc_deleted",
            "What was deleted: VMs, base VMs that were in no record, and state of Pods that are gone";
        freed: Counter = Counter::default(),
            "tart_kubelet_vm_gc_freed_bytes", "How much more was free after each deletion than before it";
        kept: Family<Label, Gauge> = Family::default(),
            "tart_kubelet_vm_gc_kept", "What the last look found and kept, by what protects it";
        /// All reasons that were ever served: one that no longer holds is 0, not absent.
        reasons: Mutex<BTreeMap<&'static str, i64>> = Mutex::default();
    }
}

impl VmGcMetrics {
    fn pass(&self, success: bool, took: Duration, kept: impl Iterator<Item = &'static str>, now: Timestamp) {
        let result = if success { "success" } else { "failure" };
        self.passes.get_or_create(&[("result", result)]).inc();
        observe(&self.durations, took);
        if success {
            self.last_success.set(now.as_duration().as_secs_f64());
        }
        let mut reasons = lock(&self.reasons);
        reasons.values_mut().for_each(|count| *count = 0);
        kept.for_each(|reason| *reasons.entry(reason).or_default() += 1);
        for (reason, count) in &*reasons {
            self.kept.get_or_create(&[("reason", *reason)]).set(*count);
        }
    }
}

impl Metrics {
    /// This agent collects orphan VMs: their metrics are served from now on.
    pub(crate) fn collects_vms(&self) {
        let gc = &self.0.vm_gc;
        gc.registered.call_once(|| gc.register(&mut lock(&self.0.registry)));
    }

    /// A search for orphan VMs is over; `kept` has a reason for each thing that it kept.
    pub(crate) fn vms_judged(&self, success: bool, took: Duration, kept: impl Iterator<Item = &'static str>) {
        self.0.vm_gc.pass(success, took, kept, Timestamp::now());
    }

    /// The agent deleted an orphan VM or the state of a Pod that is gone.
    pub(crate) fn collected(&self, kind: &'static str, freed: u64) {
        self.0.vm_gc.deleted.get_or_create(&[("kind", kind)]).inc();
        self.0.vm_gc.freed.inc_by(freed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::tests::assert_lines;
    use crate::testing::at;

    #[test]
    fn passes_are_counted_and_a_reason_that_ends_is_zero() {
        let metrics = Metrics::new();
        metrics.collects_vms();
        metrics.collects_vms();
        let gc = &metrics.0.vm_gc;
        gc.pass(true, Duration::from_millis(50), ["pod", "pod", "age"].into_iter(), at(7));
        gc.pass(false, Duration::from_secs(2), ["pod"].into_iter(), at(9));
        metrics.collected("vm", 3);
        assert_lines(
            &metrics,
            &[
                "tart_kubelet_vm_gc_passes_total{result=\"failure\"} 1",
                "tart_kubelet_vm_gc_passes_total{result=\"success\"} 1",
                "tart_kubelet_vm_gc_duration_seconds_count 2",
                "tart_kubelet_vm_gc_last_success_timestamp_seconds 7.0",
                "tart_kubelet_vm_gc_deleted_total{kind=\"vm\"} 1",
                "tart_kubelet_vm_gc_deleted_total{kind=\"state\"} 0",
                "tart_kubelet_vm_gc_freed_bytes_total 3",
                "tart_kubelet_vm_gc_kept{reason=\"age\"} 0",
                "tart_kubelet_vm_gc_kept{reason=\"pod\"} 1",
            ],
        );
    }
}
