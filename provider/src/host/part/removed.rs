//! What a Mac should no longer have: a job that was switched off, and its files.

use std::time::Duration;

use launchd::{Call, Diagnosis, Fallback, Label, Launchctl, Registration, RollError};
use serde::Serialize;

use super::job::rolled_note;
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
    /// Further programs of it, by their note, without which they stay.
    pub(crate) programs: Vec<(String, String)>,
    /// Files that only the provider makes, notes among them.
    pub(crate) leftovers: Vec<String>,
    /// What is tried first, while the job still runs. It may fail.
    pub(crate) farewell: Vec<String>,
    /// Whether SSH may run through it.
    pub(crate) carries_tailnet: bool,
}

impl Removed {
    pub(super) async fn check<R: Remote>(&self, mac: &R) -> Result<Vec<Change>, PartError> {
        let mut changes = Vec::new();
        let is_ours = noted(mac, &self.only_if_noted).await?.is_some();
        if is_ours && Launchctl::of(mac).print(&self.label).await? != Registration::NotLoaded {
            changes.push(Change::new(self.label.as_str(), "loaded", "gone"));
        }
        for file in self.own_files(mac, is_ours).await? {
            if mac.run(Call::new(&["/bin/test", "-e", &file], COMMAND_DEADLINE)).await?.is_success() {
                changes.push(Change::new(file, "there", "gone"));
            }
        }
        Ok(changes)
    }

    /// The files that the provider has put there, those with the notes last: until then the next run goes on.
    async fn own_files<R: Remote>(&self, mac: &R, is_ours: bool) -> Result<Vec<String>, PartError> {
        let mut files = if is_ours { self.files.clone() } else { Vec::new() };
        let mut notes = vec![note_path(&self.only_if_noted), note_path(&rolled_note(&self.label))];
        for (name, program) in &self.programs {
            if noted(mac, name).await?.is_some() {
                files.push(program.clone());
                notes.push(note_path(name));
            }
        }
        files.extend(self.leftovers.iter().cloned());
        files.extend(notes);
        Ok(files)
    }

    pub(super) async fn apply<R: Remote>(&self, mac: &R) -> Result<(), PartError> {
        let is_ours = noted(mac, &self.only_if_noted).await?.is_some();
        if is_ours {
            self.end(mac).await?;
        }
        for file in self.own_files(mac, is_ours).await? {
            run(mac, &["/bin/rm", "-rf", "--", &file]).await?;
        }
        Ok(())
    }

    /// Says farewell, and ends the job.
    async fn end<R: Remote>(&self, mac: &R) -> Result<(), PartError> {
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
        Ok(())
    }
}
