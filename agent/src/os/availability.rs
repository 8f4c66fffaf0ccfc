//! How much disk space and memory the host has, and how much of it is free.

use std::path::Path;

use nix::sys::statvfs::statvfs;
use sysinfo::{MemoryRefreshKind, RefreshKind, System};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Availability {
    pub(crate) available: u64,
    pub(crate) total: u64,
}

/// The disk of a path, whether or not the path exists yet.
pub(crate) fn volume(path: &Path) -> Option<Availability> {
    let stat = path.ancestors().find_map(|path| statvfs(path).ok())?;
    // The types differ between Linux and macOS.
    #[allow(clippy::useless_conversion)]
    let bytes = |blocks| u64::from(blocks).saturating_mul(u64::from(stat.fragment_size()));
    Some(Availability { available: bytes(stat.blocks_available()), total: bytes(stat.blocks()) })
}

pub(crate) fn memory() -> Option<Availability> {
    let what = RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_ram());
    let system = System::new_with_specifics(what).ok()?;
    let total = system.total_memory();
    (total > 0).then(|| Availability { available: system.available_memory(), total })
}
