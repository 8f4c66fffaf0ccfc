//! What a Mac should no longer have: a job that was switched off, and its files.

use std::time::Duration;

use launchd::{Call, Diagnosis, Fallback, Label, Launchctl, Registration, RollError};
use serde::Serialize;

use super::tailnet::ensure_not_over_tailnet;
use super::{COMMAND_DEADLINE, Change, PartError, Remote, note_path, noted, run};

/// How long a job may take to end.
const PATIENCE: Duration = Duration::from_secs(30);

/// A job that is gone, with its files.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Removed {
    /// The job.
    pub(crate) label: Label,
    /// Its files and directories.
    pub(crate) files: Vec<String>,
    /// The note without which the job is not the provider's, and stays.
    pub(crate) only_if_noted: String,
    /// What is tried first, while the job still runs. It may fail.
    pub(crate) farewell: Vec<String>,
    /// Whether SSH may run through it.
    pub(crate) carries_tailnet: bool,
}

impl Removed {
    pub(super) async fn check<R: Remote>(&self, mac: &R) -> Result<Vec<Change>, PartError> {
        let mut changes = Vec::new();
        if noted(mac, &self.only_if_noted).await?.is_none() {
            return Ok(changes);
        }
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
        if self.carries_tailnet {
            ensure_not_over_tailnet(mac, &format!("the end of {}", self.label)).await?;
        }
        if !self.farewell.is_empty() {
            let argv: Vec<&str> = self.farewell.iter().map(String::as_str).collect();
            let _ = mac.run(Call::new(&argv, COMMAND_DEADLINE)).await;
        }
        if let Err(seen) = Launchctl::of(mac).unload(&self.label, PATIENCE).await? {
            let (label, seen) = (self.label.clone(), Box::new(seen));
            let diagnosis = Diagnosis::StillLoaded;
            return Err(RollError::NotRunning { label, diagnosis, seen, fallback: Fallback::None }.into());
        }
        let files = self.files.iter().map(String::as_str);
        let argv: Vec<&str> = ["/bin/rm", "-rf", "--"].into_iter().chain(files).collect();
        run(mac, &argv).await?;
        // The note goes last: until then the next run goes on.
        run(mac, &["/bin/rm", "-f", &note_path(&self.only_if_noted)]).await.map(drop)
    }
}
