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
pub(crate) enum Partial {
    /// Nothing of it is there.
    None,
    /// It is being pulled.
    UnderWay,
    /// Nobody pulls it; it stays for as long as this is held.
    Kept(KeptPartial),
}

/// What has arrived of an image, locked.
#[derive(Debug)]
pub(crate) struct KeptPartial {
    dir: File,
    path: PathBuf,
    /// The directory that a tart has locked which pulls from the image's registry.
    registry: PathBuf,
}

impl KeptPartial {
    /// Lets a tart that waits for it go on with it; false when one has done so, or when it is gone.
    ///
    /// To every other tart that comes by it is garbage, so it is let go only while somebody may wait for it, and for no longer than an
    /// instant.
    pub(crate) async fn offer(&self) -> bool {
        if !self.may_be_awaited() {
            return self.is_there();
        }
        if self.dir.unlock().is_err() {
            return false;
        }
        sleep(INSTANT).await;
        self.dir.try_lock().is_ok() && self.is_there()
    }

    /// Whether somebody pulls from its registry; whoever waits for it does. What cannot be seen may be.
    fn may_be_awaited(&self) -> bool {
        File::open(&self.registry).map_or(true, |registry| registry.try_lock_shared().is_err())
    }

    /// Whether it is still what a pull of its image would go on with.
    pub(crate) fn is_there(&self) -> bool {
        let number = |metadata: io::Result<std::fs::Metadata>| {
            metadata.map(|metadata| (metadata.dev(), metadata.ino())).ok()
        };
        let here = number(self.dir.metadata());
        here.is_some() && here == number(self.path.symlink_metadata())
    }
}

/// Looks at what there is of an image, by its full name, and keeps it if nobody else does.
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

/// What the images of one registry are in.
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

    const NAME: &str = "registry.test:5000/macos:1";

    /// A home of tart's with a part of an image.
    fn home() -> (tempfile::TempDir, PathBuf) {
        let home =
            tempfile::tempdir_in(tart_kubelet_tests::sandbox::Sandbox::shared().unwrap().path()).unwrap();
        let part = directory(&home.path().join("tmp"), NAME);
        std::fs::create_dir_all(&part).unwrap();
        (home, part)
    }

    fn kept(home: &Path) -> KeptPartial {
        match keep(home, NAME).unwrap() {
            Partial::Kept(kept) => kept,
            other => panic!("nobody pulls it, but it is {other:?}"),
        }
    }

    #[test]
    fn what_is_kept_is_nobody_elses() {
        let (home, part) = home();
        assert!(matches!(keep(home.path(), "registry.test/other:1").unwrap(), Partial::None));
        assert_eq!(part.file_name().unwrap(), "96f9e1e039589c6300014201b0578d5a");
        let mine = kept(home.path());
        assert!(matches!(keep(home.path(), NAME).unwrap(), Partial::UnderWay));
        drop(mine);
        kept(home.path());
    }

    #[tokio::test]
    async fn what_is_kept_is_there_for_whoever_waits() {
        let (home, part) = home();
        let registry = home.path().join("cache/OCIs/registry.test%3A5000");
        std::fs::create_dir_all(&registry).unwrap();
        let mine = kept(home.path());
        let waiting = File::open(&part).unwrap();
        let waiter = tokio::task::spawn_blocking(move || waiting.lock().map(|()| waiting));
        for _ in 0..20 {
            assert!(mine.offer().await, "nobody pulls from its registry, so nobody can wait for it");
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
    async fn what_nobody_wants_stays_kept_until_it_is_another_one() {
        let (home, part) = home();
        let mine = kept(home.path());
        // There is no lock that would tell, so it is offered.
        assert!(mine.offer().await && mine.is_there());
        assert!(matches!(keep(home.path(), NAME).unwrap(), Partial::UnderWay));
        std::fs::rename(&part, home.path().join("whole")).unwrap();
        assert!(!mine.offer().await, "it has become whole");
        std::fs::create_dir(&part).unwrap();
        assert!(!mine.is_there(), "it is another one");
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
