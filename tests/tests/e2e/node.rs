//! The Node that a Mac becomes.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::DeleteParams;
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
    back.await.with_context(|| agent.log().unwrap_or_default())?;
    scene.node_ready(&agent).await
}
