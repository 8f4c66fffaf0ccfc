//! The disk usage of a Pod: its volumes, its logs, and what its VM has beyond its image.
//!
//! What a guest has overwritten of its image counts on APFS, which tells how many blocks a VM's disk shares. Elsewhere files tell only how many
//! they have.

use crate::fs::disk_usage::size_on_disk;
use crate::fs::file::FileError;
use crate::fs::private_size::private_size;
use crate::names::{BaseName, VmName};
use crate::state::PodDir;
use crate::tart::Tart;

/// The disk usage of a Pod in bytes; `None` when it cannot be measured.
pub(crate) fn used(dir: &PodDir, tart: &Tart) -> Result<Option<u64>, FileError> {
    Ok(sum(size_on_disk(&dir.volumes_path()), used_without_volumes(dir, tart)?))
}

/// The same without its volumes, which a guest can make slow to measure.
pub(crate) fn used_without_volumes(dir: &PodDir, tart: &Tart) -> Result<Option<u64>, FileError> {
    let mut total = size_on_disk(dir.logs_path());
    for run in dir.runs()? {
        let base = run.view()?.spec.and_then(|spec| spec.base);
        total = sum(total, beyond_image(tart, &run.vm(), base.as_ref()));
    }
    Ok(total)
}

fn sum(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    Some(one?.saturating_add(other?))
}

fn beyond_image(tart: &Tart, vm: &VmName, base: Option<&BaseName>) -> Option<u64> {
    // Without its base, the VM's own part is not known, and no Pod is evicted for the size of its image.
    let Some(base) = base.filter(|base| tart.has_base(base)) else { return Some(0) };
    let shared = size_on_disk(&tart.base_dir(base))?;
    let grown = size_on_disk(&tart.vm_dir(vm))?.saturating_sub(shared);
    Some(own_part(grown, private_size(&tart.vm_dir(vm).join("disk.img"))))
}

/// What a VM takes of the disk beyond its image. A snapshot of the disk shares all blocks that were there, which then are private to no file.
fn own_part(grown: u64, private: Option<u64>) -> u64 {
    grown.max(private.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::Restart;
    use crate::state::{ShimSpec, StateDir};
    use crate::testing;
    use std::fs;
    use std::path::Path;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_vm_takes_what_it_has_grown_by_or_shares_with_no_file() {
        // The last one has been in a snapshot since it grew.
        for (grown, private, own) in [(5, None, 5), (0, Some(7), 7), (5, Some(7), 7), (5, Some(0), 5)] {
            assert_eq!(own_part(grown, private), own, "{grown} {private:?}");
        }
    }

    fn fill(dir: &Path, mib: usize) {
        fs::create_dir_all(dir).unwrap();
        fs::write(dir.join("file"), vec![1; mib << 20]).unwrap();
    }

    #[test]
    fn a_pod_uses_its_volumes_its_logs_and_what_its_vm_has_beyond_its_image() {
        let temp = testing::dir();
        let state = StateDir::open(&temp.path().join("state")).unwrap();
        let (dir, tart) = (state.pod("0b1c".parse().unwrap()), Tart::in_home("tart".as_ref(), temp.path()));
        let uses = |part: fn(&PodDir, &Tart) -> Result<Option<u64>, FileError>| {
            part(&dir, &tart).unwrap().map(|bytes| bytes / MIB)
        };
        assert_eq!(uses(used), Some(0));
        let run = dir.run(Restart(0));
        let base: BaseName = format!("tk-base-{}", "a".repeat(32)).parse().unwrap();
        run.plan(&ShimSpec { base: Some(base.clone()), ..ShimSpec::example(run.vm()) }).unwrap();
        fill(&tart.base_dir(&base), 4);
        for name in ["config.json", "disk.img", "nvram.bin"] {
            fs::write(tart.base_dir(&base).join(name), "").unwrap();
        }
        fill(&tart.vm_dir(&run.vm()), 5);
        fill(dir.logs_path(), 2);
        assert_eq!(uses(used), Some(3));
        fill(&dir.volumes_path(), 4);
        assert_eq!((uses(used), uses(used_without_volumes)), (Some(7), Some(3)));
        fs::remove_dir_all(tart.base_dir(&base)).unwrap();
        assert_eq!(uses(used), Some(6), "the Pod is not charged for the image");
    }
}
