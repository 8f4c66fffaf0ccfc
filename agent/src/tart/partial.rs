//! Partial downloads of images.
//!
//! tart keeps one in a directory that is named after the image, locks it while it pulls, and resumes it with the next pull. Every tart
//! command but a pull and a clone deletes the unlocked ones.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use md5::{Digest, Md5};
use tokio::time::sleep;

/// Long enough for a tart that waits for a lock to get it.
const INSTANT: Duration = Duration::from_millis(1);

/// The partial download of an image.
#[derive(Debug)]
pub(crate) enum Partial {
    /// There is none.
    None,
    /// A tart pulls the image.
    UnderWay,
    /// No tart pulls the image. The agent has locked the download.
    Kept(KeptPartial),
}

/// A partial download that the agent has locked until this is dropped.
#[derive(Debug)]
pub(crate) struct KeptPartial {
    dir: File,
    path: PathBuf,
    /// The directory that a tart locks while it pulls from the image's registry.
    registry: PathBuf,
}

impl KeptPartial {
    /// Unlocks the download for an instant, so that a tart that waits for it can resume it; false when one has, or when the download
    /// is gone.
    ///
    /// Other tart commands delete what is unlocked. So the agent unlocks it only while a tart may wait for it.
    pub(crate) async fn offer(&self) -> bool {
        if !self.may_be_awaited() {
            return self.exists();
        }
        if self.dir.unlock().is_err() {
            return false;
        }
        sleep(INSTANT).await;
        self.dir.try_lock().is_ok() && self.exists()
    }

    /// Whether a tart pulls from the registry, as one that waits for the download does. True if the disk does not answer.
    fn may_be_awaited(&self) -> bool {
        File::open(&self.registry).map_or(true, |registry| registry.try_lock_shared().is_err())
    }

    /// Whether a pull of the image would still resume this download.
    pub(crate) fn exists(&self) -> bool {
        let identity = |metadata: io::Result<std::fs::Metadata>| {
            metadata.map(|metadata| (metadata.dev(), metadata.ino())).ok()
        };
        let locked = identity(self.dir.metadata());
        locked.is_some() && locked == identity(self.path.symlink_metadata())
    }
}

/// Locks the partial download of an image, by its full name, unless a tart has locked it.
pub(super) fn keep(home: &Path, name: &str) -> io::Result<Partial> {
    let path = directory(&home.join("tmp"), name);
    let dir = match File::open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Partial::None),
        dir => dir?,
    };
    match dir.try_lock() {
        Ok(()) => Ok(Partial::Kept(KeptPartial { dir, path, registry: registry(home, name) })),
        Err(TryLockError::WouldBlock) => Ok(Partial::UnderWay),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Whether a tart is cloning a VM, which it does in a directory with a random name.
pub(super) fn is_cloning(tmp: &Path) -> io::Result<bool> {
    let entries = match std::fs::read_dir(tmp) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let is_pull = entry.file_name().len() == 32;
        if is_pull || !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        let is_locked = File::open(entry.path())
            .is_ok_and(|dir| matches!(dir.try_lock_shared(), Err(TryLockError::WouldBlock)));
        if is_locked {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The directory with the images of one registry.
fn registry(home: &Path, name: &str) -> PathBuf {
    let host = name.split('/').next().unwrap_or_default();
    home.join("cache/OCIs").join(host.replace(':', "%3A"))
}

fn directory(tmp: &Path, name: &str) -> PathBuf {
    tmp.join(format!("{:032x}", u128::from_be_bytes(Md5::digest(name).into())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    const NAME: &str = "registry.test:5000/macos:1";

    /// A home of tart with a partial download.
    fn home() -> (tempfile::TempDir, PathBuf) {
        let home = testing::dir();
        let part = directory(&home.path().join("tmp"), NAME);
        std::fs::create_dir_all(&part).unwrap();
        (home, part)
    }

    fn kept(home: &Path) -> KeptPartial {
        match keep(home, NAME).unwrap() {
            Partial::Kept(kept) => kept,
            other => panic!("no tart pulls it, but it is {other:?}"),
        }
    }

    #[test]
    fn a_kept_download_is_locked_until_it_is_dropped() {
        let (home, part) = home();
        assert!(matches!(keep(home.path(), "registry.test/other:1").unwrap(), Partial::None));
        assert_eq!(part.file_name().unwrap(), "96f9e1e039589c6300014201b0578d5a");
        let mine = kept(home.path());
        assert!(matches!(keep(home.path(), NAME).unwrap(), Partial::UnderWay));
        drop(mine);
        kept(home.path());
    }

    #[tokio::test]
    async fn a_tart_that_waits_for_a_kept_download_gets_it() {
        let (home, part) = home();
        let registry = home.path().join("cache/OCIs/registry.test%3A5000");
        std::fs::create_dir_all(&registry).unwrap();
        let mine = kept(home.path());
        let waiting = File::open(&part).unwrap();
        let waiter = tokio::task::spawn_blocking(move || waiting.lock().map(|()| waiting));
        for _ in 0..20 {
            assert!(mine.offer().await, "no tart pulls from its registry, so none can wait for it");
        }
        let pull = File::open(&registry).unwrap();
        pull.lock().unwrap();
        while mine.offer().await {}
        let taken = waiter.await.unwrap().unwrap();
        drop(mine);
        assert!(matches!(keep(home.path(), NAME).unwrap(), Partial::UnderWay));
        drop(taken);
    }

    #[tokio::test]
    async fn a_download_that_no_tart_waits_for_stays_kept_until_it_is_replaced() {
        let (home, part) = home();
        let mine = kept(home.path());
        // The directory of the registry is missing, so that a tart may wait.
        assert!(mine.offer().await && mine.exists());
        assert!(matches!(keep(home.path(), NAME).unwrap(), Partial::UnderWay));
        std::fs::rename(&part, home.path().join("whole")).unwrap();
        assert!(!mine.offer().await, "the download is complete");
        std::fs::create_dir(&part).unwrap();
        assert!(!mine.exists(), "another download has its place");
    }

    #[test]
    fn a_clone_is_told_from_a_pull() {
        let tmp = testing::dir();
        assert!(!is_cloning(&tmp.path().join("absent")).unwrap());
        let held = |name: &str| {
            let path = tmp.path().join(name);
            std::fs::create_dir(&path).unwrap();
            let dir = File::open(path).unwrap();
            dir.lock().unwrap();
            dir
        };
        let _pull = held("0123456789abcdef0123456789abcdef");
        assert!(!is_cloning(tmp.path()).unwrap());
        let clone = held("6D1E9C2A-0000-4000-8000-0123456789AB");
        assert!(is_cloning(tmp.path()).unwrap());
        drop(clone);
        assert!(!is_cloning(tmp.path()).unwrap(), "a clone that was cut short");
    }
}
