//! Which Pod the agent evicts when the disk is full and it may delete no image: the one with the lowest priority, not the one that uses
//! most.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use tart_kubelet_tests::agent::RunningAgent;
use tart_kubelet_tests::disk::SmallDisk;
use tart_kubelet_tests::wait;

use super::{MIB, add_image, evicting, idle_agent, image_gc_passes, pod, small_disk};
use crate::scene::{DEADLINE, NodeView as _, PodView as _, Scene};

/// A Mac that is under disk pressure with less than 60 MiB left.
async fn short_of_space(name: &str) -> Result<Option<(Scene, SmallDisk, RunningAgent)>> {
    let Some((scene, disk)) = small_disk(name, 400 * MIB).await? else { return Ok(None) };
    let running = scene.start(&evicting(idle_agent(&scene))).await?;
    add_image(&scene, "busy", MIB)?;
    Ok(Some((scene, disk, running)))
}

/// Runs a Pod that requests so much of the disk, and writes so much to it.
async fn run_writer(scene: &Scene, name: &str, class: Option<&str>, request: &str, bytes: u64) -> Result<()> {
    let resources = json!({"requests": {"ephemeral-storage": request}});
    let pod = pod(scene, name, "busy").resources(resources).spec(json!({"priorityClassName": class}));
    let vm = pod.create_until("Running").await?.vm()?;
    let write = format!("head -c {bytes} /dev/zero >/Users/admin/greed");
    scene.mac.tart(["exec", &vm, "sh", "-c", &write]).await.map(drop)
}

async fn is_evicted(scene: &Scene, name: &str) -> Result<Pod> {
    let pod = scene.phase(name, "Failed").await?;
    ensure!(pod.reason() == Some("Evicted"), "{:?}", pod.reason());
    Ok(pod)
}

#[tokio::test]
async fn pod_with_the_lower_priority_is_evicted() -> Result<()> {
    let Some((scene, disk, running)) = short_of_space("priority").await? else { return Ok(()) };
    let class = format!("{}-important", scene.namespace());
    scene.kubectl.run(["create", "priorityclass", &class, "--value=1000"]).await?;
    run_writer(&scene, "important", Some(&class), "1Mi", 120 * MIB).await?;
    run_writer(&scene, "humble", None, "1Mi", 60 * MIB).await?;
    disk.fill_but(40 * MIB)?;
    let evicted = is_evicted(&scene, "humble").await?;
    let message = evicted.message().unwrap_or_default();
    ensure!(message.ends_with(", request is 1048576. "), "{message}");
    scene.node_condition("DiskPressure", "False").await?;
    image_gc_passes(&running, 2.0).await?;
    scene.phase("important", "Running").await?;
    scene.kubectl.run(["delete", "priorityclass", &class]).await.map(drop)
}

#[tokio::test]
async fn critical_pod_is_never_evicted() -> Result<()> {
    let Some((scene, disk, running)) = short_of_space("critical").await? else { return Ok(()) };
    run_writer(&scene, "critical", Some("system-node-critical"), "1Mi", 120 * MIB).await?;
    run_writer(&scene, "frugal", None, "20Mi", MIB).await?;
    disk.fill_but(20 * MIB)?;
    is_evicted(&scene, "frugal").await?;
    wait::eventually("the end of its VM", DEADLINE, async || {
        ensure!(scene.vms().await?.len() == 1);
        Ok(())
    })
    .await?;
    image_gc_passes(&running, 2.0).await?;
    let short = scene.nodes.get(&scene.node).await?;
    assert_eq!(short.condition("DiskPressure"), "True");
    scene.phase("critical", "Running").await.map(drop)
}

#[tokio::test]
async fn second_pod_is_not_evicted_before_the_disk_has_freed_the_blocks_of_the_first() -> Result<()> {
    let Some((scene, disk, running)) = short_of_space("blocks").await? else { return Ok(()) };
    run_writer(&scene, "first", None, "1Mi", 120 * MIB).await?;
    run_writer(&scene, "second", None, "1Mi", 20 * MIB).await?;
    let vm = scene.pods.get("first").await?.vm()?;
    // A file system frees the blocks of a file after its last reader has closed it, APFS later still.
    let greed = std::fs::File::open(scene.vm_dir(&vm).join("guest/upper/root/Users/admin/greed"))?;
    disk.fill_but(40 * MIB)?;
    is_evicted(&scene, "first").await?;
    wait::eventually("an agent that waits for the disk", DEADLINE, async || {
        let log = running.log()?;
        ensure!(log.contains("the evicted Pod is gone; evicting no other until"), "{log}");
        Ok(())
    })
    .await?;
    assert_eq!(scene.nodes.get(&scene.node).await?.condition("DiskPressure"), "True");
    drop(greed);
    scene.node_condition("DiskPressure", "False").await?;
    image_gc_passes(&running, 2.0).await?;
    scene.phase("second", "Running").await?;
    scene.is_not_evicted("second").await
}
