//! Where a volume is: its directory on the host, and the part of it that a mount is.

use std::io;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::Volume;
use tracing::warn;

use super::MountFailure;
use crate::pod::PodUid;
use crate::volume::Place;
use crate::volume::dir::Dir;
use crate::volume::host_path::{HostDir, HostPaths};
use crate::volume::share::tart_can_say;
use crate::volume::sub_path::{SubPathError, Unusable, locate};

const EMPTY_DIR_MODE: u32 = 0o777;
const CONTENT_MODE: u32 = 0o755;

/// Where a volume is.
#[derive(Debug)]
pub(super) struct Ground {
    pub(super) path: PathBuf,
    pub(super) writable: bool,
    /// Which directory it is, when it is not one of the agent's own.
    pub(super) place: Option<Place>,
    /// The directory, unless its files are the agent's own.
    dir: Option<Dir>,
}

impl Ground {
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

/// Which part of a share a mount is.
pub(super) fn placed(
    ground: &Ground,
    sub_path: &str,
    volume: &str,
    container: &str,
) -> Result<String, SubPathError> {
    let Some(dir) = ground.dir.as_ref().filter(|_| !sub_path.is_empty()) else {
        // Files of the agent's own may come later, and be found then.
        return Ok(sub_path.to_owned());
    };
    let (volume, container) = (volume.to_owned(), container.to_owned());
    // The path may be made of variables, and those of Secrets: it is in no log.
    match locate(dir, sub_path, ground.writable) {
        Ok(path) => match path.into_os_string().into_string() {
            Ok(path) => Ok(path),
            Err(_) => Err(SubPathError::Prepare { volume, container }),
        },
        Err(Unusable::Uncreatable(error)) => {
            warn!(volume, container, %error, "cannot make the subPath");
            Err(SubPathError::Create { volume, container })
        }
        Err(Unusable::Elsewhere(error)) => {
            warn!(volume, container, %error, "cannot use the subPath");
            Err(SubPathError::Prepare { volume, container })
        }
    }
}
