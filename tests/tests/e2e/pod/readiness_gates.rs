//! Readiness gates: others have a say in whether a Pod is ready.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Pod, PodCondition};
use serde_json::json;
use tart_kubelet_tests::wait;

use crate::scene::{DEADLINE, Scene};

const GATE: &str = "example.org/warm";

fn condition(pod: &Pod, kind: &str) -> PodCondition {
    let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.find(|condition| condition.type_ == kind).cloned().unwrap_or_default()
}

/// Sets the gate's condition, as a controller would.
async fn open(scene: &Scene, status: &str) -> Result<()> {
    let condition = json!({"type": GATE, "status": status, "reason": "Measured", "message": "by a test"});
    let patch = json!({"status": {"conditions": [condition]}}).to_string();
    scene.kubectl.run(["patch", "pod", "gated", "--subresource=status", "--patch", &patch]).await.map(drop)
}

/// Waits until the Pod is, or is not, ready, for the right reason.
async fn ready(scene: &Scene, status: &str, message: Option<&str>) -> Result<Pod> {
    let reason = message.map(|_| "ReadinessGatesNotReady");
    let what = format!("ready: {status}, {message:?}");
    wait::until(&scene.pods, "gated", &what, DEADLINE, |pod| {
        let ready = condition(pod, "Ready");
        ready.status == status && ready.reason.as_deref() == reason && ready.message.as_deref() == message
    })
    .await
}

#[tokio::test]
async fn a_pod_is_ready_when_its_gates_are_open() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("gates").await?;
    let gates = json!({"readinessGates": [{"conditionType": GATE}]});
    scene.create(&scene.pod("gated", &json!({}), &gates)).await?;
    let missing = format!("corresponding condition of pod readiness gate \"{GATE}\" does not exist.");
    let pod = ready(&scene, "False", Some(&missing)).await?;
    assert_eq!(condition(&pod, "ContainersReady").status, "True");
    let shown = scene.kubectl.run(["get", "pod", "gated", "--no-headers"]).await?;
    ensure!(shown.contains("1/1") && shown.contains("Running"), "{shown}");

    open(&scene, "True").await?;
    ready(&scene, "True", None).await?;
    open(&scene, "False").await?;
    let closed = format!("the status of pod readiness gate \"{GATE}\" is not \"True\", but False");
    let pod = ready(&scene, "False", Some(&closed)).await?;

    // What others have said stays, to the end.
    scene.shut_down(&Scene::vm_of(&pod)?).await;
    let pod = scene.phase("gated", "Succeeded").await?;
    let theirs = condition(&pod, GATE);
    assert_eq!((theirs.status.as_str(), theirs.message.as_deref()), ("False", Some("by a test")));
    assert_eq!(condition(&pod, "Ready").reason.as_deref(), Some("PodCompleted"));
    let generation = pod.metadata.generation.context("no generation")?;
    for kind in ["PodScheduled", "Initialized", "PodReadyToStartContainers", "ContainersReady", "Ready"] {
        assert_eq!(condition(&pod, kind).observed_generation, Some(generation), "{kind}");
    }
    Ok(())
}
