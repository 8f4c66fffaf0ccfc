//! The steps that end something of a Pod: a container, a VM, or the Pod itself.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, Preconditions};
use tokio::task::block_in_place;
use tracing::warn;

use super::retry::StepError;
use super::{RETRY, SAFETY_NET, STOP_LIMIT, Worker};
use crate::apiserver::call::{DEADLINE, call};
use crate::apiserver::events::EventReason;
use crate::names::{PodUid, Restart, VmName};
use crate::pod::sync::decide::Desired;
use crate::pod::sync::desired::{PodPresence, desired};
use crate::pod::sync::time::seconds;
use crate::state::{Ending, Outcome, RestartPolicy, StopCause, StopRequest, VmRun};
use crate::{crash_point, probe, shim};

impl Worker {
    /// Records that the Pod is evicted, before anything is done about it.
    pub(super) fn evict(&self) -> Result<(), StepError> {
        let Some(exceeded) = self.inputs.status().exceeded else { return Ok(()) };
        self.dir.evict(&exceeded.to_string())?;
        self.reporter.events().warning(&self.updates.pod(), EventReason::Evicted, &exceeded.to_string());
        Ok(())
    }

    /// Asks a shim to stop a VM whose container has failed a probe or is to have another image. The cause is part of the request, so that
    /// the agent that sees the VM end knows what to do next.
    pub(super) fn stop_for(&self, restart: Restart, cause: StopCause) -> Result<(), StepError> {
        let pod = self.updates.pod();
        let container = self.plan.as_ref().map_or("", |plan| &plan.container);
        let once = matches!(desired(&pod, PodPresence::Present), Desired::Run(RestartPolicy::Never));
        let restarts = !(once && cause.is_failure());
        let next = if restarts { ", will be restarted" } else { "" };
        self.reporter.events().normal(
            &pod,
            EventReason::Killing,
            &format!("Container {container} {cause}{next}"),
        );
        let grace = seconds(probe::spec::grace(&pod, cause));
        let request = StopRequest::within(grace, Some(cause));
        Ok(self.dir.run(restart).request_stop(request)?)
    }

    /// Asks a shim to stop the VM of a Pod that is to go.
    pub(super) fn ask_to_stop(&self, restart: Restart, grace: Duration) -> Result<(), StepError> {
        let run = self.dir.run(restart);
        let note = format!("stopping VM {} within {} s", run.vm(), grace.as_secs());
        self.reporter.events().normal(&self.updates.pod(), EventReason::Killing, &note);
        Ok(run.request_stop(StopRequest::within(grace, None))?)
    }

    pub(super) async fn ask_guest(&mut self, restart: Restart) -> Result<(), StepError> {
        let run = self.dir.run(restart);
        warn!(pod = %self.name, vm = %run.vm(), "the VM has lost its shim; asking its guest what it knows");
        // Noted first: the VM is stopped next, also when the answer cannot be recorded.
        self.shims.asked = Some(restart);
        Ok(shim::ask_guest(&run, &self.host.tart).await?)
    }

    pub(super) async fn stop_without_shim(&mut self, restart: Restart) -> Result<(), StepError> {
        let run = self.dir.run(restart);
        warn!(pod = %self.name, vm = %run.vm(), "the VM has lost its shim; stopping it");
        self.shims.stops(restart);
        self.host.tart.stop(&run.vm(), STOP_LIMIT).await?;
        shim::gone(&run, RETRY).await?;
        Ok(())
    }

    pub(super) async fn kill_leftovers(&mut self, restart: Restart) -> Result<(), StepError> {
        let run = self.dir.run(restart);
        let killed = block_in_place(|| shim::kill_lock_holders(&run))?;
        warn!(pod = %self.name, vm = %run.vm(), ?killed, "killed what the VM's shim has left running");
        shim::gone(&run, RETRY).await?;
        Ok(())
    }

    /// Kills a shim that does not stop its VM, or that has and does not go.
    pub(super) async fn kill_shim(&mut self, restart: Restart) -> Result<(), StepError> {
        let run = self.dir.run(restart);
        let vm = run.vm();
        let note = if run.view()?.outcome.is_none() {
            format!("the shim of VM {vm} does not stop it; killing both")
        } else {
            format!("the shim of VM {vm} does not go though the VM is over; killing it")
        };
        self.reporter.events().warning(&self.updates.pod(), EventReason::ShimStuck, &note);
        if !run.kill_shim()? {
            // The shim has not recorded its PID.
            block_in_place(|| shim::kill_stray_processes(&run))?;
        }
        self.wait_at_most(RETRY).await;
        Ok(())
    }

    /// Records that a VM ended unseen, unless its shim or its guest has recorded how it ended.
    pub(super) fn record_loss(&self, restart: Restart) -> Result<(), StepError> {
        let run = self.dir.run(restart);
        // A shim that was launched a moment ago may be about to begin; the process with the lock decides.
        let Some(_lock) = block_in_place(|| run.take_shim_lock())? else { return Ok(()) };
        let mut view = run.view()?;
        // A guest that had to be stopped has not ended by itself, whatever it says.
        view.guest_asked |= self.shims.stopped == Some(restart);
        if view.outcome.is_some() {
            return Ok(());
        }
        let now = Timestamp::now();
        let lost = || Outcome { ending: Ending::Lost, started_at: view.running_since(), finished_at: now };
        Ok(run.record_outcome(&shim::known_outcome(&view, now).unwrap_or_else(lost))?)
    }

    /// A VM of the Pod that exists, though no file says that it was begun, when the next one is about to be.
    pub(super) fn unknown_vm(&self, next: Restart) -> Result<Option<VmRun>, StepError> {
        let known: Vec<Restart> = self.dir.runs()?.iter().map(VmRun::restart).collect();
        let vms = self.host.tart.vm_dirs().map_err(StepError::Vms)?;
        Ok(unknown_vm(&vms, self.dir.uid(), &known, next).map(|restart| self.dir.run(restart)))
    }

    /// Records that a VM which only the API server knows of has run, and is lost. The Mac was reinstalled, or a user has deleted the state
    /// directory.
    pub(super) async fn recall(&mut self, restart: Restart) -> Result<(), StepError> {
        let run = self.dir.run(restart);
        self.stop_unknown(&run).await?;
        run.create_begun()?;
        self.record_loss(restart)
    }

    /// Stops a VM that no file knows of, and returns whether there is one.
    pub(super) async fn stop_unknown(&mut self, run: &VmRun) -> Result<bool, StepError> {
        // Its shim would record its end as that of the next VM.
        block_in_place(|| shim::kill_stray_processes(run))?;
        // tart does not know a VM whose deletion was cut short.
        block_in_place(|| self.host.tart.remove_rest(&run.vm())).map_err(StepError::Vms)?;
        let exists = self.host.tart.vm_dir(&run.vm()).exists();
        if exists {
            warn!(pod = %self.name, vm = %run.vm(), "nothing is known of a VM of the Pod; stopping it");
            self.host.tart.stop(&run.vm(), STOP_LIMIT).await?;
        }
        Ok(exists)
    }

    /// Scrubs the plan of a VM that has ended, which may hold secrets, and deletes the VM.
    pub(super) async fn clean(&mut self, restart: Restart) -> Result<(), StepError> {
        let run = self.dir.run(restart);
        // A shim that has written its outcome is gone in a moment.
        let Some(_lock) = block_in_place(|| run.take_shim_lock())? else {
            self.shims.cleans(false);
            return Ok(());
        };
        self.shims.cleans(true);
        let view = run.view()?;
        // First: tart may take long to delete a VM. A disk that is too full for the scrub has space once the VM is gone.
        let scrubbed = run.remove_secrets();
        crash_point::point("agent.delete-vm.scrubbed");
        self.host.tart.delete(&run.vm()).await?;
        // tart does not know a VM whose deletion was cut short.
        block_in_place(|| self.host.tart.remove_rest(&run.vm())).map_err(StepError::Vms)?;
        crash_point::point("agent.delete-vm.deleted");
        scrubbed.or_else(|_| run.remove_secrets())?;
        run.mark_cleaned()?;
        // A clone that failed may mean that the image is gone.
        if let Some(Outcome { ending: Ending::NotStarted { .. }, .. }) = view.outcome {
            let planned = view.spec.and_then(|spec| spec.image_name);
            let named = || self.plan.as_ref().ok().map(|plan| plan.image.clone());
            if let Some(image) = planned.or_else(named) {
                self.host.images.images.forget(&image);
            }
        }
        Ok(())
    }

    /// Deletes the Pod from the API server: everything else is done.
    pub(super) async fn delete_pod(&mut self) -> Result<(), StepError> {
        let uid = Some(self.dir.uid().to_string());
        let parameters = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(Preconditions { uid, resource_version: None }),
            ..DeleteParams::default()
        };
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.name.namespace);
        match call(DEADLINE, pods.delete(&self.name.name, &parameters)).await {
            Ok(_) => {}
            Err(error) if error.is_not_found() || error.is_conflict() => {}
            Err(error) => return Err(StepError::Delete(error)),
        }
        // The watch says when it is gone.
        self.wait_at_most(SAFETY_NET).await;
        Ok(())
    }
}

/// The first VM of a Pod that exists and that no file knows of: neither planned nor over, or planned to be the next and there already.
fn unknown_vm(vms: &[VmName], uid: &PodUid, known: &[Restart], next: Restart) -> Option<Restart> {
    let own = vms.iter().filter(|vm| vm.uid() == uid).map(VmName::restart);
    own.filter(|restart| *restart == next || !known.contains(restart)).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vm_of_the_pod_without_files_is_found() {
        let table = [
            (vec![], vec![0], 0, None),
            (vec!["tk-0b1c-0"], vec![0], 0, Some(0)),
            (vec!["tk-0b1c-3"], vec![0], 0, Some(3)),
            (vec!["tk-0b1c-3", "tk-0b1c-2"], vec![0], 0, Some(2)),
            (vec!["tk-0b1c-3", "tk-0b1c-2"], vec![0, 2], 0, Some(3)),
            // A VM that is over is deleted by another step.
            (vec!["tk-0b1c-0"], vec![0, 1], 1, None),
            (vec!["tk-0b1d-0", "tk-0b1c-0-3"], vec![0], 0, None),
        ];
        for (vms, known, next, expected) in table {
            let name = |name: &&str| serde_json::from_value(serde_json::json!(name)).unwrap();
            let names: Vec<VmName> = vms.iter().map(name).collect();
            let known: Vec<Restart> = known.iter().copied().map(Restart).collect();
            let found = unknown_vm(&names, &"0b1c".parse().unwrap(), &known, Restart(next));
            assert_eq!(found, expected.map(Restart), "{vms:?}");
        }
    }
}
