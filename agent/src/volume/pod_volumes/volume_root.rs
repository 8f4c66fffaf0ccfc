//! Where a volume is: its directory on the host, and the part of it that a container mounts.

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
use crate::volume::share::tart_can_say;
use crate::volume::sub_path::{SubPathError, Unusable, locate};

const EMPTY_DIR_MODE: u32 = 0o777;
const CONTENT_MODE: u32 = 0o755;

/// Where a volume is.
#[derive(Debug)]
pub(super) struct VolumeRoot {
    pub(super) path: PathBuf,
    pub(super) writable: bool,
    /// Which directory it is, when it is not one of the agent's own.
    pub(super) place: Option<DirIdentity>,
    /// The directory, unless its files are the agent's own.
    dir: Option<Dir>,
}

impl VolumeRoot {
    /// Makes the directory of a volume. Directories are made here and nowhere else: what is removed stays so.
    pub(super) fn lay(
        uid: &PodUid,
        pod_dir: &Path,
        volume: &Volume,
        host_paths: &HostPaths,
    ) -> Result<Self, MountFailure> {
        if let Some(source) = &volume.host_path {
            let prepared = host_paths.prepare(source, uid);
            let HostDir { dir, path, place, writable } =
                prepared.map_err(|error| MountFailure::of_host(&volume.name, &error))?;
            return Ok(Self { path, writable, place: Some(place), dir: Some(dir) });
        }
        let is_empty_dir = volume.empty_dir.is_some();
        let mode = if is_empty_dir { EMPTY_DIR_MODE } else { CONTENT_MODE };
        let path = pod_dir.join(&volume.name);
        let made = make(pod_dir, &volume.name, mode).and_then(|dir| {
            let problem =
                "tart cannot share what is in this agent's --state-dir: it has a `:` or a `,` in its path";
            if tart_can_say(&path) { Ok(dir) } else { Err(io::Error::other(problem)) }
        });
        let dir = made.map_err(|error| MountFailure::new(&volume.name, &error))?;
        Ok(Self { path, writable: is_empty_dir, place: None, dir: is_empty_dir.then_some(dir) })
    }
}

/// Opens or makes a volume below a directory that only this user can enter.
fn make(pod_dir: &Path, volume: &str, mode: u32) -> io::Result<Dir> {
    let (Some(parent), Some(name)) = (pod_dir.parent(), pod_dir.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    Dir::trusted(parent)?.open_or_create(name, 0o700)?.open_or_create(volume.as_ref(), mode)
}

/// A part of a volume that a container mounts.
pub(super) struct Part<'a> {
    /// Which; empty for all of it.
    pub(super) sub_path: String,
    pub(super) volume: &'a str,
    pub(super) container: &'a str,
    /// Whether no container before this one has the volume.
    pub(super) is_first: bool,
    /// The share by which the guest can write to the volume, if it can.
    pub(super) writable: Option<String>,
}

impl Part<'_> {
    /// Where in a share it is, and what is done when it is not there. The host looks for what is there before the VM runs, and
    /// makes it. What containers before this one may make, or what has the guest's address in its name, is for the guest to
    /// look for: a link that leads out of the volume leads nowhere but into that guest.
    pub(super) fn placed(self, ground: &VolumeRoot) -> Result<(String, Missing), SubPathError> {
        if self.sub_path.is_empty() {
            return Ok((self.sub_path, Missing::Awaited));
        }
        // Files of the agent's own are as they are; as for the kubelet, one that is missing is an empty directory.
        let Some(dir) = &ground.dir else { return Ok((self.sub_path, Missing::Empty)) };
        let has_address = self.sub_path.contains(POD_IP);
        let missing = match self.writable.clone() {
            Some(share) => {
                let mode =
                    dir.this().map_err(|error| self.unusable(Unusable::Elsewhere(error)))?.mode & 0o777;
                Missing::Made { share, mode }
            }
            None => Missing::Awaited,
        };
        match &missing {
            Missing::Made { .. } if has_address || !self.is_first => Ok((self.sub_path, missing)),
            _ if has_address => Err(SubPathError::Address),
            _ => {
                let found = locate(dir, &self.sub_path, ground.writable);
                let path = found.and_then(|path| {
                    let not_text = |_| Unusable::Elsewhere(io::ErrorKind::InvalidData.into());
                    path.into_os_string().into_string().map_err(not_text)
                });
                // The same container may have removed it before it is tried again.
                Ok((path.map_err(|why| self.unusable(why))?, missing))
            }
        }
    }

    /// The path may be made of variables, and those of Secrets: it is in no log.
    fn unusable(&self, why: Unusable) -> SubPathError {
        let (volume, container) = (self.volume.to_owned(), self.container.to_owned());
        match why {
            Unusable::Uncreatable(error) => {
                warn!(volume, container, %error, "cannot make the subPath");
                SubPathError::Create { volume, container }
            }
            Unusable::Elsewhere(error) => {
                warn!(volume, container, %error, "cannot use the subPath");
                SubPathError::Prepare { volume, container }
            }
        }
    }
}
