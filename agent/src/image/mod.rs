//! Images on this host: which digest a reference stands for, fetched when it has to be.

pub(crate) mod access;
pub(crate) mod credentials;
mod error;
pub(crate) mod gc;
pub(crate) mod inventory;
pub(crate) mod manager;
pub(crate) mod ownership;
mod partial_pulls;
pub(crate) mod pins;
pub(crate) mod prepull;
mod pull_policy;
pub(crate) mod pull_socket;
mod record_file;
mod recovery;
mod shared_pull;

pub(crate) use error::ImageError;
pub(crate) use pull_policy::PullPolicy;
pub(crate) use shared_pull::Pulled;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::sync::{Semaphore, watch};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};
use tracing::warn;

use crate::crash_point;
use crate::error_chain::chain;
use crate::metrics::Metrics;
use crate::names::BaseName;

use crate::fs::file::FileError;
use crate::names::{ImageDigest, full_name};
use crate::state::StateDir;
use crate::tart::{PULL, Tart};
use access::{ImageAccess, SecretUid};
use inventory::LocalImage;
use ownership::{ImageRecord, KnownImage, Present};
use partial_pulls::PartialPulls;
use pins::{Pin, Pins};
use shared_pull::{PullKey, SharedPull};

/// How often the cache is looked at for what others have done to it.
const LOOK_INTERVAL: Duration = Duration::from_mins(1);
/// How long pulls may take to end with the agent.
const LANDING_LIMIT: Duration = Duration::from_secs(2);
const LANDING_INTERVAL: Duration = Duration::from_millis(10);
/// How much older than the truth the time of an image's last use may be on the disk.
const USE_PRECISION: Duration = Duration::from_mins(1);

/// How long a pull of an earlier agent may still bring an image.
const PULL_LIMIT: SignedDuration = SignedDuration::from_secs(PULL.as_secs().cast_signed() + 300);

/// Who has begun a pull.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Beginner {
    /// This process, which knows that it is over.
    This,
    /// Another one, whose `tart` may still be at it.
    Another,
}

/// The images of this host.
#[derive(Debug)]
pub(crate) struct ImageStore {
    tart: Tart,
    state: StateDir,
    metrics: Metrics,
    /// Where each reference was last seen to point.
    known: Mutex<HashMap<String, ImageDigest>>,
    flights: Mutex<HashMap<PullKey, SharedPull>>,
    /// As many pulls as may go on at once.
    turns: Semaphore,
    /// Held while a base VM is made; tart makes one VM at a time anyway.
    making: tokio::sync::Mutex<()>,
    record: Mutex<ImageRecord>,
    pins: Pins,
    partials: Arc<PartialPulls>,
    /// Whether the agent is about to end.
    grounded: watch::Sender<bool>,
    resident: watch::Sender<Arc<Vec<LocalImage>>>,
}

impl ImageStore {
    /// The images that `tart` keeps, and what an earlier agent has noted down about them.
    pub(crate) fn open(
        tart: Tart,
        state: StateDir,
        pulls: usize,
        metrics: Metrics,
    ) -> Result<Self, FileError> {
        let mut record = state.images_to_go_on_with()?;
        let partials = PartialPulls::new(tart.clone());
        recovery::abandon_dead(&mut record, &tart, &state);
        // Before any tart command takes it for garbage.
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
            known: Mutex::default(),
            flights: Mutex::default(),
            turns: Semaphore::new(pulls.clamp(1, Semaphore::MAX_PERMITS)),
            making: tokio::sync::Mutex::default(),
            pins: Pins::default(),
            grounded: watch::Sender::default(),
            resident: watch::Sender::default(),
        })
    }

    /// The image, if it is on this host and the policy lets it be used without asking its registry.
    pub(crate) async fn present(
        &self,
        image: &str,
        policy: PullPolicy,
    ) -> Result<Option<ImageDigest>, ImageError> {
        // A tag can have moved; only the registry knows.
        if policy == PullPolicy::Always {
            return Ok(None);
        }
        let known = lock(&self.known).get(image).cloned();
        if let Some(digest) = known.filter(|digest| self.is_resident(digest)) {
            return Ok(Some(digest));
        }
        match self.cached(image).await? {
            None if policy == PullPolicy::Never => Err(ImageError::NeverPull(image.to_owned())),
            found => Ok(found),
        }
    }

    /// Who may use an image that is here without asking its registry.
    pub(crate) fn access(&self, digest: &ImageDigest) -> ImageAccess {
        let inode = self.tart.image_inode(digest);
        lock(&self.record).access(digest, inode)
    }

    /// The registry has let somebody have an image: with a pull secret, or without any.
    pub(crate) fn grant(&self, digest: &ImageDigest, secret: Option<&SecretUid>) {
        let mut record = lock(&self.record);
        if record.grant(digest, secret) {
            self.write(&record);
        }
    }

    /// The base VM of an image, made when it is not there: for the first Pod with the image, and after somebody has deleted it.
    pub(crate) async fn base(&self, image: &str, digest: &ImageDigest) -> Result<BaseName, ImageError> {
        let base = BaseName::of(digest);
        self.used(digest, Timestamp::now());
        if self.tart.has_base(&base) {
            return Ok(base);
        }
        let _making = self.making.lock().await;
        if !self.tart.has_base(&base) {
            if !self.tart.has_image(digest) {
                self.forget(image);
                // To clone it would pull it, with whatever the host has for its registry, and unknown to anyone.
                return Err(ImageError::Vanished(image.to_owned()));
            }
            self.tart.make_base(digest, &base).await.map_err(|source| {
                // It may no longer be where it was.
                self.forget(image);
                ImageError::Base { image: image.to_owned(), source: Arc::new(source) }
            })?;
            crash_point::point("agent.base.made");
        }
        Ok(base)
    }

    /// A pin on an image that is about to be used: from now on it is not collected.
    pub(crate) async fn pin(&self, image: &str) -> Pin {
        let mut pin = self.pins.pin();
        pin.hold(&full_name(image)).await;
        pin
    }

    /// Who needs which image at this moment.
    pub(crate) fn pins(&self) -> &Pins {
        &self.pins
    }

    /// The images that the agent has brought here, as far as it knows.
    pub(crate) fn known(&self) -> Vec<KnownImage> {
        lock(&self.record).images().to_vec()
    }

    /// The names of images whose pulls have no end yet.
    pub(crate) fn pulling(&self) -> Vec<String> {
        lock(&self.record).pulls().map(str::to_owned).collect()
    }

    /// An image is of use at a time.
    pub(crate) fn used(&self, digest: &ImageDigest, now: Timestamp) {
        let mut record = lock(&self.record);
        let before =
            record.images().iter().find(|known| known.digest == *digest).map(|known| known.last_used_at);
        record.used(digest, now);
        if before.is_none_or(|before| now > before + USE_PRECISION) {
            self.write(&record);
        }
    }

    /// The time is this, whatever it seemed to be before.
    pub(crate) fn set_clock_right(&self, now: Timestamp) {
        let mut record = lock(&self.record);
        if record.set_clock_right(now) {
            self.write(&record);
        }
    }

    /// An image is gone, and its base VM with it.
    pub(crate) fn collected(&self, digest: &ImageDigest) {
        lock(&self.known).retain(|_, known| known != digest);
        let mut record = lock(&self.record);
        record.forget(digest);
        self.write(&record);
    }

    /// Offers what has arrived of images that are not whole to whoever pulls them, from now on.
    pub(crate) fn tend_partials(&self) {
        tokio::spawn(self.partials.clone().tend());
    }

    /// Gives up what has arrived of images that are not whole, and has tart remove it: somebody needs the room. Says whether there was
    /// anything.
    pub(crate) async fn give_up_partials(&self) -> bool {
        let was_any = self.partials.release_all();
        if was_any && let Err(error) = self.tart.collect_garbage().await {
            // It comes first, so it may be done all the same.
            warn!(error = chain(&error), "tart has failed after it was to remove what is not whole");
        }
        was_any
    }

    /// Ends all pulls, so that what has arrived is there for the next agent. Nothing more is done about them.
    pub(crate) async fn ground(&self) {
        // Any other tart command takes what a pull lets go of for garbage.
        let _ = timeout(LANDING_LIMIT, self.tart.retire()).await;
        let images: Vec<String> = lock(&self.flights).keys().map(|(image, _)| image.clone()).collect();
        self.grounded.send_replace(true);
        let landed = async {
            while !lock(&self.flights).is_empty() {
                sleep(LANDING_INTERVAL).await;
            }
            // A tart that is killed lets go of it only when it is dead.
            for image in images {
                while self.partials.keep(&image) && self.partials.is_under_way(&image) {
                    sleep(LANDING_INTERVAL).await;
                }
            }
        };
        // A tart that does not even die is not worth waiting for.
        let _ = timeout(LANDING_LIMIT, landed).await;
    }

    /// The images on this host, whenever they change.
    pub(crate) fn residents(&self) -> watch::Receiver<Arc<Vec<LocalImage>>> {
        self.resident.subscribe()
    }

    /// Looks at the images on this host again and again, for as long as it is polled.
    pub(crate) async fn watch(self: Arc<Self>) {
        loop {
            self.recover().await;
            self.look().await;
            self.forget_partials();
            sleep(LOOK_INTERVAL).await;
        }
    }

    /// Looks at the images on this host now.
    pub(crate) async fn look(&self) {
        let (tart, known) = (self.tart.clone(), self.known());
        let look = spawn_blocking(move || inventory::local_images(&tart, &known));
        match look.await {
            Ok(Ok(found)) => {
                let found = Arc::new(found);
                self.resident.send_if_modified(|known| std::mem::replace(known, found.clone()) != found);
            }
            Ok(Err(error)) => warn!(%error, "cannot look at the images on this host"),
            Err(error) => warn!(%error, "a look at the images on this host was cut short"),
        }
    }

    /// Whether an image can be used without its registry. A base VM is one of the image that it was made from only: whoever knows a
    /// digest could name it as an image of any other repository.
    fn is_resident(&self, digest: &ImageDigest) -> bool {
        let is_known = || lock(&self.record).images().iter().any(|known| known.digest == *digest);
        self.tart.has_image(digest) || (self.tart.has_base(&BaseName::of(digest)) && is_known())
    }

    fn is_flying(&self, image: &str) -> bool {
        let name = full_name(image);
        lock(&self.flights).keys().any(|(flying, _)| full_name(flying) == name)
    }

    /// Writes the record down. What could not be written is made up for by the next one, or by the next agent's look.
    fn write(&self, record: &ImageRecord) {
        if let Err(error) = self.state.write_images(record) {
            warn!(error = chain(&error), "cannot write down which images are here");
        }
    }

    /// Notes down that an image is about to be pulled.
    pub(crate) fn begin(&self, image: &str) -> Result<(), ImageError> {
        let failed = |source| ImageError::Record { image: image.to_owned(), source: Arc::new(source) };
        let before = self.tart.cached_siblings(image).map_err(|error| {
            failed(FileError::new("look into", &self.tart.home().join("cache/OCIs"), error))
        })?;
        let mut record = lock(&self.record);
        record.begin(image, before, Timestamp::now());
        self.state.write_images(&record).map_err(failed)
    }

    /// Notes down that our own tart fetches an image: what it brings is ours.
    pub(crate) fn fetches(&self, image: &str) {
        let mut record = lock(&self.record);
        if record.fetch(image) {
            self.write(&record);
        }
    }

    /// Notes down that nobody is at a pull any more, and that nobody has looked what became of it.
    fn abandon(&self, image: &str) {
        let present = self.tart.cached_siblings(image).unwrap_or_default();
        let mut record = lock(&self.record);
        record.abandon(image, present);
        self.write(&record);
    }

    /// Forgets what was kept of images, and no longer is.
    fn forget_partials(&self) {
        let mut record = lock(&self.record);
        if record.retain_partials(|image| self.partials.holds(image)) {
            self.write(&record);
        }
    }

    /// Reads the record again: somebody else may have written to it.
    pub(crate) fn reload(&self) -> Result<(), FileError> {
        *lock(&self.record) = self.state.images_to_go_on_with()?;
        Ok(())
    }

    /// Notes down what became of a pull, however it ended.
    async fn settle(&self, image: &str) -> Result<Option<ImageDigest>, ImageError> {
        self.settle_as(image, Beginner::This).await
    }

    async fn settle_as(&self, image: &str, beginner: Beginner) -> Result<Option<ImageDigest>, ImageError> {
        let found = self.cached(image).await?;
        self.conclude(image, found.as_ref(), beginner);
        self.look().await;
        Ok(found)
    }

    /// Notes down that a pull has brought this image, or none.
    pub(crate) fn conclude(&self, image: &str, found: Option<&ImageDigest>, beginner: Beginner) {
        let present = found.filter(|digest| self.tart.has_image(digest)).and_then(|digest| {
            Some(Present { inode: self.tart.image_inode(digest)?, digest: digest.clone() })
        });
        let is_flying = self.is_flying(image);
        let (mut record, now) = (lock(&self.record), Timestamp::now());
        let may_come =
            beginner == Beginner::Another && record.may_come(image, present.as_ref(), PULL_LIMIT, now);
        record.settle(image, present.as_ref(), !is_flying && !may_come, now);
        if self.partials.holds(image) {
            record.keep_partial(image);
        }
        self.write(&record);
    }

    /// Forgets where an image was last seen, after a clone of it has failed.
    pub(crate) fn forget(&self, image: &str) {
        lock(&self.known).remove(image);
    }

    pub(crate) async fn cached(&self, image: &str) -> Result<Option<ImageDigest>, ImageError> {
        let look = |source| ImageError::Look { image: image.to_owned(), source: Arc::new(source) };
        let found = self.tart.cached_digest(image).await.map_err(look)?;
        // Tart takes every digest for one that it has.
        let found = found.filter(|digest| self.is_resident(digest));
        if let Some(digest) = &found {
            lock(&self.known).insert(image.to_owned(), digest.clone());
        }
        Ok(found)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
