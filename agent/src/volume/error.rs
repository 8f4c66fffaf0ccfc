//! Why a volume cannot be set up.

use std::error::Error;
use std::fmt;

use crate::error_chain::{self, chain};

/// Why a volume cannot be set up: words for the user, and whether the disk is full.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VolumeError {
    words: String,
    pub(crate) no_space: bool,
}

impl VolumeError {
    pub(super) fn of(error: &(dyn Error + 'static)) -> Self {
        Self { words: chain(error), no_space: error_chain::is_for_want_of_space(error) }
    }
}

impl From<&str> for VolumeError {
    fn from(words: &str) -> Self {
        Self { words: words.to_owned(), no_space: false }
    }
}

impl fmt::Display for VolumeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}
