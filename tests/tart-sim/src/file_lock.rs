//! Whole-file `flock` locks, on directories too.

use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;

/// An exclusive `flock`, held until dropped.
#[derive(Debug)]
pub(crate) struct FileLock {
    _file: File,
}

impl FileLock {
    /// Takes the lock, waiting as long as it takes.
    pub(crate) fn wait(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        file.lock()?;
        Ok(Self { _file: file })
    }

    /// Takes the lock unless someone else has it.
    pub(crate) fn attempt(path: &Path) -> io::Result<Option<Self>> {
        let file = File::open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Self { _file: file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
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
}
