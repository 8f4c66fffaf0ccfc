//! Directories of the host that the VM is given: tart is told their paths, and must find there what was planned.

use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::Shim;
use crate::error_chain::chain;
use crate::fs::file::FileError;
use crate::state::{Ending, VmRun};
use crate::tart::Share;

/// How long the host's disks may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);

impl Shim {
    /// Why tart must not open the VM's shares now, if it must not: one is not the directory that was planned, or somebody who
    /// runs could make it another one between this look and tart's.
    pub(super) async fn shares_in_doubt(&self) -> Option<Ending> {
        let attempt = self.attempt.clone();
        self.look(move |shares| match replaceable(&attempt, shares) {
            Ok(None) => replaced(shares),
            Ok(doubt) => doubt,
            Err(error) => Some(format!("cannot say whether hostPaths can be replaced: {}", chain(&error))),
        })
        .await
    }

    /// Why the VM must not go on with its shares: one has become another directory while tart opened it.
    pub(super) async fn shares_replaced(&self) -> Option<Ending> {
        self.look(replaced).await
    }

    async fn look(&self, look: impl FnOnce(&[Share]) -> Option<String> + Send + 'static) -> Option<Ending> {
        let shares: Vec<Share> =
            self.spec.shares.iter().filter(|share| share.identity.is_some()).cloned().collect();
        if shares.is_empty() {
            return None;
        }
        let looked = timeout(PATIENCE, spawn_blocking(move || look(&shares))).await;
        let doubt = match looked {
            Ok(Ok(doubt)) => doubt?,
            _ => "the host's disk does not answer".to_owned(),
        };
        let reason = "CreateContainerError".to_owned();
        Some(Ending::NotStarted { reason, message: doubt, fault: None })
    }
}

/// The first share that is not the directory any more that it was, in words.
fn replaced(shares: &[Share]) -> Option<String> {
    shares.iter().find_map(|share| {
        let path = share.path.display();
        match share.identity?.is_at(&share.path) {
            Ok(true) => None,
            Ok(false) => Some(format!(
                "hostPath {path} has been replaced since the VM was planned, or a directory on the way to it"
            )),
            Err(error) => Some(format!("cannot look at hostPath {path}: {error}")),
        }
    })
}

/// The first share that another Pod's guest can replace, in words.
fn replaceable(attempt: &VmRun, shares: &[Share]) -> Result<Option<String>, FileError> {
    let writers = attempt.other_writers()?;
    Ok(shares.iter().find_map(|share| {
        let writer = writers.iter().find(|writer| writer.can_replace(&share.path))?;
        let (path, outer) = (share.path.display(), writer.path.display());
        Some(format!("hostPath {path} is inside {outer}, which Pod {} can write to", writer.pod))
    }))
}
