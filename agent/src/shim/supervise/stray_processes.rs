//! What a shim that was killed has left running: a `tart` that hangs, or something that a `tart` has started.
//!
//! A process ID alone does not say whose process it is, since IDs are used again. The VM's name does: no other VM ever has it. It is in
//! the environment of the shim and of all that it starts, and in the command line of every `tart` that works on the VM.

use std::path::PathBuf;
use std::time::Duration;

use nix::unistd::Pid;
use tokio::time::{Instant, sleep};

use crate::fs::file::FileError;
use crate::os::process_table::{self, RunningProcess, TableError};
use crate::state::{Holder, VmRun};

/// The environment variable with the name of the VM that a process works for.
pub(crate) const MARK: &str = "TART_KUBELET_VM";

/// How often somebody looks whether anything is left.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Leftovers that cannot be found.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StrayProcessError {
    /// The VM's directory cannot be read.
    #[error(transparent)]
    State(#[from] FileError),
    /// The process table cannot be read.
    #[error(transparent)]
    Processes(#[from] TableError),
    /// Something is at work on the VM, and nobody knows what.
    #[error(
        "a process that cannot be found holds {}; see which one with `sudo lsof {}`, and end it",
        .0.display(), .0.display()
    )]
    Hidden(PathBuf),
}

/// Waits until nothing is at work on a VM any more; false when something still is after so long.
pub(crate) async fn gone(attempt: &VmRun, longest: Duration) -> Result<bool, FileError> {
    let end = Instant::now() + longest;
    // Nobody is told when a lock is free.
    while attempt.holder()? != Holder::Nobody {
        if Instant::now() >= end {
            return Ok(false);
        }
        sleep(LOOK_EVERY).await;
    }
    Ok(true)
}

/// Kills what keeps a VM without a shim at work. Returns what was killed: something, unless nothing is at work any more.
pub(crate) fn free(attempt: &VmRun) -> Result<Vec<Pid>, StrayProcessError> {
    let killed = kill_leftovers(attempt)?;
    if killed.is_empty() && attempt.holder()? == Holder::Tart {
        return Err(StrayProcessError::Hidden(attempt.path().join("tart.lock")));
    }
    Ok(killed)
}

/// Kills the shim of a VM, if it lives, and all that it has started. Returns what was killed.
pub(crate) fn kill_leftovers(attempt: &VmRun) -> Result<Vec<Pid>, StrayProcessError> {
    let running = process_table::others()?;
    let found = leftovers(&running, &attempt.vm().to_string(), attempt.signed()?);
    for one in &found {
        one.kill();
    }
    Ok(found.iter().map(|one| one.pid).collect())
}

/// Which processes are what the shim of a VM has left, itself included, and first: it would write down how the others have ended.
fn leftovers<'a>(running: &'a [RunningProcess], vm: &str, shim: Option<Pid>) -> Vec<&'a RunningProcess> {
    let is_marked = |one: &RunningProcess| one.variable(MARK) == Some(vm);
    let in_session = |one: &RunningProcess| shim.is_some() && one.session == shim;
    // macOS hides the environment of some programs. But no process gets an ID that is still the ID of a session: when one process
    // of the session is the shim's, all are.
    let session_is_ours = running.iter().any(|one| in_session(one) && (is_marked(one) || one.names(vm)));
    let mut found: Vec<_> =
        running.iter().filter(|one| is_marked(one) || (session_is_ours && in_session(one))).collect();
    found.sort_by_key(|one| one.session != Some(one.pid));
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::Restart;
    use crate::state::StateDir;
    use std::fs::File;

    const SHIM: i32 = 70;
    const VM: &str = "tk-0b1c-0";

    fn found(running: &[RunningProcess], shim: Option<i32>) -> Vec<i32> {
        leftovers(running, VM, shim.map(Pid::from_raw)).into_iter().map(|one| one.pid.as_raw()).collect()
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
    fn all_of_the_session_once_one_of_it_is_known() {
        assert_eq!(found(&[named(71, SHIM), unknown(72, SHIM), unknown(80, 80)], Some(SHIM)), [71, 72]);
        assert_eq!(found(&[marked(71, SHIM), unknown(72, SHIM), unknown(80, 80)], Some(SHIM)), [71, 72]);
    }

    #[test]
    fn the_shim_goes_before_those_whose_end_it_would_tell() {
        assert_eq!(
            found(&[named(71, SHIM), marked(SHIM, SHIM), marked(72, SHIM)], Some(SHIM)),
            [SHIM, 71, 72]
        );
        assert_eq!(found(&[marked(71, SHIM), marked(SHIM, SHIM)], None), [SHIM, 71]);
    }

    #[test]
    fn a_session_that_has_the_number_of_the_shim_by_chance_is_left_alone() {
        assert_eq!(found(&[unknown(SHIM, SHIM), unknown(71, SHIM)], Some(SHIM)), [0; 0]);
    }

    #[test]
    fn what_has_left_the_session_is_known_by_its_mark() {
        assert_eq!(found(&[marked(90, 90), unknown(91, 90)], Some(SHIM)), [90]);
        assert_eq!(found(&[marked(90, 90)], None), [90]);
    }

    #[test]
    fn what_holds_a_vm_and_cannot_be_found_is_told() {
        let dir =
            tempfile::tempdir_in(tart_kubelet_tests::sandbox::Sandbox::shared().unwrap().path()).unwrap();
        let attempt = StateDir::open(dir.path()).unwrap().pod("0b1c".parse().unwrap()).attempt(Restart(0));
        std::fs::create_dir_all(attempt.path()).unwrap();
        assert_eq!(free(&attempt).unwrap(), []);
        let lock = File::create(attempt.path().join("tart.lock")).unwrap();
        lock.lock().unwrap();
        let told = free(&attempt).unwrap_err().to_string();
        assert!(told.contains("tart.lock") && told.contains("lsof"), "{told}");
    }

    #[test]
    fn somebody_who_looks_at_the_vm_is_left_alone() {
        assert_eq!(found(&[named(90, 90)], Some(SHIM)), [0; 0]);
        assert_eq!(found(&[named(90, 90)], None), [0; 0]);
    }
}
