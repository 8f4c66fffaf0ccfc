//! A Pod's volumes, which the agent prepares on the host and shares with the guest.

#[cfg(test)]
mod api_server_tests;
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

pub(crate) use host_path::{AllowedHostPath, HostPaths};
pub(crate) use pod_volumes::{MountFailure, PodVolumes, PrepareError, Prepared};
pub(crate) use size_limit::Exceeded;

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

/// The files of a volume, by their path below its root.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Payload(pub(crate) BTreeMap<PathBuf, PayloadFile>);

#[derive(Clone, PartialEq, Eq)]
pub(crate) struct PayloadFile {
    /// May be secret.
    pub(crate) bytes: Vec<u8>,
    pub(crate) mode: u32,
}

impl std::fmt::Debug for PayloadFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The bytes may be secret.
        write!(f, "{} bytes, {:o}", self.bytes.len(), self.mode)
    }
}

/// A mount path, absolute and without doubled slashes.
pub(crate) fn guest_path(mount_path: &str) -> PathBuf {
    let parts = Path::new(mount_path).components().filter(|part| matches!(part, Component::Normal(_)));
    Path::new("/").join(parts.collect::<PathBuf>())
}
