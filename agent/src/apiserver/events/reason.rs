//! The reasons of Events, in the kubelet's words where it has one.

use std::fmt;

/// Why an Event about a Pod or an image is written. Refusals, ends of containers and conditions have reasons of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EventReason {
    BackOff,
    Created,
    DeadlineExceeded,
    Evicted,
    Failed,
    FailedMount,
    FailedPrePull,
    FailedSync,
    FailedToRetrieveImagePullSecret,
    FreeDiskSpaceFailed,
    InvalidEnvironmentVariableNames,
    Killing,
    LeftToImage,
    PrePulled,
    ProbeWarning,
    ProviderIDMismatch,
    Pulled,
    Pulling,
    ShimStuck,
    SmallerVM,
    Started,
    StatusRefused,
    Unhealthy,
    WaitingForVM,
}

impl fmt::Display for EventReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
