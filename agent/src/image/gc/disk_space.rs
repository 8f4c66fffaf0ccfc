//! Free disk space, for every requester that finds the disk full: image pulls, VMs, logs, volumes, steps of a worker, and the Node.
//!
//! One policy holds for all of them:
//!
//! - The agent deletes images, and only if they are on the disk that is full.
//! - One deletion serves all requesters that found the disk full together ([`super::pass_queue`]).
//! - What was deleted once for a requester has to be enough ([`super::space_limit`]).
//! - [`SpaceResult`] has the words for the user.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use super::pass_queue::PassCount;
use super::space_limit::VmSpaceLimit;
use super::{ImageCollector, PassStage, SpaceResult};
use crate::image::ImageError;
use crate::names::{Restart, full_name};

/// Frees disk space. With `--disable-vm-gc` it deletes nothing.
#[derive(Debug, Clone)]
pub(crate) struct DiskSpace(Option<Arc<ImageCollector>>);

/// A requester that lacks disk space.
#[derive(Debug)]
pub(crate) enum SpaceRequest<'a> {
    /// An image whose pull, base VM or record did not fit. For any other error nothing is deleted.
    Image { name: &'a str, error: &'a ImageError },
    /// A VM of a Pod.
    Vm { restart: Restart, limit: &'a mut VmSpaceLimit },
    /// What writes to a path, and limits its requests itself.
    Path(&'a Path),
    /// The Node. `since` is from before its disks were measured. If it is not short, images go by the watermarks alone.
    Node { is_short: bool, since: PassCount },
}

impl DiskSpace {
    pub(crate) fn new(collector: Option<Arc<ImageCollector>>) -> Self {
        Self(collector)
    }

    /// Deletes images until there is more space, if any may be deleted for this requester.
    pub(crate) async fn free(&self, request: SpaceRequest<'_>) -> SpaceResult {
        let Some(collector) = &self.0 else { return SpaceResult::Disabled };
        let tart_home = collector.images.tart.home();
        match request {
            SpaceRequest::Image { name, error } => {
                let (name, Some(path)) = (full_name(name), error.full_disk(tart_home)) else {
                    return SpaceResult::NoCandidate;
                };
                if collector.image_limits.is_too_early(&name, Instant::now()) {
                    return SpaceResult::TooEarly;
                }
                collector.free_space(path, Some(name)).await
            }
            SpaceRequest::Vm { restart, limit } => {
                if limit.allows(restart) {
                    collector.free_space(tart_home, None).await
                } else {
                    SpaceResult::NotEnough
                }
            }
            SpaceRequest::Path(path) => collector.free_space(path, None).await,
            SpaceRequest::Node { is_short, since } => {
                let stage = if is_short { PassStage::Requested } else { PassStage::Routine };
                collector.pass(stage, since, None).await
            }
        }
    }

    /// How many passes have freed space until now.
    pub(crate) fn passes(&self) -> PassCount {
        self.0.as_ref().map(|collector| collector.passes()).unwrap_or_default()
    }

    /// An image and its base VM are ready: what was deleted for the image was enough.
    pub(crate) fn image_is_ready(&self, image: &str) {
        if let Some(collector) = &self.0 {
            collector.image_limits.reset(&full_name(image));
        }
    }
}
