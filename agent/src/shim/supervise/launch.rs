//! Launches a shim.

use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};

use tokio::process::Command;
use tokio::task::JoinHandle;

use super::stray_processes;
use crate::fs::file::FileError;
use crate::state::{PodDir, VmRun};

#[derive(Debug, thiserror::Error)]
pub(crate) enum LaunchError {
    #[error(transparent)]
    State(#[from] FileError),
    #[error("cannot open {}", .0.display())]
    Log(PathBuf, #[source] io::Error),
    #[error("cannot start {} as a shim", .0.display())]
    Spawn(PathBuf, #[source] io::Error),
}

/// Starts the shim of a planned VM, unless the VM has, or had, one. Calls `ended` when the shim ends while this process lives; the task
/// returns its exit status.
pub(crate) fn launch(
    program: &Path,
    pod: &PodDir,
    vm_run: &VmRun,
    ended: impl FnOnce() + Send + 'static,
) -> Result<Option<JoinHandle<Option<ExitStatus>>>, LaunchError> {
    // The agent takes the lock and hands it over as the shim's standard input, so that it is held without a gap: no agent ever sees the
    // VM without a shim.
    let Some(lock) = vm_run.take_shim_lock()? else { return Ok(None) };
    if vm_run.has_begun()? {
        return Ok(None);
    }
    pod.create_logs([])?;
    let log_path = pod.shim_log_path(vm_run.restart());
    let log = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&log_path)
        .map_err(|error| LaunchError::Log(log_path, error))?;
    let mut child = Command::new(program)
        .arg("shim")
        .arg(vm_run.path())
        .env(stray_processes::VM_VARIABLE, vm_run.vm().to_string())
        .stdin(lock.into_file())
        .stdout(Stdio::null())
        .stderr(log)
        .kill_on_drop(false)
        .spawn()
        .map_err(|error| LaunchError::Spawn(program.to_owned(), error))?;
    // The agent reads the outcome from the directory. But a shim that is killed writes nothing there, and must not stay a zombie.
    Ok(Some(tokio::spawn(async move {
        let status = child.wait().await.ok();
        ended();
        status
    })))
}
