//! Whole-file `flock` locks, on directories too.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// An exclusive `flock`, held until dropped.
#[derive(Debug)]
pub(crate) struct FileLock {
    file: File,
}

impl FileLock {
    /// Takes the lock, waiting as long as it takes.
    pub(crate) fn wait(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        file.lock()?;
        Ok(Self { file })
    }

    /// Takes the lock unless another process has it.
    pub(crate) fn attempt(path: &Path) -> io::Result<Option<Self>> {
        let file = File::open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Self { file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// Whether the locked file is the one at this path now. Another process may have removed it between the opening and the
    /// locking.
    pub(crate) fn is_at(&self, path: &Path) -> io::Result<bool> {
        let locked = self.file.metadata()?;
        match fs::metadata(path) {
            Ok(there) => Ok((there.dev(), there.ino()) == (locked.dev(), locked.ino())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_locked_once_and_freed_on_drop() {
        let dir =
            tempfile::tempdir_in(tart_kubelet_tests::sandbox::Sandbox::shared().unwrap().path()).unwrap();
        let held = FileLock::wait(dir.path()).unwrap();
        assert!(FileLock::attempt(dir.path()).unwrap().is_none());
        drop(held);
        assert!(FileLock::attempt(dir.path()).unwrap().is_some());
    }

    #[test]
    fn a_lock_knows_whether_its_directory_is_still_there() {
        let dir =
            tempfile::tempdir_in(tart_kubelet_tests::sandbox::Sandbox::shared().unwrap().path()).unwrap();
        let path = dir.path().join("locked");
        fs::create_dir(&path).unwrap();
        let held = FileLock::wait(&path).unwrap();
        assert!(held.is_at(&path).unwrap());
        fs::remove_dir(&path).unwrap();
        assert!(!held.is_at(&path).unwrap());
        // Another directory of the same name.
        fs::create_dir(&path).unwrap();
        assert!(!held.is_at(&path).unwrap());
    }
}
