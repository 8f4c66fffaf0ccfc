//! `limits.ephemeral-storage`: how much of the host's disk a Pod may take.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tart_kubelet_tests::wait;

use crate::scene::{DEADLINE, Scene, phase_of};

const WORDS: &str = "Pod ephemeral local storage usage exceeds the total limit of containers 20Mi. ";

/// A Pod whose guest writes 40 MiB to its own disk, and says so.
fn writer(scene: &Scene, name: &str, limit: &str) -> Value {
    let script =
        "dd if=/dev/zero of=/Users/admin/file bs=1048576 count=40 2>/dev/null; echo written; sleep 1000";
    let resources = json!({"limits": {"ephemeral-storage": limit}});
    scene.pod(name, &json!({"command": ["/bin/sh", "-c", script], "resources": resources}), &json!({}))
}

#[tokio::test]
async fn who_takes_more_of_the_disk_than_its_limit_is_evicted() -> Result<()> {
    let scene = Scene::new("storage").await?;
    // It is no matter of room: nothing is short of it, and nobody collects anything.
    let running = scene.agent.clone().switch("--disable-vm-gc").start()?;
    scene.node_ready(&running).await?;
    scene.create(&writer(&scene, "modest", "100Mi")).await?;
    let modest = scene.phase("modest", "Running").await?;
    wait::eventually("what the first one writes", DEADLINE, async || {
        ensure!(scene.log(&modest, "main", 0)? == ["written"]);
        Ok(())
    })
    .await?;
    // It is measured as often as the other one, and so at least once until that is evicted.
    scene.create(&writer(&scene, "greedy", "20Mi")).await?;
    let status = scene.phase("greedy", "Failed").await?.status.context("no status")?;
    assert_eq!((status.reason.as_deref(), status.message.as_deref()), (Some("Evicted"), Some(WORDS)));
    scene.told_as("greedy", "Evicted", WORDS.trim_end()).await?;
    assert_eq!(phase_of(&scene.pods.get("modest").await?), "Running");
    Ok(())
}

#[tokio::test]
async fn a_limit_counts_for_a_vm_that_an_earlier_agent_has_started() -> Result<()> {
    let (scene, running) = Scene::with_agent("storage-later").await?;
    let resources = json!({"limits": {"ephemeral-storage": "20Mi"}});
    scene.create(&scene.pod("boots", &json!({"resources": resources}), &json!({}))).await?;
    let vm = Scene::vm_of(&scene.phase("boots", "Running").await?)?;
    running.kill9()?;
    let write = "dd if=/dev/zero of=/Users/admin/file bs=1048576 count=40 2>/dev/null";
    scene.mac.tart(["exec", &vm, "sh", "-c", write]).await?;
    let _running = scene.agent.start()?;
    let status = scene.phase("boots", "Failed").await?.status.context("no status")?;
    assert_eq!((status.reason.as_deref(), status.message.as_deref()), (Some("Evicted"), Some(WORDS)));
    scene.no_vms().await
}
