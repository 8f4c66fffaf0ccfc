//! Images that are pulled without a Pod: by `tart-kubelet images pull`, or by the Node's annotation.

use std::sync::Arc;

use super::gc::{DiskSpace, SpaceRequest, SpaceResult};
use super::{ImageError, ImageStore};
use crate::names::image::check_name;
use crate::names::{BaseName, ImageDigest};
use crate::tart::Credential;

#[derive(Debug, Clone)]
pub(crate) struct ImageManager {
    pub(crate) images: Arc<ImageStore>,
    pub(crate) disk_space: DiskSpace,
}

impl ImageManager {
    /// Pulls an image and clones its base VM. When the disk is full, the agent frees space and tries once more.
    ///
    /// `on_progress` gets the percentage that has arrived.
    pub(crate) async fn ensure(
        &self,
        name: &str,
        credentials: &[Credential],
        mut on_progress: impl FnMut(u8),
    ) -> Result<ImageDigest, ImageError> {
        check_name(name)?;
        let mut ready = self.try_once(name, credentials, &mut on_progress).await;
        if let Err(error) = &ready
            && self.disk_space.free(SpaceRequest::Image { name, error }).await == SpaceResult::Freed
        {
            ready = self.try_once(name, credentials, &mut on_progress).await;
        }
        if ready.is_ok() {
            self.disk_space.image_is_ready(name);
        }
        ready
    }

    async fn try_once(
        &self,
        name: &str,
        credentials: &[Credential],
        mut on_progress: impl FnMut(u8),
    ) -> Result<ImageDigest, ImageError> {
        let mut pin = self.images.pin(name).await;
        let digest = loop {
            let digest = self.images.pull(name, credentials.to_vec(), &mut on_progress).await?.digest;
            // False if the agent was deleting the image: it is pulled again.
            if pin.hold(&BaseName::of(&digest).to_string()).await {
                break digest;
            }
        };
        // The user who names it here grants it to all Pods.
        self.images.grant(&digest, None);
        self.images.base(name, &digest).await?;
        Ok(digest)
    }
}
