//! Looks at the images of this host and deletes those that may go, one after the other, with a look at the volume after each.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::timeout;
use tracing::{debug, info, warn};

use super::pass_queue::{Moment, PassQueue, PassTurn};
use super::retry_delay::RetryDelays;
use super::{Image, ImageGcObservation, ImageUse, ImageVerdict, Need, SpaceResult, Watermarks, choose};
use crate::error_chain::chain;
use crate::fs::file::FileError;
use crate::fs::freed_space::{LOOK_LIMIT, freed, measure};
use crate::image::ownership::KnownImage;
use crate::image::{ImageError, ImageStore};
use crate::metrics::Metrics;
use crate::names::{ImageDigest, full_name};
use crate::os::availability::volume;
use crate::state::StateDir;
use crate::tart::Tart;

/// When images are collected.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    /// When to begin and when to end.
    pub(crate) watermarks: Watermarks,
    /// How long an image stays at least.
    pub(crate) min_age: Duration,
}

/// Why images could not be collected.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CollectError {
    /// What is in use cannot be known, so nothing is deleted.
    #[error("cannot tell which images are in use")]
    State(#[from] FileError),
    /// The disk does not answer.
    #[error("the disk has not answered within {} s", LOOK_LIMIT.as_secs())]
    Late,
    /// A pass has ended without a result.
    #[error("the collector of images has died")]
    Died(#[source] JoinError),
}

/// What a pass has done.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Pass {
    /// How many images are gone.
    pub(crate) deleted: usize,
    /// How many bytes more are free.
    pub(crate) freed: u64,
    /// How many images could not be deleted.
    pub(crate) failed: usize,
}

impl Pass {
    /// Whether there is more room than before, as far as anybody can tell.
    pub(crate) fn has_made_room(&self) -> bool {
        self.deleted > 0 || self.freed > 0
    }
}

/// Collects images. With `--disable-vm-gc` there is none.
#[derive(Debug)]
pub(crate) struct ImageCollector {
    pub(super) images: Arc<ImageStore>,
    pub(super) tart: Tart,
    pub(super) state: StateDir,
    rules: Rules,
    metrics: Metrics,
    line: PassQueue,
    favours: RetryDelays,
}

/// What would become of the images on this host, without doing it.
pub(crate) fn survey(
    tart: &Tart,
    state: &StateDir,
    rules: Rules,
) -> Result<Vec<(ImageDigest, ImageVerdict)>, FileError> {
    let (mut record, now) = (state.images()?, Timestamp::now());
    record.set_clock_right(now);
    let pulling: HashSet<&str> = record.pulls().collect();
    let is_starting = |image: &KnownImage| image.names.iter().any(|name| pulling.contains(name.as_str()));
    let world = ImageGcObservation {
        images: observe(record.images(), tart, state, is_starting)?,
        space: volume(tart.home()),
        watermarks: rules.watermarks,
        min_age: rules.min_age,
        stage: ImageUse::Routine,
        now,
    };
    Ok(choose(&world))
}

/// The images of a record as they are now; those that are gone are left out.
fn observe(
    known: &[KnownImage],
    tart: &Tart,
    state: &StateDir,
    is_starting: impl Fn(&KnownImage) -> bool,
) -> Result<Vec<Image>, FileError> {
    // Who starts is asked first: a Pod is in the state directory before its start is over.
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
        // What a deletion that was cut short has left takes room, too.
        let is_left = || tart.has_image(&image.digest) || image.is_ours(tart.image_inode(&image.digest));
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
    /// A collector of the images that the agent itself has brought here.
    pub(crate) fn new(
        images: Arc<ImageStore>,
        tart: Tart,
        state: StateDir,
        rules: Rules,
        metrics: Metrics,
    ) -> Self {
        Self {
            images,
            tart,
            state,
            rules,
            metrics,
            line: PassQueue::default(),
            favours: RetryDelays::default(),
        }
    }

    /// Makes room for an image that has found none, if that is what was in its way. Once images have gone for it, the next one does not
    /// go soon, until it [is here](Self::is_here), or nobody wants it any more.
    pub(crate) async fn make_room_for(self: &Arc<Self>, image: &str, error: &ImageError) -> SpaceResult {
        let (name, Some(place)) = (full_name(image), error.full_place(self.tart.home())) else {
            return SpaceResult::Nothing;
        };
        if self.favours.are_too_early(&name, Instant::now()) {
            return SpaceResult::TooEarly;
        }
        self.delete_for(place, Some(name)).await
    }

    /// An image is ready, and its base VM with it: it has room enough.
    pub(crate) fn is_here(&self, image: &str) {
        self.favours.returned(&full_name(image));
    }

    /// Makes room for somebody who has found none at a place. Nothing goes for the sake of a volume that images are not on.
    pub(crate) async fn make_room_at(self: &Arc<Self>, place: &Path) -> SpaceResult {
        self.delete_for(place, None).await
    }

    /// Makes room at a place, as a favour to an image if it is for one.
    async fn delete_for(self: &Arc<Self>, place: &Path, image: Option<String>) -> SpaceResult {
        let since = self.now();
        let (tart, place) = (self.tart.clone(), place.to_owned());
        let look = spawn_blocking(move || tart.shares_volume_with(&place));
        match timeout(LOOK_LIMIT, look).await {
            Ok(Ok(true)) => {}
            Ok(Ok(false)) => return SpaceResult::Elsewhere,
            Ok(Err(_)) | Err(_) => {
                warn!("cannot make room: the disk does not say which volume a path is on");
                return SpaceResult::Unseen;
            }
        }
        match self.pass_for(ImageUse::Wanted, since, image).await {
            Ok(None) => SpaceResult::Room,
            Ok(Some(pass)) => SpaceResult::by(&pass),
            Err(error) => {
                warn!(error = chain(&error), "cannot make room");
                SpaceResult::Unseen
            }
        }
    }

    /// This moment. Whoever measures how full the disk is remembers it from before that.
    pub(crate) fn now(&self) -> Moment {
        self.line.now()
    }

    /// Looks at all images, and deletes as many as have to go; `None` when another pass has made room since that moment.
    pub(crate) async fn pass(
        self: &Arc<Self>,
        stage: ImageUse,
        since: Moment,
    ) -> Result<Option<Pass>, CollectError> {
        self.pass_for(stage, since, None).await
    }

    /// The same as a favour to an image.
    ///
    /// From its turn on it is on a task of its own: whoever has asked may be gone before it is over, and an image that is half deleted
    /// is of no use to anybody.
    async fn pass_for(
        self: &Arc<Self>,
        stage: ImageUse,
        since: Moment,
        image: Option<String>,
    ) -> Result<Option<Pass>, CollectError> {
        let Some(turn) = self.line.turn_unless_fruitful_since(since).await else { return Ok(None) };
        let collector = self.clone();
        let pass = tokio::spawn(async move {
            let pass = collector.pass_in_turn(stage, turn).await;
            if let Some(image) = image.filter(|_| pass.as_ref().is_ok_and(|pass| pass.deleted > 0)) {
                collector.favours.done(&image, Instant::now());
            }
            pass
        });
        pass.await.map_err(CollectError::Died)?.map(Some)
    }

    async fn pass_in_turn(&self, stage: ImageUse, _turn: PassTurn) -> Result<Pass, CollectError> {
        let begun = Instant::now();
        let result = self.collect(stage).await;
        if result.as_ref().is_ok_and(Pass::has_made_room) {
            self.line.bears_fruit();
        }
        let failed = result.as_ref().map_or(true, |pass| pass.failed > 0);
        self.metrics.images_collected(begun.elapsed(), !failed);
        result
    }

    async fn collect(&self, mut stage: ImageUse) -> Result<Pass, CollectError> {
        let mut done = Pass::default();
        if stage == ImageUse::Wanted {
            done.freed = self.give_up_partials().await;
        }
        self.images.recover().await;
        let mut hopeless = HashSet::new();
        loop {
            let world = self.look(stage).await?;
            let verdicts = choose(&world);
            let is_known = |digest: &ImageDigest| world.images.iter().any(|image| image.digest == *digest);
            let foreign =
                self.images.residents().borrow().iter().filter(|one| !is_known(&one.digest)).count();
            self.metrics.images_judged(&verdicts, foreign);
            debug!(?stage, ?verdicts, space = ?world.space, "looked at the images");
            let mut candidates = verdicts.iter().filter(|(_, verdict)| *verdict == ImageVerdict::Delete);
            let Some((digest, _)) = candidates.find(|(digest, _)| !hopeless.contains(digest)) else {
                return Ok(done);
            };
            match self.delete(digest).await {
                Ok(Some(freed)) => {
                    info!(image = %digest, freed, "image deleted to make room");
                    self.metrics.image_deleted(freed);
                    done.deleted += 1;
                    done.freed += freed;
                    stage = ImageUse::Going;
                }
                // Somebody needs it after all.
                Ok(None) => {
                    debug!(image = %digest, "an image is needed at the last moment");
                    hopeless.insert(digest.clone());
                }
                Err(error) => {
                    warn!(image = %digest, error = chain(&error), "cannot delete an image");
                    done.failed += 1;
                    hopeless.insert(digest.clone());
                }
            }
        }
    }

    /// Gives up what is kept of images that are not whole; how much room that has made.
    async fn give_up_partials(&self) -> u64 {
        let before = measure(self.tart.home()).await;
        if !self.images.give_up_partials().await {
            return 0;
        }
        let freed = freed(self.tart.home(), before).await;
        self.metrics.partials_deleted(freed);
        info!(freed, "what was kept of unfinished pulls has made room");
        freed
    }

    async fn look(&self, stage: ImageUse) -> Result<ImageGcObservation, CollectError> {
        let (images, tart, state) = (self.images.clone(), self.tart.clone(), self.state.clone());
        let look = spawn_blocking(move || {
            images.set_clock_right(Timestamp::now());
            let known = images.known();
            let pulling: HashSet<String> = images.pulling().into_iter().collect();
            let is_starting = |image: &KnownImage| {
                images.pins().is_pinned(&image.base().to_string())
                    || image.names.iter().any(|name| pulling.contains(name) || images.pins().is_pinned(name))
            };
            // On a volume that is away for a moment, everything seems to be gone.
            let was_away = !tart.is_readable();
            let found = observe(&known, &tart, &state, is_starting)?;
            let is_away = was_away || !tart.is_readable();
            let now = Timestamp::now();
            for image in &found {
                if matches!(image.need, Need::Vm | Need::Start) {
                    images.used(&image.digest, now);
                }
            }
            // What somebody else has deleted need not be remembered.
            let is_gone = |known: &&KnownImage| !found.iter().any(|image| image.digest == known.digest);
            for gone in known.iter().filter(|known| !is_away && is_gone(known)) {
                if let Some(_doom) = images.pins().doom(names(gone)) {
                    images.collected(&gone.digest);
                }
            }
            Ok::<_, FileError>((found, volume(tart.home()), now))
        });
        let Ok(Ok(looked)) = timeout(LOOK_LIMIT, look).await else { return Err(CollectError::Late) };
        let (images, space, now) = looked?;
        let Rules { watermarks, min_age } = self.rules;
        Ok(ImageGcObservation { images, space, watermarks, min_age, stage, now })
    }
}

/// All names that an image is pinned by.
pub(super) fn names(image: &KnownImage) -> impl Iterator<Item = String> {
    std::iter::once(image.base().to_string()).chain(image.names.iter().cloned())
}
