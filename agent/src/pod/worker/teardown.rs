//! The steps that end something of a Pod: a container, a VM, or the Pod itself.

use std::time::Duration;

use jiff::Timestamp;
use kube::api::{DeleteParams, Preconditions};
use tokio::task::block_in_place;
use tokio::time::timeout;
use tracing::warn;

use super::retry::StepError;
use super::{ORPHAN_PATIENCE, RETRY, SAFETY_NET, Worker};
use crate::crash_point;
use crate::names::PodUid;
use crate::names::{Restart, VmName};
use crate::pod::sync::decide::Desired;
use crate::pod::sync::desired::wanted;
use crate::pod::sync::time::seconds;
use crate::probe;
use crate::shim;
use crate::state::RestartPolicy;
use crate::state::{Ending, Outcome, StopCause, StopRequest, VmRun};

const API_LIMIT: Duration = Duration::from_secs(15);

impl Worker {
    /// Writes down that the Pod is evicted, before anything is done about it.
    pub(super) fn evict(&self) -> Result<(), StepError> {
        let Some(exceeded) = self.belongings.exceeded() else { return Ok(()) };
        self.dir.evict(&exceeded.to_string())?;
        let pod = self.pod.borrow().clone();
        self.host.events.warning(&pod, "Evicted", &exceeded.to_string());
        Ok(())
    }

    /// Asks for a VM to be stopped whose container has failed a probe or is to have another image. Why is part of the request, so
    /// that whoever sees the VM end knows what to do next.
    pub(super) fn stop_for(&self, restart: Restart, cause: StopCause) -> Result<(), StepError> {
        let pod = self.pod.borrow().clone();
        let container = self.plan.as_ref().map_or("", |plan| &plan.container);
        let once = matches!(wanted(&pod, false), Desired::Run(RestartPolicy::Never));
        let restarts = !(once && cause.is_failure());
        let next = if restarts { ", will be restarted" } else { "" };
        self.host.events.normal(&pod, "Killing", &format!("Container {container} {cause}{next}"));
        let grace = seconds(probe::spec::grace(&pod, cause));
        let request = StopRequest::within(grace, Some(cause));
        Ok(self.dir.attempt(restart).request_stop(request)?)
    }

    /// Kills a shim that does not stop its VM, or that has and does not go.
    pub(super) async fn kill_shim(&mut self, restart: Restart) -> Result<(), StepError> {
        let attempt = self.dir.attempt(restart);
        let pod = self.pod.borrow().clone();
        let vm = attempt.vm();
        let note = if attempt.view()?.outcome.is_none() {
            format!("the shim of VM {vm} does not stop it; killing both")
        } else {
            format!("the shim of VM {vm} does not go though the VM is over; killing it")
        };
        self.host.events.warning(&pod, "ShimStuck", &note);
        if !attempt.kill_shim()? {
            // Nobody knows which process it is.
            block_in_place(|| shim::kill_leftovers(&attempt))?;
        }
        self.wait_at_most(RETRY).await;
        Ok(())
    }

    /// Writes down that a VM ended in a way that nobody saw, unless its shim or its guest has left word of it.
    pub(super) fn record_loss(&self, restart: Restart) -> Result<(), StepError> {
        let attempt = self.dir.attempt(restart);
        // A shim that was launched a moment ago may be about to begin; whoever has the lock decides.
        let Some(_lock) = block_in_place(|| attempt.seal())? else { return Ok(()) };
        let mut view = attempt.view()?;
        // What a guest says that had to be stopped is no end of its own.
        view.asked |= self.stopped == Some(restart);
        if view.outcome.is_some() {
            return Ok(());
        }
        let now = Timestamp::now();
        let lost = || Outcome { ending: Ending::Lost, started_at: view.running_since(), finished_at: now };
        Ok(attempt.finish(&shim::known_end(&view, now).unwrap_or_else(lost))?)
    }

    /// A VM of the Pod that exists though nothing says that it was begun, when this one is about to be.
    pub(super) fn forgotten(&self, next: Restart) -> Result<Option<VmRun>, StepError> {
        let known: Vec<Restart> = self.dir.attempts()?.iter().map(VmRun::restart).collect();
        let vms = self.host.tart.vm_dirs().map_err(StepError::Vms)?;
        Ok(forgotten(&vms, self.dir.uid(), &known, next).map(|restart| self.dir.attempt(restart)))
    }

    /// Ends a VM that was never begun, by all that is known of it, and exists: somebody has deleted the Pod's directory while it ran. That
    /// it was begun is written down again, so that it does not run twice.
    pub(super) async fn end_forgotten(&self, attempt: &VmRun) -> Result<(), StepError> {
        if self.silence(attempt).await? {
            attempt.begin_again()?;
        }
        Ok(())
    }

    /// Writes down that a VM has run, and is lost, of which only the API still knows: the Mac was set up anew, or somebody has tidied up.
    pub(super) async fn recall(&self, restart: Restart) -> Result<(), StepError> {
        let attempt = self.dir.attempt(restart);
        self.silence(&attempt).await?;
        attempt.begin_again()?;
        self.record_loss(restart)
    }

    /// Stops a VM of which nothing is known; whether there is one.
    async fn silence(&self, attempt: &VmRun) -> Result<bool, StepError> {
        // Its shim would write down its end as that of the next one.
        block_in_place(|| shim::kill_leftovers(attempt))?;
        // What a deletion has left that was cut short is no VM to tart.
        block_in_place(|| self.host.tart.remove_rest(&attempt.vm())).map_err(StepError::Vms)?;
        let exists = self.host.tart.vm_dir(&attempt.vm()).exists();
        if exists {
            warn!(pod = %self.name, vm = %attempt.vm(), "nothing is known of a VM of the Pod; stopping it");
            self.host.tart.stop(&attempt.vm(), ORPHAN_PATIENCE).await?;
        }
        Ok(exists)
    }

    /// Forgets what may be secret in the plan of a VM that has ended, and deletes it.
    pub(super) async fn clean(&mut self, restart: Restart) -> Result<(), StepError> {
        let attempt = self.dir.attempt(restart);
        // A shim that has written its outcome is gone in a moment.
        let Some(_lock) = block_in_place(|| attempt.seal())? else {
            self.vain_cleans += 1;
            return Ok(());
        };
        self.vain_cleans = 0;
        let view = attempt.view()?;
        // First: tart may take long to delete a VM. A disk that is too full for it has room once the VM is gone.
        let scrubbed = attempt.scrub();
        crash_point::point("agent.clean.scrubbed");
        self.host.tart.delete(&attempt.vm()).await?;
        // What a deletion leaves that was cut short is no VM to tart.
        block_in_place(|| self.host.tart.remove_rest(&attempt.vm())).map_err(StepError::Vms)?;
        crash_point::point("agent.clean.deleted");
        scrubbed.or_else(|_| attempt.scrub())?;
        attempt.mark_cleaned()?;
        // A clone that failed may mean that the image is no longer where it was.
        if let (Some(Outcome { ending: Ending::NotStarted { .. }, .. }), Ok(plan)) =
            (view.outcome, &self.plan)
        {
            self.host.images.forget(&plan.image);
        }
        Ok(())
    }

    /// Takes the Pod out of the API: everything else is done.
    pub(super) async fn delete_pod(&mut self) -> Result<(), StepError> {
        let uid = Some(self.dir.uid().to_string());
        let parameters = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(Preconditions { uid, resource_version: None }),
            ..DeleteParams::default()
        };
        match timeout(API_LIMIT, self.api.delete(&self.name.name, &parameters)).await {
            Ok(Ok(_)) => {}
            Ok(Err(kube::Error::Api(answer))) if matches!(answer.code, 404 | 409) => {}
            Ok(Err(error)) => return Err(StepError::Delete(error.into())),
            Err(late) => return Err(StepError::Delete(late.into())),
        }
        // The watch says when it is gone.
        self.wait_at_most(SAFETY_NET).await;
        Ok(())
    }
}

/// The first of a Pod's VMs that was made and is not known: neither planned nor over, or planned to be the next and there already.
fn forgotten(vms: &[VmName], uid: &PodUid, known: &[Restart], next: Restart) -> Option<Restart> {
    let own = vms.iter().filter(|vm| vm.uid() == uid).map(VmName::restart);
    own.filter(|restart| *restart == next || !known.contains(restart)).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_was_made_for_the_pod_and_is_not_known_is_forgotten() {
        let table = [
            (vec![], vec![0], 0, None),
            (vec!["tk-0b1c-0"], vec![0], 0, Some(0)),
            (vec!["tk-0b1c-3"], vec![0], 0, Some(3)),
            (vec!["tk-0b1c-3", "tk-0b1c-2"], vec![0], 0, Some(2)),
            (vec!["tk-0b1c-3", "tk-0b1c-2"], vec![0, 2], 0, Some(3)),
            // What is known to be over is somebody else's to delete.
            (vec!["tk-0b1c-0"], vec![0, 1], 1, None),
            (vec!["tk-0b1d-0", "tk-0b1c-0-3"], vec![0], 0, None),
        ];
        for (vms, known, next, expected) in table {
            let name = |name: &&str| serde_json::from_value(serde_json::json!(name)).unwrap();
            let names: Vec<VmName> = vms.iter().map(name).collect();
            let known: Vec<Restart> = known.iter().copied().map(Restart).collect();
            let found = forgotten(&names, &"0b1c".parse().unwrap(), &known, Restart(next));
            assert_eq!(found, expected.map(Restart), "{vms:?}");
        }
    }
}
