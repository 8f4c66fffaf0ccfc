//! Which processes belong to a sandbox.

use std::ffi::OsString;
use std::iter::successors;
use std::path::Path;

use anyhow::{Context, Result};
use nix::unistd::Pid;
use sysinfo::{Process, ProcessRefreshKind, ProcessStatus, ProcessesToUpdate, System, UpdateKind};

use super::MARKER;

/// No chain of parents is longer; it only ends the walk should the process table contradict itself.
const MAX_ANCESTORS: usize = 256;

/// The living processes that carry a sandbox's marker, or descend from one that does.
///
/// Descendants count because a process may be started with an environment of its own, and because macOS does not show the
/// environment of its protected programs.
pub fn of(sandbox: &Path) -> Result<Vec<Pid>> {
    let mut marker = OsString::from(MARKER);
    marker.push("=");
    marker.push(sandbox);
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
