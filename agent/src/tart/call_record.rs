//! Records of running calls in tart's home: a call's deadline and caller, by its process ID. The same is in the environment of each call, but
//! macOS hides the environment of programs with some entitlements, and tart has such.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::stale_calls;
use crate::os::process_table::RunningProcess;

/// The directory of the records, in tart's home. tart ignores it.
const DIRECTORY: &str = "tart-kubelet.calls";
/// How much two clocks may differ about the start of a process, in seconds. No process ID comes round again in less.
const TOLERANCE: u64 = 5;

/// How long a record is left alone, in seconds.
const YOUNG: i64 = 60;

/// What is known of a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Marks {
    pub(super) home: PathBuf,
    /// The second in which it was started.
    pub(super) started: i64,
    /// The second of its deadline.
    pub(super) deadline: i64,
    /// The process that waits for it.
    pub(super) caller: u32,
}

/// The record of a call of this process; dropping it removes it.
#[derive(Debug)]
pub(super) struct CallRecord(PathBuf);

impl CallRecord {
    /// Writes a record. Without one, the environment still tells.
    pub(super) fn write(pid: u32, marks: &Marks) -> Option<Self> {
        let directory = marks.home.join(DIRECTORY);
        let path = directory.join(pid.to_string());
        let text = serde_json::to_vec(marks).ok()?;
        let written = fs::create_dir_all(&directory).and_then(|()| fs::write(&path, text));
        match written {
            Ok(()) => Some(Self(path)),
            Err(error) => {
                warn!(path = %path.display(), %error, "cannot record a call of tart");
                None
            }
        }
    }
}

impl Drop for CallRecord {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// The processes, with the marks of the calls among them whose environment is hidden. Removes the records of calls that are over.
pub(super) fn complete(mut running: Vec<RunningProcess>, home: &Path) -> Vec<RunningProcess> {
    let now = Timestamp::now().as_second();
    for (pid, marks) in records(home).unwrap_or_default() {
        let is_call = |one: &&mut RunningProcess| {
            one.pid.as_raw() == pid && one.started.abs_diff(marks.started) <= TOLERANCE
        };
        match running.iter_mut().find(is_call) {
            Some(call) if call.variable(stale_calls::HOME).is_none() => {
                call.add_variable(stale_calls::HOME, marks.home.display().to_string());
                call.add_variable(stale_calls::DEADLINE, marks.deadline.to_string());
                call.add_variable(stale_calls::CALLER, marks.caller.to_string());
            }
            Some(_) => {}
            // The process table may be older than a new call.
            None if now.saturating_sub(marks.started) < YOUNG => {}
            None => {
                let _ = fs::remove_file(home.join(DIRECTORY).join(pid.to_string()));
            }
        }
    }
    running
}

/// All records of a home. One that cannot be read is left out: its writer may have died over it.
fn records(home: &Path) -> io::Result<Vec<(i32, Marks)>> {
    let entries = fs::read_dir(home.join(DIRECTORY))?.flatten();
    let read = |entry: fs::DirEntry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        Some((pid, serde_json::from_slice(&fs::read(entry.path()).ok()?).ok()?))
    };
    Ok(entries.filter_map(read).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tart::OwnPulls;
    use crate::testing::dir;

    #[test]
    fn a_call_whose_environment_is_hidden_is_known_by_its_record() {
        let dir = dir();
        let marks = |started| Marks { home: dir.path().to_owned(), started, deadline: 2000, caller: 7 };
        let call = |pid, started| {
            let mut call =
                RunningProcess::example(pid, 1, &["tart", "pull", &format!("r.test/{pid}:1")], &[]);
            call.started = started;
            call
        };
        let records = [(2, 1000), (3, 1000), (4, 1000)].map(|(pid, at)| CallRecord::write(pid, &marks(at)));
        let known = complete(vec![call(2, 1002), call(3, 1900), call(5, 1000)], dir.path());
        let home = |index: usize| known[index].variable(stale_calls::HOME);
        assert_eq!((home(0), home(1), home(2)), (dir.path().to_str(), None, None));
        assert_eq!(known[0].variable(stale_calls::DEADLINE), Some("2000"));
        let own = OwnPulls::among(&known, dir.path());
        assert!(own.has("r.test/2:1") && !own.has("r.test/3:1"));
        // Another process has the ID of 3 by now, and 4 is gone.
        let left = fs::read_dir(dir.path().join(DIRECTORY)).unwrap().count();
        assert_eq!(left, 1);
        drop(records);
        assert_eq!(fs::read_dir(dir.path().join(DIRECTORY)).unwrap().count(), 0);
    }
}
