//! The check of an image's content, once for each image, before the first VM is made of it. An image with a base VM has passed it.

use std::sync::Arc;
use std::time::Instant;

use tracing::{info, warn};

use super::{ImageError, ImageStore};
use crate::error_chain::chain;
use crate::mutex::lock;
use crate::names::ImageDigest;
use crate::tart::{CheckedContent, ContentError};

impl ImageStore {
    /// Compares the files of an image with its manifest, unless the record says that they were. If they differ, the agent deletes the image,
    /// provided that it has pulled it itself.
    pub(super) async fn check_content(&self, image: &str, digest: &ImageDigest) -> Result<(), ImageError> {
        let inode = self.tart.image_inode(digest);
        let is_checked = || lock(&self.record).is_checked(digest, inode);
        if is_checked() {
            return Ok(());
        }
        // One at a time: a second one would only slow down the first.
        let _guard = self.content_check.lock().await;
        if is_checked() {
            return Ok(());
        }
        let begun = Instant::now();
        match self.tart.check_content(digest).await {
            Ok(checked) => {
                let seconds = begun.elapsed().as_secs_f64();
                match checked {
                    CheckedContent::Whole => info!(%digest, seconds, "the image is what its digest says"),
                    CheckedContent::RewrittenManifest => info!(
                        %digest,
                        seconds,
                        "the image is what its manifest says; tart has rewritten the manifest, and alone knows that it has this digest"
                    ),
                    CheckedContent::NoManifest if self.is_own(digest, inode) => {
                        let missing = ContentError::Manifest("it is missing".to_owned());
                        return Err(self.refuse(image, digest, missing).await);
                    }
                    CheckedContent::NoManifest => {
                        warn!(%digest, "another program has put the image here without its manifest: its content is not checked");
                    }
                }
                self.update(|record| record.mark_checked(digest, inode));
                Ok(())
            }
            Err(error) if error.is_of_image() => Err(self.refuse(image, digest, error).await),
            Err(error) => Err(ImageError::Unchecked(image.to_owned(), Arc::new(error))),
        }
    }

    fn is_own(&self, digest: &ImageDigest, inode: Option<u64>) -> bool {
        lock(&self.record).images.iter().any(|known| known.digest == *digest && known.is_own(inode))
    }

    async fn refuse(&self, image: &str, digest: &ImageDigest, why: ContentError) -> ImageError {
        self.forget(image);
        let inode = self.tart.image_inode(digest);
        let own = self.known().into_iter().find(|known| known.digest == *digest && known.is_own(inode));
        let next = match own {
            None => format!("another program has pulled it: delete it with `tart delete {digest}`"),
            Some(known) => match self.delete_cached(&known).await {
                Ok(()) => {
                    self.forget_deleted(digest);
                    self.refresh().await;
                    "the agent has deleted it, and pulls it again".to_owned()
                }
                Err(error) => format!("the agent cannot delete it: {}", chain(&error)),
            },
        };
        let refused = ImageError::Altered { image: image.to_owned(), next, source: Arc::new(why) };
        warn!(%digest, error = chain(&refused), "no VM is made of an image");
        refused
    }
}
