//! Pods that are bound to the Node while the collector is about to delete their VMs.

use anyhow::{Context, Result, ensure};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::api::PostParams;
use serde_json::json;
use tart_kubelet_tests::agent::RunningAgent;
use tart_kubelet_tests::mac::Fault;

use super::{ORPHAN, clone_vm, collected, frequent_gc, passes, run_vm, vm_exists};
use crate::scene::{DEADLINE, PodView as _, Scene};

/// Binds a Pod as a scheduler does.
async fn bind(scene: &Scene, pod: &str) -> Result<()> {
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod},
        "target": {"apiVersion": "v1", "kind": "Node", "name": scene.node},
    });
    let parameters = PostParams::default();
    let bound = scene.pods.create_subresource::<_, Status>("binding", pod, &parameters, &binding);
    bound.await.map(drop).context("cannot bind the Pod")
}

/// A Pod that no scheduler binds, and that the Node refuses when it is bound.
async fn unscheduled(scene: &Scene) -> Result<String> {
    let spec = json!({"schedulerName": "nobody", "nodeSelector": {"planet": "mars"}});
    scene.pod("late").spec(spec).create().await?;
    scene.uid("late").await
}

/// Binds the Pod, and waits until the Node has refused it.
async fn bind_and_refuse(scene: &Scene) -> Result<()> {
    bind(scene, "late").await?;
    scene.until("late", "refused", |pod| pod.reason().is_some()).await.map(drop)
}

/// Checks that the collector has kept a VM after its second look, and deletes it with its Pod.
async fn is_kept_until_deletion(scene: &Scene, agent: &RunningAgent, vm: &str) -> Result<()> {
    passes(agent, "success").await?;
    ensure!(vm_exists(scene, vm), "{}", agent.log()?);
    ensure!(agent.log()?.contains("kept after a second observation"), "{}", agent.log()?);
    scene.delete("late").await?;
    collected(scene, agent, vm).await
}

#[tokio::test]
async fn pod_bound_while_its_vm_is_stopped_keeps_it() -> Result<()> {
    let scene = Scene::new("orphan-bound").await?;
    let vm = format!("tk-{}-0", unscheduled(&scene).await?);
    clone_vm(&scene, &vm).await?;
    let process = run_vm(&scene, &vm).await?;
    scene.mac.set_fault(Fault::Calls, "")?;
    scene.mac.set_fault(Fault::Hang, "stop")?;
    let agent = frequent_gc(&scene.agent).start()?;
    scene.called("stop").await?;
    bind_and_refuse(&scene).await?;
    scene.mac.clear_fault(Fault::Hang)?;
    process.wait_for_exit(DEADLINE).await?;
    is_kept_until_deletion(&scene, &agent, &vm).await
}

#[tokio::test]
async fn pod_bound_while_another_orphan_is_deleted_keeps_its_vm() -> Result<()> {
    let scene = Scene::new("orphans-two").await?;
    // One pass deletes both stopped VMs, the first by name first.
    let second = format!("tk-{}-0", unscheduled(&scene).await?);
    for vm in [ORPHAN, &second] {
        clone_vm(&scene, vm).await?;
    }
    scene.mac.set_fault(Fault::Calls, "")?;
    scene.mac.set_fault(Fault::Hang, "delete")?;
    let agent = frequent_gc(&scene.agent).start()?;
    scene.called("delete").await?;
    let judged = agent.log()?.lines().filter(|line| line.contains("\"decision\":\"delete\"")).count();
    ensure!(judged == 2, "{}", agent.log()?);
    bind_and_refuse(&scene).await?;
    scene.mac.clear_fault(Fault::Hang)?;
    collected(&scene, &agent, ORPHAN).await?;
    is_kept_until_deletion(&scene, &agent, &second).await
}
