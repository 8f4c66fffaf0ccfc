//! Containers whose turn comes after others: the agent is asked what they run, since their variables may be others by then.

use std::borrow::Cow;

use tracing::warn;

use crate::crash_point;
use crate::error_chain::chain;
use crate::shim::Shim;
use crate::state::{ContainerSpec, Due, GuestCommand};

impl Shim {
    /// What a container runs: as planned, or what the agent says now of this start of one that is due. `None` when the VM is to stop
    /// before that. An agent that is away says it when it is back, as elsewhere.
    pub(crate) async fn command_of<'a>(
        &self,
        spec: &ContainerSpec,
        planned: &'a GuestCommand,
        due: Option<u32>,
    ) -> Option<Cow<'a, GuestCommand>> {
        let Some(restarts) = due else { return Some(Cow::Borrowed(planned)) };
        let due = Due { container: spec.name.clone(), restarts };
        let (mut stop, mut directory) = (self.stop.clone(), self.stop.clone());
        let answer = async {
            self.persist("which container is due", || self.attempt.ask_for_command(&due)).await;
            crash_point::point("shim.due");
            loop {
                match self.attempt.take_delivery(&due) {
                    Ok(Some(command)) => return command,
                    Ok(None) => {}
                    Err(error) => {
                        warn!(vm = %self.spec.vm, error = chain(&error), "cannot read what a container runs; trying again");
                    }
                }
                directory.stirred().await;
            }
        };
        tokio::select! {
            command = answer => {
                crash_point::point("shim.delivered");
                Some(Cow::Owned(command))
            }
            _ = stop.requested() => None,
        }
    }
}
