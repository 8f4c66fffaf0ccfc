//! What a Mac should no longer have: a job that was switched off, and its files.

use std::time::Duration;

use launchd::{Call, Diagnosis, Fallback, Label, Launchctl, Registration, RollError};
use serde::Serialize;

use super::{COMMAND_DEADLINE, Change, PartError, Remote, run};

/// How long a job may take to end.
const PATIENCE: Duration = Duration::from_secs(30);

/// A job that is gone, with its files.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Removed {
    /// The job.
    pub(crate) label: Label,
    /// Its files.
    pub(crate) files: Vec<String>,
}

impl Removed {
    pub(super) async fn check<R: Remote>(&self, mac: &R) -> Result<Vec<Change>, PartError> {
        let mut changes = Vec::new();
        if Launchctl::of(mac).print(&self.label).await? != Registration::NotLoaded {
            changes.push(Change::new(self.label.as_str(), "loaded", "gone"));
        }
        for file in &self.files {
            if mac.run(Call::new(&["/bin/test", "-e", file], COMMAND_DEADLINE)).await?.is_success() {
                changes.push(Change::new(file, "there", "gone"));
            }
        }
        Ok(changes)
    }

    pub(super) async fn apply<R: Remote>(&self, mac: &R) -> Result<(), PartError> {
        if let Err(seen) = Launchctl::of(mac).unload(&self.label, PATIENCE).await? {
            let (label, seen) = (self.label.clone(), Box::new(seen));
            let diagnosis = Diagnosis::StillLoaded;
            return Err(RollError::NotRunning { label, diagnosis, seen, fallback: Fallback::None }.into());
        }
        let files = self.files.iter().map(String::as_str);
        let argv: Vec<&str> = ["/bin/rm", "-f", "--"].into_iter().chain(files).collect();
        run(mac, &argv).await.map(drop)
    }
}
