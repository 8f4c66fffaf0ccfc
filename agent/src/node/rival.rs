//! Two agents with one Node name: the second one must not touch the first one's Pods.
//!
//! The Lease carries the instance of the agent that renews it. A restarted agent finds its own; one on a Mac that was set up anew,
//! or that takes over a dead one's name, finds another one's and watches whether it is still renewed. Renewal is
//! seen by its value changing, not by comparing clocks of two machines.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

use super::NodeName;
use super::lease::{DURATION, INSTANCE};
use crate::report::chain;

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
pub struct Rival {
    /// The Node.
    pub node: String,
    /// The other agent, as far as it says who it is.
    pub instance: String,
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
    let instance = lease.metadata.annotations.as_ref().and_then(|all| all.get(INSTANCE));
    let renewed = lease.spec.as_ref().and_then(|spec| spec.renew_time.as_ref()).map(|time| time.0);
    let long_gone =
        renewed.is_none_or(|at| now.duration_since(at) > LONG_GONE.try_into().unwrap_or_default());
    if long_gone || instance.is_some_and(|instance| instance == ours) {
        return Standing::Free;
    }
    let instance = instance.map_or_else(|| "which is no tart-kubelet".to_owned(), Clone::clone);
    Standing::Other { instance, renewed }
}

/// Returns when this agent may take the Node; an error when another one is seen alive.
pub async fn wait_for_none(leases: &Api<Lease>, node: &NodeName, ours: &str) -> Result<(), Rival> {
    let mut first: Option<(Standing, Instant)> = None;
    let mut complained: Option<Instant> = None;
    loop {
        match timeout(LIMIT, leases.get_opt(&node.to_string())).await {
            Ok(Ok(lease)) => match (standing(lease.as_ref(), ours, Timestamp::now()), &first) {
                (Standing::Free, _) => return Ok(()),
                (Standing::Other { instance, .. }, Some((before, _)))
                    if *before != standing(lease.as_ref(), ours, Timestamp::now()) =>
                {
                    return Err(Rival { node: node.to_string(), instance });
                }
                (_, Some((_, since))) if since.elapsed() > DURATION => {
                    info!(%node, "the agent that had this Node is gone; taking over");
                    return Ok(());
                }
                (_, Some(_)) => {}
                (other, None) => {
                    info!(%node, "another agent had this Node; watching whether it is alive");
                    first = Some((other, Instant::now()));
                }
            },
            failed => {
                let problem = match failed {
                    Ok(Err(error)) => chain(&error),
                    _ => format!("no answer within {} s", LIMIT.as_secs()),
                };
                if complained.is_none_or(|at| at.elapsed() > COMPLAIN_EVERY) {
                    warn!(%node, problem, "cannot read the Node's Lease; trying again");
                    complained = Some(Instant::now());
                }
            }
        }
        sleep(PAUSE).await;
    }
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
