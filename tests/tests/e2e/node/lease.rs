//! The Node that a Mac becomes.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::api::DeleteParams;
use kube::{Api, ResourceExt};
use tart_kubelet_tests::wait;

use crate::scene::{DEADLINE, Scene};

#[tokio::test]
async fn a_mac_registers_as_a_node() -> Result<()> {
    let scene = Scene::new("node").await?;
    let agent = scene
        .agent
        .clone()
        .flag("--provider-id", "scw-applesilicon://fr-par-3/1")
        .flag("--node-labels", "team=ios");
    let running = agent.start()?;
    scene.node_ready(&running).await?;
    let node = scene.nodes.get(&scene.node).await?;
    let labels = node.metadata.labels.clone().context("no labels")?;
    for (key, value) in [
        ("kubernetes.io/os", "darwin"),
        ("kubernetes.io/arch", "arm64"),
        ("tuist.dev/runtime", "tart"),
        ("team", "ios"),
    ] {
        assert_eq!(labels.get(key).map(String::as_str), Some(value), "{key}");
    }
    let spec = node.spec.context("no spec")?;
    assert_eq!(spec.provider_id.as_deref(), Some("scw-applesilicon://fr-par-3/1"));
    ensure!(
        spec.taints
            .iter()
            .flatten()
            .any(|taint| taint.key == "tuist.dev/macos" && taint.effect == "NoSchedule")
    );
    let capacity = node.status.and_then(|status| status.capacity).context("no capacity")?;
    assert_eq!(capacity["pods"].0, "2");
    Ok(())
}

#[tokio::test]
async fn the_lease_is_renewed() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("lease").await?;
    let leases: Api<Lease> = Api::namespaced(scene.control_plane.client().await?, "kube-node-lease");
    let renewed = |lease: &Lease| lease.spec.as_ref().and_then(|spec| spec.renew_time.clone());
    let first =
        wait::until(&leases, &scene.node, "there", DEADLINE, |lease| renewed(lease).is_some()).await?;
    let time = renewed(&first);
    // It is claimed before there is a Node that could own it.
    wait::until(&leases, &scene.node, "renewed", DEADLINE, |lease| {
        let owners = lease.metadata.owner_references.iter().flatten();
        renewed(lease) > time && owners.into_iter().any(|owner| owner.kind == "Node")
    })
    .await
    .map(drop)
}

/// Waits until the Lease belongs to a Node and says which agent renews it.
async fn lease_of(scene: &Scene, node: &Node) -> Result<Lease> {
    let leases: Api<Lease> = Api::namespaced(scene.control_plane.client().await?, "kube-node-lease");
    wait::until(&leases, &scene.node, "the Node's", DEADLINE, |lease| {
        lease.owner_references().iter().any(|owner| Some(&owner.uid) == node.metadata.uid.as_ref())
            && lease.annotations().contains_key("tart-kubelet.tuist.dev/instance")
            && lease.spec.as_ref().is_some_and(|spec| spec.holder_identity.as_ref() == Some(&scene.node))
    })
    .await
}

#[tokio::test]
async fn a_lease_that_somebody_meddles_with_is_put_right() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("meddler").await?;
    let node = scene.nodes.get(&scene.node).await?;
    let first = lease_of(&scene, &node).await?;
    let lease = ["lease", &scene.node, "--namespace", "kube-node-lease"];
    let renewed = |lease: &Lease| lease.spec.as_ref().and_then(|spec| spec.renew_time.clone());
    scene.kubectl.run(["annotate"].into_iter().chain(lease).chain(["note=hello"])).await?;
    let leases: Api<Lease> = Api::namespaced(scene.control_plane.client().await?, "kube-node-lease");
    wait::until(&leases, &scene.node, "renewed", DEADLINE, |lease| {
        lease.annotations().contains_key("note") && renewed(lease) > renewed(&first)
    })
    .await?;
    scene.kubectl.run(["delete"].into_iter().chain(lease)).await?;
    assert_ne!(lease_of(&scene, &node).await?.uid(), first.uid());
    Ok(())
}

#[tokio::test]
async fn a_deleted_node_is_registered_again() -> Result<()> {
    let (scene, agent) = Scene::with_agent("again").await?;
    let first = scene.nodes.get(&scene.node).await?.metadata.uid;
    scene.nodes.delete(&scene.node, &DeleteParams::default()).await?;
    let back = wait::eventually("a new Node", DEADLINE, async || {
        let node = scene.nodes.get(&scene.node).await?;
        ensure!(node.metadata.uid != first, "still the old one");
        Ok(node)
    });
    let back = back.await.with_context(|| agent.log().unwrap_or_default())?;
    // The old Lease goes with the old Node, sooner or later; the new Node has one all the same.
    lease_of(&scene, &back).await?;
    scene.node_ready(&agent).await
}
