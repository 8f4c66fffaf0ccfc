//! Which processes belong together, and how all of them end.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::iter::successors;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sysinfo::{Process, ProcessRefreshKind, ProcessStatus, ProcessesToUpdate, System, UpdateKind};

use super::MARKER;

const KILLING_DEADLINE: Duration = Duration::from_secs(30);
/// No chain of parents is longer; it only ends the walk should the process table contradict itself.
const MAX_ANCESTORS: usize = 256;

/// The living processes of a sandbox.
pub fn of(sandbox: &Path) -> Result<Vec<Pid>> {
    marked(MARKER, sandbox)
}

/// The living processes that have a path in an environment variable, or descend from one that does.
///
/// Descendants count because a process may be started with an environment of its own, and because macOS does not show the
/// environment of its protected programs.
pub fn marked(variable: &str, path: &Path) -> Result<Vec<Pid>> {
    let mut marker = OsString::from(variable);
    marker.push("=");
    marker.push(path);
    let mut system = System::new().context("cannot read the process table")?;
    system.refresh_processes_specifics(
        ProcessesToUpdate::All,
        true,
        ProcessRefreshKind::nothing().without_tasks().with_environ(UpdateKind::Always),
    );
    let is_marked = |process: &Process| process.environ().contains(&marker);
    let parent = |process: &Process| process.parent().and_then(|pid| system.process(pid));
    let found = system
        .processes()
        .values()
        .filter(|process| !matches!(process.status(), ProcessStatus::Zombie | ProcessStatus::Dead))
        .filter(|process| {
            successors(Some(*process), |process| parent(process)).take(MAX_ANCESTORS).any(is_marked)
        })
        .filter_map(|process| process.pid().as_u32().try_into().ok().map(Pid::from_raw))
        .collect();
    Ok(found)
}

/// Kills all processes that carry a marker, as if at one instant, and returns when none is left.
pub fn kill_all(variable: &str, path: &Path) -> Result<()> {
    let deadline = Instant::now() + KILLING_DEADLINE;
    // A process that is just being forked can escape one look at the process table.
    let mut looks_without_any = 0;
    while looks_without_any < 2 {
        let found = stop_all(variable, path)?;
        looks_without_any = if found.is_empty() { looks_without_any + 1 } else { 0 };
        ensure!(Instant::now() < deadline, "processes {found:?} of {} do not die", path.display());
        for pid in found {
            send(pid, Signal::SIGKILL);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Stops them: the death of one process must not make another go on to something else.
fn stop_all(variable: &str, path: &Path) -> Result<BTreeSet<Pid>> {
    let mut stopped = BTreeSet::new();
    loop {
        let before = stopped.len();
        for pid in marked(variable, path)? {
            if stopped.insert(pid) {
                send(pid, Signal::SIGSTOP);
            }
        }
        if stopped.len() == before {
            return Ok(stopped);
        }
    }
}

fn send(pid: Pid, signal: Signal) {
    // It may have ended meanwhile; if it has not, the next look finds it.
    let _ = kill(pid, signal);
}
