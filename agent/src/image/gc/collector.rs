//! Passes over the images of this host: the agent deletes those that may go, one by one, and measures the disk after each.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio::task::JoinError;
use tracing::{debug, info, warn};

use super::pass_queue::{PassCount, PassQueue, PassTurn};
use super::space_limit::image::ImageSpaceLimits;
use super::{
    Image, ImageGcObservation, ImageVerdict, ImageVerdictReason, Need, PassStage, SpaceResult, Watermarks,
    choose, is_short,
};
use crate::error_chain::chain;
use crate::fs::blocking_io::{LOOK_LIMIT, within};
use crate::fs::file::FileError;
use crate::fs::freed_space::{freed, measure};
use crate::image::ImageStore;
use crate::image::ownership::KnownImage;
use crate::names::ImageDigest;
use crate::os::availability::volume;
use crate::state::StateDir;
use crate::tart::Tart;

#[derive(Debug, Clone, Copy)]
pub(crate) struct ImageGcPolicy {
    pub(crate) watermarks: Watermarks,
    /// Younger images are kept.
    pub(crate) min_age: Duration,
}

#[derive(Debug, thiserror::Error)]
enum PassError {
    #[error("cannot tell which images are in use")]
    State(#[from] FileError),
    #[error("the disk has not answered within {} s", LOOK_LIMIT.as_secs())]
    DiskSilent,
    #[error("the collector of images has died")]
    Died(#[source] JoinError),
}

/// What a pass has done: the images that it deleted or could not delete, and the bytes that it freed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Pass {
    pub(super) deleted: usize,
    pub(super) freed: u64,
    pub(super) failed: usize,
}

impl Pass {
    pub(super) fn has_freed_space(&self) -> bool {
        self.deleted > 0 || self.freed > 0
    }
}

/// Deletes images that the agent itself has pulled.
#[derive(Debug)]
pub(crate) struct ImageCollector {
    pub(super) images: Arc<ImageStore>,
    policy: ImageGcPolicy,
    queue: PassQueue,
    pub(super) image_limits: ImageSpaceLimits,
}

/// The verdicts of a routine pass, for a dry run.
pub(crate) fn verdicts(
    tart: &Tart,
    state: &StateDir,
    policy: ImageGcPolicy,
) -> Result<Vec<(ImageDigest, ImageVerdict)>, FileError> {
    let (mut record, now) = (state.images()?, Timestamp::now());
    record.correct_future_times(now);
    let pulling: HashSet<&str> = record.pulls().collect();
    let is_starting = |image: &KnownImage| image.names.iter().any(|name| pulling.contains(name.as_str()));
    let observation = ImageGcObservation {
        images: observe(&record.images, tart, state, is_starting)?,
        space: volume(tart.home()),
        watermarks: policy.watermarks,
        min_age: policy.min_age,
        stage: PassStage::Routine,
        now,
    };
    Ok(choose(&observation))
}

/// The images of the record that are still here.
fn observe(
    known: &[KnownImage],
    tart: &Tart,
    state: &StateDir,
    is_starting: impl Fn(&KnownImage) -> bool,
) -> Result<Vec<Image>, FileError> {
    // Starts are read first: a Pod is in the state directory before its start ends.
    let starting: HashSet<&ImageDigest> =
        known.iter().filter(|image| is_starting(image)).map(|image| &image.digest).collect();
    let in_use = state.bases_in_use()?;
    let image = |image: &KnownImage| {
        let has_base = tart.has_base(&image.base());
        let need = match &in_use {
            None => Need::Unknown,
            Some(in_use) if in_use.contains(&image.base()) => Need::Vm,
            Some(_) if starting.contains(&image.digest) => Need::Start,
            Some(_) => Need::None,
        };
        // The rest of a deletion that was cut short takes space, too.
        let is_left = || tart.has_image(&image.digest) || image.is_own(tart.image_inode(&image.digest));
        (has_base || need != Need::None || is_left()).then(|| Image {
            digest: image.digest.clone(),
            pulled_at: image.pulled_at,
            last_used_at: image.last_used_at,
            has_base,
            need,
        })
    };
    Ok(known.iter().filter_map(image).collect())
}

impl ImageCollector {
    pub(crate) fn new(images: Arc<ImageStore>, policy: ImageGcPolicy) -> Self {
        Self { images, policy, queue: PassQueue::default(), image_limits: ImageSpaceLimits::default() }
    }

    /// Frees space on the disk of a path, unless images are on another one, or the disk is not full: tart repeats words of registries, and
    /// no registry may have images deleted.
    pub(super) async fn free_space(self: &Arc<Self>, path: &Path, image: Option<String>) -> SpaceResult {
        let since = self.passes();
        let (tart, path) = (self.images.tart.clone(), path.to_owned());
        match within(LOOK_LIMIT, move || (tart.shares_disk_with(&path), volume(&path))).await {
            Some((false, _)) => SpaceResult::OtherDisk,
            Some((true, Some(space))) if !is_short(space) => {
                info!(available = space.available, "no image is deleted: the disk has space left");
                SpaceResult::NotFull
            }
            Some((true, Some(_))) => self.pass(PassStage::Requested, since, image).await,
            Some((true, None)) | None => {
                warn!("cannot free disk space: the disk does not say how full it is");
                SpaceResult::Unknown
            }
        }
    }

    /// How many passes have freed space until now. A requester remembers it from before it measures the disk.
    pub(super) fn passes(&self) -> PassCount {
        self.queue.passes()
    }

    /// Looks at all images and deletes as many as have to go, unless another pass has freed space since then. `image` is the image that
    /// others are deleted for.
    ///
    /// Once it is its turn, the pass is on a task of its own: its requester may end before the pass does, and half a deleted image is
    /// of no use.
    pub(super) async fn pass(
        self: &Arc<Self>,
        stage: PassStage,
        since: PassCount,
        image: Option<String>,
    ) -> SpaceResult {
        let Some(turn) = self.queue.turn_unless_freed_since(since).await else { return SpaceResult::Freed };
        let collector = self.clone();
        let pass = tokio::spawn(async move {
            let pass = collector.pass_in_turn(stage, turn).await;
            if let Some(image) = image.filter(|_| pass.as_ref().is_ok_and(|pass| pass.deleted > 0)) {
                collector.image_limits.record(&image, Instant::now());
            }
            pass
        });
        match pass.await.map_err(PassError::Died).flatten() {
            Ok(pass) => SpaceResult::of(&pass),
            Err(error) => {
                warn!(error = chain(&error), "cannot collect images");
                SpaceResult::Unknown
            }
        }
    }

    async fn pass_in_turn(&self, stage: PassStage, _turn: PassTurn) -> Result<Pass, PassError> {
        let begun = Instant::now();
        let result = self.collect(stage).await;
        if result.as_ref().is_ok_and(Pass::has_freed_space) {
            self.queue.freed();
        }
        let failed = result.as_ref().map_or(true, |pass| pass.failed > 0);
        self.images.metrics.images_collected(begun.elapsed(), !failed);
        result
    }

    async fn collect(&self, mut stage: PassStage) -> Result<Pass, PassError> {
        let mut done = Pass::default();
        if stage == PassStage::Requested {
            done.freed = self.delete_partials().await;
        }
        self.images.recover().await;
        let mut undeletable = HashSet::new();
        loop {
            let observation = self.look(stage).await?;
            let verdicts = choose(&observation);
            let is_known =
                |digest: &ImageDigest| observation.images.iter().any(|image| image.digest == *digest);
            let foreign =
                self.images.local_images().borrow().iter().filter(|one| !is_known(&one.digest)).count();
            let kept = |reason| verdicts.iter().filter(|one| one.1 == ImageVerdict::Keep(reason)).count();
            let kept = ImageVerdictReason::ALL.map(|reason| (reason.as_str(), kept(reason)));
            self.images.metrics.images_kept(kept.into_iter().chain([("foreign", foreign)]));
            debug!(?stage, ?verdicts, space = ?observation.space, "looked at the images");
            let mut candidates = verdicts.iter().filter(|(_, verdict)| *verdict == ImageVerdict::Delete);
            let Some((digest, _)) = candidates.find(|(digest, _)| !undeletable.contains(digest)) else {
                return Ok(done);
            };
            match self.delete(digest).await {
                Ok(Some(freed)) => {
                    info!(image = %digest, freed, "image deleted to free disk space");
                    self.images.metrics.image_deleted(freed);
                    done.deleted += 1;
                    done.freed += freed;
                    stage = PassStage::Continued;
                }
                Ok(None) => {
                    debug!(image = %digest, "a Pod needs the image by now");
                    undeletable.insert(digest.clone());
                }
                Err(error) => {
                    warn!(image = %digest, error = chain(&error), "cannot delete an image");
                    done.failed += 1;
                    undeletable.insert(digest.clone());
                }
            }
        }
    }

    /// Deletes the partial downloads; how many bytes that has freed.
    async fn delete_partials(&self) -> u64 {
        let before = measure(self.images.tart.home()).await;
        if !self.images.delete_partials().await {
            return 0;
        }
        let freed = freed(self.images.tart.home(), before).await;
        self.images.metrics.partials_deleted(freed);
        info!(freed, "partial downloads deleted to free disk space");
        freed
    }

    async fn look(&self, stage: PassStage) -> Result<ImageGcObservation, PassError> {
        let images = self.images.clone();
        let look = within(LOOK_LIMIT, move || {
            images.correct_future_times(Timestamp::now());
            let known = images.known();
            let pulling: HashSet<String> = images.pulling().into_iter().collect();
            let is_starting = |image: &KnownImage| {
                images.pins.is_pinned(&image.base().to_string())
                    || image.names.iter().any(|name| pulling.contains(name) || images.pins.is_pinned(name))
            };
            // While a disk is away for a moment, all images seem to be gone.
            let (tart, state) = (&images.tart, &images.state);
            let was_away = !tart.is_readable();
            let found = observe(&known, tart, state, is_starting)?;
            let is_away = was_away || !tart.is_readable();
            let now = Timestamp::now();
            for image in &found {
                if matches!(image.need, Need::Vm | Need::Start) {
                    images.used(&image.digest, now);
                }
            }
            // The record forgets images that a user has deleted.
            let is_gone = |known: &&KnownImage| !found.iter().any(|image| image.digest == known.digest);
            for gone in known.iter().filter(|known| !is_away && is_gone(known)) {
                if let Some(_guard) = images.pins.begin_deletion(names(gone)) {
                    images.forget_deleted(&gone.digest);
                }
            }
            Ok::<_, FileError>((found, volume(tart.home()), now))
        });
        let (images, space, now) = look.await.ok_or(PassError::DiskSilent)??;
        let ImageGcPolicy { watermarks, min_age } = self.policy;
        Ok(ImageGcObservation { images, space, watermarks, min_age, stage, now })
    }
}

/// All names by which an image can be pinned.
pub(super) fn names(image: &KnownImage) -> impl Iterator<Item = String> {
    std::iter::once(image.base().to_string()).chain(image.names.iter().cloned())
}
