//! Which VMs and state directories nobody needs any more, and why every other one is kept.
//!
//! Deleted is only what all of this holds for: its name is in the agent's own grammar, no Pod with its UID is bound to this Node, no
//! worker of the agent, no shim and no tart is at work on it, and nobody has touched it for a while. Whatever is not known keeps it.
//!
//! Base VMs go with their images. One that the record of images has lost is an orphan, too, if it can be made again.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::time::Duration;

use crate::duration::Approximate;
use crate::names::{BaseName, VmName};
use crate::names::{PodName, PodUid};
use crate::state::Holder;
use crate::tart::VmLock;

/// Something that could not be found out, and why.
pub(crate) type Unknown = String;

/// All that a judgement rests on, as it was seen in one go.
#[derive(Debug, Clone)]
pub(crate) struct OrphanObservation {
    /// What tart has.
    pub(crate) vms: Result<Vec<Vm>, Unknown>,
    /// What Pods have left in the state directory.
    pub(crate) remains: Result<Vec<Remains>, Unknown>,
    /// The Pods that are bound to this Node, whatever their phase. They are listed after the VMs: a VM is made for a Pod that
    /// is bound already.
    pub(crate) pods: Result<HashMap<PodUid, PodName>, Unknown>,
    /// The Pods that a worker of the agent is busy with.
    pub(crate) at_work: HashSet<PodUid>,
    /// The base VMs that are accounted for: by the record of images, or by a VM that was made from one or is planned.
    pub(crate) bases: Result<HashSet<BaseName>, Unknown>,
    /// The base VMs, made or not, whose images are in tart's cache.
    pub(crate) cached: Result<HashSet<BaseName>, Unknown>,
    /// What is younger is left alone.
    pub(crate) min_age: Duration,
}

/// A VM that tart has, or a part of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Vm {
    /// Its name.
    pub(crate) name: String,
    /// Who is at work on it, by the state directory.
    pub(crate) holder: Result<Holder, Unknown>,
    /// What tart's own locks say.
    pub(crate) lock: Result<VmLock, Unknown>,
    /// How long nobody has touched it.
    pub(crate) age: Result<Duration, Unknown>,
}

/// What a Pod has left in the state directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Remains {
    /// Whose it is.
    pub(crate) uid: PodUid,
    /// Who is at work on any of the Pod's VMs.
    pub(crate) holder: Result<Holder, Unknown>,
    /// How long nobody has touched it.
    pub(crate) age: Result<Duration, Unknown>,
}

/// What was judged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Subject {
    /// A VM of ours, by its name.
    Vm(VmName),
    /// A VM that others are cloned from, by its name.
    Base(BaseName),
    /// A VM that is none of the collector's business, by its name.
    Other(String),
    /// What a Pod has left in the state directory.
    Remains(PodUid),
}

/// What is to become of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OrphanVerdict {
    /// What was judged.
    pub(crate) subject: Subject,
    /// What the judgement is.
    pub(crate) judgement: Judgement,
}

/// Keep or delete, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Judgement {
    /// It stays.
    Keep(Guard),
    /// It goes.
    Delete {
        /// Whether it runs, and has to be stopped first.
        runs: bool,
        /// How long nobody has touched it.
        age: Duration,
    },
}

/// What protects something from being deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Guard {
    /// The agent did not make it.
    Foreign,
    /// VMs of Pods are cloned from it.
    Base,
    /// There may be no other copy of its image.
    OnlyCopy,
    /// Nobody knows which base VMs are needed.
    BasesUnknown(Unknown),
    /// Nobody knows which Pods there are.
    PodsUnknown(Unknown),
    /// Nobody knows which VMs there are.
    VmsUnknown(Unknown),
    /// Its Pod is bound to this Node.
    Bound(PodName),
    /// A worker of the agent is busy with it.
    AtWork,
    /// Nobody knows whether a shim lives.
    HolderUnknown(Unknown),
    /// Its shim lives.
    Shim,
    /// A tart that its shim had started is at work on it, and it does not run.
    Tart,
    /// Nobody knows whether tart's own locks are held.
    LockUnknown(Unknown),
    /// Some tart is at work on it.
    Busy,
    /// Its Pod's VM is still there.
    HasVm,
    /// Nobody knows when it was last touched.
    AgeUnknown(Unknown),
    /// Somebody has touched it a short while ago.
    Young(Duration),
    /// It is no longer there.
    Gone,
}

impl OrphanObservation {
    /// What could not be found out at all. As long as anything could not, nothing that rests on it is deleted. Which base VMs are
    /// needed is not among it: that can stay unknown for as long as one VM runs, and no more than the bases rest on it.
    pub(crate) fn unknown(&self) -> Vec<String> {
        let vms = self.vms.as_ref().err().map(|why| format!("cannot list VMs: {why}"));
        let remains =
            self.remains.as_ref().err().map(|why| format!("cannot read the state directory: {why}"));
        let pods = self.pods.as_ref().err().map(|why| format!("cannot list Pods: {why}"));
        [vms, remains, pods].into_iter().flatten().collect()
    }
}

impl Vm {
    /// A VM of somebody else, at which nobody looks any closer.
    pub(crate) fn foreign(name: String) -> Self {
        let why = || "it is not ours".to_owned();
        Self { name, holder: Err(why()), lock: Err(why()), age: Err(why()) }
    }
}

impl OrphanVerdict {
    /// Why, in words.
    pub(crate) fn why(&self) -> String {
        match (&self.subject, &self.judgement) {
            (Subject::Base(_), Judgement::Delete { age, .. }) => {
                format!("no image that the agent knows of has it, untouched for {}", Approximate(*age))
            }
            (_, judgement) => judgement.to_string(),
        }
    }
}

impl Judgement {
    /// The word for what stays, in logs and tables,
    pub(crate) const KEEP: &str = "keep";
    /// and for what goes.
    pub(crate) const DELETE: &str = "delete";

    /// One word, for logs and tables.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Self::Keep(_) => Self::KEEP,
            Self::Delete { .. } => Self::DELETE,
        }
    }
}

impl Guard {
    /// One word, for figures.
    pub(crate) fn label(&self) -> &'static str {
        match self {
            Self::Foreign => "foreign",
            Self::Base | Self::OnlyCopy => "base",
            Self::PodsUnknown(_)
            | Self::VmsUnknown(_)
            | Self::BasesUnknown(_)
            | Self::HolderUnknown(_)
            | Self::LockUnknown(_)
            | Self::AgeUnknown(_) => "unknown",
            Self::Bound(_) => "pod",
            Self::AtWork => "worker",
            Self::Shim => "shim",
            Self::Tart | Self::Busy => "tart",
            Self::HasVm => "vm",
            Self::Young(_) => "age",
            Self::Gone => "gone",
        }
    }
}

impl fmt::Display for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Foreign => f.write_str("not made by this agent"),
            Self::Base => f.write_str("VMs of Pods are cloned from it"),
            Self::OnlyCopy => f.write_str(
                "its image is not in tart's cache, so that it may be the only copy; `tart delete` removes it",
            ),
            Self::PodsUnknown(why) => write!(f, "the Pods of this Node are not known: {why}"),
            Self::BasesUnknown(why) => write!(f, "it is not known whether it is needed: {why}"),
            Self::VmsUnknown(why) => write!(f, "the VMs of this host are not known: {why}"),
            Self::Bound(pod) => write!(f, "Pod {pod} is on this Node"),
            Self::AtWork => f.write_str("the agent is cleaning up after its Pod"),
            Self::HolderUnknown(why) => write!(f, "it is not known whether its shim lives: {why}"),
            Self::Shim => f.write_str("its shim lives"),
            Self::Tart => f.write_str("a tart that its shim had started is at work on it"),
            Self::LockUnknown(why) => write!(f, "it is not known whether tart has locked it: {why}"),
            Self::Busy => f.write_str("tart has locked it"),
            Self::HasVm => f.write_str("its VM is still there"),
            Self::AgeUnknown(why) => write!(f, "it is not known when it was last touched: {why}"),
            Self::Young(age) => write!(f, "touched {} ago", Approximate(*age)),
            Self::Gone => f.write_str("it is gone"),
        }
    }
}

impl fmt::Display for Judgement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Keep(guard) => guard.fmt(f),
            Self::Delete { runs, age } => {
                write!(f, "no Pod of this Node has its UID, untouched for {}", Approximate(*age))?;
                f.write_str(if *runs { "; it runs, and is stopped first" } else { "" })
            }
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vm(vm) => vm.fmt(f),
            Self::Base(base) => base.fmt(f),
            Self::Other(name) => f.write_str(name),
            Self::Remains(uid) => uid.fmt(f),
        }
    }
}

/// Judges everything, in the order in which it was seen.
pub(crate) fn judge(world: &OrphanObservation) -> Vec<OrphanVerdict> {
    let vms = world.vms.iter().flatten().map(|vm| judge_vm(world, vm));
    let remains = world.remains.iter().flatten().map(|remains| OrphanVerdict {
        subject: Subject::Remains(remains.uid.clone()),
        judgement: judge_remains(world, remains).unwrap_or_else(Judgement::Keep),
    });
    vms.chain(remains).collect()
}

/// Judges one thing.
pub(crate) fn judge_one(world: &OrphanObservation, subject: &Subject) -> Judgement {
    let found = judge(world).into_iter().find(|verdict| verdict.subject == *subject);
    found.map_or(Judgement::Keep(Guard::Gone), |verdict| verdict.judgement)
}

fn judge_vm(world: &OrphanObservation, vm: &Vm) -> OrphanVerdict {
    let (subject, judgement) = if let Ok(name) = vm.name.parse::<VmName>() {
        let judgement = judge_own(world, vm, name.uid());
        (Subject::Vm(name), judgement)
    } else if let Ok(base) = vm.name.parse::<BaseName>() {
        let judgement = judge_base(world, vm, &base);
        (Subject::Base(base), judgement)
    } else {
        (Subject::Other(vm.name.clone()), Err(Guard::Foreign))
    };
    OrphanVerdict { subject, judgement: judgement.unwrap_or_else(Judgement::Keep) }
}

fn judge_own(world: &OrphanObservation, vm: &Vm, uid: &PodUid) -> Result<Judgement, Guard> {
    nobody_wants(world, uid)?;
    let lock = vm.lock.clone().map_err(Guard::LockUnknown)?;
    match (vm.holder.clone().map_err(Guard::HolderUnknown)?, lock) {
        (Holder::Shim, _) => return Err(Guard::Shim),
        (Holder::Tart, VmLock::Free | VmLock::Busy) => return Err(Guard::Tart),
        (Holder::Nobody, VmLock::Busy) => return Err(Guard::Busy),
        // Also one that the tart of a dead shim still runs: this is what has to be stopped.
        (Holder::Nobody | Holder::Tart, VmLock::Runs) | (Holder::Nobody, VmLock::Free) => {}
    }
    let age = old_enough(&vm.age, world.min_age)?;
    Ok(Judgement::Delete { runs: lock == VmLock::Runs, age })
}

fn judge_base(world: &OrphanObservation, vm: &Vm, base: &BaseName) -> Result<Judgement, Guard> {
    if world.bases.as_ref().map_err(|why| Guard::BasesUnknown(why.clone()))?.contains(base) {
        return Err(Guard::Base);
    }
    if !world.cached.as_ref().map_err(|why| Guard::BasesUnknown(why.clone()))?.contains(base) {
        return Err(Guard::OnlyCopy);
    }
    // A Pod may want it, and then it is known in a moment.
    world.pods.as_ref().map_err(|why| Guard::PodsUnknown(why.clone()))?;
    match vm.lock.clone().map_err(Guard::LockUnknown)? {
        VmLock::Free => {}
        // We never run it.
        VmLock::Runs | VmLock::Busy => return Err(Guard::Busy),
    }
    Ok(Judgement::Delete { runs: false, age: old_enough(&vm.age, world.min_age)? })
}

fn judge_remains(world: &OrphanObservation, remains: &Remains) -> Result<Judgement, Guard> {
    nobody_wants(world, &remains.uid)?;
    let vms = world.vms.as_ref().map_err(|why| Guard::VmsUnknown(why.clone()))?;
    match remains.holder.clone().map_err(Guard::HolderUnknown)? {
        Holder::Shim => return Err(Guard::Shim),
        Holder::Tart => return Err(Guard::Tart),
        Holder::Nobody => {}
    }
    // What tells who is at work on a VM goes after the VM.
    let is_of_pod = |vm: &Vm| vm.name.parse::<VmName>().is_ok_and(|name| *name.uid() == remains.uid);
    if vms.iter().any(is_of_pod) {
        return Err(Guard::HasVm);
    }
    Ok(Judgement::Delete { runs: false, age: old_enough(&remains.age, world.min_age)? })
}

/// Neither the API nor the agent has any use for what a Pod has left.
fn nobody_wants(world: &OrphanObservation, uid: &PodUid) -> Result<(), Guard> {
    let pods = world.pods.as_ref().map_err(|why| Guard::PodsUnknown(why.clone()))?;
    if let Some(pod) = pods.get(uid) {
        return Err(Guard::Bound(pod.clone()));
    }
    if world.at_work.contains(uid) { Err(Guard::AtWork) } else { Ok(()) }
}

fn old_enough(age: &Result<Duration, Unknown>, min_age: Duration) -> Result<Duration, Guard> {
    let age = age.clone().map_err(Guard::AgeUnknown)?;
    if age < min_age { Err(Guard::Young(age)) } else { Ok(age) }
}

#[cfg(test)]
mod tests;
