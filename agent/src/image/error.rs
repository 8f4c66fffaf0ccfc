//! Why an image is not ready.

use std::path::Path;
use std::sync::Arc;

use crate::fs::file::FileError;
use crate::tart::{Fault, TartError};

/// An image that is not ready.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum ImageError {
    /// tart could not pull it.
    #[error("cannot pull image `{image}`{}", .source.fault().map_or("", Fault::advice))]
    Pull {
        image: String,
        #[source]
        source: Arc<TartError>,
    },
    /// It is not here, and the Pod forbids to pull it.
    #[error("image `{0}` is not on this host and `imagePullPolicy: Never` forbids to pull it")]
    NeverPull(String),
    /// It was pulled, and is gone.
    #[error("image `{0}` was pulled, and then deleted by another program")]
    Vanished(String),
    /// tart could not tell whether it is cached.
    #[error("cannot look for image `{image}`")]
    Look {
        image: String,
        #[source]
        source: Arc<TartError>,
    },
    /// tart could not clone its base VM.
    #[error("cannot make a VM from image `{image}`{}", .source.fault().map_or("", Fault::advice))]
    Base {
        image: String,
        #[source]
        source: Arc<TartError>,
    },
    /// The agent could not record the pull, so that it would not know the image as its own.
    #[error("cannot note down the pull of image `{image}`")]
    Record {
        image: String,
        #[source]
        source: Arc<FileError>,
    },
    /// The task that pulled it has died.
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

    /// Whether the disk was full.
    pub(crate) fn is_for_want_of_space(&self) -> bool {
        self.full_disk(Path::new("/")).is_some()
    }

    /// A path on the disk that was full, if one was: tart's home, or the agent's record.
    pub(super) fn full_disk<'a>(&'a self, tart_home: &'a Path) -> Option<&'a Path> {
        match self {
            Self::Pull { source, .. } | Self::Base { source, .. } | Self::Look { source, .. } => {
                (source.fault() == Some(Fault::NoSpace)).then_some(tart_home)
            }
            Self::Record { source, .. } => source.is_for_want_of_space().then(|| source.path()),
            Self::NeverPull(_) | Self::Vanished(_) | Self::Interrupted(_) => None,
        }
    }
}
