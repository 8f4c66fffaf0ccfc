//! The processor time and the memory of this host's processes.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use nix::unistd::Pid;
use sysinfo::{ProcessRefreshKind, ProcessesToUpdate, System};

use super::process_table::TableError;

/// What one process uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProcessUsage {
    pub(crate) parent: Option<Pid>,
    /// In seconds since the epoch. With it, a process ID identifies a process.
    pub(crate) started: u64,
    /// Since its start.
    pub(crate) cpu: Duration,
    /// Resident, in bytes.
    pub(crate) memory: u64,
}

/// All processes.
pub(crate) fn all() -> Result<HashMap<Pid, ProcessUsage>, TableError> {
    let mut system = System::new().map_err(TableError)?;
    let kind = ProcessRefreshKind::nothing().without_tasks().with_cpu().with_memory();
    system.refresh_processes_specifics(ProcessesToUpdate::All, true, kind);
    let pid = |pid: sysinfo::Pid| i32::try_from(pid.as_u32()).ok().map(Pid::from_raw);
    let usage = |process: &sysinfo::Process| ProcessUsage {
        parent: process.parent().and_then(pid),
        started: process.start_time(),
        cpu: Duration::from_millis(process.accumulated_cpu_time()),
        memory: process.memory(),
    };
    Ok(system
        .processes()
        .values()
        .filter_map(|process| Some((pid(process.pid())?, usage(process))))
        .collect())
}

/// Some processes with all that they have started.
pub(crate) fn with_descendants(
    roots: impl IntoIterator<Item = Pid>,
    all: &HashMap<Pid, ProcessUsage>,
) -> HashMap<Pid, ProcessUsage> {
    let mut found: HashSet<Pid> = roots.into_iter().filter(|pid| all.contains_key(pid)).collect();
    loop {
        let is_new = |pid: &Pid, process: &ProcessUsage| {
            !found.contains(pid) && process.parent.is_some_and(|parent| found.contains(&parent))
        };
        let more: Vec<Pid> =
            all.iter().filter(|(pid, process)| is_new(pid, process)).map(|(pid, _)| *pid).collect();
        if more.is_empty() {
            return found.into_iter().filter_map(|pid| Some((pid, *all.get(&pid)?))).collect();
        }
        found.extend(more);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::unistd::{getpid, getppid};

    #[test]
    fn this_process_uses_processor_time_and_memory() {
        let all = all().unwrap();
        let own = all[&getpid()];
        assert_eq!(own.parent, Some(getppid()));
        assert!(own.memory > 0 && own.started > 0, "{own:?}");
    }

    #[test]
    fn descendants_are_children_of_children() {
        let process = |parent: i32| ProcessUsage {
            parent: Some(Pid::from_raw(parent)),
            started: 0,
            cpu: Duration::ZERO,
            memory: 1,
        };
        let all: HashMap<Pid, ProcessUsage> = [(2, 1), (3, 2), (4, 3), (5, 1), (6, 5), (7, 7)]
            .map(|(pid, parent)| (Pid::from_raw(pid), process(parent)))
            .into();
        let found = |roots: &[i32]| {
            let roots = roots.iter().map(|pid| Pid::from_raw(*pid));
            let mut found: Vec<i32> = with_descendants(roots, &all).keys().map(|pid| pid.as_raw()).collect();
            found.sort_unstable();
            found
        };
        assert_eq!(found(&[2]), [2, 3, 4]);
        assert_eq!(found(&[2, 6]), [2, 3, 4, 6]);
        assert_eq!(found(&[7]), [7], "a process that is its own parent");
        assert_eq!(found(&[8]), [0; 0]);
    }
}
