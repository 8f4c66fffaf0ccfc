//! The phase of a Pod.

use std::fmt;

use k8s_openapi::api::core::v1::PodStatus;

/// The phases that the agent sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Pending,
    Running,
    Succeeded,
    Failed,
}

impl Phase {
    /// The phase of a status, if it is one that the agent sets.
    pub(crate) fn of(status: Option<&PodStatus>) -> Option<Self> {
        match status?.phase.as_deref()? {
            "Pending" => Some(Self::Pending),
            "Running" => Some(Self::Running),
            "Succeeded" => Some(Self::Succeeded),
            "Failed" => Some(Self::Failed),
            _ => None,
        }
    }

    /// Whether a Pod never leaves this phase.
    pub(crate) fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
