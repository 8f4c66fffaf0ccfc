//! What the container's user cannot do in the Pod's shares. A guest sees the owners' numbers and the modes of the host's files, and enforces
//! them; what a guest creates belongs to the user that runs tart. So a user with another number than the agent's may be shut out.

use std::collections::BTreeSet;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::Shim;
use crate::state::Mount;
use crate::tart::Share;

/// How long the host's disks may take to answer.
const LIMIT: Duration = Duration::from_secs(10);
/// How many files of a share the shim looks at.
const MAX_FILES: usize = 100;
/// The bits of a mode that let all others write, read, and enter.
const OTHERS_WRITE: u32 = 0o002;
const OTHERS_READ: u32 = 0o004;

/// The owner and the mode of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Access {
    owner: u32,
    mode: u32,
}

impl From<&Metadata> for Access {
    fn from(metadata: &Metadata) -> Self {
        Self { owner: metadata.uid(), mode: metadata.mode() }
    }
}

impl Access {
    /// Whether a user of the guest has the bits of all others and needs this one, but lacks it.
    fn denies(self, user: u32, bit: u32) -> bool {
        user != 0 && user != self.owner && self.mode & bit == 0
    }
}

impl Shim {
    /// Leaves a notice about the shares of a container that its user in the guest cannot use. The container starts all the same: it may not
    /// need them, or use `sudo`.
    pub(super) async fn report_share_permissions(&self, user: u32, mounts: &[Mount]) {
        let mounted: BTreeSet<&str> = mounts
            .iter()
            .filter(|mount| mount.in_memory.is_none())
            .map(|mount| mount.share.as_str())
            .collect();
        let shares: Vec<Share> =
            self.spec.shares.iter().filter(|share| mounted.contains(share.name.as_str())).cloned().collect();
        if shares.is_empty() {
            return;
        }
        let look = spawn_blocking(move || {
            shares.iter().filter_map(|share| obstacle(share, user)).collect::<Vec<_>>()
        });
        // A disk that does not answer is told elsewhere.
        let Ok(Ok(obstacles)) = timeout(LIMIT, look).await else { return };
        for message in obstacles {
            self.notice("SharePermissions", message);
        }
    }
}

/// What a user of the guest cannot do in a share.
fn obstacle(share: &Share, user: u32) -> Option<String> {
    let root = Access::from(&fs::metadata(&share.path).ok()?);
    let files = files(share).unwrap_or_default();
    words(&share.name, share.read_only, user, root, &files)
}

/// The files at the top of a share, through links.
fn files(share: &Share) -> io::Result<Vec<Access>> {
    let entries = fs::read_dir(&share.path)?.flatten().take(MAX_FILES);
    Ok(entries
        .filter_map(|entry| fs::metadata(entry.path()).ok())
        .map(|found| Access::from(&found))
        .collect())
}

fn words(name: &str, read_only: bool, user: u32, root: Access, files: &[Access]) -> Option<String> {
    let owner = root.owner;
    if root.denies(user, OTHERS_READ) || files.iter().any(|file| file.denies(user, OTHERS_READ)) {
        return Some(format!(
            "user {user} of the guest cannot read all of volume {name}: the files belong to user {owner} of the Mac, and their mode lets no \
             other user read them"
        ));
    }
    if read_only || user == 0 || user == owner {
        return None;
    }
    if root.denies(user, OTHERS_WRITE) {
        return Some(format!(
            "user {user} of the guest cannot write to volume {name}: it belongs to user {owner} of the Mac, and its mode lets no other user \
             write to it"
        ));
    }
    Some(format!(
        "what user {user} of the guest creates in volume {name} belongs to user {owner} of the Mac, so that user {user} may not be able to \
         change it, or to write to a directory in it"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_user_with_another_number_is_shut_out() {
        let of = |owner, mode| Access { owner, mode };
        let table = [
            (501, false, of(501, 0o700), vec![of(501, 0o600)], None),
            (0, false, of(501, 0o700), vec![], None),
            (501, true, of(502, 0o755), vec![of(502, 0o644)], None),
            (501, true, of(502, 0o755), vec![of(502, 0o400)], Some("cannot read all of volume data")),
            (501, true, of(502, 0o700), vec![], Some("cannot read all of volume data")),
            (501, false, of(502, 0o755), vec![], Some("cannot write to volume data")),
            (501, false, of(502, 0o777), vec![], Some("belongs to user 502 of the Mac")),
            (12345, false, of(501, 0o777), vec![], Some("user 12345 may not be able")),
        ];
        for (user, read_only, root, files, expected) in table {
            let told = words("data", read_only, user, root, &files);
            assert_eq!(told.is_some(), expected.is_some(), "{user} {root:?}: {told:?}");
            assert!(told.is_none_or(|told| told.contains(expected.unwrap_or(""))), "{user} {root:?}");
        }
    }
}
