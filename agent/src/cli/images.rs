//! Flags for images and the room that they take.

use clap::Args;

/// Flags for images and the room that they take.
#[derive(Debug, Clone, Args)]
pub struct ImageArgs {
    /// How many images are pulled at the same time; tart itself pulls only one at a time from each registry
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=16))]
    pub max_parallel_image_pulls: u16,
}
