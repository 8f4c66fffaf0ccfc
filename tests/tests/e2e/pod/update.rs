//! What becomes of a running Pod when its spec or its Node changes.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use serde_json::json;

use crate::scene::{PodView as _, Scene};

#[tokio::test]
async fn ephemeral_container_is_refused_and_the_pod_runs_on() -> Result<()> {
    let (scene, agent) = Scene::with_agent("debug").await?;
    let vm = scene.pod("debug").create_until("Running").await?.vm()?;
    scene.kubectl.run(["debug", "debug", "--image=busybox", "--container=joins", "--", "sh"]).await?;
    let joined = |pod: &Pod| -> Option<ContainerStatus> {
        pod.status.as_ref()?.ephemeral_container_statuses.as_ref()?.first().cloned()
    };
    let pod = scene.until("debug", "answered", |pod| joined(pod).is_some()).await?;
    let end = joined(&pod).and_then(|one| one.state?.terminated).context("kubectl waits for ever")?;
    assert_eq!(end.reason.as_deref(), Some("StartError"));
    let words = "Error: container joins cannot be started: a VM cannot be joined by a container";
    scene.event("debug", "Failed", words).await?;
    assert_eq!(scene.running_vms().await?, [vm]);
    // The next agent does not publish the Event again.
    let _agent = agent.restart()?;
    scene.begin_delete("debug").await?;
    scene.until_gone("debug").await?;
    let events = scene.events().await?;
    assert_eq!(events.matches(words).count(), 1, "{events}");
    Ok(())
}

#[tokio::test]
async fn every_pod_condition_has_the_observed_generation() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("observed").await?;
    scene.pod("observed").create_until("Running").await?;
    scene.patch("observed", &json!({"spec": {"activeDeadlineSeconds": 3600}})).await?;
    let kinds = ["PodScheduled", "Initialized", "PodReadyToStartContainers", "ContainersReady", "Ready"];
    let observed = scene.until("observed", "observed", |pod| {
        let generation = pod.metadata.generation;
        generation == Some(2)
            && pod.status.as_ref().is_some_and(|status| status.observed_generation == generation)
            && kinds.into_iter().all(|kind| pod.condition(kind).observed_generation == generation)
    });
    observed.await.map(drop)
}

#[tokio::test]
async fn api_server_refuses_to_resize_a_pod() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("resize").await?;
    let cpu = |amount: &str| json!({"name": "main", "resources": {"requests": {"cpu": amount}}});
    scene.pod("resize").container(cpu("100m")).create_until("Running").await?;
    let larger = json!({"spec": {"containers": [cpu("200m")]}});
    let resize = ["patch", "pod", "resize", "--subresource=resize", "--patch", &larger.to_string()];
    let refusal = scene.kubectl.run(resize).await.err().context("the API server allowed it")?;
    ensure!(format!("{refusal:#}").contains("node without support for resize"), "{refusal:#}");
    Ok(())
}

#[tokio::test]
async fn pod_status_follows_a_new_address_of_the_node() -> Result<()> {
    let (mut scene, agent) = Scene::with_agent("moves").await?;
    let before = scene.pod("stays").create_until("Running").await?;
    agent.kill9()?;
    scene.agent = scene.agent.without("--node-ip").flag("--node-ip", "127.0.0.2");
    let _agent = scene.agent.start()?;
    let host_ips = |pod: &Pod| -> Vec<String> {
        let all = pod.status.iter().flat_map(|status| status.host_ips.iter().flatten());
        all.map(|address| address.ip.clone()).collect()
    };
    let moved = scene.until("stays", "at the new address", |pod| host_ips(pod) == ["127.0.0.2"]).await?;
    assert_eq!(moved.vm()?, before.vm()?, "its VM runs on");
    scene.delete_all_of("stays").await
}
