//! The heartbeat: a Lease that is renewed from a thread of its own, whatever the rest of the agent is doing.

use std::io;
use std::thread;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference};
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tracing::{info, warn};

use super::NodeName;
use super::keeper::NodeUid;
use crate::identity::Access;
use crate::report::chain;

const NAMESPACE: &str = "kube-node-lease";
/// How long the API server trusts one renewal.
const DURATION_SECONDS: i32 = 40;
const INTERVAL: Duration = Duration::from_secs(10);
const LIMIT: Duration = Duration::from_secs(8);

/// Starts the heartbeat. Its thread, runtime and connection are its own, so that nothing else can delay it.
pub fn spawn(access: Access, node: NodeName, uid: watch::Receiver<NodeUid>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    thread::Builder::new().name("heartbeat".to_owned()).spawn(move || {
        runtime.block_on(async move {
            match access.client() {
                Ok(client) => beat(Api::namespaced(client, NAMESPACE), node, uid).await,
                Err(error) => warn!(error = chain(&error), "no heartbeat: the API client cannot be made"),
            }
        });
    })?;
    Ok(())
}

async fn beat(api: Api<Lease>, node: NodeName, mut uid: watch::Receiver<NodeUid>) {
    let mut tick = interval(INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut missed = false;
    loop {
        tokio::select! {
            _ = tick.tick() => {}
            // A Node that has just been registered, again perhaps, is not left waiting for its first beat.
            Ok(()) = uid.changed() => {}
        }
        let Some(owner) = uid.borrow_and_update().clone() else { continue };
        let renewed = timeout(LIMIT, renew(&api, &node, &owner)).await;
        let problem = match renewed {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(chain(&error)),
            Err(_) => Some(format!("no answer within {} s", LIMIT.as_secs())),
        };
        match (problem, missed) {
            (Some(problem), false) => warn!(problem, "the heartbeat does not reach the API server"),
            (None, true) => info!("the heartbeat reaches the API server again"),
            _ => continue,
        }
        missed = !missed;
    }
}

async fn renew(api: &Api<Lease>, node: &NodeName, owner: &str) -> Result<(), kube::Error> {
    let lease = lease(node, owner, Timestamp::now());
    let patch = json!({"metadata": {"ownerReferences": lease.metadata.owner_references}, "spec": lease.spec});
    match api.patch(&node.to_string(), &PatchParams::default(), &Patch::Merge(patch)).await {
        Err(kube::Error::Api(answer)) if answer.code == 404 => {
            api.create(&PostParams::default(), &lease).await.map(drop)
        }
        other => other.map(drop),
    }
}

fn lease(node: &NodeName, owner: &str, now: Timestamp) -> Lease {
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
            // The Lease goes with the Node.
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(node.to_string()),
            lease_duration_seconds: Some(DURATION_SECONDS),
            renew_time: Some(MicroTime(now)),
            ..LeaseSpec::default()
        }),
    }
}
