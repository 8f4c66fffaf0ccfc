//! `limits.ephemeral-storage`: how much of the host's disk a Pod may take.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use tart_kubelet_tests::wait;

use crate::scene::{DEADLINE, PodBuilder, PodView as _, Scene};

const WORDS: &str = "Pod ephemeral local storage usage exceeds the total limit of containers 20Mi. ";

/// Checks that the agent has evicted a Pod for its limit.
fn assert_evicted(pod: &Pod) {
    assert_eq!((pod.reason(), pod.message()), (Some("Evicted"), Some(WORDS)));
}

/// A Pod whose guest writes 40 MiB to its own disk, and then prints `written`.
fn writer<'a>(scene: &'a Scene, name: &str, limit: &str) -> PodBuilder<'a> {
    let script =
        "dd if=/dev/zero of=/Users/admin/file bs=1048576 count=40 2>/dev/null; echo written; sleep 1000";
    let resources = json!({"limits": {"ephemeral-storage": limit}});
    scene.pod(name).sh(script).resources(resources)
}

#[tokio::test]
async fn pod_above_its_ephemeral_storage_limit_is_evicted() -> Result<()> {
    let scene = Scene::new("storage").await?;
    // The disk is not full, and the collector is off.
    let _running = scene.start(&scene.agent.clone().switch("--disable-vm-gc")).await?;
    let modest = writer(&scene, "modest", "100Mi").create_until("Running").await?;
    wait::eventually("the first Pod's output", DEADLINE, async || {
        ensure!(scene.log(&modest, "main", 0)? == ["written"]);
        Ok(())
    })
    .await?;
    // The agent measures both Pods as often, so it has measured this one when it evicts the other.
    assert_evicted(&writer(&scene, "greedy", "20Mi").create_until("Failed").await?);
    scene.event("greedy", "Evicted", WORDS.trim_end()).await?;
    assert_eq!(scene.pods.get("modest").await?.phase(), "Running");
    Ok(())
}

#[tokio::test]
async fn ephemeral_storage_limit_applies_after_an_agent_restart() -> Result<()> {
    let (scene, running) = Scene::with_agent("storage-later").await?;
    let resources = json!({"limits": {"ephemeral-storage": "20Mi"}});
    let vm = scene.pod("boots").resources(resources).create_until("Running").await?.vm()?;
    running.kill9()?;
    let write = "dd if=/dev/zero of=/Users/admin/file bs=1048576 count=40 2>/dev/null";
    scene.mac.tart(["exec", &vm, "sh", "-c", write]).await?;
    let _running = scene.agent.start()?;
    assert_evicted(&scene.phase("boots", "Failed").await?);
    scene.no_vms().await
}
