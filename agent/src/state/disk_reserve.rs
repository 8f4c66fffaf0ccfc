//! A file of 1 MiB whose space is given up when the disk is full, so that the agent can still write that a VM is to stop, and the shim
//! how it ended. Without these records no Pod could be evicted or deleted, and the disk would stay full.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::fs::file::FileError;

const NAME: &str = "reserve";
const BYTES: u64 = 1 << 20;
/// How much is given up at a time: more than a record needs, and little, since another process may take it first.
const SLICE: u64 = BYTES / 8;
/// Where less than this is free, no space is reserved.
const LEAST_FREE: u64 = 16 * BYTES;

/// Reserves space in a state directory whose volume has `free` bytes, unless it is reserved already.
pub(super) fn create(state: &Path, free: u64) -> Result<(), FileError> {
    let path = state.join(NAME);
    if free < LEAST_FREE || fs::metadata(&path).is_ok_and(|metadata| metadata.len() >= BYTES) {
        return Ok(());
    }
    write(&path).map_err(|source| FileError::new("write", &path, source))
}

fn write(path: &Path) -> io::Result<()> {
    let mut file = File::options().create(true).truncate(true).write(true).mode(0o600).open(path)?;
    // Not zeros: a file system may store those as a hole.
    let block = [0xa5; 1 << 12];
    for _ in 0..BYTES >> 12 {
        file.write_all(&block)?;
    }
    file.sync_all()
}

/// Writes a record that must not wait for space, at a path below `pods`. On a full disk it gives up some of the reserve and tries once
/// more.
pub(super) fn urgently(path: &Path, write: impl Fn() -> Result<(), FileError>) -> Result<(), FileError> {
    down_to(0, path, write)
}

/// The same for a record that may be written often while the disk is full. Half of the reserve stays for how VMs end.
pub(super) fn repeatedly(path: &Path, write: impl Fn() -> Result<(), FileError>) -> Result<(), FileError> {
    down_to(BYTES / 2, path, write)
}

fn down_to(least: u64, path: &Path, write: impl Fn() -> Result<(), FileError>) -> Result<(), FileError> {
    match write() {
        Err(error) if error.is_for_want_of_space() && release(path, least) => write(),
        result => result,
    }
}

/// Gives up some of the reserve; false when no more than `least` is left.
fn release(path: &Path, least: u64) -> bool {
    let Some(pods) = path.ancestors().find(|path| path.ends_with("pods")) else { return false };
    let reserve = pods.with_file_name(NAME);
    let Ok(metadata) = fs::metadata(&reserve) else { return false };
    if metadata.len() <= least {
        return false;
    }
    match metadata.len().saturating_sub(SLICE) {
        0 => fs::remove_file(&reserve).is_ok(),
        rest => File::options().write(true).open(&reserve).is_ok_and(|file| file.set_len(rest).is_ok()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::dir;
    use std::cell::Cell;
    use std::os::unix::fs::MetadataExt;

    fn full() -> FileError {
        FileError::new("write", Path::new("any"), io::ErrorKind::StorageFull.into())
    }

    #[test]
    fn no_space_is_reserved_on_a_disk_that_is_nearly_full() {
        let dir = dir();
        let reserve = dir.path().join(NAME);
        create(dir.path(), LEAST_FREE - 1).unwrap();
        assert!(!reserve.exists());
        create(dir.path(), LEAST_FREE).unwrap();
        let metadata = fs::metadata(&reserve).unwrap();
        assert_eq!(metadata.len(), BYTES);
        assert!(metadata.blocks() * 512 >= BYTES, "it is all there, {} blocks", metadata.blocks());
    }

    #[test]
    fn urgent_records_use_up_the_reserve_and_repeated_ones_half_of_it() {
        let dir = dir();
        create(dir.path(), LEAST_FREE).unwrap();
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
        assert_eq!(fs::metadata(&reserve).unwrap().len(), BYTES, "there was space");
        works_at(2).unwrap();
        assert_eq!(fs::metadata(&reserve).unwrap().len(), BYTES - SLICE);
        for _ in 0..BYTES / SLICE {
            repeatedly(&path, || Err(full())).unwrap_err();
        }
        assert_eq!(fs::metadata(&reserve).unwrap().len(), BYTES / 2, "half is for urgent records");
        for _ in 0..BYTES / 2 / SLICE {
            works_at(3).unwrap_err();
            assert_eq!(tries.get(), 2);
        }
        assert!(!reserve.exists());
        works_at(2).unwrap_err();
        assert_eq!(tries.get(), 1, "nothing is left to give up");
        create(dir.path(), LEAST_FREE).unwrap();
        assert_eq!(fs::metadata(&reserve).unwrap().len(), BYTES, "it is reserved again");
        let broken = || Err(FileError::new("write", &path, io::ErrorKind::PermissionDenied.into()));
        urgently(&path, broken).unwrap_err();
        assert_eq!(fs::metadata(&reserve).unwrap().len(), BYTES, "space would not help");
    }
}
