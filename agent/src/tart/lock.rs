//! The locks that `tart` holds on a VM while it works on it.
//!
//! The agent only tests them. It holds none that could keep a VM from starting.

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
    /// No tart works on it.
    Free,
    /// A tart runs it.
    Runs,
    /// A tart works on it in another way.
    Busy,
}

/// When a directory was last touched. Every tart that opens a VM touches its directory. A clone has the modification time of its source,
/// so the time of the last change counts, too.
pub(crate) fn touched(path: &Path) -> io::Result<SystemTime> {
    let metadata = path.symlink_metadata()?;
    let changed = Duration::from_secs(metadata.ctime().try_into().unwrap_or(0))
        + Duration::from_nanos(metadata.ctime_nsec().try_into().unwrap_or(0));
    Ok(metadata.modified()?.max(SystemTime::UNIX_EPOCH + changed))
}

/// Tests the locks of the VM in `dir`. A VM without a `config.json` cannot run.
pub(crate) fn vm_lock(dir: &Path) -> io::Result<VmLock> {
    // `tart clone` locks the directory that it makes.
    match File::open(dir)?.try_lock_shared() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(VmLock::Busy),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    // `tart run` locks the configuration; `tart delete` does so for an instant.
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
        // A lock without a process is not one of `tart run`.
        _ => VmLock::Busy,
    })
}

// On Linux and on macOS, the constants have different integer types, and neither is that of the field.
#[allow(clippy::cast_possible_truncation, clippy::unnecessary_cast, reason = "the values are 0 to 3")]
const WRITE: libc::c_short = libc::F_WRLCK as libc::c_short;
#[allow(clippy::cast_possible_truncation, clippy::unnecessary_cast, reason = "the values are 0 to 3")]
const NONE: libc::c_short = libc::F_UNLCK as libc::c_short;
#[allow(clippy::cast_possible_truncation, clippy::unnecessary_cast, reason = "the values are 0 to 3")]
const FROM_START: libc::c_short = libc::SEEK_SET as libc::c_short;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn a_locked_directory_is_busy() {
        let dir = testing::dir();
        assert_eq!(vm_lock(dir.path()).unwrap(), VmLock::Free, "half a VM");
        std::fs::write(dir.path().join("config.json"), "{}").unwrap();
        assert_eq!(vm_lock(dir.path()).unwrap(), VmLock::Free);
        let held = File::open(dir.path()).unwrap();
        held.lock().unwrap();
        assert_eq!(vm_lock(dir.path()).unwrap(), VmLock::Busy);
        drop(held);
        assert_eq!(vm_lock(dir.path()).unwrap(), VmLock::Free);
        assert!(vm_lock(&dir.path().join("gone")).is_err(), "a VM that is not there has no locks");
    }
}
