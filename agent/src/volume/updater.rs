//! Keeps the files of one volume as the objects that they are made of want them.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tracing::{info, warn};

use super::Payload;
use super::atomic_writer::{self, AtomicWriteError};
use super::content::Content;
use super::error::VolumeError;
use crate::fs::dir::Dir;

const FIRST_RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_mins(1);

/// How it stands with the files of a volume.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct VolumeUpdater {
    /// Whether there are any, perhaps old ones.
    pub(super) written: bool,
    /// Why they are not as they are to be.
    pub(super) problem: Option<VolumeError>,
}

/// Writes the files of the volume `name` below `volumes`, and writes them again whenever they are to change. The volume must
/// be there already: one that is not was removed, and must not come back.
pub(super) async fn fill(volumes: PathBuf, name: String, mut content: Content, tell: impl Fn(VolumeUpdater)) {
    let mut filling = VolumeUpdater::default();
    let mut delay = FIRST_RETRY;
    loop {
        match write(&volumes, &name, &mut content).await {
            Ok(Written::Gone) => return,
            Ok(Written::Now) if filling.written => info!(volume = name, "the volume's files have changed"),
            Ok(Written::Now | Written::Already) => {}
            Err(problem) => {
                if filling.problem.as_ref() != Some(&problem) {
                    warn!(volume = name, %problem, "cannot fill the volume; trying again");
                }
                filling.problem = Some(problem);
                tell(filling.clone());
                // An object that appears is heard of; a disk that has room again is not.
                tokio::select! {
                    () = content.changed() => {}
                    () = sleep(delay) => {}
                }
                delay = (delay * 2).min(LONGEST_RETRY);
                continue;
            }
        }
        delay = FIRST_RETRY;
        filling = VolumeUpdater { written: true, problem: None };
        tell(filling.clone());
        content.changed().await;
    }
}

enum Written {
    Now,
    Already,
    Gone,
}

async fn write(volumes: &Path, name: &str, content: &mut Content) -> Result<Written, VolumeError> {
    let payload = content.payload().await.map_err(|error| VolumeError::of(&error))?;
    let (volumes, name) = (volumes.to_owned(), name.to_owned());
    let written = spawn_blocking(move || write_files(&volumes, &name, &payload)).await;
    written.map_err(|error| VolumeError::of(&error))?.map_err(|error| VolumeError::of(&error))
}

fn write_files(volumes: &Path, name: &str, payload: &Payload) -> Result<Written, AtomicWriteError> {
    let volumes = match Dir::trusted(volumes) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Written::Gone),
        opened => opened?,
    };
    match volumes.find(name.as_ref())? {
        None => Ok(Written::Gone),
        Some(root) => Ok(if atomic_writer::write(&root, payload)? { Written::Now } else { Written::Already }),
    }
}
