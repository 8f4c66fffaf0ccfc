//! The process group of a call.

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::process::Child;

/// A process group that is killed when this is dropped.
pub(crate) struct ProcessGroup(Option<Pid>);

impl ProcessGroup {
    /// The group that a child leads.
    pub(crate) fn of(leader: &Child) -> Self {
        Self(leader.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw))
    }

    pub(crate) fn kill(&mut self) {
        if let Some(group) = self.0.take() {
            // It fails only when no process of the group is left.
            let _ = killpg(group, Signal::SIGKILL);
        }
    }

    /// Keeps the group from being killed.
    pub(crate) fn release(&mut self) {
        self.0 = None;
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        self.kill();
    }
}
