//! How much of something the host has, and how much of it can be had.

use std::path::Path;

use nix::sys::statvfs::statvfs;
use sysinfo::{MemoryRefreshKind, RefreshKind, System};

/// How much of something there is, and how much of it can be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Availability {
    /// What can be had.
    pub(crate) available: u64,
    /// All of it.
    pub(crate) total: u64,
}

/// The volume that holds a path, whether or not the path exists yet.
pub(crate) fn volume(path: &Path) -> Option<Availability> {
    let stat = path.ancestors().find_map(|path| statvfs(path).ok())?;
    // The types differ from one system to the next.
    #[allow(clippy::useless_conversion)]
    let bytes = |blocks| u64::from(blocks).saturating_mul(u64::from(stat.fragment_size()));
    Some(Availability { available: bytes(stat.blocks_available()), total: bytes(stat.blocks()) })
}

/// The memory.
pub(crate) fn memory() -> Option<Availability> {
    let what = RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_ram());
    let system = System::new_with_specifics(what).ok()?;
    let total = system.total_memory();
    (total > 0).then(|| Availability { available: system.available_memory(), total })
}
