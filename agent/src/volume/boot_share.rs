//! The shares of a boot-only guest besides its volumes: its environment, and its exit status.

use std::fmt::Write as _;
use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use crate::crash_point;
use crate::guest::script::is_shell_name;
use crate::names::Restart;
use crate::state::{BOOT_DIR_PREFIX, POD_IP, PodDir, boot_dir_name};
use crate::tart::Share;

const ENVIRONMENT: &str = "pod_environment";
pub(super) const STATUS: &str = "pod_status";

/// The shares of a boot-only guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BootShares {
    pub(crate) shares: Vec<Share>,
    pub(crate) environment_file: PathBuf,
    /// Where the guest can write its exit status.
    pub(crate) status_dir: PathBuf,
}

/// The directory of the latest VM that has one.
pub(super) fn latest(volumes: &Path) -> io::Result<PathBuf> {
    let mut last = None;
    for entry in fs::read_dir(volumes)? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix(BOOT_DIR_PREFIX)?.parse().ok());
        last = last.max(number.map(Restart));
    }
    last.map(|restart| volumes.join(boot_dir_name(restart))).ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// Creates the directories, with the file `environment` in the one that the guest can only read. They are removed with the Pod's volumes.
pub(crate) fn create(
    pod: &PodDir,
    restart: Restart,
    variables: &[(String, String)],
) -> io::Result<BootShares> {
    let root = pod.volumes_path().join(boot_dir_name(restart));
    let (environment_dir, status_dir) = (root.join(ENVIRONMENT), root.join(STATUS));
    // The guest sees the numbers and modes of the host, and its user may have another number than the agent's. Other users of the host
    // cannot pass the directory above.
    DirBuilder::new().recursive(true).mode(0o700).create(&root)?;
    for (dir, mode) in [(&environment_dir, 0o755), (&status_dir, 0o777)] {
        DirBuilder::new().recursive(true).create(dir)?;
        fs::set_permissions(dir, Permissions::from_mode(mode))?;
    }
    let environment_file = environment_dir.join("environment");
    let temp = write_aside(&environment_file, variables)?;
    crash_point::point("agent.plan.environment");
    fs::rename(temp, &environment_file)?;
    let share = |name: &str, path: &Path, read_only| Share {
        name: name.to_owned(),
        path: path.to_owned(),
        read_only,
        identity: None,
    };
    let shares = vec![share(ENVIRONMENT, &environment_dir, true), share(STATUS, &status_dir, false)];
    Ok(BootShares { shares, environment_file, status_dir })
}

/// Replaces the file `environment` atomically.
pub(crate) fn rewrite(environment_file: &Path, variables: &[(String, String)]) -> io::Result<()> {
    let temp = write_aside(environment_file, variables)?;
    crash_point::point("shim.environment");
    fs::rename(temp, environment_file)
}

fn write_aside(path: &Path, variables: &[(String, String)]) -> io::Result<PathBuf> {
    let temp = path.with_extension("tmp");
    let mut file = OpenOptions::new().create(true).write(true).truncate(true).open(&temp)?;
    file.set_permissions(Permissions::from_mode(0o644))?;
    file.write_all(for_shell(variables).as_bytes())?;
    Ok(temp)
}

/// Variables as a file that a shell can read, without those whose value has the Pod's address, which is not known yet.
fn for_shell(variables: &[(String, String)]) -> String {
    let known = variables.iter().filter(|(name, value)| is_shell_name(name) && !value.contains(POD_IP));
    known.fold(String::new(), |mut all, (name, value)| {
        // Writing to a String does not fail.
        let _ = writeln!(all, "{name}='{}'", value.replace('\'', "'\\''"));
        all
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_user_of_the_guest_can_read_the_environment_and_write_the_status() {
        let dir = crate::testing::dir();
        let pod = crate::state::StateDir::open(dir.path()).unwrap().pod("0b1c".parse().unwrap());
        let made = create(&pod, Restart(0), &[("A".to_owned(), "secret".to_owned())]).unwrap();
        rewrite(&made.environment_file, &[]).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode(&made.environment_file), 0o644);
        let modes = made.shares.iter().map(|share| mode(&share.path)).collect::<Vec<_>>();
        assert_eq!(modes, [0o755, 0o777]);
        // No other user of the host.
        assert_eq!(mode(made.status_dir.parent().unwrap()), 0o700);
    }

    #[test]
    fn a_shell_can_read_the_environment_file() {
        let names = ["UID", "my.key", "a;exit 3", "A"];
        let mut variables = names.map(|name| (name.to_owned(), "it's".to_owned())).to_vec();
        variables.push(("IP".to_owned(), POD_IP.to_owned()));
        let file = for_shell(&variables);
        assert_eq!(file, "A='it'\\''s'\n");
        let read = format!("set -e\n{file}printf %s \"$A\"");
        let said = std::process::Command::new("/bin/sh").args(["-c", &read]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&said.stdout), "it's");
    }
}
