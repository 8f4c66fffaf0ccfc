//! Drains, evictions through the API, and taints.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use serde_json::json;
use tart_kubelet_tests::wait;

use crate::scene::{DEADLINE, PodView as _, Scene};

#[tokio::test]
async fn drained_node_stays_cordoned_until_a_user_uncordons_it() -> Result<()> {
    let (scene, agent) = Scene::with_agent("drain").await?;
    scene.run_pods(&["one", "two"]).await?;
    let kubectl = scene.kubectl.clone().deadline(DEADLINE);
    let drained = kubectl.run(["drain", &scene.node, "--force", "--ignore-daemonsets"]).await;
    drained.with_context(|| agent.log().unwrap_or_default())?;
    // A drain ends when the Pods are gone, and a Pod is gone only after its VM.
    ensure!(scene.vms().await?.is_empty(), "VMs are left: {}", agent.log()?);
    let spec = scene.nodes.get(&scene.node).await?.spec.context("no spec")?;
    assert_eq!(spec.unschedulable, Some(true));

    scene.pod("later").command(["/usr/bin/true"]).create().await?;
    scene.described("later", "unschedulable").await?;
    // A restarted agent does not uncordon the Node.
    let _agent = agent.restart()?;
    scene.kubectl.run(["label", "node", &scene.node, "tuist.dev/runtime-"]).await?;
    let node = scene
        .until_node("written", |node| {
            node.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key("tuist.dev/runtime"))
        })
        .await?;
    assert_eq!(node.spec.and_then(|spec| spec.unschedulable), Some(true));
    scene.kubectl.run(["uncordon", &scene.node]).await?;
    scene.phase("later", "Succeeded").await.map(drop)
}

#[tokio::test]
async fn api_eviction_waits_for_the_disruption_budget() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("evict").await?;
    scene.pod("guarded").label("app", "guarded").create_until("Running").await?;
    let create = ["create", "pdb", "guard", "--selector=app=guarded", "--min-available=1"];
    scene.kubectl.run(create).await?;
    let budgets = scene.api::<PodDisruptionBudget>().await?;
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
    // With kubectl: the test's client would retry.
    let evict = async || {
        scene.kubectl.run_with_input(["create", "--raw", &path, "-f", "-"], &eviction.to_string()).await
    };
    let refusal = evict().await.err().context("it was not refused")?;
    ensure!(format!("{refusal:#}").contains("disruption budget"), "{refusal:#}");
    assert_eq!(scene.pods.get("guarded").await?.phase(), "Running");

    scene.kubectl.run(["delete", "pdb", "guard"]).await?;
    evict().await?;
    scene.until_gone("guarded").await?;
    ensure!(scene.vms().await?.is_empty(), "its VM is left");
    scene.nothing_left().await
}

#[tokio::test]
async fn no_execute_taint_deletes_pods_without_a_toleration() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("taint").await?;
    scene.pod("tough").spec(json!({"tolerations": [{"operator": "Exists"}]})).create().await?;
    scene.pod("tender").create().await?;
    let stays = scene.phase("tough", "Running").await?.vm()?;
    scene.phase("tender", "Running").await?;
    scene.kubectl.run(["taint", "node", &scene.node, "maintenance=now:NoExecute"]).await?;
    scene.until_gone("tender").await?;
    assert_eq!(scene.vms().await?, [stays]);
    assert_eq!(scene.pods.get("tough").await?.phase(), "Running");
    Ok(())
}
