//! The directory of a volume on the host, and the subPath of it that a container mounts.

use std::io;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::Volume;

use super::MountFailure;
use crate::fs::dir::Dir;
use crate::fs::dir_identity::DirIdentity;
use crate::names::PodUid;
use crate::state::{Missing, POD_IP};
use crate::volume::host_path::{HostDir, HostPaths};
use crate::volume::share::is_shareable;
use crate::volume::sub_path::{Unusable, locate};

const EMPTY_DIR_MODE: u32 = 0o777;
const CONTENT_MODE: u32 = 0o755;

/// The directory of a volume on the host.
#[derive(Debug)]
pub(super) struct VolumeRoot {
    pub(super) path: PathBuf,
    pub(super) writable: bool,
    /// The identity of a hostPath.
    pub(super) identity: Option<DirIdentity>,
    /// The open directory, unless the agent writes the files of the volume.
    dir: Option<Dir>,
}

impl VolumeRoot {
    /// Creates the directory of a volume. The agent creates them only here, so that a removed one stays removed.
    pub(super) fn create(
        uid: &PodUid,
        pod_dir: &Path,
        volume: &Volume,
        host_paths: &HostPaths,
    ) -> Result<Self, MountFailure> {
        if let Some(source) = &volume.host_path {
            let prepared = host_paths.prepare(source, uid);
            let HostDir { dir, path, identity, writable } =
                prepared.map_err(|error| MountFailure::of_host(&volume.name, &error))?;
            return Ok(Self { path, writable, identity: Some(identity), dir: Some(dir) });
        }
        let is_empty_dir = volume.empty_dir.is_some();
        let mode = if is_empty_dir { EMPTY_DIR_MODE } else { CONTENT_MODE };
        let path = pod_dir.join(&volume.name);
        let created = open_or_create(pod_dir, &volume.name, mode).and_then(|dir| {
            let problem =
                "tart cannot share what is in this agent's --state-dir: it has a `:` or a `,` in its path";
            if is_shareable(&path) { Ok(dir) } else { Err(io::Error::other(problem)) }
        });
        let dir = created.map_err(|error| MountFailure::new(&volume.name, &error))?;
        Ok(Self { path, writable: is_empty_dir, identity: None, dir: is_empty_dir.then_some(dir) })
    }
}

/// Opens or creates a volume below a directory that only this user can enter.
fn open_or_create(pod_dir: &Path, volume: &str, mode: u32) -> io::Result<Dir> {
    let (Some(parent), Some(name)) = (pod_dir.parent(), pod_dir.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    Dir::trusted(parent)?.open_or_create(name, 0o700)?.open_or_create(volume.as_ref(), mode)
}

impl VolumeRoot {
    /// The subPath of the volume that a container mounts, and what the guest does if it is missing. The agent finds or creates a path before
    /// the VM runs. The guest finds a path that earlier containers may create (`is_first` says that none mounts the volume), or that has
    /// the guest's address: a link out of the volume then leads into that guest only. `writable` is the share by which the guest can
    /// write to the volume.
    pub(super) fn sub_path(
        &self,
        sub_path: String,
        is_first: bool,
        writable: Option<String>,
    ) -> Result<(String, Missing), Unusable> {
        if sub_path.is_empty() {
            return Ok((sub_path, Missing::Awaited));
        }
        // The agent writes the files of this volume. As for the kubelet, a missing one is an empty directory.
        let Some(dir) = &self.dir else { return Ok((sub_path, Missing::Empty)) };
        let has_address = sub_path.contains(POD_IP);
        let missing = match writable {
            Some(share) => {
                let mode = dir.this().map_err(Unusable::NotMountable)?.mode & 0o777;
                Missing::Made { share, mode }
            }
            None => Missing::Awaited,
        };
        match &missing {
            Missing::Made { .. } if has_address || !is_first => Ok((sub_path, missing)),
            _ if has_address => Err(Unusable::Address),
            _ => {
                let path = locate(dir, &sub_path, self.writable)?;
                let not_text = |_| Unusable::NotMountable(io::ErrorKind::InvalidData.into());
                // The container may remove it before its next start.
                Ok((path.into_os_string().into_string().map_err(not_text)?, missing))
            }
        }
    }
}
