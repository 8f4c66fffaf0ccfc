//! What has arrived of an image that is not whole yet.
//!
//! tart keeps it in a directory that is named after the image, locks it while it pulls, and goes on from there when it pulls the image
//! again. Whatever nobody has locked in there is garbage to every tart command but a pull and a clone.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use md5::{Digest, Md5};
use tokio::time::sleep;

/// Long enough for whoever waits for a lock to have it.
const INSTANT: Duration = Duration::from_millis(1);

/// How it stands with an image that is not whole.
#[derive(Debug)]
pub enum Partial {
    /// Nothing of it is there.
    None,
    /// It is being pulled.
    UnderWay,
    /// Nobody pulls it; it stays for as long as this is held.
    Kept(KeptPartial),
}

/// What has arrived of an image, locked.
#[derive(Debug)]
pub struct KeptPartial {
    dir: File,
    path: PathBuf,
}

impl KeptPartial {
    /// Lets a tart that waits for it go on with it; false when one has done so, or when it is gone.
    ///
    /// To every other tart that comes by it is garbage, so it is let go for no longer than an instant.
    pub async fn offer(&self) -> bool {
        if self.dir.unlock().is_err() {
            return false;
        }
        sleep(INSTANT).await;
        self.dir.try_lock().is_ok() && self.is_there()
    }

    /// Whether it is still what a pull of its image would go on with.
    pub fn is_there(&self) -> bool {
        let number = |metadata: io::Result<std::fs::Metadata>| {
            metadata.map(|metadata| (metadata.dev(), metadata.ino())).ok()
        };
        let here = number(self.dir.metadata());
        here.is_some() && here == number(self.path.symlink_metadata())
    }
}

/// Looks at what there is of an image, by its full name, and keeps it if nobody else does.
pub(super) fn keep(tmp: &Path, name: &str) -> io::Result<Partial> {
    let path = directory(tmp, name);
    let dir = match File::open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Partial::None),
        dir => dir?,
    };
    match dir.try_lock() {
        Ok(()) => Ok(Partial::Kept(KeptPartial { dir, path })),
        Err(TryLockError::WouldBlock) => Ok(Partial::UnderWay),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Whether a VM is being cloned: tart does that in a directory whose name nobody can foresee.
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

fn directory(tmp: &Path, name: &str) -> PathBuf {
    tmp.join(format!("{:032x}", u128::from_be_bytes(Md5::digest(name).into())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_nobody_elses() {
        let tmp =
            tempfile::tempdir_in(tart_kubelet_tests::sandbox::Sandbox::shared().unwrap().path()).unwrap();
        let name = "registry.test/macos:1";
        assert!(matches!(keep(tmp.path(), name).unwrap(), Partial::None));
        let dir = directory(tmp.path(), name);
        assert_eq!(dir.file_name().unwrap(), "07922c10a6ffafae1ede33a0a6ddd564");
        std::fs::create_dir(&dir).unwrap();
        let kept = keep(tmp.path(), name).unwrap();
        assert!(matches!(kept, Partial::Kept(_)));
        assert!(matches!(keep(tmp.path(), name).unwrap(), Partial::UnderWay));
        drop(kept);
        assert!(matches!(keep(tmp.path(), name).unwrap(), Partial::Kept(_)));
    }

    #[tokio::test]
    async fn what_is_kept_is_there_for_whoever_waits() {
        let tmp =
            tempfile::tempdir_in(tart_kubelet_tests::sandbox::Sandbox::shared().unwrap().path()).unwrap();
        let name = "registry.test/macos:1";
        let dir = directory(tmp.path(), name);
        std::fs::create_dir(&dir).unwrap();
        let Partial::Kept(kept) = keep(tmp.path(), name).unwrap() else { panic!("nobody pulls it") };
        assert!(kept.offer().await, "nobody wants it");
        assert!(matches!(keep(tmp.path(), name).unwrap(), Partial::UnderWay), "and it is still kept");

        let waiting = File::open(&dir).unwrap();
        let waiter = tokio::task::spawn_blocking(move || waiting.lock().map(|()| waiting));
        // The waiter may need a moment to begin.
        while kept.offer().await {}
        let taken = waiter.await.unwrap().unwrap();
        drop(kept);
        assert!(matches!(keep(tmp.path(), name).unwrap(), Partial::UnderWay));
        drop(taken);

        let Partial::Kept(kept) = keep(tmp.path(), name).unwrap() else { panic!("nobody pulls it") };
        std::fs::rename(&dir, tmp.path().join("whole")).unwrap();
        std::fs::create_dir(&dir).unwrap();
        assert!(!kept.offer().await, "it is another one");
    }

    #[test]
    fn a_clone_is_told_from_a_pull() {
        let tmp =
            tempfile::tempdir_in(tart_kubelet_tests::sandbox::Sandbox::shared().unwrap().path()).unwrap();
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
