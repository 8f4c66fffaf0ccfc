//! Locks that tell whether a process lives: it holds its lock until it ends, and the kernel frees the lock when the process is killed.

use std::fs::{File, OpenOptions, Permissions, TryLockError};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};

use super::absent_is_none;

/// How long `take` tries: [`is_held`] of another process holds the lock for an instant.
const TAKE_LIMIT: Duration = Duration::from_secs(2);

const LOCK_MODE: u32 = 0o600;

/// A lock that this process holds until it is dropped or the process ends.
#[derive(Debug)]
pub(crate) struct Lock(File);

impl Lock {
    /// Takes the lock at `path`; `None` when another process holds it.
    pub(crate) fn take(path: &Path) -> io::Result<Option<Self>> {
        // Another user who could open the file could lock it, and keep the agent from starting.
        let file = OpenOptions::new().create(true).truncate(false).write(true).mode(LOCK_MODE).open(path)?;
        if file.metadata()?.mode() & 0o7777 != LOCK_MODE {
            file.set_permissions(Permissions::from_mode(LOCK_MODE))?;
        }
        let end = Instant::now() + TAKE_LIMIT;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Some(Self(file))),
                Err(TryLockError::WouldBlock) if Instant::now() >= end => return Ok(None),
                Err(TryLockError::WouldBlock) => thread::sleep(Duration::from_millis(20)),
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
    }

    /// The open file, for a child that keeps the lock until it ends.
    pub(crate) fn into_file(self) -> File {
        self.0
    }

    /// The lock at `path` that the parent has passed as `file`; `None` when `file` is not that lock.
    pub(crate) fn inherit(file: File, path: &Path) -> io::Result<Option<Self>> {
        let (left, expected) = (file.metadata()?, std::fs::metadata(path)?);
        if (left.dev(), left.ino()) != (expected.dev(), expected.ino()) {
            return Ok(None);
        }
        // The parent has locked this same open file, so that locking it again succeeds.
        match file.try_lock() {
            Ok(()) => Ok(Some(Self(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// Shares the lock with the programs that this process starts from now on: it is held until the last of them ends.
    pub(crate) fn share_with_children(&self) -> io::Result<()> {
        fcntl(self.0.as_fd(), FcntlArg::F_SETFD(FdFlag::empty()))?;
        Ok(())
    }
}

/// Whether any process holds the lock at `path`.
pub(crate) fn is_held(path: &Path) -> io::Result<bool> {
    let Some(file) = absent_is_none(File::open(path))? else { return Ok(false) };
    // A shared lock, so that two callers do not take each other for a holder.
    match file.try_lock_shared() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use std::process::{Command, Stdio};

    #[test]
    fn another_user_cannot_open_a_lock() {
        let dir = crate::testing::dir();
        let path = dir.path().join("lock");
        let mode = || std::fs::metadata(&path).unwrap().mode() & 0o777;
        std::fs::write(&path, "").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        assert!(Lock::take(&path).unwrap().is_some());
        assert_eq!(mode(), 0o600, "an older agent has made it");
        std::fs::remove_file(&path).unwrap();
        assert!(Lock::take(&path).unwrap().is_some());
        assert_eq!(mode(), 0o600);
    }

    #[test]
    fn a_lock_is_held_until_it_is_dropped() {
        let _quiet = testing::no_programs();
        let dir = testing::dir();
        let path = dir.path().join("lock");
        assert!(!is_held(&path).unwrap());
        let lock = Lock::take(&path).unwrap().unwrap();
        assert!(is_held(&path).unwrap());
        drop(lock);
        assert!(!is_held(&path).unwrap());
    }

    #[test]
    fn only_the_right_lock_is_inherited() {
        let dir = testing::dir();
        let path = dir.path().join("lock");
        let file = Lock::take(&path).unwrap().unwrap().into_file();
        assert!(is_held(&path).unwrap());
        assert!(Lock::inherit(File::open("/dev/null").unwrap(), &path).unwrap().is_none());
        assert!(
            Lock::inherit(File::open(&path).unwrap(), &path).unwrap().is_none(),
            "another open file of the same lock"
        );
        assert!(Lock::inherit(file, &path).unwrap().is_some());
    }

    #[test]
    fn a_child_keeps_a_shared_lock() {
        let _quiet = testing::no_programs();
        let dir = testing::dir();
        let path = dir.path().join("lock");
        let lock = Lock::take(&path).unwrap().unwrap();
        lock.share_with_children().unwrap();
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        drop(lock);
        assert!(is_held(&path).unwrap(), "the child still lives");
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(!is_held(&path).unwrap());
    }
}
