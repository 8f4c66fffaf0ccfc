//! The agent's side: starting a shim.

use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};

use tokio::process::Command;
use tokio::task::JoinHandle;

use super::stray_processes;
use crate::fs::file::FileError;
use crate::state::{PodDir, VmRun};

/// A shim that could not be started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LaunchError {
    /// There is no place for its log.
    #[error(transparent)]
    State(#[from] FileError),
    /// Its log cannot be opened.
    #[error("cannot open {}", .0.display())]
    Log(PathBuf, #[source] io::Error),
    /// The agent's own program cannot be started again.
    #[error("cannot start {} as a shim", .0.display())]
    Spawn(PathBuf, #[source] io::Error),
}

/// Starts the shim of a VM that is planned, unless it has, or had, one. `ended` is called when it ends while this process lives; how it
/// ended is what the returned task says.
pub(crate) fn launch(
    program: &Path,
    pod: &PodDir,
    attempt: &VmRun,
    ended: impl FnOnce() + Send + 'static,
) -> Result<Option<JoinHandle<Option<ExitStatus>>>, LaunchError> {
    // The lock is taken here and handed over as the shim's standard input, so that it is held without a gap: there is no
    // moment in which a second agent, or this one, could take the VM for one without a shim.
    let Some(lock) = attempt.seal()? else { return Ok(None) };
    if attempt.has_begun()? {
        return Ok(None);
    }
    pod.create_logs([])?;
    let log_path = pod.shim_log_path(attempt.restart());
    let log = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&log_path)
        .map_err(|error| LaunchError::Log(log_path, error))?;
    let mut child = Command::new(program)
        .arg("shim")
        .arg(attempt.path())
        .env(stray_processes::MARK, attempt.vm().to_string())
        .stdin(lock.into_file())
        .stdout(Stdio::null())
        .stderr(log)
        .kill_on_drop(false)
        .spawn()
        .map_err(|error| LaunchError::Spawn(program.to_owned(), error))?;
    // How it ended is read from its directory; but one that is killed changes nothing there, nor should it stay a zombie.
    Ok(Some(tokio::spawn(async move {
        let status = child.wait().await.ok();
        ended();
        status
    })))
}
