//! Deleting an image: its base VM, and its directory in tart's cache.

use tokio::task::spawn_blocking;

use super::collector::{ImageCollector, names};
use super::takes_base_along;
use crate::crash_point;
use crate::fs::blocking_io::within;
use crate::fs::file::FileError;
use crate::fs::freed_space::{LOOK_LIMIT, freed, measure};
use crate::image::ownership::KnownImage;
use crate::names::{BaseName, ImageDigest};
use crate::tart::TartError;

impl ImageCollector {
    /// Deletes an image: its base VM, unless another image has the same, and what the agent has pulled. Both have to go, because they
    /// share blocks. `None` when a Pod needs the image.
    ///
    /// The record forgets it last. If the agent dies in between, the next one finishes the deletion.
    pub(super) async fn delete(&self, digest: &ImageDigest) -> Result<Option<u64>, DeleteError> {
        let Some(known) = self.images.known().into_iter().find(|known| known.digest == *digest) else {
            return Ok(None);
        };
        let Some(_guard) = self.images.pins.begin_deletion(names(&known)) else { return Ok(None) };
        // No Pod can start from it now, so that this look is the last one.
        if self.images.state.bases_in_use()?.is_none_or(|in_use| in_use.contains(&known.base())) {
            return Ok(None);
        }
        let before = measure(self.images.tart.home()).await;
        let others = self.images.known();
        if takes_base_along(digest, others.iter().map(|other| &other.digest)) {
            self.delete_base(known.base()).await?;
        }
        crash_point::point("agent.collect.base");
        self.delete_cached(&known).await?;
        crash_point::point("agent.collect.image");
        self.images.forget_deleted(digest);
        self.images.refresh().await;
        Ok(Some(freed(self.images.tart.home(), before).await))
    }

    async fn delete_base(&self, base: BaseName) -> Result<(), DeleteError> {
        self.images.tart.delete_base(&base).await?;
        crash_point::point("agent.collect.rest");
        let tart = self.images.tart.clone();
        let removed = spawn_blocking(move || tart.remove_rest_of_base(&base)).await;
        removed.map_err(std::io::Error::other).flatten().map_err(DeleteError::Rest)
    }

    /// Deletes the tags by which the agent has pulled an image, and then the image, unless it has tags of other programs.
    async fn delete_cached(&self, known: &KnownImage) -> Result<(), DeleteError> {
        if !self.is_left(known) {
            return Ok(());
        }
        let (own, _) = self.tags(known).await?;
        for tag in &own {
            self.images.tart.delete_image(tag).await?;
            crash_point::point("agent.collect.tag");
        }
        // tart deletes the image with its last tag, unless tart was killed in between, or the image was pulled by its digest.
        let by_digest = known.digest.to_string();
        let is_foreign =
            || !known.names.contains(&by_digest) && self.images.tart.is_explicitly_pulled(&known.digest);
        if !self.is_left(known) || is_foreign() || self.tags(known).await? != (Vec::new(), Vec::new()) {
            return Ok(());
        }
        self.images.tart.delete_image(&by_digest).await?;
        if self.is_left(known) { Err(DeleteError::StillThere) } else { Ok(()) }
    }

    /// Whether the cache still has the directory that the agent has pulled.
    fn is_left(&self, known: &KnownImage) -> bool {
        known.is_own(self.images.tart.image_inode(&known.digest))
    }

    /// The tags that lead to an image: those by which the agent has pulled it, and all others.
    async fn tags(&self, known: &KnownImage) -> Result<(Vec<String>, Vec<String>), DeleteError> {
        let tart = self.images.tart.clone();
        let cached = within(LOOK_LIMIT, move || tart.cached_images()).await;
        let mut cached = cached.ok_or(DeleteError::DiskSilent)?.map_err(DeleteError::Look)?.into_iter();
        // An incomplete image has no tags.
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
    DiskSilent,
    #[error("tart has deleted it, and it is still there")]
    StillThere,
}
