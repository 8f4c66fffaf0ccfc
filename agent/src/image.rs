//! Images on this host: which digest a reference stands for, fetched when it has to be.

pub mod credentials;
pub mod pins;
pub mod prepull;
pub mod record;
pub mod resident;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio::sync::{Semaphore, watch};
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tracing::warn;

use crate::crash;
use crate::metrics::Metrics;
use crate::pod::admission::PullPolicy;
use crate::report::chain;
use crate::state::{StateDir, StateError};
use crate::tart::{Fault, ImageDigest, Tart, TartError, full_name};
use crate::vm::BaseName;
use credentials::Credential;
use pins::{Pin, Pins};
use record::{ImageRecord, KnownImage, Present};
use resident::Resident;

/// How often the cache is looked at for what others have done to it.
const LOOK_INTERVAL: Duration = Duration::from_mins(1);
/// How much older than the truth the time of an image's last use may be on the disk.
const USE_PRECISION: Duration = Duration::from_mins(1);

/// An image that cannot be had.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ImageError {
    /// tart could not fetch it.
    #[error("cannot pull image `{image}`{}", .source.fault().map_or("", Fault::advice))]
    Pull {
        /// The image as the Pod names it.
        image: String,
        /// Why.
        #[source]
        source: Arc<TartError>,
    },
    /// It is not there, and the Pod forbids to fetch it.
    #[error("image `{0}` is not on this host and `imagePullPolicy: Never` forbids to pull it")]
    NeverPull(String),
    /// It was there a moment ago.
    #[error("image `{0}` was pulled, and then deleted by somebody else")]
    Vanished(String),
    /// tart was asked whether it has it, and failed.
    #[error("cannot look for image `{image}`")]
    Look {
        /// The image as the Pod names it.
        image: String,
        /// Why.
        #[source]
        source: Arc<TartError>,
    },
    /// It is there, but no VM can be made from it.
    #[error("cannot make a VM from image `{image}`{}", .source.fault().map_or("", Fault::advice))]
    Base {
        /// The image as the Pod names it.
        image: String,
        /// Why.
        #[source]
        source: Arc<TartError>,
    },
    /// What is about to be pulled could not be written down, so nobody would know whose it is.
    #[error("cannot note down the pull of image `{image}`")]
    Record {
        /// The image as the Pod names it.
        image: String,
        /// Why.
        #[source]
        source: Arc<StateError>,
    },
    /// The task that fetched it has died.
    #[error("the pull of image `{0}` was interrupted")]
    Interrupted(String),
}

impl ImageError {
    /// The kubelet's word for the failure.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Pull { .. }
            | Self::Vanished(_)
            | Self::Base { .. }
            | Self::Record { .. }
            | Self::Interrupted(_) => "ErrImagePull",
            Self::NeverPull(_) => "ErrImageNeverPull",
            Self::Look { .. } => "ImageInspectError",
        }
    }

    /// Whether there was no room for it.
    pub fn is_for_want_of_space(&self) -> bool {
        match self {
            Self::Pull { source, .. } | Self::Base { source, .. } | Self::Look { source, .. } => {
                source.fault() == Some(Fault::NoSpace)
            }
            Self::Record { source, .. } => source.is_for_want_of_space(),
            Self::NeverPull(_) | Self::Vanished(_) | Self::Interrupted(_) => false,
        }
    }
}

/// The images of this host.
#[derive(Debug)]
pub struct Images {
    tart: Tart,
    state: StateDir,
    metrics: Metrics,
    /// Where each reference was last seen to point.
    known: Mutex<HashMap<String, ImageDigest>>,
    flights: Mutex<HashMap<FlightKey, Flight>>,
    /// As many pulls as may go on at once.
    turns: Semaphore,
    /// Held while a base VM is made; tart makes one VM at a time anyway.
    making: tokio::sync::Mutex<()>,
    record: Mutex<ImageRecord>,
    pins: Pins,
    resident: watch::Sender<Arc<Vec<Resident>>>,
}

/// Pods with the same credentials share a pull.
type FlightKey = (String, Vec<Credential>);
/// A pull that is under way; whoever waits for it has a receiver.
type Flight = Arc<watch::Sender<Pulling>>;

/// How far a pull has come.
#[derive(Debug, Clone)]
enum Pulling {
    /// So many percent of it have arrived.
    Arrived(u8),
    /// It is over.
    Over(Result<ImageDigest, ImageError>),
}

impl Images {
    /// The images that `tart` keeps, and what an earlier agent has noted down about them.
    pub fn open(tart: Tart, state: StateDir, pulls: usize, metrics: Metrics) -> Result<Self, StateError> {
        Ok(Self {
            record: Mutex::new(state.images()?),
            tart,
            state,
            metrics,
            known: Mutex::default(),
            flights: Mutex::default(),
            turns: Semaphore::new(pulls.clamp(1, Semaphore::MAX_PERMITS)),
            making: tokio::sync::Mutex::default(),
            pins: Pins::default(),
            resident: watch::Sender::default(),
        })
    }

    /// The image, if it is on this host and the policy lets it be used without asking its registry.
    pub async fn present(&self, image: &str, policy: PullPolicy) -> Result<Option<ImageDigest>, ImageError> {
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

    /// Fetches an image, once for all who want it at the same time. It goes on for as long as one of them waits.
    ///
    /// `arrived` is told how much of it is here, in percent.
    pub async fn pull(
        self: &Arc<Self>,
        image: &str,
        credentials: Vec<Credential>,
        mut arrived: impl FnMut(u8),
    ) -> Result<ImageDigest, ImageError> {
        let mut flight = self.board((image.to_owned(), credentials));
        loop {
            let seen = flight.borrow_and_update().clone();
            match seen {
                Pulling::Over(result) => return result,
                Pulling::Arrived(percent) => arrived(percent),
            }
            flight.changed().await.map_err(|_| ImageError::Interrupted(image.to_owned()))?;
        }
    }

    /// The base VM of an image, made when it is not there: for the first Pod with the image, and after somebody has deleted it.
    pub async fn base(&self, image: &str, digest: &ImageDigest) -> Result<BaseName, ImageError> {
        let base = BaseName::of(digest);
        self.used(digest, Timestamp::now());
        if self.tart.has_base(&base) {
            return Ok(base);
        }
        let _making = self.making.lock().await;
        if !self.tart.has_base(&base) {
            if !self.tart.has_image(digest) {
                self.forget(image);
                // To clone it would pull it, as nobody and unknown to anyone.
                return Err(ImageError::Vanished(image.to_owned()));
            }
            self.tart.make_base(digest, &base).await.map_err(|source| {
                // It may no longer be where it was.
                self.forget(image);
                ImageError::Base { image: image.to_owned(), source: Arc::new(source) }
            })?;
            crash::point("agent.base.made");
        }
        Ok(base)
    }

    /// A pin on an image that is about to be used: from now on it is not collected.
    pub async fn pin(&self, image: &str) -> Pin {
        let mut pin = self.pins.pin();
        pin.hold(&full_name(image)).await;
        pin
    }

    /// Who needs which image at this moment.
    pub fn pins(&self) -> &Pins {
        &self.pins
    }

    /// The images that the agent has brought here, as far as it knows.
    pub fn known(&self) -> Vec<KnownImage> {
        lock(&self.record).images().to_vec()
    }

    /// The names of images whose pulls have no end yet.
    pub fn pulling(&self) -> Vec<String> {
        lock(&self.record).pulls().map(str::to_owned).collect()
    }

    /// An image is of use at a time.
    pub fn used(&self, digest: &ImageDigest, now: Timestamp) {
        let mut record = lock(&self.record);
        let before =
            record.images().iter().find(|known| known.digest == *digest).map(|known| known.last_used_at);
        record.used(digest, now);
        if before.is_none_or(|before| now > before + USE_PRECISION) {
            self.write(&record);
        }
    }

    /// An image is gone, and its base VM with it.
    pub fn collected(&self, digest: &ImageDigest) {
        lock(&self.known).retain(|_, known| known != digest);
        let mut record = lock(&self.record);
        record.forget(digest);
        self.write(&record);
    }

    /// Finds out what became of the pulls that an earlier agent had begun.
    pub async fn recover(&self) {
        for image in self.pulling() {
            if !self.is_flying(&image)
                && let Err(error) = self.settle(&image).await
            {
                warn!(image, error = chain(&error), "cannot tell what became of a pull; looking again later");
            }
        }
    }

    /// The images on this host, whenever they change.
    pub fn residents(&self) -> watch::Receiver<Arc<Vec<Resident>>> {
        self.resident.subscribe()
    }

    /// Looks at the images on this host again and again, for as long as it is polled.
    pub async fn watch(self: Arc<Self>) {
        self.recover().await;
        loop {
            self.look().await;
            sleep(LOOK_INTERVAL).await;
        }
    }

    /// Looks at the images on this host now.
    pub async fn look(&self) {
        let (tart, known) = (self.tart.clone(), self.known());
        let look = spawn_blocking(move || resident::residents(&tart, &known));
        match look.await {
            Ok(Ok(found)) => {
                let found = Arc::new(found);
                self.resident.send_if_modified(|known| std::mem::replace(known, found.clone()) != found);
            }
            Ok(Err(error)) => warn!(%error, "cannot look at the images on this host"),
            Err(error) => warn!(%error, "a look at the images on this host was cut short"),
        }
    }

    /// Whether an image can be used without its registry.
    fn is_resident(&self, digest: &ImageDigest) -> bool {
        self.tart.has_base(&BaseName::of(digest)) || self.tart.has_image(digest)
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
    fn begin(&self, image: &str) -> Result<(), ImageError> {
        let failed = |source| ImageError::Record { image: image.to_owned(), source: Arc::new(source) };
        let before = self.tart.cached_siblings(image).map_err(|error| {
            failed(StateError::new("look into", &self.tart.home().join("cache/OCIs"), error))
        })?;
        let mut record = lock(&self.record);
        record.begin(image, before);
        self.state.write_images(&record).map_err(failed)
    }

    /// Notes down what became of a pull, however it ended.
    async fn settle(&self, image: &str) -> Result<Option<ImageDigest>, ImageError> {
        let found = self.cached(image).await?;
        let present = found
            .clone()
            .filter(|digest| self.tart.has_image(digest))
            .and_then(|digest| Some(Present { inode: self.tart.image_inode(&digest)?, digest }));
        let is_over = !self.is_flying(image);
        {
            let mut record = lock(&self.record);
            record.settle(image, present.as_ref(), is_over, Timestamp::now());
            self.write(&record);
        }
        self.look().await;
        Ok(found)
    }

    /// Forgets where an image was last seen, after a clone of it has failed.
    pub fn forget(&self, image: &str) {
        lock(&self.known).remove(image);
    }

    /// Joins the pull that is under way, or starts one.
    fn board(self: &Arc<Self>, key: FlightKey) -> watch::Receiver<Pulling> {
        let mut flights = lock(&self.flights);
        if let Some(flight) = flights.get(&key) {
            return flight.subscribe();
        }
        let (sender, receiver) = watch::channel(Pulling::Arrived(0));
        let flight = Arc::new(sender);
        flights.insert(key.clone(), flight.clone());
        tokio::spawn(self.clone().fly(key, flight));
        receiver
    }

    async fn fly(self: Arc<Self>, key: FlightKey, flight: Flight) {
        let _pin = self.pin(&key.0).await;
        let pulled = self.fetch_while_wanted(&key, &flight).await;
        lock(&self.flights).retain(|_, other| !Arc::ptr_eq(other, &flight));
        // Given up or not, something may be there now.
        let settled = self.settle(&key.0).await;
        let Some(pulled) = pulled else { return };
        let result = pulled.and_then(|()| {
            settled.and_then(|found| found.ok_or_else(|| ImageError::Vanished(key.0.clone())))
        });
        flight.send_replace(Pulling::Over(result));
    }

    /// Fetches an image when it is its turn, unless nobody waits for it any more.
    async fn fetch_while_wanted(&self, key: &FlightKey, flight: &Flight) -> Option<Result<(), ImageError>> {
        let arrived = |percent| drop(flight.send_replace(Pulling::Arrived(percent)));
        let fetch = async {
            let _turn = self.turns.acquire().await;
            let begun = Instant::now();
            let result = self.fetch(&key.0, &key.1, arrived).await;
            let end = result.as_ref().map_or_else(ImageError::reason, |()| "success");
            self.metrics.pull_ended(end, begun.elapsed());
            result
        };
        tokio::pin!(fetch);
        loop {
            tokio::select! {
                result = &mut fetch => return Some(result),
                () = flight.closed() => {
                    let mut flights = lock(&self.flights);
                    // Somebody may have joined at the last moment, under this lock.
                    if flight.is_closed() {
                        flights.remove(key);
                        // Dropping the call kills the tart that is at work.
                        return None;
                    }
                }
            }
        }
    }

    /// Tries each credential in turn; without any, the registry is asked as nobody.
    async fn fetch(
        &self,
        image: &str,
        credentials: &[Credential],
        mut arrived: impl FnMut(u8),
    ) -> Result<(), ImageError> {
        self.begin(image)?;
        crash::point("agent.pull.begun");
        let mut tries: Vec<Option<&Credential>> = credentials.iter().map(Some).collect();
        if tries.is_empty() {
            tries.push(None);
        }
        let mut failure = None;
        for credential in tries {
            match self.tart.pull(image, credential, &mut arrived).await {
                Ok(()) => {
                    crash::point("agent.pull.ended");
                    return Ok(());
                }
                Err(error) => {
                    let denied = error.fault() == Some(Fault::AccessDenied);
                    failure = Some(ImageError::Pull { image: image.to_owned(), source: Arc::new(error) });
                    if !denied {
                        break;
                    }
                }
            }
        }
        Err(failure.unwrap_or_else(|| ImageError::Interrupted(image.to_owned())))
    }

    async fn cached(&self, image: &str) -> Result<Option<ImageDigest>, ImageError> {
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
