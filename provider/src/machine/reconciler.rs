//! One pass over a machine: observe, decide, act.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::runtime::controller::Action;
use kube::runtime::events::EventType;
use kube::runtime::reflector::Store;
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;

use super::decide::{Limits, Report, Step};
use super::inputs::credentials::CredentialStore;
use super::inputs::fleet_config::{ApiServer, FleetConfig};
use super::inputs::fleet_key::FleetKeys;
use super::inputs::join_token;
use super::{FINALIZER, RETRY_ROLL, report};
use crate::apiserver::{ApiError, call, change, change_status};
use crate::cluster_api::Cluster;
use crate::crd::{
    ScalewayAppleSiliconMachine as Machine, ScalewayAppleSiliconMachineStatus as Status, find_condition,
};
use crate::events::Events;
use crate::github::Github;
use crate::metrics::Metrics;
use crate::names::{HostId, MachineRef, Zone};
use crate::pool::{Pool, PoolError, PoolPrefix};

/// What the API server has, as the watches know it.
pub(crate) struct Stores {
    pub(crate) machines: Store<Machine>,
    pub(crate) clusters: Store<Cluster>,
    pub(crate) nodes: Store<Node>,
}

/// Reconciles machines.
pub(crate) struct Reconciler {
    pub(crate) client: Client,
    pub(crate) pool: Arc<dyn Pool>,
    pub(crate) stores: Stores,
    pub(crate) config: FleetConfig,
    pub(super) github: Github,
    /// The Secret with the key to the tailnet.
    pub(super) tailscale_auth_key: Option<String>,
    pub(crate) server: ApiServer,
    pub(crate) limits: Limits,
    pub(crate) default_prefix: Option<PoolPrefix>,
    pub(crate) max_rolls: usize,
    pub(crate) events: Events,
    pub(crate) metrics: Arc<Metrics>,
    pub(super) secrets_namespace: String,
    pub(super) keys: FleetKeys,
    pub(super) credentials: CredentialStore,
    /// The machines that are being rolled at this moment.
    pub(super) rolling: Mutex<HashSet<MachineRef>>,
    /// What hosts should be like, so that a pass over a machine at rest makes no call.
    pub(super) wanted: Mutex<HashMap<MachineRef, Wanted>>,
}

/// What a host should be like, and what that follows from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) server: String,
    pub(super) generation: Option<i64>,
    pub(super) addresses: Vec<String>,
    pub(super) user: String,
    pub(super) hash: String,
}

/// A pass that failed. It is repeated with back-off.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReconcileError {
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error(transparent)]
    Pool(#[from] PoolError),
}

impl ReconcileError {
    /// Whether an object was changed meanwhile.
    pub(crate) fn is_conflict(&self) -> bool {
        matches!(self, Self::Api(error) if error.is_conflict())
    }
}

pub(super) fn reference(machine: &Machine) -> MachineRef {
    MachineRef { namespace: machine.namespace().unwrap_or_default(), name: machine.name_any() }
}

pub(super) fn server(machine: &Machine) -> Option<&str> {
    machine.status.as_ref()?.server_id.as_deref()
}

impl Reconciler {
    #[expect(clippy::too_many_arguments, reason = "the manager wires it, once")]
    pub(crate) fn new(
        client: Client,
        pool: Arc<dyn Pool>,
        stores: Stores,
        config: FleetConfig,
        github: Github,
        tailscale_auth_key: Option<String>,
        server: ApiServer,
        limits: Limits,
        default_prefix: Option<PoolPrefix>,
        max_rolls: usize,
        secrets_namespace: String,
        events: Events,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            keys: FleetKeys::new(&client, &secrets_namespace),
            credentials: CredentialStore::new(&client, &secrets_namespace),
            rolling: Mutex::default(),
            wanted: Mutex::default(),
            client,
            pool,
            stores,
            config,
            github,
            tailscale_auth_key,
            server,
            limits,
            default_prefix,
            max_rolls,
            secrets_namespace,
            events,
            metrics,
        }
    }

    /// One pass. What the watch shows may be old, so that a step is decided again for what the API server has now.
    pub(crate) async fn reconcile(&self, machine: &Machine) -> Result<Action, ReconcileError> {
        let began = Instant::now();
        let result = self.pass(machine).await;
        self.metrics.reconciled(began.elapsed(), result.is_ok());
        result
    }

    async fn pass(&self, machine: &Machine) -> Result<Action, ReconcileError> {
        let mut step = self.next(machine).await?;
        let fresh;
        let mut machine = machine;
        if !matches!(step, Step::Nothing | Step::Report(..)) {
            let api = self.api(machine);
            let Some(read) = call("read the machine", api.get_opt(&machine.name_any())).await? else {
                return Ok(Action::await_change());
            };
            fresh = read;
            machine = &fresh;
            step = self.next(machine).await?;
        }
        self.act(machine, &step).await
    }

    pub(super) fn api(&self, machine: &Machine) -> Api<Machine> {
        Api::namespaced(self.client.clone(), &machine.namespace().unwrap_or_default())
    }

    /// Takes one step.
    pub(super) async fn act(&self, machine: &Machine, step: &Step) -> Result<Action, ReconcileError> {
        match step {
            Step::Nothing => Ok(Action::await_change()),
            Step::Delete => Box::pin(self.delete(machine)).await,
            Step::AddFinalizer => {
                let mut finalizers = machine.finalizers().to_vec();
                finalizers.push(FINALIZER.to_owned());
                let patch = json!({ "metadata": { "finalizers": finalizers } });
                change("add the finalizer", &self.api(machine), machine, patch).await?;
                Ok(Action::requeue(Duration::ZERO))
            }
            Step::ResumeRoll => {
                let mut status = machine.status.clone().unwrap_or_default();
                report::resumed(&mut status, Timestamp::now());
                let machine = self.save(machine, status).await?;
                let patch = json!({ "metadata": { "annotations": { RETRY_ROLL: null } } });
                change("remove the annotation", &self.api(&machine), &machine, patch).await?;
                self.events
                    .say(&machine, EventType::Normal, "AgentRollRetried", "rolls of this machine begin again")
                    .await;
                Ok(Action::requeue(Duration::ZERO))
            }
            Step::Claim(settings) => self.claim(machine, settings).await,
            Step::SetProviderId(id) => {
                let patch = json!({ "spec": { "providerID": id } });
                change("set providerID", &self.api(machine), machine, patch).await?;
                Ok(Action::requeue(Duration::ZERO))
            }
            Step::Bootstrap => Box::pin(self.bootstrap(machine)).await,
            Step::Reboot => self.reboot(machine).await,
            Step::Quarantine => self.quarantine(machine).await,
            // Work on a host is a large future.
            Step::Roll => Box::pin(self.roll(machine)).await,
            Step::Report(said, pause) => self.report(machine, said, *pause).await,
        }
    }

    pub(super) async fn report(
        &self,
        machine: &Machine,
        said: &Report,
        pause: Duration,
    ) -> Result<Action, ReconcileError> {
        if matches!(said, Report::Paused | Report::WaitsForWatches) {
            return Ok(Action::requeue(pause));
        }
        let now = Timestamp::now();
        let mut status = machine.status.clone().unwrap_or_default();
        let before = status.clone();
        if *said == Report::Joined {
            // Its work is done. It goes before the status says so: after a crash in between this step is taken again.
            join_token::remove(&self.client, &reference(machine)).await?;
        }
        report::write(&mut status, said, now);
        status.desired_host_config_hash = self.desired(machine).await?.or(status.desired_host_config_hash);
        self.save(machine, status.clone()).await?;
        let reason = |status: &Status, type_: &str| {
            find_condition(&status.conditions, type_).and_then(|known| known.reason.clone())
        };
        let is_new = |type_: &str| reason(&before, type_) != reason(&status, type_);
        match said {
            Report::Joined => {
                self.events.say(machine, EventType::Normal, "Bootstrapped", "the Node has joined").await;
            }
            Report::NodeMissing => {
                self.events
                    .say(machine, EventType::Warning, "NodeMissing", "the Node of this machine is gone")
                    .await;
            }
            Report::NotJoined => {
                let words = "the agent runs on the host, but did not join the cluster in time; see /var/log/tart-kubelet.log there";
                self.events.say(machine, EventType::Warning, "BootstrapFailed", words).await;
            }
            Report::Refused { reason, message } if is_new("Provisioned") || is_new("Bootstrapped") => {
                self.events.say(machine, EventType::Warning, reason, message).await;
            }
            Report::RollHalted(why) if is_new("HostUpToDate") => {
                self.events.say(machine, EventType::Warning, "RollHalted", why).await;
            }
            Report::CredentialsMissing if is_new("HostUpToDate") => {
                let words = "the Secret with the user of the host is gone; write it anew";
                self.events.say(machine, EventType::Warning, "CredentialsMissing", words).await;
            }
            Report::RollEnded if is_new("HostUpToDate") => {
                let words = status.failure_message.clone().unwrap_or_default();
                self.events
                    .say(machine, EventType::Warning, "TartKubeletUpdateExceededRetries", &words)
                    .await;
            }
            _ => {}
        }
        Ok(Action::requeue(pause))
    }

    /// Writes the status, if it has changed. Whether that succeeds is whether the pass does.
    pub(super) async fn save(
        &self,
        machine: &Machine,
        mut status: Status,
    ) -> Result<Machine, ReconcileError> {
        let before = machine.status.clone().unwrap_or_default();
        report::ready(&mut status, Timestamp::now());
        if status == before {
            return Ok(machine.clone());
        }
        let api = self.api(machine);
        Ok(change_status("write the status of the machine", &api, machine, &before, &status).await?)
    }

    pub(super) fn fleet(machine: &Machine) -> String {
        machine.spec.fleet_name.clone().filter(|fleet| !fleet.is_empty()).unwrap_or_else(|| {
            let machine = reference(machine);
            format!("{}-{}", machine.namespace, machine.name)
        })
    }

    pub(super) fn held(machine: &Machine) -> Result<Option<(Zone, HostId)>, crate::names::BadName> {
        let Some(id) = machine.status.as_ref().and_then(|status| status.server_id.as_deref()) else {
            return Ok(None);
        };
        Ok(Some((Zone::parse(&machine.spec.zone)?, HostId::parse(id)?)))
    }
}
