//! What is left of a VM's programs after `tart run` has ended.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tracing::warn;

use crate::error_chain::chain;
use crate::fs::lock::Lock;
use crate::shim::Shim;
use crate::state::Outcome;

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
        let end = Instant::now() + LIMIT;
        let mut is_recorded = false;
        loop {
            match self.vm_run.has_tart() {
                Ok(false) => return,
                Ok(true) if Instant::now() < end => {}
                Ok(true) => {
                    warn!(vm = %self.spec.vm, "processes of the VM do not end; leaving them to the agent");
                    return;
                }
                Err(error) => {
                    warn!(vm = %self.spec.vm, error = chain(&error), "cannot see whether processes of the VM are left");
                    return;
                }
            }
            if !std::mem::replace(&mut is_recorded, true) {
                // The shim may die while it waits.
                self.persist_result(outcome).await;
            }
            sleep(INTERVAL).await;
        }
    }
}
