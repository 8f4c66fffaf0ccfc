//! Why an image cannot be had.

use std::path::Path;
use std::sync::Arc;

use crate::fs::file::FileError;
use crate::tart::{Fault, TartError};

/// An image that cannot be had.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum ImageError {
    /// tart could not fetch it.
    #[error("cannot pull image `{image}`{}", .source.fault().map_or("", Fault::advice))]
    Pull {
        /// The image as the Pod names it.
        image: String,
        /// Why.
        #[source]
        source: Arc<TartError>,
    },
    /// It is not there, and the Pod forbids to fetch it.
    #[error("image `{0}` is not on this host and `imagePullPolicy: Never` forbids to pull it")]
    NeverPull(String),
    /// It was there a moment ago.
    #[error("image `{0}` was pulled, and then deleted by somebody else")]
    Vanished(String),
    /// tart was asked whether it has it, and failed.
    #[error("cannot look for image `{image}`")]
    Look {
        /// The image as the Pod names it.
        image: String,
        /// Why.
        #[source]
        source: Arc<TartError>,
    },
    /// It is there, but no VM can be made from it.
    #[error("cannot make a VM from image `{image}`{}", .source.fault().map_or("", Fault::advice))]
    Base {
        /// The image as the Pod names it.
        image: String,
        /// Why.
        #[source]
        source: Arc<TartError>,
    },
    /// What is about to be pulled could not be written down, so nobody would know whose it is.
    #[error("cannot note down the pull of image `{image}`")]
    Record {
        /// The image as the Pod names it.
        image: String,
        /// Why.
        #[source]
        source: Arc<FileError>,
    },
    /// The task that fetched it has died.
    #[error("the pull of image `{0}` was interrupted")]
    Interrupted(String),
}

impl ImageError {
    /// The kubelet's word for the failure.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::Pull { .. }
            | Self::Vanished(_)
            | Self::Base { .. }
            | Self::Record { .. }
            | Self::Interrupted(_) => "ErrImagePull",
            Self::NeverPull(_) => "ErrImageNeverPull",
            Self::Look { .. } => "ImageInspectError",
        }
    }

    /// Whether there was no room for it.
    pub(crate) fn is_for_want_of_space(&self) -> bool {
        self.full_place(Path::new("/")).is_some()
    }

    /// Where there was no room, if that was in the way: in tart's home, or where the agent keeps its record.
    pub(crate) fn full_place<'a>(&'a self, tart_home: &'a Path) -> Option<&'a Path> {
        match self {
            Self::Pull { source, .. } | Self::Base { source, .. } | Self::Look { source, .. } => {
                (source.fault() == Some(Fault::NoSpace)).then_some(tart_home)
            }
            Self::Record { source, .. } => source.is_for_want_of_space().then(|| source.path()),
            Self::NeverPull(_) | Self::Vanished(_) | Self::Interrupted(_) => None,
        }
    }
}
