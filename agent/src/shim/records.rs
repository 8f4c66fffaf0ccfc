//! What the shim writes for the agent.

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::sleep;
use tracing::{info, warn};

use super::Shim;
use crate::crash_point;
use crate::error_chain::chain;
use crate::fs::file::FileError;
use crate::state::{Ending, NotStarted, Notice, Outcome};

/// How soon a failed write is tried again.
pub(super) const WRITE_INTERVAL: Duration = Duration::from_secs(1);

/// The outcome of a run whose container never started.
pub(super) fn not_started(not_started: NotStarted) -> Outcome {
    Outcome { ending: not_started.into(), started_at: None, finished_at: Timestamp::now() }
}

impl Shim {
    /// Writes a record that must not be lost, and tries until it works: a full disk may get space. It gives up when a user has deleted
    /// the directory.
    pub(super) async fn persist(&self, what: &str, write: impl Fn() -> Result<(), FileError>) {
        let mut warned = false;
        while let Err(error) = write() {
            if matches!(self.vm_run.path().try_exists(), Ok(false)) {
                warn!(vm = %self.spec.vm, "the VM's directory is gone; cannot write {what}");
                return;
            }
            if !std::mem::replace(&mut warned, true) {
                warn!(vm = %self.spec.vm, error = chain(&error), "cannot write {what}; trying until it works");
            }
            sleep(WRITE_INTERVAL).await;
        }
    }

    /// Leaves an Event for the agent to write.
    pub(super) fn notice(&self, reason: &str, message: String) {
        let notice = Notice { reason: reason.to_owned(), message };
        match self.vm_run.record_notice(&notice) {
            Ok(true) => warn!(vm = %self.spec.vm, reason, "{}", notice.message),
            Ok(false) => {}
            Err(error) => {
                warn!(vm = %self.spec.vm, reason, error = chain(&error), "cannot leave a notice for the agent: {}", notice.message);
            }
        }
    }

    /// Writes the outcome of the run: the last thing that the shim does.
    pub(super) async fn end(&self, outcome: &Outcome) {
        match &outcome.ending {
            // The message may be secret.
            Ending::Exited { code, .. } => info!(vm = %self.spec.vm, code, "ended"),
            ending => info!(vm = %self.spec.vm, ?ending, "ended"),
        }
        self.persist("how the VM ended", || self.vm_run.record_outcome(outcome)).await;
        crash_point::point("shim.ended");
    }

    pub(super) async fn persist_result(&self, outcome: &Outcome) {
        self.persist("how the container ended", || self.vm_run.record_result(outcome)).await;
    }

    /// Records that the container has ended, unless the shim has read a stop request: a later request has not stopped it.
    pub(super) fn mark_ended_before_stop(&self) {
        if self.stop.latest().is_none()
            && let Err(error) = self.vm_run.mark_ended_before_stop()
        {
            warn!(error = chain(&error), "cannot write that the container ended before any stop request");
        }
    }
}
