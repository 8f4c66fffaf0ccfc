//! The identity of a directory that tart opens by its path.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::absent_is_none;
use super::dir::Entry;

/// A directory, independent of its path. tart opens the path long after the agent has checked it, and a guest that can write to a
/// directory above it can have replaced it by then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DirIdentity {
    /// Without the device, whose number may change when the Mac restarts. Without links, only the host itself can lead a path to another
    /// device.
    inode: u64,
}

impl DirIdentity {
    pub(crate) fn of(entry: Entry) -> Self {
        Self { inode: entry.inode }
    }

    /// Whether a path leads to the directory, without a link on the way.
    pub(crate) fn is_at(self, path: &Path) -> io::Result<bool> {
        let mut steps: Vec<&Path> = path.ancestors().collect();
        steps.reverse();
        let mut inode = None;
        for step in steps {
            match absent_is_none(step.symlink_metadata())? {
                Some(found) if found.is_dir() => inode = Some(found.ino()),
                _ => return Ok(false),
            }
        }
        Ok(inode == Some(self.inode))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::dir::Dir;
    use crate::testing;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_path_no_longer_leads_to_a_directory_that_was_replaced() {
        let temp = testing::dir();
        let root = temp.path().canonicalize().unwrap();
        let (path, aside) = (root.join("a/b"), root.join("aside"));
        fs::create_dir_all(&path).unwrap();
        let identity = DirIdentity::of(Dir::trusted(&path).unwrap().this().unwrap());
        let is_there = || identity.is_at(&path).unwrap();
        assert!(is_there());
        fs::rename(&path, &aside).unwrap();
        assert!(!is_there(), "nothing");
        fs::create_dir(&path).unwrap();
        assert!(!is_there(), "another one");
        fs::remove_dir(&path).unwrap();
        fs::write(&path, "").unwrap();
        assert!(!is_there(), "a file");
        fs::remove_file(&path).unwrap();
        symlink(&aside, &path).unwrap();
        assert!(!is_there(), "a link, even to itself");
        fs::remove_file(&path).unwrap();
        fs::rename(&aside, &path).unwrap();
        assert!(is_there());
        fs::rename(root.join("a"), &aside).unwrap();
        symlink(&aside, root.join("a")).unwrap();
        assert!(!is_there(), "a link on the way");
    }
}
