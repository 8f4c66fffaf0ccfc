//! Disk space for the volumes and the VMs of a Pod.

use tokio::time::Instant;

use super::Worker;
use crate::fs::file::FileError;
use crate::image::gc::{SpaceRequest, SpaceResult, VolumeSpaceLimit};
use crate::names::Restart;
use crate::pod::sync::desired::otherwise_wanted;
use crate::volume::MountFailure;

impl Worker {
    /// Frees space for a shim that has found none, and tells it. The worker stops waiting if the Pod is to end meanwhile.
    pub(super) async fn give_room(&mut self, vm: Restart) -> Result<(), FileError> {
        let otherwise = otherwise_wanted(self.wanted, self.pod.clone(), self.gone.clone());
        let result = tokio::select! {
            result = self.free_space_for_vm(vm) => result?,
            () = otherwise => return Ok(()),
        };
        if let Some(why) = result.why_not() {
            let pod = self.pod.borrow().clone();
            let note = format!(
                "the Pod's VM has found no space on the disk, and {why}; free some disk space on the host"
            );
            self.host.events.warning(&pod, "FreeDiskSpaceFailed", &note);
        }
        self.dir.attempt(vm).tell_room_is_made()
    }

    /// A shim asks only for the disk that images are on.
    async fn free_space_for_vm(&mut self, vm: Restart) -> Result<SpaceResult, FileError> {
        let view = self.dir.attempt(vm).view()?;
        let (disk_space, tart) = (self.host.disk_space.clone(), self.host.tart.clone());
        // The log of a container that runs asks when it needs to, and goes on.
        let is_for_log = view.running_since().is_some() && view.result.is_none();
        let request = if is_for_log {
            SpaceRequest::Path(tart.home())
        } else {
            SpaceRequest::Vm { restart: vm, limit: &mut self.vm_space }
        };
        Ok(disk_space.free(request).await)
    }

    /// The Pod's volumes have found no space.
    pub(super) fn want_room_for_volumes(&mut self) {
        let free = self.free_space_for_volumes();
        self.volume_space.request(Instant::now(), free);
    }

    /// The volumes of a VM that runs lack these things, and lacked those before.
    pub(super) fn volumes_lack(&mut self, lack: &[MountFailure], before: &[MountFailure]) {
        let free = self.free_space_for_volumes();
        self.volume_space.follow(lack_space(lack), lack_space(before), Instant::now(), free);
    }

    fn free_space_for_volumes(&self) -> impl Future<Output = SpaceResult> + Send + use<> {
        let (disk_space, path) = (self.host.disk_space.clone(), self.dir.volumes_path());
        async move { disk_space.free(SpaceRequest::Path(&path)).await }
    }

    /// The volumes have what they need, or lack something else.
    pub(super) fn want_no_room_for_volumes(&mut self) {
        self.volume_space = VolumeSpaceLimit::default();
    }
}

/// Whether a full disk is behind any of these.
fn lack_space(failures: &[MountFailure]) -> bool {
    failures.iter().any(|failure| failure.problem.is_for_want_of_space())
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
