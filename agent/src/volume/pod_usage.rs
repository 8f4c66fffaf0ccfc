//! What a Pod takes of the disk beyond the image that it shares: its VM, its volumes and its logs.
//!
//! What a guest has written over what was in its image is not seen: the files say how many blocks they have, not how many they share.

use crate::fs::disk_usage::taken;
use crate::fs::file::FileError;
use crate::names::{BaseName, VmName};
use crate::state::PodDir;
use crate::tart::Tart;

/// All that a Pod takes, in bytes. `None` when there is too much to measure.
pub(crate) fn used(dir: &PodDir, tart: &Tart) -> Result<Option<u64>, FileError> {
    Ok(sum(taken(&dir.volumes_path()), beside_volumes(dir, tart)?))
}

/// The same without its volumes, which are the only thing that a guest can make long to look at.
pub(crate) fn beside_volumes(dir: &PodDir, tart: &Tart) -> Result<Option<u64>, FileError> {
    let mut total = taken(dir.logs_path());
    for attempt in dir.attempts()? {
        let base = attempt.view()?.spec.and_then(|spec| spec.base);
        total = sum(total, beyond(tart, &attempt.vm(), base.as_ref()));
    }
    Ok(total)
}

fn sum(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    Some(one?.saturating_add(other?))
}

fn beyond(tart: &Tart, vm: &VmName, base: Option<&BaseName>) -> Option<u64> {
    // Without its base, what is the VM's own cannot be told any more, and no Pod goes for what its image takes.
    let Some(base) = base.filter(|base| tart.has_base(base)) else { return Some(0) };
    let shared = taken(&tart.base_dir(base))?;
    Some(taken(&tart.vm_dir(vm))?.saturating_sub(shared))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use crate::names::Restart;
    use crate::state::{ShimSpec, StateDir};
    use std::fs;
    use std::path::Path;

    const MIB: u64 = 1 << 20;

    fn fill(dir: &Path, mib: usize) {
        fs::create_dir_all(dir).unwrap();
        fs::write(dir.join("file"), vec![1; mib << 20]).unwrap();
    }

    #[test]
    fn a_pod_takes_its_volumes_its_logs_and_what_its_vm_has_beyond_its_image() {
        let temp = testing::dir();
        let state = StateDir::open(&temp.path().join("state")).unwrap();
        let (dir, tart) = (state.pod("0b1c".parse().unwrap()), Tart::in_home("tart".as_ref(), temp.path()));
        let takes = |part: fn(&PodDir, &Tart) -> Result<Option<u64>, FileError>| {
            part(&dir, &tart).unwrap().map(|bytes| bytes / MIB)
        };
        assert_eq!(takes(used), Some(0));
        let attempt = dir.attempt(Restart(0));
        let base: BaseName = format!("tk-base-{}", "a".repeat(32)).parse().unwrap();
        attempt.plan(&ShimSpec { base: Some(base.clone()), ..ShimSpec::example(attempt.vm()) }).unwrap();
        fill(&tart.base_dir(&base), 4);
        for name in ["config.json", "disk.img", "nvram.bin"] {
            fs::write(tart.base_dir(&base).join(name), "").unwrap();
        }
        fill(&tart.vm_dir(&attempt.vm()), 5);
        fill(dir.logs_path(), 2);
        assert_eq!(takes(used), Some(3));
        fill(&dir.volumes_path(), 4);
        assert_eq!((takes(used), takes(beside_volumes)), (Some(7), Some(3)));
        fs::remove_dir_all(tart.base_dir(&base)).unwrap();
        assert_eq!(takes(used), Some(6), "what the VM shares with its image is not held against the Pod");
    }
}
