//! Who goes first when the disk is full and no image may: not who uses most, but who matters least.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::{Value, json};
use tart_kubelet_tests::agent::RunningAgent;
use tart_kubelet_tests::disk::SmallDisk;
use tart_kubelet_tests::wait;

use super::image_gc::{MIB, add_image, agent, pod, small};
use super::reclaim::more_looks;
use crate::scene::{DEADLINE, Scene, condition};

/// A Mac whose disk is too full with less than 60 MiB left.
async fn short_of_space(name: &str) -> Result<Option<(Scene, SmallDisk, RunningAgent)>> {
    let Some((scene, disk)) = small(name, 400 * MIB).await? else { return Ok(None) };
    let running = agent(&scene, 100, 99)
        .flag("--eviction-hard", "imagefs.available<15%")
        .flag("--eviction-pressure-transition-period", "1s")
        .start()?;
    scene.node_ready(&running).await?;
    add_image(&scene, "busy", MIB)?;
    Ok(Some((scene, disk, running)))
}

/// Has a Pod run that asks for so much of the disk, and takes so much.
async fn takes(scene: &Scene, name: &str, class: Option<&str>, asked: &str, bytes: u64) -> Result<()> {
    let resources = json!({"requests": {"ephemeral-storage": asked}});
    let mut greedy = pod(scene, name, "busy", &json!({"resources": resources}));
    greedy["spec"]["priorityClassName"] = class.map_or(Value::Null, Value::from);
    scene.create(&greedy).await?;
    let vm = Scene::vm_of(&scene.phase(name, "Running").await?)?;
    let write = format!("head -c {bytes} /dev/zero >/Users/admin/greed");
    scene.mac.tart(["exec", &vm, "sh", "-c", &write]).await.map(drop)
}

async fn is_evicted(scene: &Scene, name: &str) -> Result<Pod> {
    let pod = scene.phase(name, "Failed").await?;
    let reason = pod.status.as_ref().and_then(|status| status.reason.as_deref());
    ensure!(reason == Some("Evicted"), "{reason:?}");
    Ok(pod)
}

#[tokio::test]
async fn of_two_that_use_too_much_the_less_important_one_goes() -> Result<()> {
    let Some((scene, disk, running)) = short_of_space("priority").await? else { return Ok(()) };
    let class = format!("{}-important", scene.namespace());
    scene.kubectl.run(["create", "priorityclass", &class, "--value=1000"]).await?;
    takes(&scene, "important", Some(&class), "1Mi", 120 * MIB).await?;
    takes(&scene, "humble", None, "1Mi", 60 * MIB).await?;
    disk.fill_but(40 * MIB)?;
    let status = is_evicted(&scene, "humble").await?.status.context("no status")?;
    let message = status.message.unwrap_or_default();
    ensure!(message.ends_with(", request is 1048576. "), "{message}");
    let well = |node: &Node| condition(node, "DiskPressure") == "False";
    wait::until(&scene.nodes, &scene.node, "well again", DEADLINE, well).await?;
    more_looks(&running).await?;
    scene.phase("important", "Running").await?;
    scene.kubectl.run(["delete", "priorityclass", &class]).await.map(drop)
}

#[tokio::test]
async fn a_critical_one_stays_even_if_nothing_else_is_left_to_go() -> Result<()> {
    let Some((scene, disk, running)) = short_of_space("critical").await? else { return Ok(()) };
    takes(&scene, "critical", Some("system-node-critical"), "1Mi", 120 * MIB).await?;
    takes(&scene, "frugal", None, "20Mi", MIB).await?;
    disk.fill_but(20 * MIB)?;
    is_evicted(&scene, "frugal").await?;
    wait::eventually("the end of its VM", DEADLINE, async || {
        ensure!(scene.vms().await?.len() == 1);
        Ok(())
    })
    .await?;
    more_looks(&running).await?;
    let short = scene.nodes.get(&scene.node).await?;
    assert_eq!(condition(&short, "DiskPressure"), "True");
    scene.phase("critical", "Running").await.map(drop)
}
