//! The part of a volume that a container mounts: `subPath` and `subPathExpr`.

use std::collections::{BTreeSet, VecDeque};
use std::ffi::OsString;
use std::io;
use std::path::{Component, Path, PathBuf};

use k8s_openapi::api::core::v1::VolumeMount;

use crate::env::expansion::expand;
use crate::fs::dir::{Dir, EntryKind};

/// More links than this lead in a circle.
const MAX_LINKS: u32 = 40;
/// Each level costs a descriptor.
const MAX_LEVELS: usize = 64;

/// A part of a volume that cannot be mounted, in the kubelet's words. What is wrong with the host's files is not the user's to
/// know.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SubPathError {
    /// `subPathExpr` refers to variables that are not set.
    #[error("missing value for {0}")]
    Missing(String),
    /// It leads out of the volume.
    #[error("error SubPath `{0}` must not be an absolute path")]
    Absolute(String),
    /// It leads out of the volume.
    #[error("unable to provision SubPath `{0}`: must not contain '..'")]
    Backstep(String),
    /// It has the Pod's address in it, and nobody in the guest could make it.
    #[error("a SubPath with the Pod's address is made in the guest, which can only read the volume")]
    Address,
    /// The directory cannot be made.
    #[error("failed to create subPath directory for volumeMount \"{volume}\" of container \"{container}\"")]
    Create {
        /// The volume.
        volume: String,
        /// The container.
        container: String,
    },
    /// What there is cannot be mounted.
    #[error("failed to prepare subPath for volumeMount \"{volume}\" of container \"{container}\"")]
    Prepare {
        /// The volume.
        volume: String,
        /// The container.
        container: String,
    },
}

/// What of a volume a mount means; empty for all of it.
pub(super) fn of(
    mount: &VolumeMount,
    lookup: impl Fn(&str) -> Option<String>,
) -> Result<String, SubPathError> {
    let text = match mount.sub_path_expr.as_deref().filter(|text| !text.is_empty()) {
        Some(expression) => expanded(expression, lookup)?,
        None => mount.sub_path.clone().unwrap_or_default(),
    };
    let path = Path::new(&text);
    // What an expression has become may be secret.
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

/// Here, unlike in commands, a variable that is unknown or empty is an error.
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

/// Why there is nothing to mount.
#[derive(Debug)]
pub(super) enum Unusable {
    /// It is not there, and cannot be made.
    Uncreatable(io::Error),
    /// It leads out of the volume, or is something that cannot be mounted.
    Elsewhere(io::Error),
}

/// Finds a part of a volume that guests write to, and makes directories that are missing, with the volume's own mode. Links
/// may lead from one place in the volume to another one; the result has none.
pub(super) fn locate(root: &Dir, path: &str, may_create: bool) -> Result<PathBuf, Unusable> {
    let elsewhere = Unusable::Elsewhere;
    let mode = root.this().map_err(elsewhere)?.mode & 0o777;
    let mut way: Vec<(OsString, Dir)> = Vec::new();
    let mut ahead: VecDeque<OsString> = Path::new(path).iter().map(ToOwned::to_owned).collect();
    let mut links = 0;
    while let Some(name) = ahead.pop_front() {
        if name == "." {
            continue;
        }
        if name == ".." {
            // By our own account of the way, not by the directory's: that one may be moved.
            way.pop().ok_or_else(|| elsewhere(io::Error::other("it leads out of the volume")))?;
            continue;
        }
        let here = way.last().map_or(root, |(_, dir)| dir);
        match here.look(&name).map_err(elsewhere)?.map(|entry| entry.kind) {
            _ if way.len() == MAX_LEVELS => return Err(elsewhere(io::Error::other("it is too deep"))),
            Some(EntryKind::Directory) => {
                let inner = here.open(&name).map_err(elsewhere)?;
                way.push((name, inner));
            }
            Some(EntryKind::Link) => {
                links += 1;
                let target = here.read_link(&name).map_err(elsewhere)?.unwrap_or_default();
                let target = Path::new(&target);
                if links > MAX_LINKS || !target.is_relative() {
                    return Err(elsewhere(io::Error::other("a link leads out of the volume, or nowhere")));
                }
                for part in target.iter().rev() {
                    ahead.push_front(part.to_owned());
                }
            }
            Some(EntryKind::File) if ahead.is_empty() => {
                return Ok(way.into_iter().map(|(name, _)| name).chain([name]).collect());
            }
            Some(EntryKind::File | EntryKind::Other) => {
                return Err(elsewhere(io::ErrorKind::NotADirectory.into()));
            }
            None if may_create => {
                let made = here.create(&name, mode).map_err(Unusable::Uncreatable)?;
                way.push((name, made));
            }
            None => return Err(Unusable::Uncreatable(io::ErrorKind::ReadOnlyFilesystem.into())),
        }
    }
    Ok(way.into_iter().map(|(name, _)| name).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use crate::fs::hostile;
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

    fn place() -> (tempfile::TempDir, Dir) {
        let temp = testing::dir();
        fs::set_permissions(temp.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let dir = Dir::trusted(temp.path()).unwrap();
        (temp, dir)
    }

    #[test]
    fn what_is_missing_is_made_with_the_volumes_mode() {
        let (temp, root) = place();
        assert_eq!(locate(&root, "a/b", true).unwrap(), Path::new("a/b"));
        for made in ["a", "a/b"] {
            let mode = fs::metadata(temp.path().join(made)).unwrap().permissions().mode();
            assert_eq!(mode & 0o7777, 0o777, "{made}");
        }
        assert_eq!(locate(&root, "a/b", false).unwrap(), Path::new("a/b"));
        assert!(matches!(locate(&root, "a/c", false), Err(Unusable::Uncreatable(_))));
        fs::write(temp.path().join("a/file"), "").unwrap();
        assert_eq!(locate(&root, "a/file", true).unwrap(), Path::new("a/file"));
        assert!(locate(&root, "a/file/x", true).is_err());
    }

    #[test]
    fn links_may_lead_about_the_volume_but_not_out_of_it() {
        let (temp, root) = place();
        let (outside, _) = place();
        fs::write(outside.path().join("kept"), "").unwrap();
        fs::create_dir_all(temp.path().join("releases/3")).unwrap();
        hostile::plant(temp.path(), outside.path());
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
            assert!(matches!(locate(&root, bad, true), Err(Unusable::Elsewhere(_))), "{bad}");
        }
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_path_without_end_costs_no_more_than_one_that_is_too_long() {
        let (_temp, root) = place();
        assert!(locate(&root, &"a/".repeat(10_000), true).is_err());
    }

    #[test]
    fn links_that_appear_at_any_moment_lead_nowhere() {
        let (temp, _) = place();
        let (outside, _) = place();
        fs::create_dir(outside.path().join("inner")).unwrap();
        let before = hostile::snapshot(outside.path());
        let root = temp.path().join("v");
        let attack = {
            let (root, outside) = (root.clone(), outside.path().to_owned());
            move || hostile::bend(&root, &outside)
        };
        hostile::at_every_moment(
            || {
                let _ = fs::remove_dir_all(&root);
                fs::create_dir_all(root.join("dir/inner")).unwrap();
            },
            attack,
            || drop(locate(&Dir::trusted(&root).unwrap(), "dir/inner/new/newer", true)),
            || assert_eq!(hostile::snapshot(outside.path()), before),
        );
    }
}
