//! The locks by which one `tart` tells another what it is doing to a VM.
//!
//! To look at them takes none that could stand in the way of a VM that is about to start.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

/// What the locks on a VM say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum VmLock {
    /// Nobody is at work on it.
    Free,
    /// It runs.
    Runs,
    /// Somebody is at work on it in another way.
    Busy,
}

/// When a directory was last touched. Every tart that opens a VM touches its directory; a clone is new, however old its source is:
/// only the time of the last change of any kind tells.
pub(crate) fn touched(path: &Path) -> io::Result<SystemTime> {
    let metadata = path.symlink_metadata()?;
    let changed = Duration::from_secs(metadata.ctime().try_into().unwrap_or(0))
        + Duration::from_nanos(metadata.ctime_nsec().try_into().unwrap_or(0));
    Ok(metadata.modified()?.max(SystemTime::UNIX_EPOCH + changed))
}

/// Looks at the locks of the VM in `dir`. One without a `config.json` cannot run.
pub(super) fn look(dir: &Path) -> io::Result<VmLock> {
    // `tart clone` holds the directory that it makes, until it is done with it.
    match File::open(dir)?.try_lock_shared() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(VmLock::Busy),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    // `tart run` holds its configuration, and `tart delete` for an instant.
    let config = match OpenOptions::new().read(true).write(true).open(dir.join("config.json")) {
        Ok(config) => config,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(VmLock::Free),
        Err(error) => return Err(error),
    };
    let mut lock = libc::flock { l_type: WRITE, l_whence: FROM_START, l_start: 0, l_len: 0, l_pid: 0 };
    fcntl(&config, FcntlArg::F_GETLK(&mut lock))?;
    Ok(match (lock.l_type, lock.l_pid) {
        (NONE, _) => VmLock::Free,
        (_, 1..) => VmLock::Runs,
        // A lock that belongs to no process in particular is not one of `tart run`.
        _ => VmLock::Busy,
    })
}

// The kinds of lock have another integer type on Linux than on macOS, and in either place another than the field.
#[allow(clippy::cast_possible_truncation, clippy::unnecessary_cast, reason = "the values are 0 to 3")]
const WRITE: libc::c_short = libc::F_WRLCK as libc::c_short;
#[allow(clippy::cast_possible_truncation, clippy::unnecessary_cast, reason = "the values are 0 to 3")]
const NONE: libc::c_short = libc::F_UNLCK as libc::c_short;
#[allow(clippy::cast_possible_truncation, clippy::unnecessary_cast, reason = "the values are 0 to 3")]
const FROM_START: libc::c_short = libc::SEEK_SET as libc::c_short;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_on_the_directory_is_seen() {
        let dir =
            tempfile::tempdir_in(tart_kubelet_tests::sandbox::Sandbox::shared().unwrap().path()).unwrap();
        assert_eq!(look(dir.path()).unwrap(), VmLock::Free, "half a VM");
        std::fs::write(dir.path().join("config.json"), "{}").unwrap();
        assert_eq!(look(dir.path()).unwrap(), VmLock::Free);
        let held = File::open(dir.path()).unwrap();
        held.lock().unwrap();
        assert_eq!(look(dir.path()).unwrap(), VmLock::Busy);
        drop(held);
        assert_eq!(look(dir.path()).unwrap(), VmLock::Free);
        assert!(look(&dir.path().join("gone")).is_err(), "what is not there is not known");
    }
}
