//! Images: pulls, and what image garbage collection deletes and keeps.

use std::sync::Once;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use jiff::Timestamp;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

use super::pods::START_BUCKETS;
use super::{Label, Metrics, count, histogram, observe, zero};
use crate::mutex::lock;

const GC_BUCKETS: [f64; 8] = [0.01, 0.1, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0];

metrics! {
    pub(super) struct ImagePullMetrics {
        pulls: Family<Label, Counter> = zero("result", &["success"]),
            "tart_kubelet_image_pulls", "Pulls of images by how they ended: success, or the reason why not";
        durations: Histogram = histogram(&START_BUCKETS),
            "tart_kubelet_image_pull_duration_seconds", "Time that pulls of images took, whatever their end";
    }
}

metrics! {
    pub(super) struct ImageGcMetrics {
        registered: Once = Once::new();
        passes: Histogram = histogram(&GC_BUCKETS),
            "tart_kubelet_image_gc_pass_duration_seconds",
            "Time that looks at the images took, with the deletions that followed";
        failures: Counter = Counter::default(),
            "tart_kubelet_image_gc_failures",
            "Looks at the images that failed, or after which one could not be deleted";
        last_success: Gauge<f64, AtomicU64> = Gauge::default(),
            "tart_kubelet_image_gc_last_success_timestamp_seconds",
            "When the images were last looked at without a failure; 0 for never";
        deleted: Counter = Counter::default(),
            "tart_kubelet_image_gc_deleted", "Images that were deleted to make room";
        freed: Counter = Counter::default(),
            "tart_kubelet_image_gc_freed_bytes",
            "What the volume had more of right after these deletions, and after those of what was kept of unfinished pulls";
        kept: Family<Label, Gauge> = Family::default(),
            "tart_kubelet_image_gc_kept",
            "Images that the last look kept, by reason; `foreign` are those that the agent has not pulled";
    }
}

impl Metrics {
    pub(crate) fn pull_ended(&self, result: &'static str, took: Duration) {
        self.0.image_pulls.pulls.get_or_create(&[("result", result)]).inc();
        observe(&self.0.image_pulls.durations, took);
    }

    pub(crate) fn images_collected(&self, took: Duration, succeeded: bool) {
        let gc = &self.0.image_gc;
        observe(&gc.passes, took);
        if succeeded {
            gc.last_success.set(Timestamp::now().as_duration().as_secs_f64());
        } else {
            gc.failures.inc();
        }
        gc.registered.call_once(|| gc.register(&mut lock(&self.0.registry)));
    }

    pub(crate) fn image_deleted(&self, freed: u64) {
        self.0.image_gc.deleted.inc();
        self.0.image_gc.freed.inc_by(freed);
    }

    pub(crate) fn partials_deleted(&self, freed: u64) {
        self.0.image_gc.freed.inc_by(freed);
    }

    /// How many images a pass keeps, for every reason that there is.
    pub(crate) fn images_kept(&self, reasons: impl IntoIterator<Item = (&'static str, usize)>) {
        for (reason, number) in reasons {
            self.0.image_gc.kept.get_or_create(&[("reason", reason)]).set(count(number));
        }
    }
}
