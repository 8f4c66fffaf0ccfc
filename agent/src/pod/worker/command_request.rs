//! The command of a container that starts after others of its Pod. The worker looks its variables up when the container is to start, as
//! for the first one.

use super::retry::StepError;
use super::{Worker, shim_spec};
use crate::crash_point;
use crate::names::Restart;
use crate::state::CommandResponse;
use crate::state::container_spec::all_containers;

impl Worker {
    /// Answers a shim's request for the command of the container that is to start. A Pod that is to go meanwhile does not wait for it.
    pub(super) async fn answer_command_request(&mut self, restart: Restart) -> Result<(), StepError> {
        let pod = self.updates.pod();
        let run = self.dir.run(restart);
        let Some(request) = run.command_request()? else { return Ok(()) };
        let mut containers = pod.spec.iter().flat_map(all_containers);
        let Some(container) = containers.find(|container| container.name == request.container) else {
            return Err(StepError::NoContainer(request.container));
        };
        // As in the kubelet, another image does not stop init containers that have a VM of their own.
        let has_main = run.view()?.has_main();
        let image = self.plan.as_ref().ok().filter(|_| has_main).map(|plan| plan.image.clone());
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
            return Err(StepError::NoContainer(request.container));
        };
        crash_point::point("agent.send-command.resolved");
        run.write_command_response(&CommandResponse { request, command })?;
        Ok(())
    }
}
