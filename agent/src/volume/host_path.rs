//! `hostPath`: the directories of the host that Pods may use.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

use k8s_openapi::api::core::v1::HostPathVolumeSource;

use super::share::is_shareable;
use crate::fs::dir::Dir;
use crate::fs::dir_identity::DirIdentity;
use crate::fs::file::FileError;
use crate::names::PodUid;
use crate::state::{HostPathWriter, PlannedShare, StateDir};

/// The mode of directories that the agent creates for a Pod.
const DIR_MODE: u32 = 0o755;

/// A directory of the host that Pods may use, with its content: `--allowed-host-path`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AllowedHostPath {
    pub(crate) path: PathBuf,
    read_only: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an absolute path, with or without `:ro` at its end")]
pub(crate) struct BadHostPath(String);

impl FromStr for AllowedHostPath {
    type Err = BadHostPath;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (path, read_only) = text.strip_suffix(":ro").map_or((text, false), |path| (path, true));
        let path = PathBuf::from(path);
        if is_plain(&path) && !path.as_os_str().as_bytes().contains(&b':') {
            Ok(Self { path, read_only })
        } else {
            Err(BadHostPath(text.to_owned()))
        }
    }
}

#[derive(Debug, Clone, Default)]
pub(crate) struct HostPaths {
    allowed: Vec<AllowedHostPath>,
    /// The agent's own directory, which no Pod may use.
    state: PathBuf,
    /// The directory with all VMs and images, which no Pod may use.
    tart_home: PathBuf,
}

/// A directory of the host that a Pod cannot use.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HostPathError {
    #[error("hostPath `{0}` is not an absolute path without `..`")]
    NotPlain(String),
    #[error("hostPath {0} is not allowed on this Node; see --allowed-host-path of its tart-kubelet")]
    NotAllowed(String),
    #[error("hostPath {0} would give the Pod the state of this Node's agent")]
    State(String),
    #[error("hostPath {0} would give the Pod the VMs and images of this Node")]
    Vms(String),
    /// The guest of another Pod could replace it while its VM starts.
    #[error(
        "hostPath {path} is inside {outer}, which Pod {pod} can write to, so that it could become any other directory of the host; \
         it can be had when that Pod is over"
    )]
    Inside { path: String, outer: String, pod: String },
    /// Its guest could replace a directory that another VM is about to get.
    #[error(
        "hostPath {path} has {inner} in it, which Pod {pod} is about to get, and which must stay what it is until then; it can be had \
         when that Pod is up"
    )]
    Around { path: String, inner: String, pod: String },
    /// The path no longer leads to the directory that the agent has opened.
    #[error("hostPath {0} has just been replaced")]
    Replaced(String),
    /// The state directory does not tell which Pods write to which directories.
    #[error("cannot say whether another Pod can replace hostPath {0}")]
    Writers(String, #[source] FileError),
    #[error("hostPath type check failed: {0} is not a directory")]
    NotDirectory(String),
    #[error("hostPath {0} is not a directory, and a VM can only be given directories")]
    OnlyDirectories(String),
    #[error("hostPath type {0} cannot be had: a VM can only be given directories")]
    Type(String),
    #[error("hostPath {0} cannot be shared: tart reads `:` and some words after `,` in it as something else")]
    NotShareable(String),
    #[error("cannot use hostPath {0}")]
    Io(String, #[source] io::Error),
}

/// A directory of the host that a Pod uses.
#[derive(Debug)]
pub(super) struct HostDir {
    pub(super) dir: Dir,
    /// Its path, without links.
    pub(super) path: PathBuf,
    pub(super) identity: DirIdentity,
    pub(super) writable: bool,
}

impl HostPaths {
    pub(crate) fn new(allowed: Vec<AllowedHostPath>, state: &Path, tart_home: &Path) -> Self {
        Self { allowed, state: state.to_owned(), tart_home: tart_home.to_owned() }
    }

    /// Opens a directory for a Pod, and creates it if it may.
    pub(super) fn prepare(
        &self,
        source: &HostPathVolumeSource,
        uid: &PodUid,
    ) -> Result<HostDir, HostPathError> {
        let shown = || source.path.clone();
        let kind = source.type_.as_deref().unwrap_or_default();
        let may_create = match kind {
            "" | "DirectoryOrCreate" => true,
            "Directory" => false,
            other => return Err(HostPathError::Type(other.to_owned())),
        };
        let path = Path::new(&source.path);
        if !is_plain(path) {
            return Err(HostPathError::NotPlain(shown()));
        }
        let failed = |error| HostPathError::Io(shown(), error);
        let path = resolve(path).map_err(failed)?;
        let allowed = self.allowed_root(&path).ok_or_else(|| HostPathError::NotAllowed(shown()))?;
        let touches = |other: &Path| {
            let other = resolve(other).map_err(failed)?;
            Ok(path.starts_with(&other) || other.starts_with(&path))
        };
        if touches(&self.state)? {
            return Err(HostPathError::State(shown()));
        }
        if touches(&self.tart_home)? {
            return Err(HostPathError::Vms(shown()));
        }
        if !is_shareable(&path) {
            return Err(HostPathError::NotShareable(shown()));
        }
        let writers = StateDir::at(&self.state).writers_of_others(uid);
        let writers = writers.map_err(|error| HostPathError::Writers(shown(), error))?;
        if let Some(writer) = writers.into_iter().find(|writer| writer.can_replace(&path)) {
            let outer = writer.path.display().to_string();
            return Err(HostPathError::Inside { path: shown(), outer, pod: writer.pod });
        }
        match open_below(&allowed.path, &path, may_create && !allowed.read_only) {
            Ok(dir) => {
                let identity = DirIdentity::of(dir.this().map_err(failed)?);
                // A guest that may write to a directory above the allowed one may have replaced a part of the path.
                if !identity.is_at(&path).map_err(failed)? {
                    return Err(HostPathError::Replaced(shown()));
                }
                Ok(HostDir { dir, path, identity, writable: !allowed.read_only })
            }
            Err(error) if error.kind() == io::ErrorKind::NotADirectory && kind.is_empty() => {
                Err(HostPathError::OnlyDirectories(shown()))
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::NotADirectory | io::ErrorKind::NotFound) => {
                Err(HostPathError::NotDirectory(shown()))
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// Whether a Pod may write to a directory yet: not while another VM is about to get a directory inside it.
    pub(super) fn may_be_written(&self, path: &Path, uid: &PodUid) -> Result<(), HostPathError> {
        let shown = || path.display().to_string();
        let promises = StateDir::at(&self.state).planned_shares_of_others(uid);
        let promises = promises.map_err(|error| HostPathError::Writers(shown(), error))?;
        let writer = HostPathWriter { pod: uid.to_string(), path: path.to_owned() };
        match promises.into_iter().find(|promise| writer.can_replace(&promise.path)) {
            Some(PlannedShare { pod, path: inner }) => {
                Err(HostPathError::Around { path: shown(), inner: inner.display().to_string(), pod })
            }
            None => Ok(()),
        }
    }

    /// The innermost allowed directory that contains `path`.
    fn allowed_root(&self, path: &Path) -> Option<AllowedHostPath> {
        let roots = self.allowed.iter().filter_map(|allowed| {
            let root = resolve(&allowed.path).ok()?;
            path.starts_with(&root).then_some(AllowedHostPath { path: root, ..allowed.clone() })
        });
        // Of two flags for the same directory, `:ro` counts.
        roots.max_by_key(|root| (root.path.components().count(), root.read_only))
    }
}

/// Opens a directory below `root`, step by step: a link that a guest has created since the path was resolved is not followed.
fn open_below(root: &Path, path: &Path, may_create: bool) -> io::Result<Dir> {
    if may_create {
        std::fs::create_dir_all(root)?;
    }
    let mut dir = Dir::trusted(root)?;
    let inside = path.strip_prefix(root).map_err(io::Error::other)?;
    for name in inside {
        dir = if may_create { dir.open_or_create(name, DIR_MODE)? } else { dir.open(name)? };
    }
    Ok(dir)
}

/// A path without links, as far as it exists.
fn resolve(path: &Path) -> io::Result<PathBuf> {
    let mut missing: Vec<&OsStr> = Vec::new();
    let mut existing = path;
    loop {
        match existing.canonicalize() {
            Ok(mut resolved) => {
                resolved.extend(missing.iter().rev());
                return Ok(resolved);
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // The target of a dangling link could be created later, anywhere.
                let (false, Some(parent), Some(name)) =
                    (existing.is_symlink(), existing.parent(), existing.file_name())
                else {
                    return Err(error);
                };
                missing.push(name);
                existing = parent;
            }
            Err(error) => return Err(error),
        }
    }
}

fn is_plain(path: &Path) -> bool {
    path.is_absolute() && !path.components().any(|part| part == Component::ParentDir)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use std::fs;
    use std::os::unix::fs::symlink;

    struct Host {
        temp: tempfile::TempDir,
    }

    impl Host {
        fn new() -> Self {
            let temp = testing::dir();
            for dir in ["data/sub", "data2", "ro/sub", "state/pods", "elsewhere"] {
                fs::create_dir_all(temp.path().join(dir)).unwrap();
            }
            fs::write(temp.path().join("data/file"), "").unwrap();
            Self { temp }
        }

        fn path(&self, inside: &str) -> String {
            self.temp.path().join(inside).display().to_string()
        }

        fn ask(&self, inside: &str, kind: &str) -> Result<HostDir, String> {
            let allow = |text: &str| self.path(text).parse().unwrap();
            let allowed = vec![allow("data"), allow("ro:ro"), allow("new")];
            let at = |inside: &str| self.temp.path().join(inside);
            let paths = HostPaths::new(allowed, &at("state"), &at("tart"));
            let source = HostPathVolumeSource { path: self.path(inside), type_: Some(kind.to_owned()) };
            paths.prepare(&source, &"0b1c".parse().unwrap()).map_err(|error| error.to_string())
        }

        fn refusal(&self, inside: &str, kind: &str) -> String {
            self.ask(inside, kind).unwrap_err().replace(&self.path(""), "/")
        }
    }

    #[test]
    fn a_flag_is_an_absolute_path_with_or_without_ro() {
        let allowed: AllowedHostPath = "/data:ro".parse().unwrap();
        assert_eq!(allowed, AllowedHostPath { path: "/data".into(), read_only: true });
        for bad in ["", "data", "/data:rw", "/a/../b", ":ro", "/a:/b"] {
            assert!(bad.parse::<AllowedHostPath>().is_err(), "{bad}");
        }
    }

    #[test]
    fn allowed_directories_are_opened_or_created() {
        let host = Host::new();
        let had = |inside: &str, kind: &str| host.ask(inside, kind).map(|dir| dir.writable);
        assert_eq!(had("data", ""), Ok(true));
        assert_eq!(had("data/sub", "Directory"), Ok(true));
        assert_eq!(had("ro/sub", "Directory"), Ok(false));
        assert_eq!(had("data/made/deep", "DirectoryOrCreate"), Ok(true));
        assert_eq!(had("new/deep", ""), Ok(true));
        assert!(host.temp.path().join("data/made/deep").is_dir());
    }

    #[test]
    fn other_directories_are_refused_with_a_reason() {
        let host = Host::new();
        for path in ["data2", "elsewhere", "", "dat", "state"] {
            let why = "is not allowed on this Node; see --allowed-host-path of its tart-kubelet";
            assert_eq!(host.refusal(path, ""), format!("hostPath /{path} {why}"));
        }
        for (path, kind) in
            [("data/none", "Directory"), ("data/file", "Directory"), ("ro/none", "DirectoryOrCreate")]
        {
            let words = format!("hostPath type check failed: /{path} is not a directory");
            assert_eq!(host.refusal(path, kind), words);
        }
        assert!(host.refusal("data/file", "").contains("can only be given directories"));
        for kind in ["File", "FileOrCreate", "Socket", "CharDevice", "BlockDevice"] {
            assert!(host.refusal("data/file", kind).contains("can only be given directories"), "{kind}");
        }
        assert!(host.refusal("data/a:b", "").contains("cannot be shared"));
        assert!(host.refusal("data/../elsewhere", "").contains("without `..`"));
    }

    #[test]
    fn links_do_not_lead_out_of_allowed_directories() {
        let host = Host::new();
        let at = |inside: &str| host.temp.path().join(inside);
        symlink(at("elsewhere"), at("data/out")).unwrap();
        symlink(at("data/sub"), at("elsewhere/in")).unwrap();
        symlink(at("elsewhere/none"), at("data/nowhere")).unwrap();
        assert!(host.refusal("data/out", "").contains("is not allowed"));
        assert!(host.refusal("data/out/new", "DirectoryOrCreate").contains("is not allowed"));
        assert!(host.ask("data/nowhere", "DirectoryOrCreate").is_err());
        assert!(!at("elsewhere/none").exists() && !at("elsewhere/new").exists());
        // Links may lead into allowed directories.
        assert_eq!(host.ask("elsewhere/in", "").unwrap().path, at("data/sub").canonicalize().unwrap());
    }

    #[test]
    fn no_pod_gets_the_agents_state_or_tarts_home() {
        let host = Host::new();
        let at = |inside: &str| host.temp.path().join(inside);
        let paths = HostPaths::new(vec!["/".parse().unwrap()], &at("state"), &at("tart"));
        let ask = |path: String| {
            paths.prepare(&HostPathVolumeSource { path, type_: None }, &"0b1c".parse().unwrap())
        };
        for inside in ["state", "state/pods", ""] {
            assert!(matches!(ask(host.path(inside)), Err(HostPathError::State(_))), "{inside}");
        }
        assert!(matches!(ask("/".to_owned()), Err(HostPathError::State(_))));
        for inside in ["tart", "tart/vms"] {
            assert!(matches!(ask(host.path(inside)), Err(HostPathError::Vms(_))), "{inside}");
        }
        assert!(ask(host.path("data")).is_ok());
    }
}
