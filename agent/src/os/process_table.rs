//! The processes of this host, with the agent's own environment variables.

use std::ffi::{OsStr, OsString};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getpid};
use sysinfo::{Process, ProcessRefreshKind, ProcessStatus, ProcessesToUpdate, System, UpdateKind};

/// The process table cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the processes of this host")]
pub(crate) struct TableError(#[source] pub(super) sysinfo::Error);

/// A process that is no zombie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RunningProcess {
    pub(crate) pid: Pid,
    pub(crate) parent: Option<Pid>,
    pub(crate) session: Option<Pid>,
    /// When it was started, in seconds since 1970, give or take a few.
    pub(crate) started: i64,
    command: Vec<OsString>,
    /// Its variables with the agent's prefix.
    environment: Vec<(String, String)>,
}

/// The prefix of the agent's own variables.
const PREFIX: &str = "TART_KUBELET_";

/// How many processes are looked at together. The environments of all processes of a Mac are more than all that the agent keeps in
/// memory, and the memory that they take once stays the agent's.
const BATCH: usize = 16;

/// All processes but this one.
pub(crate) fn others() -> Result<Vec<RunningProcess>, TableError> {
    let kind = ProcessRefreshKind::nothing().without_tasks();
    let pids: Vec<_> = look(ProcessesToUpdate::All, kind)?.processes().keys().copied().collect();
    let kind = kind.with_cmd(UpdateKind::Always).with_environ(UpdateKind::Always);
    let mut others = Vec::new();
    for some in pids.chunks(BATCH) {
        let system = look(ProcessesToUpdate::Some(some), kind)?;
        let found = system.processes().values().filter_map(RunningProcess::of);
        others.extend(found.filter(|one| one.pid != getpid()));
    }
    Ok(others)
}

fn look(which: ProcessesToUpdate<'_>, kind: ProcessRefreshKind) -> Result<System, TableError> {
    let mut system = System::new().map_err(TableError)?;
    system.refresh_processes_specifics(which, true, kind);
    Ok(system)
}

impl RunningProcess {
    fn of(process: &Process) -> Option<Self> {
        let is_dead = matches!(process.status(), ProcessStatus::Zombie | ProcessStatus::Dead);
        Some(Self {
            pid: pid_of(process.pid()).filter(|_| !is_dead)?,
            parent: process.parent().and_then(pid_of),
            session: process.session_id().and_then(pid_of),
            started: process.start_time().try_into().unwrap_or(i64::MAX),
            command: process.cmd().to_vec(),
            environment: process.environ().iter().filter_map(|variable| own_variable(variable)).collect(),
        })
    }

    /// Whether its command line has a word.
    pub(crate) fn names(&self, word: &str) -> bool {
        self.command.iter().any(|argument| argument == word)
    }

    /// The words of its command line.
    pub(crate) fn words(&self) -> impl Iterator<Item = &str> {
        self.command.iter().filter_map(|word| word.to_str())
    }

    /// The value of one of the agent's variables. macOS hides the environment of some programs.
    pub(crate) fn variable(&self, name: &str) -> Option<&str> {
        self.environment.iter().find(|(one, _)| one == name).map(|(_, value)| value.as_str())
    }

    /// Adds what is known of its environment from elsewhere.
    pub(crate) fn add_variable(&mut self, name: &str, value: String) {
        self.environment.push((name.to_owned(), value));
    }

    pub(crate) fn kill(&self) {
        // It fails only when the process is gone.
        let _ = kill(self.pid, Signal::SIGKILL);
    }
}

fn own_variable(variable: &OsStr) -> Option<(String, String)> {
    let (name, value) = variable.to_str()?.split_once('=')?;
    name.starts_with(PREFIX).then(|| (name.to_owned(), value.to_owned()))
}

fn pid_of(pid: sysinfo::Pid) -> Option<Pid> {
    i32::try_from(pid.as_u32()).ok().filter(|&pid| pid > 1).map(Pid::from_raw)
}

#[cfg(test)]
impl RunningProcess {
    pub(crate) fn example(pid: i32, session: i32, command: &[&str], environment: &[&str]) -> Self {
        Self {
            pid: Pid::from_raw(pid),
            parent: None,
            session: Some(Pid::from_raw(session)),
            started: 0,
            command: command.iter().map(OsString::from).collect(),
            environment: environment
                .iter()
                .filter_map(|variable| own_variable(OsStr::new(variable)))
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_child_is_found_by_its_arguments_and_variables_and_can_be_killed() {
        let mut command = Command::new("cat");
        command.arg("-").env("TART_KUBELET_TEST", "here=there").stdin(Stdio::piped()).stdout(Stdio::null());
        let mut child = command.spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let found = others().unwrap().into_iter().find(|one| one.pid.as_raw() == pid).unwrap();
        assert_eq!((found.names("-"), found.variable("TART_KUBELET_TEST")), (true, Some("here=there")));
        assert_eq!(found.parent, Some(getpid()));
        let age = jiff::Timestamp::now().as_second() - found.started;
        assert!(age.abs() < 60, "{age}");
        assert_eq!((found.names("TART_KUBELET_TEST"), found.variable("HOME")), (false, None));
        found.kill();
        assert!(!child.wait().unwrap().success());
        assert!(others().unwrap().iter().all(|one| one.pid.as_raw() != pid && one.pid != getpid()));
    }
}
