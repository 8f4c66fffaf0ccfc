//! The set-up of a container in the guest.

use std::time::Duration;

use tracing::warn;

use super::ContainerStart;
use crate::error_chain::chain;
use crate::guest::script::{self, ContainerScripts, incomplete_set_up, read_set_up};
use crate::guest::{Exec, Guest, GuestError, Stdin};
use crate::shim::Shim;
use crate::shim::outcome::messages::stopped_before_start;
use crate::state::{ContainerSpec, Ending, GuestCommand, GuestUser, NotStarted, NotStartedReason};

/// How long the set-up may take; shares can take a while to appear.
const LIMIT: Duration = Duration::from_mins(2);
/// How much of a script's output the shim reads.
pub(in crate::shim) const MAX_OUTPUT: usize = 16 << 10;
/// How often the shim tries the set-up when the guest agent breaks off.
const TRIES: u32 = 3;

impl Shim {
    pub(super) async fn set_up(
        &self,
        guest: &mut Guest,
        start: &ContainerStart<'_>,
        command: &GuestCommand,
    ) -> Result<ContainerScripts, Ending> {
        let address = start.address.to_string();
        let identity = start.identity.map(|identity| (identity, address.as_str()));
        let mounts = start.spec.mounts.iter().map(|mount| mount.at(&address)).collect();
        let container = ContainerSpec { mounts, ..start.spec.clone() };
        let script = script::set_up(&container, command, identity);
        let scripts = self.run_set_up(guest, script, &command.user).await?;
        if let Some(user) = scripts.user {
            self.report_share_permissions(user, &container.mounts).await;
        }
        Ok(scripts)
    }

    /// Runs a set-up script. It fails with [`Ending::Lost`] when the guest agent is gone, and with
    /// [`Stopped`](NotStartedReason::Stopped) when the agent asks for a stop.
    pub(in crate::shim) async fn run_set_up(
        &self,
        guest: &mut Guest,
        script: String,
        user: &GuestUser,
    ) -> Result<ContainerScripts, Ending> {
        let argv = ["/bin/sh", "-s"].map(str::to_owned).to_vec();
        let exec = Exec { argv, stdin: Stdin::Bytes(script.into_bytes()), ..Exec::default() };
        let mut stop = self.stop.clone();
        let mut tries = 1;
        let (result, end, output) = loop {
            let done = tokio::select! {
                done = guest.run(exec.clone(), LIMIT, MAX_OUTPUT) => done,
                _ = stop.requested() => return Err(stopped_before_start().into()),
            };
            // A guest agent that breaks off may lose the output. The set-up can run twice.
            let result = read_set_up(&done.output, user);
            if result.is_some() || tries == TRIES || !matches!(done.end, Err(GuestError::Refused(_))) {
                break (result, done.end, done.output);
            }
            tries += 1;
        };
        let scripts = match (result, end) {
            // The script's last line counts, whatever the guest agent says of the script.
            (Some(result), _) => result?,
            (None, Ok(_)) => return Err(incomplete_set_up(&output).into()),
            (None, Err(GuestError::Unreachable(error))) => {
                warn!(error = chain(error.as_ref()), "lost the guest agent during the set-up");
                return Err(Ending::Lost);
            }
            (None, Err(error)) => {
                let message = format!("the guest cannot be prepared for the container: {}", chain(&error));
                return Err(NotStarted::new(NotStartedReason::CreateContainerError, message).into());
            }
        };
        for message in &scripts.notices {
            self.notice("GuestSetup", message.clone());
        }
        Ok(scripts)
    }
}
