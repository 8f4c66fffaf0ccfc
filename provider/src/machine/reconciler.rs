//! One pass over a machine: observe, decide, act.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::ListParams;
use kube::runtime::controller::Action;
use kube::runtime::events::EventType;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Api, Client, ResourceExt as _};
use launchd::{AGENT_BINARY, Call, Host as _};
use serde_json::json;
use tokio::net::lookup_host;
use tokio::time::timeout;
use tracing::{info, warn};

use super::credentials::{CredentialStore, HostCredentials};
use super::decide::{ClaimSettings, ClusterSeen, Limits, NodeSeen, Observed, Report, Step, Vms, decide};
use super::fleet_config::{ApiServer, FleetConfig};
use super::fleet_key::FleetKeys;
use super::roll::{RollState, Rolled, Turn, turn};
use super::{FINALIZER, RETRY_ROLL, delete, join_token, report};
use crate::apiserver::{ApiError, call, change, change_status};
use crate::cluster_api::{CLUSTER_NAME, Cluster};
use crate::crd::{
    AddressType, ConditionStatus, MachineAddress, Phase, ScalewayAppleSiliconMachine as Machine,
    ScalewayAppleSiliconMachineStatus as Status, find_condition,
};
use crate::error_chain::chain;
use crate::host::{Inputs, Mode, Secret, converge};
use crate::manager::{Events, Metrics};
use crate::names::{HostId, MachineRef, Zone};
use crate::pool::{
    ClaimError, ClaimRequest, Destination, HeldHost, Host, HostState, OsFamily, Password, Pool, PoolError,
    PoolPrefix, ReleaseOutcome,
};
use crate::ssh::{Connection, HostKeyPolicy, SshError};

/// How long the name of a host may take to be looked up.
const LOOKUP_DEADLINE: Duration = Duration::from_secs(10);
/// How long an agent may take to end and its files to go.
const LEAVE_DEADLINE: Duration = Duration::from_mins(2);
const SOON: Duration = Duration::from_secs(30);
const LATER: Duration = Duration::from_mins(1);
const MUCH_LATER: Duration = Duration::from_mins(5);

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
    pub(crate) server: ApiServer,
    pub(crate) limits: Limits,
    pub(crate) default_prefix: Option<PoolPrefix>,
    pub(crate) max_rolls: usize,
    pub(crate) events: Events,
    pub(crate) metrics: Arc<Metrics>,
    secrets_namespace: String,
    keys: FleetKeys,
    credentials: CredentialStore,
    /// The machines that are being rolled at this moment.
    rolling: Mutex<HashSet<MachineRef>>,
    /// What hosts should be like, so that a pass over a machine at rest asks nobody.
    wanted: Mutex<HashMap<MachineRef, Wanted>>,
}

/// What a host should be like, and what that follows from.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Wanted {
    server: String,
    generation: Option<i64>,
    addresses: Vec<String>,
    user: String,
    hash: String,
}

/// A pass that failed. It is repeated with back-off.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReconcileError {
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error(transparent)]
    Pool(#[from] PoolError),
}

/// What became of a host that was to be given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Release {
    /// The machine has none any more.
    Done,
    /// It is being installed anew.
    Busy,
    /// The pool failed; an Event says how.
    Failed,
}

/// How work on a host ended.
enum HostWork {
    /// The host has the configuration with this hash.
    Done(String),
    /// The host has another address than the status says.
    Moved(Vec<MachineAddress>),
    /// The host is being installed or restarts, in the pool's word.
    Busy(String),
    /// There is no such host any more.
    Gone,
    /// The host wants a password that is not known.
    NoPassword(String),
    /// It failed.
    Failed(String),
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

impl Reconciler {
    #[expect(clippy::too_many_arguments, reason = "the manager wires it, once")]
    pub(crate) fn new(
        client: Client,
        pool: Arc<dyn Pool>,
        stores: Stores,
        config: FleetConfig,
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
        let result = self.act(machine, &step).await;
        self.metrics.reconciled(began.elapsed(), result.is_ok());
        result
    }

    fn api(&self, machine: &Machine) -> Api<Machine> {
        Api::namespaced(self.client.clone(), &machine.namespace().unwrap_or_default())
    }

    async fn next(&self, machine: &Machine) -> Result<Step, ReconcileError> {
        let status = machine.status.clone().unwrap_or_default();
        let desired = self.desired(machine).await?;
        let node = self.node(&machine.name_any());
        let has_drifted = desired.is_some() && desired != status.host_config_hash;
        let turn = if has_drifted { self.turn(machine, &self.rolling().clone()) } else { Turn::Now };
        let seen = Observed {
            machine,
            cluster: self.cluster(machine),
            node: node.as_ref().map(|node| NodeSeen { provider_id: provider_id_of(node) }),
            desired: desired.as_deref(),
            turn,
            vms: self.vms(&machine.name_any(), &status).await,
            default_prefix: self.default_prefix.as_ref(),
            limits: self.limits,
            now: Timestamp::now(),
        };
        Ok(decide(&seen))
    }

    fn cluster(&self, machine: &Machine) -> ClusterSeen {
        let Some(name) = machine.labels().get(CLUSTER_NAME) else { return ClusterSeen::None };
        let key = ObjectRef::new(name).within(&machine.namespace().unwrap_or_default());
        match self.stores.clusters.get(&key) {
            None => ClusterSeen::Missing,
            Some(cluster) if cluster.is_paused() => ClusterSeen::Paused,
            Some(cluster) if cluster.is_provisioned() => ClusterSeen::Ready,
            Some(_) => ClusterSeen::NotReady,
        }
    }

    fn node(&self, name: &str) -> Option<Arc<Node>> {
        self.stores.nodes.get(&ObjectRef::new(name))
    }

    /// The hash of the configuration that a machine's host should have; `None` until the host's user is known.
    async fn desired(&self, machine: &Machine) -> Result<Option<String>, ReconcileError> {
        let status = machine.status.clone().unwrap_or_default();
        let (Some(server), Some(_)) = (status.server_id, &machine.spec.provider_id) else { return Ok(None) };
        let addresses: Vec<String> = status.addresses.into_iter().map(|known| known.address).collect();
        let key = reference(machine);
        let known = self.wanted().get(&key).filter(|known| known.server == server).cloned();
        let user = match known {
            Some(known)
                if known.generation == machine.metadata.generation && known.addresses == addresses =>
            {
                return Ok(Some(known.hash));
            }
            Some(known) => known.user,
            None => match self.credentials.read(&machine.name_any()).await? {
                Some(credentials) => credentials.user,
                None => return Ok(None),
            },
        };
        let hash = self.config.of(machine, &user, Secret::new(Vec::new())).hash().to_string();
        let generation = machine.metadata.generation;
        let wanted = Wanted { server, generation, addresses, user, hash: hash.clone() };
        self.wanted().insert(key, wanted);
        Ok(Some(hash))
    }

    fn wanted(&self) -> std::sync::MutexGuard<'_, HashMap<MachineRef, Wanted>> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn rolling(&self) -> std::sync::MutexGuard<'_, HashSet<MachineRef>> {
        self.rolling.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether VMs may run on a host that could be restarted or given up. Only then the API server is asked.
    async fn vms(&self, node: &str, status: &Status) -> Vms {
        let attempts =
            status.bootstrap_attempts.and_then(|attempts| u32::try_from(attempts).ok()).unwrap_or(0);
        let limits = [self.limits.reboot_after, self.limits.bootstrap_attempts];
        if status.ready || !limits.into_iter().any(|limit| limit > 0 && attempts >= limit) {
            return Vms::Perhaps;
        }
        let bound = ListParams::default().fields(&format!("spec.nodeName={node}"));
        let pods = call("list the Pods of the Node", Api::<Pod>::all(self.client.clone()).list(&bound)).await;
        let is_over = |pod: &Pod| {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            matches!(phase, Some("Succeeded" | "Failed"))
        };
        match pods {
            Ok(pods) if pods.iter().all(is_over) => Vms::None,
            _ => Vms::Perhaps,
        }
    }

    /// Whether it is a machine's turn, as the watch shows its fleet.
    fn turn(&self, machine: &Machine, rolling: &HashSet<MachineRef>) -> Turn {
        let this = reference(machine);
        let fleet = &machine.spec.fleet_name;
        let wanted = self.wanted().clone();
        let same = self.stores.machines.state_filter(|other| {
            other.spec.fleet_name == *fleet
                && other.metadata.deletion_timestamp.is_none()
                && other.status.as_ref().is_some_and(|status| status.ready)
        });
        let rolled = same.iter().map(|other| {
            let key = reference(other);
            let desired = wanted.get(&key).map(|known| known.hash.as_str());
            let state = self.roll_state(other, desired, rolling.contains(&key));
            Rolled { machine: key, state }
        });
        turn(&this, &rolled.collect::<Vec<_>>(), self.max_rolls)
    }

    fn roll_state(&self, machine: &Machine, desired: Option<&str>, is_rolling: bool) -> RollState {
        let status = machine.status.clone().unwrap_or_default();
        // A host that was not ready before its roll says nothing about the configuration.
        let has_failed = status.tart_kubelet_update_attempts.unwrap_or(0) > 0
            && status.failure_reason.as_deref() != Some(report::HOST_NOT_READY);
        let is_this = |hash: &Option<String>| desired.is_none_or(|desired| hash.as_deref() == Some(desired));
        if is_rolling {
            RollState::Rolling
        } else if has_failed && is_this(&status.failed_host_config_hash) {
            RollState::Failed
        } else if desired.is_none() || status.host_config_hash.as_deref() != desired {
            RollState::Outdated
        } else if self.node(&machine.name_any()).is_none_or(|node| is_ready(&node)) {
            RollState::Done
        } else {
            RollState::DoneAndNotReady
        }
    }

    /// Takes one step.
    async fn act(&self, machine: &Machine, step: &Step) -> Result<Action, ReconcileError> {
        match step {
            Step::Nothing => Ok(Action::await_change()),
            Step::Delete => self.delete(machine).await,
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
            Step::Bootstrap => self.bootstrap(machine).await,
            Step::Reboot => self.reboot(machine).await,
            Step::Quarantine => self.quarantine(machine).await,
            Step::Roll => self.roll(machine).await,
            Step::Report(said, pause) => self.report(machine, said, *pause).await,
        }
    }

    async fn report(
        &self,
        machine: &Machine,
        said: &Report,
        pause: Duration,
    ) -> Result<Action, ReconcileError> {
        if *said == Report::Paused {
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
                self.events.say(machine, EventType::Normal, "Bootstrapped", "the Node has joined").await
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
    async fn save(&self, machine: &Machine, mut status: Status) -> Result<Machine, ReconcileError> {
        let before = machine.status.clone().unwrap_or_default();
        report::ready(&mut status, Timestamp::now());
        if status == before {
            return Ok(machine.clone());
        }
        let api = self.api(machine);
        Ok(change_status("write the status of the machine", &api, machine, &before, &status).await?)
    }

    fn fleet(machine: &Machine) -> String {
        machine.spec.fleet_name.clone().filter(|fleet| !fleet.is_empty()).unwrap_or_else(|| {
            let machine = reference(machine);
            format!("{}-{}", machine.namespace, machine.name)
        })
    }

    async fn claim(&self, machine: &Machine, settings: &ClaimSettings) -> Result<Action, ReconcileError> {
        let now = Timestamp::now();
        let mut status = machine.status.clone().unwrap_or_default();
        if let Err(error) = self.keys.ensure(&Self::fleet(machine), self.pool.as_ref()).await {
            let words = chain(&error);
            report::condition(
                &mut status,
                "Provisioned",
                ConditionStatus::False,
                "SSHKeyUnavailable",
                &words,
                now,
            );
            self.save(machine, status).await?;
            self.events.say(machine, EventType::Warning, "SSHKeyUnavailable", &words).await;
            return Ok(Action::requeue(SOON));
        }
        let request = ClaimRequest {
            machine: reference(machine),
            prefix: settings.prefix.clone(),
            zone: settings.zone.clone(),
            kind: machine.spec.type_.clone(),
            os: settings.os.clone(),
        };
        let (reason, words, pause) = match self.pool.claim(&request).await {
            Ok(host) => return self.claimed(machine, status, &host, now).await,
            Err(error @ ClaimError::NoAvailableHost(_)) => ("NoAvailableHost", chain(&error), LATER),
            Err(error @ ClaimError::ReservedName { .. }) => ("ReservedName", chain(&error), MUCH_LATER),
            // It goes by itself.
            Err(ClaimError::NoSuchMachine(_)) => return Ok(Action::await_change()),
            Err(ClaimError::Pool(error)) => ("ScalewayAdoptFailed", chain(&error), SOON),
        };
        let is_new = find_condition(&status.conditions, "Provisioned")
            .and_then(|known| known.reason.as_deref())
            != Some(reason);
        status.phase = Some(Phase::Adopting);
        report::condition(&mut status, "Provisioned", ConditionStatus::False, reason, &words, now);
        self.save(machine, status).await?;
        if is_new {
            self.events.say(machine, EventType::Warning, reason, &words).await;
        }
        Ok(Action::requeue(pause))
    }

    /// The credentials are written before the status: a status with a host has them.
    async fn claimed(
        &self,
        machine: &Machine,
        mut status: Status,
        host: &Host,
        now: Timestamp,
    ) -> Result<Action, ReconcileError> {
        let (name, id) = (machine.name_any(), host.id.to_string());
        if let Some(ssh) = &host.ssh {
            let password = match &host.password {
                Password::Known(password) => Some(password.clone()),
                Password::Sealed | Password::Absent => None,
            };
            let known =
                HostCredentials { user: ssh.user.clone(), password, fingerprint: host.fingerprint.clone() };
            self.credentials.write(&name, &known).await?;
            status.addresses = addresses(&ssh.host).await;
        }
        report::claimed(&mut status, &id, now);
        self.save(machine, status).await?;
        self.events
            .say(machine, EventType::Normal, "Adopted", &format!("the host {id} is this machine's"))
            .await;
        Ok(Action::requeue(Duration::ZERO))
    }

    fn held(&self, machine: &Machine) -> Result<Option<(Zone, HostId)>, crate::names::BadName> {
        let Some(id) = machine.status.as_ref().and_then(|status| status.server_id.as_deref()) else {
            return Ok(None);
        };
        Ok(Some((Zone::parse(&machine.spec.zone)?, HostId::parse(id)?)))
    }

    async fn bootstrap(&self, machine: &Machine) -> Result<Action, ReconcileError> {
        let is_first = machine.status.as_ref().is_none_or(|status| status.bootstrap_attempts.is_none());
        if is_first {
            self.events.say(machine, EventType::Normal, "Bootstrapping", "the host becomes a Node").await;
        }
        let work = self.work(machine).await?;
        let now = Timestamp::now();
        let fresh = call("read the machine", self.api(machine).get_opt(&machine.name_any())).await?;
        // Work on a host takes minutes. What it has come to is written into the machine as it is now, unless that has lost the host.
        let Some(machine) = fresh.filter(|fresh| server(fresh) == server(machine)) else {
            return Ok(Action::requeue(Duration::ZERO));
        };
        let mut status = machine.status.clone().unwrap_or_default();
        let (action, event) = match work {
            HostWork::Done(hash) => {
                report::converged(&mut status, &hash, self.config.agent.sha256().as_str(), now);
                (Action::requeue(SOON), None)
            }
            HostWork::Moved(addresses) => {
                status.addresses = addresses;
                (Action::requeue(Duration::ZERO), None)
            }
            HostWork::Busy(word) => {
                let words = format!("the host is {word}");
                report::condition(
                    &mut status,
                    "Bootstrapped",
                    ConditionStatus::False,
                    "HostNotReady",
                    &words,
                    now,
                );
                (Action::requeue(SOON), None)
            }
            HostWork::NoPassword(words) => {
                report::condition(
                    &mut status,
                    "Bootstrapped",
                    ConditionStatus::False,
                    "MissingSudoPassword",
                    &words,
                    now,
                );
                (Action::requeue(MUCH_LATER), Some(("MissingSudoPassword", words)))
            }
            HostWork::Gone => return self.host_gone(&machine, status, now).await,
            HostWork::Failed(words) => {
                report::bootstrap_failed(&mut status, "BootstrapFailed", &words, now);
                (Action::requeue(SOON), Some(("BootstrapFailed", words)))
            }
        };
        self.save(&machine, status).await?;
        if let Some((reason, words)) = event {
            self.events.say(&machine, EventType::Warning, reason, &words).await;
        }
        Ok(action)
    }

    /// The pool has no such host any more. A machine that was never ready gets another. One that was stays, and is replaced by Cluster API: its
    /// Node has its identity.
    async fn host_gone(
        &self,
        machine: &Machine,
        mut status: Status,
        now: Timestamp,
    ) -> Result<Action, ReconcileError> {
        let words = "the pool has no such host any more";
        self.events.say(machine, EventType::Warning, "HostGone", words).await;
        if status.ready {
            report::condition(&mut status, "Bootstrapped", ConditionStatus::False, "HostGone", words, now);
            status.last_bootstrap_failure_time = Some(Time(now));
            status.bootstrap_attempts = Some(status.bootstrap_attempts.unwrap_or(0).saturating_add(1));
            self.save(machine, status).await?;
            return Ok(Action::requeue(MUCH_LATER));
        }
        self.forget_host(machine, words, now).await
    }

    /// The machine is as before its claim.
    async fn forget_host(
        &self,
        machine: &Machine,
        words: &str,
        now: Timestamp,
    ) -> Result<Action, ReconcileError> {
        // The pin of its host key would lock out the next host.
        self.credentials.remove(&machine.name_any()).await?;
        delete::remove_node(&self.client, &machine.name_any()).await?;
        let patch = json!({ "spec": { "providerID": null } });
        let machine = change("remove providerID", &self.api(machine), machine, patch).await?;
        let mut status = machine.status.clone().unwrap_or_default();
        report::given_up(&mut status, words, now);
        self.save(&machine, status).await?;
        self.wanted().remove(&reference(&machine));
        Ok(Action::requeue(SOON))
    }

    async fn reboot(&self, machine: &Machine) -> Result<Action, ReconcileError> {
        let Ok(Some((zone, id))) = self.held(machine) else { return Ok(Action::requeue(Duration::ZERO)) };
        let mut status = machine.status.clone().unwrap_or_default();
        let (type_, reason, words) = match self.pool.reboot(&zone, &id).await {
            Ok(()) => {
                status.bootstrap_reboot_issued = Some(true);
                (
                    EventType::Normal,
                    "RebootingForRecovery",
                    "the host is restarted because it could not be bootstrapped".to_owned(),
                )
            }
            Err(error @ PoolError::Unsupported(_)) => {
                status.bootstrap_reboot_issued = Some(true);
                (EventType::Warning, "RebootForRecoveryFailed", chain(&error))
            }
            // The next pass tries it again.
            Err(error) => (EventType::Warning, "RebootForRecoveryFailed", chain(&error)),
        };
        status.last_bootstrap_failure_time = Some(Time(Timestamp::now()));
        self.save(machine, status).await?;
        self.events.say(machine, type_, reason, &words).await;
        Ok(Action::requeue(SOON))
    }

    async fn quarantine(&self, machine: &Machine) -> Result<Action, ReconcileError> {
        let why =
            machine.status.as_ref().and_then(|status| find_condition(&status.conditions, "Bootstrapped"));
        let why = why.and_then(|known| known.message.clone()).unwrap_or_default();
        match self.release(machine, Destination::Quarantine).await {
            Release::Done => {}
            Release::Busy => return Ok(Action::requeue(SOON)),
            Release::Failed => return Ok(Action::requeue(LATER)),
        }
        let words =
            format!("the host could not be bootstrapped and is in quarantine; another one is claimed. {why}");
        self.events.say(machine, EventType::Warning, "BootstrapExhausted", &words).await;
        self.forget_host(machine, &words, Timestamp::now()).await
    }

    /// Gives the host back.
    async fn release(&self, machine: &Machine, to: Destination) -> Release {
        let held = match self.held(machine) {
            Ok(Some(held)) => held,
            Ok(None) => return Release::Done,
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

    async fn roll(&self, machine: &Machine) -> Result<Action, ReconcileError> {
        let this = reference(machine);
        {
            // Decided again under the lock: another machine may have begun since.
            let mut rolling = self.rolling();
            let turn = self.turn(machine, &rolling);
            if turn != Turn::Now || !rolling.insert(this.clone()) {
                return Ok(Action::requeue(SOON));
            }
        }
        let result = self.roll_now(machine).await;
        if let Ok((_, Some(written))) = &result {
            self.until_seen(written).await;
        }
        self.rolling().remove(&this);
        result.map(|(action, _)| action)
    }

    /// Waits until the watch shows what was written: whether this roll failed decides about the next.
    async fn until_seen(&self, written: &Machine) {
        for _ in 0..100 {
            let seen = self.stores.machines.get(&ObjectRef::from_obj(written));
            if seen.is_none_or(|seen| seen.status == written.status) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Rolls a machine, and returns it as it was written.
    async fn roll_now(&self, machine: &Machine) -> Result<(Action, Option<Machine>), ReconcileError> {
        let was_ready = self.node(&machine.name_any()).is_some_and(|node| is_ready(&node));
        let desired = self.desired(machine).await?.unwrap_or_default();
        let mut status = machine.status.clone().unwrap_or_default();
        let from = status.host_config_hash.clone().unwrap_or_default();
        report::condition(
            &mut status,
            "HostUpToDate",
            ConditionStatus::False,
            "Rolling",
            "",
            Timestamp::now(),
        );
        status.desired_host_config_hash = Some(desired.clone());
        let machine = &self.save(machine, status).await?;
        let work = self.work(machine).await?;
        let now = Timestamp::now();
        let fresh = call("read the machine", self.api(machine).get_opt(&machine.name_any())).await?;
        let Some(machine) = fresh.filter(|fresh| server(fresh) == server(machine)) else {
            return Ok((Action::requeue(Duration::ZERO), None));
        };
        let mut status = machine.status.clone().unwrap_or_default();
        let failed = match work {
            HostWork::Done(hash) => {
                report::rolled(&mut status, &hash, self.config.agent.sha256().as_str(), now);
                join_token::remove(&self.client, &reference(&machine)).await?;
                None
            }
            HostWork::Moved(addresses) => {
                status.addresses = addresses;
                self.save(&machine, status).await?;
                return Ok((Action::requeue(Duration::ZERO), None));
            }
            HostWork::Busy(word) => Some(format!("the host is {word}")),
            HostWork::Gone => Some("the pool has no such host any more".to_owned()),
            HostWork::NoPassword(words) | HostWork::Failed(words) => Some(words),
        };
        if let Some(words) = &failed {
            report::roll_failed(&mut status, &desired, self.limits.update_attempts, was_ready, words, now);
        }
        let machine = self.save(&machine, status).await?;
        self.metrics.rolled(failed.is_none());
        let short = |hash: &str| hash.chars().take(12).collect::<String>();
        match failed {
            None => {
                let words =
                    format!("the host went from configuration {} to {}", short(&from), short(&desired));
                self.events.say(&machine, EventType::Normal, "AgentRolled", &words).await;
                Ok((Action::requeue(Duration::ZERO), Some(machine)))
            }
            Some(words) => {
                self.events.say(&machine, EventType::Warning, "AgentRollFailed", &words).await;
                Ok((Action::requeue(SOON), Some(machine)))
            }
        }
    }

    /// Takes the host of a machine to its configuration, over SSH.
    async fn work(&self, machine: &Machine) -> Result<HostWork, ReconcileError> {
        let failed = |error: &dyn std::error::Error| Ok(HostWork::Failed(chain(error)));
        let Ok(Some((zone, id))) = self.held(machine) else { return Ok(HostWork::Gone) };
        let host = match self.pool.host(&zone, &id).await {
            Ok(Some(host)) => host,
            Ok(None) => return Ok(HostWork::Gone),
            Err(error) => return Err(error.into()),
        };
        match &host.state {
            HostState::Ready => {}
            HostState::Changing(word) => return Ok(HostWork::Busy(word.clone())),
            HostState::Broken(word) => {
                return Ok(HostWork::Failed(format!("the host is {word}, by the pool's word")));
            }
        }
        let Some(address) = host.ssh.clone() else {
            return Ok(HostWork::Busy("without an address".to_owned()));
        };
        let name = machine.name_any();
        let mut known = self.credentials.read(&name).await?;
        let credentials = known.get_or_insert_with(|| HostCredentials {
            user: address.user.clone(),
            password: None,
            fingerprint: None,
        });
        let before = credentials.clone();
        if let (None, Password::Known(password)) = (&credentials.password, &host.password) {
            credentials.password = Some(password.clone());
        }
        let is = addresses(&address.host).await;
        if machine.status.as_ref().is_none_or(|status| status.addresses != is) {
            self.credentials.write(&name, credentials).await?;
            return Ok(HostWork::Moved(is));
        }
        let key = match &host.key {
            Some(key) => key.clone(),
            None => match self.keys.ensure(&Self::fleet(machine), self.pool.as_ref()).await {
                Ok(key) => key,
                Err(error) => return failed(&error),
            },
        };
        let pinned = host.fingerprint.clone().or_else(|| credentials.fingerprint.clone());
        let policy = pinned.map_or(HostKeyPolicy::TrustOnFirstUse, HostKeyPolicy::Pinned);
        let has_served = machine.status.as_ref().is_some_and(|status| status.ready);
        let mac = match Connection::open(&address, &key, &policy).await {
            Ok(mac) => mac,
            Err(error) => {
                // A host that was installed anew since it was claimed has another key, and nothing of ours on it yet.
                if matches!(error, SshError::HostKey { .. }) && !has_served && host.fingerprint.is_none() {
                    credentials.fingerprint = None;
                    self.credentials.write(&name, credentials).await?;
                }
                return failed(&error);
            }
        };
        credentials.fingerprint = Some(mac.fingerprint().clone());
        if *credentials != before || before.fingerprint.is_none() {
            self.credentials.write(&name, credentials).await?;
        }
        let kubeconfig =
            join_token::create(&self.client, &reference(machine), &self.server, Timestamp::now()).await?;
        let config = self.config.of(machine, &credentials.user, kubeconfig);
        let (steps, hash) = (config.steps(), config.hash().to_string());
        let mode = Mode::Apply(Inputs { password: credentials.password.clone() });
        info!(machine = %name, host = %id, hash, "work on the host begins");
        let done = converge(&mac, &steps, &mode, |_, _| ()).await;
        mac.close().await;
        if done.is_converged() {
            info!(machine = %name, changed = done.changed(), "the host is as it should be");
            return Ok(HostWork::Done(hash));
        }
        let words = done.first_failure(&steps).unwrap_or_else(|| "a step was left out".to_owned());
        warn!(machine = %name, problem = words, "work on the host failed");
        Ok(if done.lacks_password() { HostWork::NoPassword(words) } else { HostWork::Failed(words) })
    }

    /// Ends the agent on a host that is about to be given back, and removes its credentials: it would register its Node again until the host is
    /// installed anew, or for ever where the pool installs nothing. A host that does not answer holds nothing up.
    async fn leave(&self, machine: &Machine) {
        let status = machine.status.clone().unwrap_or_default();
        let Ok(Some((zone, id))) = self.held(machine) else { return };
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
                mac.close().await;
                left.map_err(|error| chain(&error))
            }
            Err(error) => Err(chain(&error)),
        };
        match left {
            Ok(output) if output.is_success() => info!(machine = name, "the agent has left its host"),
            Ok(output) => {
                warn!(machine = name, problem = output.message(), "the agent did not leave its host")
            }
            Err(problem) => {
                warn!(machine = name, problem, "the host does not answer; it is given back as it is")
            }
        }
    }

    /// Gives the host back and removes everything. Each part is safe to repeat, and the finalizer goes last.
    async fn delete(&self, machine: &Machine) -> Result<Action, ReconcileError> {
        let this = reference(machine);
        let mut status = machine.status.clone().unwrap_or_default();
        let mut machine = machine.clone();
        if status.phase != Some(Phase::Deleting) {
            status.phase = Some(Phase::Deleting);
            machine = self.save(&machine, status.clone()).await?;
            self.events.say(&machine, EventType::Normal, "Releasing", "the host is given back").await;
        }
        delete::revoke(&self.client, &this, &self.secrets_namespace).await?;
        self.leave(&machine).await;
        match self.release(&machine, Destination::Pool).await {
            Release::Done => {}
            Release::Busy => {
                // The host is being installed anew: nothing of this machine runs there any more.
                delete::remove_node(&self.client, &this.name).await?;
                return Ok(Action::requeue(SOON));
            }
            Release::Failed => return Ok(Action::requeue(LATER)),
        }
        if status.server_id.is_some() {
            status.server_id = None;
            machine = self.save(&machine, status).await?;
        }
        self.credentials.remove(&this.name).await?;
        let ours = machine.spec.provider_id.clone();
        // A Node of that name may be another host's, when an operator has detached this one.
        if self
            .node(&this.name)
            .is_none_or(|node| provider_id_of(&node).is_none_or(|id| ours.is_none_or(|ours| ours == id)))
        {
            delete::remove_node(&self.client, &this.name).await?;
        }
        let finalizers: Vec<_> = machine.finalizers().iter().filter(|name| *name != FINALIZER).collect();
        let patch = json!({ "metadata": { "finalizers": finalizers } });
        change("remove the finalizer", &self.api(&machine), &machine, patch).await?;
        self.wanted().remove(&this);
        Ok(Action::await_change())
    }
}

/// The addresses of a host. A name is looked up: certificates are for addresses.
async fn addresses(host: &str) -> Vec<MachineAddress> {
    let ip = |address: String| MachineAddress { type_: AddressType::ExternalIP, address };
    if host.parse::<IpAddr>().is_ok() {
        return vec![ip(host.to_owned())];
    }
    let found = timeout(LOOKUP_DEADLINE, lookup_host((host, 0))).await.ok().and_then(Result::ok);
    let mut all: Vec<_> =
        found.into_iter().flatten().take(1).map(|found| ip(found.ip().to_string())).collect();
    all.push(MachineAddress { type_: AddressType::Hostname, address: host.to_owned() });
    all
}

fn server(machine: &Machine) -> Option<&str> {
    machine.status.as_ref()?.server_id.as_deref()
}

fn provider_id_of(node: &Node) -> Option<String> {
    node.spec.as_ref()?.provider_id.clone().filter(|id| !id.is_empty())
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|all| all.iter().any(|known| known.type_ == "Ready" && known.status == "True"))
}
