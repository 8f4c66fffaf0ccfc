//! What becomes of Pods: how long their starts take and where, and how they fail.

use std::collections::BTreeMap;
use std::time::Duration;

use super::exposition::{Page, number};
use super::histogram::Histogram;

/// From a clone on APFS to the pull of a large image over a slow line.
const ENDS: [Duration; 12] = [
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(5),
    Duration::from_secs(10),
    Duration::from_secs(30),
    Duration::from_mins(1),
    Duration::from_mins(2),
    Duration::from_mins(5),
    Duration::from_mins(15),
    Duration::from_hours(1),
];

#[derive(Debug)]
pub(super) struct PodFigures {
    stages: BTreeMap<&'static str, Histogram>,
    pulls: BTreeMap<&'static str, usize>,
    pull_times: Histogram,
    restarts: usize,
    failures: BTreeMap<String, usize>,
}

impl Default for PodFigures {
    fn default() -> Self {
        Self {
            stages: BTreeMap::new(),
            pulls: BTreeMap::new(),
            pull_times: Histogram::new(&ENDS),
            restarts: 0,
            failures: BTreeMap::new(),
        }
    }
}

impl PodFigures {
    pub(super) fn stage(&mut self, stage: &'static str, took: Duration) {
        self.stages.entry(stage).or_insert_with(|| Histogram::new(&ENDS)).add(took);
    }

    pub(super) fn pull(&mut self, result: &'static str, took: Duration) {
        *self.pulls.entry(result).or_default() += 1;
        self.pull_times.add(took);
    }

    pub(super) fn restart(&mut self) {
        self.restarts += 1;
    }

    pub(super) fn failure(&mut self, reason: &str) {
        *self.failures.entry(reason.to_owned()).or_default() += 1;
    }

    pub(super) fn write(&self, page: &mut Page) {
        let name = "tart_kubelet_start_stage_duration_seconds";
        page.family(
            name,
            "histogram",
            "Time that the stages of a VM's start took: pull, clone, configure, boot, command.",
        );
        for (stage, times) in &self.stages {
            times.write(page, name, &[("stage", stage)]);
        }
        let name = "tart_kubelet_image_pulls_total";
        page.family(name, "counter", "Pulls of images by how they ended: success, or the reason why not.");
        for (result, count) in &self.pulls {
            page.sample(name, &[("result", result)], number(*count));
        }
        let name = "tart_kubelet_image_pull_duration_seconds";
        page.family(name, "histogram", "Time that pulls of images took, whatever their end.");
        self.pull_times.write(page, name, &[]);
        let name = "tart_kubelet_container_restarts_total";
        page.family(name, "counter", "Containers that were started again.");
        page.sample(name, &[], number(self.restarts));
        let name = "tart_kubelet_failures_total";
        page.family(
            name,
            "counter",
            "Failures of Pods, containers and images by the reason that their status shows.",
        );
        for (reason, count) in &self.failures {
            page.sample(name, &[("reason", reason)], number(*count));
        }
    }
}
