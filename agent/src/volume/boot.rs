//! What a guest that only boots shares with the host besides its volumes: its environment, and how it ended.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crate::crash;
use crate::state::{PodDir, Share};
use crate::vm::Restart;

/// Names that no volume can have.
const PREFIX: &str = ".boot-";
const ENVIRONMENT: &str = "pod_environment";
pub(super) const STATUS: &str = "pod_status";

/// The shares of a guest that only boots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootShares {
    /// What the guest sees.
    pub shares: Vec<Share>,
    /// Where the guest can leave how it ended.
    pub status_dir: PathBuf,
}

/// The directory of one VM's shares among the Pod's volumes: no volume has a name like this, and no guest sees it.
pub(crate) fn dir_name(restart: Restart) -> String {
    format!("{PREFIX}{restart}")
}

/// The directory of the last VM that has one.
pub(super) fn latest(volumes: &Path) -> io::Result<PathBuf> {
    let mut last = None;
    for entry in fs::read_dir(volumes)? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.parse().ok());
        last = last.max(number.map(Restart));
    }
    last.map(|restart| volumes.join(dir_name(restart))).ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// Makes the directories, with the file `environment` in the one that the guest can only read. They go with the Pod's volumes.
pub fn lay(pod: &PodDir, restart: Restart, environment: &str) -> io::Result<BootShares> {
    let root = pod.volumes_path().join(dir_name(restart));
    let (environment_dir, status_dir) = (root.join(ENVIRONMENT), root.join(STATUS));
    for dir in [&environment_dir, &status_dir] {
        DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    }
    write(&environment_dir.join("environment"), environment)?;
    let share = |name: &str, path: &Path, read_only| Share {
        name: name.to_owned(),
        path: path.to_owned(),
        read_only,
        place: None,
    };
    let shares = vec![share(ENVIRONMENT, &environment_dir, true), share(STATUS, &status_dir, false)];
    Ok(BootShares { shares, status_dir })
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    let temp = path.with_extension("tmp");
    let mut file = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&temp)?;
    file.write_all(text.as_bytes())?;
    crash::point("agent.plan.environment");
    fs::rename(temp, path)
}
