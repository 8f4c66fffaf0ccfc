//! Updates the files of one volume when the objects that they are made of change.

use std::io;
use std::path::{Path, PathBuf};

use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tracing::{info, warn};

use super::Payload;
use super::atomic_writer::{self, AtomicWriteError};
use super::content::Content;
use super::error::VolumeError;
use crate::backoff::VOLUME_UPDATE;
use crate::fs::dir::Dir;

/// Whether the files of a volume are up to date.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct VolumeStatus {
    /// Whether the volume has files, perhaps old ones.
    pub(super) written: bool,
    /// Why they are not up to date.
    pub(super) problem: Option<VolumeError>,
}

/// Writes the files of the volume `name` below `volumes`, and writes them again whenever they change. The directory must exist: one that does
/// not was removed, and must not come back.
pub(super) async fn update(
    volumes: PathBuf,
    name: String,
    mut content: Content,
    report: impl Fn(VolumeStatus),
) {
    let mut status = VolumeStatus::default();
    let mut delays = VOLUME_UPDATE.delays();
    loop {
        match write(&volumes, &name, &mut content).await {
            Ok(Written::Removed) => return,
            Ok(Written::Changed) if status.written => info!(volume = name, "the volume's files have changed"),
            Ok(Written::Changed | Written::Unchanged) => {}
            Err(problem) => {
                if status.problem.as_ref() != Some(&problem) {
                    warn!(volume = name, %problem, "cannot fill the volume; trying again");
                }
                status.problem = Some(problem);
                report(status.clone());
                // The agent watches the objects, but not the free space of the disk.
                tokio::select! {
                    () = content.changed() => {}
                    () = sleep(delays.next()) => {}
                }
                continue;
            }
        }
        delays.reset();
        status = VolumeStatus { written: true, problem: None };
        report(status.clone());
        content.changed().await;
    }
}

enum Written {
    Changed,
    Unchanged,
    Removed,
}

async fn write(volumes: &Path, name: &str, content: &mut Content) -> Result<Written, VolumeError> {
    let payload = content.payload().await.map_err(|error| VolumeError::of(&error))?;
    let (volumes, name) = (volumes.to_owned(), name.to_owned());
    let written = spawn_blocking(move || write_files(&volumes, &name, &payload)).await;
    written.map_err(|error| VolumeError::of(&error))?.map_err(|error| VolumeError::of(&error))
}

fn write_files(volumes: &Path, name: &str, payload: &Payload) -> Result<Written, AtomicWriteError> {
    let volumes = match Dir::trusted(volumes) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Written::Removed),
        opened => opened?,
    };
    match volumes.find(name.as_ref())? {
        None => Ok(Written::Removed),
        Some(root) => {
            let is_changed = atomic_writer::write(&root, payload)?;
            Ok(if is_changed { Written::Changed } else { Written::Unchanged })
        }
    }
}
