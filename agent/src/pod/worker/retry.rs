//! Steps that fail: what the worker reports of them, and when it tries again.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tokio::time::sleep;

use super::Worker;
use crate::apiserver::call::CallError;
use crate::apiserver::events::EventReason;
use crate::backoff::POD_STEP;
use crate::error_chain::{self, chain};
use crate::fs::file::FileError;
use crate::image::gc::SpaceResult;
use crate::pod::sync::decide::Decision;
use crate::shim::{LaunchError, StrayProcessError};
use crate::tart::{Fault, TartError};

/// What to do about a shim that was killed at once.
const REPLACED: &str = "; macOS kills a program whose file was overwritten: install tart-kubelet again under another name, and rename it to \
                        this one";

/// A step that failed; the worker tries again.
#[derive(Debug, thiserror::Error)]
pub(super) enum StepError {
    #[error(transparent)]
    State(#[from] FileError),
    #[error(transparent)]
    Tart(#[from] TartError),
    #[error(transparent)]
    Launch(#[from] LaunchError),
    #[error(
        "its shim has ended ({status}) before it had taken the VM up; what it has said is in {}{}",
        .log.display(), if *killed { REPLACED } else { "" }
    )]
    ShimDied { status: String, killed: bool, log: PathBuf },
    #[error(transparent)]
    Leftovers(#[from] StrayProcessError),
    #[error("cannot see which VMs there are")]
    Vms(#[source] io::Error),
    #[error("cannot make the directories of a guest that only boots")]
    Boot(#[source] io::Error),
    #[error("the Pod has no container {0} with a command")]
    NoContainer(String),
    #[error("cannot delete the Pod from the API")]
    Delete(#[source] CallError),
}

impl StepError {
    /// Whether the disk was full, tart's or that of the state directory.
    fn is_for_want_of_space(&self) -> bool {
        match self {
            Self::Tart(error) => error.fault() == Some(Fault::NoSpace),
            Self::State(_) | Self::Launch(_) | Self::Boot(_) => error_chain::is_for_want_of_space(self),
            Self::ShimDied { .. }
            | Self::Leftovers(_)
            | Self::Vms(_)
            | Self::NoContainer(_)
            | Self::Delete(_) => false,
        }
    }
}

/// Steps that keep failing.
#[derive(Debug, Default)]
pub(super) struct Retries {
    last: Option<FailedStep>,
    /// Whether the Pod's volumes could not be removed when that was tried last.
    pub(super) vain_wipe: bool,
}

#[derive(Debug)]
struct FailedStep {
    problem: String,
    /// How long the worker waited before it tried again; absent when it freed disk space instead.
    delay: Option<Duration>,
}

impl Retries {
    /// A step has succeeded. Whether a shim that was started is of any use is seen later.
    pub(super) fn succeeded(&mut self, decision: Decision) {
        if !matches!(decision, Decision::Launch(_)) {
            self.last = None;
        }
        if decision == Decision::RemoveVolumes {
            self.vain_wipe = false;
        }
    }

    /// A fetch was called off: what is planned next fails or succeeds on its own account.
    pub(super) fn called_off(&mut self) {
        self.last = None;
    }

    /// A step has failed. Whether it has failed with the same problem before.
    fn failed(&mut self, decision: Decision, problem: &str) -> Option<FailedStep> {
        self.vain_wipe |= decision == Decision::RemoveVolumes;
        self.last.take().filter(|last| last.problem == problem)
    }

    /// The step is tried again at once: disk space was freed for it.
    fn at_once(&mut self, problem: String) {
        self.last = Some(FailedStep { problem, delay: None });
    }

    /// How long to wait before the step is tried again, and whether that is the first time.
    fn later(&mut self, problem: String, before: Option<FailedStep>) -> (Duration, bool) {
        let last = before.and_then(|before| before.delay);
        let delay = POD_STEP.next(last);
        self.last = Some(FailedStep { problem, delay: Some(delay) });
        (delay, last.is_none())
    }
}

impl Worker {
    /// Reports a step that failed, once, and waits before it is tried again: longer each time. When the disk is full, the worker frees
    /// space and tries once more before it reports anything.
    pub(super) async fn failed(&mut self, decision: Decision, error: &StepError) {
        let is_full = error.is_for_want_of_space();
        let advice = if is_full { Fault::NoSpace.advice() } else { "" };
        let problem = format!("{}: {}{advice}", decision.failure(), chain(error));
        let before = self.retries.failed(decision, &problem);
        if is_full && before.is_none() {
            match self.free_space(error).await {
                Some(true) => {
                    self.retries.at_once(problem);
                    if let Decision::AskGuest(_) = decision {
                        // What the guest says can be recorded now.
                        self.shims.asked = None;
                    }
                    return;
                }
                Some(false) => {}
                // The next step may be another one, with space freed for that.
                None => return,
            }
        }
        let (delay, is_first) = self.retries.later(problem.clone(), before);
        if is_first {
            self.reporter.events().warning(&self.updates.pod(), EventReason::FailedSync, &problem);
        }
        // The failed step itself may have changed a file. That is no reason to hurry.
        tokio::select! {
            () = self.updates.changed() => {}
            () = sleep(delay) => {}
        }
    }

    /// Frees disk space where a step has found none; whether there is more than before. `None` when something else is wanted of the Pod
    /// meanwhile: the worker does not wait for the space then.
    async fn free_space(&mut self, error: &StepError) -> Option<bool> {
        let is_tarts = matches!(error, StepError::Tart(_));
        let path = if is_tarts { self.host.tart.home() } else { self.dir.logs_path() };
        let otherwise = self.updates.desired_otherwise();
        tokio::select! {
            freed = self.disk_space.free(path) => Some(freed == SpaceResult::Freed),
            () = otherwise => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shim_that_was_killed_at_once_is_explained() {
        let words =
            |killed| StepError::ShimDied { status: "?".to_owned(), killed, log: "/log".into() }.to_string();
        assert!(words(true).contains("overwritten") && words(true).contains("rename"), "{}", words(true));
        assert!(words(false).ends_with("what it has said is in /log"), "{}", words(false));
    }

    #[test]
    fn a_step_that_keeps_failing_waits_longer_each_time_and_is_reported_once() {
        let mut retries = Retries::default();
        let mut fail = |decision, problem: &str| {
            let before = retries.failed(decision, problem);
            let (delay, is_first) = retries.later(problem.to_owned(), before);
            (delay.as_secs(), is_first)
        };
        let table: Vec<_> = (0..8).map(|_| fail(Decision::Accept, "full")).collect();
        let expected = [1, 2, 4, 8, 16, 32, 60, 60].map(|delay| (delay, delay == 1));
        assert_eq!(table, expected);
        assert_eq!(fail(Decision::Accept, "denied"), (1, true), "another problem");
        retries.succeeded(Decision::Launch(crate::names::Restart(0)));
        let mut fail = |problem: &str| {
            let before = retries.failed(Decision::Accept, problem);
            retries.later(problem.to_owned(), before)
        };
        assert_eq!(fail("denied"), (Duration::from_secs(2), false), "a start is no success yet");
        retries.succeeded(Decision::Accept);
        let before = retries.failed(Decision::RemoveVolumes, "denied");
        assert!(before.is_none() && retries.vain_wipe);
        retries.at_once("denied".to_owned());
        let before = retries.failed(Decision::RemoveVolumes, "denied");
        assert!(before.is_some(), "freed space did not help");
        assert_eq!(retries.later("denied".to_owned(), before), (Duration::from_secs(1), true));
        retries.succeeded(Decision::RemoveVolumes);
        assert!(!retries.vain_wipe);
    }
}
