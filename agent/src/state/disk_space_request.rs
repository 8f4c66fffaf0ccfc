//! A shim that finds no disk space asks the agent, which alone may delete images.

use std::path::Path;
use std::time::Duration;

use tokio::time::{sleep, timeout};
use tracing::warn;

use crate::error_chain::chain;
use crate::state::{Notice, VmRun};
use crate::tart::Tart;

/// How long the agent may take to free disk space; it may be restarting.
pub(crate) const ANSWER_LIMIT: Duration = Duration::from_mins(5);
const INTERVAL: Duration = Duration::from_millis(200);

#[derive(Debug, Clone)]
pub(crate) struct DiskSpaceRequest {
    run: VmRun,
    tart: Tart,
}

impl DiskSpaceRequest {
    pub(crate) fn new(run: VmRun, tart: Tart) -> Self {
        Self { run, tart }
    }

    /// Asks for space at `path`. False when there is no use in waiting: the path is on a volume without images, or so full that not
    /// even the request can be written.
    pub(crate) fn send(&self, path: &Path) -> bool {
        if !self.tart.shares_disk_with(path) {
            return false;
        }
        let asked = self.run.request_disk_space();
        if let Err(error) = &asked {
            warn!(error = chain(error), "cannot ask the agent for disk space");
        }
        asked.is_ok()
    }

    /// Whether the agent has freed what it can.
    pub(crate) fn is_answered(&self) -> bool {
        !self.run.wants_disk_space()
    }

    /// Waits for the answer, and withdraws the request when none comes in time.
    pub(crate) async fn wait(&self, limit: Duration) {
        let answered = async {
            while !self.is_answered() {
                sleep(INTERVAL).await;
            }
        };
        if timeout(limit, answered).await.is_err() {
            warn!("the agent has freed no disk space");
            // An agent that comes back later must not delete an image for it.
            if let Err(error) = self.run.remove_disk_space_request() {
                warn!(error = chain(&error), "cannot withdraw the request for disk space");
            }
        }
    }

    /// Asks for space in tart's home and waits for the answer; false when there is no use in another try.
    pub(crate) async fn fulfil(&self) -> bool {
        let sent = self.send(self.tart.home());
        if sent {
            self.wait(ANSWER_LIMIT).await;
        }
        sent
    }

    pub(crate) fn notice(&self, reason: &str, message: &str) {
        let notice = Notice { reason: reason.to_owned(), message: message.to_owned() };
        if let Err(error) = self.run.record_notice(&notice) {
            warn!(error = chain(&error), "cannot leave a notice for the agent");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::dir;

    #[tokio::test]
    async fn a_request_without_an_answer_is_withdrawn() {
        let dir = dir();
        let run = VmRun::planned_example(dir.path());
        let request = DiskSpaceRequest::new(run.clone(), Tart::new(Path::new("tart")));
        run.request_disk_space().unwrap();
        assert!(!request.is_answered());
        request.wait(Duration::ZERO).await;
        assert!(!run.wants_disk_space());
    }
}
