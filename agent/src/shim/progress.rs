//! The stages that the shim has reached, written for the agent.

use std::cell::Cell;

use jiff::Timestamp;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tracing::warn;

use super::Shim;
use super::records::WRITE_INTERVAL;
use crate::error_chain::chain;
use crate::guest::script::ContainerScripts;
use crate::state::{Progress, Stage, VmRun};

/// Writes the stages of one VM. The VM does not wait for it: a full disk must neither end a job nor hide it for ever.
pub(super) struct ProgressWriter {
    vm_run: VmRun,
    /// The task that tries again to write the latest stage.
    retry: Cell<Option<JoinHandle<()>>>,
}

impl Shim {
    pub(super) fn enter(&self, stage: Stage) {
        self.reach(stage, None);
    }

    pub(super) fn reach(&self, stage: Stage, scripts: Option<&ContainerScripts>) {
        let enter = scripts.map(ContainerScripts::enter).unwrap_or_default();
        let probe = scripts.map(ContainerScripts::probe).unwrap_or_default();
        self.progress.write(Progress { stage, since: Timestamp::now(), enter, probe });
    }
}

impl ProgressWriter {
    pub(super) fn new(vm_run: &VmRun) -> Self {
        Self { vm_run: vm_run.clone(), retry: Cell::new(None) }
    }

    /// Writes a stage, now or as soon as possible. It replaces an earlier one that could not be written.
    fn write(&self, progress: Progress) {
        if let Some(before) = self.retry.take() {
            before.abort();
        }
        let Err(error) = self.vm_run.record_progress(&progress) else { return };
        let stage = progress.stage;
        warn!(error = chain(&error), ?stage, "cannot write the stage; trying until it works");
        let vm_run = self.vm_run.clone();
        self.retry.set(Some(tokio::spawn(async move {
            // The agent reads nothing in a directory that is gone.
            while !matches!(vm_run.path().try_exists(), Ok(false)) {
                sleep(WRITE_INTERVAL).await;
                if vm_run.record_progress(&progress).is_ok() {
                    return;
                }
            }
        })));
    }
}

impl Drop for ProgressWriter {
    fn drop(&mut self) {
        if let Some(retry) = self.retry.take() {
            retry.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::dir;

    #[tokio::test]
    async fn the_latest_stage_is_written_in_the_end() {
        let dir = dir();
        let run = VmRun::example(dir.path());
        // A directory in the place of the temporary file makes every write fail.
        let in_the_way = run.path().join("progress.tmp");
        std::fs::create_dir_all(&in_the_way).unwrap();
        let writer = ProgressWriter::new(&run);
        let address = "127.0.0.2".parse().unwrap();
        writer.write(Progress::example(Stage::Booting));
        writer.write(Progress::example(Stage::Up { address }));
        assert_eq!(run.view().unwrap().progress, None);
        std::fs::remove_dir(&in_the_way).unwrap();
        writer.retry.take().unwrap().await.unwrap();
        assert_eq!(run.steps().unwrap(), [Progress::example(Stage::Up { address })]);
        writer.write(Progress::example(Stage::Running { address }));
        assert!(writer.retry.take().is_none());
        assert_eq!(run.view().unwrap().progress, Some(Progress::example(Stage::Running { address })));
    }

    #[tokio::test]
    async fn the_writer_gives_up_when_the_directory_is_gone() {
        let dir = dir();
        let run = VmRun::example(dir.path());
        let writer = ProgressWriter::new(&run);
        writer.write(Progress::example(Stage::Booting));
        writer.retry.take().unwrap().await.unwrap();
        assert_eq!(run.view().unwrap().progress, None);
    }
}
