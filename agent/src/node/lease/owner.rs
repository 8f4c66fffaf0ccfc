//! Which agent has a Node. A second agent with the same Node name must not touch the first one's Pods.
//!
//! The Lease carries the instance of the agent that renews it. A restarted agent finds its own. An agent on a Mac that was set up anew,
//! or that takes over a dead Mac's name, finds another instance, and watches whether that one still renews the Lease. It goes by the
//! change of the renewal time, because the clocks of two machines may differ.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::{DURATION, INSTANCE, lease};
use crate::apiserver::call::call;
use crate::clock::Moment;
use crate::error_chain::chain;
use crate::names::NodeName;

const DEADLINE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_secs(1);
const LOG_INTERVAL: Duration = Duration::from_mins(1);

/// Another agent has this Node. `instance` is its id, if it is a tart-kubelet.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
#[error(
    "another agent ({instance}) is alive under the Node name {node}: it keeps renewing the Node's Lease. Stop it, or give this \
     agent a name of its own with --node-name"
)]
pub(crate) struct ForeignLease {
    pub(super) node: String,
    pub(super) instance: String,
}

/// The agent that has a Node, according to its Lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LeaseOwner {
    /// No agent, or this one.
    Free,
    /// Another agent, which may be dead; `renewed` is a time of its clock.
    Other { instance: String, renewed: Option<Timestamp> },
}

impl LeaseOwner {
    /// Goes by no clock: one that is wrong must not rob a live agent.
    pub(super) fn of(lease: Option<&Lease>, ours: &str) -> Self {
        let Some(lease) = lease else { return Self::Free };
        let instance = instance_of(lease);
        let renewed = renewed_at(lease);
        if renewed.is_none() || instance.is_some_and(|instance| instance == ours) {
            return Self::Free;
        }
        let instance = instance.unwrap_or("which is no tart-kubelet").to_owned();
        Self::Other { instance, renewed }
    }
}

enum Claim {
    /// The Lease is this agent's.
    Ours(ClaimedLease),
    /// Another agent was faster, or may still be alive.
    NotYet,
}

/// The Lease as this agent has found or made it its own.
#[derive(Debug, Clone)]
pub(crate) struct ClaimedLease {
    /// A write with an old version conflicts.
    pub(super) version: Option<String>,
    /// The next renewal is later than this.
    pub(super) renewed: Moment,
}

impl ClaimedLease {
    fn of(lease: &Lease) -> Self {
        let renewed = Moment::now().not_before(renewed_at(lease).unwrap_or(Timestamp::MIN));
        Self { version: lease.metadata.resource_version.clone(), renewed }
    }
}

/// Claims the Lease for this agent, and returns its version. An error means that another agent is alive.
///
/// The agent claims the Lease before it does anything else in the Node's name. The write conflicts if the Lease changed since it was
/// read: of two agents that start at the same time, one gets it.
pub(crate) async fn claim(
    leases: &Api<Lease>,
    node: &NodeName,
    ours: &str,
) -> Result<ClaimedLease, ForeignLease> {
    let mut first: Option<(LeaseOwner, Instant)> = None;
    let mut logged: Option<Instant> = None;
    loop {
        let problem = match call(DEADLINE, leases.get_opt(&node.to_string())).await {
            Ok(lease) => {
                let free = match (LeaseOwner::of(lease.as_ref(), ours), &first) {
                    (LeaseOwner::Free, _) => true,
                    (LeaseOwner::Other { instance, renewed }, Some((before, _)))
                        if *before != (LeaseOwner::Other { instance: instance.clone(), renewed }) =>
                    {
                        return Err(ForeignLease { node: node.to_string(), instance });
                    }
                    (_, Some((_, since))) if since.elapsed() > DURATION => {
                        info!(%node, "the agent that had this Node is gone; taking over");
                        true
                    }
                    (_, Some(_)) => false,
                    (other, None) => {
                        info!(%node, "another agent had this Node; watching whether it is alive");
                        first = Some((other, Instant::now()));
                        false
                    }
                };
                let claim =
                    async { if free { write(leases, node, ours, lease).await } else { Ok(Claim::NotYet) } };
                match call(DEADLINE, claim).await {
                    Ok(Claim::Ours(claimed)) => return Ok(claimed),
                    Ok(Claim::NotYet) => None,
                    Err(error) => Some(chain(&error)),
                }
            }
            Err(error) => Some(chain(&error)),
        };
        if let Some(problem) = problem
            && logged.is_none_or(|at| at.elapsed() > LOG_INTERVAL)
        {
            warn!(%node, problem, "cannot read the Node's Lease; trying again");
            logged = Some(Instant::now());
        }
        sleep(PAUSE).await;
    }
}

/// Makes the Lease this agent's, unless it has changed since it was found.
async fn write(
    leases: &Api<Lease>,
    node: &NodeName,
    ours: &str,
    found: Option<Lease>,
) -> Result<Claim, kube::Error> {
    let before = found.as_ref().and_then(renewed_at).unwrap_or(Timestamp::MIN);
    let now = Moment::now().not_before(before).forwards().wall();
    let written = match found {
        Some(lease) if instance_of(&lease) == Some(ours) => {
            return Ok(Claim::Ours(ClaimedLease::of(&lease)));
        }
        Some(lease) => {
            let metadata =
                json!({"annotations": {INSTANCE: ours}, "resourceVersion": lease.metadata.resource_version});
            let patch = json!({"metadata": metadata, "spec": {"renewTime": MicroTime(now)}});
            leases.patch(&node.to_string(), &PatchParams::default(), &Patch::Merge(patch)).await
        }
        None => {
            let mut lease = lease(node, "", ours, now);
            // The first renewal sets the owner, once the Node is registered.
            lease.metadata.owner_references = None;
            leases.create(&PostParams::default(), &lease).await
        }
    };
    match written {
        Ok(lease) => Ok(Claim::Ours(ClaimedLease::of(&lease))),
        Err(kube::Error::Api(answer)) if answer.code == 409 => Ok(Claim::NotYet),
        Err(error) => Err(error),
    }
}

fn renewed_at(lease: &Lease) -> Option<Timestamp> {
    lease.spec.as_ref()?.renew_time.as_ref().map(|time| time.0)
}

fn instance_of(lease: &Lease) -> Option<&str> {
    lease.metadata.annotations.as_ref()?.get(INSTANCE).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at;

    #[test]
    fn only_a_lease_that_another_agent_has_renewed_has_an_owner() {
        let held = lease(&"mac-1".parse().unwrap(), "uid", "first", at(1000));
        let other = |instance: &str| LeaseOwner::Other { instance: instance.into(), renewed: Some(at(1000)) };
        let mut foreign = held.clone();
        foreign.metadata.annotations = None;
        let never_renewed = Lease { spec: None, ..foreign.clone() };
        for (lease, ours, expected, why) in [
            (None, "first", LeaseOwner::Free, "there is no Lease"),
            (Some(&held), "first", LeaseOwner::Free, "it is the agent's own"),
            (Some(&held), "second", other("first"), "it is another agent's, however old"),
            (Some(&foreign), "first", other("which is no tart-kubelet"), "it names no agent"),
            (Some(&never_renewed), "first", LeaseOwner::Free, "it was never renewed"),
        ] {
            assert_eq!(LeaseOwner::of(lease, ours), expected, "{why}");
        }
    }
}
