//! The steps that a worker takes for a Pod.

use std::time::Duration;

use jiff::Timestamp;

use crate::names::Restart;
use crate::state::StopCause;

/// The next step for a Pod: one effect, safe to repeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Record the Pod in the state directory.
    Accept,
    /// Pull the image, gather the inputs, write the plan of a VM.
    Plan {
        /// The restart count of the VM.
        restart: Restart,
        /// The container's failures in a row before it.
        crashes: u32,
    },
    /// Record the loss of a VM that the API shows as started and the state directory lacks, e.g. after a reinstall.
    Recall(Restart),
    /// Start the shim of a planned VM.
    Launch(Restart),
    /// Free disk space for a shim that ran out of it.
    MakeRoom(Restart),
    /// Send the command of a container whose environment was left open until its turn.
    Deliver(Restart),
    /// Ask a shim to stop its VM within this time.
    AskToStop(Restart, Duration),
    /// Ask a shim to stop its VM, so that the container starts again in another one.
    StopFor(Restart, StopCause),
    /// Kill a shim that does not stop its VM, or does not exit.
    KillShim(Restart),
    /// Ask the guest of a VM that has lost its shim whether and how its container has ended.
    AskGuest(Restart),
    /// Stop a VM that has lost its shim.
    StopOrphan(Restart),
    /// Kill the processes that a dead shim has left running.
    KillLeftovers(Restart),
    /// Record that a VM ended in an unknown way.
    RecordLoss(Restart),
    /// Delete a VM.
    Clean(Restart),
    /// Record that the Pod is evicted.
    Evict,
    /// Remove the Pod's volumes, with the secrets in them.
    Wipe,
    /// Remove the records of a VM that is older than the previous one.
    Drop(Restart),
    /// Delete the Pod from the API.
    DeletePod,
    /// Remove the Pod's state directory.
    Forget,
    /// Wait until something changes, or until this time.
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
