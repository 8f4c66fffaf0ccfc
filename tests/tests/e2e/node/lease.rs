//! The Node's Lease.

use anyhow::Result;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;
use tart_kubelet_tests::wait;

use crate::scene::{DEADLINE, Scene, renew_time};

#[tokio::test]
async fn agent_renews_the_lease() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("lease").await?;
    let leases = scene.leases().await?;
    let time = renew_time(&scene.lease_renewed_after(None).await?);
    // The agent creates the Lease before the Node that owns it.
    wait::until(&leases, &scene.node, "renewed", DEADLINE, |lease| {
        let owners = lease.metadata.owner_references.iter().flatten();
        renew_time(lease) > time && owners.into_iter().any(|owner| owner.kind == "Node")
    })
    .await
    .map(drop)
}

/// Waits until the Lease belongs to a Node and names the agent that renews it.
pub(super) async fn lease_of(scene: &Scene, node: &Node) -> Result<Lease> {
    let leases = scene.leases().await?;
    wait::until(&leases, &scene.node, "the Node's", DEADLINE, |lease| {
        lease.owner_references().iter().any(|owner| Some(&owner.uid) == node.metadata.uid.as_ref())
            && lease.annotations().contains_key("tart-kubelet.tuist.dev/instance")
            && lease.spec.as_ref().is_some_and(|spec| spec.holder_identity.as_ref() == Some(&scene.node))
    })
    .await
}

#[tokio::test]
async fn agent_restores_a_changed_or_deleted_lease() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("meddler").await?;
    let node = scene.nodes.get(&scene.node).await?;
    let first = lease_of(&scene, &node).await?;
    let lease = ["lease", &scene.node, "--namespace", "kube-node-lease"];
    scene.kubectl.run(["annotate"].into_iter().chain(lease).chain(["note=hello"])).await?;
    let leases = scene.leases().await?;
    wait::until(&leases, &scene.node, "renewed", DEADLINE, |lease| {
        lease.annotations().contains_key("note") && renew_time(lease) > renew_time(&first)
    })
    .await?;
    scene.kubectl.run(["delete"].into_iter().chain(lease)).await?;
    assert_ne!(lease_of(&scene, &node).await?.uid(), first.uid());
    Ok(())
}
