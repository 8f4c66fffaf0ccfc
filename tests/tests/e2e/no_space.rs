//! Whatever finds no space has images make some, once, and is tried once more.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tart_kubelet_tests::agent::RunningAgent;
use tart_kubelet_tests::disk::SmallDisk;
use tart_kubelet_tests::mac::Fault;
use tart_kubelet_tests::{programs, skip, wait};

use crate::image_gc::{MIB, SIZE, add_image, agent, left, pod, small, use_once};
use crate::scene::{DEADLINE, Scene, phase_of};

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
        scene.mac.set_fault(Fault::NoSpace, command)?;
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
    scene.mac.set_fault(Fault::NoSpace, "run")?;
    // The collector does not get far before there is room.
    scene.mac.set_fault(Fault::Hang, "delete")?;
    scene.create(&pod(&scene, "patient", "b", &json!({"command": ["true"]}))).await?;
    wait::eventually("a shim that asks for room", DEADLINE, async || {
        let log = scene.shim_log("patient").await?;
        ensure!(log.contains("asking the agent for some"), "{log}");
        Ok(())
    })
    .await?;
    scene.mac.clear_fault(Fault::NoSpace)?;
    scene.mac.clear_fault(Fault::Hang)?;
    scene.phase("patient", "Succeeded").await.map(drop)
}

#[tokio::test]
async fn a_vm_in_which_an_init_container_has_run_is_not_run_again() -> Result<()> {
    let scene = Scene::new("run-once").await?;
    let _running = two_idle_images(&scene).await?;
    let mut once = pod(&scene, "once", "b", &json!({"command": ["true"]}));
    let mounts = json!([{"name": "trace", "mountPath": "/private/tmp/trace"}]);
    // A second run would find the first one's file, and go on.
    let script = "cd /private/tmp/trace; [ ! -e ran ] || exit 0; touch ran; sleep 1000";
    let image = once["spec"]["containers"][0]["image"].clone();
    let init = json!({
        "name": "init", "image": image, "command": ["/bin/sh", "-c", script], "volumeMounts": mounts,
    });
    once["spec"]["initContainers"] = json!([init]);
    once["spec"]["volumes"] = json!([{"name": "trace", "emptyDir": {}}]);
    scene.create(&once).await?;
    let uid = scene.pods.get("once").await?.metadata.uid.context("no UID")?;
    let trace = scene.agent.state_dir().join("volumes").join(&uid).join("trace/ran");
    wait::eventually("an init container that runs", DEADLINE, async || {
        ensure!(trace.exists());
        Ok(())
    })
    .await?;
    let words = "there isn’t enough space";
    scene.mac.set_fault(Fault::RunDies.of_vm(&format!("tk-{uid}-0")), &format!("exit 1: {words}"))?;
    wait::eventually("a shim that asks for room", DEADLINE, async || {
        let log = scene.shim_log("once").await?;
        ensure!(log.contains("asking the agent for some"), "{log}");
        Ok(())
    })
    .await?;
    scene.mac.clear_fault(Fault::RunDies.of_vm(&format!("tk-{uid}-0")))?;
    let end = wait::until(&scene.pods, "once", "over", DEADLINE, |pod| {
        matches!(phase_of(pod), "Succeeded" | "Failed")
    })
    .await?;
    assert_eq!(phase_of(&end), "Failed");
    scene.told("pod", "once", words).await
}

#[tokio::test]
async fn a_guest_that_ends_for_want_of_space_says_so_and_has_some_made() -> Result<()> {
    let scene = Scene::new("guest-full").await?;
    let _running = two_idle_images(&scene).await?;
    scene.create(&pod(&scene, "guest", "b", &json!({}))).await?;
    scene.phase("guest", "Running").await?;
    scene.mac.set_fault(Fault::VzOutOfDiskSpace, "")?;
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
    let script = "i=0; while :; do i=$((i+1)); echo line $i; sleep 0.02; done";
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
    // The last one may still be on its way.
    let (whole, _) = lines.rsplit_once('\n').context("no line")?;
    for (number, line) in (1..).zip(whole.lines()) {
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
    programs::write(&starter, "#!/bin/sh\nexec \"$@\" 2>/dev/full\n")?;
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
async fn an_environment_without_room_has_some_made() -> Result<()> {
    let Some((scene, disk, _state, _running)) = shared_disk("environment").await? else { return Ok(()) };
    let value = scene.mac.host().join("value");
    // No program takes a variable that is much longer.
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
    scene.create(&pod(&scene, "large", "b", &container)).await?;
    scene.phase("large", "Succeeded").await?;
    left(&scene, &["b"], 1).await
}

#[tokio::test]
async fn a_volume_that_changes_without_room_has_some_made() -> Result<()> {
    let Some((scene, disk, _state, _running)) = shared_disk("volume-changes").await? else { return Ok(()) };
    let file = scene.mac.host().join("file");
    let write = async |content: &str| {
        std::fs::write(&file, content)?;
        let from_file = format!("--from-file=file={}", file.display());
        let dry = ["create", "configmap", "changing", &from_file, "--dry-run=client", "--output=json"];
        let object = scene.kubectl.run(dry).await?;
        // Too large for the annotation that `kubectl apply` leaves.
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
    let mount = json!([{"name": "files", "mountPath": "/Users/admin/files"}]);
    let script = "until [ $(wc -c < /Users/admin/files/file) -gt 800000 ]; do sleep 0.1; done";
    let container = json!({"command": ["/bin/sh", "-c", script], "volumeMounts": mount});
    let mut reader = pod(&scene, "reader", "b", &container);
    reader["spec"]["volumes"] = json!([{"name": "files", "configMap": {"name": "changing"}}]);
    scene.create(&reader).await?;
    scene.phase("reader", "Running").await?;
    disk.fill_but(MIB / 2)?;
    write(&"x".repeat(900_000)).await?;
    scene.phase("reader", "Succeeded").await?;
    left(&scene, &["b"], 1).await
}

#[tokio::test]
async fn a_volume_that_cannot_have_room_costs_one_image() -> Result<()> {
    let Some((scene, disk)) = small("volume-hopeless", 100 * MIB).await? else { return Ok(()) };
    let state = scene.mac.tart_home().join("state");
    let running = agent(&scene, 100, 99).flag("--state-dir", &state.display().to_string()).start()?;
    for (name, size) in [("a", 1), ("b", 2), ("c", 3)] {
        add_image(&scene, name, size)?;
    }
    scene.node_ready(&running).await?;
    for name in ["a", "b", "c"] {
        use_once(&scene, name).await?;
    }
    left(&scene, &["a", "b", "c"], 3).await?;
    let large = scene.mac.host().join("large");
    std::fs::write(&large, "x".repeat(1_000_000))?;
    let from_file = format!("--from-file=large={}", large.display());
    let names = ["one", "two", "three"];
    for name in names {
        scene.kubectl.run(["create", "configmap", name, &from_file]).await?;
    }
    // More than what is to be left free, and less than what the volume needs, however many images go.
    disk.fill_but(2 * MIB)?;
    let sources =
        names.map(|name| json!({"configMap": {"name": name, "items": [{"key": "large", "path": name}]}}));
    let mounts = json!([{"name": "files", "mountPath": "/Users/admin/files"}]);
    let mut reader = pod(&scene, "reader", "c", &json!({"command": ["true"], "volumeMounts": mounts}));
    reader["spec"]["volumes"] = json!([{"name": "files", "projected": {"sources": sources}}]);
    scene.create(&reader).await?;
    scene.told("pod", "reader", "free some disk space on the host").await?;
    left(&scene, &["b", "c"], 2).await?;
    // As often as the disk is looked at, the volumes were tried, too.
    let looks = async || running.metric("tart_kubelet_image_gc_pass_duration_seconds_count").await;
    let before = looks().await?;
    wait::eventually("more tries", DEADLINE, async || {
        let now = looks().await?;
        ensure!(now >= before + 3.0, "{now}, {before} before");
        Ok(())
    })
    .await?;
    left(&scene, &["b", "c"], 2).await?;
    // What could not be written whole has not stayed in part.
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
    scene.mac.set_fault(Fault::NoSpace, "clone")?;
    scene.create(&pod(&scene, "full", "b", &json!({"command": ["true"]}))).await?;
    scene.phase("full", "Failed").await?;
    scene.told("pod", "full", "free some disk space on the host").await?;
    left(&scene, &["b"], 1).await?;
    let log = scene.shim_log("full").await?;
    assert_eq!(log.matches("asking the agent for some").count(), 1, "{log}");
    scene.mac.clear_fault(Fault::NoSpace)?;
    use_once(&scene, "b").await
}

/// Three images that nobody uses, `a` before `b` before `c`, on a host where nothing is collected unasked.
async fn three_idle_images(scene: &Scene, running: &RunningAgent) -> Result<()> {
    let all = ["a", "b", "c"];
    for (name, size) in all.into_iter().zip([1, 2, 3]) {
        add_image(scene, name, size)?;
    }
    scene.node_ready(running).await?;
    for name in all {
        use_once(scene, name).await?;
    }
    left(scene, &all, 3).await
}

#[tokio::test]
async fn an_image_that_never_fits_costs_one_other() -> Result<()> {
    let Some((scene, _disk)) = small("never-fits", 100 * MIB).await? else { return Ok(()) };
    let running = agent(&scene, 100, 99).start()?;
    three_idle_images(&scene, &running).await?;
    add_image(&scene, "huge", 190 * MIB)?;
    scene.create(&pod(&scene, "huge", "huge", &json!({}))).await?;
    scene.told_as("huge", "FreeDiskSpaceFailed", "there is no space for image").await?;
    scene.told("pod", "huge", "the images that were deleted for it were not enough").await?;
    left(&scene, &["b", "c"], 2).await?;
    // What was of no use for one may be for another.
    scene.mac.set_fault(Fault::NoSpace, "pull")?;
    add_image(&scene, "next", 4)?;
    scene.create(&pod(&scene, "next", "next", &json!({}))).await?;
    left(&scene, &["c"], 1).await
}

#[tokio::test]
async fn a_container_that_restarts_for_ever_without_room_costs_one_image() -> Result<()> {
    let scene = Scene::new("restarts-full").await?;
    let running = agent(&scene, 100, 99).start()?;
    three_idle_images(&scene, &running).await?;
    scene.mac.set_fault(Fault::NoSpace, "clone")?;
    let mut again = pod(&scene, "again", "c", &json!({"command": ["true"]}));
    again["spec"]["restartPolicy"] = json!("Always");
    scene.create(&again).await?;
    // The second VM has asked, too.
    scene.told("pod", "again", "FreeDiskSpaceFailed").await?;
    left(&scene, &["b", "c"], 2).await?;
    scene.mac.clear_fault(Fault::NoSpace)?;
    scene.told("pod", "again", "Completed").await
}
