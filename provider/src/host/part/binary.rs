//! A program that is copied to the Mac. macOS remembers a program's signature by its inode, so that a running program is never overwritten:
//! the new one is copied, checked, signed and tried under another name, and then renamed.

use std::time::Duration;

use launchd::Call;
use serde::Serialize;

use super::{
    COMMAND_DEADLINE, Change, PartError, Remote, ensure_room, make_directory, note, noted, run, run_within,
    sha256,
};
use crate::artifact::Artifact;

/// The slowest line that is worth waiting for: 50 MB in ten minutes.
const UPLOAD_DEADLINE: Duration = Duration::from_mins(10);
const SIGN_DEADLINE: Duration = Duration::from_mins(1);
/// How long a program may take to print its version. macOS checks a new program when it starts for the first time.
const PROBE_DEADLINE: Duration = Duration::from_secs(30);

/// A program on the Mac.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Binary {
    /// Its file name.
    pub(crate) name: String,
    /// Its directory.
    pub(crate) directory: String,
    /// What it is copied from.
    pub(crate) artifact: Artifact,
    /// Whether a job runs it, which goes back to the old program when the new one does not stay.
    pub(crate) has_job: bool,
}

impl Binary {
    /// The program on the Mac.
    pub(crate) fn path(&self) -> String {
        format!("{}/{}", self.directory, self.name)
    }

    /// The program that it replaced, until the new one has proved itself.
    pub(crate) fn previous(&self) -> String {
        format!("{}/.{}.previous", self.directory, self.name)
    }

    fn staged(&self) -> String {
        format!("{}/.{}.staged", self.directory, self.name)
    }

    pub(super) async fn check<R: Remote>(&self, mac: &R) -> Result<Vec<Change>, PartError> {
        let path = self.path();
        let megabytes = self.artifact.size().div_ceil(1_000_000);
        let wanted = format!("SHA-256 {} ({megabytes} MB)", self.artifact.sha256().short());
        let Some(is) = sha256(mac, &path).await? else {
            return Ok(vec![Change::new(path, "missing", wanted)]);
        };
        // Signing changes the bytes. The note has the hash of the file before and after.
        let note = noted(mac, &self.name).await?.unwrap_or_default();
        if note == format!("{} {is}", self.artifact.sha256()) {
            return Ok(Vec::new());
        }
        let source = note.split_once(' ').filter(|(_, installed)| *installed == is).map(|(source, _)| source);
        let is = source.map_or_else(
            || "a file of unknown origin".to_owned(),
            |source| format!("SHA-256 {}", short(source)),
        );
        Ok(vec![Change::new(path, is, wanted)])
    }

    pub(super) async fn apply<R: Remote>(&self, mac: &R) -> Result<(), PartError> {
        let (path, staged) = (self.path(), self.staged());
        make_directory(mac, &self.directory).await?;
        // codesign signs a copy, so that the file is there twice for a moment.
        ensure_room(mac, &self.directory, 2 * self.artifact.size()).await?;
        mac.upload(&self.artifact, &staged, UPLOAD_DEADLINE).await?;
        let installed = match self.try_out(mac, &staged).await {
            Ok(installed) => installed,
            Err(error) => {
                // What has gone wrong matters more than a file that stays behind, and is written over by the next attempt.
                let _ = mac.run(Call::new(&["/bin/rm", "-f", &staged], COMMAND_DEADLINE)).await;
                return Err(error);
            }
        };
        if self.has_job {
            self.keep_previous(mac, &path).await?;
        }
        // The note comes first: a program without one is another's, and stays when this one is switched off.
        note(mac, &self.name, &format!("{} {installed}", self.artifact.sha256())).await?;
        run(mac, &["/bin/mv", "-f", &staged, &path]).await.map(drop)
    }

    /// Keeps the program that is there under another name. One that is kept already has proved itself, and the one that is there has not.
    async fn keep_previous<R: Remote>(&self, mac: &R, path: &str) -> Result<(), PartError> {
        let previous = self.previous();
        let is_kept = mac.run(Call::new(&["/bin/test", "-e", &previous], COMMAND_DEADLINE)).await?;
        if is_kept.is_success() || sha256(mac, path).await?.is_none() {
            return Ok(());
        }
        run(mac, &["/bin/ln", path, &previous]).await.map(drop)
    }

    /// Checks, signs and runs the new program under its other name, and returns the hash that it has then.
    async fn try_out<R: Remote>(&self, mac: &R, staged: &str) -> Result<String, PartError> {
        let arrived = sha256(mac, staged).await?.unwrap_or_default();
        if arrived != self.artifact.sha256().as_str() {
            let wanted = self.artifact.sha256().to_string();
            return Err(PartError::Damaged { path: staged.to_owned(), is: arrived, wanted });
        }
        run_within(mac, &["/usr/bin/codesign", "--force", "--sign", "-", staged], SIGN_DEADLINE).await?;
        let probe = mac.run(Call::new(&[staged, "--version"], PROBE_DEADLINE)).await?;
        if !probe.is_success() {
            let message = format!("`--version` ended with {}: {}", probe.code, probe.message());
            return Err(PartError::Broken { program: self.name.clone(), message });
        }
        Ok(sha256(mac, staged).await?.unwrap_or_default())
    }
}

fn short(hash: &str) -> &str {
    hash.get(..12).unwrap_or(hash)
}
