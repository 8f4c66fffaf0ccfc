//! Readiness gates: conditions that other controllers set before a Pod is ready.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use crate::scene::{PodView as _, Scene};

const GATE: &str = "example.org/warm";

/// Sets the gate's condition, as a controller would.
async fn open(scene: &Scene, status: &str) -> Result<()> {
    let condition = json!({"type": GATE, "status": status, "reason": "Measured", "message": "by a test"});
    let patch = json!({"status": {"conditions": [condition]}}).to_string();
    scene.kubectl.run(["patch", "pod", "gated", "--subresource=status", "--patch", &patch]).await.map(drop)
}

/// Waits until the `Ready` condition has this status and message.
async fn ready(scene: &Scene, status: &str, message: Option<&str>) -> Result<Pod> {
    let reason = message.map(|_| "ReadinessGatesNotReady");
    let what = format!("ready: {status}, {message:?}");
    scene
        .until("gated", &what, |pod| {
            let ready = pod.condition("Ready");
            ready.status == status && ready.reason.as_deref() == reason && ready.message.as_deref() == message
        })
        .await
}

#[tokio::test]
async fn pod_is_ready_when_its_readiness_gates_are_true() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("gates").await?;
    scene.pod("gated").spec(json!({"readinessGates": [{"conditionType": GATE}]})).create().await?;
    let missing = format!("corresponding condition of pod readiness gate \"{GATE}\" does not exist.");
    let pod = ready(&scene, "False", Some(&missing)).await?;
    assert_eq!(pod.condition("ContainersReady").status, "True");
    let shown = scene.kubectl.run(["get", "pod", "gated", "--no-headers"]).await?;
    ensure!(shown.contains("1/1") && shown.contains("Running"), "{shown}");

    open(&scene, "True").await?;
    ready(&scene, "True", None).await?;
    open(&scene, "False").await?;
    let closed = format!("the status of pod readiness gate \"{GATE}\" is not \"True\", but False");
    let pod = ready(&scene, "False", Some(&closed)).await?;

    // The agent keeps conditions of other controllers to the end.
    scene.shut_down(&pod.vm()?).await;
    let pod = scene.phase("gated", "Succeeded").await?;
    let theirs = pod.condition(GATE);
    assert_eq!((theirs.status.as_str(), theirs.message.as_deref()), ("False", Some("by a test")));
    assert_eq!(pod.condition("Ready").reason.as_deref(), Some("PodCompleted"));
    let generation = pod.metadata.generation.context("no generation")?;
    for kind in ["PodScheduled", "Initialized", "PodReadyToStartContainers", "ContainersReady", "Ready"] {
        assert_eq!(pod.condition(kind).observed_generation, Some(generation), "{kind}");
    }
    Ok(())
}
