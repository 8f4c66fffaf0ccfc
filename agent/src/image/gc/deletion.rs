//! Collecting an image: its base VM, and its directory in tart's cache.

use tokio::task::spawn_blocking;

use super::collector::{ImageCollector, names};
use crate::crash_point;
use crate::fs::freed_space::{freed, measure};
use crate::image::deletion::DeleteError;
use crate::names::{BaseName, ImageDigest};

impl ImageCollector {
    /// Deletes an image: its base VM, and what the agent has pulled. Both have to go, because they share blocks. `None` when a Pod needs
    /// the image.
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
        self.delete_base(known.base()).await?;
        crash_point::point("agent.collect.base");
        self.images.delete_cached(&known).await?;
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
}
