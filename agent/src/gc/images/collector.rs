//! Looks at the images of this host and deletes those that may go, one after the other, with a look at the volume after each.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio::sync::MutexGuard;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tracing::{debug, info, warn};

use super::favours::Favours;
use super::line::Line;
use super::{Image, Need, Stage, Verdict, Watermarks, World, choose, takes_base_along};
use crate::crash;
use crate::gc::space::{LOOK_LIMIT, freed, measure};
use crate::image::record::KnownImage;
use crate::image::{ImageError, Images};
use crate::metrics::Metrics;
use crate::node::host::volume;
use crate::report::chain;
use crate::state::{StateDir, StateError};
use crate::tart::{ImageDigest, Tart, TartError, full_name};
use crate::vm::BaseName;

/// When images are collected.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// When to begin and when to end.
    pub watermarks: Watermarks,
    /// How long an image stays at least.
    pub min_age: Duration,
}

/// Why images could not be collected.
#[derive(Debug, thiserror::Error)]
pub enum CollectError {
    /// What is in use cannot be known, so nothing is deleted.
    #[error("cannot tell which images are in use")]
    State(#[from] StateError),
    /// The disk does not answer.
    #[error("the disk has not answered within {} s", LOOK_LIMIT.as_secs())]
    Late,
}

/// What a pass has done.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pass {
    /// How many images are gone.
    pub deleted: usize,
    /// How many bytes more are free.
    pub freed: u64,
    /// How many images could not be deleted.
    pub failed: usize,
}

impl Pass {
    /// Whether there is more room than before, as far as anybody can tell.
    pub fn has_made_room(&self) -> bool {
        self.deleted > 0 || self.freed > 0
    }
}

/// Collects images. With `--disable-vm-gc` there is none.
#[derive(Debug)]
pub struct Collector {
    images: Arc<Images>,
    tart: Tart,
    state: StateDir,
    rules: Rules,
    metrics: Metrics,
    line: Line,
    favours: Favours,
}

/// What has become of a wish for room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Made {
    /// There is more than before.
    Room,
    /// There is no more than before: nothing could go, or nothing that is on the volume.
    Nothing,
    /// Nothing more goes for this image or Pod: what went for it was not enough.
    InVain,
}

impl Made {
    /// Why there is no more room than before, to follow "there is no space, and"; `None` where there is.
    pub fn why_not(self) -> Option<&'static str> {
        match self {
            Self::Room => None,
            Self::Nothing => Some(
                "no image on this host may be deleted for it: each one is in use, new, the last one, or not the agent's own",
            ),
            Self::InVain => Some("the images that were deleted for it were not enough, so that no more are"),
        }
    }
}

/// What would become of the images on this host, without doing it.
pub fn survey(
    tart: &Tart,
    state: &StateDir,
    rules: Rules,
) -> Result<Vec<(ImageDigest, Verdict)>, StateError> {
    let record = state.images()?;
    let pulling: HashSet<&str> = record.pulls().collect();
    let is_starting = |image: &KnownImage| image.names.iter().any(|name| pulling.contains(name.as_str()));
    let world = World {
        images: observe(record.images(), tart, state, is_starting)?,
        space: volume(tart.home()),
        watermarks: rules.watermarks,
        min_age: rules.min_age,
        stage: Stage::Routine,
        now: Timestamp::now(),
    };
    Ok(choose(&world))
}

/// The images of a record as they are now; those that are gone are left out.
fn observe(
    known: &[KnownImage],
    tart: &Tart,
    state: &StateDir,
    is_starting: impl Fn(&KnownImage) -> bool,
) -> Result<Vec<Image>, StateError> {
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
        (has_base || tart.has_image(&image.digest) || need != Need::None).then(|| Image {
            digest: image.digest.clone(),
            pulled_at: image.pulled_at,
            last_used_at: image.last_used_at,
            has_base,
            need,
        })
    };
    Ok(known.iter().filter_map(image).collect())
}

impl Collector {
    /// A collector of the images that the agent itself has brought here.
    pub fn new(images: Arc<Images>, tart: Tart, state: StateDir, rules: Rules, metrics: Metrics) -> Self {
        Self { images, tart, state, rules, metrics, line: Line::default(), favours: Favours::default() }
    }

    /// Makes room for an image that has found none, if that is what was in its way. Once images have gone for it, no more do until it
    /// [is here](Self::is_here), or nobody wants it any more.
    pub async fn make_room_for(&self, image: &str, error: &ImageError) -> Made {
        let (name, Some(place)) = (full_name(image), error.full_place(self.tart.home())) else {
            return Made::Nothing;
        };
        if self.favours.were_in_vain(&name, Instant::now()) {
            return Made::InVain;
        }
        match self.delete_for(place).await {
            None => Made::Nothing,
            Some(0) => Made::Room,
            Some(_) => {
                self.favours.done(&name, Instant::now());
                Made::Room
            }
        }
    }

    /// An image is ready, and its base VM with it: it has room enough.
    pub fn is_here(&self, image: &str) {
        self.favours.returned(&full_name(image));
    }

    /// Makes room for somebody who has found none at a place; whether there is more than before. Nothing goes for the sake of
    /// a volume that images are not on.
    pub async fn make_room_at(&self, place: &Path) -> bool {
        self.delete_for(place).await.is_some()
    }

    /// How many images have gone for the sake of a place; `None` when there is no more room than before.
    async fn delete_for(&self, place: &Path) -> Option<usize> {
        let since = self.line.fruitful();
        let (tart, place) = (self.tart.clone(), place.to_owned());
        let look = spawn_blocking(move || tart.shares_volume_with(&place));
        if !matches!(timeout(LOOK_LIMIT, look).await, Ok(Ok(true))) {
            return None;
        }
        let Some(turn) = self.line.turn_unless_fruitful_since(since).await else { return Some(0) };
        match self.pass_in_turn(Stage::Wanted, turn).await {
            Ok(pass) => pass.has_made_room().then_some(pass.deleted),
            Err(error) => {
                warn!(error = chain(&error), "cannot make room");
                None
            }
        }
    }

    /// Looks at all images, and deletes as many as have to go.
    pub async fn pass(&self, stage: Stage) -> Result<Pass, CollectError> {
        let turn = self.line.turn().await;
        self.pass_in_turn(stage, turn).await
    }

    async fn pass_in_turn(&self, stage: Stage, _turn: MutexGuard<'_, ()>) -> Result<Pass, CollectError> {
        let begun = Instant::now();
        let result = self.collect(stage).await;
        if result.as_ref().is_ok_and(Pass::has_made_room) {
            self.line.bears_fruit();
        }
        let failed = result.as_ref().map_or(true, |pass| pass.failed > 0);
        self.metrics.images_collected(begun.elapsed(), !failed);
        result
    }

    async fn collect(&self, mut stage: Stage) -> Result<Pass, CollectError> {
        let mut done = Pass::default();
        if stage == Stage::Wanted {
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
            let mut candidates = verdicts.iter().filter(|(_, verdict)| *verdict == Verdict::Delete);
            let Some((digest, _)) = candidates.find(|(digest, _)| !hopeless.contains(digest)) else {
                return Ok(done);
            };
            match self.delete(digest).await {
                Ok(Some(freed)) => {
                    info!(image = %digest, freed, "image deleted to make room");
                    self.metrics.image_deleted(freed);
                    done.deleted += 1;
                    done.freed += freed;
                    stage = Stage::Going;
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
        info!(freed, "what was kept of unfinished pulls has made room");
        freed
    }

    async fn look(&self, stage: Stage) -> Result<World, CollectError> {
        let (images, tart, state) = (self.images.clone(), self.tart.clone(), self.state.clone());
        let look = spawn_blocking(move || {
            let known = images.known();
            let pulling: HashSet<String> = images.pulling().into_iter().collect();
            let is_starting = |image: &KnownImage| {
                images.pins().is_pinned(&image.base().to_string())
                    || image.names.iter().any(|name| pulling.contains(name) || images.pins().is_pinned(name))
            };
            let found = observe(&known, &tart, &state, is_starting)?;
            let now = Timestamp::now();
            for image in &found {
                if matches!(image.need, Need::Vm | Need::Start) {
                    images.used(&image.digest, now);
                }
            }
            // What somebody else has deleted need not be remembered. On a volume that is away for a moment everything seems to be.
            let is_away = !tart.is_readable();
            let is_gone = |known: &&KnownImage| !found.iter().any(|image| image.digest == known.digest);
            for gone in known.iter().filter(|known| !is_away && is_gone(known)) {
                if let Some(_doom) = images.pins().doom(names(gone)) {
                    images.collected(&gone.digest);
                }
            }
            Ok::<_, StateError>((found, volume(tart.home()), now))
        });
        let Ok(Ok(looked)) = timeout(LOOK_LIMIT, look).await else { return Err(CollectError::Late) };
        let (images, space, now) = looked?;
        let Rules { watermarks, min_age } = self.rules;
        Ok(World { images, space, watermarks, min_age, stage, now })
    }

    /// Deletes an image: its base VM, unless another image has the same, and what the agent has pulled, for together they hold the
    /// blocks. `None` when it is needed.
    ///
    /// It is forgotten last, so that an agent that dies in between is followed by one that finishes it.
    async fn delete(&self, digest: &ImageDigest) -> Result<Option<u64>, DeleteError> {
        let Some(known) = self.images.known().into_iter().find(|known| known.digest == *digest) else {
            return Ok(None);
        };
        let Some(_doom) = self.images.pins().doom(names(&known)) else { return Ok(None) };
        // Nobody can begin with it now, so this look is the last word.
        if self.state.bases_in_use()?.is_none_or(|in_use| in_use.contains(&known.base())) {
            return Ok(None);
        }
        let before = measure(self.tart.home()).await;
        let others = self.images.known();
        if takes_base_along(digest, others.iter().map(|other| &other.digest)) {
            self.delete_base(known.base()).await?;
        }
        crash::point("agent.collect.base");
        self.delete_cached(&known).await?;
        crash::point("agent.collect.image");
        self.images.collected(digest);
        self.images.look().await;
        Ok(Some(freed(self.tart.home(), before).await))
    }

    async fn delete_base(&self, base: BaseName) -> Result<(), DeleteError> {
        self.tart.delete_base(&base).await?;
        let tart = self.tart.clone();
        let removed = spawn_blocking(move || tart.remove_rest_of_base(&base)).await;
        removed.map_err(std::io::Error::other).flatten().map_err(DeleteError::Rest)
    }

    /// Takes the names that the agent has pulled an image by out of tart's cache. If others have names for it, it stays for them.
    async fn delete_cached(&self, known: &KnownImage) -> Result<(), DeleteError> {
        if !known.is_ours(self.tart.image_inode(&known.digest)) {
            return Ok(());
        }
        let (tart, digest) = (self.tart.clone(), known.digest.clone());
        let look = spawn_blocking(move || tart.cached_images());
        let Ok(Ok(cached)) = timeout(LOOK_LIMIT, look).await else { return Err(DeleteError::Late) };
        let Some(cached) =
            cached.map_err(DeleteError::Look)?.into_iter().find(|image| image.digest == digest)
        else {
            return Ok(());
        };
        let (ours, theirs): (Vec<_>, Vec<_>) =
            cached.tags.into_iter().partition(|tag| known.names.contains(tag));
        for tag in &ours {
            self.tart.delete_image(tag).await?;
        }
        // Tart keeps an image that was pulled by its digest even when no tag leads to it.
        let by_digest = known.digest.to_string();
        if theirs.is_empty() && known.names.contains(&by_digest) {
            self.tart.delete_image(&by_digest).await?;
        }
        Ok(())
    }
}

/// Why an image could not be deleted.
#[derive(Debug, thiserror::Error)]
enum DeleteError {
    #[error(transparent)]
    State(#[from] StateError),
    #[error(transparent)]
    Tart(#[from] TartError),
    #[error("cannot remove what is left of a base VM")]
    Rest(#[source] std::io::Error),
    #[error("cannot look into tart's cache")]
    Look(#[source] std::io::Error),
    #[error("the disk has not answered within {} s", LOOK_LIMIT.as_secs())]
    Late,
}

/// All names that an image is pinned by.
fn names(image: &KnownImage) -> impl Iterator<Item = String> {
    std::iter::once(image.base().to_string()).chain(image.names.iter().cloned())
}
