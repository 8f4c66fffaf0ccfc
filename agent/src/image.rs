//! Images on this host: which digest a reference stands for, fetched when it has to be.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Mutex as AsyncMutex;

use crate::pod::admission::PullPolicy;
use crate::tart::{ImageDigest, Tart, TartError};

/// An image that cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// tart could not fetch it.
    #[error("cannot pull image `{image}`{}", .source.fault().map_or("", crate::tart::Fault::advice))]
    Pull {
        /// The image as the Pod names it.
        image: String,
        /// Why.
        #[source]
        source: TartError,
    },
    /// It is not there, and the Pod forbids to fetch it.
    #[error("image `{0}` is not on this host and `imagePullPolicy: Never` forbids to pull it")]
    NeverPull(String),
    /// tart was asked whether it has it, and failed.
    #[error("cannot look for image `{image}`")]
    Look {
        /// The image as the Pod names it.
        image: String,
        /// Why.
        #[source]
        source: TartError,
    },
}

impl ImageError {
    /// The kubelet's word for the failure.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Pull { .. } => "ErrImagePull",
            Self::NeverPull(_) => "ErrImageNeverPull",
            Self::Look { .. } => "ImageInspectError",
        }
    }
}

/// What was done to have an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// The image, exactly.
    pub digest: ImageDigest,
    /// Whether it had to be asked for at its registry.
    pub pulled: bool,
}

/// The images of this host.
#[derive(Debug)]
pub struct Images {
    tart: Tart,
    /// One entry per reference; its lock is held while that image is looked for, so that it is fetched once.
    known: Mutex<HashMap<String, Arc<AsyncMutex<Option<ImageDigest>>>>>,
}

impl Images {
    /// The images that `tart` keeps.
    pub fn new(tart: Tart) -> Self {
        Self { tart, known: Mutex::default() }
    }

    /// Has an image ready for cloning.
    pub async fn ensure(&self, image: &str, policy: PullPolicy) -> Result<Image, ImageError> {
        let entry = self.entry(image);
        let mut known = entry.lock().await;
        let present = match (&*known, policy) {
            // A tag can have moved; only the registry knows.
            (_, PullPolicy::Always) => None,
            (Some(digest), _) => Some(digest.clone()),
            (None, _) => self.cached(image).await?,
        };
        let (digest, pulled) = match (present, policy) {
            (Some(digest), _) => (digest, false),
            (None, PullPolicy::Never) => return Err(ImageError::NeverPull(image.to_owned())),
            (None, _) => (self.pull(image).await?, true),
        };
        *known = Some(digest.clone());
        Ok(Image { digest, pulled })
    }

    /// Forgets where an image was last seen, after a clone of it has failed.
    pub async fn forget(&self, image: &str) {
        *self.entry(image).lock().await = None;
    }

    async fn pull(&self, image: &str) -> Result<ImageDigest, ImageError> {
        self.tart.pull(image).await.map_err(|source| ImageError::Pull { image: image.to_owned(), source })?;
        self.cached(image).await?.ok_or_else(|| ImageError::NeverPull(image.to_owned()))
    }

    async fn cached(&self, image: &str) -> Result<Option<ImageDigest>, ImageError> {
        self.tart
            .cached_digest(image)
            .await
            .map_err(|source| ImageError::Look { image: image.to_owned(), source })
    }

    fn entry(&self, image: &str) -> Arc<AsyncMutex<Option<ImageDigest>>> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.entry(image.to_owned()).or_default().clone()
    }
}
