//! Room on the disk for the volumes and the VMs of a Pod: what has been deleted for them once has to do.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::Worker;
use crate::fs::file::FileError;
use crate::image::gc::SpaceResult;
use crate::names::Restart;
use crate::pod::sync::desired::otherwise_wanted;
use crate::volume::MountFailure;

/// How long nobody asks again after nothing could go: it costs what is kept of unfinished pulls, and volumes are tried more often.
const ASK_INTERVAL: Duration = Duration::from_mins(1);

/// Whether room was made for a Pod's volumes. They are tried again and again, but images go for them only once: when that does not help,
/// something else fills the disk.
#[derive(Debug, Default)]
pub(super) enum VolumeDiskSpace {
    /// Nobody has asked.
    #[default]
    NotAsked,
    /// Somebody is at it since then: what it comes to is told here.
    Asked(Instant, watch::Receiver<Option<bool>>),
    /// Nothing could go when it was asked for then.
    NotMade(Instant),
    /// Something is gone.
    SpaceResult,
}

impl VolumeDiskSpace {
    /// Volumes have found no space: `make` makes some, and says whether there is more than before. It goes on by itself: the image that
    /// is being fetched may be making room, too, and does so only while it is polled.
    pub(super) fn want(&mut self, now: Instant, make: impl Future<Output = bool> + Send + 'static) {
        if let Self::Asked(since, answer) = self {
            let (made, is_over, since) = (*answer.borrow(), answer.has_changed().is_err(), *since);
            match made {
                Some(true) => *self = Self::SpaceResult,
                Some(false) => *self = Self::NotMade(since),
                // The task has died.
                None if is_over => *self = Self::NotMade(since),
                None => {}
            }
        }
        let is_time = match self {
            Self::NotAsked => true,
            Self::NotMade(since) => now.duration_since(*since) >= ASK_INTERVAL,
            Self::Asked(..) | Self::SpaceResult => false,
        };
        if is_time {
            let (answer, asked) = watch::channel(None);
            tokio::spawn(async move { answer.send_replace(Some(make.await)) });
            *self = Self::Asked(now, asked);
        }
    }

    /// Volumes of a VM that runs lack these things, and before they lacked those. Once none lacks space any more, images may go for
    /// the next one that does, whatever else is wrong.
    fn follow(
        &mut self,
        lacked: (&[MountFailure], &[MountFailure]),
        now: Instant,
        make: impl Future<Output = bool> + Send + 'static,
    ) {
        let (lack, before) = lacked;
        if lack_space(lack) {
            self.want(now, make);
        } else if lack_space(before) {
            *self = Self::default();
        }
    }
}

/// For which of a Pod's VMs images have gone. When the next one lacks room as well, no more of them go: something else fills the disk,
/// and a container that is restarted for ever would cost them all.
#[derive(Debug, Default)]
pub(super) struct VmDiskSpace {
    /// The last VM that lacked room, and whether images might go for it.
    last: Option<(Restart, bool)>,
}

impl VmDiskSpace {
    /// A VM lacks room; whether images may go for it.
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

/// Whether any of these is for want of space.
fn lack_space(failures: &[MountFailure]) -> bool {
    failures.iter().any(|failure| failure.problem.is_for_want_of_space())
}

impl Worker {
    /// Makes room for a shim that has found none, and tells it. A Pod that is to go meanwhile waits for no other image's end.
    pub(super) async fn give_room(&mut self, vm: Restart) -> Result<(), FileError> {
        let otherwise = otherwise_wanted(self.wanted, self.pod.clone(), self.gone.clone());
        let made = tokio::select! {
            made = self.make_room_for_vm(vm) => made?,
            () = otherwise => return Ok(()),
        };
        if let Some(why) = made.why_not() {
            let pod = self.pod.borrow().clone();
            let note = format!(
                "the Pod's VM has found no space on the disk, and {why}; free some disk space on the host"
            );
            self.host.events.warning(&pod, "FreeDiskSpaceFailed", &note);
        }
        self.dir.attempt(vm).tell_room_is_made()
    }

    /// Makes room for a shim. It asks only for the volume that images are on.
    async fn make_room_for_vm(&mut self, vm: Restart) -> Result<SpaceResult, FileError> {
        let Some(collector) = self.host.collector.clone() else { return Ok(SpaceResult::SwitchedOff) };
        let attempt = self.dir.attempt(vm).view()?;
        // The log of a container that runs asks when it needs to, and goes on.
        let is_for_log = attempt.running_since().is_some() && attempt.result.is_none();
        if !is_for_log && !self.room_for_vms.may_go_for(vm) {
            return Ok(SpaceResult::InVain);
        }
        Ok(collector.make_room_at(self.host.tart.home()).await)
    }

    /// The Pod's volumes have found no space.
    pub(super) fn want_room_for_volumes(&mut self) {
        if let Some(make) = self.make_room_for_volumes() {
            self.room.want(Instant::now(), make);
        }
    }

    /// The volumes of a VM that runs lack these things, and before they lacked those.
    pub(super) fn volumes_lack(&mut self, lack: &[MountFailure], before: &[MountFailure]) {
        if let Some(make) = self.make_room_for_volumes() {
            self.room.follow((lack, before), Instant::now(), make);
        }
    }

    fn make_room_for_volumes(&self) -> Option<impl Future<Output = bool> + Send + use<>> {
        let (collector, place) = (self.host.collector.clone()?, self.dir.volumes_path());
        Some(async move { collector.make_room_at(&place).await == SpaceResult::Room })
    }

    /// They have what they need, or lack something else.
    pub(super) fn want_no_room_for_volumes(&mut self) {
        self.room = VolumeDiskSpace::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn images_go_for_one_of_many_vms_that_lack_room() {
        let mut room = VmDiskSpace::default();
        let mut ask = |vm| room.may_go_for(Restart(vm));
        assert!(ask(3) && ask(3), "its clone, and then its start");
        assert!(!ask(4) && !ask(4) && !ask(5), "it was of no use");
        assert!(ask(7), "the one before had room");
    }

    /// Counts how often room is made.
    struct Host {
        room: VolumeDiskSpace,
        passes: Arc<AtomicU32>,
        start: Instant,
    }

    impl Host {
        fn new() -> Self {
            Self { room: VolumeDiskSpace::default(), passes: Arc::default(), start: Instant::now() }
        }

        fn pass(&self, made: bool) -> impl Future<Output = bool> + Send + use<> {
            let passes = self.passes.clone();
            async move {
                passes.fetch_add(1, Ordering::Relaxed);
                made
            }
        }

        /// How often it was made, once nobody is at it.
        async fn passes(&mut self) -> u32 {
            if let VolumeDiskSpace::Asked(_, answer) = &mut self.room {
                answer.wait_for(Option::is_some).await.unwrap();
            }
            self.passes.load(Ordering::Relaxed)
        }

        async fn want(&mut self, second: u64, made: bool) -> u32 {
            let pass = self.pass(made);
            self.room.want(self.start + Duration::from_secs(second), pass);
            self.passes().await
        }

        async fn follow(&mut self, lack: &[MountFailure], before: &[MountFailure], made: bool) -> u32 {
            let pass = self.pass(made);
            self.room.follow((lack, before), self.start, pass);
            self.passes().await
        }
    }

    #[tokio::test]
    async fn images_go_once_for_the_volumes_of_a_pod() {
        let mut host = Host::new();
        assert_eq!(host.want(0, false).await, 1);
        assert_eq!(host.want(60, true).await, 2, "nothing could go before");
        assert_eq!(host.want(61, true).await, 2, "something is gone, and it was of no use");
        assert_eq!(host.want(3600, true).await, 2);
        host.room = VolumeDiskSpace::default();
        host.room.want(host.start, std::future::pending());
        host.room.want(host.start + ASK_INTERVAL, async { panic!("one pass at a time") });
        assert!(matches!(host.room, VolumeDiskSpace::Asked(..)));
    }

    #[tokio::test]
    async fn where_nothing_can_go_nobody_asks_at_every_look() {
        let mut host = Host::new();
        for second in 0..60 {
            assert_eq!(host.want(second, false).await, 1, "{second}");
        }
        for second in 60..120 {
            assert_eq!(host.want(second, false).await, 2, "{second}");
        }
        // One that has died has made nothing either.
        host.room = VolumeDiskSpace::default();
        host.room.want(host.start, async { panic!("it dies") });
        let VolumeDiskSpace::Asked(_, answer) = &mut host.room else { panic!("nobody asked") };
        assert!(answer.changed().await.is_err());
        assert_eq!(host.want(59, true).await, 2);
        assert_eq!(host.want(60, true).await, 3);
    }

    #[tokio::test]
    async fn a_volume_that_lacks_something_else_by_now_may_lack_space_again() {
        let full = [MountFailure::new("data", &io::Error::from(io::ErrorKind::StorageFull))];
        let absent = [MountFailure::new("data", &io::Error::from(io::ErrorKind::NotFound))];
        let mut host = Host::new();
        assert_eq!(host.follow(&absent, &[], true).await, 0);
        assert_eq!(host.follow(&full, &absent, true).await, 1);
        assert_eq!(host.follow(&full, &full, true).await, 1, "what is gone has to do");
        assert_eq!(host.follow(&absent, &full, true).await, 1);
        assert_eq!(host.follow(&absent, &absent, true).await, 1);
        assert_eq!(host.follow(&full, &absent, true).await, 2);
        // What the next VM lacks is asked for elsewhere, and is no matter here.
        assert_eq!(host.follow(&[], &[], true).await, 2);
        assert_eq!(host.want(60, true).await, 2);
    }
}
