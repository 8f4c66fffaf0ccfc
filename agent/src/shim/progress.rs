//! How far the VM has come, written down for the agent to see.

use std::cell::Cell;

use jiff::Timestamp;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tracing::warn;

use super::{PERSIST_INTERVAL, Shim};
use crate::error_chain::chain;
use crate::guest::script::Ready;
use crate::state::{Progress, Stage, VmRun};

/// Writes down the steps of one VM. The VM does not wait for it: a full disk must not end somebody's job, nor hide it for ever.
pub(super) struct Steps {
    attempt: VmRun,
    /// Who tries again to write down the latest one.
    again: Cell<Option<JoinHandle<()>>>,
}

impl Shim {
    pub(super) fn enter(&self, stage: Stage) {
        self.reach(stage, None);
    }

    pub(super) fn reach(&self, stage: Stage, ready: Option<&Ready>) {
        let enter = ready.map(Ready::enter).unwrap_or_default();
        let probe = ready.map(Ready::probe).unwrap_or_default();
        self.steps.reach(Progress { stage, since: Timestamp::now(), enter, probe });
    }
}

impl Steps {
    pub(super) fn new(attempt: &VmRun) -> Self {
        Self { attempt: attempt.clone(), again: Cell::new(None) }
    }

    /// Writes down a step, now or as soon as that is possible. It takes the place of one that could not be.
    pub(super) fn reach(&self, progress: Progress) {
        if let Some(before) = self.again.take() {
            before.abort();
        }
        let Err(error) = self.attempt.progress(&progress) else { return };
        let stage = progress.stage;
        warn!(
            error = chain(&error),
            ?stage,
            "cannot write down how far the VM has come; trying until it works"
        );
        let attempt = self.attempt.clone();
        self.again.set(Some(tokio::spawn(async move {
            // Nobody reads what is in a directory that is gone.
            while !matches!(attempt.path().try_exists(), Ok(false)) {
                sleep(PERSIST_INTERVAL).await;
                if attempt.progress(&progress).is_ok() {
                    return;
                }
            }
        })));
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        if let Some(again) = self.again.take() {
            again.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::Restart;
    use crate::state::StateDir;

    fn step(stage: Stage) -> Progress {
        Progress { stage, since: Timestamp::UNIX_EPOCH, enter: Vec::new(), probe: Vec::new() }
    }

    #[tokio::test]
    async fn the_latest_step_is_written_down_in_the_end() {
        let dir =
            tempfile::tempdir_in(tart_kubelet_tests::sandbox::Sandbox::shared().unwrap().path()).unwrap();
        let attempt = StateDir::open(dir.path()).unwrap().pod("0b1c".parse().unwrap()).attempt(Restart(0));
        // Nothing can be written in its place.
        let in_the_way = attempt.path().join("progress.tmp");
        std::fs::create_dir_all(&in_the_way).unwrap();
        let steps = Steps::new(&attempt);
        let address = "127.0.0.2".parse().unwrap();
        steps.reach(step(Stage::Booting));
        steps.reach(step(Stage::Up { address }));
        assert_eq!(attempt.view().unwrap().progress, None);
        std::fs::remove_dir(&in_the_way).unwrap();
        steps.again.take().unwrap().await.unwrap();
        assert_eq!(attempt.steps().unwrap(), [step(Stage::Up { address })]);
        steps.reach(step(Stage::Running { address }));
        assert!(steps.again.take().is_none());
        assert_eq!(attempt.view().unwrap().progress, Some(step(Stage::Running { address })));
    }

    #[tokio::test]
    async fn nothing_is_tried_in_a_directory_that_is_gone() {
        let dir =
            tempfile::tempdir_in(tart_kubelet_tests::sandbox::Sandbox::shared().unwrap().path()).unwrap();
        let attempt = StateDir::open(dir.path()).unwrap().pod("0b1c".parse().unwrap()).attempt(Restart(0));
        let steps = Steps::new(&attempt);
        steps.reach(step(Stage::Booting));
        steps.again.take().unwrap().await.unwrap();
        assert_eq!(attempt.view().unwrap().progress, None);
    }
}
