//! How a VM's run came to its end, while it is being found out.

use std::io;
use std::process::ExitStatus;

use jiff::Timestamp;
use tokio::process::Child;

use crate::shim::stop::grace_period::GracePeriod;
use crate::state::{Ending, Outcome};

/// A VM that has run, or was to.
pub(crate) struct RunResult {
    /// Its tart, which may still be there.
    pub(crate) child: Option<Child>,
    pub(crate) outcome: Outcome,
    /// Whether it ended because the host's disk is full.
    pub(crate) no_space: bool,
    /// Whether anything may have run in it that must not run again on the same disk: an init container, a hook, the guest's own programs.
    pub(crate) has_started: bool,
}

impl RunResult {
    pub(crate) fn not_started(ending: Ending) -> Self {
        let outcome = Outcome { ending, started_at: None, finished_at: Timestamp::now() };
        Self { child: None, outcome, no_space: false, has_started: false }
    }
}

/// What ended a VM's life.
pub(crate) enum End {
    Vm(io::Result<ExitStatus>),
    Guest(GuestEnd),
}

/// What ended the guest's side of it.
pub(crate) enum GuestEnd {
    /// This.
    Over(Ending),
    /// The guest is to be shut down, within this time.
    Asked(GracePeriod),
    /// Nobody knows: the guest agent is gone.
    Lost,
}

/// What is known of the container while it runs.
#[derive(Debug, Default)]
pub(crate) struct Container {
    /// Whether its guest has booted.
    pub(crate) is_up: bool,
    pub(crate) started_at: Option<Timestamp>,
    /// How the `postStart` hook of one that only boots has failed, which it ends for.
    pub(crate) hook_failed: Option<String>,
}
