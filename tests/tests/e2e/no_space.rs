//! Whatever finds no space has images make some, once, and is tried once more.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tart_kubelet_tests::agent::RunningAgent;
use tart_kubelet_tests::disk::SmallDisk;
use tart_kubelet_tests::skip;
use tart_kubelet_tests::wait;

use crate::image_gc::{MIB, SIZE, add_image, agent, left, pod, small, use_once};
use crate::scene::{DEADLINE, Scene};

/// Has an agent use two images once, `a` before `b`, so that nobody needs either of them any more.
async fn use_both(scene: &Scene, running: &RunningAgent, sizes: [u64; 2]) -> Result<()> {
    let both = ["a", "b"];
    for (name, size) in both.into_iter().zip(sizes) {
        add_image(scene, name, size)?;
    }
    scene.node_ready(running).await?;
    for name in both {
        use_once(scene, name).await?;
    }
    left(scene, &both, 2).await
}

/// Two images that nobody uses, `a` before `b`, on a host where nothing is collected unasked.
async fn two_idle_images(scene: &Scene) -> Result<RunningAgent> {
    let running = agent(scene, 100, 99).start()?;
    use_both(scene, &running, [MIB, 2 * MIB]).await?;
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
    use_both(&scene, &running, [SIZE.into(), MIB]).await?;
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
    if !Path::new("/dev/full").exists() {
        return skip::say("this system has no /dev/full");
    }
    let scene = Scene::new("own-log").await?;
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
    use_both(&scene, &running, [MIB, 2 * MIB]).await?;
    disk.fill_up()?;
    scene.create(&pod(&scene, "stuck", "b", &json!({"command": ["true"]}))).await?;
    scene.told("pod", "stuck", "free some disk space on the host").await?;
    left(&scene, &["a", "b"], 2).await?;
    disk.fill(0)?;
    scene.phase("stuck", "Succeeded").await?;
    left(&scene, &["a", "b"], 2).await
}

#[tokio::test]
async fn a_clone_without_room_has_the_agent_make_some() -> Result<()> {
    let scene = Scene::new("clone").await?;
    let _running = two_idle_images(&scene).await?;
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
