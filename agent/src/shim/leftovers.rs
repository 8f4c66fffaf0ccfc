//! What a shim that was killed has left running: a `tart` that hangs, or something that a `tart` has started.
//!
//! A process ID alone does not say whose process it is, since IDs are used again. The VM's name does: no other VM ever has it. It is in
//! the environment of the shim and of all that it starts, and in the command line of every `tart` that works on the VM.

use nix::unistd::Pid;

use crate::processes::{self, Running, TableError};
use crate::state::{Attempt, StateError};

/// The environment variable with the name of the VM that a process works for.
pub(super) const MARK: &str = "TART_KUBELET_VM";

/// Leftovers that cannot be found.
#[derive(Debug, thiserror::Error)]
pub enum LeftoversError {
    /// The VM's directory cannot be read.
    #[error(transparent)]
    State(#[from] StateError),
    /// The process table cannot be read.
    #[error(transparent)]
    Processes(#[from] TableError),
}

/// Kills the shim of a VM, if it lives, and all that it has started. Returns what was killed.
pub fn kill_leftovers(attempt: &Attempt) -> Result<Vec<Pid>, LeftoversError> {
    let running = processes::others()?;
    let found = leftovers(&running, &attempt.vm().to_string(), attempt.signed()?);
    for one in &found {
        one.kill();
    }
    Ok(found.iter().map(|one| one.pid).collect())
}

/// Which processes are what the shim of a VM has left, itself included.
fn leftovers<'a>(running: &'a [Running], vm: &str, shim: Option<Pid>) -> Vec<&'a Running> {
    let is_marked = |one: &Running| one.variable(MARK) == Some(vm);
    let in_session = |one: &Running| shim.is_some() && one.session == shim;
    // macOS hides the environment of some programs. But no process gets an ID that is still the ID of a session: when one process
    // of the session is the shim's, all are.
    let session_is_ours = running.iter().any(|one| in_session(one) && (is_marked(one) || one.names(vm)));
    running.iter().filter(|one| is_marked(one) || (session_is_ours && in_session(one))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHIM: i32 = 70;
    const VM: &str = "tk-0b1c-0";

    fn found(running: &[Running], shim: Option<i32>) -> Vec<i32> {
        leftovers(running, VM, shim.map(Pid::from_raw)).into_iter().map(|one| one.pid.as_raw()).collect()
    }

    fn named(pid: i32, session: i32) -> Running {
        Running::example(pid, session, &["tart", "clone", "base", VM], &[])
    }

    fn marked(pid: i32, session: i32) -> Running {
        Running::example(pid, session, &["sh"], &["A=1", "TART_KUBELET_VM=tk-0b1c-0"])
    }

    fn unknown(pid: i32, session: i32) -> Running {
        Running::example(pid, session, &["sh"], &["TART_KUBELET_VM=tk-0b1c-01"])
    }

    #[test]
    fn all_of_the_session_once_one_of_it_is_known() {
        assert_eq!(found(&[named(71, SHIM), unknown(72, SHIM), unknown(80, 80)], Some(SHIM)), [71, 72]);
        assert_eq!(found(&[marked(71, SHIM), unknown(72, SHIM), unknown(80, 80)], Some(SHIM)), [71, 72]);
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
    fn somebody_who_looks_at_the_vm_is_left_alone() {
        assert_eq!(found(&[named(90, 90)], Some(SHIM)), [0; 0]);
        assert_eq!(found(&[named(90, 90)], None), [0; 0]);
    }
}
