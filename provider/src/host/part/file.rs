//! A file with its contents, owner and mode.

use launchd::{Access, Owner};
use serde::Serialize;

use super::directory::{access, owner, owner_and_group, wanted_access};
use super::{Change, PartError, Remote, make_directory, run};
use crate::artifact::Sha256Hash;
use crate::host::Secret;

/// A file.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct File {
    pub(crate) path: String,
    pub(crate) contents: Contents,
    #[serde(serialize_with = "owner")]
    pub(crate) owner: Owner,
    pub(crate) mode: u32,
}

/// What a file holds.
#[derive(Debug, Clone, Serialize)]
pub(crate) enum Contents {
    /// Text that may be shown.
    Text(String),
    /// Bytes that may not.
    Secret(Secret),
    /// Anything: the file only has to be there. An empty one is made when it is missing.
    Any,
    /// Bytes that may not be shown, and that no step needs once the other file refers to `own`, the agent's own certificate. Another file that
    /// does not is removed: the agent would use what is in it for ever. The bytes are made anew for each attempt, so that they are no part of the
    /// hash.
    Until {
        other: String,
        own: String,
        /// Whether they are needed in any case, because the certificate may be of no use any more.
        #[serde(skip)]
        is_always: bool,
        #[serde(skip)]
        secret: Secret,
    },
}

/// What is in the file beside which a secret is needed until it is the agent's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Other {
    Missing,
    Own,
    Foreign,
}

async fn look<R: Remote>(mac: &R, path: &str, own: &str) -> Result<Other, PartError> {
    Ok(match mac.read_file(path).await? {
        None => Other::Missing,
        Some(bytes) if String::from_utf8_lossy(&bytes).contains(own) => Other::Own,
        Some(_) => Other::Foreign,
    })
}

impl File {
    pub(super) async fn check<R: Remote>(&self, mac: &R) -> Result<Vec<Change>, PartError> {
        let mut changes = Vec::new();
        if let Contents::Until { other, own, is_always, .. } = &self.contents {
            match look(mac, other, own).await? {
                Other::Own if !is_always => return Ok(changes),
                Other::Own | Other::Missing => {}
                Other::Foreign => changes.push(Change::new(other, "not the agent's own", "gone")),
            }
        }
        let wanted = wanted_access(&self.owner, self.mode);
        let Some(is) = access(mac, &self.path).await? else {
            changes.push(Change::new(&self.path, "missing", wanted));
            return Ok(changes);
        };
        if is != wanted {
            changes.push(Change::new(&self.path, is, wanted));
        }
        changes.extend(self.check_contents(mac).await?);
        Ok(changes)
    }

    /// The bytes that the file should have.
    fn bytes(&self) -> Option<&[u8]> {
        match &self.contents {
            Contents::Text(text) => Some(text.as_bytes()),
            Contents::Secret(secret) | Contents::Until { secret, .. } => Some(secret.expose()),
            Contents::Any => None,
        }
    }

    async fn check_contents<R: Remote>(&self, mac: &R) -> Result<Option<Change>, PartError> {
        let short = |bytes: &[u8]| format!("SHA-256 {}", Sha256Hash::of(bytes).short());
        let Some(bytes) = self.bytes() else { return Ok(None) };
        let is = mac.read_file(&self.path).await?.unwrap_or_default();
        if is == bytes {
            return Ok(None);
        }
        Ok(Some(match &self.contents {
            Contents::Text(text) => Change::new(&self.path, short(&is), short(bytes))
                .with_lines(&String::from_utf8_lossy(&is), text),
            // Not even a hash: it may be that of a short password.
            _ => Change::new(&self.path, "other contents", "new contents"),
        }))
    }

    pub(super) async fn apply<R: Remote>(&self, mac: &R) -> Result<(), PartError> {
        if self.bytes().is_none() && access(mac, &self.path).await?.is_some() {
            // A program may have it open.
            let (user, group) = owner_and_group(&self.owner);
            run(mac, &["/usr/sbin/chown", &format!("{user}:{group}"), &self.path]).await?;
            return run(mac, &["/bin/chmod", &format!("{:o}", self.mode), &self.path]).await.map(drop);
        }
        if let Some((directory, _)) = self.path.rsplit_once('/') {
            make_directory(mac, directory).await?;
        }
        let access = Access { owner: self.owner.clone(), mode: self.mode };
        mac.write_file(&self.path, self.bytes().unwrap_or_default(), &access).await?;
        // Last: until then the agent has one of the two.
        if let Contents::Until { other, own, .. } = &self.contents
            && look(mac, other, own).await? == Other::Foreign
        {
            run(mac, &["/bin/rm", "-f", other]).await?;
        }
        Ok(())
    }
}
