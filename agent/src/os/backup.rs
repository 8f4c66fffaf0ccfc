//! Time Machine: directories that it leaves out.

use std::io;
use std::path::Path;

/// The attribute by which Time Machine leaves a file or directory out, wherever it is moved to. `tmutil addexclusion` sets it, too.
#[cfg(target_os = "macos")]
const EXCLUDED: &str = "com.apple.metadata:com_apple_backup_excludeItem";
/// Linux has attributes of a user's own choice below `user.` only.
#[cfg(not(target_os = "macos"))]
const EXCLUDED: &str = "user.com.apple.metadata:com_apple_backup_excludeItem";

/// The text `com.apple.backupd` as a binary property list: its kind and length, itself, and where it is in the list.
const BY_BACKUPD: &[u8] = b"bplist00_\x10\x11com.apple.backupd\x08\
    \0\0\0\0\0\0\x01\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x1c";

/// Has Time Machine leave a directory out. Backups that are there already keep it.
pub(crate) fn exclude(path: &Path) -> io::Result<()> {
    xattr::set(path, EXCLUDED, BY_BACKUPD)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_excluded_directory_has_the_attribute_that_time_machine_reads() {
        let value = plist::Value::from_reader(io::Cursor::new(BY_BACKUPD)).unwrap();
        assert_eq!(value.as_string(), Some("com.apple.backupd"));
        let dir = crate::testing::dir();
        match exclude(dir.path()) {
            // Some file systems of Linux have no attributes.
            Err(error) if error.kind() == io::ErrorKind::Unsupported => return,
            excluded => excluded.unwrap(),
        }
        exclude(dir.path()).unwrap();
        assert_eq!(xattr::get(dir.path(), EXCLUDED).unwrap().as_deref(), Some(BY_BACKUPD));
    }
}
