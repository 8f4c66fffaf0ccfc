//! What macOS keeps from programs until its user allows it, and how it shows.

use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::libc;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// How long macOS may take to let a directory be read. It waits while a dialog asks its user.
const LIMIT: Duration = Duration::from_secs(20);

const FULL_DISK_ACCESS: &str = "give tart-kubelet and tart Full Disk Access on this Mac (System Settings, Privacy & Security), or use a \
                                directory of its own disk that is not in Documents, Desktop or Downloads";

const LOCAL_NETWORK: &str = "macOS may keep tart-kubelet from the local network: run it as a LaunchDaemon, or allow it in System \
                             Settings, Privacy & Security, Local Network";

/// What to try when a guest has no route: the Mac is in the network of its guests, so that only a privacy setting of macOS can keep this
/// process from them. Guests have private addresses.
pub(crate) fn local_network_hint(error: &io::Error, host: &str) -> Option<&'static str> {
    let is_private = host.parse().is_ok_and(|address: Ipv4Addr| address.is_private());
    (is_private && error.kind() == io::ErrorKind::HostUnreachable).then_some(LOCAL_NETWORK)
}

/// A directory that macOS keeps from this process.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AccessError {
    #[error("macOS does not let this process read {}; {FULL_DISK_ACCESS}", .0.display())]
    Denied(PathBuf, #[source] io::Error),
    #[error(
        "macOS does not say within {} s whether this process may read {}: a dialog may ask at the Mac's screen, or the disk does not \
         answer; {FULL_DISK_ACCESS}",
        LIMIT.as_secs(), .0.display()
    )]
    Unanswered(PathBuf),
}

/// Reads a directory to see whether macOS allows it. Any other failure is left to the code that needs the directory.
pub(crate) async fn check_access(dir: &Path) -> Result<(), AccessError> {
    let path = dir.to_owned();
    let read = spawn_blocking(move || std::fs::read_dir(path).and_then(|mut dir| dir.next().transpose()));
    match timeout(LIMIT, read).await {
        Ok(Ok(Err(error))) if is_denied(&error) => Err(AccessError::Denied(dir.to_owned(), error)),
        Ok(_) => Ok(()),
        Err(_) => Err(AccessError::Unanswered(dir.to_owned())),
    }
}

/// Whether it is macOS' privacy that denies. Permissions of the file system are another error.
fn is_denied(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EPERM)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error_chain::chain;

    #[tokio::test]
    async fn only_a_privacy_setting_is_told() {
        let dir = crate::testing::dir();
        check_access(dir.path()).await.unwrap();
        check_access(&dir.path().join("absent")).await.unwrap();
        assert!(is_denied(&io::Error::from_raw_os_error(libc::EPERM)));
        assert!(!is_denied(&io::Error::from_raw_os_error(libc::EACCES)));
        let denied = AccessError::Denied("/Volumes/T7".into(), io::Error::from_raw_os_error(libc::EPERM));
        for error in [denied, AccessError::Unanswered("/Volumes/T7".into())] {
            let words = chain(&error);
            assert!(words.contains("/Volumes/T7") && words.contains("Full Disk Access"), "{words}");
        }
    }
}
