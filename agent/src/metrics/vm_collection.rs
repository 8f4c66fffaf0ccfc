//! What the collector of VMs does.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use super::exposition::{Page, number};
use super::histogram::Histogram;

const ENDS: [Duration; 7] = [
    Duration::from_millis(100),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(5),
    Duration::from_secs(30),
    Duration::from_mins(2),
    Duration::from_mins(10),
];

#[derive(Debug)]
pub(super) struct VmCollection {
    passes: BTreeMap<&'static str, usize>,
    times: Histogram,
    last_success: Option<Timestamp>,
    deleted: BTreeMap<&'static str, usize>,
    freed: u64,
    kept: BTreeMap<&'static str, usize>,
}

impl Default for VmCollection {
    fn default() -> Self {
        Self {
            passes: BTreeMap::from([("success", 0), ("failure", 0)]),
            times: Histogram::new(&ENDS),
            last_success: None,
            deleted: BTreeMap::from([("vm", 0), ("base", 0), ("state", 0)]),
            freed: 0,
            kept: BTreeMap::new(),
        }
    }
}

impl VmCollection {
    pub(super) fn pass(
        &mut self,
        success: bool,
        took: Duration,
        kept: impl Iterator<Item = &'static str>,
        now: Timestamp,
    ) {
        *self.passes.entry(if success { "success" } else { "failure" }).or_default() += 1;
        self.times.add(took);
        if success {
            self.last_success = Some(now);
        }
        // A reason that no longer holds is zero, not silent.
        self.kept.values_mut().for_each(|count| *count = 0);
        for reason in kept {
            *self.kept.entry(reason).or_default() += 1;
        }
    }

    pub(super) fn deleted(&mut self, kind: &'static str, freed: u64) {
        *self.deleted.entry(kind).or_default() += 1;
        self.freed = self.freed.saturating_add(freed);
    }

    pub(super) fn write(&self, page: &mut Page) {
        let name = "tart_kubelet_vm_gc_passes_total";
        page.family(name, "counter", "Looks for VMs that nobody needs; a failed one may have deleted some.");
        for (result, count) in &self.passes {
            page.sample(name, &[("result", result)], number(*count));
        }
        let name = "tart_kubelet_vm_gc_duration_seconds";
        page.family(name, "histogram", "Time that such a look took, with all deletions.");
        self.times.write(page, name, &[]);
        let name = "tart_kubelet_vm_gc_last_success_timestamp_seconds";
        page.family(name, "gauge", "When the last one succeeded; 0 before the first.");
        page.sample(name, &[], self.last_success.map_or(0.0, |at| at.as_duration().as_secs_f64()));
        let name = "tart_kubelet_vm_gc_deleted_total";
        page.family(
            name,
            "counter",
            "What was deleted: VMs, base VMs that were in no record, and state of Pods that are gone.",
        );
        for (kind, count) in &self.deleted {
            page.sample(name, &[("kind", kind)], number(*count));
        }
        let name = "tart_kubelet_vm_gc_freed_bytes_total";
        page.family(name, "counter", "How much more was free after each deletion than before it.");
        #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
        page.sample(name, &[], self.freed as f64);
        let name = "tart_kubelet_vm_gc_kept";
        page.family(name, "gauge", "What the last look found and kept, by what protects it.");
        for (reason, count) in &self.kept {
            page.sample(name, &[("reason", reason)], number(*count));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_are_counted_and_reasons_end() {
        let mut figures = VmCollection::default();
        let at = |second| Timestamp::from_second(second).unwrap();
        figures.pass(true, Duration::from_millis(50), ["pod", "pod", "age"].into_iter(), at(7));
        figures.pass(false, Duration::from_secs(2), ["pod"].into_iter(), at(9));
        figures.deleted("vm", 3);
        let mut page = Page::default();
        figures.write(&mut page);
        let text = page.text();
        for line in [
            "tart_kubelet_vm_gc_passes_total{result=\"failure\"} 1\n",
            "tart_kubelet_vm_gc_passes_total{result=\"success\"} 1\n",
            "tart_kubelet_vm_gc_duration_seconds_count 2\n",
            "tart_kubelet_vm_gc_last_success_timestamp_seconds 7\n",
            "tart_kubelet_vm_gc_deleted_total{kind=\"vm\"} 1\n",
            "tart_kubelet_vm_gc_deleted_total{kind=\"state\"} 0\n",
            "tart_kubelet_vm_gc_freed_bytes_total 3\n",
            "tart_kubelet_vm_gc_kept{reason=\"age\"} 0\n",
            "tart_kubelet_vm_gc_kept{reason=\"pod\"} 1\n",
        ] {
            assert!(text.contains(line), "{line} in\n{text}");
        }
    }
}
