//! Flags for images and the room that they take.

use std::time::Duration;

use clap::Args;

use crate::duration;
use crate::gc::images::{BadWatermarks, Rules, Watermarks};

/// Flags for images and the room that they take.
#[derive(Debug, Clone, Args)]
pub struct ImageArgs {
    /// How many images are pulled at the same time; tart itself pulls only one at a time from each registry
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=16))]
    pub max_parallel_image_pulls: u16,

    /// From how many percent of the volume of tart's home images are deleted to make room: those that the agent itself has pulled
    /// and that no Pod needs, the least recently used first; 100 for never, unless there is no space at all
    #[arg(long, default_value_t = 85, value_parser = clap::value_parser!(u8).range(1..=100))]
    pub image_gc_high_threshold: u8,

    /// Down to how many percent
    #[arg(long, default_value_t = 80, value_parser = clap::value_parser!(u8).range(0..=99))]
    pub image_gc_low_threshold: u8,

    /// How long an image stays at least after it was pulled
    #[arg(long, default_value = "2m", value_parser = duration::parse)]
    pub minimum_image_ttl_duration: Duration,
}

impl ImageArgs {
    /// When images are collected.
    pub fn rules(&self) -> Result<Rules, BadWatermarks> {
        let watermarks = Watermarks::new(self.image_gc_high_threshold, self.image_gc_low_threshold)?;
        Ok(Rules { watermarks, min_age: self.minimum_image_ttl_duration })
    }
}
