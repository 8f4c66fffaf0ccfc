//! A directory of the host that `tart run --dir` gives to the guest.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::fs::dir_identity::DirIdentity;

/// A directory of the host that the guest sees at `/Volumes/My Shared Files/<name>`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Share {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    pub(crate) read_only: bool,
    /// The directory's identity, where a guest could put another one in its place. The plan of an older agent has none.
    pub(crate) identity: Option<DirIdentity>,
}
