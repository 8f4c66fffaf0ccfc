//! Disk space for the volumes and the VMs of a Pod. Images are deleted for them once: when that does not help, something else fills the
//! disk.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::Worker;
use crate::fs::file::FileError;
use crate::image::gc::{ImageCollector, SpaceResult};
use crate::names::Restart;
use crate::volume::MountFailure;

/// How long the worker does not ask again after no image could be deleted: a request also deletes the partial downloads of pulls, and
/// volumes are tried more often.
const ASK_INTERVAL: Duration = Duration::from_mins(1);

/// Whether images were deleted for a Pod's volumes. Volumes are tried again and again, but images are deleted for them only once.
#[derive(Debug, Default)]
enum VolumeDiskSpace {
    #[default]
    NotAsked,
    /// Images are being deleted since then. The receiver gets whether there is more space.
    Asked(Instant, watch::Receiver<Option<bool>>),
    /// No image could be deleted when the worker asked then.
    NotFreed(Instant),
    Freed,
}

impl VolumeDiskSpace {
    /// Volumes have found no space: `free` frees some, and returns whether there is more than before. It runs on a task: the fetch of an
    /// image may free space, too, and does so only while the worker polls it.
    fn want(&mut self, now: Instant, free: impl Future<Output = bool> + Send + 'static) {
        if let Self::Asked(since, answer) = self {
            let (freed, is_over, since) = (*answer.borrow(), answer.has_changed().is_err(), *since);
            match freed {
                Some(true) => *self = Self::Freed,
                Some(false) => *self = Self::NotFreed(since),
                // The task has panicked.
                None if is_over => *self = Self::NotFreed(since),
                None => {}
            }
        }
        let is_time = match self {
            Self::NotAsked => true,
            Self::NotFreed(since) => now.duration_since(*since) >= ASK_INTERVAL,
            Self::Asked(..) | Self::Freed => false,
        };
        if is_time {
            let (answer, asked) = watch::channel(None);
            tokio::spawn(async move { answer.send_replace(Some(free.await)) });
            *self = Self::Asked(now, asked);
        }
    }

    /// Volumes of a VM that runs could not be updated for the first reasons, and before for the second. Once none lacks space any more,
    /// images may be deleted for the next one that does, whatever else is wrong.
    fn follow(
        &mut self,
        (stale, before): (&[MountFailure], &[MountFailure]),
        now: Instant,
        free: impl Future<Output = bool> + Send + 'static,
    ) {
        if lack_space(stale) {
            self.want(now, free);
        } else if lack_space(before) {
            *self = Self::default();
        }
    }
}

/// For which of a Pod's VMs images were deleted. When the next VM lacks space as well, no more images go: a container that is restarted
/// for ever would cost them all.
#[derive(Debug, Default)]
struct VmDiskSpace {
    /// The last VM that lacked space, and whether images might be deleted for it.
    last: Option<(Restart, bool)>,
}

impl VmDiskSpace {
    /// A VM lacks space; whether images may be deleted for it.
    fn may_go_for(&mut self, vm: Restart) -> bool {
        let may_go = match self.last {
            Some((last, might_go)) if last == vm => might_go,
            Some((last, _)) => last.next() != vm,
            None => true,
        };
        self.last = Some((vm, may_go));
        may_go
    }
}

fn lack_space(failures: &[MountFailure]) -> bool {
    failures.iter().any(|failure| failure.problem.is_for_want_of_space())
}

/// Frees disk space for one Pod.
#[derive(Debug)]
pub(super) struct DiskSpace {
    /// Absent with `--disable-vm-gc`.
    collector: Option<Arc<ImageCollector>>,
    volumes_path: PathBuf,
    volumes: VolumeDiskSpace,
    vms: VmDiskSpace,
}

impl DiskSpace {
    pub(super) fn new(collector: Option<Arc<ImageCollector>>, volumes_path: PathBuf) -> Self {
        Self { collector, volumes_path, volumes: VolumeDiskSpace::default(), vms: VmDiskSpace::default() }
    }

    /// Deletes images where they take space that is needed at a path.
    pub(super) async fn free(&self, path: &Path) -> SpaceResult {
        match &self.collector {
            Some(collector) => collector.make_room_at(path).await,
            None => SpaceResult::SwitchedOff,
        }
    }

    /// The Pod's volumes have found no space.
    pub(super) fn volumes_lack_space(&mut self) {
        if let Some(free) = self.free_for_volumes() {
            self.volumes.want(Instant::now(), free);
        }
    }

    /// The volumes of a VM that runs could not be updated for these reasons, and before for those.
    pub(super) fn volumes_are_stale(&mut self, stale: &[MountFailure], before: &[MountFailure]) {
        if let Some(free) = self.free_for_volumes() {
            self.volumes.follow((stale, before), Instant::now(), free);
        }
    }

    /// The Pod's volumes have what they need, or lack something else than space.
    pub(super) fn volumes_lack_no_space(&mut self) {
        self.volumes = VolumeDiskSpace::default();
    }

    fn free_for_volumes(&self) -> Option<impl Future<Output = bool> + Send + use<>> {
        let (collector, path) = (self.collector.clone()?, self.volumes_path.clone());
        Some(async move { collector.make_room_at(&path).await == SpaceResult::Room })
    }
}

impl Worker {
    /// Frees disk space for a shim that has found none, and answers it. A Pod that is to go meanwhile does not wait for the deletion of
    /// images.
    pub(super) async fn free_space_for_vm(&mut self, vm: Restart) -> Result<(), FileError> {
        let otherwise = self.updates.otherwise_wanted();
        let freed = tokio::select! {
            freed = self.delete_images_for_vm(vm) => freed?,
            () = otherwise => return Ok(()),
        };
        if let Some(why) = freed.why_not() {
            let note = format!(
                "the Pod's VM has found no space on the disk, and {why}; free some disk space on the host"
            );
            self.reporter.events().warning(&self.updates.pod(), "FreeDiskSpaceFailed", &note);
        }
        self.dir.attempt(vm).tell_room_is_made()
    }

    /// A shim asks only for space on the volume that images are on.
    async fn delete_images_for_vm(&mut self, vm: Restart) -> Result<SpaceResult, FileError> {
        if self.disk_space.collector.is_none() {
            return Ok(SpaceResult::SwitchedOff);
        }
        let run = self.dir.attempt(vm).view()?;
        // The log of a container that runs asks whenever it needs space.
        let is_for_log = run.running_since().is_some() && run.result.is_none();
        if !is_for_log && !self.disk_space.vms.may_go_for(vm) {
            return Ok(SpaceResult::InVain);
        }
        Ok(self.disk_space.free(self.host.tart.home()).await)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn images_are_deleted_for_one_of_many_vms_that_lack_space() {
        let mut space = VmDiskSpace::default();
        let mut ask = |vm| space.may_go_for(Restart(vm));
        assert!(ask(3) && ask(3), "its clone, and then its start");
        assert!(!ask(4) && !ask(4) && !ask(5), "deletion did not help");
        assert!(ask(7), "the one before had space");
    }

    /// Counts how often images are deleted.
    struct Counter {
        space: VolumeDiskSpace,
        passes: Arc<AtomicU32>,
        start: Instant,
    }

    impl Counter {
        fn new() -> Self {
            Self { space: VolumeDiskSpace::default(), passes: Arc::default(), start: Instant::now() }
        }

        fn pass(&self, freed: bool) -> impl Future<Output = bool> + Send + use<> {
            let passes = self.passes.clone();
            async move {
                passes.fetch_add(1, Ordering::Relaxed);
                freed
            }
        }

        /// How often images were deleted, once no deletion goes on.
        async fn passes(&mut self) -> u32 {
            if let VolumeDiskSpace::Asked(_, answer) = &mut self.space {
                answer.wait_for(Option::is_some).await.unwrap();
            }
            self.passes.load(Ordering::Relaxed)
        }

        async fn want(&mut self, second: u64, freed: bool) -> u32 {
            let pass = self.pass(freed);
            self.space.want(self.start + Duration::from_secs(second), pass);
            self.passes().await
        }

        async fn follow(&mut self, stale: &[MountFailure], before: &[MountFailure], freed: bool) -> u32 {
            let pass = self.pass(freed);
            self.space.follow((stale, before), self.start, pass);
            self.passes().await
        }
    }

    #[tokio::test]
    async fn images_are_deleted_once_for_the_volumes_of_a_pod() {
        let mut host = Counter::new();
        assert_eq!(host.want(0, false).await, 1);
        assert_eq!(host.want(60, true).await, 2, "no image could be deleted before");
        assert_eq!(host.want(61, true).await, 2, "deletion did not help");
        assert_eq!(host.want(3600, true).await, 2);
        host.space = VolumeDiskSpace::default();
        host.space.want(host.start, std::future::pending());
        host.space.want(host.start + ASK_INTERVAL, async { panic!("one pass at a time") });
        assert!(matches!(host.space, VolumeDiskSpace::Asked(..)));
    }

    #[tokio::test]
    async fn a_worker_asks_again_after_a_minute_where_no_image_can_be_deleted() {
        let mut host = Counter::new();
        for second in 0..60 {
            assert_eq!(host.want(second, false).await, 1, "{second}");
        }
        for second in 60..120 {
            assert_eq!(host.want(second, false).await, 2, "{second}");
        }
        // A task that has panicked has freed nothing either.
        host.space = VolumeDiskSpace::default();
        host.space.want(host.start, async { panic!("it dies") });
        let VolumeDiskSpace::Asked(_, answer) = &mut host.space else { panic!("the worker did not ask") };
        assert!(answer.changed().await.is_err());
        assert_eq!(host.want(59, true).await, 2);
        assert_eq!(host.want(60, true).await, 3);
    }

    #[tokio::test]
    async fn images_may_be_deleted_again_for_a_volume_that_lacked_something_else_meanwhile() {
        let full = [MountFailure::new("data", &io::Error::from(io::ErrorKind::StorageFull))];
        let absent = [MountFailure::new("data", &io::Error::from(io::ErrorKind::NotFound))];
        let mut host = Counter::new();
        assert_eq!(host.follow(&absent, &[], true).await, 0);
        assert_eq!(host.follow(&full, &absent, true).await, 1);
        assert_eq!(host.follow(&full, &full, true).await, 1, "the deletion before has to do");
        assert_eq!(host.follow(&absent, &full, true).await, 1);
        assert_eq!(host.follow(&absent, &absent, true).await, 1);
        assert_eq!(host.follow(&full, &absent, true).await, 2);
        // A VM without stale volumes changes nothing.
        assert_eq!(host.follow(&[], &[], true).await, 2);
        assert_eq!(host.want(60, true).await, 2);
    }
}
