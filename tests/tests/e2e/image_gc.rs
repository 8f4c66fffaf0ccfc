//! Images make room when the disk fills up, and Pods only when that does not help. The disk is a small one of its own.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};
use tart_kubelet_tests::agent::{Agent, RunningAgent};
use tart_kubelet_tests::disk::SmallDisk;
use tart_kubelet_tests::mac::Fault;
use tart_kubelet_tests::wait;

use crate::images::listed;
use crate::scene::{DEADLINE, Scene, condition};

pub(crate) const MIB: u64 = 1 << 20;
/// What each image takes.
pub(crate) const SIZE: u32 = 60 << 20;

/// A scene whose tart has a small disk; `None` where there can be none.
pub(crate) async fn small(name: &str, size: u64) -> Result<Option<(Scene, SmallDisk)>> {
    let scene = Scene::new(name).await?;
    let disk = SmallDisk::mount(scene.mac.tart_home(), size)?;
    Ok(disk.map(|disk| (scene, disk)))
}

/// The agent, with watermarks in percent.
pub(crate) fn agent(scene: &Scene, high: u8, low: u8) -> Agent {
    scene
        .agent
        .clone()
        .flag("--image-gc-high-threshold", &high.to_string())
        .flag("--image-gc-low-threshold", &low.to_string())
        .flag("--minimum-image-ttl-duration", "0s")
}

pub(crate) fn reference(name: &str) -> String {
    format!("registry.test/macos/{name}:1")
}

/// Adds an image that takes so much on disk.
pub(crate) fn add_image(scene: &Scene, name: &str, size: u64) -> Result<()> {
    let directory = scene.mac.add_image(&reference(name), &json!({}))?;
    let files = directory.join("rootfs/Users/admin");
    std::fs::create_dir_all(&files)?;
    std::fs::write(files.join("weight"), vec![1; usize::try_from(size)?])?;
    Ok(())
}

pub(crate) fn pod(scene: &Scene, name: &str, image: &str, container: &Value) -> Value {
    let mut container = container.clone();
    container["image"] = json!(reference(image));
    scene.pod(name, &container, &json!({}))
}

/// Has an image used by a Pod that ends, and leaves nothing else behind.
pub(crate) async fn use_once(scene: &Scene, image: &str) -> Result<()> {
    scene.create(&pod(scene, image, image, &json!({"command": ["true"]}))).await?;
    let uid = scene.phase(image, "Succeeded").await?.metadata.uid.context("no UID")?;
    scene.kubectl.run(["delete", "pod", image]).await?;
    // A Pod that is over may go before its VM, and the VM uses the image.
    let vm = format!("tk-{uid}-0");
    wait::eventually("a Mac without the Pod's VM", DEADLINE, async || {
        let vms = scene.vms().await?;
        ensure!(!vms.contains(&vm), "it has {vms:?}");
        Ok(())
    })
    .await
}

/// The short names of the images in tart's cache.
async fn cached(scene: &Scene) -> Result<BTreeSet<String>> {
    let list = scene.mac.tart(["list", "--source", "oci", "--quiet"]).await?;
    let tags = list.lines().filter_map(|name| name.strip_suffix(":1"));
    Ok(tags.filter_map(|name| name.rsplit('/').next().map(str::to_owned)).collect())
}

/// Waits until tart's cache has these images and no others, and there are as many base VMs.
pub(crate) async fn left(scene: &Scene, images: &[&str], bases: usize) -> Result<()> {
    let expected: BTreeSet<String> = images.iter().map(|name| (*name).to_owned()).collect();
    let what = format!("{images:?} and {bases} bases");
    let settled = wait::eventually(&what, DEADLINE, async || {
        let (found, made) = (cached(scene).await?, scene.bases().await?.len());
        ensure!((&found, made) == (&expected, bases), "there are {found:?} and {made} bases");
        Ok(())
    });
    settled.await.with_context(|| scene.agent_log())
}

fn names(node: &Node) -> BTreeSet<String> {
    let images = node.status.iter().flat_map(|status| status.images.iter().flatten());
    images.flat_map(|image| image.names.iter().flatten().cloned()).collect()
}

/// Waits until the Node shows these images and no others, and a label for each.
async fn shown(scene: &Scene, images: &[&str]) -> Result<()> {
    let expected: BTreeSet<String> = images.iter().map(|name| reference(name)).collect();
    let what = format!("{images:?} on the Node");
    let node = wait::until(&scene.nodes, &scene.node, &what, DEADLINE, |node| {
        let shown: BTreeSet<String> = names(node).into_iter().filter(|name| !name.contains('@')).collect();
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

/// Two images that were used once, `a` before `b`, one that a Pod uses, and one that somebody else has pulled.
async fn four_images(scene: &Scene, running: &RunningAgent) -> Result<()> {
    for name in ["a", "b", "used", "foreign", "next"] {
        add_image(scene, name, SIZE.into())?;
    }
    scene.mac.tart(["pull", &reference("foreign")]).await?;
    scene.node_ready(running).await?;
    scene.create(&pod(scene, "used", "used", &json!({}))).await?;
    scene.phase("used", "Running").await?;
    use_once(scene, "a").await?;
    use_once(scene, "b").await?;
    left(scene, &["a", "b", "used", "foreign"], 3).await
}

#[tokio::test]
async fn the_least_recently_used_images_make_room() -> Result<()> {
    let Some((scene, _disk)) = small("lru", 400 * MIB).await? else { return Ok(()) };
    let running = agent(&scene, 70, 50).start()?;
    four_images(&scene, &running).await?;
    shown(&scene, &["a", "b", "used", "foreign"]).await?;
    // Used again, `a` is no longer the one that goes first.
    use_once(&scene, "a").await?;
    left(&scene, &["a", "b", "used", "foreign"], 3).await?;

    // The fifth image is one too many: two have to go until half of the disk is free.
    use_once(&scene, "next").await?;
    left(&scene, &["used", "foreign", "next"], 2).await?;
    shown(&scene, &["used", "foreign", "next"]).await?;
    wait::eventually("figures of what is gone, and of what is kept", DEADLINE, async || {
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
        // A pass may begin while the fifth image is still being written: what comes of it meanwhile is not free.
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
async fn what_a_dying_agent_has_begun_to_delete_the_next_one_finishes() -> Result<()> {
    for point in ["agent.collect.base", "agent.collect.image"] {
        let Some((scene, disk)) = small("half", 400 * MIB).await? else { return Ok(()) };
        let running = agent(&scene, 100, 50).start()?;
        four_images(&scene, &running).await?;
        running.kill9()?;
        disk.fill(100 * MIB)?;
        let dying = agent(&scene, 70, 50).env("TART_KUBELET_CRASH", point).start()?;
        dying.wait_for_exit(DEADLINE).await?;
        assert_eq!(scene.bases().await?.len(), 2, "{point}");
        let _running = agent(&scene, 70, 50).start()?;
        left(&scene, &["used", "foreign"], 1).await?;
        scene.phase("used", "Running").await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_pull_that_is_cut_short_is_known_to_be_ours() -> Result<()> {
    for point in ["agent.pull.begun", "agent.pull.ended"] {
        let Some((scene, disk)) = small("cut", 400 * MIB).await? else { return Ok(()) };
        add_image(&scene, "a", SIZE.into())?;
        add_image(&scene, "b", SIZE.into())?;
        let dying = agent(&scene, 70, 50).env("TART_KUBELET_CRASH", point).start()?;
        scene.create(&pod(&scene, "a", "a", &json!({"command": ["true"]}))).await?;
        dying.wait_for_exit(DEADLINE).await?;
        let running = agent(&scene, 70, 50).start()?;
        scene.phase("a", "Succeeded").await?;
        scene.kubectl.run(["delete", "pod", "a"]).await?;
        scene.node_ready(&running).await?;
        use_once(&scene, "b").await?;
        left(&scene, &["a", "b"], 2).await?;
        disk.fill(200 * MIB)?;
        left(&scene, &["b"], 1).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_pull_without_room_makes_some_and_tries_again() -> Result<()> {
    let Some((scene, _disk)) = small("reactive", 200 * MIB).await? else { return Ok(()) };
    for (name, size) in [("a", SIZE.into()), ("b", SIZE.into()), ("large", 110 * MIB), ("huge", 190 * MIB)] {
        add_image(&scene, name, size)?;
    }
    // Full as it may be, nobody collects anything unasked.
    let running = agent(&scene, 100, 90).start()?;
    scene.node_ready(&running).await?;
    use_once(&scene, "a").await?;
    use_once(&scene, "b").await?;
    use_once(&scene, "large").await?;
    left(&scene, &["b", "large"], 2).await?;

    // There is no room for this one, whatever goes.
    scene.create(&pod(&scene, "huge", "huge", &json!({}))).await?;
    scene.told("pod", "huge", "free some disk space on the host").await?;
    scene.told("pod", "huge", "FreeDiskSpaceFailed").await?;
    left(&scene, &["large"], 1).await?;
    scene.kubectl.run(["delete", "pod", "huge"]).await?;

    // On a host where the agent deletes nothing, nothing goes, though both could.
    use_once(&scene, "a").await?;
    left(&scene, &["a", "large"], 2).await?;
    running.kill9()?;
    let _running = agent(&scene, 1, 0).switch("--disable-vm-gc").start()?;
    scene.create(&pod(&scene, "again", "huge", &json!({}))).await?;
    // Twice, so that whatever follows the first failure is over.
    scene.told("pod", "again", "free some disk space on the host").await?;
    scene.told("pod", "again", "BackOff").await?;
    left(&scene, &["a", "large"], 2).await
}

#[tokio::test]
async fn a_disk_that_fills_up_costs_images_first_and_then_one_pod() -> Result<()> {
    let Some((scene, disk)) = small("steps", 400 * MIB).await? else { return Ok(()) };
    for name in ["idle", "busy"] {
        add_image(&scene, name, SIZE.into())?;
    }
    let running = agent(&scene, 70, 60)
        .flag("--eviction-hard", "imagefs.available<15%")
        .flag("--eviction-pressure-transition-period", "1s")
        .start()?;
    scene.node_ready(&running).await?;
    use_once(&scene, "idle").await?;
    for name in ["modest", "greedy"] {
        scene.create(&pod(&scene, name, "busy", &json!({}))).await?;
    }
    let greedy = Scene::vm_of(&scene.phase("greedy", "Running").await?)?;
    scene.phase("modest", "Running").await?;
    let under = |status: &'static str| move |node: &Node| condition(node, "DiskPressure") == status;

    // Collection.
    disk.fill(180 * MIB)?;
    left(&scene, &["busy"], 1).await?;
    assert_eq!(condition(&scene.nodes.get(&scene.node).await?, "DiskPressure"), "False");

    // Pressure, with nothing left to collect; then the eviction of the Pod that takes most.
    let write = "head -c 120000000 /dev/zero > /Users/admin/greed";
    // It may be evicted before it is done.
    let _ = scene.mac.tart(["exec", &greedy, "sh", "-c", write]).await;
    wait::until(&scene.nodes, &scene.node, "short of space", DEADLINE, under("True")).await?;
    let evicted = scene.phase("greedy", "Failed").await?.status.context("no status")?;
    assert_eq!(evicted.reason.as_deref(), Some("Evicted"));
    let message = evicted.message.unwrap_or_default();
    ensure!(message.starts_with("The node was low on resource: ephemeral-storage. "), "{message}");

    // Recovery, and nobody else has paid for it.
    wait::until(&scene.nodes, &scene.node, "well again", DEADLINE, under("False")).await?;
    scene.phase("modest", "Running").await?;
    let after = json!({"command": ["true"]});
    scene.create(&pod(&scene, "after", "busy", &after)).await?;
    scene.phase("after", "Succeeded").await?;
    scene.phase("modest", "Running").await?;
    left(&scene, &["busy"], 1).await
}

#[tokio::test]
async fn under_pressure_an_image_goes_before_any_pod() -> Result<()> {
    let Some((scene, disk)) = small("pressure", 400 * MIB).await? else { return Ok(()) };
    for name in ["idle", "busy"] {
        add_image(&scene, name, SIZE.into())?;
    }
    // Full as it may be, nothing goes unless the Node is short of space.
    let running = agent(&scene, 100, 99)
        .flag("--eviction-hard", "imagefs.available<15%")
        .flag("--eviction-pressure-transition-period", "1s")
        .start()?;
    scene.node_ready(&running).await?;
    use_once(&scene, "idle").await?;
    scene.create(&pod(&scene, "stays", "busy", &json!({}))).await?;
    scene.phase("stays", "Running").await?;
    left(&scene, &["idle", "busy"], 2).await?;
    disk.fill_but(40 * MIB)?;
    left(&scene, &["busy"], 1).await?;
    let well = |node: &Node| condition(node, "DiskPressure") == "False";
    wait::until(&scene.nodes, &scene.node, "well", DEADLINE, well).await?;
    // Several more looks, after which whoever was to be evicted would be.
    let looks = async || running.metric("tart_kubelet_image_gc_pass_duration_seconds_count").await;
    let before = looks().await?;
    wait::eventually("more looks", DEADLINE, async || {
        let now = looks().await?;
        ensure!(now >= before + 2.0, "{now}, {before} before");
        Ok(())
    })
    .await?;
    scene.phase("stays", "Running").await?;
    let told = scene.kubectl.run(["describe", "pod", "stays"]).await?;
    ensure!(!told.contains("Evicted"), "{told}");
    Ok(())
}

#[tokio::test]
async fn images_come_before_pods_when_the_node_says_so() -> Result<()> {
    let (scene, _running) = Scene::with_agent("prepull").await?;
    add_image(&scene, "early", MIB)?;
    let names = format!("{}, registry.test/macos/missing:1", reference("early"));
    let annotation = format!("tart-kubelet.tuist.dev/prepull={names}");
    scene.kubectl.run(["annotate", "node", &scene.node, &annotation]).await?;
    scene.told("node", &scene.node, "ready for Pods").await?;
    shown(&scene, &["early"]).await?;
    left(&scene, &["early"], 1).await?;
    scene.told("node", &scene.node, "FailedPrePull").await?;
    scene.told("node", &scene.node, "check the image's name").await?;
    // The one that failed comes once it is there.
    add_image(&scene, "missing", 2 * MIB)?;
    left(&scene, &["early", "missing"], 2).await?;
    let never = json!({"command": ["true"], "imagePullPolicy": "Never"});
    scene.create(&pod(&scene, "warm", "early", &never)).await?;
    scene.phase("warm", "Succeeded").await.map(drop)
}

#[tokio::test]
async fn a_base_that_two_images_share_stays_while_one_is_in_use() -> Result<()> {
    let scene = Scene::new("twins").await?;
    let running = agent(&scene, 100, 99).start()?;
    scene.node_ready(&running).await?;
    // The same content in two repositories.
    for name in ["idle", "busy"] {
        scene.mac.add_image(&reference(name), &json!({"cpu": 5}))?;
    }
    add_image(&scene, "other", MIB)?;
    use_once(&scene, "idle").await?;
    scene.create(&pod(&scene, "busy", "busy", &json!({}))).await?;
    scene.phase("busy", "Running").await?;
    left(&scene, &["idle", "busy"], 1).await?;
    scene.mac.set_fault(Fault::NoSpace, "pull")?;
    scene.create(&pod(&scene, "other", "other", &json!({}))).await?;
    scene.told("pod", "other", "FreeDiskSpaceFailed").await?;
    left(&scene, &["idle", "busy"], 1).await
}

#[tokio::test]
async fn an_image_that_a_pod_is_about_to_start_from_stays() -> Result<()> {
    let scene = Scene::new("about-to-start").await?;
    let running = agent(&scene, 100, 99).start()?;
    for (name, size) in [("a", MIB), ("b", 2 * MIB), ("next", 3 * MIB), ("other", 4 * MIB)] {
        add_image(&scene, name, size)?;
    }
    scene.node_ready(&running).await?;
    use_once(&scene, "a").await?;
    use_once(&scene, "b").await?;
    // Its image is here, and no VM yet: nothing but the Pod's wish keeps it.
    scene.mac.set_fault(Fault::Calls, "")?;
    scene.mac.set_fault(Fault::Hang, "clone")?;
    scene.create(&pod(&scene, "next", "next", &json!({}))).await?;
    let calls = || std::fs::read_to_string(scene.mac.host().join("calls"));
    wait::eventually("a clone", DEADLINE, async || {
        ensure!(calls()?.lines().any(|call| call == "clone"), "{}", calls()?);
        Ok(())
    })
    .await?;
    scene.mac.set_fault(Fault::NoSpace, "pull")?;
    scene.create(&pod(&scene, "other", "other", &json!({}))).await?;
    scene.told("pod", "other", "FreeDiskSpaceFailed").await?;
    left(&scene, &["b", "next"], 1).await?;
    scene.kubectl.run(["delete", "pod", "other"]).await?;
    scene.mac.clear_fault(Fault::NoSpace)?;
    scene.mac.clear_fault(Fault::Hang)?;
    scene.phase("next", "Running").await?;
    left(&scene, &["b", "next"], 2).await
}

#[tokio::test]
async fn a_home_that_is_away_for_a_moment_costs_no_memory_of_images() -> Result<()> {
    let scene = Scene::new("away").await?;
    let running = agent(&scene, 100, 99).start()?;
    add_image(&scene, "a", MIB)?;
    scene.node_ready(&running).await?;
    use_once(&scene, "a").await?;
    let home = scene.mac.tart_home().to_owned();
    let away = home.with_extension("away");
    std::fs::rename(&home, &away)?;
    let looks = async || running.metric("tart_kubelet_image_gc_pass_duration_seconds_count").await;
    let before = looks().await?;
    wait::eventually("looks at nothing", DEADLINE, async || {
        let now = looks().await?;
        ensure!(now >= before + 2.0, "{now}, {before} before");
        Ok(())
    })
    .await?;
    std::fs::rename(&away, &home)?;
    let line = listed(running.agent(), &reference("a")).await?;
    ensure!(line.last().is_some_and(|by| by == "agent"), "{line:?}: {}", running.log()?);
    Ok(())
}
