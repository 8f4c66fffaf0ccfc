//! Looks at the GUI session and the keychain: once before the first Pod, and whenever a VM failed as it does without them.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;

use super::start_failures::{StartFailures, StartReports};
use crate::os::gui_session::{self, GuiSession, Presence};

/// How soon the agent looks again while something is missing: a user who logs in waits for the Node to become ready.
const ABSENT_INTERVAL: Duration = Duration::from_secs(10);

/// Looks for as long as it is polled. While nothing is missing it waits for a failure, since a look at a locked keychain may show a
/// dialog at the Mac's screen.
pub(crate) async fn watch(reports: StartReports, mut starts: watch::Receiver<StartFailures>) {
    loop {
        let suspected = starts.borrow_and_update().suspects_session();
        let found = gui_session::look().await;
        let is_absent = is_absent(&found);
        reports.look(found);
        let is_new = |starts: &StartFailures| {
            starts.suspects_session().is_some_and(|failure| Some(failure) != suspected)
        };
        let failure = starts.wait_for(is_new);
        if is_absent {
            tokio::select! {
                () = sleep(ABSENT_INTERVAL) => {}
                Ok(_) = failure => {}
            }
        } else if failure.await.is_err() {
            // The agent is ending.
            std::future::pending::<()>().await;
        }
    }
}

fn is_absent(found: &GuiSession) -> bool {
    [&found.session, &found.keychain].iter().any(|presence| matches!(presence, Presence::Absent(_)))
}
