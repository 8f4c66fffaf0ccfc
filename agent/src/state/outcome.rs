//! How a VM and its container ended.
//!
//! Four types lead from the guest to the Pod's phase. The guest agent gives an `ExecResult` (shim). The shim turns it into an [`Ending`] and
//! writes that as an [`Outcome`]. The agent makes a `RestartDecision` and a `ContainerStatus` of the outcome (`pod`).

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::newer_release::{self, OrNewer};

/// The exit code of a command that SIGKILL ended.
pub(crate) const KILLED: i32 = 137;

/// An [`Ending`] with its times.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "OutcomeFile", into = "OutcomeFile")]
pub(crate) struct Outcome {
    pub(crate) ending: Ending,
    /// Absent when the container never started.
    pub(crate) started_at: Option<Timestamp>,
    pub(crate) finished_at: Timestamp,
}

impl Outcome {
    /// The outcome of an init container that ran when its VM ended.
    pub(crate) fn lost_with_vm(since: Timestamp, vm: &Self) -> Self {
        Self { ending: Ending::Lost, started_at: Some(since), finished_at: vm.finished_at }
    }
}

/// An [`Outcome`] as it is written. The exit code stands beside the ending: no release may lose or invent one.
#[derive(Serialize, Deserialize)]
struct OutcomeFile {
    ending: OrNewer<Ending>,
    exit_code: i32,
    started_at: Option<Timestamp>,
    finished_at: Timestamp,
}

impl From<Outcome> for OutcomeFile {
    fn from(outcome: Outcome) -> Self {
        let Outcome { ending, started_at, finished_at } = outcome;
        let exit_code = ending.exit_code();
        let ending = match ending {
            Ending::Newer { ending, .. } => OrNewer::Newer(ending),
            known => OrNewer::Known(known),
        };
        Self { ending, exit_code, started_at, finished_at }
    }
}

impl From<OutcomeFile> for Outcome {
    fn from(file: OutcomeFile) -> Self {
        let OutcomeFile { ending, exit_code, started_at, finished_at } = file;
        let ending = match ending {
            OrNewer::Known(ending) => ending,
            OrNewer::Newer(ending) => Ending::Newer { ending, code: exit_code },
        };
        Self { ending, started_at, finished_at }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub(crate) enum Ending {
    /// The guest shut down, or its command ended, without a request of the agent.
    Exited {
        code: i32,
        /// What the guest or tart said about it.
        message: Option<String>,
    },
    /// The shim stopped the VM because the agent asked for it.
    Stopped {
        /// Whether the guest did not stop within its grace period.
        killed: bool,
    },
    /// The VM, or the command in it, never started.
    NotStarted(NotStarted),
    /// All containers of a VM that is only for init containers have succeeded.
    Initialized,
    /// An init container failed, and its Pod's policy does not restart it.
    InitFailed { container: String, code: i32 },
    /// Unknown: the shim or the guest agent is gone, e.g. after a restart of the host.
    Lost,
    /// An ending that a newer release has written, and its exit code.
    #[serde(skip)]
    Newer { ending: Value, code: i32 },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NotStarted {
    pub(crate) reason: NotStartedReason,
    /// What a user can do about it.
    pub(crate) message: String,
    /// What is wrong with the host, if it is the host's fault.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "newer_release::optional")]
    pub(crate) fault: Option<HostFault>,
}

/// One word for why a container did not start: the name of the variant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum NotStartedReason {
    CreateContainerConfigError,
    CreateContainerError,
    StartError,
    GuestAgentMissing,
    NoAddress,
    /// The agent asked for a stop before the start.
    Stopped,
    /// A word of a newer shim.
    #[serde(untagged)]
    Other(String),
}

impl NotStartedReason {
    /// Whether the kubelet has the same word. It writes the Event `Failed` for all of its own.
    pub(crate) fn is_kubelets(&self) -> bool {
        matches!(self, Self::CreateContainerConfigError | Self::CreateContainerError | Self::StartError)
    }
}

impl fmt::Display for NotStartedReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Other(word) => f.write_str(word),
            known => fmt::Debug::fmt(known, f),
        }
    }
}

/// A fault of the host that keeps every VM from starting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "name")]
pub(crate) enum HostFault {
    /// There is no GUI session, or its keychain is locked.
    Session,
    /// macOS allows no further VM.
    VmLimit {
        /// How many VMs of this agent ran then.
        ours: u32,
    },
    /// The VM runs, but got no address.
    NoAddress,
}

/// The `reason` in the status of a container that has ended: the name of the variant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum EndReason {
    Completed,
    Error,
    ContainerStatusUnknown,
    NotStarted(NotStartedReason),
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotStarted(reason) => reason.fmt(f),
            word => fmt::Debug::fmt(word, f),
        }
    }
}

impl NotStarted {
    pub(crate) fn new(reason: NotStartedReason, message: String) -> Self {
        Self { reason, message, fault: None }
    }
}

impl From<NotStarted> for Ending {
    fn from(not_started: NotStarted) -> Self {
        Self::NotStarted(not_started)
    }
}

impl Ending {
    pub(crate) fn reason(&self) -> EndReason {
        match self {
            Self::NotStarted(NotStarted { reason, .. }) => EndReason::NotStarted(reason.clone()),
            Self::Lost => EndReason::ContainerStatusUnknown,
            Self::Exited { code: 0, .. }
            | Self::Newer { code: 0, .. }
            | Self::Stopped { killed: false }
            | Self::Initialized => EndReason::Completed,
            Self::Exited { .. }
            | Self::Newer { .. }
            | Self::InitFailed { .. }
            | Self::Stopped { killed: true } => EndReason::Error,
        }
    }

    /// Whether the container ended by itself, and so has an exit code of its own.
    pub(crate) fn has_own_code(&self) -> bool {
        matches!(self, Self::Exited { .. } | Self::Newer { .. })
    }

    /// The exit code that the container's status shows.
    pub(crate) fn exit_code(&self) -> i32 {
        match self {
            Self::Exited { code, .. } | Self::InitFailed { code, .. } | Self::Newer { code, .. } => *code,
            Self::Stopped { killed: false } => 0,
            Self::Stopped { killed: true } | Self::Lost => KILLED,
            // The main container has not started. An agent that does not know `Initialized` must not take the Pod for done.
            Self::NotStarted(_) | Self::Initialized => 128,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_reason_is_written_as_its_word_and_an_unknown_word_is_kept() {
        for word in [
            "CreateContainerConfigError",
            "CreateContainerError",
            "StartError",
            "GuestAgentMissing",
            "NoAddress",
            "Stopped",
        ] {
            let read: NotStartedReason = serde_json::from_value(json!(word)).unwrap();
            assert_eq!((read.to_string().as_str(), json!(read)), (word, json!(word)));
            assert!(!matches!(read, NotStartedReason::Other(_)), "{word}");
        }
        let newer = json!({"kind": "not-started", "reason": "NextYears", "message": "no", "more": 1});
        let read: Ending = serde_json::from_value(newer).unwrap();
        assert_eq!((read.reason().to_string().as_str(), read.exit_code()), ("NextYears", 128));
        for (code, word) in [(0, "Completed"), (3, "Error")] {
            assert_eq!(Ending::Exited { code, message: None }.reason().to_string(), word);
        }
        assert_eq!(Ending::Lost.reason().to_string(), "ContainerStatusUnknown");
        // An older agent sees an unknown word with its exit code, and must not take the Pod for done.
        let ending = Ending::Initialized;
        assert_eq!(
            (ending.reason(), ending.exit_code(), ending.has_own_code()),
            (EndReason::Completed, 128, false)
        );
    }
}
