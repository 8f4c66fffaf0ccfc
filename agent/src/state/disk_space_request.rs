//! Room on the disk: a shim that finds none asks the agent, which alone may delete images.

use std::path::Path;
use std::time::Duration;

use tokio::time::{sleep, timeout};
use tracing::warn;

use crate::error_chain::chain;
use crate::state::{Notice, VmRun};
use crate::tart::Tart;

/// How long the agent may take to make room; it may just be restarted.
pub(crate) const PATIENCE: Duration = Duration::from_mins(5);
const INTERVAL: Duration = Duration::from_millis(200);

/// The way to ask for room.
#[derive(Debug, Clone)]
pub(crate) struct DiskSpaceRequest {
    attempt: VmRun,
    tart: Tart,
}

impl DiskSpaceRequest {
    pub(crate) fn new(attempt: VmRun, tart: Tart) -> Self {
        Self { attempt, tart }
    }

    /// Asks for room at a place. False when there is no use in waiting: the place is on a volume without images, or so full that
    /// not even the question can be put there.
    pub(crate) fn ask(&self, place: &Path) -> bool {
        if !self.tart.shares_disk_with(place) {
            return false;
        }
        let asked = self.attempt.ask_for_room();
        if let Err(error) = &asked {
            warn!(error = chain(error), "the agent cannot be asked for room");
        }
        asked.is_ok()
    }

    /// Whether the agent has done what it can.
    pub(crate) fn is_answered(&self) -> bool {
        !self.attempt.wants_room()
    }

    /// Waits until it has, or has taken too long for it.
    pub(crate) async fn answered(&self, patience: Duration) {
        let answered = async {
            while !self.is_answered() {
                sleep(INTERVAL).await;
            }
        };
        if timeout(patience, answered).await.is_err() {
            warn!("the agent has not made room");
            // An agent that comes back later is not to delete an image for it.
            if let Err(error) = self.attempt.tell_room_is_made() {
                warn!(error = chain(&error), "the wish for room cannot be withdrawn");
            }
        }
    }

    /// Has room made for VMs; false when there is no use in another try.
    pub(crate) async fn make(&self) -> bool {
        let asked = self.ask(self.tart.home());
        if asked {
            self.answered(PATIENCE).await;
        }
        asked
    }

    /// Leaves word for the agent to tell.
    pub(crate) fn tell(&self, reason: &str, message: &str) {
        let notice = Notice { reason: reason.to_owned(), message: message.to_owned() };
        if let Err(error) = self.attempt.notice(&notice) {
            warn!(error = chain(&error), "the notice cannot be left for the agent");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::Restart;
    use crate::state::StateDir;

    #[tokio::test]
    async fn who_gives_up_wants_no_room_any_more() {
        let dir =
            tempfile::tempdir_in(tart_kubelet_tests::sandbox::Sandbox::shared().unwrap().path()).unwrap();
        let attempt = StateDir::open(dir.path()).unwrap().pod("0b1c".parse().unwrap()).attempt(Restart(0));
        std::fs::create_dir_all(attempt.path()).unwrap();
        let room = DiskSpaceRequest::new(attempt.clone(), Tart::new(Path::new("tart")));
        attempt.ask_for_room().unwrap();
        assert!(!room.is_answered());
        room.answered(Duration::ZERO).await;
        assert!(!attempt.wants_room());
    }
}
