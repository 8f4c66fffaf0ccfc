//! Small JSON files that are either complete or absent.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use super::{absent_is_fine, absent_is_none};
use crate::{crash_point, error_chain};

/// The agent and the shim write no larger file.
const MAX_BYTES: u64 = 4 << 20;

/// A state file that could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("cannot {verb} {}", path.display())]
pub(crate) struct FileError {
    verb: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

impl FileError {
    pub(crate) fn new(verb: &'static str, path: &Path, source: io::Error) -> Self {
        Self { verb, path: path.to_owned(), source }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn is_for_want_of_space(&self) -> bool {
        error_chain::is_for_want_of_space(self)
    }
}

/// Writes `value` so that a reader, also after a crash, sees the old content or the new one, never a part.
///
/// A power cut may still undo it; [`write_durably`] is for what must not be undone.
pub(crate) fn write<T: Serialize>(path: &Path, value: &T) -> Result<(), FileError> {
    replace(path, value, |_| Ok(())).map_err(|source| FileError::new("write", path, source))
}

/// Writes `value` as [`write()`] does, and returns when not even a power cut can undo it.
pub(crate) fn write_durably<T: Serialize>(path: &Path, value: &T) -> Result<(), FileError> {
    let durably = || {
        replace(path, value, File::sync_all)?;
        sync_parent(path)
    };
    durably().map_err(|source| FileError::new("write", path, source))
}

/// Returns when not even a power cut can undo what was written to `path`.
pub(crate) fn sync(path: &Path) -> Result<(), FileError> {
    let sync = || {
        File::open(path)?.sync_all()?;
        sync_parent(path)
    };
    sync().map_err(|source| FileError::new("sync", path, source))
}

fn replace<T: Serialize>(
    path: &Path,
    value: &T,
    before_rename: impl Fn(&File) -> io::Result<()>,
) -> io::Result<()> {
    let bytes = serde_json::to_vec(value)?;
    // `read` would refuse it, and the caller would write it again for ever.
    if u64::try_from(bytes.len()).is_ok_and(|length| length > MAX_BYTES) {
        let words = format!("{} bytes are more than the {MAX_BYTES} that it may have", bytes.len());
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, words));
    }
    let temp = path.with_extension("tmp");
    let mut file = File::options().create(true).truncate(true).write(true).mode(0o600).open(&temp)?;
    file.write_all(&bytes)?;
    before_rename(&file)?;
    if let Some(name) = path.file_name().and_then(OsStr::to_str) {
        crash_point::point(&format!("write.{name}"));
    }
    fs::rename(&temp, path)
}

/// Removes the temporary file that a crash may have left.
pub(crate) fn remove_half_written(path: &Path) -> Result<(), FileError> {
    remove(&path.with_extension("tmp"))
}

/// Reads a file; `None` if it is absent, or if a power cut or a bad disk has spoilt it. JSON of another format is an error: another
/// release has written it, and what it says must not be lost.
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, FileError> {
    match read_strictly(path) {
        Err(FileError { source, .. }) if source.kind() == io::ErrorKind::InvalidData => {
            tracing::warn!(path = %path.display(), error = %source, "the file is spoilt; going on without it");
            Ok(None)
        }
        other => other,
    }
}

/// What is at the path of a state file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileCondition {
    Absent,
    Readable,
    /// A power cut or a bad disk has spoilt it.
    Spoilt,
    /// It is JSON of another format: another release has written it.
    OtherFormat,
}

impl FileCondition {
    /// Whether there is a file that this release cannot read.
    pub(crate) fn is_unreadable(self) -> bool {
        matches!(self, Self::Spoilt | Self::OtherFormat)
    }
}

/// Whether a file can be read as a `T`.
pub(crate) fn condition<T: DeserializeOwned>(path: &Path) -> Result<FileCondition, FileError> {
    match read_strictly::<T>(path) {
        Ok(None) => Ok(FileCondition::Absent),
        Ok(Some(_)) => Ok(FileCondition::Readable),
        Err(error) => match error.source.kind() {
            io::ErrorKind::InvalidData => Ok(FileCondition::Spoilt),
            io::ErrorKind::Unsupported => Ok(FileCondition::OtherFormat),
            _ => Err(error),
        },
    }
}

fn read_strictly<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, FileError> {
    let attempt = || -> io::Result<Option<T>> {
        let Some(file) = absent_is_none(File::open(path))? else { return Ok(None) };
        let mut bytes = Vec::new();
        file.take(MAX_BYTES).read_to_end(&mut bytes)?;
        serde_json::from_slice(&bytes).map(Some).map_err(|error| {
            if serde_json::from_slice::<IgnoredAny>(&bytes).is_err() {
                return io::Error::new(io::ErrorKind::InvalidData, error);
            }
            let words = format!("another release of the agent may have written it: {error}");
            io::Error::new(io::ErrorKind::Unsupported, words)
        })
    };
    attempt().map_err(|source| FileError::new("read", path, source))
}

/// Makes a rename or a new entry survive a power cut.
fn sync_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())
}

/// Removes a file; an absent one is fine.
pub(crate) fn remove(path: &Path) -> Result<(), FileError> {
    absent_is_fine(fs::remove_file(path)).map_err(|source| FileError::new("remove", path, source))
}

/// Creates a directory, readable by this user only, unless it is there.
pub(crate) fn create_dir(path: &Path) -> Result<(), FileError> {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|source| FileError::new("create", path, source))
}

/// Creates a directory for this user alone. One that belongs to another user is refused: that user could replace what the agent relies on.
/// One that others can look into no longer is.
pub(crate) fn create_private_dir(path: &Path) -> Result<(), FileError> {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    create_dir(path)?;
    let failed = |source| FileError::new("use", path, source);
    let found = fs::metadata(path).map_err(failed)?;
    check_owner(found.uid(), nix::unistd::Uid::effective().as_raw()).map_err(failed)?;
    if found.mode() & 0o077 != 0 {
        fs::set_permissions(path, fs::Permissions::from_mode(0o700)).map_err(failed)?;
    }
    Ok(())
}

fn check_owner(owner: u32, me: u32) -> io::Result<()> {
    if owner == me {
        return Ok(());
    }
    let why = format!(
        "it belongs to the user with ID {owner}, and this process runs as {me}; run it as that user, or name another directory"
    );
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

/// Removes a directory with its content; an absent one is fine.
pub(crate) fn remove_dir(path: &Path) -> Result<(), FileError> {
    absent_is_fine(fs::remove_dir_all(path)).map_err(|source| FileError::new("remove", path, source))
}

/// The names of the entries of a directory; an absent one has none.
pub(crate) fn entries(path: &Path) -> Result<Vec<String>, FileError> {
    let attempt = || -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(path)? {
            // Neither agent nor shim makes a name that is not UTF-8.
            names.extend(entry?.file_name().into_string());
        }
        Ok(names)
    };
    let names = absent_is_none(attempt()).map_err(|source| FileError::new("list", path, source))?;
    Ok(names.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn a_private_directory_is_for_its_owner_alone() {
        use std::os::unix::fs::{MetadataExt, PermissionsExt};
        let dir = crate::testing::dir();
        let path = dir.path().join("private");
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        create_private_dir(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
        assert!(check_owner(501, 501).is_ok());
        let refused = check_owner(502, 501).unwrap_err().to_string();
        assert!(refused.contains("belongs to the user with ID 502"), "{refused}");
    }

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let dir = testing::dir();
        let path = dir.path().join("a.json");
        assert_eq!(read::<u32>(&path).unwrap(), None);
        write(&path, &7).unwrap();
        write(&path, &8).unwrap();
        assert_eq!(read::<u32>(&path).unwrap(), Some(8));
        assert_eq!(entries(dir.path()).unwrap(), ["a.json"]);
    }

    #[test]
    fn a_file_that_is_too_large_is_not_written() {
        let dir = testing::dir();
        let error = write(&dir.path().join("a.json"), &"x".repeat(5 << 20)).unwrap_err();
        assert_eq!(error.source.kind(), io::ErrorKind::FileTooLarge);
        assert!(entries(dir.path()).unwrap().is_empty());
    }

    #[test]
    fn a_file_of_another_format_is_an_error_and_stays() {
        let dir = testing::dir();
        let path = dir.path().join("a.json");
        fs::write(&path, "{\"next\": \"year\"}").unwrap();
        let error = read::<u32>(&path).unwrap_err();
        assert_eq!(error.source.kind(), io::ErrorKind::Unsupported);
        assert_eq!(condition::<u32>(&path).unwrap(), FileCondition::OtherFormat);
        assert!(path.exists());
    }

    #[test]
    fn a_spoilt_file_is_none() {
        let dir = testing::dir();
        let path = dir.path().join("a.json");
        fs::write(&path, "{").unwrap();
        let error = read_strictly::<u32>(&path).unwrap_err();
        assert!(error.to_string().ends_with("a.json"), "{error}");
        assert_eq!(read::<u32>(&path).unwrap(), None);
        assert_eq!(condition::<u32>(&path).unwrap(), FileCondition::Spoilt);
        write(&path, &7).unwrap();
        assert_eq!(condition::<u32>(&path).unwrap(), FileCondition::Readable);
        remove(&path).unwrap();
        assert_eq!(condition::<u32>(&path).unwrap(), FileCondition::Absent);
    }
}
