//! Guests that attack their shares: the agent reads and writes nothing outside of the Pod's directories.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use tart_kubelet_tests::agent::RunningAgent;
use tart_kubelet_tests::mac::Fault;

use crate::scene::{PodBuilder, PodView as _, Scene, until_exists};

/// A directory that no Pod may touch, with one file in it.
fn outside(scene: &Scene) -> Result<PathBuf> {
    let outside = scene.mac.sandbox().directory("outside")?;
    std::fs::write(outside.join("kept"), "kept")?;
    Ok(outside)
}

/// Checks that the directory is unchanged.
fn is_untouched(outside: &Path) -> Result<()> {
    let left: Vec<_> = std::fs::read_dir(outside)?.map(|entry| entry.map(|e| e.file_name())).collect();
    ensure!(left.len() == 1, "{left:?}");
    ensure!(std::fs::read_to_string(outside.join("kept"))? == "kept");
    Ok(())
}

async fn delete(scene: &Scene, pod: &str) -> Result<()> {
    scene.begin_delete_within(pod, 1).await?;
    scene.until_gone(pod).await
}

/// A Pod with a share at `/private/tmp/cache`, and a part of it at `/private/tmp/part`.
fn pod<'a>(scene: &'a Scene, name: &str, script: &str, part: &str, source: &Value) -> PodBuilder<'a> {
    scene
        .pod(name)
        .sh(script)
        // A hostile guest does all that root can.
        .security_context(json!({"runAsUser": 0}))
        .mounted("cache", source.clone())
        .mount_with("cache", "/private/tmp/part", json!({"subPath": part}))
        .restart_policy("OnFailure")
}

#[tokio::test]
async fn agent_deletes_all_that_a_guest_leaves_and_nothing_else() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("debris").await?;
    let outside = outside(&scene)?;
    let target = outside.display();
    // Links out and up, pipes, devices, hard links, a directory without permissions, and a deep tree.
    let script = format!(
        "cd /private/tmp/cache; ln -s {target} link; ln -s {target}/kept file; ln -s ../../../../.. up; mkfifo pipe; \
         mknod null c 1 3; mknod disk b 8 0; echo x >own; ln own again; mkdir locked; touch locked/in; chmod 0 locked; \
         i=0; while [ $i -lt 100 ]; do mkdir deeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeep; \
         cd deeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeep; i=$((i+1)); done; ls -a /private/tmp/cache | wc -l"
    );
    let source = json!({"emptyDir": {"sizeLimit": "100Mi"}});
    let said = pod(&scene, "debris", &script, "part", &source).output().await?;
    let made = said.last().map(String::as_str).unwrap_or_default();
    assert_eq!(made.trim(), "13", "not all of it could be made: {said:?}");
    delete(&scene, "debris").await?;
    scene.nothing_left().await?;
    is_untouched(&outside)
}

#[tokio::test]
async fn agent_does_not_follow_a_replaced_sub_path() -> Result<()> {
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
        // The next VM finds something else in place of its part.
        let script = format!("cd /private/tmp/cache && rm -r part && {trick}; exit 1");
        pod(&scene, name, &script, "part/inner", &json!({"emptyDir": {}})).create().await?;
        let words = "Error: failed to prepare subPath for volumeMount \"cache\" of container \"main\"";
        scene.event(name, "Failed", words).await?;
        delete(&scene, name).await?;
    }
    scene.nothing_left().await?;
    is_untouched(&outside)
}

#[tokio::test]
async fn agent_writes_nothing_through_a_directory_that_becomes_a_link() -> Result<()> {
    let mut scene = Scene::new("race").await?;
    let outside = outside(&scene)?;
    let shared = scene.mac.sandbox().directory("shared")?;
    std::fs::create_dir(shared.join("part"))?;
    scene.agent = scene.agent.flag("--allowed-host-path", &shared.display().to_string());
    let _agent = scene.start(&scene.agent).await?;
    let source = json!({"hostPath": {"path": shared, "type": "Directory"}});
    // Two Pods have the same directory of the host. One turns a part of it into a link and back as fast as it can, while the agent makes
    // directories in there for the other.
    let script = format!(
        "cd /private/tmp/cache; while :; do mv part aside; ln -s {} part; rm part; mv aside part; done 2>/dev/null",
        outside.display()
    );
    pod(&scene, "swapper", &script, "own", &source).create_until("Running").await?;
    for round in 0..5 {
        let name = format!("victim-{round}");
        pod(&scene, &name, "true", &format!("part/{round}/inner"), &source).create().await?;
        scene
            .until(&name, "through, or told why not", |pod| {
                pod.main().has_ended() || pod.main().waiting_reason() == Some("CreateContainerConfigError")
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
    let agent = scene.start(&scene.agent).await?;
    Ok((scene, agent, shared))
}

/// A Pod that writes to a directory of the host.
fn writer<'a>(scene: &'a Scene, name: &str, path: &Path, script: &str) -> PodBuilder<'a> {
    let root = json!({"runAsUser": 0});
    scene.pod(name).sh(script).security_context(root).mounted("host", json!({"hostPath": {"path": path}}))
}

/// Puts a link that leads elsewhere in the place of `shared/inner`, as a guest with all of `shared` could.
fn replace(shared: &Path, outside: &Path) -> Result<()> {
    std::fs::rename(shared.join("inner"), shared.join("aside"))?;
    Ok(symlink(outside, shared.join("inner"))?)
}

/// Waits until a shim works on a Pod's first VM, and returns the records of that.
async fn begun(scene: &Scene, pod: &str) -> Result<PathBuf> {
    let run = scene.first_run_dir(&scene.uid(pod).await?);
    until_exists("a shim", &run.join("begun")).await?;
    Ok(run)
}

/// Waits until a Pod has failed because its directory was replaced, and checks that the guest has written nothing.
async fn is_not_fooled(scene: &Scene, pod: &str, outside: &Path) -> Result<()> {
    assert_eq!(scene.phase(pod, "Failed").await?.main().reason(), Some("CreateContainerError"));
    scene.described(pod, "has been replaced since the VM was planned").await?;
    scene.no_vms().await?;
    is_untouched(outside)
}

const WRITE: &str = "echo x >/private/tmp/host/written";

#[tokio::test]
async fn host_path_inside_a_writable_host_path_is_not_shared() -> Result<()> {
    let (scene, _agent, shared) = sharing("nested").await?;
    let outside = outside(&scene)?;
    // When the test says so, the outer Pod tries to make the inner one write elsewhere.
    let script = format!(
        "cd /private/tmp/host; until [ -e go ]; do sleep 0.05; done; \
         while :; do mv inner aside; ln -s {} inner; rm inner; mv aside inner; touch swapped; done 2>/dev/null",
        outside.display()
    );
    writer(&scene, "outer", &shared, &script).create_until("Running").await?;
    let inner = shared.join("inner");
    writer(&scene, "inner", &inner, WRITE).create().await?;
    let why = format!(
        "MountVolume.SetUp failed for volume \"host\" : hostPath {} is inside {}, which Pod {}/outer can write to",
        inner.display(),
        shared.display(),
        scene.namespace()
    );
    scene.event("inner", "FailedMount", &why).await?;
    std::fs::write(shared.join("go"), "")?;
    until_exists("a guest that swaps", &shared.join("swapped")).await?;
    assert_eq!(scene.vms().await?.len(), 1);
    delete(&scene, "outer").await?;
    is_untouched(&outside)?;
    // Put the directory back, however the guest has left it.
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
async fn writable_host_path_waits_for_the_vm_of_an_inner_host_path() -> Result<()> {
    let (scene, _agent, shared) = sharing("around").await?;
    let inner = shared.join("inner");
    scene.mac.set_fault(Fault::Hang, "set")?;
    let script = "until [ -e /private/tmp/host/go ]; do sleep 0.05; done";
    writer(&scene, "inner", &inner, script).create().await?;
    begun(&scene, "inner").await?;
    writer(&scene, "outer", &shared, WRITE).create().await?;
    let why = format!(
        "MountVolume.SetUp failed for volume \"host\" : hostPath {} has {} in it, which Pod {}/inner is about to get",
        shared.display(),
        inner.display(),
        scene.namespace()
    );
    scene.event("outer", "FailedMount", &why).await?;
    ensure!(!shared.join("written").exists());
    // Neither Pod fails because of the other.
    scene.mac.clear_fault(Fault::Hang)?;
    scene.phase("inner", "Running").await?;
    scene.phase("outer", "Succeeded").await?;
    ensure!(shared.join("written").exists());
    std::fs::write(inner.join("go"), "")?;
    scene.phase("inner", "Succeeded").await.map(drop)
}

#[tokio::test]
async fn host_path_replaced_before_the_vm_runs_is_not_shared() -> Result<()> {
    let (scene, _agent, shared) = sharing("replaced").await?;
    let outside = outside(&scene)?;
    scene.mac.set_fault(Fault::Hang, "set")?;
    writer(&scene, "early", &shared.join("inner"), WRITE).create().await?;
    begun(&scene, "early").await?;
    replace(&shared, &outside)?;
    scene.mac.clear_fault(Fault::Hang)?;
    is_not_fooled(&scene, "early", &outside).await
}

#[tokio::test]
async fn host_path_replaced_while_the_shim_waits_for_space_is_not_shared() -> Result<()> {
    let (scene, agent, shared) = sharing("replaced-room").await?;
    let outside = outside(&scene)?;
    scene.mac.set_fault(Fault::Hang, "set")?;
    scene.mac.set_fault(Fault::NoSpace, "run")?;
    writer(&scene, "roomless", &shared.join("inner"), WRITE).create().await?;
    let run = begun(&scene, "roomless").await?;
    // No agent makes space, so the shim waits.
    agent.kill9()?;
    scene.mac.clear_fault(Fault::Hang)?;
    until_exists("a shim that wants room", &run.join("disk-space-request")).await?;
    replace(&shared, &outside)?;
    scene.mac.clear_fault(Fault::NoSpace)?;
    let _agent = agent.restart()?;
    is_not_fooled(&scene, "roomless", &outside).await
}

#[tokio::test]
async fn vm_whose_host_path_is_replaced_while_it_boots_is_stopped() -> Result<()> {
    let (scene, _agent, shared) = sharing("replaced-boot").await?;
    let outside = outside(&scene)?;
    // The VM runs, but the shim cannot learn its address.
    scene.mac.set_fault(Fault::Hang, "ip")?;
    scene.mac.set_fault(Fault::AgentStall, "")?;
    writer(&scene, "late", &shared.join("inner"), WRITE).create().await?;
    scene.run_vms(1).await?;
    replace(&shared, &outside)?;
    scene.mac.clear_fault(Fault::Hang)?;
    scene.mac.clear_fault(Fault::AgentStall)?;
    is_not_fooled(&scene, "late", &outside).await
}
