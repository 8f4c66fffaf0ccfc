//! What becomes of a Pod that somebody changes while it runs.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodCondition};
use serde_json::json;
use tart_kubelet_tests::wait;

use crate::scene::{DEADLINE, Scene};

fn condition(pod: &Pod, kind: &str) -> Option<PodCondition> {
    let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.find(|condition| condition.type_ == kind).cloned()
}

/// The cores that a VM was made with.
fn cores(scene: &Scene, vm: &str) -> Result<Option<u64>> {
    let config = std::fs::read_to_string(scene.mac.tart_home().join("vms").join(vm).join("config.json"))?;
    Ok(serde_json::from_str::<serde_json::Value>(&config)?["cpuCount"].as_u64())
}

#[tokio::test]
async fn a_container_that_joins_is_refused_and_the_pod_goes_on() -> Result<()> {
    let (scene, agent) = Scene::with_agent("debug").await?;
    scene.create(&scene.pod("debug", &json!({}), &json!({}))).await?;
    let vm = Scene::vm_of(&scene.phase("debug", "Running").await?)?;
    scene.kubectl.run(["debug", "debug", "--image=busybox", "--container=joins", "--", "sh"]).await?;
    let joined = |pod: &Pod| -> Option<ContainerStatus> {
        pod.status.as_ref()?.ephemeral_container_statuses.as_ref()?.first().cloned()
    };
    let pod = wait::until(&scene.pods, "debug", "answered", DEADLINE, |pod| joined(pod).is_some()).await?;
    let end =
        joined(&pod).and_then(|one| one.state?.terminated).context("whoever waits for it waits for ever")?;
    assert_eq!(end.reason.as_deref(), Some("StartError"));
    let words = "Error: container joins cannot be started: a VM cannot be joined by a container";
    scene.told_as("debug", "Failed", words).await?;
    assert_eq!(scene.running_vms().await?, [vm.clone()]);
    // It is told once, whoever comes after.
    let _agent = agent.restart()?;
    scene.kubectl.run(["delete", "pod", "debug", "--wait=false"]).await?;
    wait::until_gone(&scene.pods, "debug", DEADLINE).await?;
    let events = scene.kubectl.run(["get", "events", "--output", "json"]).await?;
    assert_eq!(events.matches(words).count(), 1, "{events}");
    Ok(())
}

#[tokio::test]
async fn new_resources_are_those_of_the_next_start() -> Result<()> {
    let scene = Scene::new("resize").await?;
    let agent = scene.agent.clone().flag("--host-cpu", "16").flag("--host-memory-mb", "32768").start()?;
    scene.node_ready(&agent).await?;
    let container = json!({"resources": {"limits": {"cpu": "5", "memory": "6Gi"}}});
    scene.create(&scene.pod("resize", &container, &json!({"restartPolicy": "Always"}))).await?;
    let vm = Scene::vm_of(&scene.phase("resize", "Running").await?)?;
    let cpu = json!({"limits": {"cpu": "6"}, "requests": {"cpu": "6"}});
    let larger = json!({"spec": {"containers": [{"name": "main", "resources": cpu}]}}).to_string();
    scene.kubectl.run(["patch", "pod", "resize", "--subresource=resize", "--patch", &larger]).await?;
    let pod = wait::until(&scene.pods, "resize", "told", DEADLINE, |pod| {
        condition(pod, "PodResizePending").is_some()
    });
    let pod = pod.await.with_context(|| scene.agent_log())?;
    let pending = condition(&pod, "PodResizePending").unwrap_or_default();
    assert_eq!((pending.status.as_str(), pending.reason.as_deref()), ("True", Some("Deferred")));
    let generation = pod.metadata.generation;
    ensure!(generation > Some(1), "{generation:?}");
    for kind in ["PodResizePending", "PodScheduled", "Initialized", "ContainersReady", "Ready"] {
        let observed = condition(&pod, kind).and_then(|one| one.observed_generation);
        assert_eq!(observed, generation, "{kind}");
    }
    scene
        .told_as("resize", "ResizeDeferred", "Pod resize Deferred: a VM is not resized while it runs")
        .await?;
    assert_eq!(cores(&scene, &vm)?, Some(5), "it goes on as it was");

    scene.shut_down(&vm).await;
    let pod = wait::until(&scene.pods, "resize", "started again", DEADLINE, |pod| {
        let ready = condition(pod, "Ready").is_some_and(|one| one.status == "True");
        ready && Scene::vm_of(pod).is_ok_and(|now| now != vm)
    });
    let pod = pod.await.with_context(|| scene.agent_log())?;
    assert_eq!(cores(&scene, &Scene::vm_of(&pod)?)?, Some(6));
    assert_eq!(condition(&pod, "PodResizePending"), None);
    Ok(())
}
