//! Images make room when the disk fills up, and Pods only when that does not help. The disk is a small one of its own.

use std::collections::BTreeSet;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};
use tart_kubelet_tests::agent::{Agent, RunningAgent};
use tart_kubelet_tests::disk::SmallDisk;
use tart_kubelet_tests::wait;

use crate::scene::{DEADLINE, Scene, condition};

const MIB: u64 = 1 << 20;
/// What each image takes.
const SIZE: u32 = 60 << 20;

/// A scene whose tart has a small disk; `None` where there can be none.
async fn small(name: &str, size: u64) -> Result<Option<(Scene, SmallDisk)>> {
    let scene = Scene::new(name).await?;
    let disk = SmallDisk::mount(scene.mac.tart_home(), size)?;
    Ok(disk.map(|disk| (scene, disk)))
}

/// The agent, with watermarks in percent.
fn agent(scene: &Scene, high: u8, low: u8) -> Agent {
    scene
        .agent
        .clone()
        .flag("--image-gc-high-threshold", &high.to_string())
        .flag("--image-gc-low-threshold", &low.to_string())
        .flag("--minimum-image-ttl-duration", "0s")
}

fn reference(name: &str) -> String {
    format!("registry.test/macos/{name}:1")
}

/// Adds an image that takes so much on disk.
fn add_image(scene: &Scene, name: &str, size: u64) -> Result<()> {
    let directory = scene.mac.add_image(&reference(name), &json!({}))?;
    let files = directory.join("rootfs/Users/admin");
    std::fs::create_dir_all(&files)?;
    std::fs::write(files.join("weight"), vec![1; usize::try_from(size)?])?;
    Ok(())
}

fn pod(scene: &Scene, name: &str, image: &str, container: &Value) -> Value {
    let mut container = container.clone();
    container["image"] = json!(reference(image));
    scene.pod(name, &container, &json!({}))
}

/// Has an image used by a Pod that ends, and leaves nothing else behind.
async fn use_once(scene: &Scene, image: &str) -> Result<()> {
    scene.create(&pod(scene, image, image, &json!({"command": ["true"]}))).await?;
    scene.phase(image, "Succeeded").await?;
    scene.kubectl.run(["delete", "pod", image]).await.map(drop)
}

/// The short names of the images in tart's cache.
async fn cached(scene: &Scene) -> Result<BTreeSet<String>> {
    let list = scene.mac.tart(["list", "--source", "oci", "--quiet"]).await?;
    let tags = list.lines().filter_map(|name| name.strip_suffix(":1"));
    Ok(tags.filter_map(|name| name.rsplit('/').next().map(str::to_owned)).collect())
}

/// Waits until tart's cache has these images and no others, and there are as many base VMs.
async fn left(scene: &Scene, images: &[&str], bases: usize) -> Result<()> {
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
    let log = scene.agent_log();
    let deleted: Vec<&str> = log.lines().filter(|line| line.contains("image deleted to make room")).collect();
    ensure!(
        matches!(deleted.as_slice(), [b, a] if b.contains("macos/b@") && a.contains("macos/a@")),
        "{deleted:#?}"
    );
    let count = running.metric("tart_kubelet_image_gc_deleted_total").await?;
    ensure!((count - 2.0).abs() < 0.5, "{count} images were deleted");
    let freed = running.metric("tart_kubelet_image_gc_freed_bytes_total").await?;
    ensure!(freed >= 2.0 * f64::from(SIZE), "{freed} bytes were freed");
    wait::eventually("the reasons to keep images", DEADLINE, async || {
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

    // On a host where the agent deletes nothing, nothing goes.
    running.kill9()?;
    let _running = agent(&scene, 1, 0).switch("--disable-vm-gc").start()?;
    scene.create(&pod(&scene, "again", "huge", &json!({}))).await?;
    scene.told("pod", "again", "free some disk space on the host").await?;
    left(&scene, &["large"], 1).await
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
    scene.mac.tart(["exec", &greedy, "sh", "-c", write]).await?;
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
async fn a_clone_without_room_has_the_agent_make_some() -> Result<()> {
    let scene = Scene::new("clone").await?;
    let running = agent(&scene, 100, 99).start()?;
    for (name, size) in [("a", MIB), ("b", 2 * MIB)] {
        add_image(&scene, name, size)?;
    }
    scene.node_ready(&running).await?;
    use_once(&scene, "a").await?;
    use_once(&scene, "b").await?;
    left(&scene, &["a", "b"], 2).await?;
    scene.mac.set_fault("no-space", "clone")?;
    scene.create(&pod(&scene, "full", "b", &json!({"command": ["true"]}))).await?;
    scene.phase("full", "Failed").await?;
    scene.told("pod", "full", "free some disk space on the host").await?;
    left(&scene, &["b"], 1).await?;
    let log = scene.shim_log("full").await?;
    assert_eq!(log.matches("asking the agent for some").count(), 1, "{log}");
    scene.mac.clear_fault("no-space")?;
    use_once(&scene, "b").await
}

/// Two images that nobody uses, `a` before `b`, on a host where nothing is collected unasked.
async fn two_idle_images(scene: &Scene) -> Result<RunningAgent> {
    let running = agent(scene, 100, 99).start()?;
    for (name, size) in [("a", MIB), ("b", 2 * MIB)] {
        add_image(scene, name, size)?;
    }
    scene.node_ready(&running).await?;
    use_once(scene, "a").await?;
    use_once(scene, "b").await?;
    left(scene, &["a", "b"], 2).await?;
    Ok(running)
}

#[tokio::test]
async fn a_vm_without_room_to_start_has_the_agent_make_some_once() -> Result<()> {
    for command in ["set", "run"] {
        let scene = Scene::new(&format!("{command}-full")).await?;
        let _running = two_idle_images(&scene).await?;
        scene.mac.set_fault("no-space", command)?;
        scene.create(&pod(&scene, "full", "b", &json!({"command": ["true"]}))).await?;
        scene.phase("full", "Failed").await?;
        scene.told("pod", "full", "free some disk space on the host").await?;
        left(&scene, &["b"], 1).await?;
        let log = scene.shim_log("full").await?;
        assert_eq!(log.matches("asking the agent for some").count(), 1, "{log}");
    }
    Ok(())
}

#[tokio::test]
async fn a_vm_that_has_room_made_starts() -> Result<()> {
    let scene = Scene::new("run-again").await?;
    let _running = two_idle_images(&scene).await?;
    scene.mac.set_fault("no-space", "run")?;
    // The collector does not get far before there is room.
    scene.mac.set_fault("hang", "delete")?;
    scene.create(&pod(&scene, "patient", "b", &json!({"command": ["true"]}))).await?;
    wait::eventually("a shim that asks for room", DEADLINE, async || {
        let log = scene.shim_log("patient").await?;
        ensure!(log.contains("asking the agent for some"), "{log}");
        Ok(())
    })
    .await?;
    scene.mac.clear_fault("no-space")?;
    scene.mac.clear_fault("hang")?;
    scene.phase("patient", "Succeeded").await.map(drop)
}

#[tokio::test]
async fn a_guest_that_ends_for_want_of_space_says_so_and_has_some_made() -> Result<()> {
    let scene = Scene::new("guest-full").await?;
    let _running = two_idle_images(&scene).await?;
    scene.create(&pod(&scene, "guest", "b", &json!({}))).await?;
    scene.phase("guest", "Running").await?;
    scene.mac.set_fault("vz-out-of-disk-space", "")?;
    scene.phase("guest", "Failed").await?;
    scene.told("pod", "guest", "free some disk space on the host").await?;
    left(&scene, &["b"], 1).await
}

/// A scene whose tart and state directory share a small disk, with an idle image `a` and one that is to be used, `b`.
async fn shared_disk(name: &str) -> Result<Option<(Scene, SmallDisk, PathBuf, RunningAgent)>> {
    let Some((scene, disk)) = small(name, 300 * MIB).await? else { return Ok(None) };
    let state = scene.mac.tart_home().join("state");
    let running = agent(&scene, 100, 99).flag("--state-dir", &state.display().to_string()).start()?;
    add_image(&scene, "a", SIZE.into())?;
    add_image(&scene, "b", MIB)?;
    scene.node_ready(&running).await?;
    use_once(&scene, "a").await?;
    use_once(&scene, "b").await?;
    left(&scene, &["a", "b"], 2).await?;
    Ok(Some((scene, disk, state, running)))
}

#[tokio::test]
async fn a_log_without_room_has_some_made_and_loses_nothing() -> Result<()> {
    let Some((scene, disk, state, _running)) = shared_disk("log").await? else { return Ok(()) };
    let script = "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); echo line $i; sleep 0.02; done";
    scene.create(&pod(&scene, "chatty", "b", &json!({"command": ["/bin/sh", "-c", script]}))).await?;
    let uid = scene.phase("chatty", "Running").await?.metadata.uid.context("no UID")?;
    let log = state.join("logs").join(uid).join("main/0.log");
    disk.fill_up()?;
    left(&scene, &["b"], 1).await?;
    let before = std::fs::metadata(&log)?.len();
    wait::eventually("a log that goes on", DEADLINE, async || {
        let now = std::fs::metadata(&log)?.len();
        ensure!(now > before, "{now} bytes, {before} before");
        Ok(())
    })
    .await?;
    let lines = std::fs::read_to_string(&log)?;
    for (number, line) in (1..).zip(lines.lines()) {
        ensure!(line.ends_with(&format!(" stdout F line {number}")), "{number}: {line}");
    }
    ensure!(!scene.kubectl.run(["describe", "pod", "chatty"]).await?.contains("FailedLog"));
    Ok(())
}

#[tokio::test]
async fn a_log_that_cannot_have_room_is_told() -> Result<()> {
    let Some((scene, disk, _state, _running)) = shared_disk("log-lost").await? else { return Ok(()) };
    // Nothing can go: the one image that could is in use, the other one is the last.
    scene.create(&pod(&scene, "holder", "a", &json!({}))).await?;
    scene.phase("holder", "Running").await?;
    // Lines as long as a block, so that whatever else comes and goes on the disk leaves no room for them.
    let script = "line=$(head -c 8000 /dev/zero | tr '\\0' x); while :; do echo $line; sleep 0.02; done";
    scene.create(&pod(&scene, "chatty", "b", &json!({"command": ["/bin/sh", "-c", script]}))).await?;
    scene.phase("chatty", "Running").await?;
    disk.fill_up()?;
    scene.told("pod", "chatty", "no image on this host may be deleted for it").await?;
    left(&scene, &["a", "b"], 2).await?;
    scene.phase("chatty", "Running").await?;
    // Once there is room, it can be told what is missing.
    disk.fill(0)?;
    scene.told("pod", "chatty", "what it writes meanwhile is lost").await
}

#[tokio::test]
async fn an_agent_whose_own_log_is_full_goes_on() -> Result<()> {
    let scene = Scene::new("own-log").await?;
    if !Path::new("/dev/full").exists() {
        return Ok(());
    }
    let starter = scene.mac.host().join("starter");
    std::fs::write(&starter, "#!/bin/sh\nexec \"$@\" 2>/dev/full\n")?;
    std::fs::set_permissions(&starter, Permissions::from_mode(0o755))?;
    let running = scene.agent.clone().started_by(&starter).start()?;
    scene.node_ready(&running).await?;
    scene.create(&scene.pod("any", &json!({"command": ["true"]}), &json!({}))).await?;
    scene.phase("any", "Succeeded").await?;
    running.process().ensure_running()
}

#[tokio::test]
async fn a_volume_without_room_has_some_made() -> Result<()> {
    let Some((scene, disk, _state, _running)) = shared_disk("volume").await? else { return Ok(()) };
    let large = scene.mac.host().join("large");
    std::fs::write(&large, "x".repeat(900_000))?;
    let from_file = format!("--from-file=large={}", large.display());
    scene.kubectl.run(["create", "configmap", "large", &from_file]).await?;
    // Enough for the Pod's own state, but not for its files.
    disk.fill_but(MIB / 2)?;
    let mount = json!([{"name": "files", "mountPath": "/Users/admin/files"}]);
    let container =
        json!({"command": ["/bin/sh", "-c", "wc -c < /Users/admin/files/large"], "volumeMounts": mount});
    let mut reader = pod(&scene, "reader", "b", &container);
    reader["spec"]["volumes"] = json!([{"name": "files", "configMap": {"name": "large"}}]);
    scene.create(&reader).await?;
    scene.phase("reader", "Succeeded").await?;
    left(&scene, &["b"], 1).await
}

#[tokio::test]
async fn no_image_goes_for_a_disk_that_it_is_not_on() -> Result<()> {
    let scene = Scene::new("other-disk").await?;
    let state = scene.mac.host().join("state");
    std::fs::create_dir(&state)?;
    let Some(disk) = SmallDisk::mount(&state, 4 * MIB)? else { return Ok(()) };
    let running = agent(&scene, 100, 99).flag("--state-dir", &state.display().to_string()).start()?;
    for (name, size) in [("a", MIB), ("b", 2 * MIB)] {
        add_image(&scene, name, size)?;
    }
    scene.node_ready(&running).await?;
    use_once(&scene, "a").await?;
    use_once(&scene, "b").await?;
    left(&scene, &["a", "b"], 2).await?;
    disk.fill_up()?;
    scene.create(&pod(&scene, "stuck", "b", &json!({"command": ["true"]}))).await?;
    scene.told("pod", "stuck", "free some disk space on the host").await?;
    left(&scene, &["a", "b"], 2).await?;
    disk.fill(0)?;
    scene.phase("stuck", "Succeeded").await?;
    left(&scene, &["a", "b"], 2).await
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
    scene.mac.set_fault("no-space", "pull")?;
    scene.create(&pod(&scene, "other", "other", &json!({}))).await?;
    scene.told("pod", "other", "FreeDiskSpaceFailed").await?;
    left(&scene, &["idle", "busy"], 1).await
}
