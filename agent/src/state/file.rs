//! Small JSON files that are either whole or absent.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// No file of ours comes near this; a larger one is not ours.
const MAX_BYTES: u64 = 4 << 20;

/// A state file that could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("cannot {verb} {}", path.display())]
pub struct StateError {
    verb: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

impl StateError {
    pub(super) fn new(verb: &'static str, path: &Path, source: io::Error) -> Self {
        Self { verb, path: path.to_owned(), source }
    }

    /// Whether the disk that holds the state is full.
    pub fn is_no_space(&self) -> bool {
        self.source.kind() == io::ErrorKind::StorageFull
    }
}

/// Writes `value` so that a reader, or a crash at any instant, sees the old content or the new one, never a part.
pub(super) fn write<T: Serialize>(path: &Path, value: &T) -> Result<(), StateError> {
    let attempt = || -> io::Result<()> {
        let temp = path.with_extension("tmp");
        let mut file = File::options().create(true).truncate(true).write(true).mode(0o600).open(&temp)?;
        file.write_all(&serde_json::to_vec(value)?)?;
        file.sync_all()?;
        fs::rename(&temp, path)?;
        sync_parent(path)
    };
    attempt().map_err(|source| StateError::new("write", path, source))
}

/// Reads a file written by [`write`]; an absent one is `None`.
pub(super) fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, StateError> {
    let attempt = || -> io::Result<Option<T>> {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let value = serde_json::from_reader(io::Read::take(io::BufReader::new(file), MAX_BYTES))?;
        Ok(Some(value))
    };
    attempt().map_err(|source| StateError::new("read", path, source))
}

/// Makes a rename or a new entry survive a power cut.
fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) => File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}

/// Creates a directory, readable by this user only, unless it is there.
pub(super) fn create_dir(path: &Path) -> Result<(), StateError> {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .and_then(|()| sync_parent(path))
        .map_err(|source| StateError::new("create", path, source))
}

/// Removes a directory with all that is in it; an absent one is fine.
pub(super) fn remove_dir(path: &Path) -> Result<(), StateError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(StateError::new("remove", path, error)),
        _ => Ok(()),
    }
}

/// The names of the entries of a directory; an absent one has none.
pub(super) fn entries(path: &Path) -> Result<Vec<String>, StateError> {
    let attempt = || -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(path)? {
            // A name that is not UTF-8 is not one that we made.
            names.extend(entry?.file_name().into_string());
        }
        Ok(names)
    };
    match attempt() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        other => other.map_err(|source| StateError::new("list", path, source)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        assert_eq!(read::<u32>(&path).unwrap(), None);
        write(&path, &7).unwrap();
        write(&path, &8).unwrap();
        assert_eq!(read::<u32>(&path).unwrap(), Some(8));
        assert_eq!(entries(dir.path()).unwrap(), ["a.json"]);
    }

    #[test]
    fn a_broken_file_is_an_error_that_names_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        fs::write(&path, "{").unwrap();
        let error = read::<u32>(&path).unwrap_err();
        assert!(error.to_string().ends_with("a.json"), "{error}");
    }
}
