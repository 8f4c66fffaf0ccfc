//! `tart prune`, and the pruning that `pull` and `clone` do by themselves.

use std::env;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::cli;
use crate::error::{Error, Result};
use crate::home::{self, Home};
use crate::host::disk_space;
use crate::oci::Cache;

/// Something that may be removed to make room.
struct Prunable {
    path: PathBuf,
    size: u64,
    accessed: SystemTime,
}

/// Removes what is old, or what exceeds a budget.
pub(crate) fn prune(home: &Home, args: &cli::Prune) -> Result<()> {
    if args.older_than.is_none() && args.space_budget.is_none() && !args.gc {
        return Err(Error::usage("at least one pruning criteria must be specified"));
    }
    if args.gc {
        Cache::new(home).collect_garbage().map_err(Error::other)?;
    }
    let prunables = || if args.vms { stopped_vms(home) } else { caches(home).map_err(Error::other) };
    if let Some(days) = args.older_than {
        let age = Duration::from_secs(days.saturating_mul(24 * 60 * 60));
        let limit = SystemTime::now().checked_sub(age).unwrap_or(SystemTime::UNIX_EPOCH);
        remove_all(prunables()?.into_iter().filter(|prunable| prunable.accessed <= limit))?;
    }
    if let Some(gib) = args.space_budget {
        remove_all(beyond_budget(prunables()?, gib.saturating_mul(1 << 30)))?;
    }
    Ok(())
}

/// Frees room for this many bytes if it can, oldest images first, unless the environment forbids it.
pub(crate) fn reclaim_if_needed(home: &Home, needed: u64, initiator: Option<&Path>) -> Result<()> {
    // Its value does not matter, not even when it is empty.
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

/// What all VMs and caches take.
pub(crate) fn used(home: &Home) -> u64 {
    let vms = home.local_vms().unwrap_or_default();
    let vms: u64 = vms.iter().filter_map(|(_, vm)| vm.allocated_size().ok()).sum();
    vms + caches(home).unwrap_or_default().iter().map(|prunable| prunable.size).sum::<u64>()
}

fn caches(home: &Home) -> io::Result<Vec<Prunable>> {
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

fn stopped_vms(home: &Home) -> Result<Vec<Prunable>> {
    let vms = home.local_vms()?.into_iter().map(|(_, vm)| vm).filter(|vm| !vm.is_running());
    vms.map(|vm| {
        Ok(Prunable { path: vm.path().to_owned(), size: vm.allocated_size()?, accessed: vm.access_date()? })
    })
    .collect::<io::Result<_>>()
    .map_err(Error::other)
}

/// What does not fit when the most recently used come first.
fn beyond_budget(mut prunables: Vec<Prunable>, mut budget: u64) -> Vec<Prunable> {
    prunables.sort_by_key(|prunable| std::cmp::Reverse(prunable.accessed));
    prunables.retain(|prunable| match budget.checked_sub(prunable.size) {
        Some(left) => {
            budget = left;
            false
        }
        None => true,
    });
    prunables
}

/// The least recently used ones that together free this many bytes; none if all of them would not.
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

fn remove_all(prunables: impl IntoIterator<Item = Prunable>) -> Result<()> {
    for prunable in prunables {
        home::remove(&prunable.path).map_err(Error::other)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prunable(name: &str, size: u64, age: u64) -> Prunable {
        let accessed = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 - age);
        Prunable { path: name.into(), size, accessed }
    }

    fn names(prunables: &[Prunable]) -> Vec<&str> {
        prunables.iter().filter_map(|prunable| prunable.path.to_str()).collect()
    }

    #[test]
    fn a_budget_keeps_what_was_used_last_and_what_still_fits() {
        let all = vec![prunable("old-small", 1, 30), prunable("new", 5, 1), prunable("old-large", 6, 20)];
        assert_eq!(names(&beyond_budget(all, 7)), ["old-large"]);
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
