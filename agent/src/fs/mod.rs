//! Files and directories: atomic files, locks, and directories that a guest can write to.

pub(crate) mod blocking_io;
pub(crate) mod dir;
pub(crate) mod dir_identity;
pub(crate) mod disk_usage;
pub(crate) mod file;
pub(crate) mod freed_space;
#[cfg(test)]
pub(crate) mod hostile;
pub(crate) mod lock;
pub(crate) mod private_size;
pub(crate) mod remove;
pub(crate) mod secret_file;
pub(crate) mod socket;

use std::io;

/// The result of a call on a file or directory that may be absent.
pub(crate) fn absent_is_none<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

/// The result of a removal: an absent file or directory is fine.
pub(crate) fn absent_is_fine(result: io::Result<()>) -> io::Result<()> {
    absent_is_none(result).map(drop)
}
