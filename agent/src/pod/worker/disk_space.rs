//! Disk space for the volumes and the VMs of a Pod.

use std::path::{Path, PathBuf};

use tokio::time::Instant;

use super::Worker;
use crate::apiserver::events::EventReason;
use crate::fs::file::FileError;
use crate::image::gc::{DiskSpace, SpaceRequest, SpaceResult, VmSpaceLimit, VolumeSpaceLimit};
use crate::names::Restart;
use crate::os::availability;
use crate::volume::MountFailure;

/// A disk with less is full: a shim's first records take some blocks.
const FULL: u64 = 1 << 20;

/// Frees disk space for one Pod.
#[derive(Debug)]
pub(super) struct PodDiskSpace {
    disk_space: DiskSpace,
    volumes_path: PathBuf,
    volumes: VolumeSpaceLimit,
    vms: VmSpaceLimit,
}

impl PodDiskSpace {
    pub(super) fn new(disk_space: DiskSpace, volumes_path: PathBuf) -> Self {
        let (volumes, vms) = (VolumeSpaceLimit::default(), VmSpaceLimit::default());
        Self { disk_space, volumes_path, volumes, vms }
    }

    /// Frees space on the disk of a path.
    pub(super) async fn free(&self, path: &Path) -> SpaceResult {
        self.disk_space.free(SpaceRequest::Path(path)).await
    }

    /// The Pod's volumes have found no space, or have what they need, or lack something else than space.
    pub(super) fn volumes_lack_space(&mut self, do_lack: bool) {
        if do_lack {
            let free = self.free_for_volumes();
            self.volumes.request(Instant::now(), free);
        } else {
            self.volumes = VolumeSpaceLimit::default();
        }
    }

    /// The volumes of a VM that runs could not be updated for these reasons, and before for those.
    pub(super) fn volumes_are_stale(&mut self, stale: &[MountFailure], before: &[MountFailure]) {
        let free = self.free_for_volumes();
        self.volumes.follow(lack_space(stale), lack_space(before), Instant::now(), free);
    }

    fn free_for_volumes(&self) -> impl Future<Output = SpaceResult> + Send + use<> {
        let (disk_space, path) = (self.disk_space.clone(), self.volumes_path.clone());
        async move { disk_space.free(SpaceRequest::Path(&path)).await }
    }
}

fn lack_space(failures: &[MountFailure]) -> bool {
    failures.iter().any(|failure| failure.problem.no_space)
}

impl Worker {
    /// Frees disk space for a shim that has found none, and answers it. A Pod that is to go meanwhile does not wait for the deletion of
    /// images.
    pub(super) async fn free_space_for_vm(&mut self, vm: Restart) -> Result<(), FileError> {
        let otherwise = self.updates.desired_otherwise();
        let freed = tokio::select! {
            freed = self.delete_images_for_vm(vm) => freed?,
            () = otherwise => return Ok(()),
        };
        if let Some(why) = freed.why_not() {
            let note = format!(
                "the Pod's VM has found no space on the disk, and {why}; free some disk space on the host"
            );
            self.reporter.events().warning(&self.updates.pod(), EventReason::FreeDiskSpaceFailed, &note);
        }
        self.dir.run(vm).remove_disk_space_request()
    }

    /// A shim that cannot write its first records waits until it can, and cannot ask for space either. The worker frees some in its place,
    /// or tells the user.
    pub(super) async fn shim_is_stuck(&mut self, vm: Restart) {
        let logs = self.dir.logs_path().to_owned();
        let is_full = availability::volume(&logs).is_some_and(|volume| volume.available < FULL);
        let mut because = "";
        if is_full {
            let otherwise = self.updates.desired_otherwise();
            let freed = tokio::select! {
                freed = self.disk_space.free(&logs) => freed,
                () = otherwise => return,
            };
            let Some(why) = freed.why_not() else { return self.shims.may_begin() };
            because = why;
        }
        let said = format!("what its shim has said is in {}", self.dir.shim_log_path(vm).display());
        let (reason, note) = if is_full {
            let note = format!(
                "the Pod's VM cannot start: there is no space on the disk, and {because}; free some disk space on the host; {said}"
            );
            (EventReason::FreeDiskSpaceFailed, note)
        } else {
            (EventReason::FailedSync, format!("the Pod's VM does not start; {said}"))
        };
        self.reporter.events().warning(&self.updates.pod(), reason, &note);
    }

    /// A shim asks only for space on the disk that images are on.
    async fn delete_images_for_vm(&mut self, vm: Restart) -> Result<SpaceResult, FileError> {
        let run = self.dir.run(vm).view()?;
        // The log of a container that runs asks whenever it needs space.
        let is_for_log = run.running_since().is_some() && run.result.is_none();
        let PodDiskSpace { disk_space, vms, .. } = &mut self.disk_space;
        let request = if is_for_log {
            SpaceRequest::Path(self.host.tart.home())
        } else {
            SpaceRequest::Vm { restart: vm, limit: vms }
        };
        Ok(disk_space.free(request).await)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn only_a_full_disk_is_a_lack_of_space() {
        let failure = |kind: io::ErrorKind| MountFailure::new("data", &io::Error::from(kind));
        assert!(lack_space(&[failure(io::ErrorKind::NotFound), failure(io::ErrorKind::StorageFull)]));
        assert!(!lack_space(&[failure(io::ErrorKind::NotFound)]) && !lack_space(&[]));
    }
}
