//! Why the agent refuses a Pod.

use std::fmt;

/// Why the agent refuses a Pod. The Pod's status and an Event show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// For the Pod's `status.reason`.
    pub(crate) reason: RefusalReason,
    /// The field, and what is wrong with it.
    pub(crate) message: String,
}

/// The reason of a refusal. All but `UnsupportedPod` are the kubelet's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RefusalReason {
    /// A VM cannot have a field of the Pod.
    UnsupportedPod,
    /// `spec.os` is not macOS.
    PodOsNotSupported,
    OutOfPods,
    OutOfCpu,
    OutOfMemory,
    OutOfEphemeralStorage,
    NodeAffinity,
    NodePorts,
    TaintToleration,
}

impl RefusalReason {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::UnsupportedPod => "UnsupportedPod",
            Self::PodOsNotSupported => "PodOSNotSupported",
            Self::OutOfPods => "OutOfpods",
            Self::OutOfCpu => "OutOfcpu",
            Self::OutOfMemory => "OutOfmemory",
            Self::OutOfEphemeralStorage => "OutOfephemeral-storage",
            Self::NodeAffinity => "NodeAffinity",
            Self::NodePorts => "NodePorts",
            Self::TaintToleration => "TaintToleration",
        }
    }

    /// Whether the reason rests on labels or taints that others write to the Node: the agent's copy may be out of date.
    pub(crate) fn may_be_stale(self) -> bool {
        matches!(self, Self::NodeAffinity | Self::TaintToleration)
    }
}

impl fmt::Display for RefusalReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
