//! The command of a container that starts after others of its Pod. The worker looks its variables up when the container is to start, as
//! for the first one.

use k8s_openapi::api::core::v1::{Container, Pod};

use super::retry::StepError;
use super::{Worker, shim_spec};
use crate::crash_point;
use crate::names::Restart;
use crate::state::CommandResponse;

impl Worker {
    /// Gives a shim the command of the container that is to start. A Pod that is to go meanwhile does not wait for it.
    pub(super) async fn deliver(&mut self, restart: Restart) -> Result<(), StepError> {
        let pod = self.updates.pod();
        let run = self.dir.run(restart);
        let Some(due) = run.command_request()? else { return Ok(()) };
        let Some(container) = named(&pod, &due.container) else {
            return Err(StepError::NoContainer(due.container));
        };
        let image = self.plan.as_ref().map(|plan| plan.image.clone()).unwrap_or_default();
        let dir = self.dir.clone();
        // The worker reads the file again, and reports it if it cannot.
        let is_evicted = move || matches!(dir.evicted(), Ok(Some(_)));
        let called_off = self.updates.called_off(image, self.watcher.waker(), is_evicted);
        let variables = tokio::select! {
            variables = self.inputs.variables_of(container) => variables,
            () = called_off => return Ok(()),
        };
        let variables = match variables {
            Ok(known) => known.variables,
            Err(missing) => {
                self.lacks(&pod, &missing);
                return Ok(());
            }
        };
        self.reporter.inputs_are_complete();
        let Some(command) = shim_spec::command(&pod, container, variables) else {
            return Err(StepError::NoContainer(due.container));
        };
        crash_point::point("agent.send-command.resolved");
        run.write_command_response(&CommandResponse { request: due, command })?;
        Ok(())
    }
}

fn named<'a>(pod: &'a Pod, name: &str) -> Option<&'a Container> {
    let spec = pod.spec.as_ref()?;
    spec.init_containers.iter().flatten().chain(&spec.containers).find(|container| container.name == name)
}
