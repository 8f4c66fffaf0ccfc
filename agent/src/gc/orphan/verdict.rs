//! The verdict on a VM or a state directory, and its words for logs, tables and metrics.

use std::borrow::Cow;
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

/// Why a subject is kept. [`Self::words`] says what each reason means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum KeepReason {
    Foreign,
    Base,
    OnlyCopy,
    BasesUnknown(Unknown),
    PodsUnknown(Unknown),
    VmsUnknown(Unknown),
    Bound(PodName),
    WorkerActive,
    HolderUnknown(Unknown),
    Shim,
    /// It does not run.
    Tart,
    LockUnknown(Unknown),
    Busy,
    HasVm,
    AgeUnknown(Unknown),
    Young(Duration),
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
            Self::Keep(reason) => Some(reason.words().0),
            Self::Delete { .. } => None,
        }
    }
}

impl KeepReason {
    /// The label in metrics, and the words for the user.
    fn words(&self) -> (KeepLabel, Cow<'static, str>) {
        let unknown = |what: &str, why: &str| (KeepLabel::Unknown, format!("{what}: {why}").into());
        match self {
            Self::Foreign => (KeepLabel::Foreign, "not made by this agent".into()),
            Self::Base => (KeepLabel::Base, "VMs of Pods are cloned from it".into()),
            Self::OnlyCopy => {
                let words = "its image is not in tart's cache, so that it may be the only copy; `tart delete` removes it";
                (KeepLabel::Base, words.into())
            }
            Self::PodsUnknown(why) => unknown("the Pods of this Node are not known", why),
            Self::BasesUnknown(why) => unknown("it is not known whether it is needed", why),
            Self::VmsUnknown(why) => unknown("the VMs of this host are not known", why),
            Self::HolderUnknown(why) => unknown("it is not known whether its shim lives", why),
            Self::LockUnknown(why) => unknown("it is not known whether tart has locked it", why),
            Self::AgeUnknown(why) => unknown("it is not known when it was last touched", why),
            Self::Bound(pod) => (KeepLabel::Pod, format!("Pod {pod} is on this Node").into()),
            Self::WorkerActive => (KeepLabel::Worker, "the agent is cleaning up after its Pod".into()),
            Self::Shim => (KeepLabel::Shim, "its shim lives".into()),
            Self::Tart => (KeepLabel::Tart, "a tart that its shim had started is at work on it".into()),
            Self::Busy => (KeepLabel::Tart, "tart has locked it".into()),
            Self::HasVm => (KeepLabel::Vm, "its VM is still there".into()),
            Self::Young(age) => (KeepLabel::Age, format!("touched {} ago", Approximate(*age)).into()),
            Self::Gone => (KeepLabel::Gone, "it is gone".into()),
        }
    }
}

impl fmt::Display for OrphanVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Keep(reason) => f.write_str(&reason.words().1),
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
