//! Keeps the probes of a Pod's container going: from the moment that its VM runs until it does not.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use super::host::Host;
use super::updates::PodUpdates;
use crate::apiserver::events::Events;
use crate::clock;
use crate::guest::connections::GuestConnections;
use crate::guest::{CONTROL_SOCKET, Guest};
use crate::metrics::{Metrics, ProbedContainer};
use crate::names::{Restart, VmName};
use crate::pod::sync::decide::Desired;
use crate::pod::sync::time::between;
use crate::probe::reach::Reach;
use crate::probe::spec::Probes;
use crate::probe::state::ContainerHealth;
use crate::probe::{Count, Prober, Target, Tell};
use crate::state::{Progress, Stage, VmRunView};
use crate::tart::Tart;

/// The probes of the Pod's current VM, if it has any.
#[derive(Debug)]
pub(super) struct ProbeManager {
    tart: Tart,
    guests: GuestConnections,
    events: Events,
    metrics: Metrics,
    /// Whether probes may name this Mac itself as their `host`.
    local_hosts: bool,
    /// The control socket of the VM that last ran.
    control_socket: Option<PathBuf>,
    current: Option<CurrentProbes>,
    /// Whether the API server has shown the Pod to this agent.
    is_confirmed: bool,
}

#[derive(Debug)]
struct CurrentProbes {
    restart: Restart,
    prober: Prober,
    /// What the probes had found when the worker last followed the VM.
    health: ContainerHealth,
}

impl ProbeManager {
    pub(super) fn new(host: &Host) -> Self {
        Self {
            tart: host.tart.clone(),
            guests: host.guests.clone(),
            events: host.reports.events.clone(),
            metrics: host.reports.metrics.clone(),
            local_hosts: host.vms.local_probe_hosts,
            control_socket: None,
            current: None,
            is_confirmed: false,
        }
    }

    /// Starts, keeps or ends the probes, as the current VM has it, and takes in what they have found.
    pub(super) fn follow(&mut self, pod: &Arc<Pod>, updates: &PodUpdates, current: Option<&VmRunView>) {
        if updates.is_confirmed && !std::mem::replace(&mut self.is_confirmed, updates.is_confirmed) {
            // The API server shows a later health than an earlier agent has kept.
            self.current = None;
        }
        let control_socket = current.and_then(|run| control_socket(run, &self.tart));
        if self.control_socket != control_socket
            && let Some(ended) = std::mem::replace(&mut self.control_socket, control_socket)
        {
            self.guests.close(&ended);
        }
        let running = current.zip(self.control_socket.as_deref());
        let target =
            |(run, socket): (_, &Path)| running_target(run, self.local_hosts, || self.guests.to(socket));
        let running = running.and_then(target);
        let Some((run, target, since)) = running else {
            self.current = None;
            return;
        };
        if self.current.as_ref().is_none_or(|current| current.restart != run.restart) {
            self.current = begin(pod, run, target, (since, self.is_confirmed), (&self.events, &self.metrics))
                .map(|mut prober| CurrentProbes { restart: run.restart, health: prober.health(), prober });
        }
        let Some(current) = &mut self.current else { return };
        if !matches!(updates.desired, Desired::Run(_)) {
            current.prober.leave();
        }
        current.health = current.prober.health();
    }

    /// What the probes of the current VM have found; absent when it has none.
    pub(super) fn health(&self) -> Option<ContainerHealth> {
        self.current.as_ref().map(|current| current.health)
    }

    /// Waits until the probes have found something else. Safe to cancel.
    pub(super) async fn changed(&mut self) {
        match &mut self.current {
            Some(current) => current.prober.changed().await,
            None => std::future::pending().await,
        }
    }
}

/// The control socket of a VM that may run.
fn control_socket(run: &VmRunView, tart: &Tart) -> Option<PathBuf> {
    let vm = &run.spec.as_ref()?.vm;
    run.outcome.is_none().then(|| tart.vm_dir(vm).join(CONTROL_SOCKET))
}

/// A VM whose container runs, with the target of its probes and the time of its start.
fn running_target(
    run: &VmRunView,
    local_hosts: bool,
    guest: impl FnOnce() -> Guest,
) -> Option<(&VmRunView, Target, Timestamp)> {
    match &run.progress {
        Some(Progress { stage: Stage::Running { address }, since, enter, probe })
            if run.outcome.is_none() =>
        {
            let (enter, probe) = (enter.clone(), probe.clone());
            let reach = Reach { guest: *address, local: local_hosts };
            Some((run, Target { reach, guest: guest(), enter, probe }, *since))
        }
        _ => None,
    }
}

fn begin(
    pod: &Arc<Pod>,
    run: &VmRunView,
    target: Target,
    (since, is_confirmed): (Timestamp, bool),
    (events, metrics): (&Events, &Metrics),
) -> Option<Prober> {
    let container = pod.spec.as_ref()?.containers.first()?;
    let probes = Probes::of(container);
    if probes.is_empty() {
        return None;
    }
    let before = run.spec.as_ref().and_then(|spec| shown(pod, &spec.vm));
    if !may_begin(before, is_confirmed) {
        return None;
    }
    let ran = between(clock::of_record(since), clock::now());
    let (tell, count) = (tell(pod, &container.name, events), count(pod, &container.name, metrics));
    Some(Prober::start(probes, before, ran, target, &tell, &count))
}

/// Whether probes may begin after this health. A container that is not known to have started may have: its startup probe may fail by now, and
/// would have it killed. The API server knows.
fn may_begin(before: Option<ContainerHealth>, is_confirmed: bool) -> bool {
    is_confirmed || before.is_some_and(|health| health.started)
}

/// The health that the API server shows of a VM that runs. It shows nothing yet of a VM that was started a moment ago.
fn shown(pod: &Pod, vm: &VmName) -> Option<ContainerHealth> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    let id = crate::pod::status::container_id(vm);
    let status = statuses.iter().find(|status| status.container_id.as_deref() == Some(&*id))?;
    status.state.as_ref()?.running.as_ref()?;
    Some(ContainerHealth { started: status.started.unwrap_or(false), ready: status.ready, failed: None })
}

/// Counts the results of the container's probes.
fn count(pod: &Pod, container: &str, metrics: &Metrics) -> Count {
    let probed = ProbedContainer {
        namespace: pod.metadata.namespace.clone().unwrap_or_default(),
        pod: pod.metadata.name.clone().unwrap_or_default(),
        uid: pod.metadata.uid.clone().unwrap_or_default(),
        container: container.to_owned(),
    };
    let metrics = metrics.clone();
    Arc::new(move |kind, result| metrics.probed(&probed, &kind.to_string(), result))
}

/// Writes Events about the container. The same note again is counted; another note is another Event.
fn tell(pod: &Arc<Pod>, container: &str, events: &Events) -> Tell {
    let reference = Events::container(pod, format!("spec.containers{{{container}}}"));
    let last: Mutex<(String, Events)> = Mutex::new((String::new(), events.clone()));
    let events = events.clone();
    Arc::new(move |reason, note| {
        let Ok(mut last) = last.lock() else { return };
        if last.0 != note {
            *last = (note.to_owned(), events.afresh());
        }
        last.1.about(reference.clone(), true, reason, note);
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
    fn probes_of_an_unconfirmed_pod_begin_only_after_its_start() {
        let health = |started| Some(ContainerHealth { started, ready: false, failed: None });
        for (before, unconfirmed) in [(None, false), (health(false), false), (health(true), true)] {
            assert_eq!(
                (may_begin(before, false), may_begin(before, true)),
                (unconfirmed, true),
                "{before:?}"
            );
        }
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
