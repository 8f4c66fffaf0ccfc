//! The size on disk of a directory that a guest fills.

use std::ffi::OsStr;
use std::io;
use std::path::Path;

use super::dir::{Dir, Entry, EntryKind, Names};

/// Each level costs a descriptor while it is measured, and macOS gives a process 256 of them.
const MAX_LEVELS: usize = 64;
/// A directory with more entries takes too long to measure.
const MAX_ENTRIES: u64 = 20_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Usage {
    Bytes(u64),
    Unmeasurable(Obstacle),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Obstacle {
    #[error("it has more than {MAX_ENTRIES} files")]
    TooMuch,
    #[error("more than {MAX_LEVELS} of its directories are inside each other")]
    TooDeep,
    #[error("one of its directories cannot be read by the agent's user")]
    Locked,
}

/// The maximum number of entries of a directory that is measured in one step.
const MAX_ENTRIES_AT_ONCE: u64 = 2_000_000;

/// The size of a directory on disk, in bytes: 0 when it does not exist, `None` when it cannot be measured.
pub(crate) fn size_on_disk(path: &Path) -> Option<u64> {
    let (parent, name) = path.parent().zip(path.file_name())?;
    let begun = Dir::trusted(parent).and_then(|parent| Measurement::begin(&parent, name));
    let measured = begun.and_then(|begun| match begun {
        Ok(mut measurement) => measurement.advance(MAX_ENTRIES_AT_ONCE, u64::MAX),
        Err(obstacle) => Ok(Some(Usage::Unmeasurable(obstacle))),
    });
    match measured {
        Ok(Some(Usage::Bytes(bytes))) => Some(bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Some(0),
        Ok(Some(Usage::Unmeasurable(_)) | None) | Err(_) => None,
    }
}

/// A measurement under way. Its memory is bounded, and it can be dropped between two steps.
pub(crate) struct Measurement {
    device: u64,
    /// The directories from the root to the current one.
    levels: Vec<(Dir, Names)>,
    bytes: u64,
    entries: u64,
}

impl Measurement {
    /// Begins with a directory below one that no guest can reach; an obstacle if the guest has locked it.
    pub(crate) fn begin(parent: &Dir, name: &OsStr) -> io::Result<Result<Self, Obstacle>> {
        let begin = || {
            let root = parent.open(name)?;
            let entry = root.this()?;
            let names = root.names()?;
            Ok(Self { device: entry.device, levels: vec![(root, names)], bytes: entry.used, entries: 0 })
        };
        match begin() {
            Err(error) if is_locked(&error) => Ok(Err(Obstacle::Locked)),
            begun => begun.map(Ok),
        }
    }

    /// Measures so many entries more; the result when there are no more, or when there are more than `limit` bytes already.
    pub(crate) fn advance(&mut self, entries: u64, limit: u64) -> io::Result<Option<Usage>> {
        match self.measure(entries, limit) {
            // A mode can allow to list a directory, but not to read the metadata of its entries.
            Err(error) if is_locked(&error) => Ok(Some(Usage::Unmeasurable(Obstacle::Locked))),
            measured => measured,
        }
    }

    fn measure(&mut self, entries: u64, limit: u64) -> io::Result<Option<Usage>> {
        for _ in 0..entries {
            if self.bytes > limit {
                return Ok(Some(Usage::Bytes(self.bytes)));
            }
            let Some((dir, names)) = self.levels.last_mut() else {
                return Ok(Some(Usage::Bytes(self.bytes)));
            };
            let Some(name) = names.next() else {
                self.levels.pop();
                continue;
            };
            let name = name?;
            self.entries += 1;
            if self.entries > MAX_ENTRIES {
                return Ok(Some(Usage::Unmeasurable(Obstacle::TooMuch)));
            }
            let Some(entry) = dir.entry(&name)? else { continue };
            if entry.device != self.device {
                continue;
            }
            self.bytes = self.bytes.saturating_add(share_of(entry));
            if entry.kind == EntryKind::Directory {
                let inner = match dir.open(&name) {
                    Ok(_) if self.levels.len() == MAX_LEVELS => {
                        return Ok(Some(Usage::Unmeasurable(Obstacle::TooDeep)));
                    }
                    Ok(inner) => inner,
                    Err(error) if is_locked(&error) => return Err(error),
                    // The guest has removed it, or replaced it by a link.
                    Err(_) => continue,
                };
                match inner.names() {
                    Ok(names) => self.levels.push((inner, names)),
                    // A guest that creates and removes directories all the time is measured all the same.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(None)
    }
}

fn is_locked(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
}

/// The share of one hard link, so that a file with several counts once.
fn share_of(entry: Entry) -> u64 {
    if entry.kind == EntryKind::Directory { entry.used } else { entry.used / entry.names.max(1) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::hostile;
    use crate::testing;
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;

    fn usage(path: &Path, limit: u64) -> Usage {
        let parent = Dir::trusted(path.parent().unwrap()).unwrap();
        let mut measurement = match Measurement::begin(&parent, path.file_name().unwrap()).unwrap() {
            Ok(measurement) => measurement,
            Err(obstacle) => return Usage::Unmeasurable(obstacle),
        };
        loop {
            if let Some(usage) = measurement.advance(3, limit).unwrap() {
                return usage;
            }
        }
    }

    fn bytes(path: &Path) -> u64 {
        match usage(path, u64::MAX) {
            Usage::Bytes(bytes) => bytes,
            Usage::Unmeasurable(_) => u64::MAX,
        }
    }

    #[test]
    fn files_in_all_directories_count() {
        let temp = testing::dir();
        let root = temp.path().join("v");
        fs::create_dir_all(root.join("a/b")).unwrap();
        let empty = bytes(&root);
        for file in ["one", "a/two", "a/b/three"] {
            fs::write(root.join(file), vec![1; 100_000]).unwrap();
        }
        let grown = bytes(&root) - empty;
        assert!((300_000..400_000).contains(&grown), "{grown}");
        assert!(matches!(usage(&root, 150_000), Usage::Bytes(used) if used > 150_000));
    }

    #[test]
    fn a_file_with_many_hard_links_counts_once() {
        let temp = testing::dir();
        let root = temp.path().join("v");
        fs::create_dir(&root).unwrap();
        fs::write(root.join("first"), vec![1; 1_000_000]).unwrap();
        let once = bytes(&root);
        for n in 0..20 {
            fs::hard_link(root.join("first"), root.join(n.to_string())).unwrap();
        }
        assert!(bytes(&root).abs_diff(once) < 100_000, "{} {once}", bytes(&root));
    }

    #[test]
    fn holes_and_targets_of_links_do_not_count() {
        let (temp, outside) = (testing::dir(), testing::dir());
        fs::write(outside.path().join("kept"), vec![1; 10_000_000]).unwrap();
        let root = temp.path().join("v");
        fs::create_dir(&root).unwrap();
        hostile::fill(&root, outside.path());
        fs::File::create(root.join("hole")).unwrap().set_len(1 << 40).unwrap();
        assert!(bytes(&root) < 1_000_000, "{}", bytes(&root));
    }

    #[test]
    fn a_tree_that_is_too_deep_is_unmeasurable() {
        let temp = testing::dir();
        for (name, levels) in
            [("fits", MAX_LEVELS - 1), ("too deep", MAX_LEVELS), ("deeper than a path", 500)]
        {
            let root = temp.path().join(name);
            fs::create_dir(&root).unwrap();
            hostile::nest(&root, levels);
            let is_too_deep = usage(&root, u64::MAX) == Usage::Unmeasurable(Obstacle::TooDeep);
            assert_eq!(is_too_deep, levels >= MAX_LEVELS, "{name}");
            // The test removes its directory by path, which must not be too long.
            crate::fs::remove::remove(&Dir::trusted(temp.path()).unwrap(), OsStr::new(name)).unwrap();
        }
    }

    #[test]
    fn a_locked_directory_is_not_measured_as_empty() {
        let locks = [("v", 0), ("v", 0o400), ("v", 0o600), ("v/d", 0), ("v/d", 0o600), ("v/d", 0o100)];
        for (locked, mode) in locks {
            let temp = hostile::world_writable_dir();
            let made = hostile::as_nobody(|| {
                let root = temp.path().join("v");
                fs::create_dir_all(root.join("d")).unwrap();
                fs::write(root.join("d/file"), vec![1; 100_000]).unwrap();
                let locked = temp.path().join(locked);
                fs::set_permissions(&locked, fs::Permissions::from_mode(mode)).unwrap();
                let usage = usage(&root, u64::MAX);
                fs::set_permissions(&locked, fs::Permissions::from_mode(0o700)).unwrap();
                usage
            });
            assert_eq!(made, Usage::Unmeasurable(Obstacle::Locked), "{locked} {mode:o}");
        }
    }

    #[test]
    fn no_link_is_followed_whenever_it_appears() {
        let (temp, outside) = (testing::dir(), testing::dir());
        fs::create_dir(outside.path().join("inner")).unwrap();
        for huge in ["huge", "inner/huge"] {
            fs::write(outside.path().join(huge), vec![1; 10_000_000]).unwrap();
        }
        let root = temp.path().join("v");
        hostile::at_every_moment(
            || {
                let _ = fs::remove_dir_all(&root);
                fs::create_dir_all(root.join("dir/inner/deep")).unwrap();
                fs::write(root.join("dir/inner/file"), "").unwrap();
            },
            hostile::replace_by_links(&root, outside.path()),
            || assert!(bytes(&root) < 1_000_000),
            || {},
        );
    }
}
