//! The collector of orphan VMs and state directories. It observes again what it is about to delete.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use tokio::task::block_in_place;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::ages::Ages;
use super::observer::Observer;
use super::orphan::{
    JudgedSubject, KeepLabel, KeepReason, OrphanObservation, OrphanVerdict, Subject, judge, judge_one,
};
use crate::crash_point;
use crate::error_chain::chain;
use crate::fs::file::FileError;
use crate::fs::freed_space::{freed, measure};
use crate::metrics::Metrics;
use crate::names::{BaseName, PodUid, VmName};
use crate::pod::registry::PodRegistry;
use crate::tart::TartError;

/// How long a VM may take to stop before tart kills it.
const STOP_GRACE: Duration = Duration::from_secs(5);
/// How long the process of a stopped VM may take to end.
const END_LIMIT: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(crate) struct OrphanCollector {
    observer: Observer,
    registry: PodRegistry,
    metrics: Metrics,
    interval: Duration,
    ages: Ages,
    /// The last verdict that was logged of each subject; `None` is a deletion.
    logged: HashMap<String, Option<KeepLabel>>,
}

/// A subject that could not be deleted.
#[derive(Debug, thiserror::Error)]
enum CollectError {
    #[error(transparent)]
    Tart(#[from] TartError),
    #[error(transparent)]
    State(#[from] FileError),
    #[error("cannot remove what is left of it")]
    Rest(#[source] std::io::Error),
}

impl OrphanCollector {
    pub(crate) fn new(
        observer: Observer,
        registry: PodRegistry,
        metrics: Metrics,
        interval: Duration,
    ) -> Self {
        metrics.collects_vms();
        Self { observer, registry, metrics, interval, ages: Ages::default(), logged: HashMap::new() }
    }

    /// Collects until it is dropped: as soon as the agent's workers are known, and then once per interval.
    pub(crate) async fn run(mut self) {
        loop {
            self.pass().await;
            // Not all Macs of a fleet at the same time.
            sleep(self.interval.mul_f64(0.9 + 0.2 * fastrand::f64())).await;
        }
    }

    async fn pass(&mut self) {
        let active = self.registry.with_worker().await;
        let begun = Instant::now();
        let observation = self.observer.look(&mut self.ages, active).await;
        let verdicts = judge(&observation);
        self.log(&verdicts);
        let mut failures = observation.unknown();
        if failures.is_empty() {
            self.ages.retain(|name| self.logged.contains_key(name));
        }
        for JudgedSubject { subject, verdict } in &verdicts {
            let OrphanVerdict::Delete { .. } = verdict else { continue };
            crash_point::point("agent.gc.before");
            match self.delete(subject).await {
                Ok(None) => info!(%subject, "collected"),
                Ok(Some(why)) => info!(%subject, %why, "kept after a second observation"),
                Err(error) => failures.push(format!("cannot delete {subject}: {}", chain(&error))),
            }
        }
        for failure in &failures {
            warn!("collecting VMs: {failure}");
        }
        let kept = verdicts.iter().filter_map(|judged| judged.verdict.keep_label().map(KeepLabel::as_str));
        self.metrics.vms_judged(failures.is_empty(), begun.elapsed(), kept);
    }

    /// Logs each verdict that has changed.
    fn log(&mut self, verdicts: &[JudgedSubject]) {
        let mut logged = HashMap::new();
        for judged in verdicts {
            let (name, label) = (judged.subject.to_string(), judged.verdict.keep_label());
            if self.logged.get(&name) != Some(&label) {
                let decision = judged.verdict.action().as_str();
                info!(subject = name, decision, why = judged.why(), "judged");
            }
            logged.insert(name, label);
        }
        self.logged = logged;
    }

    /// Deletes a subject, unless a second observation keeps it; returns that verdict then.
    async fn delete(&mut self, subject: &Subject) -> Result<Option<OrphanVerdict>, CollectError> {
        let path = match subject {
            Subject::PodDir(_) => self.observer.state.path().to_owned(),
            Subject::Vm(_) | Subject::Base(_) | Subject::Other(_) => self.observer.tart.home().to_owned(),
        };
        let before = measure(&path).await;
        let (kind, kept) = match subject {
            Subject::Vm(vm) => ("vm", self.delete_vm(vm).await?),
            Subject::Base(base) => ("base", self.delete_base(base).await?),
            Subject::PodDir(uid) => ("state", self.delete_pod_dir(uid).await?),
            Subject::Other(_) => return Ok(Some(OrphanVerdict::Keep(KeepReason::Foreign))),
        };
        if kept.is_none() {
            self.metrics.collected(kind, freed(&path, before).await);
        }
        Ok(kept)
    }

    async fn delete_vm(&mut self, vm: &VmName) -> Result<Option<OrphanVerdict>, CollectError> {
        let mut second = self.look_again(vm, self.observer.min_age).await;
        if let OrphanVerdict::Delete { runs: true, .. } = second {
            warn!(%vm, "the VM runs, and no Pod has it; stopping it");
            self.observer.tart.stop(vm, STOP_GRACE).await?;
            crash_point::point("agent.gc.stopped");
            // `tart stop` touches the VM, so that its age does not count any more.
            second = self.look_again(vm, Duration::ZERO).await;
            let end = Instant::now() + END_LIMIT;
            // `tart run` needs a moment to end after it has unlocked the VM.
            while second == OrphanVerdict::Keep(KeepReason::Tart) && Instant::now() < end {
                sleep(END_LIMIT / 10).await;
                second = self.look_again(vm, Duration::ZERO).await;
            }
        }
        let OrphanVerdict::Delete { runs: false, .. } = second else { return Ok(Some(second)) };
        let run = self.observer.state.pod(vm.uid().clone()).run(vm.restart());
        // From here on no shim starts for it.
        let _lock = if run.path().exists() {
            let Some(lock) = block_in_place(|| run.take_shim_lock())? else {
                return Ok(Some(OrphanVerdict::Keep(KeepReason::Shim)));
            };
            Some(lock)
        } else {
            None
        };
        let tart = &self.observer.tart;
        tart.delete(vm).await?;
        crash_point::point("agent.gc.deleted");
        block_in_place(|| tart.remove_rest(vm)).map_err(CollectError::Rest)?;
        Ok(None)
    }

    async fn delete_base(&mut self, base: &BaseName) -> Result<Option<OrphanVerdict>, CollectError> {
        let images = self.observer.images.as_ref();
        // A Pod that is about to start from it has pinned it.
        let Some(_guard) = images.and_then(|images| images.pins.begin_deletion([base.to_string()])) else {
            return Ok(Some(OrphanVerdict::Keep(KeepReason::Base)));
        };
        let observation = self.observer.look_at_vm(&base.to_string(), &mut self.ages, HashSet::new()).await;
        let second = judge_one(&observation, &Subject::Base(base.clone()));
        let OrphanVerdict::Delete { .. } = second else { return Ok(Some(second)) };
        let tart = &self.observer.tart;
        tart.delete_base(base).await?;
        crash_point::point("agent.gc.base");
        block_in_place(|| tart.remove_rest_of_base(base)).map_err(CollectError::Rest)?;
        Ok(None)
    }

    async fn delete_pod_dir(&mut self, uid: &PodUid) -> Result<Option<OrphanVerdict>, CollectError> {
        let dir = self.observer.state.pod(uid.clone());
        let active = self.registry.with_worker().await;
        let observation = self.observer.look_at_pod_dir(&dir, &mut self.ages, active).await;
        let second = judge_one(&observation, &Subject::PodDir(uid.clone()));
        let OrphanVerdict::Delete { .. } = second else { return Ok(Some(second)) };
        block_in_place(|| dir.remove())?;
        Ok(None)
    }

    async fn look_again(&mut self, vm: &VmName, min_age: Duration) -> OrphanVerdict {
        let active = self.registry.with_worker().await;
        let seen = self.observer.look_at_vm(&vm.to_string(), &mut self.ages, active).await;
        judge_one(&OrphanObservation { min_age, ..seen }, &Subject::Vm(vm.clone()))
    }
}
