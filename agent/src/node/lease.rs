//! The heartbeat: a Lease that is renewed from a thread of its own, whatever the rest of the agent is doing.

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
use tokio::time::{MissedTickBehavior, interval, timeout};
use tracing::{info, warn};

use super::controller::NodeUid;
use super::lease_owner::{ForeignLease, LeaseVersion, Standing, standing};
use crate::error_chain::chain;
use crate::identity::ApiAccess;
use crate::metrics::Metrics;
use crate::names::NodeName;

/// The namespace of all Nodes' Leases.
pub(crate) const NAMESPACE: &str = "kube-node-lease";
/// The annotation that says which agent renews the Lease. Its holder is the Node, as with every kubelet.
pub(crate) const INSTANCE: &str = "tart-kubelet.tuist.dev/instance";
/// How long the API server trusts one renewal.
pub(crate) const DURATION: Duration = Duration::from_secs(40);
const INTERVAL: Duration = Duration::from_secs(10);
/// Longer than the interval: a slow server is better answered late than asked anew. Two fit into one period of trust.
const LIMIT: Duration = Duration::from_secs(20);

/// What the heartbeat is for.
#[derive(Debug, Clone)]
pub(crate) struct Heartbeat {
    /// The Node.
    pub(crate) node: NodeName,
    /// This agent.
    pub(crate) instance: String,
    /// The Lease as this agent has claimed it: who has taken it since is not written over by the first beat.
    pub(crate) claimed: LeaseVersion,
    /// The Node's UID, once it is registered.
    pub(crate) uid: watch::Receiver<NodeUid>,
    /// Where beats are counted.
    pub(crate) metrics: Metrics,
}

/// Starts the heartbeat. Its thread, runtime and connection are its own, so that nothing else can delay it. It ends with an answer
/// only when another agent has taken the Node.
pub(crate) fn spawn(heart: Heartbeat, access: ApiAccess) -> io::Result<oneshot::Receiver<ForeignLease>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (lost, rival) = oneshot::channel();
    thread::Builder::new().name("heartbeat".to_owned()).spawn(move || {
        runtime.block_on(async move {
            match heart.metrics.client(&access) {
                Ok(client) => {
                    // Nobody listens any more when the agent is ending anyway.
                    let _ = lost.send(heart.beat(Api::namespaced(client, NAMESPACE)).await);
                }
                Err(error) => warn!(error = chain(&error), "no heartbeat: the API client cannot be made"),
            }
        });
    })?;
    Ok(rival)
}

/// A renewal that did not come about.
#[derive(Debug, thiserror::Error)]
enum BeatError {
    #[error("the API server refused")]
    Api(#[from] kube::Error),
    #[error("the API server did not answer within {} s", LIMIT.as_secs())]
    Late(#[from] tokio::time::error::Elapsed),
    #[error(transparent)]
    ForeignLease(ForeignLease),
}

impl Heartbeat {
    async fn beat(mut self, api: Api<Lease>) -> ForeignLease {
        let mut tick = interval(INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut missed = false;
        let mut held = Some(Held { version: self.claimed.take(), whole_for: None });
        loop {
            tokio::select! {
                _ = tick.tick() => {}
                // A Node that has just been registered, again perhaps, is not left waiting for its first beat.
                Ok(()) = self.uid.changed() => {}
            }
            self.metrics.heart_is_awake();
            let Some(owner) = self.uid.borrow_and_update().clone() else { continue };
            let renewed = match timeout(LIMIT, self.renew(&api, &owner, held.as_ref())).await {
                Ok(renewed) => renewed,
                Err(late) => Err(late.into()),
            };
            match renewed {
                Ok(now_held) => {
                    held = Some(now_held);
                    self.metrics.lease_renewed();
                    if std::mem::take(&mut missed) {
                        info!("the heartbeat reaches the API server again");
                    }
                }
                Err(BeatError::ForeignLease(rival)) => return rival,
                Err(error) => {
                    if !std::mem::replace(&mut missed, true) {
                        warn!(problem = chain(&error), "the heartbeat does not reach the API server");
                    }
                }
            }
        }
    }

    /// Renews the Lease as it was when we last renewed it: nobody else is expected to.
    async fn renew(&self, api: &Api<Lease>, owner: &str, held: Option<&Held>) -> Result<Held, BeatError> {
        let name = self.node.to_string();
        let parameters = PatchParams::default();
        let mut found = None;
        loop {
            let lease = lease(&self.node, owner, &self.instance, Timestamp::now());
            let patch = renewal(&lease, owner, found.as_ref().or(held));
            // All that is of interest in the answer is the version.
            match api.patch_metadata(&name, &parameters, &Patch::Merge(patch)).await {
                Err(kube::Error::Api(answer)) if answer.code == 404 => {
                    let created = api.create(&PostParams::default(), &lease).await?;
                    return Ok(Held { version: created.resource_version(), whole_for: None });
                }
                Err(kube::Error::Api(answer)) if answer.code == 409 => {
                    let lease = api.get_opt(&name).await?;
                    if let Standing::Other { instance, .. } =
                        standing(lease.as_ref(), &self.instance, Timestamp::now())
                    {
                        return Err(BeatError::ForeignLease(ForeignLease { node: name, instance }));
                    }
                    // Somebody annotated it, or the answer to our own renewal was lost.
                    let version = lease.and_then(|lease| lease.metadata.resource_version);
                    found = Some(Held { version, whole_for: None });
                }
                answer => {
                    let version = answer?.resource_version();
                    return Ok(Held { version, whole_for: Some(owner.to_owned()) });
                }
            }
        }
    }
}

/// The Lease as we have last written it.
#[derive(Debug)]
struct Held {
    version: Option<String>,
    /// The Node for which all of it was written, so that the time is all that a renewal has to say.
    whole_for: Option<String>,
}

/// What to write to a Lease. As long as it is as we left it the time is enough; this is said every ten seconds, for years.
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
                // Who has set which field is nothing to keep, and would be half of every answer. This empties it for good.
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

pub(super) fn lease(node: &NodeName, owner: &str, instance: &str, now: Timestamp) -> Lease {
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
            // The Lease goes with the Node.
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
    fn only_a_lease_that_we_have_written_whole_is_renewed_by_its_time_alone() {
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
