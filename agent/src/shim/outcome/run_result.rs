//! How a VM's run came to its end, while it is being found out.

use std::io;
use std::process::ExitStatus;

use jiff::Timestamp;
use tokio::process::Child;

use crate::shim::stop::grace_period::Limit;
use crate::state::{Ending, Outcome};

/// A VM that has run, or was to.
pub(super) struct Ran {
    /// Its tart, which may still be there.
    pub(super) child: Option<Child>,
    pub(super) outcome: Outcome,
    /// Whether it ended because the host's disk is full.
    pub(super) no_space: bool,
    /// Whether anything may have run in it that must not run again on the same disk: an init container, a hook, the guest's own programs.
    pub(super) has_started: bool,
}

impl Ran {
    pub(super) fn not_started(ending: Ending) -> Self {
        let outcome = Outcome { ending, started_at: None, finished_at: Timestamp::now() };
        Self { child: None, outcome, no_space: false, has_started: false }
    }
}

/// What ended a VM's life.
pub(super) enum End {
    Vm(io::Result<ExitStatus>),
    Guest(GuestEnd),
}

/// What ended the guest's side of it.
pub(super) enum GuestEnd {
    /// This.
    Over(Ending),
    /// The guest is to be shut down, within this time.
    Asked(Limit),
    /// Nobody knows: the guest agent is gone.
    Lost,
}

/// What is known of the container while it runs.
#[derive(Debug, Default)]
pub(super) struct Container {
    /// Whether its guest has booted.
    pub(super) is_up: bool,
    pub(super) started_at: Option<Timestamp>,
    /// How the `postStart` hook of one that only boots has failed, which it ends for.
    pub(super) hook_failed: Option<String>,
}
