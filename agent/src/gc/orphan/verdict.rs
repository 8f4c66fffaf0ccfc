//! The verdict on a VM or a state directory, and its words for logs, tables and metrics.

use std::fmt;
use std::time::Duration;

use super::Unknown;
use crate::duration::Approximate;
use crate::names::{BaseName, PodName, PodUid, VmName};

/// What a verdict is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Subject {
    /// A VM of a Pod.
    Vm(VmName),
    Base(BaseName),
    /// A VM that the agent did not make.
    Other(String),
    /// The state directory of a Pod.
    PodDir(PodUid),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JudgedSubject {
    pub(crate) subject: Subject,
    pub(crate) verdict: OrphanVerdict,
}

/// Keep or delete, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum OrphanVerdict {
    Keep(KeepReason),
    Delete {
        /// Whether it runs, and has to be stopped first.
        runs: bool,
        /// How long it was not touched.
        age: Duration,
    },
}

words! {
    /// What the collector does with a subject.
    pub(crate) enum GcAction {
        Keep = "keep",
        Delete = "delete",
    }
}

/// Why a subject is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum KeepReason {
    /// The agent did not make it.
    Foreign,
    /// VMs of Pods are cloned from it.
    Base,
    /// There may be no other copy of its image.
    OnlyCopy,
    BasesUnknown(Unknown),
    PodsUnknown(Unknown),
    VmsUnknown(Unknown),
    /// Its Pod is bound to this Node.
    Bound(PodName),
    /// Its Pod has a worker.
    WorkerActive,
    HolderUnknown(Unknown),
    /// Its shim lives.
    Shim,
    /// A tart that its shim had started works on it, and it does not run.
    Tart,
    LockUnknown(Unknown),
    /// A tart works on it.
    Busy,
    /// Its Pod has a VM.
    HasVm,
    AgeUnknown(Unknown),
    /// It was touched a short while ago.
    Young(Duration),
    /// It is no longer there.
    Gone,
}

words! {
    /// The value of the label in metrics. Several reasons share one.
    pub(crate) enum KeepLabel {
        Foreign = "foreign",
        Base = "base",
        Unknown = "unknown",
        Pod = "pod",
        Worker = "worker",
        Shim = "shim",
        Tart = "tart",
        Vm = "vm",
        Age = "age",
        Gone = "gone",
    }
}

impl JudgedSubject {
    /// Why, for the user.
    pub(crate) fn why(&self) -> String {
        match (&self.subject, &self.verdict) {
            (Subject::Base(_), OrphanVerdict::Delete { age, .. }) => {
                format!("no image that the agent knows of has it, untouched for {}", Approximate(*age))
            }
            (_, verdict) => verdict.to_string(),
        }
    }
}

impl OrphanVerdict {
    pub(crate) fn action(&self) -> GcAction {
        match self {
            Self::Keep(_) => GcAction::Keep,
            Self::Delete { .. } => GcAction::Delete,
        }
    }

    pub(crate) fn keep_label(&self) -> Option<KeepLabel> {
        match self {
            Self::Keep(reason) => Some(reason.label()),
            Self::Delete { .. } => None,
        }
    }
}

impl KeepReason {
    fn label(&self) -> KeepLabel {
        match self {
            Self::Foreign => KeepLabel::Foreign,
            Self::Base | Self::OnlyCopy => KeepLabel::Base,
            Self::PodsUnknown(_)
            | Self::VmsUnknown(_)
            | Self::BasesUnknown(_)
            | Self::HolderUnknown(_)
            | Self::LockUnknown(_)
            | Self::AgeUnknown(_) => KeepLabel::Unknown,
            Self::Bound(_) => KeepLabel::Pod,
            Self::WorkerActive => KeepLabel::Worker,
            Self::Shim => KeepLabel::Shim,
            Self::Tart | Self::Busy => KeepLabel::Tart,
            Self::HasVm => KeepLabel::Vm,
            Self::Young(_) => KeepLabel::Age,
            Self::Gone => KeepLabel::Gone,
        }
    }
}

impl fmt::Display for KeepReason {
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
            Self::WorkerActive => f.write_str("the agent is cleaning up after its Pod"),
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

impl fmt::Display for OrphanVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Keep(reason) => reason.fmt(f),
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
            Self::PodDir(uid) => uid.fmt(f),
        }
    }
}
