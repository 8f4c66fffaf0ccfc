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
pub(crate) mod remove;
pub(crate) mod secret_file;
pub(crate) mod socket;
