//! `subPath` and `subPathExpr`: the part of a volume that a container mounts.

use std::collections::{BTreeSet, VecDeque};
use std::ffi::OsString;
use std::io;
use std::path::{Component, Path, PathBuf};

use k8s_openapi::api::core::v1::VolumeMount;
use tracing::warn;

use crate::env::expansion::expand;
use crate::fs::dir::{Dir, EntryKind};

/// A path with more links is taken for a loop.
const MAX_LINKS: u32 = 40;
/// Each level costs a descriptor.
const MAX_LEVELS: usize = 64;

/// A subPath that cannot be mounted, in the kubelet's words. They do not show the host's files to the user.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SubPathError {
    #[error("missing value for {0}")]
    Missing(String),
    #[error("error SubPath `{0}` must not be an absolute path")]
    Absolute(String),
    #[error("unable to provision SubPath `{0}`: must not contain '..'")]
    Backstep(String),
    #[error("a SubPath with the Pod's address is made in the guest, which can only read the volume")]
    Address,
    #[error("failed to create subPath directory for volumeMount \"{volume}\" of container \"{container}\"")]
    Create { volume: String, container: String },
    #[error("failed to prepare subPath for volumeMount \"{volume}\" of container \"{container}\"")]
    Prepare { volume: String, container: String },
}

/// The subPath of a mount; empty for the whole volume.
pub(super) fn of(
    mount: &VolumeMount,
    lookup: impl Fn(&str) -> Option<String>,
) -> Result<String, SubPathError> {
    let text = match mount.sub_path_expr.as_deref().filter(|text| !text.is_empty()) {
        Some(expression) => expanded(expression, lookup)?,
        None => mount.sub_path.clone().unwrap_or_default(),
    };
    let path = Path::new(&text);
    // The value of an expression may be secret.
    let shown = || mount.sub_path_expr.clone().filter(|it| !it.is_empty()).unwrap_or_else(|| text.clone());
    if path.is_absolute() {
        return Err(SubPathError::Absolute(shown()));
    }
    if path.components().any(|part| part == Component::ParentDir) {
        return Err(SubPathError::Backstep(shown()));
    }
    // Without `.` and doubled slashes.
    let parts = path.components().filter(|part| *part != Component::CurDir);
    let plain: Vec<_> = parts.map(|part| part.as_os_str().to_string_lossy().into_owned()).collect();
    Ok(plain.join("/"))
}

/// Unlike in commands, a variable that is unknown or empty is an error.
fn expanded(expression: &str, lookup: impl Fn(&str) -> Option<String>) -> Result<String, SubPathError> {
    let missing = std::cell::RefCell::new(BTreeSet::new());
    let text = expand(expression, |name| {
        let value = lookup(name).filter(|value| !value.is_empty());
        if value.is_none() {
            missing.borrow_mut().insert(name.to_owned());
        }
        value
    });
    let missing: Vec<_> = missing.into_inner().into_iter().collect();
    if missing.is_empty() { Ok(text) } else { Err(SubPathError::Missing(missing.join(", "))) }
}

/// Why a subPath cannot be mounted.
#[derive(Debug)]
pub(super) enum Unusable {
    /// It does not exist, and cannot be created.
    NotCreatable(io::Error),
    /// It leads out of the volume, or is neither a file nor a directory.
    NotMountable(io::Error),
    /// It has the guest's address in it, and the guest cannot create it.
    Address,
}

impl Unusable {
    /// The path may have values of Secrets, so that it is in no log.
    pub(super) fn of(self, volume: &str, container: &str) -> SubPathError {
        let (volume, container) = (volume.to_owned(), container.to_owned());
        match self {
            Self::NotCreatable(error) => {
                warn!(volume, container, %error, "cannot create the subPath");
                SubPathError::Create { volume, container }
            }
            Self::NotMountable(error) => {
                warn!(volume, container, %error, "cannot use the subPath");
                SubPathError::Prepare { volume, container }
            }
            Self::Address => SubPathError::Address,
        }
    }
}

/// Finds a subPath of a volume that guests write to, and creates missing directories with the volume's own mode. Links may lead about the
/// volume; the result has none.
pub(super) fn locate(root: &Dir, path: &str, may_create: bool) -> Result<PathBuf, Unusable> {
    let not_mountable = Unusable::NotMountable;
    let mode = root.this().map_err(not_mountable)?.mode & 0o777;
    let mut found: Vec<(OsString, Dir)> = Vec::new();
    let mut rest: VecDeque<OsString> = Path::new(path).iter().map(ToOwned::to_owned).collect();
    let mut links = 0;
    while let Some(name) = rest.pop_front() {
        if name == "." {
            continue;
        }
        if name == ".." {
            // The parent by which the agent came, because the guest may have moved the directory.
            found.pop().ok_or_else(|| not_mountable(io::Error::other("it leads out of the volume")))?;
            continue;
        }
        let here = found.last().map_or(root, |(_, dir)| dir);
        match here.entry(&name).map_err(not_mountable)?.map(|entry| entry.kind) {
            _ if found.len() == MAX_LEVELS => return Err(not_mountable(io::Error::other("it is too deep"))),
            Some(EntryKind::Directory) => {
                let inner = here.open(&name).map_err(not_mountable)?;
                found.push((name, inner));
            }
            Some(EntryKind::Link) => {
                links += 1;
                let target = here.read_link(&name).map_err(not_mountable)?.unwrap_or_default();
                let target = Path::new(&target);
                if links > MAX_LINKS || !target.is_relative() {
                    return Err(not_mountable(io::Error::other(
                        "a link leads out of the volume, or nowhere",
                    )));
                }
                for part in target.iter().rev() {
                    rest.push_front(part.to_owned());
                }
            }
            Some(EntryKind::File) if rest.is_empty() => {
                return Ok(found.into_iter().map(|(name, _)| name).chain([name]).collect());
            }
            Some(EntryKind::File | EntryKind::Other) => {
                return Err(not_mountable(io::ErrorKind::NotADirectory.into()));
            }
            None if may_create => {
                let created = here.create(&name, mode).map_err(Unusable::NotCreatable)?;
                found.push((name, created));
            }
            None => return Err(Unusable::NotCreatable(io::ErrorKind::ReadOnlyFilesystem.into())),
        }
    }
    Ok(found.into_iter().map(|(name, _)| name).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::hostile;
    use crate::testing;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn mount(sub_path: &str, expression: &str) -> VolumeMount {
        VolumeMount {
            sub_path: Some(sub_path.to_owned()),
            sub_path_expr: Some(expression.to_owned()),
            ..VolumeMount::default()
        }
    }

    #[test]
    fn expressions_are_expanded_and_paths_checked() {
        let known = |name: &str| match name {
            "POD" => Some("web-0".to_owned()),
            "ROOT" => Some("/etc".to_owned()),
            "UP" => Some("../x".to_owned()),
            "EMPTY" => Some(String::new()),
            _ => None,
        };
        let result = |sub_path: &str, expression: &str| {
            of(&mount(sub_path, expression), known).map_err(|error| error.to_string())
        };
        let table: &[(&str, &str, Result<&str, &str>)] = &[
            ("", "", Ok("")),
            ("a/b", "", Ok("a/b")),
            ("./a//b/", "", Ok("a/b")),
            (".", "", Ok("")),
            ("", "logs/$(POD)", Ok("logs/web-0")),
            ("", "$$(POD)", Ok("$(POD)")),
            ("$(POD)", "", Ok("$(POD)")),
            ("", "$(NOBODY)-$(EMPTY)", Err("missing value for EMPTY, NOBODY")),
            ("", "$(ROOT)", Err("error SubPath `$(ROOT)` must not be an absolute path")),
            ("", "a/$(UP)", Err("unable to provision SubPath `a/$(UP)`: must not contain '..'")),
            ("/a", "", Err("error SubPath `/a` must not be an absolute path")),
            ("a/..", "", Err("unable to provision SubPath `a/..`: must not contain '..'")),
            ("a..b/...", "", Ok("a..b/...")),
        ];
        for (sub_path, expression, expected) in table {
            let expected = expected.map(str::to_owned).map_err(str::to_owned);
            assert_eq!(result(sub_path, expression), expected, "{sub_path} {expression}");
        }
    }

    fn temp_volume() -> (tempfile::TempDir, Dir) {
        let temp = testing::dir();
        fs::set_permissions(temp.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let dir = Dir::trusted(temp.path()).unwrap();
        (temp, dir)
    }

    #[test]
    fn missing_directories_are_created_with_the_volumes_mode() {
        let (temp, root) = temp_volume();
        assert_eq!(locate(&root, "a/b", true).unwrap(), Path::new("a/b"));
        for made in ["a", "a/b"] {
            let mode = fs::metadata(temp.path().join(made)).unwrap().permissions().mode();
            assert_eq!(mode & 0o7777, 0o777, "{made}");
        }
        assert_eq!(locate(&root, "a/b", false).unwrap(), Path::new("a/b"));
        assert!(matches!(locate(&root, "a/c", false), Err(Unusable::NotCreatable(_))));
        fs::write(temp.path().join("a/file"), "").unwrap();
        assert_eq!(locate(&root, "a/file", true).unwrap(), Path::new("a/file"));
        assert!(locate(&root, "a/file/x", true).is_err());
    }

    #[test]
    fn links_may_lead_about_the_volume_but_not_out_of_it() {
        let (temp, root) = temp_volume();
        let (outside, _) = temp_volume();
        fs::write(outside.path().join("kept"), "").unwrap();
        fs::create_dir_all(temp.path().join("releases/3")).unwrap();
        hostile::fill(temp.path(), outside.path());
        let link = |target: &Path, name: &str| symlink(target, temp.path().join(name)).unwrap();
        link(Path::new("releases/3"), "current");
        link(Path::new("../current/.."), "releases/back");
        link(Path::new("releases/../.."), "up");
        link(Path::new("/"), "root");
        assert_eq!(locate(&root, "current/new", true).unwrap(), Path::new("releases/3/new"));
        assert_eq!(locate(&root, "releases/back", true).unwrap(), Path::new("releases"));
        for bad in
            ["up/x", "root/tmp/x", "link up/x", "link to a directory", "link to a file", "loop", "pipe"]
        {
            assert!(matches!(locate(&root, bad, true), Err(Unusable::NotMountable(_))), "{bad}");
        }
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_path_that_is_too_long_is_refused() {
        let (_temp, root) = temp_volume();
        assert!(locate(&root, &"a/".repeat(10_000), true).is_err());
    }

    #[test]
    fn no_link_is_followed_whenever_it_appears() {
        let (temp, _) = temp_volume();
        let (outside, _) = temp_volume();
        fs::create_dir(outside.path().join("inner")).unwrap();
        let before = hostile::snapshot(outside.path());
        let root = temp.path().join("v");
        hostile::at_every_moment(
            || {
                let _ = fs::remove_dir_all(&root);
                fs::create_dir_all(root.join("dir/inner")).unwrap();
            },
            hostile::replace_by_links(&root, outside.path()),
            || drop(locate(&Dir::trusted(&root).unwrap(), "dir/inner/new/newer", true)),
            || assert_eq!(hostile::snapshot(outside.path()), before),
        );
    }
}
