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
    assert_eq!(scene.running_vms().await?, [vm]);
    // It is told once, whoever comes after.
    let _agent = agent.restart()?;
    scene.kubectl.run(["delete", "pod", "debug", "--wait=false"]).await?;
    wait::until_gone(&scene.pods, "debug", DEADLINE).await?;
    let events = scene.kubectl.run(["get", "events", "--output", "json"]).await?;
    assert_eq!(events.matches(words).count(), 1, "{events}");
    Ok(())
}

#[tokio::test]
async fn every_condition_says_which_pod_it_is_about() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("observed").await?;
    scene.create(&scene.pod("observed", &json!({}), &json!({}))).await?;
    scene.phase("observed", "Running").await?;
    let change = r#"{"spec": {"activeDeadlineSeconds": 3600}}"#;
    scene.kubectl.run(["patch", "pod", "observed", "--patch", change]).await?;
    let kinds = ["PodScheduled", "Initialized", "PodReadyToStartContainers", "ContainersReady", "Ready"];
    let observed = wait::until(&scene.pods, "observed", "observed", DEADLINE, |pod| {
        let generation = pod.metadata.generation;
        let by_condition = |kind| condition(pod, kind).and_then(|one: PodCondition| one.observed_generation);
        generation == Some(2)
            && pod.status.as_ref().is_some_and(|status| status.observed_generation == generation)
            && kinds.into_iter().all(|kind| by_condition(kind) == generation)
    });
    observed.await.map(drop)
}

#[tokio::test]
async fn resizing_is_refused_in_words() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("resize").await?;
    let cpu = |amount: &str| json!({"name": "main", "resources": {"requests": {"cpu": amount}}});
    scene.create(&scene.pod("resize", &cpu("100m"), &json!({}))).await?;
    scene.phase("resize", "Running").await?;
    let larger = json!({"spec": {"containers": [cpu("200m")]}});
    let resize = ["patch", "pod", "resize", "--subresource=resize", "--patch", &larger.to_string()];
    let refusal = scene.kubectl.run(resize).await.err().context("then the agent has to follow")?;
    ensure!(format!("{refusal:#}").contains("node without support for resize"), "{refusal:#}");
    Ok(())
}
