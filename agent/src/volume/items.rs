//! The files of a volume from the keys of an object: their paths and modes.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use k8s_openapi::api::core::v1::{ConfigMap, DownwardAPIVolumeFile, KeyToPath, Pod, Secret};

use super::{Payload, PayloadFile};
use crate::env::downward::{self, DownwardError};
use crate::quantity::ResourceList;

/// Longer names and paths are refused, as the kubelet does.
const LONGEST_NAME: usize = 255;
const LONGEST_PATH: usize = 4096;

/// Files that no volume can hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadFiles {
    #[error("configmap references non-existent config key: {0}")]
    NoConfigMapKey(String),
    #[error("references non-existent secret key: {0}")]
    NoSecretKey(String),
    #[error(transparent)]
    Downward(#[from] DownwardError),
    #[error("invalid path `{path}`: {problem}")]
    Path { path: String, problem: &'static str },
    #[error("conflicting paths: `{}` cannot be a file, since `{}` is to be below it", .0.display(), .1.display())]
    Conflict(PathBuf, PathBuf),
}

/// The permission bits of a volume's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileMode(pub(super) u32);

impl FileMode {
    pub(super) fn of(mode: i32) -> Self {
        // The API server allows no bits but these, set-user-ID and sticky, which files do not get.
        Self(mode.cast_unsigned() & 0o777)
    }

    fn or(self, own: Option<i32>) -> Self {
        own.map_or(self, Self::of)
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
    // A key should not be in both; if it is, the text counts.
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
    let file = |bytes: &[u8], mode: FileMode| PayloadFile { bytes: bytes.to_vec(), mode: mode.0 };
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

pub(super) fn downward_files(
    items: &[DownwardAPIVolumeFile],
    pod: &Pod,
    mode: FileMode,
    allocatable: &ResourceList,
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
        let file = PayloadFile { bytes: text.into_bytes(), mode: mode.or(item.mode).0 };
        files.insert(PathBuf::from(&item.path), file);
    }
    Ok(Payload(files))
}

/// All files of a volume. As in the kubelet, the file of the later source counts if two have the same path.
pub(super) fn merge(parts: impl IntoIterator<Item = Payload>) -> Result<Payload, BadFiles> {
    let mut files: BTreeMap<PathBuf, PayloadFile> = BTreeMap::new();
    for (path, file) in parts.into_iter().flat_map(|part| part.0) {
        files.insert(clean(&path)?, file);
    }
    // Sorted by component, the paths below a path follow it directly.
    for (path, next) in files.keys().zip(files.keys().skip(1)) {
        if next.starts_with(path) {
            return Err(BadFiles::Conflict(path.clone(), next.clone()));
        }
    }
    Ok(Payload(files))
}

/// The path without `.` and empty parts, if it stays inside the volume.
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
            // The names of the atomic writer begin with `..`.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::from_json;
    use proptest::prelude::*;
    use serde_json::json;

    const MODE: FileMode = FileMode(0o644);

    fn config_map() -> ConfigMap {
        from_json(json!({"data": {"a": "1", "b": "2"}, "binaryData": {"c": "/w=="}}))
    }

    fn secret() -> Secret {
        from_json(json!({"data": {"a": "MQ==", "key": "/w=="}}))
    }

    /// Each file in one line: path, content, mode.
    fn shown(payload: &Payload) -> Vec<String> {
        let line = |(path, file): (&PathBuf, &PayloadFile)| {
            format!("{} {:?} {:o}", path.display(), String::from_utf8_lossy(&file.bytes), file.mode)
        };
        payload.0.iter().map(line).collect()
    }

    fn files(paths: &[&str]) -> Payload {
        let file = |path: &&str| (PathBuf::from(path), PayloadFile { bytes: Vec::new(), mode: 0o644 });
        Payload(paths.iter().map(file).collect())
    }

    #[test]
    fn a_volume_has_all_keys_or_those_of_its_items() {
        let all = config_map_files(&config_map(), &[], MODE, false).unwrap();
        assert_eq!(shown(&all), ["a \"1\" 644", "b \"2\" 644", "c \"\u{fffd}\" 644"]);
        let named: Vec<KeyToPath> =
            from_json(json!([{"key": "b", "path": "x/y", "mode": 0o400}, {"key": "c", "path": "z"}]));
        let named = config_map_files(&config_map(), &named, MODE, false).unwrap();
        assert_eq!(shown(&named), ["x/y \"2\" 400", "z \"\u{fffd}\" 644"]);
        assert_eq!(named.0[Path::new("z")].bytes, [0xff], "bytes stay as they are");
        let all = secret_files(&secret(), &[], FileMode::of(0o10_600), false).unwrap();
        assert_eq!(shown(&all), ["a \"1\" 600", "key \"\u{fffd}\" 600"]);
    }

    #[test]
    fn a_missing_key_is_an_error_unless_it_is_optional() {
        let missing: Vec<KeyToPath> =
            from_json(json!([{"key": "nope", "path": "x"}, {"key": "a", "path": "y"}]));
        let error = config_map_files(&config_map(), &missing, MODE, false).unwrap_err();
        assert_eq!(error.to_string(), "configmap references non-existent config key: nope");
        let error = secret_files(&secret(), &missing, MODE, false).unwrap_err();
        assert_eq!(error.to_string(), "references non-existent secret key: nope");
        assert_eq!(shown(&config_map_files(&config_map(), &missing, MODE, true).unwrap()), ["y \"1\" 644"]);
        assert_eq!(shown(&secret_files(&secret(), &missing, MODE, true).unwrap()), ["y \"1\" 644"]);
    }

    #[test]
    fn the_downward_api_fills_files() {
        let main = json!({"name": "main", "resources": {"limits": {"memory": "2Mi"}}});
        let metadata = json!({"name": "p", "labels": {"a": "b"}});
        let pod = from_json(json!({"metadata": metadata, "spec": {"containers": [main]}}));
        let files = |items| downward_files(&from_json::<Vec<_>>(items), &pod, MODE, &ResourceList::new());
        let memory = json!({"containerName": "main", "resource": "limits.memory", "divisor": "1Mi"});
        let payload = files(json!([
            {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}, "mode": 0o440},
            {"path": "d/memory", "resourceFieldRef": memory},
        ]));
        assert_eq!(shown(&payload.unwrap()), ["d/memory \"2\" 644", "labels \"a=\\\"b\\\"\" 440"]);
        let error = files(json!([{"path": "ip", "fieldRef": {"fieldPath": "status.podIP"}}])).unwrap_err();
        assert_eq!(error.to_string(), "unsupported fieldPath: status.podIP");
    }

    #[test]
    fn the_file_of_a_later_source_counts() {
        let one = |content: &str| {
            let file = PayloadFile { bytes: content.as_bytes().to_vec(), mode: 0o644 };
            Payload([(PathBuf::from("a"), file)].into())
        };
        let merged = merge([one("first"), files(&["./b//c"]), one("second")]).unwrap();
        assert_eq!(shown(&merged), ["a \"second\" 644", "b/c \"\" 644"]);
    }

    #[test]
    fn a_path_cannot_be_a_file_and_a_directory() {
        for (file, below) in [("a", "a/b"), ("a", "a/b/c"), ("x/y", "x/./y/z")] {
            for parts in [[file, below], [below, file]] {
                let error = merge(parts.map(|path| files(&[path, "a-b", "x.y"]))).unwrap_err();
                assert!(matches!(error, BadFiles::Conflict(..)), "{error}");
            }
        }
        assert!(merge([files(&["a/b", "a/c", "a-b", "ab", "a.b/c"])]).is_ok());
    }

    #[test]
    fn paths_stay_inside_the_volume() {
        let long = "x".repeat(256);
        let deep = "x/".repeat(2100);
        let table = ["", ".", "/a", "..", "a/..", "../a", "a/../b", "..data", "..a/b", "a\0b", &long, &deep];
        for path in table {
            let error = merge([files(&[path])]).unwrap_err();
            assert!(matches!(error, BadFiles::Path { .. }), "{path}: {error}");
        }
        for path in ["a..b", ".hidden", "a/..b"] {
            assert!(merge([files(&[path])]).is_ok(), "{path}");
        }
    }

    proptest! {
        #[test]
        fn merged_files_can_be_written(paths in proptest::collection::vec("[a./-]{0,6}", 0..6)) {
            let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
            if let Ok(merged) = merge(paths.iter().map(|path| files(&[path]))) {
                let root = tempfile::tempdir().unwrap();
                for path in merged.0.keys() {
                    prop_assert!(path.components().all(|part| matches!(part, Component::Normal(_))));
                    let path = root.path().join(path);
                    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                    std::fs::write(path, "").unwrap();
                }
            }
        }
    }
}
