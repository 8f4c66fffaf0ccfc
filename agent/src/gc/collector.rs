//! The collector of VMs and state directories: looks, judges, looks again at what is to go, and deletes it.

use std::collections::HashMap;
use std::time::Duration;

use tokio::task::block_in_place;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::ages::Ages;
use super::observer::Observer;
use super::orphan::{Guard, Judgement, OrphanObservation, OrphanVerdict, Subject, judge, judge_one};
use crate::crash_point;
use crate::error_chain::chain;
use crate::fs::file::FileError;
use crate::fs::freed_space::{freed, measure};
use crate::metrics::Metrics;
use crate::names::PodUid;
use crate::names::{BaseName, VmName};
use crate::pod::registry::PodRegistry;
use crate::tart::TartError;

/// How long a VM may take to stop before it is killed.
const STOP_PATIENCE: Duration = Duration::from_secs(5);
/// How long the process of a VM that has stopped may take to end.
const END_PATIENCE: Duration = Duration::from_secs(2);

/// Collects VMs, and what else Pods have left behind.
#[derive(Debug)]
pub(crate) struct OrphanCollector {
    observer: Observer,
    registry: PodRegistry,
    metrics: Metrics,
    interval: Duration,
    ages: Ages,
    /// What was last said of everything.
    told: HashMap<String, &'static str>,
}

/// Something that could not be deleted.
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
    /// A collector that has not looked yet.
    pub(crate) fn new(
        observer: Observer,
        registry: PodRegistry,
        metrics: Metrics,
        interval: Duration,
    ) -> Self {
        metrics.collects_vms();
        Self { observer, registry, metrics, interval, ages: Ages::default(), told: HashMap::new() }
    }

    /// Collects for as long as it is polled: at once, when it is known what the agent works on, and then again and again.
    pub(crate) async fn run(mut self) {
        loop {
            self.pass().await;
            // Not all Macs of a fleet at the same time.
            sleep(self.interval.mul_f64(0.9 + 0.2 * fastrand::f64())).await;
        }
    }

    async fn pass(&mut self) {
        let at_work = self.registry.with_worker().await;
        let begun = Instant::now();
        let world = self.observer.look(&mut self.ages, at_work).await;
        let verdicts = judge(&world);
        self.tell(&verdicts);
        let mut failures = world.unknown();
        if failures.is_empty() {
            self.ages.retain(|name| self.told.contains_key(name));
        }
        for OrphanVerdict { subject, judgement } in &verdicts {
            let Judgement::Delete { .. } = judgement else { continue };
            crash_point::point("agent.gc.before");
            match self.delete(subject).await {
                Ok(None) => info!(%subject, "collected"),
                Ok(Some(why)) => info!(%subject, %why, "kept after a second look"),
                Err(error) => failures.push(format!("cannot delete {subject}: {}", chain(&error))),
            }
        }
        for failure in &failures {
            warn!("collecting VMs: {failure}");
        }
        let kept = verdicts.iter().filter_map(|verdict| match &verdict.judgement {
            Judgement::Keep(guard) => Some(guard.label()),
            Judgement::Delete { .. } => None,
        });
        self.metrics.vms_judged(failures.is_empty(), begun.elapsed(), kept);
    }

    /// Says what is to become of everything, each time it is something else.
    fn tell(&mut self, verdicts: &[OrphanVerdict]) {
        let mut told = HashMap::new();
        for verdict in verdicts {
            let (name, label) = (verdict.subject.to_string(), label(&verdict.judgement));
            if self.told.get(&name) != Some(&label) {
                info!(subject = name, decision = verdict.judgement.word(), why = verdict.why(), "judged");
            }
            told.insert(name, label);
        }
        self.told = told;
    }

    /// Deletes something, unless a second look says otherwise; why is returned then.
    async fn delete(&mut self, subject: &Subject) -> Result<Option<Judgement>, CollectError> {
        let place = match subject {
            Subject::Remains(_) => self.observer.state.path().to_owned(),
            Subject::Vm(_) | Subject::Base(_) | Subject::Other(_) => self.observer.tart.home().to_owned(),
        };
        let before = measure(&place).await;
        let (kind, kept) = match subject {
            Subject::Vm(vm) => ("vm", self.delete_vm(vm).await?),
            Subject::Base(base) => ("base", self.delete_base(base).await?),
            Subject::Remains(uid) => ("state", self.delete_remains(uid).await?),
            Subject::Other(_) => return Ok(Some(Judgement::Keep(Guard::Foreign))),
        };
        if kept.is_none() {
            self.metrics.collected(kind, freed(&place, before).await);
        }
        Ok(kept)
    }

    async fn delete_vm(&mut self, vm: &VmName) -> Result<Option<Judgement>, CollectError> {
        let mut second = self.look_again(vm, self.observer.min_age).await;
        if let Judgement::Delete { runs: true, .. } = second {
            warn!(%vm, "the VM runs, and no Pod has it; stopping it");
            self.observer.tart.stop(vm, STOP_PATIENCE).await?;
            crash_point::point("agent.gc.stopped");
            // Whoever stops a VM touches it.
            second = self.look_again(vm, Duration::ZERO).await;
            let given_up = Instant::now() + END_PATIENCE;
            // What ran it needs a moment to end after it has let go of the VM.
            while second == Judgement::Keep(Guard::Tart) && Instant::now() < given_up {
                sleep(END_PATIENCE / 10).await;
                second = self.look_again(vm, Duration::ZERO).await;
            }
        }
        let Judgement::Delete { runs: false, .. } = second else { return Ok(Some(second)) };
        let attempt = self.observer.state.pod(vm.uid().clone()).attempt(vm.restart());
        // From here on no shim takes it up.
        let _lock = if attempt.path().exists() {
            let Some(lock) = block_in_place(|| attempt.seal())? else {
                return Ok(Some(Judgement::Keep(Guard::Shim)));
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

    async fn delete_base(&mut self, base: &BaseName) -> Result<Option<Judgement>, CollectError> {
        let doom = self.observer.images.as_ref().map(|images| images.pins().doom([base.to_string()]));
        // A Pod is about to start from it.
        let Some(Some(_doom)) = doom else { return Ok(Some(Judgement::Keep(Guard::Base))) };
        let world = self.observer.look_at_base(base, &mut self.ages).await;
        let second = judge_one(&world, &Subject::Base(base.clone()));
        let Judgement::Delete { .. } = second else { return Ok(Some(second)) };
        let tart = &self.observer.tart;
        tart.delete_base(base).await?;
        crash_point::point("agent.gc.base");
        block_in_place(|| tart.remove_rest_of_base(base)).map_err(CollectError::Rest)?;
        Ok(None)
    }

    async fn delete_remains(&mut self, uid: &PodUid) -> Result<Option<Judgement>, CollectError> {
        let dir = self.observer.state.pod(uid.clone());
        let at_work = self.registry.with_worker().await;
        let world = self.observer.look_at_remains(&dir, &mut self.ages, at_work).await;
        match judge_one(&world, &Subject::Remains(uid.clone())) {
            Judgement::Delete { .. } => block_in_place(|| dir.remove())?,
            kept @ Judgement::Keep(_) => return Ok(Some(kept)),
        }
        Ok(None)
    }

    async fn look_again(&mut self, vm: &VmName, min_age: Duration) -> Judgement {
        let at_work = self.registry.with_worker().await;
        let seen = self.observer.look_at_vm(vm, &mut self.ages, at_work).await;
        judge_one(&OrphanObservation { min_age, ..seen }, &Subject::Vm(vm.clone()))
    }
}

/// What tells whether a judgement is another one; ages always are.
fn label(judgement: &Judgement) -> &'static str {
    match judgement {
        Judgement::Keep(guard) => guard.label(),
        Judgement::Delete { .. } => "delete",
    }
}
