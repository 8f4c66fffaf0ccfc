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
use serde_json::json;
use tokio::sync::{oneshot, watch};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tracing::{info, warn};

use super::NodeName;
use super::keeper::NodeUid;
use super::rival::{Rival, Standing, standing};
use crate::identity::Access;
use crate::metrics::Metrics;
use crate::report::chain;

/// The namespace of all Nodes' Leases.
pub const NAMESPACE: &str = "kube-node-lease";
/// The annotation that says which agent renews the Lease. Its holder is the Node, as with every kubelet.
pub const INSTANCE: &str = "tart-kubelet.tuist.dev/instance";
/// How long the API server trusts one renewal.
pub const DURATION: Duration = Duration::from_secs(40);
const INTERVAL: Duration = Duration::from_secs(10);
/// Longer than the interval: a slow server is better answered late than asked anew. Two fit into one period of trust.
const LIMIT: Duration = Duration::from_secs(20);

/// What the heartbeat is for.
#[derive(Debug, Clone)]
pub struct Heart {
    /// The Node.
    pub node: NodeName,
    /// This agent.
    pub instance: String,
    /// The Node's UID, once it is registered.
    pub uid: watch::Receiver<NodeUid>,
    /// Where beats are counted.
    pub metrics: Metrics,
}

/// Starts the heartbeat. Its thread, runtime and connection are its own, so that nothing else can delay it. It ends with an answer
/// only when another agent has taken the Node.
pub fn spawn(heart: Heart, access: Access) -> io::Result<oneshot::Receiver<Rival>> {
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
    Rival(Rival),
}

impl Heart {
    async fn beat(mut self, api: Api<Lease>) -> Rival {
        let mut tick = interval(INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut missed = false;
        let mut version = None;
        loop {
            tokio::select! {
                _ = tick.tick() => {}
                // A Node that has just been registered, again perhaps, is not left waiting for its first beat.
                Ok(()) = self.uid.changed() => {}
            }
            self.metrics.heart_is_awake();
            let Some(owner) = self.uid.borrow_and_update().clone() else { continue };
            let renewed = match timeout(LIMIT, self.renew(&api, &owner, version.clone())).await {
                Ok(renewed) => renewed,
                Err(late) => Err(late.into()),
            };
            match renewed {
                Ok(lease) => {
                    version = lease.resource_version();
                    self.metrics.lease_renewed();
                    if std::mem::take(&mut missed) {
                        info!("the heartbeat reaches the API server again");
                    }
                }
                Err(BeatError::Rival(rival)) => return rival,
                Err(error) => {
                    if !std::mem::replace(&mut missed, true) {
                        warn!(problem = chain(&error), "the heartbeat does not reach the API server");
                    }
                }
            }
        }
    }

    /// Renews the Lease as it was when we last renewed it: nobody else is expected to.
    async fn renew(
        &self,
        api: &Api<Lease>,
        owner: &str,
        version: Option<String>,
    ) -> Result<Lease, BeatError> {
        let name = self.node.to_string();
        let parameters = PatchParams::default();
        let mut expected = version;
        loop {
            let lease = lease(&self.node, owner, &self.instance, Timestamp::now());
            let mut metadata = json!({
                "annotations": lease.metadata.annotations,
                "ownerReferences": lease.metadata.owner_references,
            });
            if let Some(version) = &expected {
                metadata["resourceVersion"] = json!(version);
            }
            let patch = json!({"metadata": metadata, "spec": lease.spec});
            match api.patch(&name, &parameters, &Patch::Merge(patch)).await {
                Err(kube::Error::Api(answer)) if answer.code == 404 => {
                    return Ok(api.create(&PostParams::default(), &lease).await?);
                }
                Err(kube::Error::Api(answer)) if answer.code == 409 && expected.is_some() => {
                    let found = api.get_opt(&name).await?;
                    if let Standing::Other { instance, .. } =
                        standing(found.as_ref(), &self.instance, Timestamp::now())
                    {
                        return Err(BeatError::Rival(Rival { node: name, instance }));
                    }
                    // Somebody annotated it, or the answer to our own renewal was lost.
                    expected = None;
                }
                answer => return Ok(answer?),
            }
        }
    }
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
