//! Two agents with one Node name: the second one must not touch the first one's Pods.
//!
//! The Lease carries the instance of the agent that renews it. A restarted agent finds its own; one on a Mac that was set up anew,
//! or that takes over a dead one's name, finds another one's and watches whether it is still renewed. Renewal is
//! seen by its value changing, not by comparing clocks of two machines.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

use super::lease::{self, DURATION, INSTANCE};
use crate::error_chain::chain;
use crate::names::NodeName;

/// One look at the Lease.
const LIMIT: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_secs(1);
/// A Lease that is this old is nobody's, even if clocks differ a little.
const LONG_GONE: Duration = Duration::from_mins(2);
const COMPLAIN_EVERY: Duration = Duration::from_mins(1);

/// Another agent has this Node.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
#[error(
    "another agent ({instance}) is alive under the Node name {node}: it keeps renewing the Node's Lease. Stop it, or give this \
     agent a name of its own with --node-name"
)]
pub(crate) struct ForeignLease {
    /// The Node.
    pub(crate) node: String,
    /// The other agent, as far as it says who it is.
    pub(crate) instance: String,
}

/// What a Lease says about who has the Node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Standing {
    /// Nobody, or this agent itself.
    Free,
    /// Another agent, which may be dead; renewed last at this time of its own clock.
    Other { instance: String, renewed: Option<Timestamp> },
}

/// Reads a Lease.
pub(super) fn standing(lease: Option<&Lease>, ours: &str, now: Timestamp) -> Standing {
    let Some(lease) = lease else { return Standing::Free };
    let instance = instance_of(lease);
    let renewed = lease.spec.as_ref().and_then(|spec| spec.renew_time.as_ref()).map(|time| time.0);
    let long_gone =
        renewed.is_none_or(|at| now.duration_since(at) > LONG_GONE.try_into().unwrap_or_default());
    if long_gone || instance.is_some_and(|instance| instance == ours) {
        return Standing::Free;
    }
    let instance = instance.unwrap_or("which is no tart-kubelet").to_owned();
    Standing::Other { instance, renewed }
}

/// What one look at the Lease has led to.
enum Look {
    /// The Lease is this agent's, in this version.
    Ours(LeaseVersion),
    /// Another agent was faster, or may still be alive.
    Again,
}

/// The version of a Lease, by which somebody else's change of it is noticed.
pub(crate) type LeaseVersion = Option<String>;

/// Returns when this agent has the Node, with the version of the Lease that says so; an error when another one is seen alive.
///
/// The Lease is written here, before anything else is done in the Node's name, and only as it was read: of two agents that
/// come at the same time, one has it.
pub(crate) async fn wait_for_none(
    leases: &Api<Lease>,
    node: &NodeName,
    ours: &str,
) -> Result<LeaseVersion, ForeignLease> {
    let mut first: Option<(Standing, Instant)> = None;
    let mut complained: Option<Instant> = None;
    loop {
        let problem = match timeout(LIMIT, leases.get_opt(&node.to_string())).await {
            Ok(Ok(lease)) => {
                let free = match (standing(lease.as_ref(), ours, Timestamp::now()), &first) {
                    (Standing::Free, _) => true,
                    (Standing::Other { instance, renewed }, Some((before, _)))
                        if *before != (Standing::Other { instance: instance.clone(), renewed }) =>
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
                    async { if free { claim(leases, node, ours, lease).await } else { Ok(Look::Again) } };
                match timeout(LIMIT, claim).await {
                    Ok(Ok(Look::Ours(version))) => return Ok(version),
                    Ok(Ok(Look::Again)) => None,
                    Ok(Err(error)) => Some(chain(&error)),
                    Err(_) => Some(late()),
                }
            }
            Ok(Err(error)) => Some(chain(&error)),
            Err(_) => Some(late()),
        };
        if let Some(problem) = problem
            && complained.is_none_or(|at| at.elapsed() > COMPLAIN_EVERY)
        {
            warn!(%node, problem, "cannot read the Node's Lease; trying again");
            complained = Some(Instant::now());
        }
        sleep(PAUSE).await;
    }
}

fn late() -> String {
    format!("no answer within {} s", LIMIT.as_secs())
}

/// Makes the Lease this agent's, if it is still as it was found.
async fn claim(
    leases: &Api<Lease>,
    node: &NodeName,
    ours: &str,
    found: Option<Lease>,
) -> Result<Look, kube::Error> {
    let now = Timestamp::now();
    let written = match found {
        Some(lease) if instance_of(&lease) == Some(ours) => {
            return Ok(Look::Ours(lease.metadata.resource_version));
        }
        Some(lease) => {
            let metadata =
                json!({"annotations": {INSTANCE: ours}, "resourceVersion": lease.metadata.resource_version});
            let patch = json!({"metadata": metadata, "spec": {"renewTime": MicroTime(now)}});
            leases.patch(&node.to_string(), &PatchParams::default(), &Patch::Merge(patch)).await
        }
        None => {
            let mut lease = lease::lease(node, "", ours, now);
            // It gets its owner with the first beat, once the Node is there.
            lease.metadata.owner_references = None;
            leases.create(&PostParams::default(), &lease).await
        }
    };
    match written {
        Ok(lease) => Ok(Look::Ours(lease.metadata.resource_version)),
        Err(kube::Error::Api(answer)) if answer.code == 409 => Ok(Look::Again),
        Err(error) => Err(error),
    }
}

fn instance_of(lease: &Lease) -> Option<&str> {
    lease.metadata.annotations.as_ref()?.get(INSTANCE).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::lease::lease;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn only_anothers_fresh_lease_is_in_the_way() {
        let held = lease(&"mac-1".parse().unwrap(), "uid", "first", at(1000));
        let other = |instance: &str| Standing::Other { instance: instance.into(), renewed: Some(at(1000)) };
        assert_eq!(standing(None, "first", at(1001)), Standing::Free);
        assert_eq!(standing(Some(&held), "first", at(1001)), Standing::Free);
        assert_eq!(standing(Some(&held), "second", at(1001)), other("first"));
        assert_eq!(standing(Some(&held), "second", at(1100)), other("first"));
        assert_eq!(standing(Some(&held), "second", at(900)), other("first"), "its clock is ahead");
        assert_eq!(standing(Some(&held), "second", at(1121)), Standing::Free);
        let mut foreign = held.clone();
        foreign.metadata.annotations = None;
        assert_eq!(standing(Some(&foreign), "first", at(1001)), other("which is no tart-kubelet"));
        foreign.spec = None;
        assert_eq!(standing(Some(&foreign), "first", at(1001)), Standing::Free, "it was never renewed");
    }
}
