//! The logs of one container: `<restartCount>.log`, and beside it the files that rotation has made of it.

use std::path::{Path, PathBuf};

use crate::fs::file::{self, FileError};
use crate::state::container_spec::ContainerSpec;

impl ContainerSpec {
    /// The log of the start after this many restarts.
    pub(crate) fn log_after(&self, restarts: u32) -> PathBuf {
        self.log.with_file_name(format!("{restarts}.log"))
    }

    /// Removes the logs of all starts but the last `kept` before `restarts`, and those after it.
    pub(crate) fn keep_logs(&self, restarts: u32, kept: u32) -> Result<(), FileError> {
        let Some(dir) = self.log.parent() else { return Ok(()) };
        remove(dir, |number| number.saturating_add(kept) < restarts)
    }
}

pub(super) fn remove(dir: &Path, is_gone: impl Fn(u32) -> bool) -> Result<(), FileError> {
    let number = |name: &str| name.split_once(".log").and_then(|(number, _)| number.parse().ok());
    let gone = file::entries(dir)?.into_iter().filter(|name| number(name).is_some_and(&is_gone));
    gone.into_iter().try_for_each(|name| file::remove(&dir.join(name)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::dir;

    #[test]
    fn old_logs_are_removed_with_their_rotated_files() {
        let dir = dir();
        let container = ContainerSpec { log: dir.path().join("7.log"), ..ContainerSpec::default() };
        assert_eq!(container.log_after(3), dir.path().join("3.log"));
        for name in ["0.log", "0.log.1", "1.log", "2.log.9", "2.log", "3.log", "notes"] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        container.keep_logs(3, 1).unwrap();
        let mut left = file::entries(dir.path()).unwrap();
        left.sort_unstable();
        assert_eq!(left, ["2.log", "2.log.9", "3.log", "notes"]);
        ContainerSpec { log: dir.path().join("none/0.log"), ..container }.keep_logs(9, 1).unwrap();
    }
}
