//! What is left of a VM's programs after `tart run` has ended.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tracing::warn;

use crate::error_chain::chain;
use crate::fs::file::FileError;
use crate::fs::lock::Lock;
use crate::shim::Shim;
use crate::state::{Outcome, VmRun};

/// How long they may take. After that they are the agent's, which stops the VM and at last kills them.
const LIMIT: Duration = Duration::from_secs(5);
/// How often the lock is tried: there is no notification for a lock that becomes free.
const INTERVAL: Duration = Duration::from_millis(10);

impl Shim {
    /// Waits until nothing of the VM runs. What a killed tart has started ends a moment after it, and an agent that saw the outcome before
    /// would take the VM for one that has lost its shim.
    pub(in crate::shim) async fn leftover_processes_gone(&self, tart_lock: Lock, outcome: &Outcome) {
        // The shim starts no tart any more. From now on only what is left of an earlier one holds the lock.
        drop(tart_lock);
        if let Ok(false) = self.vm_run.has_tart() {
            return;
        }
        // The shim may die while it waits.
        self.persist_result(outcome).await;
        match gone(&self.vm_run, LIMIT).await {
            Ok(true) => {}
            Ok(false) => {
                warn!(vm = %self.spec.vm, "processes of the VM do not end; leaving them to the agent");
            }
            Err(error) => {
                warn!(vm = %self.spec.vm, error = chain(&error), "cannot see whether processes of the VM are left");
            }
        }
    }
}

/// Waits until no process has the lock of a VM's tarts; false when one still has it after `limit`.
async fn gone(run: &VmRun, limit: Duration) -> Result<bool, FileError> {
    let end = Instant::now() + limit;
    while run.has_tart()? {
        if Instant::now() >= end {
            return Ok(false);
        }
        sleep(INTERVAL).await;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;
    use crate::testing::dir;

    #[tokio::test]
    async fn a_shim_waits_for_what_its_tart_has_started() {
        let dir = dir();
        let run = VmRun::example(dir.path());
        std::fs::create_dir_all(run.path()).unwrap();
        let lock = run.take_tart_lock().unwrap().unwrap();
        lock.share_with_children().unwrap();
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        drop(lock);
        assert!(!gone(&run, Duration::ZERO).await.unwrap(), "the child lives");
        drop(child.stdin.take());
        let (is_gone, ended) = tokio::join!(gone(&run, Duration::from_mins(1)), async { child.wait() });
        assert!(is_gone.unwrap() && ended.unwrap().success());
    }
}
