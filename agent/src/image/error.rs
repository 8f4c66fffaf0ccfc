//! Why an image is not ready.

use std::path::Path;
use std::sync::Arc;

use crate::fs::file::FileError;
use crate::names::ImageDigest;
use crate::names::image::BadImageName;
use crate::tart::{ContentError, Fault, TartError};

#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum ImageError {
    #[error(transparent)]
    BadName(#[from] BadImageName),
    /// A pin is a promise about the content, which this registry does not keep.
    #[error(
        "the registry answers with {found} when it is asked for `{image}`: that is another image, and no Pod gets it by this name"
    )]
    WrongDigest { image: String, found: ImageDigest },
    /// Its registry, or another image in tart's cache, has given tart other content.
    #[error("image `{image}` is not what its digest says, and no VM is made of it; {next}")]
    Altered {
        image: String,
        /// What happens to it now.
        next: String,
        #[source]
        source: Arc<ContentError>,
    },
    #[error("cannot check whether image `{0}` is what its digest says")]
    Unchecked(String, #[source] Arc<ContentError>),
    #[error("cannot pull image `{0}`{advice}", advice = .1.fault().map_or("", Fault::advice))]
    Pull(String, #[source] Arc<TartError>),
    #[error("image `{0}` is not on this host and `imagePullPolicy: Never` forbids to pull it")]
    NeverPull(String),
    #[error("image `{0}` was pulled, and then deleted by another program")]
    Vanished(String),
    /// tart could not tell whether it is cached.
    #[error("cannot look for image `{0}`")]
    Look(String, #[source] Arc<TartError>),
    /// tart could not clone its base VM.
    #[error("cannot make a VM from image `{0}`{advice}", advice = .1.fault().map_or("", Fault::advice))]
    Base(String, #[source] Arc<TartError>),
    /// Without the record the agent would not know the image as its own.
    #[error("cannot note down the pull of image `{0}`")]
    Record(String, #[source] Arc<FileError>),
    /// The task that pulled it has died.
    #[error("the pull of image `{0}` was interrupted")]
    Interrupted(String),
}

impl ImageError {
    /// The kubelet's word for the failure.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::BadName(_) => "InvalidImageName",
            Self::NeverPull(_) => "ErrImageNeverPull",
            Self::Look(..) => "ImageInspectError",
            Self::WrongDigest { .. }
            | Self::Altered { .. }
            | Self::Unchecked(..)
            | Self::Pull(..)
            | Self::Vanished(_)
            | Self::Base(..)
            | Self::Record(..)
            | Self::Interrupted(_) => "ErrImagePull",
        }
    }

    pub(crate) fn is_for_want_of_space(&self) -> bool {
        self.full_disk(Path::new("/")).is_some()
    }

    /// A path on the disk that was full, if one was: tart's home, or the agent's record.
    pub(super) fn full_disk<'a>(&'a self, tart_home: &'a Path) -> Option<&'a Path> {
        match self {
            Self::Pull(_, source) | Self::Base(_, source) | Self::Look(_, source) => {
                (source.fault() == Some(Fault::NoSpace)).then_some(tart_home)
            }
            Self::Record(_, source) => source.is_for_want_of_space().then(|| source.path()),
            Self::BadName(_)
            | Self::WrongDigest { .. }
            | Self::Altered { .. }
            | Self::Unchecked(..)
            | Self::NeverPull(_)
            | Self::Vanished(_)
            | Self::Interrupted(_) => None,
        }
    }
}
