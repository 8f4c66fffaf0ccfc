//! Flags for images and the room that they take.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::AgentArgs;
use crate::duration;
use crate::image::gc::{BadWatermarks, ImageGcPolicy, Watermarks};
use crate::image::manager::is_remote_name;

/// Flags for images and the room that they take.
#[derive(Debug, Clone, Args)]
pub(crate) struct ImageArgs {
    /// How many images are pulled at the same time; tart itself pulls only one at a time from each registry
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=16))]
    pub(crate) max_parallel_image_pulls: u16,

    /// From how many percent of the volume of tart's home images are deleted to make room: those that the agent itself has pulled
    /// and that no Pod needs, the least recently used first; 100 for never, unless there is no space at all
    #[arg(long, default_value_t = 85, value_parser = clap::value_parser!(u8).range(1..=100))]
    pub(crate) image_gc_high_threshold: u8,

    /// Down to how many percent
    #[arg(long, default_value_t = 80, value_parser = clap::value_parser!(u8).range(0..=99))]
    pub(crate) image_gc_low_threshold: u8,

    /// How long an image stays at least after it was pulled
    #[arg(long, default_value = "2m", value_parser = duration::parse)]
    pub(crate) minimum_image_ttl_duration: Duration,
}

/// What can be done with images by hand. The agent's own flags mean what they mean to the agent.
#[derive(Debug, Subcommand)]
pub(crate) enum ImagesCommand {
    /// Pulls images as the agent does for a Pod, through the agent if one runs. They are the agent's own from then on: one that no
    /// Pod uses goes when the disk fills up
    #[command(args_override_self = true)]
    Pull(Box<PullArgs>),
    /// Shows the images on this host, with what needs them and who has pulled them
    #[command(args_override_self = true)]
    List(Box<AgentArgs>),
}

/// Which images to pull, and what to say to their registries: each hears only what is for it.
#[derive(Debug, Args)]
pub(crate) struct PullArgs {
    /// Names of images, such as `ghcr.io/cirruslabs/macos-sequoia-base:latest`
    #[arg(required = true, value_parser = remote_name)]
    pub(crate) image: Vec<String>,
    /// A file with credentials for registries, as `docker login` writes it; `TART_REGISTRY_HOSTNAME`, `TART_REGISTRY_USERNAME` and
    /// `TART_REGISTRY_PASSWORD` serve, too
    #[arg(long)]
    pub(crate) docker_config: Option<PathBuf>,
    /// The flags that the agent is started with.
    #[command(flatten)]
    pub(crate) agent: AgentArgs,
}

fn remote_name(text: &str) -> Result<String, String> {
    if is_remote_name(text) {
        Ok(text.to_owned())
    } else {
        Err("an image at a registry has a `/` in its name, and no spaces".to_owned())
    }
}

impl ImageArgs {
    /// When images are collected.
    pub(crate) fn gc_policy(&self) -> Result<ImageGcPolicy, BadWatermarks> {
        let watermarks = Watermarks::new(self.image_gc_high_threshold, self.image_gc_low_threshold)?;
        Ok(ImageGcPolicy { watermarks, min_age: self.minimum_image_ttl_duration })
    }
}
