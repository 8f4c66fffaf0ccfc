//! What a file takes of the disk for itself: the blocks that it shares with no clone. Only APFS tells.

use std::path::Path;

/// The bytes that no other file shares; `None` where the system does not tell.
#[cfg(target_os = "macos")]
pub(crate) fn private_size(path: &Path) -> Option<u64> {
    kache_fs::measure_file(path).ok()?.unique
}

#[cfg(not(target_os = "macos"))]
pub(crate) fn private_size(_path: &Path) -> Option<u64> {
    None
}
