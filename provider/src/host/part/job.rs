//! A job of launchd, and the roll that takes it to a new definition or binary.

use launchd::{Call, Fallback, Job, Label, Launchctl, LaunchctlError, Outdated, Roll, RollError, roll};
use serde::Serialize;

use super::tailnet::ensure_not_over_tailnet;
use super::{COMMAND_DEADLINE, Change, PartError, Remote, note, note_path, noted, run};
use crate::artifact::Sha256Hash;

/// What stands in the note for the process while it is replaced.
const UNKNOWN: &str = "unknown";

/// A job of launchd.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct JobPart {
    /// The job.
    pub(crate) job: Job,
    /// The file of its property list.
    pub(crate) plist: String,
    /// The hash of everything else that the job reads only when it starts: its binary, its kubeconfig.
    pub(crate) restart_for: Sha256Hash,
    /// The previous binary, to go back to.
    pub(crate) previous: Option<String>,
    /// Whether SSH may run through it, so that it must not be restarted from there.
    pub(crate) carries_tailnet: bool,
}

/// The name of the note that says for what the running process of a job was started, and with which definition.
pub(super) fn rolled_note(label: &Label) -> String {
    format!("{label}.rolled")
}

impl JobPart {
    fn note(&self) -> String {
        rolled_note(&self.job.label)
    }

    /// The note: the hashes of what the process reads when it starts, and of the definition.
    fn wanted_note(&self, plist: &[u8]) -> String {
        format!("{} {}", self.restart_for, Sha256Hash::of(plist))
    }

    /// What of the job is outdated although its property list is not.
    async fn outdated<R: Remote>(&self, mac: &R, plist: &[u8]) -> Result<Outdated, PartError> {
        let noted = noted(mac, &self.note()).await?.unwrap_or_default();
        let wanted = self.wanted_note(plist);
        let definition = |note: &str| note.split_once(' ').map(|(_, definition)| definition.to_owned());
        if definition(&noted) != definition(&wanted) {
            // launchd does not show all that it has loaded: a roll may have been broken off before it.
            return Ok(Outdated::Definition);
        }
        // A roll that was broken off has left the previous binary, and perhaps a process that another roll does not want.
        let is_outdated = noted != wanted || self.has_previous(mac).await?;
        Ok(if is_outdated { Outdated::Process } else { Outdated::Nothing })
    }

    /// Notes a definition that launchd has, of a process of which nothing is known.
    async fn note_definition<R: Remote>(&self, mac: &R, plist: &[u8]) -> Result<(), PartError> {
        note(mac, &self.note(), &format!("{UNKNOWN} {}", Sha256Hash::of(plist))).await
    }

    /// Whether the previous binary is there: the new one has not proved itself.
    async fn has_previous<R: Remote>(&self, mac: &R) -> Result<bool, PartError> {
        let Some(path) = &self.previous else { return Ok(false) };
        Ok(mac.run(Call::new(&["/bin/test", "-x", path], COMMAND_DEADLINE)).await?.is_success())
    }

    pub(super) async fn check<R: Remote>(&self, mac: &R) -> Result<Vec<Change>, PartError> {
        let mut changes = Vec::new();
        let label = self.job.label.as_str();
        let wanted = self.job.to_plist().map_err(RollError::Job)?;
        let installed = mac.read_file(&self.plist).await?;
        if installed.as_ref() != Some(&wanted) {
            let is = if installed.is_some() { "another definition" } else { "missing" };
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let old = installed.as_deref().map(text).unwrap_or_default();
            let change = Change::new(&self.plist, is, "the new definition");
            // A new property list has only new lines; they say no more than the change itself.
            changes.push(if old.is_empty() { change } else { change.with_lines(&old, &text(&wanted)) });
        }
        let launchctl = Launchctl::of(mac);
        let seen = launchctl.print(&self.job.label).await.map_err(RollError::Launchctl)?;
        let is_right = seen.service().is_some_and(|service| service.is_of(&self.job, &self.plist));
        if seen.pid().is_none() {
            changes.push(Change::new(label, seen.to_string(), "running"));
        } else if !is_right {
            changes.push(Change::new(label, "runs by another definition", "runs by the new one"));
        }
        if seen.pid().is_some() {
            match self.outdated(mac, &wanted).await? {
                Outdated::Process => {
                    changes.push(Change::new(label, "runs an old binary or credential", "restarted"));
                }
                Outdated::Definition if changes.is_empty() => {
                    changes.push(Change::new(label, "perhaps loaded from an old definition", "loaded again"));
                }
                Outdated::Definition | Outdated::Nothing => (),
            }
        }
        // One that runs would not be loaded at the next boot.
        if launchctl.is_disabled(&self.job.label).await? {
            changes.push(Change::new(label, "disabled", "enabled"));
        }
        Ok(changes)
    }

    pub(super) async fn apply<R: Remote>(&self, mac: &R) -> Result<(), PartError> {
        if self.carries_tailnet {
            ensure_not_over_tailnet(mac, &format!("a restart of {}", self.job.label)).await?;
        }
        let plist = self.job.to_plist().map_err(RollError::Job)?;
        let outdated = self.outdated(mac, &plist).await?;
        let is_there = self.has_previous(mac).await?;
        // The note is taken back first: a roll that is broken off may have started another process than the one that it tells of.
        if outdated == Outdated::Definition {
            run(mac, &["/bin/rm", "-f", &note_path(&self.note())]).await?;
        } else {
            self.note_definition(mac, &plist).await?;
        }
        let previous_program = self.previous.as_deref().filter(|_| is_there);
        let rolled =
            roll(mac, &Roll { job: &self.job, plist: &self.plist, outdated, previous_program }).await;
        if let Err(RollError::NotRunning { fallback: Fallback::Restored { .. }, .. }) = &rolled
            && let Ok(Some(old)) = mac.read_file(&self.plist).await
        {
            // launchd has what is on the disk again, and need not load it once more. The error of the roll matters more than that.
            let _ = self.note_definition(mac, &old).await;
        }
        rolled?;
        // The note comes last: without it the next run goes on from here.
        if let Some(previous) = &self.previous {
            run(mac, &["/bin/rm", "-f", previous]).await?;
        }
        note(mac, &self.note(), &self.wanted_note(&plist)).await
    }
}

impl From<LaunchctlError> for PartError {
    fn from(error: LaunchctlError) -> Self {
        Self::Roll(error.into())
    }
}
