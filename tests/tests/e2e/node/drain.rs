//! Pods that have to leave: drains, evictions and taints.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;
use serde_json::json;
use tart_kubelet_tests::wait;

use crate::scene::{DEADLINE, Scene, phase_of};

#[tokio::test]
async fn a_node_is_drained_and_taken_into_use_again() -> Result<()> {
    let (scene, agent) = Scene::with_agent("drain").await?;
    for name in ["one", "two"] {
        scene.create(&scene.pod(name, &json!({}), &json!({}))).await?;
    }
    for name in ["one", "two"] {
        scene.phase(name, "Running").await?;
    }
    let kubectl = scene.kubectl.clone().deadline(DEADLINE);
    let drained = kubectl.run(["drain", &scene.node, "--force", "--ignore-daemonsets"]).await;
    drained.with_context(|| agent.log().unwrap_or_default())?;
    // A drain ends when the Pods are gone, and they go only after their VMs: the Mac can be worked on now.
    ensure!(scene.vms().await?.is_empty(), "VMs are left: {}", agent.log()?);
    let spec = scene.nodes.get(&scene.node).await?.spec.context("no spec")?;
    assert_eq!(spec.unschedulable, Some(true));

    scene.create(&scene.pod("later", &json!({"command": ["/usr/bin/true"]}), &json!({}))).await?;
    scene.told("pod", "later", "unschedulable").await?;
    // An agent that is restarted meanwhile does not let Pods in by itself.
    let _agent = agent.restart()?;
    scene.kubectl.run(["label", "node", &scene.node, "tuist.dev/runtime-"]).await?;
    let node = wait::until(&scene.nodes, &scene.node, "written", DEADLINE, |node| {
        node.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key("tuist.dev/runtime"))
    })
    .await?;
    assert_eq!(node.spec.and_then(|spec| spec.unschedulable), Some(true));
    scene.kubectl.run(["uncordon", &scene.node]).await?;
    scene.phase("later", "Succeeded").await.map(drop)
}

#[tokio::test]
async fn an_eviction_waits_for_its_budget() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("evict").await?;
    let mut pod = scene.pod("guarded", &json!({}), &json!({}));
    pod["metadata"]["labels"] = json!({"app": "guarded"});
    scene.create(&pod).await?;
    scene.phase("guarded", "Running").await?;
    let create = ["create", "pdb", "guard", "--selector=app=guarded", "--min-available=1"];
    scene.kubectl.run(create).await?;
    let budgets: Api<PodDisruptionBudget> =
        Api::namespaced(scene.control_plane.client().await?, scene.namespace());
    wait::until(&budgets, "guard", "counted", DEADLINE, |budget| {
        budget.status.as_ref().is_some_and(|status| status.current_healthy == Some(1))
    })
    .await?;
    let eviction = json!({
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": "guarded", "namespace": scene.namespace()},
    });
    let path = format!("/api/v1/namespaces/{}/pods/guarded/eviction", scene.namespace());
    // Not by our own client, which would ask again and again.
    let evict = async || {
        scene.kubectl.run_with_input(["create", "--raw", &path, "-f", "-"], &eviction.to_string()).await
    };
    let refusal = evict().await.err().context("it was not refused")?;
    ensure!(format!("{refusal:#}").contains("disruption budget"), "{refusal:#}");
    assert_eq!(phase_of(&scene.pods.get("guarded").await?), "Running");

    scene.kubectl.run(["delete", "pdb", "guard"]).await?;
    evict().await?;
    wait::until_gone(&scene.pods, "guarded", DEADLINE).await?;
    ensure!(scene.vms().await?.is_empty(), "its VM is left");
    scene.nothing_left().await
}

#[tokio::test]
async fn a_taint_drives_out_the_pods_that_do_not_tolerate_it() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("taint").await?;
    let tough = json!({"tolerations": [{"operator": "Exists"}]});
    scene.create(&scene.pod("tough", &json!({}), &tough)).await?;
    scene.create(&scene.pod("tender", &json!({}), &json!({}))).await?;
    let stays = Scene::vm_of(&scene.phase("tough", "Running").await?)?;
    scene.phase("tender", "Running").await?;
    scene.kubectl.run(["taint", "node", &scene.node, "maintenance=now:NoExecute"]).await?;
    wait::until_gone(&scene.pods, "tender", DEADLINE).await?;
    assert_eq!(scene.vms().await?, [stays]);
    assert_eq!(phase_of(&scene.pods.get("tough").await?), "Running");
    Ok(())
}
