//! A job of launchd, and the roll that takes it to a new definition or binary.

use launchd::{Call, Job, Launchctl, LaunchctlError, Roll, RollError, roll};
use serde::Serialize;

use super::tailnet::ensure_not_over_tailnet;
use super::{COMMAND_DEADLINE, Change, PartError, Remote, note, noted, run};
use crate::artifact::Sha256Hash;

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

impl JobPart {
    /// The name of the note that says for what the running process was started.
    fn note(&self) -> String {
        format!("{}.rolled", self.job.label)
    }

    pub(super) async fn check<R: Remote>(&self, mac: &R) -> Result<Vec<Change>, PartError> {
        let mut changes = Vec::new();
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
        let seen = Launchctl::of(mac).print(&self.job.label).await.map_err(RollError::Launchctl)?;
        let is_right = seen.service().is_some_and(|service| service.is_of(&self.job, &self.plist));
        if seen.pid().is_none() {
            changes.push(Change::new(self.job.label.as_str(), seen.to_string(), "running"));
        } else if !is_right {
            changes.push(Change::new(
                self.job.label.as_str(),
                "runs by another definition",
                "runs by the new one",
            ));
        }
        if seen.pid().is_some()
            && noted(mac, &self.note()).await?.as_deref() != Some(self.restart_for.as_str())
        {
            changes.push(Change::new(
                self.job.label.as_str(),
                "runs an old binary or credential",
                "restarted",
            ));
        }
        Ok(changes)
    }

    pub(super) async fn apply<R: Remote>(&self, mac: &R) -> Result<(), PartError> {
        if self.carries_tailnet {
            ensure_not_over_tailnet(mac, &format!("a restart of {}", self.job.label)).await?;
        }
        let restart = noted(mac, &self.note()).await?.as_deref() != Some(self.restart_for.as_str());
        // A previous binary is there while the new one has not proved itself.
        let previous = match &self.previous {
            Some(path) if restart => {
                let is_there =
                    mac.run(Call::new(&["/bin/test", "-x", path], COMMAND_DEADLINE)).await?.is_success();
                is_there.then_some(path.as_str())
            }
            _ => None,
        };
        roll(mac, &Roll { job: &self.job, plist: &self.plist, restart, previous_program: previous }).await?;
        // The note comes last: without it the next run goes on from here.
        if let Some(previous) = &self.previous {
            run(mac, &["/bin/rm", "-f", previous]).await?;
        }
        note(mac, &self.note(), self.restart_for.as_str()).await
    }
}

impl From<LaunchctlError> for PartError {
    fn from(error: LaunchctlError) -> Self {
        Self::Roll(error.into())
    }
}
