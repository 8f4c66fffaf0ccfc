//! The start of a VM's shim, and of the next one when that comes to nothing.

use std::collections::HashSet;
use std::process::ExitStatus;

use tokio::sync::watch;
use tokio::task::{JoinHandle, block_in_place};
use tokio::time::timeout;

use super::retry::StepError;
use super::{RETRY, SAFETY_NET, Worker};
use crate::names::PodUid;
use crate::names::Restart;
use crate::shim;

/// The shim that was started last.
#[derive(Debug)]
pub(super) struct Launched {
    restart: Restart,
    end: JoinHandle<Option<ExitStatus>>,
}

impl Worker {
    /// Starts the shim of a planned VM.
    pub(super) async fn launch(&mut self, restart: Restart) -> Result<(), StepError> {
        // Nobody would have a second one started if the first had taken the VM up.
        if let Some(before) = self.launched.take().filter(|before| before.restart == restart) {
            return Err(self.in_vain(before).await);
        }
        let attempt = self.dir.attempt(restart);
        if let Some(forgotten) = self.forgotten(restart)? {
            return self.end_forgotten(&forgotten).await;
        }
        let mut changes = self.host.slots.changes();
        if !self.host.slots.take(self.dir.uid()) {
            self.wait_for_place(&mut changes).await;
            return Ok(());
        }
        let stirred = self.stirred.clone();
        let ended = move || stirred.notify_one();
        let end = block_in_place(|| shim::launch(&self.host.program, &self.dir, &attempt, ended))?;
        self.launched = end.map(|end| Launched { restart, end });
        Ok(())
    }

    /// What can be told of a shim that was gone before it had taken its VM up.
    async fn in_vain(&self, Launched { restart, end }: Launched) -> StepError {
        // It holds no lock any more, so it is as good as reaped.
        let status = timeout(RETRY, end).await.ok().and_then(|joined| joined.ok().flatten());
        let status = status.map_or_else(|| "nobody knows how".to_owned(), |status| status.to_string());
        StepError::ShimDied { status, log: self.dir.shim_log_path(restart) }
    }

    /// Waits until a VM that is no longer wanted has gone: there was no place for this Pod's.
    async fn wait_for_place(&mut self, changes: &mut watch::Receiver<HashSet<PodUid>>) {
        if !std::mem::replace(&mut self.told.crowded, true) {
            let pod = self.pod.borrow().clone();
            let note = "waiting until the VM of a Pod that has ended is gone; macOS still counts it";
            self.host.events.normal(&pod, "WaitingForVM", note);
        }
        tokio::select! {
            Ok(()) = changes.changed() => {}
            () = self.wait_at_most(SAFETY_NET) => {}
        }
    }
}
