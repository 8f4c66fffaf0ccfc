//! What becomes of the images on this host.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use super::exposition::{Page, bytes, number};
use super::histogram::Histogram;
use crate::image::gc::{ImageVerdict, ImageVerdictReason};
use crate::names::ImageDigest;

const ENDS: [Duration; 8] = [
    Duration::from_millis(10),
    Duration::from_millis(100),
    Duration::from_secs(1),
    Duration::from_secs(5),
    Duration::from_secs(10),
    Duration::from_secs(30),
    Duration::from_mins(1),
    Duration::from_mins(5),
];

#[derive(Debug)]
pub(super) struct ImageFigures {
    passes: Histogram,
    failures: usize,
    last_success: Option<Timestamp>,
    deleted: usize,
    freed: u64,
    kept: BTreeMap<ImageVerdictReason, usize>,
    foreign: usize,
}

impl Default for ImageFigures {
    fn default() -> Self {
        Self {
            passes: Histogram::new(&ENDS),
            failures: 0,
            last_success: None,
            deleted: 0,
            freed: 0,
            kept: BTreeMap::new(),
            foreign: 0,
        }
    }
}

impl ImageFigures {
    pub(super) fn pass(&mut self, took: Duration, succeeded: bool, now: Timestamp) {
        self.passes.add(took);
        if succeeded {
            self.last_success = Some(now);
        } else {
            self.failures += 1;
        }
    }

    pub(super) fn deleted(&mut self, freed: u64) {
        self.deleted += 1;
        self.freed = self.freed.saturating_add(freed);
    }

    /// What was kept of images that are not whole is gone.
    pub(super) fn partials_deleted(&mut self, freed: u64) {
        self.freed = self.freed.saturating_add(freed);
    }

    pub(super) fn judged(&mut self, verdicts: &[(ImageDigest, ImageVerdict)], foreign: usize) {
        self.foreign = foreign;
        self.kept.clear();
        for (_, verdict) in verdicts {
            if let ImageVerdict::Keep(reason) = verdict {
                *self.kept.entry(*reason).or_default() += 1;
            }
        }
    }

    /// Nothing is written before the first pass: a host without a collector has no figures of one.
    pub(super) fn write(&self, page: &mut Page) {
        if self.last_success.is_none() && self.failures == 0 {
            return;
        }
        let name = "tart_kubelet_image_gc_pass_duration_seconds";
        page.family(
            name,
            "histogram",
            "Time that looks at the images took, with the deletions that followed.",
        );
        self.passes.write(page, name, &[]);
        let name = "tart_kubelet_image_gc_failures_total";
        page.family(
            name,
            "counter",
            "Looks at the images that failed, or after which one could not be deleted.",
        );
        page.sample(name, &[], number(self.failures));
        let name = "tart_kubelet_image_gc_last_success_timestamp_seconds";
        page.family(name, "gauge", "When the images were last looked at without a failure; 0 for never.");
        page.sample(name, &[], self.last_success.map_or(0.0, |at| at.as_duration().as_secs_f64()));
        let name = "tart_kubelet_image_gc_deleted_total";
        page.family(name, "counter", "Images that were deleted to make room.");
        page.sample(name, &[], number(self.deleted));
        let name = "tart_kubelet_image_gc_freed_bytes_total";
        page.family(name, "counter", "What the volume had more of right after these deletions, and after those of what was kept of unfinished pulls.");
        page.sample(name, &[], bytes(self.freed));
        let name = "tart_kubelet_image_gc_kept";
        page.family(
            name,
            "gauge",
            "Images that the last look kept, by reason; `foreign` are those that the agent has not pulled.",
        );
        for reason in ImageVerdictReason::ALL {
            let count = self.kept.get(&reason).copied().unwrap_or_default();
            page.sample(name, &[("reason", reason.name())], number(count));
        }
        page.sample(name, &[("reason", "foreign")], number(self.foreign));
    }
}
