//! The limit of a Pod's volumes. The agent fills volumes again and again, but deletes images for them once.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::image::gc::SpaceResult;

/// How long the agent does not ask again after no image could go. Each request costs the partial downloads, and volumes are tried more
/// often.
const ASK_INTERVAL: Duration = Duration::from_mins(1);

/// Whether space was freed for a Pod's volumes.
#[derive(Debug, Default)]
pub(crate) enum VolumeSpaceLimit {
    #[default]
    NotAsked,
    /// A task frees space since then, and will send the result.
    Asked(Instant, watch::Receiver<Option<SpaceResult>>),
    /// Nothing was freed by the request of that time.
    NothingFreed(Instant),
    Freed,
}

impl VolumeSpaceLimit {
    /// Volumes lack space: starts `free` on a task of its own, if images may be deleted for them now. The caller does not wait: its pull of an
    /// image may be freeing space, too, and does so only while the caller polls it.
    pub(crate) fn request(&mut self, now: Instant, free: impl Future<Output = SpaceResult> + Send + 'static) {
        if let Self::Asked(since, answer) = self {
            let (result, is_over, since) = (*answer.borrow(), answer.has_changed().is_err(), *since);
            match result {
                Some(SpaceResult::Freed) => *self = Self::Freed,
                Some(_) => *self = Self::NothingFreed(since),
                // The task has died.
                None if is_over => *self = Self::NothingFreed(since),
                None => {}
            }
        }
        let is_time = match self {
            Self::NotAsked => true,
            Self::NothingFreed(since) => now.duration_since(*since) >= ASK_INTERVAL,
            Self::Asked(..) | Self::Freed => false,
        };
        if is_time {
            let (answer, asked) = watch::channel(None);
            tokio::spawn(async move { answer.send_replace(Some(free.await)) });
            *self = Self::Asked(now, asked);
        }
    }

    /// Volumes lack space now, or did before. Once none lacks space any more, images may be deleted for the next one that does.
    pub(crate) fn follow(
        &mut self,
        lacks_space: bool,
        lacked_space: bool,
        now: Instant,
        free: impl Future<Output = SpaceResult> + Send + 'static,
    ) {
        if lacks_space {
            self.request(now, free);
        } else if lacked_space {
            *self = Self::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// Counts how often space is freed.
    struct Volumes {
        limit: VolumeSpaceLimit,
        passes: Arc<AtomicU32>,
        start: Instant,
    }

    impl Volumes {
        fn new() -> Self {
            Self { limit: VolumeSpaceLimit::default(), passes: Arc::default(), start: Instant::now() }
        }

        fn pass(&self, result: SpaceResult) -> impl Future<Output = SpaceResult> + Send + use<> {
            let passes = self.passes.clone();
            async move {
                passes.fetch_add(1, Ordering::Relaxed);
                result
            }
        }

        /// How many passes there were, once none is under way.
        async fn passes(&mut self) -> u32 {
            if let VolumeSpaceLimit::Asked(_, answer) = &mut self.limit {
                answer.wait_for(Option::is_some).await.unwrap();
            }
            self.passes.load(Ordering::Relaxed)
        }

        async fn request(&mut self, second: u64, result: SpaceResult) -> u32 {
            let pass = self.pass(result);
            self.limit.request(self.start + Duration::from_secs(second), pass);
            self.passes().await
        }

        async fn follow(&mut self, lacks_space: bool, lacked_space: bool) -> u32 {
            let pass = self.pass(SpaceResult::Freed);
            self.limit.follow(lacks_space, lacked_space, self.start, pass);
            self.passes().await
        }
    }

    #[tokio::test]
    async fn images_are_deleted_once_for_the_volumes_of_a_pod() {
        let mut volumes = Volumes::new();
        assert_eq!(volumes.request(0, SpaceResult::NoCandidate).await, 1);
        assert_eq!(volumes.request(60, SpaceResult::Freed).await, 2, "nothing could go before");
        assert_eq!(volumes.request(61, SpaceResult::Freed).await, 2, "what was deleted was not enough");
        assert_eq!(volumes.request(3600, SpaceResult::Freed).await, 2);
        volumes.limit = VolumeSpaceLimit::default();
        volumes.limit.request(volumes.start, std::future::pending());
        volumes.limit.request(volumes.start + ASK_INTERVAL, async { panic!("one pass at a time") });
        assert!(matches!(volumes.limit, VolumeSpaceLimit::Asked(..)));
    }

    #[tokio::test]
    async fn where_no_image_can_go_there_is_one_request_a_minute() {
        let mut volumes = Volumes::new();
        for second in 0..60 {
            assert_eq!(volumes.request(second, SpaceResult::NoCandidate).await, 1, "{second}");
        }
        for second in 60..120 {
            assert_eq!(volumes.request(second, SpaceResult::NoCandidate).await, 2, "{second}");
        }
        // A task that has died has freed nothing.
        volumes.limit = VolumeSpaceLimit::default();
        volumes.limit.request(volumes.start, async { panic!("it dies") });
        let VolumeSpaceLimit::Asked(_, answer) = &mut volumes.limit else { panic!("no request") };
        assert!(answer.changed().await.is_err());
        assert_eq!(volumes.request(59, SpaceResult::Freed).await, 2);
        assert_eq!(volumes.request(60, SpaceResult::Freed).await, 3);
    }

    #[tokio::test]
    async fn volumes_that_had_space_meanwhile_may_ask_again() {
        let mut volumes = Volumes::new();
        assert_eq!(volumes.follow(false, false).await, 0);
        assert_eq!(volumes.follow(true, false).await, 1);
        assert_eq!(volumes.follow(true, true).await, 1, "what was deleted has to be enough");
        assert_eq!(volumes.follow(false, true).await, 1);
        assert_eq!(volumes.follow(false, false).await, 1);
        assert_eq!(volumes.follow(true, false).await, 2);
        // What the volumes of the next VM lack does not count here.
        assert_eq!(volumes.follow(false, false).await, 2);
        assert_eq!(volumes.request(60, SpaceResult::Freed).await, 2);
    }
}
