//! A host is given back, and nothing is left of its machine.

use std::time::Duration;

use kube::ResourceExt as _;
use kube::runtime::controller::Action;
use kube::runtime::events::EventType;
use launchd::{AGENT_BINARY, Call, Host as _};
use serde_json::json;
use tracing::{info, warn};

use super::decide::ClusterSeen;
use super::reconciler::{ReconcileError, Reconciler, reference};
use super::{FINALIZER, delete};
use crate::apiserver::change;
use crate::cluster_api::PAUSED;
use crate::crd::{Phase, ScalewayAppleSiliconMachine as Machine};
use crate::error_chain::chain;
use crate::host::{Inputs, Mode, converge, farewell_steps};
use crate::names::{HostId, Zone};
use crate::pool::{Destination, HeldHost, HostState, OsFamily, PoolError, PoolPrefix, ReleaseOutcome};
use crate::ssh::{Connection, HostKeyPolicy};

/// How long an agent may take to end and its files to go.
const LEAVE_DEADLINE: Duration = Duration::from_mins(2);
const SOON: Duration = Duration::from_secs(30);
const LATER: Duration = Duration::from_mins(1);

/// What became of a host that was to be given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Release {
    /// The machine has none any more.
    Done,
    /// It is being installed anew.
    Busy,
    /// The pool failed; an Event says how.
    Failed,
}

impl Reconciler {
    /// Gives the host back.
    pub(super) async fn release(&self, machine: &Machine, to: Destination) -> Release {
        let held = match Self::held(machine) {
            Ok(Some(held)) => held,
            Ok(None) => match self.claimed_by_name(machine).await {
                Ok(Some(held)) => held,
                Ok(None) => return Release::Done,
                Err(error) => {
                    let words = format!("hosts of this machine cannot be looked for: {}", chain(&error));
                    self.events.say(machine, EventType::Warning, "ReleaseFailed", &words).await;
                    return Release::Failed;
                }
            },
            Err(error) => {
                self.events.say(machine, EventType::Warning, "ReleaseSkipped", &error.to_string()).await;
                return Release::Done;
            }
        };
        let (zone, id) = held;
        let prefix =
            match PoolPrefix::choose(machine.spec.adopt_pool_prefix.as_deref(), self.default_prefix.as_ref())
            {
                Ok(prefix) => prefix,
                Err(error) => {
                    let words = format!("the host {id} is not given back: {error}");
                    self.events.say(machine, EventType::Warning, "ReleaseSkipped", &words).await;
                    return Release::Done;
                }
            };
        let os = OsFamily::of_image(&machine.spec.os);
        let held = HeldHost { machine: reference(machine), id: id.clone(), zone, prefix, os };
        let (type_, reason, words) = match self.pool.release(&held, to).await {
            Ok(ReleaseOutcome::Released { os_unavailable, .. }) => {
                if os_unavailable {
                    let words = format!(
                        "{} is not to be had; the host gets the default of its type",
                        machine.spec.os
                    );
                    self.events.say(machine, EventType::Warning, "OSPinUnavailable", &words).await;
                }
                (EventType::Normal, "Released", format!("the host {id} is given back"))
            }
            Ok(ReleaseOutcome::Gone) => (EventType::Normal, "Released", format!("the host {id} is gone")),
            Ok(ReleaseOutcome::NotOurs { name }) => (
                EventType::Warning,
                "ReleaseSkipped",
                format!("the host {id} is not this machine's any more, but `{name}`"),
            ),
            Err(PoolError::Busy(_)) => return Release::Busy,
            Err(error) => {
                let words = format!("the host {id} is not given back yet: {}", chain(&error));
                self.events.say(machine, EventType::Warning, "ReleaseFailed", &words).await;
                return Release::Failed;
            }
        };
        self.events.say(machine, type_, reason, &words).await;
        Release::Done
    }

    /// The host that bears the name of a machine whose status has none: the provider died between claim and write. An operator who has paused
    /// the machine has detached its host, which keeps the name. Whether it is the machine's is looked at again when it is given back.
    async fn claimed_by_name(&self, machine: &Machine) -> Result<Option<(Zone, HostId)>, PoolError> {
        let is_paused =
            machine.annotations().contains_key(PAUSED) || self.cluster(machine) == ClusterSeen::Paused;
        let Ok(zone) = Zone::parse(&machine.spec.zone) else { return Ok(None) };
        let name = machine.name_any();
        let is_other = |other: &Machine| other.name_any() == name && reference(other) != reference(machine);
        if is_paused || !self.stores.machines.state_filter(|other| is_other(other)).is_empty() {
            return Ok(None);
        }
        let hosts = self.pool.hosts(&zone).await?;
        Ok(hosts.into_iter().find(|host| host.name == name).map(|host| (zone, host.id)))
    }

    /// Ends the agent on a host that is about to be given back, and removes its credentials: it would register its Node again until the host is
    /// installed anew, or for ever where the pool installs nothing. The host leaves its tailnet and GitHub, too. A host that does not answer holds nothing up.
    pub(super) async fn leave(&self, machine: &Machine) {
        let status = machine.status.clone().unwrap_or_default();
        let Ok(Some((zone, id))) = Self::held(machine) else { return };
        if status.host_config_hash.is_none() && !status.ready {
            return;
        }
        let name = machine.name_any();
        // Another's host is left alone.
        let Ok(Some(host)) = self.pool.host(&zone, &id).await else { return };
        let is_ours = host.name == name && host.state == HostState::Ready;
        let (true, Some(address)) = (is_ours, &host.ssh) else { return };
        let Ok(Some(credentials)) = self.credentials.read(&name).await else { return };
        let key = match &host.key {
            Some(key) => key.clone(),
            None => match self.keys.ensure(&Self::fleet(machine), self.pool.as_ref()).await {
                Ok(key) => key,
                Err(_) => return,
            },
        };
        let pinned = host.fingerprint.clone().or(credentials.fingerprint);
        let Some(pinned) = pinned else { return };
        let left = match Connection::open(address, &key, &HostKeyPolicy::Pinned(pinned)).await {
            Ok(mac) => {
                let left = mac.run(Call::new(&[AGENT_BINARY, "leave", "--force"], LEAVE_DEADLINE)).await;
                let steps = farewell_steps(&credentials.user);
                let farewell = converge(&mac, &steps, &Mode::Apply(Inputs::default()), |_, _| ()).await;
                if let Some(problem) = farewell.first_failure(&steps) {
                    warn!(machine = name, problem, "the host did not leave its tailnet or GitHub");
                }
                mac.close().await;
                left.map_err(|error| chain(&error))
            }
            Err(error) => Err(chain(&error)),
        };
        match left {
            Ok(output) if output.is_success() => info!(machine = name, "the agent has left its host"),
            Ok(output) => {
                warn!(machine = name, problem = output.message(), "the agent did not leave its host");
            }
            Err(problem) => {
                warn!(machine = name, problem, "the host does not answer; it is given back as it is");
            }
        }
    }

    /// Gives the host back and removes everything. Each part is safe to repeat, and the finalizer goes last.
    pub(super) async fn delete(&self, machine: &Machine) -> Result<Action, ReconcileError> {
        let this = reference(machine);
        let mut status = machine.status.clone().unwrap_or_default();
        let mut machine = machine.clone();
        if status.phase != Some(Phase::Deleting) {
            status.phase = Some(Phase::Deleting);
            machine = self.save(&machine, status.clone()).await?;
            self.events.say(&machine, EventType::Normal, "Releasing", "the host is given back").await;
        }
        // Before everything that ends the agent: it has to end the Pods.
        if let Some(pause) = self.drain(&mut machine).await? {
            return Ok(Action::requeue(pause));
        }
        let mut status = machine.status.clone().unwrap_or_default();
        let ours = machine.spec.provider_id.clone();
        delete::revoke(&self.client, &this, &self.secrets_namespace).await?;
        self.leave(&machine).await;
        match self.release(&machine, Destination::Pool).await {
            Release::Done => {}
            Release::Busy => {
                // The host is being installed anew: nothing of this machine runs there any more.
                delete::remove_node(&self.client, &this.name, ours.as_deref()).await?;
                return Ok(Action::requeue(SOON));
            }
            Release::Failed => return Ok(Action::requeue(LATER)),
        }
        if status.server_id.is_some() {
            status.server_id = None;
            machine = self.save(&machine, status).await?;
        }
        if let Err(error) = self.remove_runner(&machine).await? {
            let words = format!("the Actions runner is still registered at GitHub: {}", chain(&error));
            self.events.say(&machine, EventType::Warning, "RunnerRemovalFailed", &words).await;
            // What only a person can mend keeps no machine.
            if error.is_transient() {
                return Ok(Action::requeue(SOON));
            }
        }
        self.credentials.remove(&this.name).await?;
        if machine.spec.fleet_name.as_deref().is_none_or(str::is_empty)
            && let Err(error) = self.keys.remove(&Self::fleet(&machine), self.pool.as_ref()).await
        {
            let words = format!("the SSH key of this machine is not removed yet: {}", chain(&error));
            self.events.say(&machine, EventType::Warning, "SSHKeyRemovalFailed", &words).await;
            return Ok(Action::requeue(LATER));
        }
        delete::remove_node(&self.client, &this.name, ours.as_deref()).await?;
        let finalizers: Vec<_> = machine.finalizers().iter().filter(|name| *name != FINALIZER).collect();
        let patch = json!({ "metadata": { "finalizers": finalizers } });
        change("remove the finalizer", &self.api(&machine), &machine, patch).await?;
        self.wanted().remove(&this);
        Ok(Action::await_change())
    }
}
