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
    // Before the shim's start: until it has recorded its own process ID, the agent must not kill by an earlier shim's.
    vm_run.forget_shim_pid()?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::Restart;
    use crate::state::{ShimSpec, StateDir};
    use crate::testing::dir;

    #[tokio::test]
    async fn a_launch_forgets_the_process_id_of_an_earlier_shim() {
        let dir = dir();
        let pod = StateDir::open(dir.path()).unwrap().pod("0b1c".parse().unwrap());
        let run = pod.run(Restart(0));
        run.plan(&ShimSpec::example(run.vm())).unwrap();
        // A shim that died before it began the run. The process that has its ID now is this test.
        run.record_shim_pid(std::process::id()).unwrap();
        let shim = launch(Path::new("true"), &pod, &run, || {}).unwrap().expect("the run has no shim");
        assert_eq!(run.shim_pid().unwrap(), None);
        assert!(!run.kill_shim().unwrap(), "this test would be killed");
        assert!(shim.await.unwrap().is_some_and(|status| status.success()));
    }

    #[tokio::test]
    async fn a_launch_that_finds_a_shim_leaves_its_process_id() {
        let dir = dir();
        let pod = StateDir::open(dir.path()).unwrap().pod("0b1c".parse().unwrap());
        let run = pod.run(Restart(0));
        run.plan(&ShimSpec::example(run.vm())).unwrap();
        run.record_shim_pid(7).unwrap();
        let _lock = run.take_shim_lock().unwrap();
        assert!(launch(Path::new("true"), &pod, &run, || {}).unwrap().is_none());
        assert!(run.shim_pid().unwrap().is_some());
    }
}
