//! Files out of objects: which key is at which path, with which mode.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use k8s_openapi::api::core::v1::{ConfigMap, DownwardAPIVolumeFile, KeyToPath, Pod, Secret};

use super::{Payload, PayloadFile};
use crate::node::resources::Amounts;
use crate::pod::downward::{self, DownwardError};

/// Longer names and paths are refused, as the kubelet does.
const LONGEST_NAME: usize = 255;
const LONGEST_PATH: usize = 4096;

/// Files that no volume can hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadFiles {
    /// A `ConfigMap` lacks a key.
    #[error("configmap references non-existent config key: {0}")]
    NoConfigMapKey(String),
    /// A Secret lacks a key.
    #[error("references non-existent secret key: {0}")]
    NoSecretKey(String),
    /// The Pod cannot tell something of itself.
    #[error(transparent)]
    Downward(#[from] DownwardError),
    /// A path leads elsewhere, or nowhere.
    #[error("invalid path `{path}`: {problem}")]
    Path {
        /// The path.
        path: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A path is to be a file and a directory.
    #[error("conflicting paths: `{}` cannot be a file, since `{}` is to be below it", .0.display(), .1.display())]
    Conflict(PathBuf, PathBuf),
}

/// The permission bits of a volume's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileMode(u32);

impl FileMode {
    pub(super) fn of(mode: i32) -> Self {
        // Files are neither set-user-id nor sticky, and the API server knows no other bits.
        Self(mode.cast_unsigned() & 0o777)
    }

    fn or(self, own: Option<i32>) -> Self {
        own.map_or(self, Self::of)
    }

    pub(super) fn bits(self) -> u32 {
        self.0
    }
}

/// The files of a `ConfigMap`: all its keys, or those that `items` name.
pub(super) fn config_map_files(
    object: &ConfigMap,
    items: &[KeyToPath],
    mode: FileMode,
    optional: bool,
) -> Result<Payload, BadFiles> {
    let text = object.data.iter().flatten().map(|(key, value)| (key.as_str(), value.as_bytes()));
    let binary = object.binary_data.iter().flatten().map(|(key, value)| (key.as_str(), value.0.as_slice()));
    // Text comes last, to count: no key should be in both.
    let data = binary.chain(text).collect();
    select(&data, items, mode, optional, BadFiles::NoConfigMapKey)
}

/// The files of a Secret: all its keys, or those that `items` name.
pub(super) fn secret_files(
    object: &Secret,
    items: &[KeyToPath],
    mode: FileMode,
    optional: bool,
) -> Result<Payload, BadFiles> {
    let data = object.data.iter().flatten().map(|(key, value)| (key.as_str(), value.0.as_slice())).collect();
    select(&data, items, mode, optional, BadFiles::NoSecretKey)
}

fn select(
    data: &BTreeMap<&str, &[u8]>,
    items: &[KeyToPath],
    mode: FileMode,
    optional: bool,
    missing: fn(String) -> BadFiles,
) -> Result<Payload, BadFiles> {
    let file = |bytes: &[u8], mode: FileMode| PayloadFile { bytes: bytes.to_vec(), mode: mode.bits() };
    let mut files = BTreeMap::new();
    if items.is_empty() {
        files.extend(data.iter().map(|(key, bytes)| (PathBuf::from(key), file(bytes, mode))));
    }
    for item in items {
        match data.get(item.key.as_str()) {
            Some(bytes) => {
                files.insert(PathBuf::from(&item.path), file(bytes, mode.or(item.mode)));
            }
            None if optional => {}
            None => return Err(missing(item.key.clone())),
        }
    }
    Ok(Payload(files))
}

/// The files in which a Pod tells of itself.
pub(super) fn downward_files(
    items: &[DownwardAPIVolumeFile],
    pod: &Pod,
    mode: FileMode,
    allocatable: &Amounts,
) -> Result<Payload, BadFiles> {
    let mut files = BTreeMap::new();
    for item in items {
        let text = if let Some(field) = &item.field_ref {
            downward::metadata(&field.field_path, pod)?
        } else if let Some(resource) = &item.resource_field_ref {
            downward::resource(resource, pod, None, allocatable)?
        } else {
            String::new()
        };
        let file = PayloadFile { bytes: text.into_bytes(), mode: mode.or(item.mode).bits() };
        files.insert(PathBuf::from(&item.path), file);
    }
    Ok(Payload(files))
}

/// All files of a volume. As in the kubelet, a later source's file counts where two have the same path.
pub(super) fn merge(parts: impl IntoIterator<Item = Payload>) -> Result<Payload, BadFiles> {
    let mut files: BTreeMap<PathBuf, PayloadFile> = BTreeMap::new();
    for (path, file) in parts.into_iter().flat_map(|part| part.0) {
        files.insert(clean(&path)?, file);
    }
    // Sorted by component, what is below a path follows it directly.
    for (path, next) in files.keys().zip(files.keys().skip(1)) {
        if next.starts_with(path) {
            return Err(BadFiles::Conflict(path.clone(), next.clone()));
        }
    }
    Ok(Payload(files))
}

/// A path that stays below its volume, without `.` and empty parts.
fn clean(path: &Path) -> Result<PathBuf, BadFiles> {
    let bad = |problem| BadFiles::Path { path: path.display().to_string(), problem };
    let text = path.as_os_str();
    if text.len() > LONGEST_PATH {
        return Err(bad("it is too long"));
    }
    if text.as_encoded_bytes().contains(&0) {
        return Err(bad("it has a NUL byte"));
    }
    let mut cleaned = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) if name.len() > LONGEST_NAME => {
                return Err(bad("a part of it is too long"));
            }
            // The names that the writer of volumes uses for itself begin so.
            Component::Normal(name)
                if cleaned.as_os_str().is_empty() && name.as_encoded_bytes().starts_with(b"..") =>
            {
                return Err(bad("it must not begin with `..`"));
            }
            Component::Normal(name) => cleaned.push(name),
            Component::CurDir => {}
            Component::ParentDir => return Err(bad("it must not contain `..`")),
            Component::RootDir | Component::Prefix(_) => return Err(bad("it must be relative")),
        }
    }
    if cleaned.as_os_str().is_empty() { Err(bad("it must not be empty")) } else { Ok(cleaned) }
}
