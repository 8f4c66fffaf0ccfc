//! Flags for images and their disk space.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::{AgentArgs, examples};
use crate::duration;
use crate::image::gc::{BadWatermarks, ImageGcPolicy, Watermarks};
use crate::install::doctor::Format;
use crate::names::image::{BadImageName, check_name};

/// Flags for images and their disk space.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Images and their disk space")]
pub(crate) struct ImageArgs {
    /// How many images are pulled at the same time; tart itself pulls only one at a time from each registry
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=16))]
    pub(crate) max_parallel_image_pulls: u16,

    /// The agent deletes images when tart's volume is this full, in percent. It deletes images that it has pulled itself and that no Pod
    /// needs, the least recently used first. 100: only when there is no space at all
    #[arg(long, default_value_t = 85, value_parser = clap::value_parser!(u8).range(1..=100))]
    pub(crate) image_gc_high_threshold: u8,

    /// The agent deletes images until tart's volume is this full, in percent
    #[arg(long, default_value_t = 80, value_parser = clap::value_parser!(u8).range(0..=99))]
    pub(crate) image_gc_low_threshold: u8,

    /// The least age of an image that the agent deletes
    #[arg(long, default_value = "2m", value_parser = duration::parse)]
    pub(crate) minimum_image_ttl_duration: Duration,
}

/// Sub-commands for images. The agent's flags mean the same here.
#[derive(Debug, Subcommand)]
pub(crate) enum ImagesCommand {
    /// Pulls images as the agent does for a Pod, through the agent if it runs. The agent owns them from then on, and deletes an unused
    /// one when the disk fills up
    #[command(args_override_self = true, after_help = examples::IMAGES_PULL)]
    Pull(Box<PullArgs>),
    /// Shows the images on this host, the VMs that use them, and whether the agent pulled them
    #[command(args_override_self = true, after_help = examples::IMAGES_LIST)]
    List(Box<ListArgs>),
}

/// Which images to pull, with credentials. Each registry gets only its own credentials.
#[derive(Debug, Args)]
pub(crate) struct PullArgs {
    /// Names of images, such as `ghcr.io/cirruslabs/macos-sequoia-base:latest`
    #[arg(required = true, value_parser = remote_name)]
    pub(crate) image: Vec<String>,
    /// A file with credentials for registries, as `docker login` writes it; `TART_REGISTRY_HOSTNAME`, `TART_REGISTRY_USERNAME` and
    /// `TART_REGISTRY_PASSWORD` serve, too
    #[arg(long)]
    pub(crate) docker_config: Option<PathBuf>,
    /// For whom the progress is
    #[arg(long, short, value_enum, default_value_t = Format::Text)]
    pub(crate) output: Format,
    /// The flags that the agent is started with.
    #[command(flatten)]
    pub(crate) agent: AgentArgs,
}

/// Flags of `images list`.
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// For whom the table is
    #[arg(long, short, value_enum, default_value_t = Format::Text)]
    pub(crate) output: Format,
    /// The flags that the agent is started with.
    #[command(flatten)]
    pub(crate) agent: AgentArgs,
}

fn remote_name(text: &str) -> Result<String, BadImageName> {
    check_name(text).map(|()| text.to_owned())
}

impl ImageArgs {
    /// When the agent deletes images.
    pub(crate) fn gc_policy(&self) -> Result<ImageGcPolicy, BadWatermarks> {
        let watermarks = Watermarks::new(self.image_gc_high_threshold, self.image_gc_low_threshold)?;
        Ok(ImageGcPolicy { watermarks, min_age: self.minimum_image_ttl_duration })
    }
}
