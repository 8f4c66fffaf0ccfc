//! What can be done with a Pod, one thing at a time.

use std::time::Duration;

use jiff::Timestamp;

use crate::names::Restart;
use crate::state::StopCause;

/// The next step for a Pod: one effect, safe to repeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Write the Pod down.
    Accept,
    /// Have the image ready and plan a VM.
    Plan {
        /// Which one.
        restart: Restart,
        /// How often the container has failed in a row before it.
        crashes: u32,
    },
    /// Write down that a VM has run, and is lost, of which only the API still knows.
    Recall(Restart),
    /// Start the shim of a planned VM.
    Launch(Restart),
    /// Make room on the disk for a shim that has found none.
    MakeRoom(Restart),
    /// Look up what a container runs whose turn has come.
    Deliver(Restart),
    /// Ask a shim to stop its VM within this time.
    AskToStop(Restart, Duration),
    /// Ask a shim to stop its VM, for the container to start again in another one.
    StopFor(Restart, StopCause),
    /// Kill a shim that does not do what it was asked for, or does not go.
    KillShim(Restart),
    /// Ask the guest of a VM that has lost its shim how its container has ended, in case it has.
    AskGuest(Restart),
    /// Stop a VM that has lost its shim.
    StopOrphan(Restart),
    /// Kill whatever the shim of a VM has left running.
    KillLeftovers(Restart),
    /// Write down that a VM ended in a way that nobody saw.
    RecordLoss(Restart),
    /// Delete a VM.
    Clean(Restart),
    /// Write down that the Pod is evicted.
    Evict,
    /// Remove the Pod's volumes, with the secrets in them.
    Wipe,
    /// Forget a VM that is older than the one before the current one.
    Drop(Restart),
    /// Delete the Pod from the API.
    DeletePod,
    /// Forget the Pod.
    Forget,
    /// Nothing to do until something changes, or until this time.
    Wait(Option<Timestamp>),
}

impl Decision {
    /// A short name, for logs and tests.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Accept => "accept",
            Self::Plan { .. } => "plan",
            Self::Recall(_) => "recall",
            Self::Launch(_) => "launch",
            Self::MakeRoom(_) => "make-room",
            Self::Deliver(_) => "deliver",
            Self::AskToStop(..) => "ask-to-stop",
            Self::StopFor(..) => "stop-for",
            Self::KillShim(_) => "kill-shim",
            Self::AskGuest(_) => "ask-guest",
            Self::StopOrphan(_) => "stop-orphan",
            Self::KillLeftovers(_) => "kill-leftovers",
            Self::RecordLoss(_) => "record-loss",
            Self::Clean(_) => "clean",
            Self::Evict => "evict",
            Self::Wipe => "wipe",
            Self::Drop(_) => "drop",
            Self::DeletePod => "delete-pod",
            Self::Forget => "forget",
            Self::Wait(_) => "wait",
        }
    }
}
