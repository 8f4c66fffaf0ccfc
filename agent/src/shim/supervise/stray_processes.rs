//! Processes that a dead shim has left: a `tart` that hangs, or a child of a `tart`.
//!
//! A process ID alone does not identify a process, since IDs are reused. The VM's name does: no other VM ever has it. It is in the
//! environment of the shim and of all that it starts, and in the command line of every `tart` that works on the VM.

use std::path::PathBuf;
use std::time::Duration;

use nix::unistd::Pid;
use tokio::time::{Instant, sleep};

use crate::fs::file::FileError;
use crate::os::process_table::{self, RunningProcess, TableError};
use crate::state::{Holder, VmRun};

/// The environment variable with the VM's name.
pub(super) const VM_VARIABLE: &str = "TART_KUBELET_VM";

/// How often the locks are tried.
const INTERVAL: Duration = Duration::from_millis(50);

#[derive(Debug, thiserror::Error)]
pub(crate) enum StrayProcessError {
    #[error(transparent)]
    State(#[from] FileError),
    #[error(transparent)]
    Processes(#[from] TableError),
    /// A process holds the VM's lock, and is not in the process table.
    #[error(
        "a process that cannot be found holds {}; see which one with `sudo lsof {}`, and end it",
        .0.display(), .0.display()
    )]
    Hidden(PathBuf),
}

/// Waits until no process works on a VM; false when one still does after `limit`.
pub(crate) async fn gone(run: &VmRun, limit: Duration) -> Result<bool, FileError> {
    let end = Instant::now() + limit;
    // There is no notification for a lock that becomes free.
    while run.holder()? != Holder::None {
        if Instant::now() >= end {
            return Ok(false);
        }
        sleep(INTERVAL).await;
    }
    Ok(true)
}

/// Kills the processes that hold the lock of a VM without a shim. Returns them; empty when the lock is free.
pub(crate) fn kill_lock_holders(run: &VmRun) -> Result<Vec<Pid>, StrayProcessError> {
    let killed = kill_stray_processes(run)?;
    if killed.is_empty() && run.holder()? == Holder::Tart {
        return Err(StrayProcessError::Hidden(run.path().join("tart.lock")));
    }
    Ok(killed)
}

/// Kills the shim of a VM, if it lives, and all that it has started. Returns what was killed.
pub(crate) fn kill_stray_processes(run: &VmRun) -> Result<Vec<Pid>, StrayProcessError> {
    let running = process_table::others()?;
    let found = stray_processes(&running, &run.vm().to_string(), run.shim_pid()?);
    for one in &found {
        one.kill();
    }
    Ok(found.iter().map(|one| one.pid).collect())
}

/// The processes of a VM's shim. The shim itself comes first: it would record the end of the others.
fn stray_processes<'a>(
    running: &'a [RunningProcess],
    vm: &str,
    shim: Option<Pid>,
) -> Vec<&'a RunningProcess> {
    let is_marked = |one: &RunningProcess| one.variable(VM_VARIABLE) == Some(vm);
    let in_session = |one: &RunningProcess| shim.is_some() && one.session == shim;
    // macOS hides the environment of some programs. But no new process gets the ID of a session that still exists: when one process of
    // the session is the shim's, all are.
    let session_is_ours = running.iter().any(|one| in_session(one) && (is_marked(one) || one.names(vm)));
    let mut found: Vec<_> =
        running.iter().filter(|one| is_marked(one) || (session_is_ours && in_session(one))).collect();
    found.sort_by_key(|one| one.session != Some(one.pid));
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::dir;
    use std::fs::File;

    const SHIM: i32 = 70;
    const VM: &str = "tk-0b1c-0";

    fn found(running: &[RunningProcess], shim: Option<i32>) -> Vec<i32> {
        stray_processes(running, VM, shim.map(Pid::from_raw))
            .into_iter()
            .map(|one| one.pid.as_raw())
            .collect()
    }

    fn named(pid: i32, session: i32) -> RunningProcess {
        RunningProcess::example(pid, session, &["tart", "clone", "base", VM], &[])
    }

    fn marked(pid: i32, session: i32) -> RunningProcess {
        RunningProcess::example(pid, session, &["sh"], &["A=1", "TART_KUBELET_VM=tk-0b1c-0"])
    }

    fn unknown(pid: i32, session: i32) -> RunningProcess {
        RunningProcess::example(pid, session, &["sh"], &["TART_KUBELET_VM=tk-0b1c-01"])
    }

    #[test]
    fn all_processes_of_a_session_are_found_by_one_with_the_vms_name() {
        assert_eq!(found(&[named(71, SHIM), unknown(72, SHIM), unknown(80, 80)], Some(SHIM)), [71, 72]);
        assert_eq!(found(&[marked(71, SHIM), unknown(72, SHIM), unknown(80, 80)], Some(SHIM)), [71, 72]);
    }

    #[test]
    fn the_shim_comes_before_the_processes_whose_end_it_would_record() {
        assert_eq!(
            found(&[named(71, SHIM), marked(SHIM, SHIM), marked(72, SHIM)], Some(SHIM)),
            [SHIM, 71, 72]
        );
        assert_eq!(found(&[marked(71, SHIM), marked(SHIM, SHIM)], None), [SHIM, 71]);
    }

    #[test]
    fn a_session_that_reuses_the_shims_process_id_is_not_found() {
        assert_eq!(found(&[unknown(SHIM, SHIM), unknown(71, SHIM)], Some(SHIM)), [0; 0]);
    }

    #[test]
    fn a_process_of_another_session_is_found_by_its_variable() {
        assert_eq!(found(&[marked(90, 90), unknown(91, 90)], Some(SHIM)), [90]);
        assert_eq!(found(&[marked(90, 90)], None), [90]);
    }

    #[test]
    fn a_hidden_holder_of_the_lock_is_an_error_with_advice() {
        let dir = dir();
        let run = VmRun::example(dir.path());
        std::fs::create_dir_all(run.path()).unwrap();
        assert_eq!(kill_lock_holders(&run).unwrap(), []);
        let lock = File::create(run.path().join("tart.lock")).unwrap();
        lock.lock().unwrap();
        let told = kill_lock_holders(&run).unwrap_err().to_string();
        assert!(told.contains("tart.lock") && told.contains("lsof"), "{told}");
    }

    #[test]
    fn a_tart_of_a_user_is_not_found() {
        assert_eq!(found(&[named(90, 90)], Some(SHIM)), [0; 0]);
        assert_eq!(found(&[named(90, 90)], None), [0; 0]);
    }
}
