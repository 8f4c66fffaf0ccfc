//! A shim is gone, or stands still, and what it has started lives on: a VM, a `tart` that hangs, or something that a `tart` left.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::json;
use tart_kubelet_tests::mac::Fault;
use tart_kubelet_tests::process::Process;
use tart_kubelet_tests::wait;

use super::{Mortal, boots, container, dies_at, end_of, forget, last_end_of};
use crate::scene::{DEADLINE, Scene, phase_of};

/// A scene with an image that is ready for VMs, so that the next clone is that of a Pod's VM.
async fn prepared(name: &str) -> Result<(Scene, tart_kubelet_tests::agent::RunningAgent)> {
    let (scene, agent) = Scene::with_agent(name).await?;
    scene.create(&scene.pod("first", &json!({"command": ["/usr/bin/true"]}), &json!({}))).await?;
    scene.phase("first", "Succeeded").await?;
    forget(&scene, "first").await?;
    scene.mac.set_fault(Fault::Calls, "")?;
    Ok((scene, agent))
}

/// Waits until a command of tart was called.
async fn called(scene: &Scene, command: &str) -> Result<()> {
    let calls = scene.mac.host().join("calls");
    wait::eventually(&format!("a call of `tart {command}`"), DEADLINE, async || {
        let calls = std::fs::read_to_string(&calls).unwrap_or_default();
        ensure!(calls.lines().any(|line| line == command), "{calls}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_clone_that_hangs_is_killed_and_the_container_starts_again() -> Result<()> {
    let (scene, agent) = prepared("hung-clone").await?;
    scene.create(&scene.pod("bystander", &json!({}), &json!({}))).await?;
    let bystander = Scene::vm_of(&scene.phase("bystander", "Running").await?)?;
    std::fs::remove_file(scene.mac.host().join("calls"))?;
    scene.mac.set_fault(Fault::Hang, "clone")?;
    let spec = json!({"restartPolicy": "Always"});
    scene.create(&scene.pod("hung", &json!({"command": ["/bin/sleep", "1000"]}), &spec)).await?;
    called(&scene, "clone").await?;
    agent.kill9()?;
    let uid = scene.pods.get("hung").await?.metadata.uid.context("no UID")?;
    kill_shim_of(&scene.agent.state_dir().join("pods").join(&uid).join("0"))?;

    let points = [
        "agent.stop-orphan.before",
        "agent.stop-orphan.after",
        "agent.kill-leftovers.before",
        "agent.kill-leftovers.after",
        "agent.record-loss.before",
        "write.outcome.json",
        "agent.record-loss.after",
    ];
    let _agent = dies_at(&scene, &points).await?;
    scene.mac.clear_fault(Fault::Hang)?;
    let pod = wait::until(&scene.pods, "hung", "started again", DEADLINE, |pod| {
        container(pod).is_ok_and(|status| status.restart_count == 1 && status.ready)
    })
    .await
    .with_context(|| scene.agent_log())?;
    assert_eq!(last_end_of(&pod)?.exit_code, 137);
    let mut running = scene.running_vms().await?;
    running.sort();
    let mut expected = vec![bystander.clone(), Scene::vm_of(&pod)?];
    expected.sort();
    assert_eq!(running, expected);
    let still = scene.pods.get("bystander").await?;
    assert_eq!((phase_of(&still), Scene::vm_of(&still)?), ("Running", bystander));
    assert_eq!(boots(&scene)?, 3, "the first one, the bystander, and the second try");
    scene.kubectl.run(["delete", "pod", "--all", "--grace-period=1"]).await?;
    scene.nothing_left().await
}

/// Kills the shim that has signed in a VM's directory.
fn kill_shim_of(attempt: &Path) -> Result<()> {
    let pid: i32 = std::fs::read_to_string(attempt.join("shim.pid"))?.trim().parse()?;
    Ok(nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), Signal::SIGKILL)?)
}

#[tokio::test]
async fn a_set_that_hangs_does_not_keep_a_deleted_pod() -> Result<()> {
    let (scene, _agent) = prepared("hung-set").await?;
    for (name, deleted) in [("fails", false), ("deleted", true)] {
        let calls = scene.mac.host().join("calls");
        std::fs::remove_file(&calls).or_else(|error| match error.kind() {
            std::io::ErrorKind::NotFound => Ok(()),
            _ => Err(error),
        })?;
        scene.mac.set_fault(Fault::Hang, "set")?;
        scene.create(&scene.pod(name, &json!({"command": ["/usr/bin/true"]}), &json!({}))).await?;
        called(&scene, "set").await?;
        scene.kill_shims()?;
        if !deleted {
            let pod = scene.phase(name, "Failed").await?;
            assert_eq!(end_of(&pod)?.reason.as_deref(), Some("ContainerStatusUnknown"));
            scene.no_vms().await?;
        }
        // The fault is still on: nothing but a kill ends that `tart`.
        forget(&scene, name).await?;
        scene.mac.clear_fault(Fault::Hang)?;
    }
    Ok(())
}

#[tokio::test]
async fn what_a_tart_has_left_running_keeps_no_pod_from_its_end() -> Result<()> {
    let (scene, _agent) = prepared("left-running").await?;
    scene.mac.set_fault(Fault::HoldPipe, "set")?;
    let script = json!({"command": ["/bin/sh", "-c", "exit 7"]});
    scene.create(&scene.pod("left", &script, &json!({}))).await?;
    let pod = scene.phase("left", "Failed").await?;
    assert_eq!(end_of(&pod)?.exit_code, 7);
    forget(&scene, "left").await
}

#[tokio::test]
async fn a_shim_that_stands_still_is_killed_even_if_nobody_knows_its_number() -> Result<()> {
    let (scene, agent) = Scene::with_agent("stuck-shim").await?;
    for name in ["known", "unknown"] {
        scene.create(&scene.pod(name, &json!({}), &json!({}))).await?;
    }
    for name in ["known", "unknown"] {
        scene.phase(name, "Running").await?;
    }
    agent.kill9()?;
    let uid = scene.pods.get("unknown").await?.metadata.uid.context("no UID")?;
    std::fs::write(scene.agent.state_dir().join("pods").join(uid).join("0/shim.pid"), "")?;
    scene.signal_shims(Signal::SIGSTOP)?;
    for name in ["known", "unknown"] {
        scene.kubectl.run(["delete", "pod", name, "--wait=false", "--grace-period=1"]).await?;
    }
    let mortal = Mortal::start(&scene, &["agent.kill-shim.before", "agent.kill-shim.after"])?;
    let _agent = mortal.outlive().await?;
    for name in ["known", "unknown"] {
        wait::until_gone(&scene.pods, name, DEADLINE).await?;
    }
    scene.nothing_left().await
}

#[tokio::test]
async fn a_call_that_has_outlived_its_agent_ends_in_time_all_the_same() -> Result<()> {
    let scene = Scene::new("overdue").await?;
    // As an agent that was killed leaves them: one that hangs, one that may take a while yet, and one that is in nobody's way.
    let call = |name: &str, deadline: &str, home: &Path| {
        let mut command = scene.mac.command("/bin/sleep");
        command.arg("1000").env("TART_KUBELET_DEADLINE", deadline).env("TART_KUBELET_TART_HOME", home);
        Process::start(name, &mut command, &scene.mac.host().join(name))
    };
    let home = scene.mac.tart_home();
    let elsewhere = call("elsewhere", "1000000000", Path::new("/elsewhere"))?;
    let (hangs, pulls) = (call("hangs", "1000000000", home)?, call("pulls", "10000000000", home)?);
    let agent = scene.agent.start()?;
    hangs.wait_for_exit(DEADLINE).await?;
    scene.node_ready(&agent).await?;
    pulls.ensure_running()?;
    elsewhere.ensure_running()
}
