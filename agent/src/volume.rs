//! What a Pod brings along in files: volumes, prepared on the host and shared with the guest.

mod atomic_writer;
pub(crate) mod boot_share;
pub(crate) mod content;
mod error;
mod host_path;
pub(crate) mod items;
mod memory;
pub(crate) mod pod_usage;
mod pod_volumes;
mod share;
mod size_limit;
mod sub_path;
mod updater;

pub(crate) use crate::fs::dir_identity::Place;
pub(crate) use crate::fs::disk_usage::taken;
pub(crate) use atomic_writer::TreeError;
pub(crate) use error::Problem;
pub(crate) use host_path::{AllowedHostPath, BadHostPath, HostPathError, HostPaths};
pub(crate) use pod_volumes::{MountFailure, PodVolumes, PrepareError, Prepared};
pub(crate) use size_limit::Exceeded;
pub(crate) use sub_path::SubPathError;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use crate::fs::dir::Dir;

/// The files that a volume is to hold, by their path below its root.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Payload(pub(crate) BTreeMap<PathBuf, PayloadFile>);

/// One file of a volume.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct PayloadFile {
    /// What is in it; may be secret.
    pub(crate) bytes: Vec<u8>,
    /// Its permission bits.
    pub(crate) mode: u32,
}

impl std::fmt::Debug for PayloadFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The bytes may be secret.
        write!(f, "{} bytes, {:o}", self.bytes.len(), self.mode)
    }
}

/// Removes a directory that guests could write to, with all that is in it; an absent one is fine. `parent` is one that they
/// could not reach.
pub(crate) fn remove(parent: &Path, name: &str) -> io::Result<()> {
    match Dir::trusted(parent) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        parent => crate::fs::remove::remove(&parent?, name.as_ref()),
    }
}
