//! A Mac: what it should be like, and the steps that take it there.

mod change;
mod config;
mod converge;
pub mod firewall;
mod kcpassword;
#[cfg(test)]
mod memory_mac;
mod part;
mod secret;
mod step;
#[cfg(test)]
mod tests;

pub(crate) use config::{
    ActionsRunner, AgentSettings, Credential, HostConfig, NodeExporter, Tailscale, Tart, farewell_steps,
    has_joined, prepare_steps, tailnet_address,
};
pub(crate) use converge::{Mode, Outcome, Report, converge};
pub(crate) use part::Inputs;
pub(crate) use secret::Secret;
pub(crate) use step::Step;

use std::time::Duration;

use launchd::{Call, CallOutput, Host, HostError};

use crate::artifact::Artifact;

/// A Mac behind a connection. [`Host`] does everything as root; some things are the user's own.
pub(crate) trait Remote: Host {
    /// Runs a command as the user that is logged in, over SSH and at the screen.
    fn run_as_user(&self, call: Call<'_>) -> impl Future<Output = Result<CallOutput, HostError>> + Send;

    /// Whether the connection is gone, so that no further command gets an answer.
    fn is_lost(&self) -> bool;

    /// Copies a file of this machine to the Mac, in pieces. The file is there as a whole, or not at all; it belongs to root and is
    /// executable.
    fn upload(
        &self,
        artifact: &Artifact,
        path: &str,
        deadline: Duration,
    ) -> impl Future<Output = Result<(), HostError>> + Send;
}
