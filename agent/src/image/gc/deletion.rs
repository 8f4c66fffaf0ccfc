//! The end of an image: its base VM, and what tart's cache has of it.

use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::collector::{ImageCollector, names};
use super::takes_base_along;
use crate::crash_point;
use crate::fs::file::FileError;
use crate::fs::freed_space::{LOOK_LIMIT, freed, measure};
use crate::image::ownership::KnownImage;
use crate::names::BaseName;
use crate::names::ImageDigest;
use crate::tart::TartError;

impl ImageCollector {
    /// Deletes an image: its base VM, unless another image has the same, and what the agent has pulled, for together they hold the
    /// blocks. `None` when it is needed.
    ///
    /// It is forgotten last, so that an agent that dies in between is followed by one that finishes it.
    pub(super) async fn delete(&self, digest: &ImageDigest) -> Result<Option<u64>, DeleteError> {
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
        crash_point::point("agent.collect.base");
        self.delete_cached(&known).await?;
        crash_point::point("agent.collect.image");
        self.images.collected(digest);
        self.images.look().await;
        Ok(Some(freed(self.tart.home(), before).await))
    }

    async fn delete_base(&self, base: BaseName) -> Result<(), DeleteError> {
        self.tart.delete_base(&base).await?;
        crash_point::point("agent.collect.rest");
        let tart = self.tart.clone();
        let removed = spawn_blocking(move || tart.remove_rest_of_base(&base)).await;
        removed.map_err(std::io::Error::other).flatten().map_err(DeleteError::Rest)
    }

    /// Takes the names that the agent has pulled an image by out of tart's cache, and the image itself. If others have names for it, it
    /// stays for them.
    async fn delete_cached(&self, known: &KnownImage) -> Result<(), DeleteError> {
        if !self.is_left(known) {
            return Ok(());
        }
        let (ours, _) = self.tags(known).await?;
        for tag in &ours {
            self.tart.delete_image(tag).await?;
            crash_point::point("agent.collect.tag");
        }
        // With its last tag tart takes the image along, unless it was cut short in between, or the image was pulled by its digest.
        let by_digest = known.digest.to_string();
        let is_theirs = || !known.names.contains(&by_digest) && self.tart.is_explicitly_pulled(&known.digest);
        if !self.is_left(known) || is_theirs() || self.tags(known).await? != (Vec::new(), Vec::new()) {
            return Ok(());
        }
        self.tart.delete_image(&by_digest).await?;
        if self.is_left(known) { Err(DeleteError::Remains) } else { Ok(()) }
    }

    /// Whether anything is left of an image that the agent has pulled.
    fn is_left(&self, known: &KnownImage) -> bool {
        known.is_ours(self.tart.image_inode(&known.digest))
    }

    /// The tags that lead to an image: those that the agent has pulled it by, and those of others.
    async fn tags(&self, known: &KnownImage) -> Result<(Vec<String>, Vec<String>), DeleteError> {
        let tart = self.tart.clone();
        let look = spawn_blocking(move || tart.cached_images());
        let Ok(Ok(cached)) = timeout(LOOK_LIMIT, look).await else { return Err(DeleteError::Late) };
        let mut cached = cached.map_err(DeleteError::Look)?.into_iter();
        // What is not whole any more has no names.
        let tags = cached.find(|image| image.digest == known.digest).map(|image| image.tags);
        Ok(tags.unwrap_or_default().into_iter().partition(|tag| known.names.contains(tag)))
    }
}

/// Why an image could not be deleted.
#[derive(Debug, thiserror::Error)]
pub(super) enum DeleteError {
    #[error(transparent)]
    State(#[from] FileError),
    #[error(transparent)]
    Tart(#[from] TartError),
    #[error("cannot remove what is left of a base VM")]
    Rest(#[source] std::io::Error),
    #[error("cannot look into tart's cache")]
    Look(#[source] std::io::Error),
    #[error("the disk has not answered within {} s", LOOK_LIMIT.as_secs())]
    Late,
    #[error("tart has deleted it, and it is still there")]
    Remains,
}
