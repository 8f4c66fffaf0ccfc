//! Containers whose turn comes after others: the agent is asked what they run, since their variables may be others by then.

use tracing::warn;

use super::Shim;
use crate::crash;
use crate::report::chain;
use crate::state::{ContainerSpec, Due, GuestCommand};

impl Shim {
    /// What a container runs whose variables were not known, or may be others, since the VM was planned; `None` when the VM is to
    /// stop before the agent has said it. An agent that is away says it when it is back, as elsewhere.
    pub(super) async fn ask_for_command(&self, spec: &ContainerSpec, restarts: u32) -> Option<GuestCommand> {
        let due = Due { container: spec.name.clone(), restarts };
        let (mut stop, mut directory) = (self.stop.clone(), self.stop.clone());
        let answer = async {
            self.persist("which container is due", || self.attempt.ask_for_command(&due)).await;
            crash::point("shim.due");
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
                crash::point("shim.delivered");
                Some(command)
            }
            _ = stop.requested() => None,
        }
    }
}
