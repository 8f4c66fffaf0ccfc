//! A container whose turn comes after others of its Pod: what it runs is looked up when it is to start, as for the first one.

use k8s_openapi::api::core::v1::{Container, Pod};

use super::Worker;
use super::retry::StepError;
use super::shim_spec;
use crate::crash_point;
use crate::names::Restart;
use crate::state::Delivery;

impl Worker {
    /// Tells a shim what the container runs whose turn has come. A Pod that is to go meanwhile does not wait for it.
    pub(super) async fn deliver(&mut self, restart: Restart) -> Result<(), StepError> {
        let pod = self.pod.borrow().clone();
        let attempt = self.dir.attempt(restart);
        let Some(due) = attempt.due()? else { return Ok(()) };
        let Some(container) = named(&pod, &due.container) else {
            return Err(StepError::NoContainer(due.container));
        };
        let image = self.plan.as_ref().map(|plan| plan.image.clone()).unwrap_or_default();
        let called_off = self.called_off(&image);
        let variables = tokio::select! {
            variables = self.belongings.variables_of(container) => variables,
            () = called_off => return Ok(()),
        };
        let variables = match variables {
            Ok(known) => known.variables,
            Err(shortage) => {
                self.lacks(&pod, shortage);
                return Ok(());
            }
        };
        self.told.shortage = None;
        let Some(command) = shim_spec::command(&pod, container, variables) else {
            return Err(StepError::NoContainer(due.container));
        };
        crash_point::point("agent.deliver.resolved");
        attempt.deliver(&Delivery { due, command })?;
        Ok(())
    }
}

fn named<'a>(pod: &'a Pod, name: &str) -> Option<&'a Container> {
    let spec = pod.spec.as_ref()?;
    spec.init_containers.iter().flatten().chain(&spec.containers).find(|container| container.name == name)
}
