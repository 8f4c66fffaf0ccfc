//! Locks that say who is alive: held by a process for as long as it lives, freed by the kernel whatever kills it.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};

/// How long a taker waits for the instant in which a probe of [`is_held`] stands in its way.
const PATIENCE: Duration = Duration::from_secs(2);

/// A lock that this process holds until it is dropped or the process ends.
#[derive(Debug)]
pub(crate) struct Lock(File);

impl Lock {
    /// Takes the lock at `path`, or says `None` when another process holds it.
    pub(crate) fn take(path: &Path) -> io::Result<Option<Self>> {
        let file = open(path)?;
        let give_up = Instant::now() + PATIENCE;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Some(Self(file))),
                Err(TryLockError::WouldBlock) if Instant::now() >= give_up => return Ok(None),
                Err(TryLockError::WouldBlock) => thread::sleep(Duration::from_millis(20)),
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
    }

    /// Hands the lock to a process that gets it as an open file, and keeps it until it ends.
    pub(crate) fn into_file(self) -> File {
        self.0
    }

    /// Takes over the lock at `path` from the process that started this one and left it as `file`; `None` when it is
    /// not that lock.
    pub(crate) fn inherit(file: File, path: &Path) -> io::Result<Option<Self>> {
        let (left, expected) = (file.metadata()?, std::fs::metadata(path)?);
        if (left.dev(), left.ino()) != (expected.dev(), expected.ino()) {
            return Ok(None);
        }
        // The same open file as the one that was locked, so this says nothing new, unless it was not.
        match file.try_lock() {
            Ok(()) => Ok(Some(Self(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// Lets the programs that this process starts from now on share the lock: it stays held until the last of them ends.
    pub(crate) fn share_with_children(&self) -> io::Result<()> {
        fcntl(self.0.as_fd(), FcntlArg::F_SETFD(FdFlag::empty()))?;
        Ok(())
    }
}

/// Whether any process holds the lock at `path`.
pub(crate) fn is_held(path: &Path) -> io::Result<bool> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    // Shared, so that two probes never take each other for a holder.
    match file.try_lock_shared() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).truncate(false).write(true).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use std::process::{Command, Stdio};

    #[test]
    fn held_until_dropped() {
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
        assert!(Lock::inherit(File::open(&path).unwrap(), &path).unwrap().is_none(), "somebody else's");
        assert!(Lock::inherit(file, &path).unwrap().is_some());
    }

    #[test]
    fn a_child_keeps_a_shared_lock() {
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
