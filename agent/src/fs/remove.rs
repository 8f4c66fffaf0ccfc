//! Removing a directory that a guest has filled.
//!
//! It may be deeper than a path can be long, and than a process can open descriptors. So the agent does not walk down: it first moves the
//! directories inside a directory to the top.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;

use nix::errno::Errno;

use super::dir::{Dir, EntryKind};
use super::{absent_is_fine, absent_is_none};

/// How often the agent tries again when it could remove nothing: a guest may be writing there.
const MAX_TRIES: u32 = 100;

/// Removes an entry of a directory with its content; an absent one is fine. Nothing outside of it is touched, whatever links and mounts it
/// has.
pub(crate) fn remove(parent: &Dir, name: &OsStr) -> io::Result<()> {
    let mut mover = Mover::default();
    let mut tries = 0;
    loop {
        match mover.remove_root(parent, name) {
            Err(error) if tries == MAX_TRIES => return Err(error),
            Err(error) if is_swapped(&error) => tries += 1,
            result => return result,
        }
    }
}

#[derive(Default)]
struct Mover {
    /// The number of names that it has used.
    names: u64,
}

impl Mover {
    fn remove_root(&mut self, parent: &Dir, name: &OsStr) -> io::Result<()> {
        let Some(entry) = parent.entry(name)? else { return Ok(()) };
        if entry.kind != EntryKind::Directory {
            return absent_is_fine(parent.remove_file(name));
        }
        let root = open_unlocked(parent, name, entry.mode)?;
        self.empty(&root, parent.this()?.device)?;
        absent_is_fine(parent.remove_dir(name))
    }

    /// Removes all entries of `root`, in several passes.
    fn empty(&mut self, root: &Dir, device: u64) -> io::Result<()> {
        let mut failed_passes = 0;
        loop {
            let (mut removed, mut problem) = (0_u64, None);
            for name in root.names()? {
                match name.and_then(|name| self.remove_one(root, &name, device)) {
                    Ok(()) => removed += 1,
                    Err(error) => problem = Some(error),
                }
            }
            // An entry that could not be removed may be removable once another one is gone.
            failed_passes = if removed == 0 { failed_passes + 1 } else { 0 };
            match problem {
                None if removed == 0 => return Ok(()),
                Some(problem) if failed_passes > 0 && !is_swapped(&problem) => return Err(problem),
                Some(problem) if failed_passes > MAX_TRIES => return Err(problem),
                _ => {}
            }
        }
    }

    /// Removes one entry of `root`, or at least moves its directories up.
    fn remove_one(&mut self, root: &Dir, name: &OsStr, device: u64) -> io::Result<()> {
        let Some(entry) = root.entry(name)? else { return Ok(()) };
        if entry.kind != EntryKind::Directory {
            return absent_is_fine(root.remove_file(name));
        }
        if entry.device != device {
            return Err(io::Error::new(
                io::ErrorKind::CrossesDevices,
                "another file system is mounted in it",
            ));
        }
        let dir = open_unlocked(root, name, entry.mode)?;
        for inner in dir.names()? {
            let inner = inner?;
            match dir.entry(&inner)? {
                Some(entry) if entry.kind == EntryKind::Directory => {
                    self.move_up(&dir, &inner, entry.mode, root)?;
                }
                Some(_) => absent_is_fine(dir.remove_file(&inner))?,
                None => {}
            }
        }
        absent_is_fine(root.remove_dir(name))
    }

    fn move_up(&mut self, dir: &Dir, name: &OsStr, mode: u32, root: &Dir) -> io::Result<()> {
        if !is_unlocked(mode) {
            dir.unlock(name)?;
        }
        loop {
            self.names += 1;
            let new = OsString::from(format!("..removed-{}", self.names));
            match dir.rename(name, root, &new) {
                // The name is taken.
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::DirectoryNotEmpty
                            | io::ErrorKind::NotADirectory
                            | io::ErrorKind::AlreadyExists
                    ) => {}
                result => return absent_is_fine(result),
            }
        }
    }
}

/// Opens a directory with any mode.
fn open_unlocked(parent: &Dir, name: &OsStr, mode: u32) -> io::Result<Dir> {
    if !is_unlocked(mode) {
        parent.unlock(name)?;
    }
    parent.open(name)
}

fn is_unlocked(mode: u32) -> bool {
    mode & 0o700 == 0o700
}

/// Whether the guest has replaced an entry meanwhile.
fn is_swapped(error: &io::Error) -> bool {
    use Errno::{EISDIR, ELOOP, ENOENT, ENOTDIR, ENOTEMPTY, EOPNOTSUPP, EPERM};
    let code = error.raw_os_error().map(Errno::from_raw);
    // macOS returns EPERM for `unlink` of a directory.
    matches!(code, Some(ENOENT | ENOTDIR | ELOOP | EISDIR | ENOTEMPTY | EOPNOTSUPP | EPERM))
}

/// Removes a directory that guests could write to, with its content; an absent one is fine. No guest can reach `parent`.
pub(crate) fn remove_at(parent: &Path, name: &str) -> io::Result<()> {
    absent_is_none(Dir::trusted(parent))?.map_or(Ok(()), |parent| remove(&parent, name.as_ref()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::hostile;
    use crate::testing;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::Path;

    fn remove_below(parent: &Path, name: &str) -> io::Result<()> {
        remove(&Dir::trusted(parent).unwrap(), OsStr::new(name))
    }

    #[test]
    fn an_absent_directory_is_fine() {
        remove_below(testing::dir().path(), "nothing").unwrap();
    }

    #[test]
    fn all_kinds_of_entries_are_removed_and_nothing_else() {
        let (temp, outside) = (testing::dir(), testing::dir());
        fs::write(outside.path().join("kept"), "kept").unwrap();
        fs::create_dir_all(temp.path().join("v/a/b/c")).unwrap();
        for dir in ["v", "v/a", "v/a/b"] {
            hostile::fill(&temp.path().join(dir), outside.path());
        }
        fs::set_permissions(temp.path().join("v/a/b"), fs::Permissions::from_mode(0o000)).unwrap();
        fs::set_permissions(temp.path().join("v"), fs::Permissions::from_mode(0o111)).unwrap();
        remove_below(temp.path(), "v").unwrap();
        assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 0);
        assert_eq!(fs::read_to_string(outside.path().join("kept")).unwrap(), "kept");
    }

    #[test]
    fn a_link_in_place_of_the_directory_is_removed_without_its_target() {
        let (temp, outside) = (testing::dir(), testing::dir());
        fs::write(outside.path().join("kept"), "kept").unwrap();
        symlink(outside.path(), temp.path().join("v")).unwrap();
        remove_below(temp.path(), "v").unwrap();
        assert!(outside.path().join("kept").exists());
        assert!(!temp.path().join("v").is_symlink());
    }

    #[test]
    fn a_tree_that_is_deeper_than_any_path_is_removed() {
        let temp = testing::dir();
        fs::create_dir(temp.path().join("v")).unwrap();
        hostile::nest(&temp.path().join("v"), 3000);
        remove_below(temp.path(), "v").unwrap();
        assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 0);
    }

    #[test]
    fn the_names_of_moved_directories_may_be_taken() {
        let temp = testing::dir();
        for (taken, is_dir) in [("..removed-1", true), ("..removed-2", false), ("..removed-3", true)] {
            let path = temp.path().join("v").join(taken);
            if is_dir {
                fs::create_dir_all(path.join("full/fuller")).unwrap();
            } else {
                fs::write(path, "").unwrap();
            }
        }
        fs::create_dir_all(temp.path().join("v/a/b/c/d")).unwrap();
        remove_below(temp.path(), "v").unwrap();
        assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 0);
    }

    #[test]
    fn directories_that_turn_into_links_are_not_followed() {
        let (temp, outside) = (testing::dir(), testing::dir());
        for name in ["kept", "dir/kept"] {
            let path = outside.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "kept").unwrap();
        }
        for _ in 0..100 {
            fs::create_dir_all(temp.path().join("v/dir")).unwrap();
            let swapper = hostile::Swapper::start(&temp.path().join("v"), "dir", outside.path());
            remove_below(temp.path(), "v").unwrap();
            swapper.stop();
            remove_below(temp.path(), "v").unwrap();
        }
        assert_eq!(fs::read_to_string(outside.path().join("kept")).unwrap(), "kept");
        assert_eq!(fs::read_to_string(outside.path().join("dir/kept")).unwrap(), "kept");
    }

    #[test]
    fn no_link_is_followed_whenever_it_appears() {
        let (temp, outside) = (testing::dir(), testing::dir());
        for name in ["kept", "dir/kept", "dir/inner/kept"] {
            let path = outside.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "kept").unwrap();
        }
        let before = hostile::snapshot(outside.path());
        let root = temp.path().join("v");
        let attack = {
            let (root, outside) = (root.clone(), outside.path().to_owned());
            move || hostile::replace_by_links(&root, &outside)
        };
        hostile::at_every_moment(
            || {
                fs::create_dir_all(root.join("dir/inner/deep")).unwrap();
                fs::write(root.join("dir/inner/file"), "").unwrap();
                fs::write(root.join("dir/kept"), "").unwrap();
            },
            attack,
            || remove_below(temp.path(), "v").unwrap(),
            || {
                assert!(!root.exists());
                assert_eq!(hostile::snapshot(outside.path()), before);
            },
        );
    }
}
