//! A little space that is set aside for the day when the disk is full: that a VM is to end, and how it has ended, can be written down all
//! the same. Otherwise nobody could be evicted or deleted, and the disk would stay full.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::fs::file::FileError;

const NAME: &str = "reserve";
const BYTES: u64 = 1 << 20;
/// What is given away at a time: more than what is written with it takes, and so little that whoever fills the disk can eat a few of them.
const SLICE: u64 = BYTES / 8;
/// Where less than this is free, nothing is set aside: others need it more.
const LEAST_FREE: u64 = 16 * BYTES;

/// Sets space aside in a state directory on whose volume so much is free, unless it is there.
pub(super) fn set_aside(state: &Path, free: u64) -> Result<(), FileError> {
    let path = state.join(NAME);
    if free < LEAST_FREE || fs::metadata(&path).is_ok_and(|metadata| metadata.len() >= BYTES) {
        return Ok(());
    }
    write(&path).map_err(|source| FileError::new("write", &path, source))
}

fn write(path: &Path) -> io::Result<()> {
    let mut file = File::options().create(true).truncate(true).write(true).mode(0o600).open(path)?;
    // Not zeros: a file system could take those for nothing.
    let block = [0xa5; 1 << 12];
    for _ in 0..BYTES >> 12 {
        file.write_all(&block)?;
    }
    file.sync_all()
}

/// Writes what must not wait for space, at a path below `pods`. Where there is none, some of what is set aside goes for it, and it is
/// tried once more.
pub(super) fn urgently(path: &Path, write: impl Fn() -> Result<(), FileError>) -> Result<(), FileError> {
    down_to(0, path, write)
}

/// The same for what may be written again and again while the disk is full. Half stays for how VMs end.
pub(super) fn repeatedly(path: &Path, write: impl Fn() -> Result<(), FileError>) -> Result<(), FileError> {
    down_to(BYTES / 2, path, write)
}

fn down_to(least: u64, path: &Path, write: impl Fn() -> Result<(), FileError>) -> Result<(), FileError> {
    match write() {
        Err(error) if error.is_for_want_of_space() && release(path, least) => write(),
        result => result,
    }
}

/// Gives some of it away; false when no more than the least is left.
fn release(path: &Path, least: u64) -> bool {
    let Some(reserve) = reserve_of(path) else { return false };
    let Ok(metadata) = fs::metadata(&reserve) else { return false };
    if metadata.len() <= least {
        return false;
    }
    match metadata.len().saturating_sub(SLICE) {
        0 => fs::remove_file(&reserve).is_ok(),
        rest => File::options().write(true).open(&reserve).is_ok_and(|file| file.set_len(rest).is_ok()),
    }
}

fn reserve_of(path: &Path) -> Option<PathBuf> {
    let pods = path.ancestors().find(|path| path.ends_with("pods"))?;
    Some(pods.with_file_name(NAME))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::os::unix::fs::MetadataExt;

    fn state() -> tempfile::TempDir {
        tempfile::tempdir_in(tart_kubelet_tests::sandbox::Sandbox::shared().unwrap().path()).unwrap()
    }

    fn full() -> FileError {
        FileError::new("write", Path::new("any"), io::ErrorKind::StorageFull.into())
    }

    #[test]
    fn nothing_is_set_aside_where_others_need_it_more() {
        let dir = state();
        let reserve = dir.path().join(NAME);
        set_aside(dir.path(), LEAST_FREE - 1).unwrap();
        assert!(!reserve.exists());
        set_aside(dir.path(), LEAST_FREE).unwrap();
        let metadata = fs::metadata(&reserve).unwrap();
        assert_eq!(metadata.len(), BYTES);
        assert!(metadata.blocks() * 512 >= BYTES, "it is all there, {} blocks", metadata.blocks());
    }

    #[test]
    fn what_is_urgent_gets_some_of_it_until_nothing_is_left() {
        let dir = state();
        set_aside(dir.path(), LEAST_FREE).unwrap();
        let (reserve, path) = (dir.path().join(NAME), dir.path().join("pods/0b1c/0/stop.json"));
        let tries = Cell::new(0);
        let works_at = |number: u32| {
            tries.set(0);
            urgently(&path, || {
                tries.set(tries.get() + 1);
                if tries.get() == number { Ok(()) } else { Err(full()) }
            })
        };
        works_at(1).unwrap();
        assert_eq!(fs::metadata(&reserve).unwrap().len(), BYTES, "there was room");
        works_at(2).unwrap();
        assert_eq!(fs::metadata(&reserve).unwrap().len(), BYTES - SLICE);
        for _ in 0..BYTES / SLICE {
            repeatedly(&path, || Err(full())).unwrap_err();
        }
        assert_eq!(fs::metadata(&reserve).unwrap().len(), BYTES / 2, "half is for what is urgent");
        for _ in 0..BYTES / 2 / SLICE {
            works_at(3).unwrap_err();
            assert_eq!(tries.get(), 2);
        }
        assert!(!reserve.exists());
        works_at(2).unwrap_err();
        assert_eq!(tries.get(), 1, "there is nothing to be had");
        set_aside(dir.path(), LEAST_FREE).unwrap();
        assert_eq!(fs::metadata(&reserve).unwrap().len(), BYTES, "it is set aside again");
        let broken = || Err(FileError::new("write", &path, io::ErrorKind::PermissionDenied.into()));
        urgently(&path, broken).unwrap_err();
        assert_eq!(fs::metadata(&reserve).unwrap().len(), BYTES, "space would not help");
    }
}
