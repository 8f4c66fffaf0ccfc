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
        restart: Restart,
        /// The number of the segment that the VM runs.
        segment: usize,
        /// The container's failures in a row before it.
        crashes: u32,
    },
    /// Record the loss of a VM that the API shows as started and the state directory lacks, e.g. after a reinstall.
    RecordMissingRun(Restart),
    /// Start the shim of a planned VM.
    Launch(Restart),
    /// Free disk space for a shim that ran out of it.
    FreeSpace(Restart),
    /// Send the command of a container whose environment was left open until its turn.
    SendCommand(Restart),
    /// Ask a shim to stop its VM within this time.
    AskToStop(Restart, Duration),
    /// Ask a shim to stop its VM, so that the container starts again in another one.
    StopFor(Restart, StopCause),
    /// Kill a shim that does not stop its VM, or does not exit.
    KillShim(Restart),
    /// Ask the guest of a VM that has lost its shim whether and how its container has ended.
    AskGuest(Restart),
    /// Stop a VM that has lost its shim.
    StopWithoutShim(Restart),
    /// Kill the processes that a dead shim has left running.
    KillStrayProcesses(Restart),
    /// Record that a VM ended in an unknown way.
    RecordLoss(Restart),
    DeleteVm(Restart),
    /// Record that the Pod is evicted.
    Evict,
    /// Remove the Pod's volumes, with the secrets in them.
    RemoveVolumes,
    /// Remove the records of a VM that is older than the previous one.
    ForgetRun(Restart),
    DeletePod,
    /// Remove the Pod's state directory.
    ForgetPod,
    /// Wait until something changes, or until this time.
    Wait(Option<Timestamp>),
}

impl Decision {
    /// Whether the step begins or ends something that an earlier agent's knowledge of the Pod does not justify.
    pub(super) fn needs_api_server(self) -> bool {
        matches!(
            self,
            Self::Accept
                | Self::Plan { .. }
                | Self::RecordMissingRun(_)
                | Self::Launch(_)
                | Self::Evict
                | Self::DeletePod
                | Self::ForgetPod
        )
    }

    /// A short name, for logs and tests.
    pub(crate) fn name(self) -> &'static str {
        self.words().0
    }

    /// The failure of the step, for the Event about it.
    pub(crate) fn failure(self) -> &'static str {
        self.words().1
    }

    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Accept => ("accept", "cannot write the Pod down"),
            Self::Plan { .. } => ("plan", "cannot plan a VM"),
            Self::RecordMissingRun(_) => ("record-missing-run", "cannot write down how the VM ended"),
            Self::Launch(_) => ("launch", "cannot start the VM"),
            Self::FreeSpace(_) => ("free-space", "cannot tell the VM's shim that there is room"),
            Self::SendCommand(_) => ("send-command", "cannot tell the VM's shim what to run"),
            Self::AskToStop(..) => ("ask-to-stop", "cannot stop the VM"),
            Self::StopFor(..) => ("stop-for", "cannot stop the VM"),
            Self::KillShim(_) => ("kill-shim", "cannot stop the VM"),
            Self::AskGuest(_) => ("ask-guest", "cannot write down how the VM ended"),
            Self::StopWithoutShim(_) => ("stop-without-shim", "cannot stop the VM"),
            Self::KillStrayProcesses(_) => ("kill-stray-processes", "cannot stop the VM"),
            Self::RecordLoss(_) => ("record-loss", "cannot write down how the VM ended"),
            Self::DeleteVm(_) => ("delete-vm", "cannot delete the VM"),
            Self::Evict => ("evict", "cannot evict the Pod"),
            Self::RemoveVolumes => ("remove-volumes", "cannot remove the Pod's volumes"),
            Self::ForgetRun(_) => ("forget-run", "cannot clean up after the Pod"),
            Self::DeletePod => ("delete-pod", "cannot finish the Pod's deletion"),
            Self::ForgetPod => ("forget-pod", "cannot clean up after the Pod"),
            Self::Wait(_) => ("wait", "cannot wait"),
        }
    }
}
