//! Collecting images when the disk fills up, by the kubelet's rules: from the high watermark on, the least recently used first, until the
//! low watermark is reached. [`choose`] decides. [`DiskSpace`] is how the rest of the agent asks for space.
//!
//! The agent measures free space on the disk after each deletion. Sizes of files do not tell: an image, its base VM and the VMs of Pods
//! share blocks.

mod collector;
mod deletion;
mod disk_space;
mod pass_queue;
mod space_limit;
mod space_result;
#[cfg(test)]
mod tests;

pub(crate) use collector::{ImageCollector, ImageGcPolicy, verdicts};
pub(crate) use disk_space::{DiskSpace, SpaceRequest};
pub(crate) use space_limit::{VmSpaceLimit, VolumeSpaceLimit};
pub(crate) use space_result::SpaceResult;

use collector::Pass;

use std::time::Duration;

use jiff::Timestamp;

use crate::names::ImageDigest;
use crate::os::availability::Availability;

/// When images are collected, in percent of the disk that is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Watermarks {
    high: u8,
    low: u8,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "--image-gc-low-threshold {low} must be below --image-gc-high-threshold {high}, and neither can be more than 100"
)]
pub(crate) struct BadWatermarks {
    high: u8,
    low: u8,
}

impl Watermarks {
    pub(crate) fn new(high: u8, low: u8) -> Result<Self, BadWatermarks> {
        if low < high && high <= 100 { Ok(Self { high, low }) } else { Err(BadWatermarks { high, low }) }
    }

    /// Whether so much is full that collection begins.
    fn is_high_reached(self, space: Availability) -> bool {
        // As for the kubelet, a threshold of 100 % means never.
        self.high < 100 && space.available <= Self::free_at(space.total, self.high)
    }

    /// Whether enough is free for it to end.
    fn is_low_reached(self, space: Availability) -> bool {
        space.available >= Self::free_at(space.total, self.low)
    }

    fn free_at(total: u64, full: u8) -> u64 {
        let free = u128::from(total) * u128::from(100u8.saturating_sub(full)) / 100;
        u64::try_from(free).unwrap_or(u64::MAX)
    }
}

/// Whether a disk has so little left that a requester may have found it full: less than an image may need beyond what has arrived of it.
fn is_short(space: Availability) -> bool {
    space.available < 20 << 30 || space.available <= Watermarks::free_at(space.total, 85)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PassStage {
    /// Without a request, images go if the high watermark is reached.
    Routine,
    /// A requester has found the disk full: one image goes, whatever the watermarks say.
    Requested,
    /// An image has gone: more go until the low watermark is reached.
    Continued,
}

/// All that a decision rests on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ImageGcObservation {
    /// The images that the agent has pulled. Images of other programs are left out, so that they are never deleted.
    pub(crate) images: Vec<Image>,
    /// `None` when the disk cannot be measured.
    pub(crate) space: Option<Availability>,
    pub(crate) watermarks: Watermarks,
    pub(crate) min_age: Duration,
    pub(crate) stage: PassStage,
    pub(crate) now: Timestamp,
}

/// An image with its base VM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Image {
    pub(crate) digest: ImageDigest,
    pub(crate) pulled_at: Timestamp,
    pub(crate) last_used_at: Timestamp,
    pub(crate) has_base: bool,
    pub(crate) need: Need,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    None,
    /// A VM that was made from it, or that is planned.
    Vm,
    /// A Pod that is about to start, or a pull.
    Start,
    /// There is a VM whose image the agent does not know.
    Unknown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ImageVerdict {
    Delete,
    Keep(ImageVerdictReason),
}

words! {
    /// Why an image is kept; the words are the values of the label in metrics.
    #[derive(PartialOrd, Ord)]
    pub(crate) enum ImageVerdictReason {
        EnoughSpace = "room",
        InUse = "in-use",
        Starting = "starting",
        Unknown = "unknown",
        Young = "young",
        Last = "last",
    }
}

impl ImageVerdictReason {
    /// The reason for the user.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::EnoughSpace => "the disk has room",
            Self::InUse => "a VM that was made from it is still there",
            Self::Starting => "a Pod is about to start from it, or it is being pulled",
            Self::Unknown => "there is a VM of which it is not known what it was made from",
            Self::Young => "it was pulled a moment ago",
            Self::Last => "it is the only image that is left",
        }
    }
}

/// The verdict on each image, in the order in which they go. The collector observes and asks again after each deletion.
pub(crate) fn choose(observation: &ImageGcObservation) -> Vec<(ImageDigest, ImageVerdict)> {
    let mut images: Vec<&Image> = observation.images.iter().collect();
    images.sort_by_key(|image| (image.last_used_at, image.pulled_at, &image.digest));
    let mut verdicts: Vec<(&Image, ImageVerdict)> =
        images.iter().map(|image| (*image, verdict(observation, image))).collect();
    let stays =
        |(image, verdict): &(&Image, ImageVerdict)| image.has_base && *verdict != ImageVerdict::Delete;
    if !verdicts.iter().any(stays) {
        // The most recent image with a base stays, or else the most recent of all.
        let last = verdicts.iter().rposition(|(image, _)| image.has_base);
        let last = last.or_else(|| verdicts.len().checked_sub(1));
        if let Some((_, verdict @ ImageVerdict::Delete)) = last.and_then(|at| verdicts.get_mut(at)) {
            *verdict = ImageVerdict::Keep(ImageVerdictReason::Last);
        }
    }
    verdicts.into_iter().map(|(image, verdict)| (image.digest.clone(), verdict)).collect()
}

fn verdict(observation: &ImageGcObservation, image: &Image) -> ImageVerdict {
    let is_young = observation.now < image.pulled_at + observation.min_age;
    ImageVerdict::Keep(match image.need {
        Need::Vm => ImageVerdictReason::InUse,
        Need::Start => ImageVerdictReason::Starting,
        Need::Unknown => ImageVerdictReason::Unknown,
        Need::None if is_young => ImageVerdictReason::Young,
        Need::None if !lacks_space(observation) => ImageVerdictReason::EnoughSpace,
        Need::None => return ImageVerdict::Delete,
    })
}

fn lacks_space(observation: &ImageGcObservation) -> bool {
    match (observation.stage, observation.space) {
        (PassStage::Requested, _) => true,
        (PassStage::Routine, Some(space)) => observation.watermarks.is_high_reached(space),
        (PassStage::Continued, Some(space)) => !observation.watermarks.is_low_reached(space),
        (PassStage::Routine | PassStage::Continued, None) => false,
    }
}
