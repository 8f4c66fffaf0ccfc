//! What is known about a machine: from the watches, and from the API server where they do not show it.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures::FutureExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::ListParams;
use kube::runtime::events::EventType;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Api, ResourceExt as _};

use super::decide::{BOOTSTRAPPED, ClusterSeen, HOST_UP_TO_DATE, NodeSeen, Observed, Step, Vms, decide};
use super::inputs::credentials::HostCredentials;
use super::reconciler::{ReconcileError, Reconciler, Wanted, reference};
use super::report;
use super::roll::{RollState, Rolled, Turn, turn};
use crate::apiserver::call;
use crate::cluster_api::CLUSTER_NAME;
use crate::crd::{
    ConditionStatus, ScalewayAppleSiliconMachine as Machine, ScalewayAppleSiliconMachineStatus as Status,
    find_condition,
};
use crate::host::{Credential, Secret};
use crate::names::MachineRef;

pub(super) fn provider_id_of(node: &Node) -> Option<String> {
    node.spec.as_ref()?.provider_id.clone().filter(|id| !id.is_empty())
}

pub(super) fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|all| all.iter().any(|known| known.type_ == "Ready" && known.status == "True"))
}

/// Whether a watch has shown what there is.
fn is_ready_store<K>(store: &Store<K>) -> bool
where
    K: kube::runtime::reflector::Lookup + Clone + 'static,
    K::DynamicType: Eq + std::hash::Hash + Clone,
{
    store.wait_until_ready().now_or_never().is_some_and(|ready| ready.is_ok())
}

impl Reconciler {
    pub(super) async fn next(&self, machine: &Machine) -> Result<Step, ReconcileError> {
        let status = machine.status.clone().unwrap_or_default();
        let desired = self.desired(machine).await?;
        let node = self.node(&machine.name_any());
        let has_drifted = desired.is_some() && desired != status.host_config_hash;
        let turn = if has_drifted { self.turn(machine, &self.rolling().clone()) } else { Turn::Now };
        let seen = Observed {
            machine,
            is_synced: is_ready_store(&self.stores.nodes) && is_ready_store(&self.stores.clusters),
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

    pub(super) fn cluster(&self, machine: &Machine) -> ClusterSeen {
        let Some(name) = machine.labels().get(CLUSTER_NAME) else { return ClusterSeen::None };
        let key = ObjectRef::new(name).within(&machine.namespace().unwrap_or_default());
        match self.stores.clusters.get(&key) {
            None => ClusterSeen::Missing,
            Some(cluster) if cluster.is_paused() => ClusterSeen::Paused,
            Some(cluster) if cluster.is_provisioned() => ClusterSeen::Ready,
            Some(_) => ClusterSeen::NotReady,
        }
    }

    pub(super) fn node(&self, name: &str) -> Option<Arc<Node>> {
        self.stores.nodes.get(&ObjectRef::new(name))
    }

    /// The hash of the configuration that a machine's host should have; `None` until the host's user is known.
    pub(super) async fn desired(&self, machine: &Machine) -> Result<Option<String>, ReconcileError> {
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
                None => match self.recover_credentials(machine).await? {
                    Some(user) => user,
                    None => return Ok(None),
                },
            },
        };
        let credential = Credential::Bootstrap(Secret::new(Vec::new()));
        let hash = self.config.of(machine, &user, credential).hash().to_string();
        let generation = machine.metadata.generation;
        let wanted = Wanted { server, generation, addresses, user, hash: hash.clone() };
        self.wanted().insert(key, wanted);
        Ok(Some(hash))
    }

    /// Writes the Secret of a machine anew that has lost it, by what the pool knows. Returns the user.
    async fn recover_credentials(&self, machine: &Machine) -> Result<Option<String>, ReconcileError> {
        let Ok(Some((zone, id))) = Self::held(machine) else { return Ok(None) };
        let Some(host) = self.pool.host(&zone, &id).await? else { return Ok(None) };
        let Some(credentials) = HostCredentials::of(&host) else { return Ok(None) };
        self.credentials.write(&machine.name_any(), &credentials).await?;
        let words = "the credentials of the host were not there, and are taken from the pool";
        self.events.say(machine, EventType::Normal, "CredentialsReclaimed", words).await;
        Ok(Some(credentials.user))
    }

    pub(super) fn wanted(&self) -> std::sync::MutexGuard<'_, HashMap<MachineRef, Wanted>> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn rolling(&self) -> std::sync::MutexGuard<'_, HashSet<MachineRef>> {
        self.rolling.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether VMs may run on a host that could be restarted or given up. Only then the API server is asked.
    pub(super) async fn vms(&self, node: &str, status: &Status) -> Vms {
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
    pub(super) fn turn(&self, machine: &Machine, rolling: &HashSet<MachineRef>) -> Turn {
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

    pub(super) fn roll_state(&self, machine: &Machine, desired: Option<&str>, is_rolling: bool) -> RollState {
        if is_rolling {
            return RollState::Rolling;
        }
        let status = machine.status.clone().unwrap_or_default();
        let is_ready = self.node(&machine.name_any()).is_none_or(|node| is_ready(&node));
        roll_state(&status, desired, is_ready, self.limits.roll_min_ready, Timestamp::now())
    }
}

/// How far a machine is that is not being rolled. `is_ready` is what its Node says.
fn roll_state(
    status: &Status,
    desired: Option<&str>,
    is_ready: bool,
    min_ready: Duration,
    now: Timestamp,
) -> RollState {
    // A host that was not ready before its roll says nothing about the configuration.
    let has_failed = status.tart_kubelet_update_attempts.unwrap_or(0) > 0
        && status.failure_reason.as_deref() != Some(report::HOST_NOT_READY);
    let is_this = |hash: &Option<String>| desired.is_none_or(|desired| hash.as_deref() == Some(desired));
    if has_failed && is_this(&status.failed_host_config_hash) {
        return RollState::Failed;
    }
    if desired.is_none() || status.host_config_hash.as_deref() != desired {
        return RollState::Outdated;
    }
    if !is_ready {
        return RollState::DoneAndNotReady;
    }
    // A host that was bootstrapped again has not joined yet.
    if find_condition(&status.conditions, BOOTSTRAPPED)
        .is_some_and(|known| known.status != ConditionStatus::True)
    {
        return RollState::Rolling;
    }
    // The Node of an agent that has fallen silent counts as ready for a while. A time far ahead is that of a clock that was set back since.
    let since = find_condition(&status.conditions, HOST_UP_TO_DATE)
        .filter(|known| known.status == ConditionStatus::True)
        .map(|known| now.duration_since(known.last_transition_time.0).unsigned_abs());
    let is_new = since.is_some_and(|since| since < min_ready);
    if is_new { RollState::Rolling } else { RollState::Done }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::report;

    #[test]
    fn a_roll_is_done_when_its_node_has_stayed_ready() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let min_ready = Duration::from_mins(1);
        let mut status = Status::default();
        report::rolled(&mut status, "new", "", at(100));
        let state =
            |status: &Status, is_ready, now| roll_state(status, Some("new"), is_ready, min_ready, at(now));
        assert_eq!(state(&status, true, 159), RollState::Rolling);
        assert_eq!(state(&status, false, 159), RollState::DoneAndNotReady);
        assert_eq!(state(&status, true, 160), RollState::Done);
        // The clock was set back, by little or by much.
        assert_eq!(state(&status, true, 50), RollState::Rolling);
        assert_eq!(state(&status, true, 40), RollState::Done);
        assert_eq!(roll_state(&status, Some("newer"), true, min_ready, at(110)), RollState::Outdated);
        let mut again = status.clone();
        report::converged(&mut again, "new", "", at(150));
        assert_eq!(state(&again, true, 300), RollState::Rolling);
        report::roll_failed(&mut status, "newer", 5, true, "it ends at once", at(200));
        assert_eq!(roll_state(&status, Some("newer"), true, min_ready, at(300)), RollState::Failed);
    }
}
