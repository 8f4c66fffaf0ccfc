//! What tart may remove to make room: cached images, restore images, stopped VMs.

use std::env;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::error::{Error, Result};
use crate::home::{self, Home, disk_space};
use crate::oci::Cache;

/// An image or a VM that may be removed to make room.
pub(crate) struct Prunable {
    pub(crate) path: PathBuf,
    pub(crate) size: u64,
    pub(crate) accessed: SystemTime,
}

/// Makes room for this many bytes, oldest images first. Removes nothing if that would not be enough, or if the environment
/// forbids it.
pub(crate) fn reclaim_if_needed(home: &Home, needed: u64, initiator: Option<&Path>) -> Result<()> {
    // Any value counts, even an empty one.
    if env::var_os("TART_NO_AUTO_PRUNE").is_some() {
        return Ok(());
    }
    let missing = needed.saturating_sub(disk_space::available(home));
    if missing == 0 {
        return Ok(());
    }
    let initiator = initiator.and_then(|path| fs::canonicalize(path).ok());
    let victims = victims(caches(home).map_err(Error::other)?, missing, initiator.as_deref());
    remove_all(victims)
}

/// The bytes that all VMs and caches take.
pub(crate) fn used(home: &Home) -> u64 {
    let vms = home.local_vms().unwrap_or_default();
    let vms: u64 = vms.iter().filter_map(|(_, vm)| vm.allocated_size().ok()).sum();
    vms + caches(home).unwrap_or_default().iter().map(|prunable| prunable.size).sum::<u64>()
}

/// All cached images and restore images.
pub(crate) fn caches(home: &Home) -> io::Result<Vec<Prunable>> {
    let mut prunables = Vec::new();
    for cached in Cache::new(home).list()?.into_iter().filter(|cached| !cached.is_tag) {
        let (size, accessed) = (cached.vm.allocated_size()?, cached.vm.access_date()?);
        prunables.push(Prunable { path: cached.vm.path().to_owned(), size, accessed });
    }
    for path in home::entries(&home.ipsw_cache())? {
        let metadata = path.metadata()?;
        prunables.push(Prunable { path, size: metadata.blocks() * 512, accessed: metadata.accessed()? });
    }
    Ok(prunables)
}

/// All local VMs that do not run.
pub(crate) fn stopped_vms(home: &Home) -> Result<Vec<Prunable>> {
    let vms = home.local_vms()?.into_iter().map(|(_, vm)| vm).filter(|vm| !vm.is_running());
    vms.map(|vm| {
        Ok(Prunable { path: vm.path().to_owned(), size: vm.allocated_size()?, accessed: vm.access_date()? })
    })
    .collect::<io::Result<_>>()
    .map_err(Error::other)
}

/// The least recently used ones that together free this many bytes. Empty if all of them would not be enough.
fn victims(mut prunables: Vec<Prunable>, bytes: u64, initiator: Option<&Path>) -> Vec<Prunable> {
    if prunables.iter().map(|prunable| prunable.size).sum::<u64>() < bytes {
        return Vec::new();
    }
    prunables.sort_by_key(|prunable| prunable.accessed);
    let mut freed = 0;
    prunables
        .into_iter()
        .filter(|prunable| initiator != Some(&prunable.path))
        .take_while(|prunable| {
            let wanted = freed < bytes;
            freed += prunable.size;
            wanted
        })
        .collect()
}

/// Removes all of these.
pub(crate) fn remove_all(prunables: impl IntoIterator<Item = Prunable>) -> Result<()> {
    for prunable in prunables {
        home::remove(&prunable.path).map_err(Error::other)?;
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use super::*;

    pub(crate) fn prunable(name: &str, size: u64, age: u64) -> Prunable {
        let accessed = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 - age);
        Prunable { path: name.into(), size, accessed }
    }

    pub(crate) fn names(prunables: &[Prunable]) -> Vec<&str> {
        prunables.iter().filter_map(|prunable| prunable.path.to_str()).collect()
    }

    #[test]
    fn the_oldest_go_until_there_is_room() {
        let all = || vec![prunable("b", 5, 20), prunable("a", 5, 30), prunable("c", 5, 10)];
        assert_eq!(names(&victims(all(), 6, None)), ["a", "b"]);
        assert_eq!(names(&victims(all(), 5, None)), ["a"]);
        assert_eq!(names(&victims(all(), 6, Some(Path::new("a")))), ["b", "c"]);
        assert!(victims(all(), 16, None).is_empty(), "it would not be enough");
    }
}
