//! The images that `tart` keeps on this host, and the agent's record of them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::sync::{Semaphore, watch};
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tracing::warn;

use super::access::{ImageAccess, SecretUid};
use super::inventory;
use super::ownership::{ImageRecord, KnownImage, Present};
use super::partial_pulls::PartialPulls;
use super::pins::{Pin, Pins};
use super::shared_pull::{PullKey, SharedPull};
use super::{ImageError, recovery};
use crate::crash_point;
use crate::error_chain::chain;
use crate::fs::file::FileError;
use crate::metrics::Metrics;
use crate::mutex::lock;
use crate::names::image::allows;
use crate::names::{BaseName, ImageDigest, full_name};
use crate::state::StateDir;
use crate::tart::{CachedImage, PULL, Tart};

/// How often the agent looks for images that other programs have pulled or deleted.
const REFRESH_INTERVAL: Duration = Duration::from_mins(1);
/// How much the last use of an image in the record may lag behind.
const USE_PRECISION: Duration = Duration::from_mins(1);

/// How long the pull of an earlier agent may still bring an image.
const PULL_LIMIT: SignedDuration = SignedDuration::from_secs(PULL.as_secs().cast_signed() + 300);

/// A container's `imagePullPolicy`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum PullPolicy {
    Always,
    #[default]
    IfNotPresent,
    Never,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PullStarter {
    /// This process, which knows that the pull has ended.
    ThisProcess,
    /// Another process, whose `tart` may still run.
    AnotherProcess,
}

#[derive(Debug)]
pub(crate) struct ImageStore {
    pub(super) tart: Tart,
    pub(super) state: StateDir,
    pub(super) metrics: Metrics,
    /// The digest that each reference last stood for.
    digests: Mutex<HashMap<String, ImageDigest>>,
    pub(super) pulls: Mutex<HashMap<PullKey, SharedPull>>,
    /// One permit per parallel pull.
    pub(super) pull_slots: Semaphore,
    /// Held while a base VM is cloned. tart clones one VM at a time anyway.
    base_clone: tokio::sync::Mutex<()>,
    /// Held while the content of an image is checked.
    pub(super) content_check: tokio::sync::Mutex<()>,
    pub(super) record: Mutex<ImageRecord>,
    pub(crate) pins: Pins,
    pub(super) partials: Arc<PartialPulls>,
    /// Whether the agent is about to end.
    pub(super) is_stopping: watch::Sender<bool>,
    local: watch::Sender<Arc<Vec<CachedImage>>>,
}

impl ImageStore {
    /// The images that `tart` keeps, with the record of an earlier agent. It is lost if it is absent, and `home_was_used`: an agent has
    /// worked in tart's home before.
    pub(crate) fn open(
        tart: Tart,
        state: StateDir,
        pulls: usize,
        metrics: Metrics,
        home_was_used: bool,
    ) -> Result<Self, FileError> {
        let is_absent = !state.has_images()?;
        let mut record = state.images_for_writing()?;
        if is_absent {
            if home_was_used && record.mark_lost() {
                warn!("the record of images is lost: until its registry grants an image, no Pod may use it");
            }
            // From now on, an absent record is a lost one.
            state.write_images(&record)?;
        }
        let partials = PartialPulls::new(tart.clone());
        recovery::abandon_dead(&mut record, &tart, &state);
        // Before any tart command deletes the unlocked downloads.
        for image in record.pulls() {
            partials.keep(image);
        }
        record.retain_partials(|image| partials.keep(image));
        Ok(Self {
            record: Mutex::new(record),
            partials: Arc::new(partials),
            tart,
            state,
            metrics,
            digests: Mutex::default(),
            pulls: Mutex::default(),
            pull_slots: Semaphore::new(pulls.clamp(1, Semaphore::MAX_PERMITS)),
            base_clone: tokio::sync::Mutex::default(),
            content_check: tokio::sync::Mutex::default(),
            pins: Pins::default(),
            is_stopping: watch::Sender::default(),
            local: watch::Sender::default(),
        })
    }

    /// The image, if it is on this host and the policy allows its use without asking its registry.
    pub(crate) async fn present(
        &self,
        image: &str,
        policy: PullPolicy,
    ) -> Result<Option<ImageDigest>, ImageError> {
        // Only the registry knows whether a tag has moved.
        if policy == PullPolicy::Always {
            return Ok(None);
        }
        let known = lock(&self.digests).get(image).cloned();
        if let Some(digest) = known.filter(|digest| self.is_local(digest)) {
            return Ok(Some(digest));
        }
        match self.cached(image).await? {
            None if policy == PullPolicy::Never => Err(ImageError::NeverPull(image.to_owned())),
            found => Ok(found),
        }
    }

    pub(crate) fn access(&self, digest: &ImageDigest) -> ImageAccess {
        let inode = self.tart.image_inode(digest);
        lock(&self.record).access(digest, inode)
    }

    /// The registry has granted an image: for a pull secret, or without any.
    pub(crate) fn grant(&self, digest: &ImageDigest, secret: Option<&SecretUid>) {
        let inode = self.tart.image_inode(digest);
        self.update(|record| record.grant(digest, inode, secret, Timestamp::now()));
    }

    /// The base VM of an image. The agent clones it for the first Pod with the image, once it has checked the image's content, and after a
    /// user has deleted it.
    pub(crate) async fn base(&self, image: &str, digest: &ImageDigest) -> Result<BaseName, ImageError> {
        let base = BaseName::of(digest);
        self.used(digest, Timestamp::now());
        if self.tart.has_base(&base) {
            return Ok(base);
        }
        if self.tart.has_image(digest) {
            self.check_content(image, digest).await?;
        }
        let _guard = self.base_clone.lock().await;
        if !self.tart.has_base(&base) {
            if !self.tart.has_image(digest) {
                self.forget(image);
                // `tart clone` would pull the image, with the host's credentials, and without a record of the agent.
                return Err(ImageError::Vanished(image.to_owned()));
            }
            self.tart.make_base(digest, &base).await.map_err(|source| {
                // The image may no longer be there.
                self.forget(image);
                ImageError::Base(image.to_owned(), Arc::new(source))
            })?;
            crash_point::point("agent.base.made");
        }
        Ok(base)
    }

    /// A pin on an image that is about to be used: the agent does not collect it while the pin lives.
    pub(crate) async fn pin(&self, image: &str) -> Pin {
        let mut pin = self.pins.pin();
        pin.hold(&full_name(image)).await;
        pin
    }

    pub(crate) fn known(&self) -> Vec<KnownImage> {
        lock(&self.record).images.clone()
    }

    /// The names of images whose pulls have not ended in the record.
    pub(crate) fn pulling(&self) -> Vec<String> {
        lock(&self.record).pulls().map(str::to_owned).collect()
    }

    pub(crate) fn used(&self, digest: &ImageDigest, now: Timestamp) {
        self.update(|record| {
            let before = record.images.iter().find(|known| known.digest == *digest);
            let is_due = before.is_none_or(|before| now > before.last_used_at + USE_PRECISION);
            record.used(digest, now);
            is_due
        });
    }

    pub(crate) fn correct_future_times(&self, now: Timestamp) {
        self.update(|record| record.correct_future_times(now));
    }

    /// An image was deleted with its base VM.
    pub(crate) fn forget_deleted(&self, digest: &ImageDigest) {
        lock(&self.digests).retain(|_, known| known != digest);
        self.update(|record| {
            record.forget(digest);
            true
        });
    }

    /// Starts to offer the kept partial downloads to tarts that wait for them.
    pub(crate) fn offer_partials(&self) {
        tokio::spawn(self.partials.clone().run());
    }

    /// Has tart delete the kept partial downloads, to free disk space. Says whether there were any.
    pub(crate) async fn delete_partials(&self) -> bool {
        let was_any = self.partials.release_all();
        if was_any && let Err(error) = self.tart.collect_garbage().await {
            // tart deletes them before anything else, so that it may have done so.
            warn!(error = chain(&error), "tart has failed after it was to delete partial downloads");
        }
        was_any
    }

    /// The images on this host, whenever they change.
    pub(crate) fn local_images(&self) -> watch::Receiver<Arc<Vec<CachedImage>>> {
        self.local.subscribe()
    }

    /// Watches the images on this host until it is dropped.
    pub(crate) async fn watch(self: Arc<Self>) {
        loop {
            self.recover().await;
            self.refresh().await;
            self.forget_partials();
            sleep(REFRESH_INTERVAL).await;
        }
    }

    /// Reads the images on this host now.
    pub(crate) async fn refresh(&self) {
        let (tart, known) = (self.tart.clone(), self.known());
        let look = spawn_blocking(move || inventory::local_images(&tart, &known));
        match look.await {
            Ok(Ok(found)) => {
                let found = Arc::new(found);
                self.local.send_if_modified(|known| std::mem::replace(known, found.clone()) != found);
            }
            Ok(Err(error)) => warn!(%error, "cannot look at the images on this host"),
            Err(error) => warn!(%error, "a look at the images on this host was cut short"),
        }
    }

    /// Whether an image can be used without its registry. A base VM counts only for an image of the record: a Pod that knows a digest
    /// could name it as an image of any other repository.
    fn is_local(&self, digest: &ImageDigest) -> bool {
        let is_known = || lock(&self.record).images.iter().any(|known| known.digest == *digest);
        self.tart.has_image(digest) || (self.tart.has_base(&BaseName::of(digest)) && is_known())
    }

    pub(super) fn is_pulling(&self, image: &str) -> bool {
        let name = full_name(image);
        lock(&self.pulls).keys().any(|(pulled, _)| full_name(pulled) == name)
    }

    /// Changes the record, and writes it when `change` says so. If that fails, the next write or the next agent makes up for it.
    pub(super) fn update(&self, change: impl FnOnce(&mut ImageRecord) -> bool) {
        let mut record = lock(&self.record);
        if change(&mut record)
            && let Err(error) = self.state.write_images(&record)
        {
            warn!(error = chain(&error), "cannot write down which images are here");
        }
    }

    /// Records that an image is about to be pulled.
    pub(crate) fn begin_pull(&self, image: &str) -> Result<(), ImageError> {
        let failed = |source| ImageError::Record(image.to_owned(), Arc::new(source));
        let before = self.tart.cached_siblings(image).map_err(|error| {
            failed(FileError::new("look into", &self.tart.home().join("cache/OCIs"), error))
        })?;
        let mut record = lock(&self.record);
        record.begin(image, before, Timestamp::now());
        self.state.write_images(&record).map_err(failed)
    }

    /// Records that the agent's own tart fetches an image, so that the image will be the agent's own.
    pub(crate) fn mark_fetching(&self, image: &str) {
        self.update(|record| record.mark_fetching(image));
    }

    /// Records that no tart runs a pull any more, and that its result is not known.
    pub(super) fn abandon_pull(&self, image: &str) {
        let present = self.tart.cached_siblings(image).unwrap_or_default();
        self.update(|record| {
            record.abandon(image, present);
            true
        });
    }

    /// Removes partial downloads from the record that are no longer kept.
    fn forget_partials(&self) {
        self.update(|record| record.retain_partials(|image| self.partials.has(image)));
    }

    /// Reads the record again, because another process may have written it.
    pub(crate) fn reload(&self) -> Result<(), FileError> {
        *lock(&self.record) = self.state.images_for_writing()?;
        Ok(())
    }

    /// Looks for the result of a pull, and records it.
    pub(super) async fn settle_pull(
        &self,
        image: &str,
        starter: PullStarter,
    ) -> Result<Option<ImageDigest>, ImageError> {
        let found = match starter {
            PullStarter::ThisProcess => self.brought(image).await,
            PullStarter::AnotherProcess => self.cached(image).await,
        };
        match &found {
            Ok(found) => self.record_result(image, found.as_ref(), starter),
            Err(ImageError::WrongDigest { .. }) => self.record_result(image, None, starter),
            Err(_) => {}
        }
        self.refresh().await;
        found
    }

    /// Records that a pull has brought this image, or none.
    pub(crate) fn record_result(&self, image: &str, found: Option<&ImageDigest>, starter: PullStarter) {
        let present = found.filter(|digest| self.tart.has_image(digest)).and_then(|digest| {
            Some(Present { inode: self.tart.image_inode(digest)?, digest: digest.clone() })
        });
        let is_pulling = self.is_pulling(image);
        self.update(|record| {
            let now = Timestamp::now();
            let may_come = starter == PullStarter::AnotherProcess
                && record.may_come(image, present.as_ref(), PULL_LIMIT, now);
            record.settle(image, present.as_ref(), !is_pulling && !may_come, now);
            if self.partials.has(image) {
                record.keep_partial(image);
            }
            true
        });
    }

    /// Forgets the digest of a reference, after a clone of the image has failed.
    pub(crate) fn forget(&self, image: &str) {
        lock(&self.digests).remove(image);
    }

    pub(crate) async fn cached(&self, image: &str) -> Result<Option<ImageDigest>, ImageError> {
        Ok(self.look(image).await?.0)
    }

    /// What the cache has for a reference, and what it has in the place of a pinned image: tart takes whatever manifest the registry
    /// answers with, and links the digest that it asked for to the one that it got.
    async fn look(&self, image: &str) -> Result<(Option<ImageDigest>, Option<ImageDigest>), ImageError> {
        let look = |source| ImageError::Look(image.to_owned(), Arc::new(source));
        let found = self.tart.cached_digest(image).await.map_err(look)?;
        // tart echoes every digest, cached or not.
        let Some(digest) = found.filter(|digest| self.is_local(digest)) else { return Ok((None, None)) };
        if !allows(image, &digest) {
            return Ok((None, Some(digest)));
        }
        lock(&self.digests).insert(image.to_owned(), digest.clone());
        Ok((Some(digest), None))
    }

    /// What a pull of this process has brought.
    pub(crate) async fn brought(&self, image: &str) -> Result<Option<ImageDigest>, ImageError> {
        let (found, wrong) = self.look(image).await?;
        let Some(wrong) = wrong else { return Ok(found) };
        // tart would take the link for the pinned image for ever.
        if let Err(error) = self.tart.delete_image(image).await {
            warn!(image, error = chain(&error), "cannot delete a digest that leads to another image");
        }
        Err(ImageError::WrongDigest { image: image.to_owned(), found: wrong })
    }
}
