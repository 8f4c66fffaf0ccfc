//! Keeps the probes of a Pod's container going: from the moment that its VM runs until it does not.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::Resource as _;

use crate::apiserver::events::Events;
use crate::names::{Restart, VmName};
use crate::pod::sync::decide::Desired;
use crate::probe::spec::Probes;
use crate::probe::state::ContainerHealth;
use crate::probe::{Prober, Target, Tell};
use crate::state::{Progress, Stage, VmRunView};
use crate::tart::Tart;

/// The probes of the Pod's current VM, if it has any.
#[derive(Debug, Default)]
pub(super) struct ProbeManager(Option<(Restart, Prober)>);

impl ProbeManager {
    /// Starts, keeps or ends the probes, as the current VM has it, and says what they have found.
    pub(super) fn follow(
        &mut self,
        pod: &Arc<Pod>,
        wanted: Desired,
        current: Option<&VmRunView>,
        tart: &Tart,
        events: &Events,
    ) -> Option<ContainerHealth> {
        let Some((attempt, target, since)) = current.and_then(|attempt| running(attempt, tart)) else {
            self.0 = None;
            return None;
        };
        if self.0.as_ref().is_none_or(|(restart, _)| *restart != attempt.restart) {
            self.0 = begin(pod, attempt, target, since, events).map(|prober| (attempt.restart, prober));
        }
        let (_, prober) = self.0.as_mut()?;
        if !matches!(wanted, Desired::Run(_)) {
            prober.leave();
        }
        Some(prober.health())
    }

    /// Waits until the probes say something new.
    pub(super) async fn changed(&mut self) {
        match &mut self.0 {
            Some((_, prober)) => prober.changed().await,
            None => std::future::pending().await,
        }
    }
}

/// A VM whose container runs, with the way to it and the time of its start.
fn running<'a>(attempt: &'a VmRunView, tart: &Tart) -> Option<(&'a VmRunView, Target, Timestamp)> {
    let vm = &attempt.spec.as_ref()?.vm;
    match &attempt.progress {
        Some(Progress { stage: Stage::Running { address }, since, enter, probe })
            if attempt.outcome.is_none() =>
        {
            let control_socket = tart.vm_dir(vm).join("control.sock");
            let (enter, probe) = (enter.clone(), probe.clone());
            Some((attempt, Target { address: *address, control_socket, enter, probe }, *since))
        }
        _ => None,
    }
}

fn begin(
    pod: &Arc<Pod>,
    attempt: &VmRunView,
    target: Target,
    since: Timestamp,
    events: &Events,
) -> Option<Prober> {
    let container = pod.spec.as_ref()?.containers.first()?;
    let probes = Probes::of(container);
    if probes.is_empty() {
        return None;
    }
    let before = attempt.spec.as_ref().and_then(|spec| shown(pod, &spec.vm));
    let ran = Duration::try_from(Timestamp::now().duration_since(since)).unwrap_or_default();
    Some(Prober::start(probes, before, ran, target, &tell(pod, &container.name, events)))
}

/// What the API shows of a VM that it shows as running. Of a VM that was started a moment ago it shows nothing yet.
fn shown(pod: &Pod, vm: &VmName) -> Option<ContainerHealth> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    let id = crate::pod::status::container_id(vm);
    let status = statuses.iter().find(|status| status.container_id.as_deref() == Some(&*id))?;
    status.state.as_ref()?.running.as_ref()?;
    Some(ContainerHealth { started: status.started.unwrap_or(false), ready: status.ready, failed: None })
}

/// Warnings as Events about the container. The same words again are counted, other words are another Event.
fn tell(pod: &Arc<Pod>, container: &str, events: &Events) -> Tell {
    let mut reference = pod.object_ref(&());
    reference.field_path = Some(format!("spec.containers{{{container}}}"));
    let told: Mutex<(String, Events)> = Mutex::new((String::new(), events.clone()));
    let events = events.clone();
    Arc::new(move |reason, note| {
        let Ok(mut told) = told.lock() else { return };
        if told.0 != note {
            *told = (note.to_owned(), events.afresh());
        }
        told.1.about(reference.clone(), true, reason, note);
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(container: &Value) -> Pod {
        serde_json::from_value(json!({"status": {"containerStatuses": [container]}})).unwrap()
    }

    #[test]
    fn only_what_the_api_shows_of_this_very_vm_counts() {
        let vm = |restart| VmName::new("0b1c".parse().unwrap(), Restart(restart));
        let status = json!({
            "name": "main", "image": "i", "imageID": "i", "restartCount": 1, "containerID": "tart://tk-0b1c-1",
            "ready": true, "started": true, "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
        });
        let health = ContainerHealth { started: true, ready: true, failed: None };
        assert_eq!(shown(&pod(&status), &vm(1)), Some(health));
        assert_eq!(shown(&pod(&status), &vm(2)), None);
        let mut waiting = status.clone();
        waiting["state"] = json!({"waiting": {}});
        assert_eq!(shown(&pod(&waiting), &vm(1)), None);
        let mut unready = status;
        unready["ready"] = json!(false);
        assert_eq!(shown(&pod(&unready), &vm(1)), Some(ContainerHealth { ready: false, ..health }));
    }
}
