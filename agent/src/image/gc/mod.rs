//! Which images may go when the disk fills up, as the kubelet has it: from the high watermark on, the least recently used first, until
//! the low watermark is reached.
//!
//! Free space is what the volume says after each deletion. Nothing else tells: an image, its base VM and the VMs of Pods share blocks.

mod collector;
mod deletion;
mod pass_queue;
mod retry_delay;
mod space_result;
#[cfg(test)]
mod tests;

pub(crate) use collector::{ImageCollector, Pass, Rules, survey};
pub(crate) use pass_queue::Moment;
pub(crate) use space_result::SpaceResult;

use std::time::Duration;

use jiff::Timestamp;

use crate::names::BaseName;
use crate::names::ImageDigest;
use crate::os::availability::Availability;

/// When images are collected, in percent of the volume that is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Watermarks {
    high: u8,
    low: u8,
}

/// Watermarks that make no sense.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "--image-gc-low-threshold {low} must be below --image-gc-high-threshold {high}, and neither can be more than 100"
)]
pub(crate) struct BadWatermarks {
    high: u8,
    low: u8,
}

impl Watermarks {
    /// Collection begins at `high` and ends at `low`.
    pub(crate) fn new(high: u8, low: u8) -> Result<Self, BadWatermarks> {
        if low < high && high <= 100 { Ok(Self { high, low }) } else { Err(BadWatermarks { high, low }) }
    }

    /// Whether so much is full that collection begins.
    pub(crate) fn is_reached(self, space: Availability) -> bool {
        // As for the kubelet, all of a volume is 100 %, and such a threshold means never.
        self.high < 100 && space.available <= Self::left(space.total, self.high)
    }

    /// Whether enough is free for it to end.
    fn is_left(self, space: Availability) -> bool {
        space.available >= Self::left(space.total, self.low)
    }

    fn left(total: u64, full: u8) -> u64 {
        let left = u128::from(total) * u128::from(100u8.saturating_sub(full)) / 100;
        u64::try_from(left).unwrap_or(u64::MAX)
    }
}

/// Why, or how far into it, images are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ImageUse {
    /// Nobody has asked: something goes when the high watermark is reached.
    Routine,
    /// Somebody has run out of space: one image goes, whatever the watermarks say.
    Wanted,
    /// Something has gone: more does until the low watermark is reached.
    Going,
}

/// All that a decision rests on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ImageGcObservation {
    /// The images that the agent has brought here. Those of others are not in it, so nothing can become of them.
    pub(crate) images: Vec<Image>,
    /// How full the volume is; unknown when it cannot be measured.
    pub(crate) space: Option<Availability>,
    /// When to begin and when to end.
    pub(crate) watermarks: Watermarks,
    /// How long an image stays at least.
    pub(crate) min_age: Duration,
    /// Why this is asked.
    pub(crate) stage: ImageUse,
    /// The time of the observation.
    pub(crate) now: Timestamp,
}

/// An image with its base VM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Image {
    /// Which one it is.
    pub(crate) digest: ImageDigest,
    /// When it came.
    pub(crate) pulled_at: Timestamp,
    /// When a Pod last needed it.
    pub(crate) last_used_at: Timestamp,
    /// Whether there is a base VM of it.
    pub(crate) has_base: bool,
    /// Who needs it.
    pub(crate) need: Need,
}

/// Who needs an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// Nobody.
    None,
    /// A VM that was made from it, or is planned, is not deleted yet.
    Vm,
    /// A Pod is about to start, or it is being pulled.
    Start,
    /// Nobody knows: there is a VM of which it is not known what it was made from.
    Unknown,
}

/// What becomes of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ImageVerdict {
    /// It may go.
    Delete,
    /// It stays.
    Keep(ImageVerdictReason),
}

/// Why an image stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ImageVerdictReason {
    /// There is room enough.
    Room,
    /// A VM was made from it.
    InUse,
    /// A Pod is about to start, or it is being pulled.
    Starting,
    /// It may be that a VM was made from it.
    Unknown,
    /// It came a moment ago.
    Young,
    /// It is the only one that is left to clone from.
    Last,
}

impl ImageVerdictReason {
    /// All of them.
    pub(crate) const ALL: [Self; 6] =
        [Self::Room, Self::InUse, Self::Starting, Self::Unknown, Self::Young, Self::Last];

    /// One word, for figures.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Room => "room",
            Self::InUse => "in-use",
            Self::Starting => "starting",
            Self::Unknown => "unknown",
            Self::Young => "young",
            Self::Last => "last",
        }
    }

    /// The reason in words.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Room => "the disk has room",
            Self::InUse => "a VM that was made from it is still there",
            Self::Starting => "a Pod is about to start from it, or it is being pulled",
            Self::Unknown => "there is a VM of which it is not known what it was made from",
            Self::Young => "it was pulled a moment ago",
            Self::Last => "it is the only image that is left",
        }
    }
}

/// What becomes of each image, in the order in which they go. One deletion changes the world: it is asked again after each.
pub(crate) fn choose(world: &ImageGcObservation) -> Vec<(ImageDigest, ImageVerdict)> {
    let mut images: Vec<&Image> = world.images.iter().collect();
    images.sort_by_key(|image| (image.last_used_at, image.pulled_at, &image.digest));
    let mut verdicts: Vec<(&Image, ImageVerdict)> =
        images.iter().map(|image| (*image, verdict(world, image))).collect();
    let stays =
        |(image, verdict): &(&Image, ImageVerdict)| image.has_base && *verdict != ImageVerdict::Delete;
    if !verdicts.iter().any(stays) {
        // The most recent one of those with a base, or else of all.
        let last = verdicts.iter().rposition(|(image, _)| image.has_base);
        if let Some((_, verdict)) =
            last.or_else(|| verdicts.len().checked_sub(1)).and_then(|at| verdicts.get_mut(at))
        {
            *verdict = match *verdict {
                ImageVerdict::Delete => ImageVerdict::Keep(ImageVerdictReason::Last),
                kept @ ImageVerdict::Keep(_) => kept,
            };
        }
    }
    verdicts.into_iter().map(|(image, verdict)| (image.digest.clone(), verdict)).collect()
}

/// Whether the base VM of an image goes with it: not while another image that is known has the same. Two repositories can have one and
/// the same image.
fn takes_base_along<'a>(image: &ImageDigest, known: impl IntoIterator<Item = &'a ImageDigest>) -> bool {
    let base = BaseName::of(image);
    !known.into_iter().any(|other| other != image && BaseName::of(other) == base)
}

fn verdict(world: &ImageGcObservation, image: &Image) -> ImageVerdict {
    let keep = match image.need {
        Need::Vm => Some(ImageVerdictReason::InUse),
        Need::Start => Some(ImageVerdictReason::Starting),
        Need::Unknown => Some(ImageVerdictReason::Unknown),
        Need::None if world.now < image.pulled_at + world.min_age => Some(ImageVerdictReason::Young),
        Need::None if !wants_room(world) => Some(ImageVerdictReason::Room),
        Need::None => None,
    };
    keep.map_or(ImageVerdict::Delete, ImageVerdict::Keep)
}

fn wants_room(world: &ImageGcObservation) -> bool {
    match (world.stage, world.space) {
        (ImageUse::Wanted, _) => true,
        (ImageUse::Routine, Some(space)) => world.watermarks.is_reached(space),
        (ImageUse::Going, Some(space)) => !world.watermarks.is_left(space),
        (ImageUse::Routine | ImageUse::Going, None) => false,
    }
}
