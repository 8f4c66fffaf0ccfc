//! Which VMs and state directories are deleted, and why every other one is kept.
//!
//! A VM is deleted only if all of this holds: its name is one that the agent makes, no Pod with its UID is bound to this Node, no worker of
//! the agent, no shim and no tart works on it, and it was not touched for a while. What the agent cannot observe keeps it.
//!
//! Base VMs are deleted with their images. One that the record of images has lost is deleted here, if tart can clone it again.

mod verdict;

pub(crate) use verdict::{GcAction, JudgedSubject, KeepLabel, KeepReason, OrphanVerdict, Subject};

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use crate::names::{BaseName, PodName, PodUid, VmName};
use crate::state::Holder;
use crate::tart::VmLock;

/// Why something could not be observed.
pub(crate) type Unknown = String;

/// All that a verdict rests on.
#[derive(Debug, Clone)]
pub(crate) struct OrphanObservation {
    pub(crate) vms: Result<Vec<ObservedVm>, Unknown>,
    /// The state directories of Pods.
    pub(crate) pod_dirs: Result<Vec<ObservedPodDir>, Unknown>,
    /// The Pods that are bound to this Node, in any phase. They are listed after the VMs: a VM is made for a Pod that is bound already.
    pub(crate) pods: Result<HashMap<PodUid, PodName>, Unknown>,
    /// The Pods with a worker.
    pub(crate) active: HashSet<PodUid>,
    /// The base VMs that are needed: by the record of images, or by a VM that was made from one or is planned.
    pub(crate) bases: Result<HashSet<BaseName>, Unknown>,
    /// The base VMs, cloned or not, whose images are in tart's cache.
    pub(crate) cached: Result<HashSet<BaseName>, Unknown>,
    /// What is younger is kept.
    pub(crate) min_age: Duration,
}

/// A VM, or a part of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObservedVm {
    pub(crate) name: String,
    /// The process that works on it, by the locks of the state directory.
    pub(crate) holder: Result<Holder, Unknown>,
    /// tart's own locks.
    pub(crate) lock: Result<VmLock, Unknown>,
    /// How long it was not touched.
    pub(crate) age: Result<Duration, Unknown>,
}

/// The state directory of a Pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObservedPodDir {
    pub(crate) uid: PodUid,
    /// The process that works on any of the Pod's VMs.
    pub(crate) holder: Result<Holder, Unknown>,
    /// How long it was not touched.
    pub(crate) age: Result<Duration, Unknown>,
}

impl OrphanObservation {
    /// The lists that could not be observed. While one is missing, nothing that rests on it is deleted. The base VMs are left out: only
    /// bases rest on that list, and it can be unknown for as long as one VM runs.
    pub(crate) fn unknown(&self) -> Vec<String> {
        let vms = self.vms.as_ref().err().map(|why| format!("cannot list VMs: {why}"));
        let pod_dirs =
            self.pod_dirs.as_ref().err().map(|why| format!("cannot read the state directory: {why}"));
        let pods = self.pods.as_ref().err().map(|why| format!("cannot list Pods: {why}"));
        [vms, pod_dirs, pods].into_iter().flatten().collect()
    }
}

impl ObservedVm {
    /// A VM that the agent did not make, and does not observe.
    pub(crate) fn foreign(name: String) -> Self {
        let why = || "it is not ours".to_owned();
        Self { name, holder: Err(why()), lock: Err(why()), age: Err(why()) }
    }
}

/// The verdicts on all subjects, VMs first.
pub(crate) fn judge(observation: &OrphanObservation) -> Vec<JudgedSubject> {
    let vms = observation.vms.iter().flatten().map(|vm| judge_vm(observation, vm));
    let pod_dirs = observation.pod_dirs.iter().flatten().map(|dir| JudgedSubject {
        subject: Subject::PodDir(dir.uid.clone()),
        verdict: judge_pod_dir(observation, dir).unwrap_or_else(OrphanVerdict::Keep),
    });
    vms.chain(pod_dirs).collect()
}

/// The verdict on one subject.
pub(crate) fn judge_one(observation: &OrphanObservation, subject: &Subject) -> OrphanVerdict {
    let found = judge(observation).into_iter().find(|judged| judged.subject == *subject);
    found.map_or(OrphanVerdict::Keep(KeepReason::Gone), |judged| judged.verdict)
}

fn judge_vm(observation: &OrphanObservation, vm: &ObservedVm) -> JudgedSubject {
    let (subject, verdict) = if let Ok(name) = vm.name.parse::<VmName>() {
        let verdict = judge_own(observation, vm, name.uid());
        (Subject::Vm(name), verdict)
    } else if let Ok(base) = vm.name.parse::<BaseName>() {
        let verdict = judge_base(observation, vm, &base);
        (Subject::Base(base), verdict)
    } else {
        (Subject::Other(vm.name.clone()), Err(KeepReason::Foreign))
    };
    JudgedSubject { subject, verdict: verdict.unwrap_or_else(OrphanVerdict::Keep) }
}

fn judge_own(
    observation: &OrphanObservation,
    vm: &ObservedVm,
    uid: &PodUid,
) -> Result<OrphanVerdict, KeepReason> {
    check_unused(observation, uid)?;
    let lock = vm.lock.clone().map_err(KeepReason::LockUnknown)?;
    match (vm.holder.clone().map_err(KeepReason::HolderUnknown)?, lock) {
        (Holder::Shim, _) => return Err(KeepReason::Shim),
        (Holder::Tart, VmLock::Free | VmLock::Busy) => return Err(KeepReason::Tart),
        (Holder::None, VmLock::Busy) => return Err(KeepReason::Busy),
        // The tart of a dead shim may still run the VM, which the collector then stops.
        (Holder::None | Holder::Tart, VmLock::Runs) | (Holder::None, VmLock::Free) => {}
    }
    let age = old_enough(&vm.age, observation.min_age)?;
    Ok(OrphanVerdict::Delete { runs: lock == VmLock::Runs, age })
}

fn judge_base(
    observation: &OrphanObservation,
    vm: &ObservedVm,
    base: &BaseName,
) -> Result<OrphanVerdict, KeepReason> {
    if observation.bases.as_ref().map_err(|why| KeepReason::BasesUnknown(why.clone()))?.contains(base) {
        return Err(KeepReason::Base);
    }
    if !observation.cached.as_ref().map_err(|why| KeepReason::BasesUnknown(why.clone()))?.contains(base) {
        return Err(KeepReason::OnlyCopy);
    }
    // A Pod of this Node may need it in a moment.
    observation.pods.as_ref().map_err(|why| KeepReason::PodsUnknown(why.clone()))?;
    match vm.lock.clone().map_err(KeepReason::LockUnknown)? {
        VmLock::Free => {}
        // The agent never runs a base VM.
        VmLock::Runs | VmLock::Busy => return Err(KeepReason::Busy),
    }
    Ok(OrphanVerdict::Delete { runs: false, age: old_enough(&vm.age, observation.min_age)? })
}

fn judge_pod_dir(observation: &OrphanObservation, dir: &ObservedPodDir) -> Result<OrphanVerdict, KeepReason> {
    check_unused(observation, &dir.uid)?;
    let vms = observation.vms.as_ref().map_err(|why| KeepReason::VmsUnknown(why.clone()))?;
    match dir.holder.clone().map_err(KeepReason::HolderUnknown)? {
        Holder::Shim => return Err(KeepReason::Shim),
        Holder::Tart => return Err(KeepReason::Tart),
        Holder::None => {}
    }
    // The directory goes after the VM: its locks tell which process works on the VM.
    let is_of_pod = |vm: &ObservedVm| vm.name.parse::<VmName>().is_ok_and(|name| *name.uid() == dir.uid);
    if vms.iter().any(is_of_pod) {
        return Err(KeepReason::HasVm);
    }
    Ok(OrphanVerdict::Delete { runs: false, age: old_enough(&dir.age, observation.min_age)? })
}

/// Whether a Pod is neither bound to this Node nor has a worker.
fn check_unused(observation: &OrphanObservation, uid: &PodUid) -> Result<(), KeepReason> {
    let pods = observation.pods.as_ref().map_err(|why| KeepReason::PodsUnknown(why.clone()))?;
    if let Some(pod) = pods.get(uid) {
        return Err(KeepReason::Bound(pod.clone()));
    }
    if observation.active.contains(uid) { Err(KeepReason::WorkerActive) } else { Ok(()) }
}

fn old_enough(age: &Result<Duration, Unknown>, min_age: Duration) -> Result<Duration, KeepReason> {
    let age = age.clone().map_err(KeepReason::AgeUnknown)?;
    if age < min_age { Err(KeepReason::Young(age)) } else { Ok(age) }
}

#[cfg(test)]
mod tests;
