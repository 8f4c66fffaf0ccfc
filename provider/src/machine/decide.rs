//! The next step for a machine.

use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt as _;

use super::roll::Turn;
use super::{FINALIZER, RETRY_ROLL, provider_id};
use crate::cluster_api::PAUSED;
use crate::crd::{ConditionStatus, ScalewayAppleSiliconMachine, find_condition};
use crate::names::{HostId, Zone};
use crate::pool::{OsFamily, PoolPrefix};

/// The conditions in the status of a machine.
pub(crate) const PROVISIONED: &str = "Provisioned";
pub(crate) const BOOTSTRAPPED: &str = "Bootstrapped";
pub(crate) const HOST_UP_TO_DATE: &str = "HostUpToDate";
pub(crate) const READY: &str = "Ready";

/// How often a machine is looked at when nothing happens.
const REST: Duration = Duration::from_mins(5);
const SOON: Duration = Duration::from_secs(30);
const AT_ONCE: Duration = Duration::from_secs(1);
/// How long an agent may take to join after it was started, and a Node may be gone before that is a fault.
const JOIN_DEADLINE: Duration = Duration::from_mins(3);
/// The pause after a failed attempt; it doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_secs(15);
const LONGEST_PAUSE: Duration = Duration::from_mins(10);

/// After how many failures what is done.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Failed bootstraps before the host is restarted; 0 for never.
    pub(crate) reboot_after: u32,
    /// Failed bootstraps before the host is quarantined; 0 for never.
    pub(crate) bootstrap_attempts: u32,
    /// Failed rolls before rolls of this configuration end; 0 for never.
    pub(crate) update_attempts: u32,
    /// When they begin again; zero for never.
    pub(crate) terminal_retry_after: Duration,
    /// For how long a Node has to stay ready after a roll before the roll counts as done.
    pub(crate) roll_min_ready: Duration,
}

/// What is known about a machine.
#[derive(Debug, Clone)]
pub(crate) struct Observed<'a> {
    pub(crate) machine: &'a ScalewayAppleSiliconMachine,
    /// Whether the watches of Clusters and Nodes have shown what there is. Before that everything seems to be missing.
    pub(crate) is_synced: bool,
    pub(crate) cluster: ClusterSeen,
    pub(crate) node: Option<NodeSeen>,
    /// The hash of the configuration that the host should have; unknown until the host is.
    pub(crate) desired: Option<&'a str>,
    /// Whether it is the machine's turn to be rolled.
    pub(crate) turn: Turn,
    /// Whether VMs may run on the host.
    pub(crate) vms: Vms,
    pub(crate) default_prefix: Option<&'a PoolPrefix>,
    pub(crate) limits: Limits,
    pub(crate) now: Timestamp,
}

/// The Cluster of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClusterSeen {
    /// The machine names none.
    None,
    /// It is not there.
    Missing,
    Paused,
    /// Its infrastructure is not provisioned yet.
    NotReady,
    Ready,
}

/// The Node with the machine's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodeSeen {
    pub(crate) provider_id: Option<String>,
}

/// VMs on a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Vms {
    /// There are none.
    None,
    /// There are some, or it is not known.
    Perhaps,
}

/// The next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// Give the host back, and remove everything.
    Delete,
    /// The object goes by itself.
    Nothing,
    AddFinalizer,
    /// An operator lets failed rolls begin again.
    ResumeRoll,
    Claim(ClaimSettings),
    SetProviderId(String),
    Bootstrap,
    Reboot,
    /// Give the host up: it goes to quarantine, and the machine gets another one.
    Quarantine,
    Roll,
    /// Only the status changes, and the next look is later.
    Report(Report, Duration),
}

/// What a machine wants of the pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClaimSettings {
    pub(crate) prefix: PoolPrefix,
    pub(crate) zone: Zone,
    pub(crate) os: OsFamily,
}

/// What the status says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Report {
    /// The watches have not shown the cluster yet.
    WaitsForWatches,
    /// Nothing is done while it is paused; not even the status.
    Paused,
    /// The Cluster is missing or not ready.
    WaitsForCluster,
    /// The machine cannot have a host as it is.
    Refused { reason: &'static str, message: String },
    /// The agent runs, and its Node is not there yet.
    WaitsForNode,
    /// The agent did not join in time: a failed attempt.
    NotJoined,
    /// The Node of a machine that was bootstrapped is gone.
    NodeMissing,
    /// The Node is there.
    Joined,
    /// A failed attempt is repeated later. With VMs on the host, the host is neither restarted nor given up.
    WaitsAfterFailure,
    /// It is another machine's turn.
    WaitsForTurn(String),
    /// The roll stands still.
    RollHalted(String),
    /// This host could not be given its configuration.
    RollEnded,
    /// The user of the host is not known any more: its Secret is gone, and the pool does not have it.
    CredentialsMissing,
    /// All is as it should be.
    UpToDate,
}

/// The next step for a machine. Deletion comes first, and goes on while all else is paused.
pub(crate) fn decide(seen: &Observed<'_>) -> Step {
    let machine = seen.machine;
    let has_finalizer = machine.finalizers().iter().any(|name| name == FINALIZER);
    let is_deleting = machine.metadata.deletion_timestamp.is_some();
    if !has_finalizer {
        return if is_deleting { Step::Nothing } else { Step::AddFinalizer };
    }
    // Before that a deleted machine of a paused Cluster, whose host an operator has detached, would not look paused.
    if !seen.is_synced {
        return Step::Report(Report::WaitsForWatches, AT_ONCE);
    }
    if is_deleting {
        return Step::Delete;
    }
    match seen.cluster {
        ClusterSeen::Missing => return Step::Report(Report::WaitsForCluster, SOON),
        ClusterSeen::Paused => return Step::Report(Report::Paused, REST),
        _ if machine.annotations().contains_key(PAUSED) => return Step::Report(Report::Paused, REST),
        ClusterSeen::NotReady => return Step::Report(Report::WaitsForCluster, SOON),
        ClusterSeen::None | ClusterSeen::Ready => {}
    }
    if machine.annotations().contains_key(RETRY_ROLL) {
        return Step::ResumeRoll;
    }
    let status = machine.status.clone().unwrap_or_default();
    let Some(server) = &status.server_id else { return claim(seen) };
    let wanted = match (Zone::parse(&machine.spec.zone), HostId::parse(server)) {
        (Ok(zone), Ok(id)) => provider_id(&zone, &id),
        (Err(error), _) | (_, Err(error)) => return refused("InvalidHost", &error),
    };
    match machine.spec.provider_id.as_deref() {
        None | Some("") => return Step::SetProviderId(wanted),
        Some(is) if is != wanted => {
            let message = format!(
                "spec.providerID is {is}, and the host of status.serverID is {wanted}; remove one of them"
            );
            return Step::Report(Report::Refused { reason: "ProviderIDMismatch", message }, REST);
        }
        Some(_) => {}
    }
    if let Some(NodeSeen { provider_id: Some(is) }) = &seen.node
        && *is != wanted
    {
        let name = machine.name_any();
        let message = format!("the Node {name} is that of {is}; delete it if that host is gone");
        return Step::Report(Report::Refused { reason: "NodeNameTaken", message }, SOON);
    }
    let bootstrapped = find_condition(&status.conditions, BOOTSTRAPPED);
    let since = bootstrapped.map_or(seen.now, |known| known.last_transition_time.0);
    let waited = Duration::try_from(seen.now.duration_since(since)).unwrap_or_default();
    if bootstrapped.is_some_and(|known| known.status == ConditionStatus::True) {
        return match seen.node {
            None if waited >= JOIN_DEADLINE => Step::Report(Report::NodeMissing, SOON),
            _ => drift(seen),
        };
    }
    bootstrap(seen, waited)
}

fn claim(seen: &Observed<'_>) -> Step {
    let spec = &seen.machine.spec;
    let prefix = match PoolPrefix::choose(spec.adopt_pool_prefix.as_deref(), seen.default_prefix) {
        Ok(prefix) => prefix,
        Err(error) => return refused("NoAdoptPoolPrefix", &error),
    };
    let os = match OsFamily::pin(&spec.os) {
        Ok(os) => os,
        Err(error) => return refused("InvalidOSPin", &error),
    };
    let zone = match Zone::parse(&spec.zone) {
        Ok(zone) => zone,
        Err(error) => return refused("InvalidZone", &error),
    };
    if let Some(failed) =
        seen.machine.status.as_ref().and_then(|status| status.last_bootstrap_failure_time.as_ref())
        && seen.now < failed.0 + SOON
    {
        return Step::Report(Report::WaitsAfterFailure, SOON);
    }
    Step::Claim(ClaimSettings { prefix, zone, os })
}

fn refused(reason: &'static str, error: &dyn std::error::Error) -> Step {
    Step::Report(Report::Refused { reason, message: error.to_string() }, REST)
}

/// The host is not a Node yet, or its Node is gone.
fn bootstrap(seen: &Observed<'_>, waited: Duration) -> Step {
    let status = seen.machine.status.clone().unwrap_or_default();
    let is_converged = seen.desired.is_some() && seen.desired == status.host_config_hash.as_deref();
    if is_converged && seen.node.is_some() {
        return Step::Report(Report::Joined, Duration::ZERO);
    }
    let attempts = count(status.bootstrap_attempts);
    if let Some(pause) =
        pause_left(attempts, status.last_bootstrap_failure_time.as_ref().map(|time| time.0), seen.now)
    {
        return Step::Report(Report::WaitsAfterFailure, pause);
    }
    // A host that has served, or on which VMs may run, is neither restarted nor given up. An operator or a MachineHealthCheck deletes its
    // machine, and the provider drains it then.
    if !status.ready && seen.vms == Vms::None {
        let limits = &seen.limits;
        // First, or a pool that cannot restart hosts would keep this one for ever.
        if limits.bootstrap_attempts > 0 && attempts >= limits.bootstrap_attempts {
            return Step::Quarantine;
        }
        let is_restarted = status.bootstrap_reboot_issued == Some(true);
        if limits.reboot_after > 0 && attempts >= limits.reboot_after && !is_restarted {
            return Step::Reboot;
        }
    }
    if is_converged {
        let left = JOIN_DEADLINE.saturating_sub(waited);
        return if left.is_zero() {
            Step::Report(Report::NotJoined, FIRST_PAUSE)
        } else {
            Step::Report(Report::WaitsForNode, left)
        };
    }
    // A host that has served gets another configuration as in a roll: in its turn. One that has lost its Node gets its own again at once.
    let is_roll = status.ready && seen.desired.is_some() && status.host_config_hash.is_some();
    match &seen.turn {
        Turn::Later(why) if is_roll => Step::Report(Report::WaitsForTurn(why.clone()), SOON),
        Turn::Halted(why) if is_roll => Step::Report(Report::RollHalted(why.clone()), REST),
        _ => Step::Bootstrap,
    }
}

/// The host is a Node. It may have another configuration than it should.
fn drift(seen: &Observed<'_>) -> Step {
    let status = seen.machine.status.clone().unwrap_or_default();
    let Some(desired) = seen.desired else { return Step::Report(Report::CredentialsMissing, SOON) };
    if status.host_config_hash.as_deref() == Some(desired) {
        return Step::Report(Report::UpToDate, REST);
    }
    let failed = status.failed_host_config_hash.as_deref() == Some(desired);
    let attempts = if failed { count(status.tart_kubelet_update_attempts) } else { 0 };
    let last = status.last_update_failure_time.as_ref().map(|time| time.0);
    let limits = &seen.limits;
    if limits.update_attempts > 0 && attempts >= limits.update_attempts {
        let rearms = last.map(|last| last + limits.terminal_retry_after);
        let is_over = limits.terminal_retry_after.is_zero() || rearms.is_some_and(|at| seen.now < at);
        if is_over {
            return Step::Report(Report::RollEnded, REST);
        }
    } else if let Some(pause) = pause_left(if attempts == 0 { 2 } else { attempts }, last, seen.now) {
        // What kept it from being rolled may be no failure of the host: that counts no attempt, and is waited for, too.
        return Step::Report(Report::WaitsAfterFailure, pause);
    }
    match &seen.turn {
        Turn::Now => Step::Roll,
        Turn::Later(why) => Step::Report(Report::WaitsForTurn(why.clone()), SOON),
        Turn::Halted(why) => Step::Report(Report::RollHalted(why.clone()), REST),
    }
}

fn count(attempts: Option<i32>) -> u32 {
    attempts.and_then(|attempts| u32::try_from(attempts).ok()).unwrap_or(0)
}

/// What is left of the pause after the last failure.
fn pause_left(attempts: u32, last: Option<Timestamp>, now: Timestamp) -> Option<Duration> {
    let last = last.filter(|_| attempts > 0)?;
    let pause = FIRST_PAUSE.saturating_mul(1 << (attempts - 1).min(10)).min(LONGEST_PAUSE);
    // A clock that was set back must not make the pause longer.
    let passed = Duration::try_from(now.duration_since(last)).unwrap_or_default();
    pause.checked_sub(passed).filter(|left| !left.is_zero())
}
