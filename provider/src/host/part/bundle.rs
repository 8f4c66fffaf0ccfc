//! An archive that is unpacked into a directory of its own for each version. A version is never changed under programs that run from it.

use std::time::Duration;

use launchd::Call;
use serde::Serialize;

use super::{
    COMMAND_DEADLINE, Change, PartError, Remote, ensure_room, make_directory, run, run_within, sha256,
};
use crate::artifact::Artifact;

const UPLOAD_DEADLINE: Duration = Duration::from_mins(10);
const UNPACK_DEADLINE: Duration = Duration::from_mins(2);
const PROBE_DEADLINE: Duration = Duration::from_secs(30);

/// An unpacked archive.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Bundle {
    /// The directory of all versions.
    pub(crate) directory: String,
    /// The version, as the program prints it.
    pub(crate) version: String,
    /// The program in the archive.
    pub(crate) program: String,
    /// The archive, a tar file, compressed or not.
    pub(crate) archive: Artifact,
}

impl Bundle {
    /// The program on the Mac.
    pub(crate) fn program_path(&self) -> String {
        format!("{}/{}", self.version_directory(), self.program)
    }

    fn version_directory(&self) -> String {
        format!("{}/{}", self.directory, self.version)
    }

    pub(super) async fn check<R: Remote>(&self, mac: &R) -> Result<Vec<Change>, PartError> {
        let what = self.version_directory();
        Ok(match version(mac, &self.program_path()).await? {
            Some(version) if version == self.version => Vec::new(),
            Some(version) => vec![Change::new(what, format!("version {version}"), &self.version)],
            None => vec![Change::new(what, "missing", &self.version)],
        })
    }

    pub(super) async fn apply<R: Remote>(&self, mac: &R) -> Result<(), PartError> {
        let (place, staged) =
            (self.version_directory(), format!("{}/.{}.staged", self.directory, self.version));
        let archive = format!("{staged}.tar");
        make_directory(mac, &self.directory).await?;
        // The archive, and what comes out of it. An archive that is compressed well may need more; then the Mac says so itself.
        ensure_room(mac, &self.directory, 4 * self.archive.size()).await?;
        mac.upload(&self.archive, &archive, UPLOAD_DEADLINE).await?;
        let arrived = sha256(mac, &archive).await?.unwrap_or_default();
        if arrived != self.archive.sha256().as_str() {
            let wanted = self.archive.sha256().to_string();
            return Err(PartError::Damaged { path: archive, is: arrived, wanted });
        }
        run(mac, &["/bin/rm", "-rf", &staged]).await?;
        make_directory(mac, &staged).await?;
        run_within(mac, &["/usr/bin/tar", "-xf", &archive, "-C", &staged], UNPACK_DEADLINE).await?;
        run(mac, &["/bin/rm", "-f", &archive]).await?;
        let program = format!("{staged}/{}", self.program);
        match version(mac, &program).await? {
            Some(version) if version == self.version => (),
            seen => {
                let message = match seen {
                    Some(version) => format!("it says that it is version {version}, not {}", self.version),
                    None => "it does not print its version".to_owned(),
                };
                return Err(PartError::Broken { program: self.program.clone(), message });
            }
        }
        // What is there is no bundle of this version, or the check would have found it.
        run(mac, &["/bin/rm", "-rf", &place]).await?;
        run(mac, &["/bin/mv", "-f", &staged, &place]).await.map(drop)
    }
}

/// What a program prints as its version; `None` when it does not run.
async fn version<R: Remote>(mac: &R, program: &str) -> Result<Option<String>, PartError> {
    if !mac.run(Call::new(&["/bin/test", "-x", program], COMMAND_DEADLINE)).await?.is_success() {
        return Ok(None);
    }
    let output = mac.run(Call::new(&[program, "--version"], PROBE_DEADLINE)).await?;
    Ok(output.is_success().then(|| output.stdout.trim().to_owned()))
}
