//! A VM, a log or a volume that finds no space: the agent deletes one image, and tries once more.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tart_kubelet_tests::agent::RunningAgent;
use tart_kubelet_tests::disk::SmallDisk;
use tart_kubelet_tests::mac::Fault;
use tart_kubelet_tests::{programs, skip, wait};

use super::{
    FILES, GIB, LONG_LINES, MIB, SIZE, add_image, idle_agent, image_gc_passes, images_left, large_config_map,
    pod, pull_without_space, reference, small_disk, use_images, use_once,
};
use crate::scene::{DEADLINE, PodView as _, Scene, until_empty, until_exists};

/// The images of these tests, the least recently used first. No Pod uses them.
async fn idle_images(scene: &Scene, running: &RunningAgent, images: &[(&str, u64)]) -> Result<()> {
    Box::pin(use_images(scene, running, images)).await?;
    let names: Vec<&str> = images.iter().map(|(name, _)| *name).collect();
    images_left(scene, &names, names.len()).await
}

/// An agent that deletes nothing unasked, and two idle images.
async fn two_idle_images(scene: &Scene) -> Result<RunningAgent> {
    let running = idle_agent(scene).start()?;
    idle_images(scene, &running, &[("a", MIB), ("b", 2 * MIB)]).await?;
    Ok(running)
}

/// Waits until the shim of a Pod has asked the agent for space.
async fn asks_for_space(scene: &Scene, pod: &str) -> Result<()> {
    wait::eventually("a shim that asks for space", DEADLINE, async || {
        let log = scene.shim_log(pod).await?;
        ensure!(log.contains("asking the agent for some"), "{log}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn vm_without_space_has_the_agent_delete_one_image() -> Result<()> {
    for command in ["set", "run"] {
        let Some((scene, _disk)) = small_disk(&format!("{command}-full"), GIB).await? else { return Ok(()) };
        let _running = two_idle_images(&scene).await?;
        scene.mac.set_fault(Fault::NoSpace, command)?;
        pod(&scene, "full", "b").command(["true"]).create_until("Failed").await?;
        scene.described("full", "free some disk space on the host").await?;
        images_left(&scene, &["b"], 1).await?;
        let log = scene.shim_log("full").await?;
        assert_eq!(log.matches("asking the agent for some").count(), 1, "{log}");
    }
    Ok(())
}

#[tokio::test]
async fn vm_starts_after_the_agent_has_freed_space() -> Result<()> {
    let Some((scene, _disk)) = small_disk("run-again", GIB).await? else { return Ok(()) };
    let _running = two_idle_images(&scene).await?;
    scene.mac.set_fault(Fault::NoSpace, "run")?;
    // The agent cannot delete the image before there is space.
    scene.mac.set_fault(Fault::Hang, "delete")?;
    pod(&scene, "patient", "b").command(["true"]).create().await?;
    asks_for_space(&scene, "patient").await?;
    scene.mac.clear_fault(Fault::NoSpace)?;
    scene.mac.clear_fault(Fault::Hang)?;
    scene.phase("patient", "Succeeded").await.map(drop)
}

#[tokio::test]
async fn vm_whose_init_container_has_run_is_not_run_again() -> Result<()> {
    let Some((scene, _disk)) = small_disk("run-once", GIB).await? else { return Ok(()) };
    let _running = two_idle_images(&scene).await?;
    // A second run would find the first one's file, and go on.
    let script = "cd /private/tmp/trace; [ ! -e ran ] || exit 0; touch ran; sleep 1000";
    let mounts = json!([{"name": "trace", "mountPath": "/private/tmp/trace"}]);
    pod(&scene, "once", "b")
        .command(["true"])
        .volume("trace", json!({"emptyDir": {}}))
        .init_container("init", json!({"command": ["/bin/sh", "-c", script], "volumeMounts": mounts}))
        .create()
        .await?;
    let uid = scene.uid("once").await?;
    let trace = scene.volumes_dir(&uid).join("trace/ran");
    until_exists("an init container that runs", &trace).await?;
    let words = "there isn’t enough space";
    scene.mac.set_fault(Fault::RunDies.of_vm(&format!("tk-{uid}-0")), &format!("exit 1: {words}"))?;
    asks_for_space(&scene, "once").await?;
    scene.mac.clear_fault(Fault::RunDies.of_vm(&format!("tk-{uid}-0")))?;
    let end = scene.until("once", "over", |pod| matches!(pod.phase(), "Succeeded" | "Failed")).await?;
    assert_eq!(end.phase(), "Failed");
    scene.described("once", words).await
}

#[tokio::test]
async fn guest_that_ends_without_space_is_reported_and_frees_an_image() -> Result<()> {
    let Some((scene, _disk)) = small_disk("guest-full", GIB).await? else { return Ok(()) };
    let _running = two_idle_images(&scene).await?;
    pod(&scene, "guest", "b").create_until("Running").await?;
    scene.mac.set_fault(Fault::VzOutOfDiskSpace, "")?;
    scene.phase("guest", "Failed").await?;
    scene.described("guest", "free some disk space on the host").await?;
    images_left(&scene, &["b"], 1).await
}

/// A scene whose tart and state directory share a small disk, with the idle images `a` and `b`.
async fn shared_disk(name: &str) -> Result<Option<(Scene, SmallDisk, PathBuf, RunningAgent)>> {
    let Some((scene, disk)) = small_disk(name, 300 * MIB).await? else { return Ok(None) };
    let state = scene.mac.tart_home().join("state");
    let running = idle_agent(&scene).flag("--state-dir", &state.display().to_string()).start()?;
    idle_images(&scene, &running, &[("a", SIZE.into()), ("b", MIB)]).await?;
    Ok(Some((scene, disk, state, running)))
}

#[tokio::test]
async fn log_without_space_frees_an_image_and_loses_no_line() -> Result<()> {
    let Some((scene, disk, state, _running)) = shared_disk("log").await? else { return Ok(()) };
    let script = "i=0; while :; do i=$((i+1)); echo line $i; sleep 0.02; done";
    let chatty = pod(&scene, "chatty", "b").sh(script).create_until("Running").await?;
    let log = state.join("logs").join(chatty.uid_of()?).join("main/0.log");
    disk.fill_up()?;
    images_left(&scene, &["b"], 1).await?;
    let before = std::fs::metadata(&log)?.len();
    wait::eventually("a log that goes on", DEADLINE, async || {
        let now = std::fs::metadata(&log)?.len();
        ensure!(now > before, "{now} bytes, {before} before");
        Ok(())
    })
    .await?;
    let lines = std::fs::read_to_string(&log)?;
    // The shim may not have written the last line yet.
    let (whole, _) = lines.rsplit_once('\n').context("no line")?;
    for (number, line) in (1..).zip(whole.lines()) {
        ensure!(line.ends_with(&format!(" stdout F line {number}")), "{number}: {line}");
    }
    ensure!(!scene.kubectl.run(["describe", "pod", "chatty"]).await?.contains("FailedLog"));
    Ok(())
}

#[tokio::test]
async fn log_that_gets_no_space_is_reported() -> Result<()> {
    let Some((scene, disk, _state, _running)) = shared_disk("log-lost").await? else { return Ok(()) };
    // The agent can delete neither image: Pods use both.
    pod(&scene, "holder", "a").create_until("Running").await?;
    pod(&scene, "chatty", "b").sh(LONG_LINES).create_until("Running").await?;
    disk.fill_up()?;
    scene.described("chatty", "no image on this host may be deleted for it").await?;
    images_left(&scene, &["a", "b"], 2).await?;
    scene.phase("chatty", "Running").await?;
    // With space, the shim can write what is missing.
    disk.fill(0)?;
    scene.described("chatty", "what it writes meanwhile is lost").await
}

#[tokio::test]
async fn agent_runs_on_when_its_own_log_is_full() -> Result<()> {
    if !Path::new("/dev/full").exists() {
        return skip::say("this system has no /dev/full");
    }
    let scene = Scene::new("own-log").await?;
    let starter = scene.mac.host().join("starter");
    programs::write(&starter, "#!/bin/sh\nexec \"$@\" 2>/dev/full\n")?;
    let running = scene.start(&scene.agent.clone().started_by(&starter)).await?;
    scene.pod("any").command(["true"]).create_until("Succeeded").await?;
    running.process().ensure_running()
}

#[tokio::test]
async fn volume_without_space_frees_an_image() -> Result<()> {
    let Some((scene, disk, _state, _running)) = shared_disk("volume").await? else { return Ok(()) };
    large_config_map(&scene, "large", 900_000).await?;
    // Enough for the Pod's own state, but not for its files.
    disk.fill_but(MIB / 2)?;
    pod(&scene, "reader", "b")
        .sh("wc -c < /Users/admin/files/large")
        .volume("files", json!({"configMap": {"name": "large"}}))
        .mount("files", FILES)
        .create_until("Succeeded")
        .await?;
    images_left(&scene, &["b"], 1).await
}

#[tokio::test]
async fn pod_on_a_disk_with_few_blocks_left_starts_or_says_why_not() -> Result<()> {
    let Some((scene, disk, state, _running)) = shared_disk("few-blocks").await? else { return Ok(()) };
    // The agent cannot delete this image.
    pod(&scene, "holder", "b").create_until("Running").await?;
    // Each number has another record be the first one without space.
    for blocks in 1u64..9 {
        let name = format!("blocks-{blocks}");
        // An earlier bad day has taken the reserve.
        std::fs::remove_file(state.join("reserve")).or_else(|error| match error.kind() {
            std::io::ErrorKind::NotFound => Ok(()),
            _ => Err(error),
        })?;
        disk.fill_but(blocks << 12)?;
        pod(&scene, &name, "b").command(["true"]).create().await?;
        wait::eventually("a Pod that starts or says why not", DEADLINE, async || {
            let described = scene.kubectl.run(["describe", "pod", &name]).await?;
            let is_over = matches!(scene.pods.get(&name).await?.phase(), "Succeeded" | "Failed");
            ensure!(
                is_over || described.contains("free some disk space on the host"),
                "{blocks}: {described}"
            );
            Ok(())
        })
        .await?;
        disk.fill(0)?;
        scene.delete(&name).await?;
        wait::eventually("a Mac without the Pod's VM", DEADLINE, async || {
            let vms = scene.vms().await?;
            ensure!(vms.len() == 1, "it has {vms:?}");
            Ok(())
        })
        .await?;
    }
    Ok(())
}

#[tokio::test]
async fn environment_without_space_frees_an_image() -> Result<()> {
    let Some((scene, disk, _state, _running)) = shared_disk("environment").await? else { return Ok(()) };
    let value = scene.mac.host().join("value");
    // A program takes no variable that is much longer.
    std::fs::write(&value, "x".repeat(100_000))?;
    let variables: Vec<String> =
        (0..9).map(|number| format!("--from-file=V{number}={}", value.display())).collect();
    let create = ["create", "configmap", "large"].into_iter().chain(variables.iter().map(String::as_str));
    scene.kubectl.run(create).await?;
    // Enough for the Pod's own state, but not for its plan.
    disk.fill_but(MIB / 2)?;
    let container = json!({
        "command": ["/bin/sh", "-c", "[ ${#V0} = 100000 ] && [ ${#V8} = 100000 ]"],
        "envFrom": [{"configMapRef": {"name": "large"}}],
    });
    pod(&scene, "large", "b").container(container).create_until("Succeeded").await?;
    images_left(&scene, &["b"], 1).await
}

#[tokio::test]
async fn volume_update_without_space_frees_an_image() -> Result<()> {
    let Some((scene, disk, _state, _running)) = shared_disk("volume-changes").await? else { return Ok(()) };
    let file = scene.mac.host().join("file");
    let write = async |content: &str| {
        std::fs::write(&file, content)?;
        let from_file = format!("--from-file=file={}", file.display());
        let dry = ["create", "configmap", "changing", &from_file, "--dry-run=client", "--output=json"];
        let object = scene.kubectl.run(dry).await?;
        // The object is too large for the annotation of `kubectl apply`.
        let path = scene.mac.host().join("object.json");
        std::fs::write(&path, object)?;
        let path = path.display().to_string();
        let verb = if scene.kubectl.run(["get", "configmap", "changing"]).await.is_ok() {
            "replace"
        } else {
            "create"
        };
        scene.kubectl.run([verb, "--filename", &path]).await
    };
    write("small").await?;
    pod(&scene, "reader", "b")
        .sh("until [ $(wc -c < /Users/admin/files/file) -gt 800000 ]; do sleep 0.1; done")
        .volume("files", json!({"configMap": {"name": "changing"}}))
        .mount("files", FILES)
        .create_until("Running")
        .await?;
    disk.fill_but(MIB / 2)?;
    write(&"x".repeat(900_000)).await?;
    scene.phase("reader", "Succeeded").await?;
    images_left(&scene, &["b"], 1).await
}

#[tokio::test]
async fn volume_that_never_fits_costs_one_image() -> Result<()> {
    let Some((scene, disk)) = small_disk("volume-hopeless", 100 * MIB).await? else { return Ok(()) };
    let state = scene.mac.tart_home().join("state");
    let running = idle_agent(&scene).flag("--state-dir", &state.display().to_string()).start()?;
    idle_images(&scene, &running, &THREE).await?;
    let names = ["one", "two", "three"];
    for name in names {
        large_config_map(&scene, name, 1_000_000).await?;
    }
    // More than the agent leaves free, and less than the volume needs, however many images it deletes.
    disk.fill_but(2 * MIB)?;
    let sources =
        names.map(|name| json!({"configMap": {"name": name, "items": [{"key": "large", "path": name}]}}));
    pod(&scene, "reader", "c")
        .command(["true"])
        .volume("files", json!({"projected": {"sources": sources}}))
        .mount("files", FILES)
        .create()
        .await?;
    scene.described("reader", "free some disk space on the host").await?;
    images_left(&scene, &["b", "c"], 2).await?;
    // The agent tries the volume again as often as it looks at the disk.
    image_gc_passes(&running, 3.0).await?;
    images_left(&scene, &["b", "c"], 2).await?;
    // The agent has deleted the files that it could write.
    let volumes = std::fs::read_dir(state.join("volumes"))?.collect::<Result<Vec<_>, _>>()?;
    let [volumes] = volumes.as_slice() else { anyhow::bail!("{volumes:?}") };
    let versions = || -> Result<usize> { Ok(std::fs::read_dir(volumes.path().join("files"))?.count()) };
    wait::eventually("no part of the files", DEADLINE, async || {
        let count = versions()?;
        ensure!(count == 0, "there are {count}");
        Ok(())
    })
    .await?;
    disk.fill(0)?;
    scene.phase("reader", "Succeeded").await.map(drop)
}

#[tokio::test]
async fn full_state_disk_costs_no_image_on_another_disk() -> Result<()> {
    let scene = Scene::new("other-disk").await?;
    let state = scene.mac.host().join("state");
    std::fs::create_dir(&state)?;
    let Some(disk) = SmallDisk::mount(&state, 4 * MIB)? else { return Ok(()) };
    let running = idle_agent(&scene).flag("--state-dir", &state.display().to_string()).start()?;
    idle_images(&scene, &running, &[("a", MIB), ("b", 2 * MIB)]).await?;
    // The files of these Pods would make space for the next one when they go.
    until_empty(&state).await?;
    disk.fill_up()?;
    pod(&scene, "stuck", "b").command(["true"]).create().await?;
    scene.described("stuck", "free some disk space on the host").await?;
    images_left(&scene, &["a", "b"], 2).await?;
    disk.fill(0)?;
    scene.phase("stuck", "Succeeded").await?;
    images_left(&scene, &["a", "b"], 2).await
}

#[tokio::test]
async fn clone_without_space_frees_an_image() -> Result<()> {
    let Some((scene, _disk)) = small_disk("clone", GIB).await? else { return Ok(()) };
    let _running = two_idle_images(&scene).await?;
    scene.mac.set_fault(Fault::NoSpace, "clone")?;
    pod(&scene, "full", "b").command(["true"]).create_until("Failed").await?;
    scene.described("full", "free some disk space on the host").await?;
    images_left(&scene, &["b"], 1).await?;
    let log = scene.shim_log("full").await?;
    assert_eq!(log.matches("asking the agent for some").count(), 1, "{log}");
    scene.mac.clear_fault(Fault::NoSpace)?;
    use_once(&scene, "b").await
}

/// Three tiny images.
const THREE: [(&str, u64); 3] = [("a", 1), ("b", 2), ("c", 3)];

#[tokio::test]
async fn image_that_never_fits_costs_one_image() -> Result<()> {
    let Some((scene, _disk)) = small_disk("never-fits", 100 * MIB).await? else { return Ok(()) };
    let running = idle_agent(&scene).start()?;
    idle_images(&scene, &running, &THREE).await?;
    add_image(&scene, "huge", 190 * MIB)?;
    pod(&scene, "huge", "huge").create().await?;
    scene.event("huge", "FreeDiskSpaceFailed", "there is no space for image").await?;
    scene.described("huge", "the images that were deleted for it were not enough").await?;
    images_left(&scene, &["b", "c"], 2).await?;
    // For another Pod the agent deletes another image.
    scene.mac.set_fault(Fault::NoSpace, "pull")?;
    add_image(&scene, "next", 4)?;
    pod(&scene, "next", "next").create().await?;
    images_left(&scene, &["c"], 1).await
}

#[tokio::test]
async fn restarting_container_without_space_costs_one_image() -> Result<()> {
    let Some((scene, _disk)) = small_disk("restarts-full", GIB).await? else { return Ok(()) };
    let running = idle_agent(&scene).start()?;
    idle_images(&scene, &running, &THREE).await?;
    scene.mac.set_fault(Fault::NoSpace, "clone")?;
    pod(&scene, "again", "c").command(["true"]).restart_policy("Always").create().await?;
    // The second VM has asked for space, too.
    scene.described("again", "FreeDiskSpaceFailed").await?;
    images_left(&scene, &["b", "c"], 2).await?;
    scene.mac.clear_fault(Fault::NoSpace)?;
    scene.described("again", "Completed").await
}

#[tokio::test]
async fn words_about_a_full_disk_delete_no_image_while_the_disk_has_space() -> Result<()> {
    let Some((scene, _disk)) = small_disk("spacious", 64 * GIB).await? else { return Ok(()) };
    let _running = two_idle_images(&scene).await?;
    pull_without_space(&scene).await?;
    let words = format!(
        "there is no space for image `{}`, and no image is deleted for it: the disk itself",
        reference("other")
    );
    scene.event("lacks", "FreeDiskSpaceFailed", &words).await?;
    images_left(&scene, &["a", "b"], 2).await
}
