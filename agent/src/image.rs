//! Images on this host: which digest a reference stands for, fetched when it has to be.

pub mod credentials;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tokio::sync::watch;

use crate::metrics::Metrics;
use crate::pod::admission::PullPolicy;
use crate::tart::{Fault, ImageDigest, Tart, TartError};
use crate::vm::BaseName;
use credentials::Credential;

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
    /// The task that fetched it has died.
    #[error("the pull of image `{0}` was interrupted")]
    Interrupted(String),
}

impl ImageError {
    /// The kubelet's word for the failure.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Pull { .. } | Self::Vanished(_) | Self::Base { .. } | Self::Interrupted(_) => {
                "ErrImagePull"
            }
            Self::NeverPull(_) => "ErrImageNeverPull",
            Self::Look { .. } => "ImageInspectError",
        }
    }
}

/// The images of this host.
#[derive(Debug)]
pub struct Images {
    tart: Tart,
    metrics: Metrics,
    /// Where each reference was last seen to point.
    known: Mutex<HashMap<String, ImageDigest>>,
    flights: Mutex<HashMap<FlightKey, Flight>>,
    /// Held while a base VM is made; tart makes one VM at a time anyway.
    making: tokio::sync::Mutex<()>,
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
    /// The images that `tart` keeps.
    pub fn new(tart: Tart, metrics: Metrics) -> Self {
        Self {
            tart,
            metrics,
            known: Mutex::default(),
            flights: Mutex::default(),
            making: tokio::sync::Mutex::default(),
        }
    }

    /// The image, if it is on this host and the policy lets it be used without asking its registry.
    pub async fn present(&self, image: &str, policy: PullPolicy) -> Result<Option<ImageDigest>, ImageError> {
        // A tag can have moved; only the registry knows.
        if policy == PullPolicy::Always {
            return Ok(None);
        }
        if let Some(digest) = lock(&self.known).get(image) {
            return Ok(Some(digest.clone()));
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
        if self.tart.has_base(&base) {
            return Ok(base);
        }
        let _making = self.making.lock().await;
        if !self.tart.has_base(&base) {
            self.tart.make_base(digest, &base).await.map_err(|source| {
                // It may no longer be where it was.
                self.forget(image);
                ImageError::Base { image: image.to_owned(), source: Arc::new(source) }
            })?;
        }
        Ok(base)
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
        let arrived = |percent| drop(flight.send_replace(Pulling::Arrived(percent)));
        let fetch = self.fetch(&key.0, &key.1, arrived);
        tokio::pin!(fetch);
        let begun = Instant::now();
        loop {
            tokio::select! {
                result = &mut fetch => {
                    let end = result.as_ref().map_or_else(ImageError::reason, |_| "success");
                    self.metrics.pull_ended(end, begun.elapsed());
                    lock(&self.flights).remove(&key);
                    flight.send_replace(Pulling::Over(result));
                    return;
                }
                () = flight.closed() => {
                    let mut flights = lock(&self.flights);
                    // Somebody may have joined at the last moment, under this lock.
                    if flight.is_closed() {
                        flights.remove(&key);
                        // Dropping the call kills the tart that is at work.
                        return;
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
    ) -> Result<ImageDigest, ImageError> {
        let mut tries: Vec<Option<&Credential>> = credentials.iter().map(Some).collect();
        if tries.is_empty() {
            tries.push(None);
        }
        let mut failure = None;
        for credential in tries {
            match self.tart.pull(image, credential, &mut arrived).await {
                Ok(()) => {
                    let found = self.cached(image).await?;
                    return found.ok_or_else(|| ImageError::Vanished(image.to_owned()));
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
        if let Some(digest) = &found {
            lock(&self.known).insert(image.to_owned(), digest.clone());
        }
        Ok(found)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
