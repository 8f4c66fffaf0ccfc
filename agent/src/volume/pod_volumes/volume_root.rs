//! The directory of a volume on the host, and the subPath of it that a container mounts.

use std::io;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::Volume;
use tracing::warn;

use super::MountFailure;
use crate::fs::dir::Dir;
use crate::fs::dir_identity::DirIdentity;
use crate::names::PodUid;
use crate::state::{Missing, POD_IP};
use crate::volume::host_path::{HostDir, HostPaths};
use crate::volume::share::is_shareable;
use crate::volume::sub_path::{SubPathError, Unusable, locate};

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

/// The subPath of a volume that a container mounts.
pub(super) struct SubPathMount<'a> {
    /// Empty for the whole volume.
    pub(super) sub_path: String,
    pub(super) volume: &'a str,
    pub(super) container: &'a str,
    /// Whether no earlier container mounts the volume.
    pub(super) is_first: bool,
    /// The share by which the guest can write to the volume, if it can.
    pub(super) writable: Option<String>,
}

impl SubPathMount<'_> {
    /// The path in the share, and what the guest does if it is missing. The agent finds or creates a path before the VM runs. The guest finds
    /// a path that earlier containers may create, or that has the guest's address: a link out of the volume then leads into that guest only.
    pub(super) fn resolve(self, root: &VolumeRoot) -> Result<(String, Missing), SubPathError> {
        if self.sub_path.is_empty() {
            return Ok((self.sub_path, Missing::Awaited));
        }
        // The agent writes the files of this volume. As for the kubelet, a missing one is an empty directory.
        let Some(dir) = &root.dir else { return Ok((self.sub_path, Missing::Empty)) };
        let has_address = self.sub_path.contains(POD_IP);
        let missing = match self.writable.clone() {
            Some(share) => {
                let mode =
                    dir.this().map_err(|error| self.unusable(Unusable::NotMountable(error)))?.mode & 0o777;
                Missing::Made { share, mode }
            }
            None => Missing::Awaited,
        };
        match &missing {
            Missing::Made { .. } if has_address || !self.is_first => Ok((self.sub_path, missing)),
            _ if has_address => Err(SubPathError::Address),
            _ => {
                let found = locate(dir, &self.sub_path, root.writable);
                let path = found.and_then(|path| {
                    let not_text = |_| Unusable::NotMountable(io::ErrorKind::InvalidData.into());
                    path.into_os_string().into_string().map_err(not_text)
                });
                // The container may remove it before its next start.
                Ok((path.map_err(|why| self.unusable(why))?, missing))
            }
        }
    }

    /// The path may have values of Secrets, so that it is in no log.
    fn unusable(&self, why: Unusable) -> SubPathError {
        let (volume, container) = (self.volume.to_owned(), self.container.to_owned());
        match why {
            Unusable::NotCreatable(error) => {
                warn!(volume, container, %error, "cannot create the subPath");
                SubPathError::Create { volume, container }
            }
            Unusable::NotMountable(error) => {
                warn!(volume, container, %error, "cannot use the subPath");
                SubPathError::Prepare { volume, container }
            }
        }
    }
}
