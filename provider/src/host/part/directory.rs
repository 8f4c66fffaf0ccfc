//! A directory with its owner and mode.

use launchd::{Call, Owner};
use serde::{Serialize, Serializer};

use super::{COMMAND_DEADLINE, Change, PartError, Remote, run};

/// A directory.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Directory {
    pub(crate) path: String,
    #[serde(serialize_with = "owner")]
    pub(crate) owner: Owner,
    pub(crate) mode: u32,
}

/// The owner and group of a file, as `install` takes and `stat` prints them.
pub(super) fn owner_and_group(owner: &Owner) -> (&str, &'static str) {
    match owner {
        Owner::Root => ("root", "wheel"),
        Owner::User(name) => (name, "staff"),
    }
}

pub(super) fn owner<S: Serializer>(owner: &Owner, serializer: S) -> Result<S::Ok, S::Error> {
    let (user, group) = owner_and_group(owner);
    serializer.serialize_str(&format!("{user}:{group}"))
}

/// `m1:staff 700`; `None` when there is no such file.
pub(super) async fn access<R: Remote>(mac: &R, path: &str) -> Result<Option<String>, PartError> {
    let argv = ["/usr/bin/stat", "-f", "%Su:%Sg %Lp", path];
    let output = mac.run(Call::new(&argv, COMMAND_DEADLINE)).await?;
    Ok(output.is_success().then(|| output.stdout.trim().to_owned()))
}

/// The same for what is wanted.
pub(super) fn wanted_access(owner: &Owner, mode: u32) -> String {
    let (user, group) = owner_and_group(owner);
    format!("{user}:{group} {mode:o}")
}

impl Directory {
    pub(super) async fn check<R: Remote>(&self, mac: &R) -> Result<Vec<Change>, PartError> {
        let wanted = wanted_access(&self.owner, self.mode);
        match access(mac, &self.path).await? {
            Some(is) if is == wanted => Ok(Vec::new()),
            Some(is) => Ok(vec![Change::new(&self.path, is, wanted)]),
            None => Ok(vec![Change::new(&self.path, "missing", wanted)]),
        }
    }

    pub(super) async fn apply<R: Remote>(&self, mac: &R) -> Result<(), PartError> {
        let (user, group) = owner_and_group(&self.owner);
        let mode = format!("{:o}", self.mode);
        run(mac, &["/usr/bin/install", "-d", "-o", user, "-g", group, "-m", &mode, &self.path])
            .await
            .map(drop)
    }
}
