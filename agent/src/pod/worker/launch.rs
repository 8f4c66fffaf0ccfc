//! The start of a VM's shim.

use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

use nix::libc;
use tokio::task::{JoinHandle, block_in_place};
use tokio::time::timeout;

use super::retry::StepError;
use super::{RETRY, SAFETY_NET, Worker};
use crate::names::Restart;
use crate::shim;

/// The shim that was started last.
#[derive(Debug)]
pub(super) struct Launched {
    restart: Restart,
    end: JoinHandle<Option<ExitStatus>>,
}

impl Launched {
    pub(super) fn is_for(&self, restart: Restart) -> bool {
        self.restart == restart
    }
}

impl Worker {
    /// Starts the shim of a planned VM.
    pub(super) async fn launch(&mut self, restart: Restart) -> Result<(), StepError> {
        // A second start is decided on only if the first shim has ended before it took the VM up.
        if let Some(before) = self.shims.take_launched(restart) {
            return Err(self.shim_died(before).await);
        }
        if let Some(unknown) = self.unknown_vm(restart)? {
            return self.end_unknown(&unknown).await;
        }
        let slots = self.host.registry.slots();
        let mut changes = slots.changes();
        if !slots.take(self.dir.uid()) {
            self.reporter.waits_for_slot(&self.updates.pod());
            tokio::select! {
                Ok(()) = changes.changed() => {}
                () = self.wait_at_most(SAFETY_NET) => {}
            }
            return Ok(());
        }
        let waker = self.watcher.waker();
        let ended = move || waker.notify_one();
        let run = self.dir.run(restart);
        let end = block_in_place(|| shim::launch(&self.host.vms.shim, &self.dir, &run, ended))?;
        self.shims.launched(end.map(|end| Launched { restart, end }));
        Ok(())
    }

    /// The error about a shim that has ended before it took its VM up.
    async fn shim_died(&mut self, Launched { restart, end }: Launched) -> StepError {
        // The shim holds no lock any more, so its exit status comes in a moment.
        let status = timeout(RETRY, end).await.ok().and_then(|joined| joined.ok().flatten());
        let killed = status.is_some_and(|status| status.signal() == Some(libc::SIGKILL));
        let status = status.map_or_else(|| "exit status unknown".to_owned(), |status| status.to_string());
        StepError::ShimDied { status, killed, log: self.dir.shim_log_path(restart) }
    }
}
