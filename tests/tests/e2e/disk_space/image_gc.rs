//! Image garbage collection: the agent deletes images when the disk fills up, and evicts Pods only when that does not help.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tart_kubelet_tests::agent::RunningAgent;
use tart_kubelet_tests::mac::Fault;
use tart_kubelet_tests::wait;

use super::{
    GIB, MIB, SIZE, add_image, agent_with_thresholds, evicting, idle_agent, image_gc_passes, images_left,
    pod, reference, small_disk, use_once,
};
use crate::image::pull::listed;
use crate::scene::{DEADLINE, NodeView as _, PodView as _, Scene};

/// Waits until the Node lists these images and no others, and has a label for each.
async fn listed_on_node(scene: &Scene, images: &[&str]) -> Result<()> {
    let expected: BTreeSet<String> = images.iter().map(|name| reference(name)).collect();
    let what = format!("{images:?} on the Node");
    let node = scene.until_node(&what, |node| {
        let shown: BTreeSet<String> =
            node.image_names().into_iter().filter(|name| !name.contains('@')).collect();
        let labels = node.metadata.labels.iter().flatten();
        let labels = labels.filter(|(key, _)| key.starts_with("image.tuist.dev/")).count();
        shown == expected && labels == expected.len()
    });
    let node = node.await.with_context(|| scene.agent_log())?;
    let images = node.status.and_then(|status| status.images).unwrap_or_default();
    ensure!(images.iter().all(|image| image.size_bytes.is_some()), "{images:?}");
    for name in images.iter().flat_map(|image| image.names.iter().flatten()) {
        let Some((_, digest)) = name.split_once("@sha256:") else { continue };
        let key = format!("image.tuist.dev/{}", &digest[..32]);
        let labels = node.metadata.labels.as_ref();
        ensure!(labels.is_some_and(|labels| labels.contains_key(&key)), "no {key} in {labels:?}");
    }
    Ok(())
}

/// Two images that were used once, `a` before `b`, one that a Pod uses, and one that a user has pulled.
async fn four_images(scene: &Scene, running: &RunningAgent) -> Result<()> {
    for name in ["a", "b", "used", "foreign", "next"] {
        add_image(scene, name, SIZE.into())?;
    }
    scene.mac.tart(["pull", &reference("foreign")]).await?;
    scene.node_ready(running).await?;
    pod(scene, "used", "used").create_until("Running").await?;
    use_once(scene, "a").await?;
    use_once(scene, "b").await?;
    images_left(scene, &["a", "b", "used", "foreign"], 3).await
}

#[tokio::test]
async fn least_recently_used_images_are_deleted_first() -> Result<()> {
    let Some((scene, _disk)) = small_disk("lru", 400 * MIB).await? else { return Ok(()) };
    let running = agent_with_thresholds(&scene, 70, 50).start()?;
    four_images(&scene, &running).await?;
    listed_on_node(&scene, &["a", "b", "used", "foreign"]).await?;
    // Used again, `a` is no longer the least recently used.
    use_once(&scene, "a").await?;
    images_left(&scene, &["a", "b", "used", "foreign"], 3).await?;

    // The fifth image is too much: the agent deletes two until half of the disk is free.
    use_once(&scene, "next").await?;
    images_left(&scene, &["used", "foreign", "next"], 2).await?;
    listed_on_node(&scene, &["used", "foreign", "next"]).await?;
    wait::eventually("metrics of deleted and kept images", DEADLINE, async || {
        let log = scene.agent_log();
        let deleted: Vec<&str> =
            log.lines().filter(|line| line.contains("image deleted to free disk space")).collect();
        ensure!(
            matches!(deleted.as_slice(), [b, a] if b.contains("macos/b@") && a.contains("macos/a@")),
            "{deleted:#?}"
        );
        let count = running.metric("tart_kubelet_image_gc_deleted_total").await?;
        ensure!((count - 2.0).abs() < 0.5, "{count} images were deleted");
        let freed = running.metric("tart_kubelet_image_gc_freed_bytes_total").await?;
        // A pass may begin while tart still writes the fifth image, which takes some of the freed space.
        ensure!(freed > f64::from(SIZE), "{freed} bytes were freed");
        for reason in ["in-use", "foreign"] {
            ensure!(
                running.metric(&format!("tart_kubelet_image_gc_kept{{reason=\"{reason}\"}}")).await? >= 1.0
            );
        }
        ensure!(running.metric("tart_kubelet_image_gc_last_success_timestamp_seconds").await? > 0.0);
        Ok(())
    })
    .await?;
    scene.phase("used", "Running").await.map(drop)
}

#[tokio::test]
async fn agent_restart_finishes_an_image_deletion() -> Result<()> {
    for point in ["agent.collect.base", "agent.collect.image"] {
        let Some((scene, disk)) = small_disk("half", 400 * MIB).await? else { return Ok(()) };
        let running = agent_with_thresholds(&scene, 100, 50).start()?;
        four_images(&scene, &running).await?;
        running.kill9()?;
        disk.fill(100 * MIB)?;
        let dying = agent_with_thresholds(&scene, 70, 50).env("TART_KUBELET_CRASH", point).start()?;
        dying.wait_for_exit(DEADLINE).await?;
        assert_eq!(scene.bases().await?.len(), 2, "{point}");
        let _running = agent_with_thresholds(&scene, 70, 50).start()?;
        images_left(&scene, &["used", "foreign"], 1).await?;
        scene.phase("used", "Running").await?;
    }
    Ok(())
}

#[tokio::test]
async fn agent_restart_owns_the_image_of_an_interrupted_pull() -> Result<()> {
    for point in ["agent.pull.begun", "agent.pull.ended"] {
        let Some((scene, disk)) = small_disk("cut", 400 * MIB).await? else { return Ok(()) };
        add_image(&scene, "a", SIZE.into())?;
        add_image(&scene, "b", SIZE.into())?;
        let dying = agent_with_thresholds(&scene, 70, 50).env("TART_KUBELET_CRASH", point).start()?;
        pod(&scene, "a", "a").command(["true"]).create().await?;
        dying.wait_for_exit(DEADLINE).await?;
        let running = agent_with_thresholds(&scene, 70, 50).start()?;
        scene.phase("a", "Succeeded").await?;
        scene.delete("a").await?;
        scene.node_ready(&running).await?;
        use_once(&scene, "b").await?;
        images_left(&scene, &["a", "b"], 2).await?;
        disk.fill(200 * MIB)?;
        images_left(&scene, &["b"], 1).await?;
    }
    Ok(())
}

#[tokio::test]
async fn pull_without_space_deletes_an_image_and_tries_again() -> Result<()> {
    let Some((scene, _disk)) = small_disk("reactive", 200 * MIB).await? else { return Ok(()) };
    for (name, size) in [("a", SIZE.into()), ("b", SIZE.into()), ("large", 110 * MIB), ("huge", 190 * MIB)] {
        add_image(&scene, name, size)?;
    }
    // However full the disk is, the agent deletes nothing before something finds no space.
    let running = scene.start(&agent_with_thresholds(&scene, 100, 90)).await?;
    use_once(&scene, "a").await?;
    use_once(&scene, "b").await?;
    use_once(&scene, "large").await?;
    images_left(&scene, &["b", "large"], 2).await?;

    // There is no space for this image, whatever the agent deletes.
    pod(&scene, "huge", "huge").create().await?;
    scene.described("huge", "free some disk space on the host").await?;
    scene.described("huge", "FreeDiskSpaceFailed").await?;
    images_left(&scene, &["large"], 1).await?;
    scene.delete("huge").await?;

    // With --disable-vm-gc the agent deletes neither image.
    use_once(&scene, "a").await?;
    images_left(&scene, &["a", "large"], 2).await?;
    running.kill9()?;
    let _running = agent_with_thresholds(&scene, 1, 0).switch("--disable-vm-gc").start()?;
    pod(&scene, "again", "huge").create().await?;
    // The second failure shows that the agent is done with the first.
    scene.described("again", "free some disk space on the host").await?;
    scene.described("again", "BackOff").await?;
    images_left(&scene, &["a", "large"], 2).await
}

#[tokio::test]
async fn full_disk_costs_images_first_and_then_one_pod() -> Result<()> {
    let Some((scene, disk)) = small_disk("steps", 400 * MIB).await? else { return Ok(()) };
    for name in ["idle", "busy"] {
        add_image(&scene, name, SIZE.into())?;
    }
    let _running = scene.start(&evicting(agent_with_thresholds(&scene, 70, 60))).await?;
    use_once(&scene, "idle").await?;
    for name in ["modest", "greedy"] {
        pod(&scene, name, "busy").create().await?;
    }
    let greedy = scene.phase("greedy", "Running").await?.vm()?;
    scene.phase("modest", "Running").await?;

    // Collection.
    disk.fill(180 * MIB)?;
    images_left(&scene, &["busy"], 1).await?;
    assert_eq!(scene.nodes.get(&scene.node).await?.condition("DiskPressure"), "False");

    // Pressure, with no image left to delete; then the eviction of the Pod that uses most.
    let write = "head -c 120000000 /dev/zero > /Users/admin/greed";
    // The agent may evict the Pod before the guest is done.
    let _ = scene.mac.tart(["exec", &greedy, "sh", "-c", write]).await;
    scene.node_condition("DiskPressure", "True").await?;
    let evicted = scene.phase("greedy", "Failed").await?;
    assert_eq!(evicted.reason(), Some("Evicted"));
    let message = evicted.message().unwrap_or_default();
    ensure!(message.starts_with("The node was low on resource: ephemeral-storage. "), "{message}");

    // Recovery, without another eviction.
    scene.node_condition("DiskPressure", "False").await?;
    scene.phase("modest", "Running").await?;
    pod(&scene, "after", "busy").command(["true"]).create_until("Succeeded").await?;
    scene.phase("modest", "Running").await?;
    images_left(&scene, &["busy"], 1).await
}

#[tokio::test]
async fn disk_pressure_costs_an_image_before_any_pod() -> Result<()> {
    let Some((scene, disk)) = small_disk("pressure", 400 * MIB).await? else { return Ok(()) };
    for name in ["idle", "busy"] {
        add_image(&scene, name, SIZE.into())?;
    }
    // However full the disk is, the agent deletes nothing without disk pressure.
    let running = scene.start(&evicting(idle_agent(&scene))).await?;
    use_once(&scene, "idle").await?;
    pod(&scene, "stays", "busy").create_until("Running").await?;
    images_left(&scene, &["idle", "busy"], 2).await?;
    disk.fill_but(40 * MIB)?;
    images_left(&scene, &["busy"], 1).await?;
    scene.node_condition("DiskPressure", "False").await?;
    // After some more passes the agent would have evicted a Pod.
    image_gc_passes(&running, 2.0).await?;
    scene.phase("stays", "Running").await?;
    scene.is_not_evicted("stays").await
}

#[tokio::test]
async fn prepull_annotation_pulls_images_before_pods() -> Result<()> {
    let (scene, _running) = Scene::with_agent("prepull").await?;
    add_image(&scene, "early", MIB)?;
    let names = format!("{}, registry.test/macos/missing:1", reference("early"));
    let annotation = format!("tart-kubelet.tuist.dev/prepull={names}");
    scene.kubectl.run(["annotate", "node", &scene.node, &annotation]).await?;
    scene.node_described("ready for Pods").await?;
    listed_on_node(&scene, &["early"]).await?;
    images_left(&scene, &["early"], 1).await?;
    scene.node_described("FailedPrePull").await?;
    scene.node_described("check the image's name").await?;
    // The agent pulls the missing image when it is in the registry.
    add_image(&scene, "missing", 2 * MIB)?;
    images_left(&scene, &["early", "missing"], 2).await?;
    pod(&scene, "warm", "early")
        .command(["true"])
        .pull_policy("Never")
        .create_until("Succeeded")
        .await
        .map(drop)
}

#[tokio::test]
async fn image_in_use_stays_when_its_twin_of_another_repository_is_deleted() -> Result<()> {
    let Some((scene, _disk)) = small_disk("twins", GIB).await? else { return Ok(()) };
    let _running = scene.start(&idle_agent(&scene)).await?;
    // The same content in two repositories.
    for name in ["idle", "busy"] {
        scene.mac.add_image(&reference(name), &json!({"cpu": 5}))?;
    }
    add_image(&scene, "other", MIB)?;
    use_once(&scene, "idle").await?;
    pod(&scene, "busy", "busy").create_until("Running").await?;
    images_left(&scene, &["idle", "busy"], 2).await?;
    scene.mac.set_fault(Fault::NoSpace, "pull")?;
    pod(&scene, "other", "other").create().await?;
    scene.described("other", "FreeDiskSpaceFailed").await?;
    images_left(&scene, &["busy"], 1).await
}

#[tokio::test]
async fn image_of_a_starting_pod_is_not_deleted() -> Result<()> {
    let Some((scene, _disk)) = small_disk("about-to-start", GIB).await? else { return Ok(()) };
    let running = idle_agent(&scene).start()?;
    for (name, size) in [("a", MIB), ("b", 2 * MIB), ("next", 3 * MIB), ("other", 4 * MIB)] {
        add_image(&scene, name, size)?;
    }
    scene.node_ready(&running).await?;
    use_once(&scene, "a").await?;
    use_once(&scene, "b").await?;
    // The Pod's image is on the Mac, but no VM uses it yet.
    scene.mac.set_fault(Fault::Calls, "")?;
    scene.mac.set_fault(Fault::Hang, "clone")?;
    pod(&scene, "next", "next").create().await?;
    scene.called("clone").await?;
    scene.mac.set_fault(Fault::NoSpace, "pull")?;
    pod(&scene, "other", "other").create().await?;
    scene.described("other", "FreeDiskSpaceFailed").await?;
    images_left(&scene, &["b", "next"], 1).await?;
    scene.delete("other").await?;
    scene.mac.clear_fault(Fault::NoSpace)?;
    scene.mac.clear_fault(Fault::Hang)?;
    scene.phase("next", "Running").await?;
    images_left(&scene, &["b", "next"], 2).await
}

#[tokio::test]
async fn agent_keeps_its_record_while_tarts_home_is_unmounted() -> Result<()> {
    let scene = Scene::new("away").await?;
    let running = idle_agent(&scene).start()?;
    add_image(&scene, "a", MIB)?;
    scene.node_ready(&running).await?;
    use_once(&scene, "a").await?;
    let home = scene.mac.tart_home().to_owned();
    let away = home.with_extension("away");
    std::fs::rename(&home, &away)?;
    image_gc_passes(&running, 2.0).await?;
    std::fs::rename(&away, &home)?;
    let line = listed(running.agent(), &reference("a")).await?;
    ensure!(line.last().is_some_and(|by| by == "agent"), "{line:?}: {}", running.log()?);
    Ok(())
}
