//! Files with secrets: complete or absent, and readable by the agent's user alone.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use super::absent_is_fine;
use super::file::FileError;

/// Writes a file that only this user can read, and returns when not even a power cut can undo it. A reader, also after a crash, sees the old
/// content or the new one, never a part.
pub(crate) fn write_secret(path: &Path, content: &[u8]) -> Result<(), FileError> {
    let attempt = || -> io::Result<()> {
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
        let mut temp = path.as_os_str().to_owned();
        temp.push(".tmp");
        // A temporary file of a crash may have another mode and open readers, so it is removed first.
        absent_is_fine(fs::remove_file(&temp))?;
        let mut file = File::options().create_new(true).write(true).mode(0o600).open(&temp)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&temp, path)?;
        File::open(parent)?.sync_all()
    };
    attempt().map_err(|source| FileError::new("write", path, source))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_secret_file_has_mode_0600_whatever_was_there() {
        let dir = testing::dir();
        let path = dir.path().join("new/secret");
        write_secret(&path, b"one").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(path.parent().unwrap()), 0o700);
        // The files of a crash, and of a careless user.
        for left in ["new/secret.tmp", "new/secret"] {
            let left = dir.path().join(left);
            fs::write(&left, "old").unwrap();
            fs::set_permissions(&left, fs::Permissions::from_mode(0o644)).unwrap();
        }
        write_secret(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(mode(&path), 0o600);
        assert!(!dir.path().join("new/secret.tmp").exists());
    }

    #[test]
    fn the_error_names_the_file() {
        let error = write_secret(Path::new("/dev/null/secret"), b"").unwrap_err();
        assert_eq!(error.to_string(), "cannot write /dev/null/secret");
    }
}
