//! Guests that attack their shares: the agent reads and writes nothing but what is that Pod's.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tart_kubelet_tests::agent::RunningAgent;
use tart_kubelet_tests::mac::Fault;
use tart_kubelet_tests::wait;

use crate::scene::{DEADLINE, Scene, state_of};

/// A directory that is no business of any guest, with one file in it.
fn outside(scene: &Scene) -> Result<PathBuf> {
    let outside = scene.mac.sandbox().directory("outside")?;
    std::fs::write(outside.join("kept"), "kept")?;
    Ok(outside)
}

/// Whether it is as it was.
fn is_untouched(outside: &Path) -> Result<()> {
    let left: Vec<_> = std::fs::read_dir(outside)?.map(|entry| entry.map(|e| e.file_name())).collect();
    ensure!(left.len() == 1, "{left:?}");
    ensure!(std::fs::read_to_string(outside.join("kept"))? == "kept");
    Ok(())
}

async fn delete(scene: &Scene, pod: &str) -> Result<()> {
    scene.kubectl.run(["delete", "pod", pod, "--wait=false", "--grace-period=1"]).await?;
    wait::until_gone(&scene.pods, pod, DEADLINE).await
}

/// A Pod with a share at `/private/tmp/cache`, and a part of it at `/private/tmp/part`.
fn pod(scene: &Scene, name: &str, script: &str, part: &str, source: &Value) -> Value {
    let mut volume = source.clone();
    volume["name"] = json!("cache");
    let mounts = json!([
        {"name": "cache", "mountPath": "/private/tmp/cache"},
        {"name": "cache", "mountPath": "/private/tmp/part", "subPath": part},
    ]);
    let container = json!({"command": ["/bin/sh", "-c", script], "volumeMounts": mounts});
    scene.pod(name, &container, &json!({"restartPolicy": "OnFailure", "volumes": [volume]}))
}

#[tokio::test]
async fn whatever_a_guest_leaves_behind_is_removed_and_nothing_else() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("debris").await?;
    let outside = outside(&scene)?;
    let target = outside.display();
    // Links out and up, pipes, devices, names for the same file, what nobody may enter, and a tree without end.
    let script = format!(
        "cd /private/tmp/cache; ln -s {target} link; ln -s {target}/kept file; ln -s ../../../../.. up; mkfifo pipe; \
         mknod null c 1 3; mknod disk b 8 0; echo x >own; ln own again; mkdir locked; touch locked/in; chmod 0 locked; \
         i=0; while [ $i -lt 100 ]; do mkdir deeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeep; \
         cd deeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeep; i=$((i+1)); done; ls -a /private/tmp/cache | wc -l"
    );
    let source = json!({"emptyDir": {"sizeLimit": "100Mi"}});
    scene.create(&pod(&scene, "debris", &script, "part", &source)).await?;
    let ended = scene.phase("debris", "Succeeded").await?;
    let said = scene.log(&ended, "main", 0)?;
    let made = said.last().map(String::as_str).unwrap_or_default();
    assert_eq!(made.trim(), "13", "not all of it could be made: {said:?}");
    delete(&scene, "debris").await?;
    scene.nothing_left().await?;
    is_untouched(&outside)
}

#[tokio::test]
async fn a_part_that_has_become_something_else_is_not_followed() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("bent").await?;
    let outside = outside(&scene)?;
    let target = outside.display();
    let tricks = [
        ("link", format!("ln -s {target} part")),
        ("up", "ln -s ../../../../../.. part".to_owned()),
        ("circle", "ln -s part part".to_owned()),
        ("pipe", "mkfifo part".to_owned()),
        ("device", "mknod part b 8 0".to_owned()),
    ];
    for (name, trick) in tricks {
        // The next VM finds its part bent.
        let script = format!("cd /private/tmp/cache && rm -r part && {trick}; exit 1");
        scene.create(&pod(&scene, name, &script, "part/inner", &json!({"emptyDir": {}}))).await?;
        let words = "Error: failed to prepare subPath for volumeMount \"cache\" of container \"main\"";
        scene.told_as(name, "Failed", words).await?;
        delete(&scene, name).await?;
    }
    scene.nothing_left().await?;
    is_untouched(&outside)
}

#[tokio::test]
async fn a_directory_that_changes_while_the_agent_writes_leads_nowhere() -> Result<()> {
    let mut scene = Scene::new("race").await?;
    let outside = outside(&scene)?;
    let shared = scene.mac.sandbox().directory("shared")?;
    std::fs::create_dir(shared.join("part"))?;
    scene.agent = scene.agent.flag("--allowed-host-path", &shared.display().to_string());
    let agent = scene.agent.start()?;
    scene.node_ready(&agent).await?;
    let source = json!({"hostPath": {"path": shared, "type": "Directory"}});
    // Two Pods have the same directory of the host: one turns a part of it into a link and back, as fast as it can, while the
    // agent makes directories in there for the other one.
    let script = format!(
        "cd /private/tmp/cache; while :; do mv part aside; ln -s {} part; rm part; mv aside part; done 2>/dev/null",
        outside.display()
    );
    scene.create(&pod(&scene, "swapper", &script, "own", &source)).await?;
    scene.phase("swapper", "Running").await?;
    for round in 0..5 {
        let name = format!("victim-{round}");
        scene.create(&pod(&scene, &name, "true", &format!("part/{round}/inner"), &source)).await?;
        wait::until(&scene.pods, &name, "through, or told why not", DEADLINE, |pod| {
            let state = state_of(pod).unwrap_or_default();
            let refused = state.waiting.and_then(|waiting| waiting.reason);
            state.terminated.is_some() || refused.as_deref() == Some("CreateContainerConfigError")
        })
        .await?;
        delete(&scene, &name).await?;
    }
    delete(&scene, "swapper").await?;
    scene.nothing_left().await?;
    is_untouched(&outside)
}

/// A scene whose Pods may have the directory `shared` of the host, with the directory `inner` in it.
async fn sharing(name: &str) -> Result<(Scene, RunningAgent, PathBuf)> {
    let mut scene = Scene::new(name).await?;
    let shared = scene.mac.sandbox().directory("shared")?;
    std::fs::create_dir(shared.join("inner"))?;
    scene.agent = scene.agent.flag("--allowed-host-path", &shared.display().to_string());
    let agent = scene.agent.start()?;
    scene.node_ready(&agent).await?;
    Ok((scene, agent, shared))
}

/// A Pod that writes to a directory of the host.
fn writer(scene: &Scene, name: &str, path: &Path, script: &str) -> Value {
    let mounts = json!([{"name": "host", "mountPath": "/private/tmp/host"}]);
    let container = json!({"command": ["/bin/sh", "-c", script], "volumeMounts": mounts});
    scene.pod(name, &container, &json!({"volumes": [{"name": "host", "hostPath": {"path": path}}]}))
}

/// Puts a link that leads elsewhere in the place of `shared/inner`, as a guest with all of `shared` could.
fn replace(shared: &Path, outside: &Path) -> Result<()> {
    std::fs::rename(shared.join("inner"), shared.join("aside"))?;
    Ok(symlink(outside, shared.join("inner"))?)
}

/// The directory of a Pod's first VM, once a shim is at work on it.
async fn begun(scene: &Scene, pod: &str) -> Result<PathBuf> {
    let uid =
        wait::until(&scene.pods, pod, "a Pod", DEADLINE, |_| true).await?.metadata.uid.context("no UID")?;
    let attempt = scene.agent.state_dir().join("pods").join(uid).join("0");
    wait::eventually("a shim", DEADLINE, async || {
        ensure!(attempt.join("begun").exists());
        Ok(())
    })
    .await?;
    Ok(attempt)
}

/// Waits until a Pod has failed because of what was put in the place of its directory, and nothing was written there.
async fn is_not_fooled(scene: &Scene, pod: &str, outside: &Path) -> Result<()> {
    let end = state_of(&scene.phase(pod, "Failed").await?).and_then(|state| state.terminated);
    assert_eq!(end.and_then(|end| end.reason).as_deref(), Some("CreateContainerError"));
    scene.told("pod", pod, "has been replaced since the VM was planned").await?;
    scene.no_vms().await?;
    is_untouched(outside)
}

const WRITE: &str = "echo x >/private/tmp/host/written";

#[tokio::test]
async fn a_directory_that_another_guest_could_replace_is_not_shared() -> Result<()> {
    let (scene, _agent, shared) = sharing("nested").await?;
    let outside = outside(&scene)?;
    // From a moment on it does what it can to have the other one write elsewhere.
    let script = format!(
        "cd /private/tmp/host; until [ -e go ]; do sleep 0.05; done; \
         while :; do mv inner aside; ln -s {} inner; rm inner; mv aside inner; touch swapped; done 2>/dev/null",
        outside.display()
    );
    scene.create(&writer(&scene, "outer", &shared, &script)).await?;
    scene.phase("outer", "Running").await?;
    let inner = shared.join("inner");
    scene.create(&writer(&scene, "inner", &inner, WRITE)).await?;
    let why = format!(
        "MountVolume.SetUp failed for volume \"host\" : hostPath {} is inside {}, which Pod {}/outer can write to",
        inner.display(),
        shared.display(),
        scene.namespace()
    );
    scene.told_as("inner", "FailedMount", &why).await?;
    std::fs::write(shared.join("go"), "")?;
    wait::eventually("a guest that swaps", DEADLINE, async || {
        ensure!(shared.join("swapped").exists());
        Ok(())
    })
    .await?;
    assert_eq!(scene.vms().await?.len(), 1);
    delete(&scene, "outer").await?;
    is_untouched(&outside)?;
    // However it has left things: what is meant is there now, or can be put there.
    if inner.is_symlink() {
        std::fs::remove_file(&inner)?;
    }
    if !inner.exists() {
        std::fs::rename(shared.join("aside"), &inner)?;
    }
    scene.phase("inner", "Succeeded").await?;
    ensure!(inner.join("written").exists());
    is_untouched(&outside)
}

#[tokio::test]
async fn a_guest_that_could_replace_a_directory_waits_until_its_vm_has_it() -> Result<()> {
    let (scene, _agent, shared) = sharing("around").await?;
    let inner = shared.join("inner");
    scene.mac.set_fault(Fault::Hang, "set")?;
    let script = "until [ -e /private/tmp/host/go ]; do sleep 0.05; done";
    scene.create(&writer(&scene, "inner", &inner, script)).await?;
    begun(&scene, "inner").await?;
    scene.create(&writer(&scene, "outer", &shared, WRITE)).await?;
    let why = format!(
        "MountVolume.SetUp failed for volume \"host\" : hostPath {} has {} in it, which Pod {}/inner is about to get",
        shared.display(),
        inner.display(),
        scene.namespace()
    );
    scene.told_as("outer", "FailedMount", &why).await?;
    ensure!(!shared.join("written").exists());
    // Neither fails for the other.
    scene.mac.clear_fault(Fault::Hang)?;
    scene.phase("inner", "Running").await?;
    scene.phase("outer", "Succeeded").await?;
    ensure!(shared.join("written").exists());
    std::fs::write(inner.join("go"), "")?;
    scene.phase("inner", "Succeeded").await.map(drop)
}

#[tokio::test]
async fn a_directory_that_is_replaced_before_its_vm_runs_is_not_shared() -> Result<()> {
    let (scene, _agent, shared) = sharing("replaced").await?;
    let outside = outside(&scene)?;
    scene.mac.set_fault(Fault::Hang, "set")?;
    scene.create(&writer(&scene, "early", &shared.join("inner"), WRITE)).await?;
    begun(&scene, "early").await?;
    replace(&shared, &outside)?;
    scene.mac.clear_fault(Fault::Hang)?;
    is_not_fooled(&scene, "early", &outside).await
}

#[tokio::test]
async fn a_directory_that_is_replaced_while_a_vm_waits_for_room_is_not_shared() -> Result<()> {
    let (scene, agent, shared) = sharing("replaced-room").await?;
    let outside = outside(&scene)?;
    scene.mac.set_fault(Fault::Hang, "set")?;
    scene.mac.set_fault(Fault::NoSpace, "run")?;
    scene.create(&writer(&scene, "roomless", &shared.join("inner"), WRITE)).await?;
    let attempt = begun(&scene, "roomless").await?;
    // Nobody makes room, so that it waits.
    agent.kill9()?;
    scene.mac.clear_fault(Fault::Hang)?;
    wait::eventually("a shim that wants room", DEADLINE, async || {
        ensure!(attempt.join("wants-room").exists());
        Ok(())
    })
    .await?;
    replace(&shared, &outside)?;
    scene.mac.clear_fault(Fault::NoSpace)?;
    let _agent = agent.restart()?;
    is_not_fooled(&scene, "roomless", &outside).await
}

#[tokio::test]
async fn a_vm_whose_directory_is_replaced_while_it_boots_does_not_go_on() -> Result<()> {
    let (scene, _agent, shared) = sharing("replaced-boot").await?;
    let outside = outside(&scene)?;
    // It runs, but nobody learns its address.
    scene.mac.set_fault(Fault::Hang, "ip")?;
    scene.mac.set_fault(Fault::AgentStall, "")?;
    scene.create(&writer(&scene, "late", &shared.join("inner"), WRITE)).await?;
    wait::eventually("a VM that runs", DEADLINE, async || {
        ensure!(!scene.running_vms().await?.is_empty());
        Ok(())
    })
    .await?;
    replace(&shared, &outside)?;
    scene.mac.clear_fault(Fault::Hang)?;
    scene.mac.clear_fault(Fault::AgentStall)?;
    is_not_fooled(&scene, "late", &outside).await
}
