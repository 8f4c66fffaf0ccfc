//! Command requests: the shim asks the agent for the command of a container that starts after others. Its variables may have changed since
//! the plan was written.

use std::borrow::Cow;

use tracing::warn;

use crate::crash_point;
use crate::error_chain::chain;
use crate::shim::Shim;
use crate::state::{CommandRequest, ContainerSpec, GuestCommand};

impl Shim {
    /// The command of a container: the planned one, or the agent's answer where the shim asks for this start. `None` when the agent asks
    /// for a stop first. The shim waits for an agent that is being restarted.
    pub(super) async fn command_of<'a>(
        &self,
        spec: &ContainerSpec,
        planned: &'a GuestCommand,
        asked_restarts: Option<u32>,
    ) -> Option<Cow<'a, GuestCommand>> {
        let Some(restarts) = asked_restarts else { return Some(Cow::Borrowed(planned)) };
        let request = CommandRequest { container: spec.name.clone(), restarts };
        let (mut stop, mut directory) = (self.stop.clone(), self.stop.clone());
        let answer = async {
            self.persist("the request for a command", || self.vm_run.request_command(&request)).await;
            crash_point::point("shim.command-requested");
            loop {
                match self.vm_run.take_command_response(&request) {
                    Ok(Some(command)) => return command,
                    Ok(None) => {}
                    Err(error) => {
                        warn!(vm = %self.spec.vm, error = chain(&error), "cannot read the agent's answer to the request for a command; trying again");
                    }
                }
                directory.looked().await;
            }
        };
        tokio::select! {
            command = answer => {
                crash_point::point("shim.command-received");
                Some(Cow::Owned(command))
            }
            _ = stop.requested() => None,
        }
    }
}
