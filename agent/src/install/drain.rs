//! Drains the Node of this Mac with the agent's own credentials, as `kubectl drain` does: no new Pods, and the old ones are evicted.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{EvictParams, ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::apiserver::call::{CallError, DEADLINE, call};
use crate::names::NodeName;

const POLL: Duration = Duration::from_secs(1);

/// Why the Node is not drained.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DrainError {
    /// The API server cannot be asked, or refuses.
    #[error("cannot drain the Node")]
    Call(#[from] CallError),
    /// Pods are left.
    #[error("after {} s the Node still has {pods}; a PodDisruptionBudget may keep them, or their grace period may be longer (--drain-timeout)", timeout.as_secs())]
    Timeout {
        /// How long it was waited for.
        timeout: Duration,
        /// The Pods.
        pods: String,
    },
}

/// Takes the Node out of scheduling, evicts its Pods, and waits until they are gone.
pub(crate) async fn drain(
    client: &Client,
    node: &NodeName,
    timeout: Duration,
    mut say: impl FnMut(&str),
) -> Result<(), DrainError> {
    let nodes: Api<Node> = Api::all(client.clone());
    let cordon = json!({ "spec": { "unschedulable": true } });
    call(DEADLINE, nodes.patch(&node.to_string(), &PatchParams::default(), &Patch::Merge(cordon))).await?;
    let pods: Api<Pod> = Api::all(client.clone());
    let of_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
    let start = Instant::now();
    let mut told = None;
    loop {
        let left: Vec<Pod> = call(DEADLINE, pods.list(&of_node)).await?.items;
        let left: Vec<Pod> = left.into_iter().filter(must_go).collect();
        if left.is_empty() {
            return Ok(());
        }
        let names: Vec<String> = left.iter().map(ResourceExt::name_any).collect();
        let names = names.join(", ");
        if start.elapsed() >= timeout {
            return Err(DrainError::Timeout { timeout, pods: names });
        }
        if told.as_ref() != Some(&names) {
            say(&format!("waiting for Pods to end: {names}"));
            told = Some(names);
        }
        for pod in left.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()) {
            evict(client, pod).await?;
        }
        sleep(POLL).await;
    }
}

async fn evict(client: &Client, pod: &Pod) -> Result<(), CallError> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
    match call(DEADLINE, pods.evict(&pod.name_any(), &EvictParams::default())).await {
        Ok(_) => Ok(()),
        Err(error) if error.is_not_found() => Ok(()),
        // A PodDisruptionBudget does not allow it now.
        Err(error) if error.code() == Some(429) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Whether a Pod has to end before the Mac leaves. A `DaemonSet` would make it anew.
fn must_go(pod: &Pod) -> bool {
    let is_over = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let is_over = matches!(is_over, Some("Succeeded" | "Failed"));
    let is_of_daemon_set = pod.owner_references().iter().any(|owner| owner.kind == "DaemonSet");
    !is_over && !is_of_daemon_set
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_that_are_over_and_those_of_daemon_sets_stay() {
        let pod = |phase: &str, owner: &str| -> Pod {
            serde_json::from_value(json!({
                "metadata": { "ownerReferences": [{ "apiVersion": "apps/v1", "kind": owner, "name": "a", "uid": "u" }] },
                "status": { "phase": phase },
            }))
            .unwrap()
        };
        assert!(must_go(&pod("Running", "Job")) && must_go(&pod("Pending", "ReplicaSet")));
        assert!(!must_go(&pod("Succeeded", "Job")) && !must_go(&pod("Running", "DaemonSet")));
    }
}
