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

/// How often the shim asks for space for one record.
const MOST_REQUESTS: u32 = 2;

/// The outcome of a run whose container never started.
pub(super) fn not_started(not_started: NotStarted) -> Outcome {
    Outcome { ending: not_started.into(), started_at: None, finished_at: Timestamp::now() }
}

impl Shim {
    /// Writes a record that must not be lost, and tries until it works: the agent is asked for space on a full disk, and tells the user if
    /// there is none to be had. It gives up when a user has deleted the directory.
    pub(super) async fn persist(&self, what: &str, write: impl Fn() -> Result<(), FileError>) {
        let (mut warned, mut asked) = (false, 0);
        while let Err(error) = write() {
            if matches!(self.vm_run.path().try_exists(), Ok(false)) {
                warn!(vm = %self.spec.vm, "the VM's directory is gone; cannot write {what}");
                return;
            }
            if !std::mem::replace(&mut warned, true) {
                warn!(vm = %self.spec.vm, error = chain(&error), "cannot write {what}; trying until it works");
            }
            // What the agent frees may not be enough. Then it says so.
            let is_due = error.is_for_want_of_space()
                && asked < MOST_REQUESTS
                && !self.vm_run.wants_disk_space()
                && self.tart.shares_disk_with(self.vm_run.path());
            if is_due {
                asked += u32::from(self.vm_run.request_disk_space().is_ok());
            }
            sleep(WRITE_INTERVAL).await;
        }
        // An agent that comes back later must not delete an image for it.
        if asked > 0
            && let Err(error) = self.vm_run.remove_disk_space_request()
        {
            warn!(vm = %self.spec.vm, error = chain(&error), "cannot withdraw the request for disk space");
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
