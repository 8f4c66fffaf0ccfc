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
        let phase = status?.phase.as_deref()?;
        let all = [Self::Pending, Self::Running, Self::Succeeded, Self::Failed];
        all.into_iter().find(|known| known.to_string() == phase)
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
