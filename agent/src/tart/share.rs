//! A directory of the host that `tart run --dir` gives to the guest.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::fs::dir_identity::DirIdentity;

/// A directory of the host that the guest sees at `/Volumes/My Shared Files/<name>`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Share {
    /// Its name in the guest.
    pub(crate) name: String,
    /// The directory on the host.
    pub(crate) path: PathBuf,
    /// Whether the guest can only read it.
    pub(crate) read_only: bool,
    /// Which directory is meant, where others than the agent could put something else in its place; the plan of an older agent
    /// does not say.
    pub(crate) place: Option<DirIdentity>,
}
