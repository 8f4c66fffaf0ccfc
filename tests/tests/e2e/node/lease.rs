//! The Node's Lease.

use std::fs::File;

use anyhow::{Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
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

#[tokio::test]
async fn lease_of_an_agent_whose_disk_hangs_is_not_renewed() -> Result<()> {
    let scene = Scene::new("standstill").await?;
    let agent = scene.start(&scene.agent.clone().flag("--stall-timeout", "20s")).await?;
    let said = async |words: &str| {
        wait::eventually(words, DEADLINE, async || {
            ensure!(agent.log()?.contains(words), "{}", agent.log()?);
            Ok(())
        })
        .await
    };
    // The agent opens the pipe for writing and waits for a reader, as it waits for a disk that hangs.
    let (pulse, pipe) = (scene.agent.state_dir().join("pulse"), scene.agent.state_dir().join("pipe"));
    mkfifo(&pipe, Mode::S_IRWXU)?;
    std::fs::rename(&pipe, &pulse)?;
    said("its Lease is not renewed").await?;
    let leases = scene.leases().await?;
    let last = leases.get(&scene.node).await?;
    std::fs::rename(&pulse, &pipe)?;
    drop(File::open(&pipe)?);
    said("its Lease is renewed again").await?;
    wait::until(&leases, &scene.node, "renewed", DEADLINE, |lease| renew_time(lease) > renew_time(&last))
        .await?;
    Ok(())
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
