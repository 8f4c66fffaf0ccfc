//! The host's directories that tart shares with the guest. tart opens them by path, and must find the directories that were planned.

use std::time::Duration;

use super::Shim;
use crate::error_chain::chain;
use crate::fs::blocking_io::within;
use crate::fs::file::FileError;
use crate::state::{NotStarted, NotStartedReason, VmRun};
use crate::tart::Share;

/// How long the host's disks may take to answer.
const LIMIT: Duration = Duration::from_secs(30);

impl Shim {
    /// Why tart must not open the VM's shares: one is not the directory that was planned, or a guest could replace it before tart opens
    /// it.
    pub(super) async fn shares_in_doubt(&self) -> Option<NotStarted> {
        let vm_run = self.vm_run.clone();
        self.check(move |shares| match replaceable(&vm_run, shares) {
            Ok(None) => replaced(shares),
            Ok(doubt) => doubt,
            Err(error) => {
                Some(format!("cannot tell whether a guest can replace a hostPath: {}", chain(&error)))
            }
        })
        .await
    }

    /// Why the VM must not go on: one of its shares was replaced while tart opened it.
    pub(super) async fn shares_replaced(&self) -> Option<NotStarted> {
        self.check(replaced).await
    }

    async fn check(
        &self,
        check: impl FnOnce(&[Share]) -> Option<String> + Send + 'static,
    ) -> Option<NotStarted> {
        let shares: Vec<Share> =
            self.spec.shares.iter().filter(|share| share.identity.is_some()).cloned().collect();
        if shares.is_empty() {
            return None;
        }
        let doubt = match within(LIMIT, move || check(&shares)).await {
            Some(doubt) => doubt?,
            None => "the host's disk does not answer".to_owned(),
        };
        Some(NotStarted::new(NotStartedReason::CreateContainerError, doubt))
    }
}

/// A message for the first share that is not the directory that was planned.
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

/// A message for the first share that another Pod's guest can replace.
fn replaceable(vm_run: &VmRun, shares: &[Share]) -> Result<Option<String>, FileError> {
    let writers = vm_run.other_writers()?;
    Ok(shares.iter().find_map(|share| {
        let writer = writers.iter().find(|writer| writer.can_replace(&share.path))?;
        let (path, outer) = (share.path.display(), writer.path.display());
        Some(format!("hostPath {path} is inside {outer}, which Pod {} can write to", writer.pod))
    }))
}
