//! The files of one log: `0.log`, and older ones that rotation has renamed to `0.log.1`, `0.log.2` and so on.
//!
//! A shim renames them, from the oldest to the newest, while the agent reads. A file is known by its identity, not by its name.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// How many files are kept, with the current one: the kubelet's `containerLogMaxFiles`.
pub(crate) const MAX_FILES: usize = 5;

/// The name of an older file.
pub(super) fn numbered(path: &Path, age: usize) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{age}"));
    name.into()
}

/// A file of a log, whatever its name is by now.
#[derive(Debug)]
pub(super) struct LogFile {
    pub(super) file: File,
    identity: (u64, u64),
}

impl LogFile {
    /// The file of an age, 0 for the current one; `None` when there is none.
    fn open(path: &Path, age: usize) -> io::Result<Option<Self>> {
        let path = if age == 0 { path.to_owned() } else { numbered(path, age) };
        match File::open(path) {
            Ok(file) => {
                let metadata = file.metadata()?;
                Ok(Some(Self { file, identity: (metadata.dev(), metadata.ino()) }))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The files of a log, the newest first. A file that is renamed meanwhile is there once.
    pub(super) fn all(path: &Path) -> io::Result<Vec<Self>> {
        let mut found: Vec<Self> = Vec::new();
        for age in 0..=MAX_FILES {
            if let Some(file) = Self::open(path, age)?
                && found.iter().all(|known| known.identity != file.identity)
            {
                found.push(file);
            }
        }
        Ok(found)
    }

    /// The file that was begun after this one; `None` when this is the newest. When this one is gone, the oldest that is left.
    pub(super) fn next(&self, path: &Path) -> io::Result<Option<Self>> {
        // The common case, without opening anything.
        if std::fs::metadata(path).is_ok_and(|current| (current.dev(), current.ino()) == self.identity) {
            return Ok(None);
        }
        let mut newer = None;
        // A file only moves to greater ages, and all of them at once: looked at in this order, none is missed.
        for file in Self::all(path)? {
            if file.identity == self.identity {
                return Ok(newer);
            }
            newer = Some(file);
        }
        Ok(newer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::dir;
    use std::fs;
    use std::io::Read;

    fn text(file: &LogFile) -> String {
        let mut text = String::new();
        (&file.file).read_to_string(&mut text).unwrap();
        text
    }

    fn rotate(path: &Path, text: &str) {
        for age in (1..MAX_FILES).rev() {
            let newer = if age == 1 { path.to_owned() } else { numbered(path, age - 1) };
            let _ = fs::rename(newer, numbered(path, age));
        }
        fs::write(path, text).unwrap();
    }

    #[test]
    fn the_next_file_is_found_however_often_the_log_is_rotated() {
        let dir = dir();
        let path = dir.path().join("0.log");
        assert!(LogFile::all(&path).unwrap().is_empty());
        fs::write(&path, "0").unwrap();
        let first = LogFile::all(&path).unwrap().remove(0);
        assert!(first.next(&path).unwrap().is_none());
        for number in 1..=3 {
            rotate(&path, &number.to_string());
            assert_eq!(text(&first.next(&path).unwrap().unwrap()), "1");
        }
        let all: Vec<String> = LogFile::all(&path).unwrap().iter().map(text).collect();
        assert_eq!(all, ["3", "2", "1", "0"]);
        // Between two renames, and before the new file is there.
        fs::rename(numbered(&path, 3), numbered(&path, 4)).unwrap();
        assert_eq!(text(&first.next(&path).unwrap().unwrap()), "1");
        fs::rename(&path, dir.path().join("away")).unwrap();
        assert_eq!(text(&first.next(&path).unwrap().unwrap()), "1");
        fs::rename(dir.path().join("away"), &path).unwrap();
        // The first file is removed.
        rotate(&path, "4");
        rotate(&path, "5");
        assert_eq!(text(&first.next(&path).unwrap().unwrap()), "1");
        rotate(&path, "6");
        assert_eq!(text(&first.next(&path).unwrap().unwrap()), "2", "what is left goes on");
    }
}
