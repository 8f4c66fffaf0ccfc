//! The heartbeat: a thread of its own renews the Node's Lease, whatever the rest of the agent is doing.

pub(crate) mod owner;

use std::collections::BTreeMap;
use std::io;
use std::thread;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference};
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};
use tokio::time::{MissedTickBehavior, interval};
use tracing::{info, warn};

use self::owner::{ClaimedLease, ForeignLease, LeaseOwner};
use super::controller::NodeUid;
use super::pulse::Pulse;
use crate::apiserver::call::call;
use crate::error_chain::chain;
use crate::identity::ApiAccess;
use crate::metrics::Metrics;
use crate::names::NodeName;

/// The namespace of all Nodes' Leases.
pub(crate) const NAMESPACE: &str = "kube-node-lease";
/// The annotation that names the agent that renews the Lease. The Lease's holder is the Node, as with every kubelet.
const INSTANCE: &str = "tart-kubelet.tuist.dev/instance";
/// How long a renewal is valid; the kubelet's figure.
pub(crate) const DURATION: Duration = Duration::from_secs(40);
const INTERVAL: Duration = Duration::from_secs(10);
/// Longer than the interval: a late answer of a slow API server is better than another request. Two fit into [`DURATION`].
const DEADLINE: Duration = Duration::from_secs(20);

#[derive(Debug, Clone)]
pub(crate) struct Heartbeat {
    pub(crate) node: NodeName,
    /// The id of this agent.
    pub(crate) instance: String,
    /// The Lease as this agent claimed it. If another agent has taken it since, the first renewal conflicts.
    pub(crate) claimed: ClaimedLease,
    /// `None` until the Node is registered.
    pub(crate) uid: watch::Receiver<NodeUid>,
    pub(crate) pulse: Pulse,
    /// How long the rest of the agent may stand still.
    pub(crate) stall_limit: Duration,
    pub(crate) metrics: Metrics,
}

/// Starts the heartbeat. Its thread, runtime and connection are its own, so that nothing else can delay it. The channel gets a value if
/// another agent takes the Node.
pub(crate) fn spawn(heartbeat: Heartbeat, access: ApiAccess) -> io::Result<oneshot::Receiver<ForeignLease>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (lost, lost_to) = oneshot::channel();
    thread::Builder::new().name("heartbeat".to_owned()).spawn(move || {
        runtime.block_on(async move {
            match access.client(Some(heartbeat.metrics.clone())) {
                Ok(client) => {
                    // The receiver is gone if the agent is ending.
                    let _ = lost.send(heartbeat.run(Api::namespaced(client, NAMESPACE)).await);
                }
                Err(error) => warn!(error = chain(&error), "no heartbeat: the API client cannot be made"),
            }
        });
    })?;
    Ok(lost_to)
}

enum Renewal {
    Renewed(Held),
    Lost(ForeignLease),
}

impl Heartbeat {
    async fn run(mut self, api: Api<Lease>) -> ForeignLease {
        let mut tick = interval(INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut missed, mut stalled) = (false, false);
        let mut held = Some(Held { version: self.claimed.version.take(), whole_for: None });
        let mut renewed = self.claimed.renewed;
        loop {
            tokio::select! {
                _ = tick.tick() => {}
                // A Node that was just registered gets its first renewal at once.
                Ok(()) = self.uid.changed() => {}
            }
            self.metrics.heartbeat_looped();
            let Some(owner) = self.uid.borrow_and_update().clone() else { continue };
            // A Node without a Lease is not ready after a while, and its Pods go elsewhere.
            if let Some(stall) = self.pulse.stall(self.stall_limit) {
                if !std::mem::replace(&mut stalled, true) {
                    warn!(problem = %stall, "the agent stands still; its Lease is not renewed");
                }
                continue;
            }
            if std::mem::take(&mut stalled) {
                info!("the agent goes on; its Lease is renewed again");
            }
            // The node controller counts only a renewal that is later than the one before, wherever the wall clock is.
            renewed = renewed.forwards();
            match call(DEADLINE, self.renew(&api, &owner, held.as_ref(), renewed.wall())).await {
                Ok(Renewal::Renewed(now_held)) => {
                    held = Some(now_held);
                    self.metrics.lease_renewed();
                    if std::mem::take(&mut missed) {
                        info!("the heartbeat reaches the API server again");
                    }
                }
                Ok(Renewal::Lost(foreign)) => return foreign,
                Err(error) => {
                    if !std::mem::replace(&mut missed, true) {
                        warn!(problem = chain(&error), "the heartbeat does not reach the API server");
                    }
                }
            }
        }
    }

    /// Renews the Lease in the version that this agent wrote last. A conflict means that another client changed it.
    async fn renew(
        &self,
        api: &Api<Lease>,
        owner: &str,
        held: Option<&Held>,
        now: Timestamp,
    ) -> Result<Renewal, kube::Error> {
        let name = self.node.to_string();
        let parameters = PatchParams::default();
        let mut found = None;
        loop {
            let lease = lease(&self.node, owner, &self.instance, now);
            let patch = renewal(&lease, owner, found.as_ref().or(held));
            // The agent needs only the version of the answer.
            match api.patch_metadata(&name, &parameters, &Patch::Merge(patch)).await {
                Err(kube::Error::Api(answer)) if answer.code == 404 => {
                    let created = api.create(&PostParams::default(), &lease).await?;
                    let version = created.resource_version();
                    return Ok(Renewal::Renewed(Held { version, whole_for: None }));
                }
                Err(kube::Error::Api(answer)) if answer.code == 409 => {
                    let lease = api.get_opt(&name).await?;
                    if let LeaseOwner::Other { instance, .. } = LeaseOwner::of(lease.as_ref(), &self.instance)
                    {
                        return Ok(Renewal::Lost(ForeignLease { node: name, instance }));
                    }
                    // A user annotated the Lease, or the answer to the agent's own renewal was lost.
                    let version = lease.and_then(|lease| lease.metadata.resource_version);
                    found = Some(Held { version, whole_for: None });
                }
                answer => {
                    let version = answer?.resource_version();
                    return Ok(Renewal::Renewed(Held { version, whole_for: Some(owner.to_owned()) }));
                }
            }
        }
    }
}

/// The Lease as this agent wrote it last.
#[derive(Debug)]
struct Held {
    version: Option<String>,
    /// The UID of the Node for which the agent wrote all fields. A renewal for the same Node needs the time only.
    whole_for: Option<String>,
}

/// The patch of a renewal: small, because the agent sends it every ten seconds.
fn renewal(lease: &Lease, owner: &str, held: Option<&Held>) -> Value {
    let mut patch = match held {
        Some(Held { whole_for: Some(node), .. }) if node == owner => {
            let time = lease.spec.as_ref().and_then(|spec| spec.renew_time.clone());
            json!({"metadata": {}, "spec": {"renewTime": time}})
        }
        _ => json!({
            "metadata": {
                "annotations": lease.metadata.annotations,
                "ownerReferences": lease.metadata.owner_references,
                // Managed fields would be half of every answer. This empties them for good.
                "managedFields": [{}],
            },
            "spec": lease.spec,
        }),
    };
    if let Some(version) = held.and_then(|held| held.version.as_ref()) {
        patch["metadata"]["resourceVersion"] = json!(version);
    }
    patch
}

fn lease(node: &NodeName, owner: &str, instance: &str, now: Timestamp) -> Lease {
    let owner = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: node.to_string(),
        uid: owner.to_owned(),
        ..OwnerReference::default()
    };
    Lease {
        metadata: ObjectMeta {
            name: Some(node.to_string()),
            namespace: Some(NAMESPACE.to_owned()),
            annotations: Some(BTreeMap::from([(INSTANCE.to_owned(), instance.to_owned())])),
            // The garbage collector deletes the Lease with the Node.
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(node.to_string()),
            lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
            renew_time: Some(MicroTime(now)),
            ..LeaseSpec::default()
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renewal_has_the_time_alone_if_the_agent_wrote_all_other_fields() {
        let lease = lease(&"mac-1".parse().unwrap(), "uid", "me", Timestamp::UNIX_EPOCH);
        let held = |whole_for: Option<&str>| Held {
            version: Some("7".into()),
            whole_for: whole_for.map(str::to_owned),
        };
        let brief = json!({"metadata": {"resourceVersion": "7"}, "spec": {"renewTime": "1970-01-01T00:00:00.000000Z"}});
        assert_eq!(renewal(&lease, "uid", Some(&held(Some("uid")))), brief);
        for (held, version) in [
            (None, Value::Null),
            (Some(held(None)), json!("7")),
            (Some(held(Some("the Node before"))), json!("7")),
        ] {
            let patch = renewal(&lease, "uid", held.as_ref());
            assert_eq!(patch["metadata"]["ownerReferences"][0]["uid"], "uid", "{held:?}");
            assert_eq!(patch["metadata"]["annotations"][INSTANCE], "me", "{held:?}");
            assert_eq!(patch["spec"]["holderIdentity"], "mac-1", "{held:?}");
            assert_eq!(patch["metadata"]["resourceVersion"], version, "{held:?}");
        }
    }
}
