//! Having an image ready before any Pod needs it.

use std::sync::Arc;

use super::gc::{ImageCollector, SpaceResult};
use super::{ImageError, ImageStore};
use crate::names::BaseName;
use crate::names::ImageDigest;
use crate::tart::Credential;

/// Whether a text is the name of an image at a registry. What is not could be one of tart's flags.
pub(crate) fn is_remote_name(text: &str) -> bool {
    text.contains('/') && !text.starts_with('-') && !text.contains(char::is_whitespace)
}

/// Who has images ready.
#[derive(Debug, Clone)]
pub(crate) struct ImageManager {
    /// The images of this host.
    pub(crate) images: Arc<ImageStore>,
    /// Who makes room for them, if anybody may.
    pub(crate) collector: Option<Arc<ImageCollector>>,
}

impl ImageManager {
    /// Has an image and its base VM ready. When there is no space for it, other images go, and it is tried once more.
    ///
    /// `arrived` is told how much of it is here, in percent.
    pub(crate) async fn ready(
        &self,
        name: &str,
        credentials: &[Credential],
        mut arrived: impl FnMut(u8),
    ) -> Result<ImageDigest, ImageError> {
        let mut ready = self.try_ready(name, credentials, &mut arrived).await;
        let Some(collector) = &self.collector else { return ready };
        if let Err(error) = &ready
            && collector.make_room_for(name, error).await == SpaceResult::Room
        {
            ready = self.try_ready(name, credentials, &mut arrived).await;
        }
        if ready.is_ok() {
            collector.is_here(name);
        }
        ready
    }

    async fn try_ready(
        &self,
        name: &str,
        credentials: &[Credential],
        mut arrived: impl FnMut(u8),
    ) -> Result<ImageDigest, ImageError> {
        let mut pin = self.images.pin(name).await;
        let digest = loop {
            let digest = self.images.pull(name, credentials.to_vec(), &mut arrived).await?.digest;
            // Unless it was about to go, and what was pulled is no longer there.
            if pin.hold(&BaseName::of(&digest).to_string()).await {
                break digest;
            }
        };
        // Whoever may say what is to be here says whom it is for: all Pods.
        self.images.grant(&digest, None);
        self.images.base(name, &digest).await?;
        Ok(digest)
    }
}
