//! `hostPath`: the directories of the host that Pods may use.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
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
    /// The agent's program and credentials, which no Pod may use.
    own_files: Vec<PathBuf>,
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
    #[error("hostPath {0} would give the Pod the program or the credentials of this Node's agent")]
    OwnFile(String),
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
        let (state, tart_home) = (state.to_owned(), tart_home.to_owned());
        Self { allowed, state, tart_home, own_files: Vec::new() }
    }

    /// Keeps files of the agent from Pods, too.
    #[must_use]
    pub(crate) fn without(self, own_files: Vec<PathBuf>) -> Self {
        Self { own_files, ..self }
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
        let path = match resolve(path) {
            Ok(path) => path,
            // What is wrong with a path of the host is not for a Pod to know.
            Err(_) if !self.names_allowed(path) => return Err(HostPathError::NotAllowed(shown())),
            Err(error) => return Err(failed(error)),
        };
        let allowed = self.allowed_root(&path).ok_or_else(|| HostPathError::NotAllowed(shown()))?;
        let touches = |other: &Path| {
            let other = resolve(other).map_err(failed)?;
            Ok(is_inside(&path, &other) || is_inside(&other, &path))
        };
        if touches(&self.state)? {
            return Err(HostPathError::State(shown()));
        }
        if touches(&self.tart_home)? {
            return Err(HostPathError::Vms(shown()));
        }
        for file in &self.own_files {
            if touches(file)? {
                return Err(HostPathError::OwnFile(shown()));
            }
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
                let writable = !allowed.read_only && !self.has_read_only_inside(&path);
                Ok(HostDir { dir, path, identity, writable })
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

    /// Whether a directory has one in it that no Pod may write to.
    fn has_read_only_inside(&self, path: &Path) -> bool {
        self.allowed.iter().filter(|allowed| allowed.read_only).any(|allowed| {
            // An unknown counts as inside.
            resolve(&allowed.path).map_or(true, |inner| is_inside(&inner, path))
        })
    }

    /// Whether a path as the Pod has it is inside an allowed directory.
    fn names_allowed(&self, path: &Path) -> bool {
        self.allowed.iter().any(|allowed| path.starts_with(&allowed.path))
            || self.allowed_root(path).is_some()
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

/// Whether a path without links is inside another, or the same. macOS has several paths to one directory: it takes capitals for small
/// letters, and shows the volume of users' data at two places. So the directories themselves are compared, too.
fn is_inside(path: &Path, outer: &Path) -> bool {
    let (path, outer) = (without_data_volume(path), without_data_volume(outer));
    let identity = |path: &Path| path.metadata().ok().map(|found| (found.dev(), found.ino()));
    let outer_identity = identity(&outer);
    path.starts_with(&outer)
        || (outer_identity.is_some() && path.ancestors().any(|part| identity(part) == outer_identity))
}

/// The path of a file as seen from the root: macOS links directories of the data volume into it, and these links are no symbolic ones.
fn without_data_volume(path: &Path) -> PathBuf {
    path.strip_prefix("/System/Volumes/Data")
        .map_or_else(|_| path.to_owned(), |rest| Path::new("/").join(rest))
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
    fn a_path_is_inside_another_by_any_of_its_names() {
        let host = Host::new();
        let at = |inside: &str| host.temp.path().join(inside);
        for (path, outer, expected) in [
            ("/System/Volumes/Data/Users/me/state", "/Users/me", true),
            ("/Users/me/state", "/System/Volumes/Data", true),
            ("/Users/me", "/Users/me", true),
            ("/Users/me2", "/Users/me", false),
            ("/Users", "/Users/me", false),
        ] {
            assert_eq!(is_inside(Path::new(path), Path::new(outer)), expected, "{path} {outer}");
        }
        // Another name of the same directory, as for capitals on a Mac.
        symlink(at("data"), at("DATA")).unwrap();
        assert!(is_inside(&at("DATA/sub"), &at("data")) && is_inside(&at("data/sub"), &at("DATA")));
        assert!(!is_inside(&at("data"), &at("DATA/sub")) && !is_inside(&at("data2"), &at("DATA")));
    }

    #[test]
    fn a_read_only_directory_is_not_writable_through_an_outer_one() {
        let host = Host::new();
        let allowed = ["data".to_owned(), "data/sub:ro".to_owned()];
        let at = |inside: &str| host.temp.path().join(inside);
        let allowed = allowed.map(|text| host.path(&text).parse().unwrap()).to_vec();
        let paths = HostPaths::new(allowed, &at("state"), &at("tart"));
        let writable = |inside: &str| {
            let source = HostPathVolumeSource { path: host.path(inside), type_: None };
            paths.prepare(&source, &"0b1c".parse().unwrap()).unwrap().writable
        };
        assert!(!writable("data") && !writable("data/sub") && writable("data/other"));
    }

    #[test]
    fn a_pod_does_not_learn_what_is_on_the_host() {
        let host = Host::new();
        let at = |inside: &str| host.temp.path().join(inside);
        fs::write(at("elsewhere/file"), "").unwrap();
        symlink(at("nowhere"), at("elsewhere/dangling")).unwrap();
        symlink(at("elsewhere/loop"), at("elsewhere/loop")).unwrap();
        for inside in ["elsewhere/none", "elsewhere/file/x", "elsewhere/dangling", "elsewhere/loop"] {
            assert!(host.refusal(inside, "Directory").contains("is not allowed"), "{inside}");
        }
    }

    #[test]
    fn no_pod_gets_the_agents_program_or_credentials() {
        let host = Host::new();
        let at = |inside: &str| host.temp.path().join(inside);
        let paths = HostPaths::new(vec![host.path("data").parse().unwrap()], &at("state"), &at("tart"));
        let paths = paths.without(vec![at("data/sub/kubeconfig")]);
        let ask = |inside: &str| {
            let source = HostPathVolumeSource { path: host.path(inside), type_: None };
            paths.prepare(&source, &"0b1c".parse().unwrap())
        };
        for inside in ["data", "data/sub"] {
            assert!(matches!(ask(inside), Err(HostPathError::OwnFile(_))), "{inside}");
        }
        assert!(ask("data/other").is_ok());
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
