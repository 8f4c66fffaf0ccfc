//! Deleting an image that the agent has pulled from tart's cache.

use super::ImageStore;
use super::ownership::KnownImage;
use crate::crash_point;
use crate::fs::blocking_io::{LOOK_LIMIT, within};
use crate::fs::file::FileError;
use crate::tart::TartError;

impl ImageStore {
    /// Deletes the tags by which the agent has pulled an image, and then the image, unless it has tags of other programs.
    pub(super) async fn delete_cached(&self, known: &KnownImage) -> Result<(), DeleteError> {
        if !self.is_left(known) {
            return Ok(());
        }
        let (own, _) = self.tags(known).await?;
        for tag in &own {
            self.tart.delete_image(tag).await?;
            crash_point::point("agent.collect.tag");
        }
        // tart deletes the image with its last tag, unless tart was killed in between, or the image was pulled by its digest.
        let by_digest = known.digest.to_string();
        let is_foreign =
            || !known.names.contains(&by_digest) && self.tart.is_explicitly_pulled(&known.digest);
        if !self.is_left(known) || is_foreign() || self.tags(known).await? != (Vec::new(), Vec::new()) {
            return Ok(());
        }
        self.tart.delete_image(&by_digest).await?;
        if self.is_left(known) { Err(DeleteError::StillThere) } else { Ok(()) }
    }

    /// Whether the cache still has the directory that the agent has pulled.
    fn is_left(&self, known: &KnownImage) -> bool {
        known.is_own(self.tart.image_inode(&known.digest))
    }

    /// The tags that lead to an image: those by which the agent has pulled it, and all others.
    async fn tags(&self, known: &KnownImage) -> Result<(Vec<String>, Vec<String>), DeleteError> {
        let tart = self.tart.clone();
        let cached = within(LOOK_LIMIT, move || tart.cached_images()).await;
        let mut cached = cached.ok_or(DeleteError::DiskSilent)?.map_err(DeleteError::Look)?.into_iter();
        // An incomplete image has no tags.
        let tags = cached.find(|image| image.digest == known.digest).map(|image| image.tags);
        Ok(tags.unwrap_or_default().into_iter().partition(|tag| known.names.contains(tag)))
    }
}

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
