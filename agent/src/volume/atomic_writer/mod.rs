//! The files of a volume on disk, replaced all at once.
//!
//! ```text
//! ..2026_11_16_10_03_07.104250000/      one version, never changed once it is complete
//!     config.yaml
//!     certs/ca.crt
//! ..data -> ..2026_11_16_10_03_07.104250000      the current version, replaced by rename
//! config.yaml -> ..data/config.yaml
//! certs -> ..data/certs
//! ```
//!
//! A reader that has resolved `..data` once sees one version. A crash leaves the old version or the new one, and the next write removes the
//! rest of the other.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::{Payload, PayloadFile};
use crate::crash_point;
use crate::fs::dir::{Dir, EntryKind};
use crate::fs::remove::remove;

const DATA: &str = "..data";
const NEW_DATA: &str = "..data_tmp";
const DIR_MODE: u32 = 0o755;

#[derive(Debug, thiserror::Error)]
pub(crate) enum AtomicWriteError {
    /// A path that leads out of the volume, or into the writer's own names.
    #[error("`{}` is not a path inside a volume", .0.display())]
    Path(PathBuf),
    #[error("`{}` cannot be both a file and a directory", .0.display())]
    Clash(PathBuf),
    /// Two names that are the same to the host's file system: APFS is not case-sensitive by default.
    #[error("`{}` and `{}` are the same file on this host, which does not tell upper from lower case: rename one of them, or leave it out with `items`", .0.display(), .1.display())]
    Alike(PathBuf, PathBuf),
    #[error("cannot write the volume's files")]
    Io(#[from] io::Error),
}

/// Writes exactly the files of `payload` to the volume. Returns whether they have changed.
pub(super) fn write(root: &Dir, payload: &Payload) -> Result<bool, AtomicWriteError> {
    check(payload)?;
    let current = current(root)?;
    let files: Vec<_> = payload.0.iter().map(|(path, file)| (path.as_path(), file)).collect();
    let is_current = match &current {
        Some((_, version)) => holds_files(version, &files)?,
        None => false,
    };
    let version = match current {
        Some((name, _)) if is_current => name,
        _ => {
            let name = write_version(root, payload)?;
            crash_point::point("agent.volume.written");
            publish(root, &name)?;
            crash_point::point("agent.volume.published");
            name
        }
    };
    let tops: BTreeSet<&OsStr> = payload.0.keys().filter_map(|path| path.iter().next()).collect();
    link_names(root, &tops)?;
    // Removes the rest: names of files that are gone, the last version, and what crashes and guests have left.
    for name in root.names()? {
        let name = name?;
        if name != DATA && name != version && !tops.contains(name.as_os_str()) {
            remove(root, &name)?;
        }
    }
    Ok(!is_current)
}

fn check(payload: &Payload) -> Result<(), AtomicWriteError> {
    for path in payload.0.keys() {
        let stays_inside = path.components().all(|part| matches!(part, Component::Normal(_)));
        // The names of the writer begin with `..`.
        let is_reserved = path.as_os_str().as_bytes().starts_with(b"..");
        // `components` ignores a slash at the end, which a file must not have.
        let is_plain = path.iter().collect::<PathBuf>().as_os_str() == path.as_os_str();
        if path.as_os_str().is_empty() || !stays_inside || is_reserved || !is_plain {
            return Err(AtomicWriteError::Path(path.clone()));
        }
        if let Some(file) = path.ancestors().skip(1).find(|above| payload.0.contains_key(*above)) {
            return Err(AtomicWriteError::Clash(file.to_owned()));
        }
    }
    Ok(())
}

fn current(root: &Dir) -> io::Result<Option<(OsString, Dir)>> {
    // A guest may have replaced the link, so only the name of a version counts.
    let is_version = |name: &OsString| name.as_bytes().starts_with(b"..") && name != DATA && name != NEW_DATA;
    let Some(name) = root.read_link(OsStr::new(DATA))?.filter(is_version) else { return Ok(None) };
    Ok(root.open(&name).ok().map(|version| (name, version)))
}

/// Whether a directory has exactly these files.
fn holds_files(dir: &Dir, files: &[(&Path, &PayloadFile)]) -> io::Result<bool> {
    if dir.this()?.mode != DIR_MODE {
        return Ok(false);
    }
    let mut expected = BTreeSet::new();
    let mut rest = files;
    while let Some((path, file)) = rest.first() {
        let mut parts = path.iter();
        let Some(top) = parts.next() else { return Ok(false) };
        // Paths are sorted by their parts, so that the files of one directory are next to each other.
        let count = rest.iter().take_while(|(path, _)| path.starts_with(top)).count();
        let (inside, after) = rest.split_at(count);
        let matches = if parts.as_path().as_os_str().is_empty() {
            holds_file(dir, top, file)?
        } else {
            let inner: Vec<_> = inside
                .iter()
                .filter_map(|(path, file)| Some((path.strip_prefix(top).ok()?, *file)))
                .collect();
            match dir.open(top) {
                Ok(inner_dir) => holds_files(&inner_dir, &inner)?,
                Err(_) => false,
            }
        };
        if !matches {
            return Ok(false);
        }
        expected.insert(top);
        rest = after;
    }
    for name in dir.names()? {
        if !expected.contains(name?.as_os_str()) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn holds_file(dir: &Dir, name: &OsStr, file: &PayloadFile) -> io::Result<bool> {
    let fits =
        dir.entry(name)?.is_some_and(|entry| entry.kind == EntryKind::File && entry.mode == mode_of(file));
    // One byte more than the file should have is enough to compare.
    let at_most = u64::try_from(file.bytes.len()).unwrap_or(u64::MAX).saturating_add(1);
    if !fits {
        return Ok(false);
    }
    match dir.read(name, at_most) {
        Ok(bytes) => Ok(bytes.is_some_and(|bytes| bytes == file.bytes)),
        // The owner cannot read a file with this mode: it is written again.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(false),
        Err(error) => Err(error),
    }
}

/// Writes a version to which no link leads yet.
fn write_version(root: &Dir, payload: &Payload) -> Result<OsString, AtomicWriteError> {
    let (name, version) = loop {
        let now = Timestamp::now().to_zoned(TimeZone::UTC);
        let name = OsString::from(now.strftime("..%Y_%m_%d_%H_%M_%S.%9f").to_string());
        match root.create(&name, DIR_MODE) {
            // The clock was set back, or has not advanced.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => std::thread::yield_now(),
            created => break (name, created?),
        }
    };
    if let Err(error) = write_files(&version, payload) {
        // A partial version is useless, and takes space on a disk that may be full.
        let _ = remove(root, &name);
        return Err(error);
    }
    Ok(name)
}

fn write_files(version: &Dir, payload: &Payload) -> Result<(), AtomicWriteError> {
    for (path, file) in &payload.0 {
        match write_file(version, path, file) {
            // Only the agent writes to a new version, so that another path of the payload has this name.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let other = payload.0.keys().find(|other| *other != path && is_alike(other, path));
                return Err(other.map_or(AtomicWriteError::Io(error), |other| {
                    AtomicWriteError::Alike(other.clone(), path.clone())
                }));
            }
            written => written?,
        }
    }
    Ok(())
}

fn write_file(version: &Dir, path: &Path, file: &PayloadFile) -> io::Result<()> {
    let mut inner = None;
    let mut parts = path.iter().peekable();
    while let Some(part) = parts.next() {
        let dir = inner.as_ref().unwrap_or(version);
        if parts.peek().is_some() {
            inner = Some(dir.open_or_create(part, DIR_MODE)?);
        } else {
            dir.write(part, &file.bytes, mode_of(file))?;
        }
    }
    Ok(())
}

/// Whether two paths differ in upper and lower case only.
fn is_alike(one: &Path, other: &Path) -> bool {
    let folded = |path: &Path| path.to_string_lossy().to_lowercase();
    folded(one) == folded(other)
}

/// Makes a version the current one, atomically.
fn publish(root: &Dir, version: &OsStr) -> io::Result<()> {
    let (data, new) = (OsStr::new(DATA), OsStr::new(NEW_DATA));
    remove(root, new)?;
    root.link(version, new)?;
    // A link cannot replace a directory. The agent never creates one there, but a guest may have.
    if root.entry(data)?.is_some_and(|entry| entry.kind == EntryKind::Directory) {
        remove(root, data)?;
    }
    root.rename(new, root, data)
}

/// Links each name that the user sees to the current version.
fn link_names(root: &Dir, tops: &BTreeSet<&OsStr>) -> io::Result<()> {
    for top in tops {
        let target = Path::new(DATA).join(top);
        if root.read_link(top)?.as_deref() != Some(target.as_os_str()) {
            remove(root, top)?;
            root.link(target.as_os_str(), top)?;
        }
    }
    Ok(())
}

fn mode_of(file: &PayloadFile) -> u32 {
    file.mode & 0o777
}
