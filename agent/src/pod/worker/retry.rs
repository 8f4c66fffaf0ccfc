//! Effects that fail: what a person is told of it, and when a worker tries again.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tokio::time::sleep;

use super::{RETRY, Worker};
use crate::error_chain::{self, chain};
use crate::fs::file::FileError;
use crate::image::gc::{SpaceRequest, SpaceResult};
use crate::pod::sync::decide::Decision;
use crate::pod::sync::desired::otherwise_wanted;
use crate::shim::{LaunchError, StrayProcessError};
use crate::tart::{Fault, TartError};

const LONGEST_RETRY: Duration = Duration::from_mins(1);

/// An effect that failed; the worker tries again.
#[derive(Debug, thiserror::Error)]
pub(super) enum StepError {
    #[error(transparent)]
    State(#[from] FileError),
    #[error(transparent)]
    Tart(#[from] TartError),
    #[error(transparent)]
    Launch(#[from] LaunchError),
    #[error("its shim has ended ({status}) before it had taken the VM up; what it has said is in {}", .log.display())]
    ShimDied { status: String, log: PathBuf },
    #[error(transparent)]
    Leftovers(#[from] StrayProcessError),
    #[error("cannot see which VMs there are")]
    Vms(#[source] io::Error),
    #[error("cannot make the directories of a guest that only boots")]
    Boot(#[source] io::Error),
    #[error("the Pod has no container {0} with a command")]
    NoContainer(String),
    #[error("cannot delete the Pod from the API")]
    Delete(#[source] Box<dyn std::error::Error + Send + Sync>),
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

/// An effect that keeps failing.
pub(super) struct FailedStep {
    problem: String,
    /// How long it was waited for the last time; not at all after room was made for it.
    delay: Option<Duration>,
}

impl Worker {
    /// Tells about an effect that failed, once, and waits before it is tried again: longer each time. When the disk is full, room
    /// is made, and it is tried once more before anybody is told.
    pub(super) async fn failed(&mut self, decision: Decision, error: &StepError) {
        self.vain_wipe |= decision == Decision::Wipe;
        let is_full = error.is_for_want_of_space();
        let advice = if is_full { Fault::NoSpace.advice() } else { "" };
        let problem = format!("{}: {}{advice}", describe(decision), chain(error));
        let before = self.setback.take().filter(|before| before.problem == problem);
        if is_full && before.is_none() {
            match self.make_room(error).await {
                Some(true) => {
                    self.setback = Some(FailedStep { problem, delay: None });
                    if let Decision::AskGuest(_) = decision {
                        // What it says can be written down now.
                        self.asked = None;
                    }
                    return;
                }
                Some(false) => {}
                // What is to be done now may be something else, and room may be made for that.
                None => return,
            }
        }
        let delay = match before.and_then(|before| before.delay) {
            Some(delay) => (delay * 2).min(LONGEST_RETRY),
            None => {
                let pod = self.pod.borrow().clone();
                self.host.events.warning(&pod, "FailedSync", &problem);
                RETRY
            }
        };
        self.setback = Some(FailedStep { problem, delay: Some(delay) });
        // What the failed effect itself has stirred in the directory is no reason to hurry.
        tokio::select! {
            Ok(()) = self.pod.changed() => {}
            Ok(()) = self.gone.changed() => {}
            () = sleep(delay) => {}
        }
    }

    /// Makes room where an effect has found none; whether there is more than before. `None` when something else is wanted of the Pod
    /// meanwhile: nobody waits for it then.
    async fn make_room(&self, error: &StepError) -> Option<bool> {
        let path = if let StepError::Tart(_) = error { self.host.tart.home() } else { self.dir.logs_path() };
        tokio::select! {
            result = self.host.disk_space.free(SpaceRequest::Path(path)) => Some(result == SpaceResult::Freed),
            () = otherwise_wanted(self.wanted, self.pod.clone(), self.gone.clone()) => None,
        }
    }
}

/// A step in words, for the Event that says that it failed.
fn describe(decision: Decision) -> &'static str {
    match decision {
        Decision::Accept => "cannot write the Pod down",
        Decision::Plan { .. } => "cannot plan a VM",
        Decision::Launch(_) => "cannot start the VM",
        Decision::Deliver(_) => "cannot tell the VM's shim what to run",
        Decision::MakeRoom(_) => "cannot tell the VM's shim that there is room",
        Decision::AskToStop(..)
        | Decision::StopFor(..)
        | Decision::KillShim(_)
        | Decision::StopOrphan(_)
        | Decision::KillLeftovers(_) => "cannot stop the VM",
        Decision::AskGuest(_) | Decision::Recall(_) | Decision::RecordLoss(_) => {
            "cannot write down how the VM ended"
        }
        Decision::Clean(_) => "cannot delete the VM",
        Decision::Evict => "cannot evict the Pod",
        Decision::Wipe => "cannot remove the Pod's volumes",
        Decision::Drop(_) | Decision::Forget => "cannot clean up after the Pod",
        Decision::DeletePod => "cannot finish the Pod's deletion",
        Decision::Wait(_) => "cannot wait",
    }
}
