//! The processes of this host, as far as they say what they are for.

use std::ffi::{OsStr, OsString};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getpid};
use sysinfo::{Process, ProcessRefreshKind, ProcessStatus, ProcessesToUpdate, System, UpdateKind};

/// The process table cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot look at the processes of this host")]
pub(crate) struct TableError(#[source] sysinfo::Error);

/// A living process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RunningProcess {
    /// Its ID.
    pub(crate) pid: Pid,
    /// Who has started it, or has taken it in since that one is gone.
    pub(crate) parent: Option<Pid>,
    /// The session that it is in.
    pub(crate) session: Option<Pid>,
    command: Vec<OsString>,
    /// Those of its variables that are ours.
    environment: Vec<(String, String)>,
}

/// How the names of variables begin that say what a process is for.
const OURS: &str = "TART_KUBELET_";

/// All processes but this one.
pub(crate) fn others() -> Result<Vec<RunningProcess>, TableError> {
    let mut system = System::new().map_err(TableError)?;
    let kind = ProcessRefreshKind::nothing().without_tasks();
    let kind = kind.with_cmd(UpdateKind::Always).with_environ(UpdateKind::Always);
    system.refresh_processes_specifics(ProcessesToUpdate::All, true, kind);
    Ok(system.processes().values().filter_map(RunningProcess::of).filter(|one| one.pid != getpid()).collect())
}

impl RunningProcess {
    fn of(process: &Process) -> Option<Self> {
        let is_dead = matches!(process.status(), ProcessStatus::Zombie | ProcessStatus::Dead);
        Some(Self {
            pid: pid_of(process.pid()).filter(|_| !is_dead)?,
            parent: process.parent().and_then(pid_of),
            session: process.session_id().and_then(pid_of),
            command: process.cmd().to_vec(),
            environment: process.environ().iter().filter_map(|variable| ours(variable)).collect(),
        })
    }

    /// Whether a word is in its command line.
    pub(crate) fn names(&self, word: &str) -> bool {
        self.command.iter().any(|argument| argument == word)
    }

    /// The words of its command line.
    pub(crate) fn words(&self) -> impl Iterator<Item = &str> {
        self.command.iter().filter_map(|word| word.to_str())
    }

    /// What it has in one of our variables. macOS hides the environment of some programs.
    pub(crate) fn variable(&self, name: &str) -> Option<&str> {
        self.environment.iter().find(|(one, _)| one == name).map(|(_, value)| value.as_str())
    }

    /// Kills it.
    pub(crate) fn kill(&self) {
        // It fails only when the process is gone, which is what we want.
        let _ = kill(self.pid, Signal::SIGKILL);
    }
}

fn ours(variable: &OsStr) -> Option<(String, String)> {
    let (name, value) = variable.to_str()?.split_once('=')?;
    name.starts_with(OURS).then(|| (name.to_owned(), value.to_owned()))
}

fn pid_of(pid: sysinfo::Pid) -> Option<Pid> {
    i32::try_from(pid.as_u32()).ok().filter(|&pid| pid > 1).map(Pid::from_raw)
}

#[cfg(test)]
impl RunningProcess {
    /// A process for tests.
    pub(crate) fn example(pid: i32, session: i32, command: &[&str], environment: &[&str]) -> Self {
        Self {
            pid: Pid::from_raw(pid),
            parent: None,
            session: Some(Pid::from_raw(session)),
            command: command.iter().map(OsString::from).collect(),
            environment: environment.iter().filter_map(|variable| ours(OsStr::new(variable))).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_child_is_found_by_what_it_was_given_and_can_be_killed() {
        let mut command = Command::new("cat");
        command.arg("-").env("TART_KUBELET_TEST", "here=there").stdin(Stdio::piped()).stdout(Stdio::null());
        let mut child = command.spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let found = others().unwrap().into_iter().find(|one| one.pid.as_raw() == pid).unwrap();
        assert_eq!((found.names("-"), found.variable("TART_KUBELET_TEST")), (true, Some("here=there")));
        assert_eq!(found.parent, Some(getpid()));
        assert_eq!((found.names("TART_KUBELET_TEST"), found.variable("HOME")), (false, None));
        found.kill();
        assert!(!child.wait().unwrap().success());
        assert!(others().unwrap().iter().all(|one| one.pid.as_raw() != pid && one.pid != getpid()));
    }
}
