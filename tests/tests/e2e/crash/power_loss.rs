//! The Mac loses its power, and boots again.

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tart_kubelet_tests::mac::Fault;
use tart_kubelet_tests::wait;

use super::CrashingAgent;
use super::records::spoil;
use crate::scene::{DEADLINE, PodView as _, SLEEP, Scene};

#[tokio::test]
async fn power_loss_restarts_pods_by_their_policy() -> Result<()> {
    let (scene, agent) = Scene::with_agent("reboot").await?;
    let done = scene.pod("done").command(["/usr/bin/true"]).create_until("Succeeded").await?;
    scene.pod("always").command(SLEEP).restart_policy("Always").create().await?;
    scene.pod("never").create().await?;
    let before = scene.phase("always", "Running").await?.vm()?;
    scene.phase("never", "Running").await?;

    scene.mac.lose_power()?;
    agent.wait_for_exit(DEADLINE).await.context("the agent survived")?;
    ensure!(scene.running_vms().await?.is_empty(), "a VM survived");
    let _agent = scene.agent.start()?;

    let restarted = scene.ready_after_restarts("always", 1).await?;
    let last = restarted.main().last_end()?;
    assert_eq!((last.exit_code, last.reason.as_deref()), (137, Some("ContainerStatusUnknown")));
    let after = restarted.vm()?;
    assert_ne!(after, before);

    let never = scene.phase("never", "Failed").await?;
    assert_eq!(never.main().reason(), Some("ContainerStatusUnknown"));
    assert_eq!(never.main().restart_count(), Some(0));
    let still = scene.pods.get("done").await?;
    assert_eq!(still.phase(), "Succeeded");
    assert_eq!(still.main().status()?, done.main().status()?, "a finished Pod is not run again");
    scene.only_vm(&after).await.context("the disks of the others are still there")?;

    scene.kubectl.run(["delete", "pod", "--all"]).await?;
    scene.nothing_left().await
}

#[tokio::test]
async fn power_loss_during_a_pull_and_a_clone() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("reboot-early").await?;
    let other = "registry.test/other/sequoia:15";
    scene.mac.add_image(other, &json!({}))?;
    scene.pod("first").command(["/usr/bin/true"]).create_until("Succeeded").await?;
    let pod = |name: &str| scene.pod(name).command(["/usr/bin/true"]).restart_policy("OnFailure");
    scene.mac.set_fault(Fault::Pull, "stall at=layers only=registry.test/other")?;
    scene.mac.set_fault(Fault::Hang, "clone")?;
    scene.mac.set_fault(Fault::Calls, "")?;
    pod("pulled").image(other).create().await?;
    pod("cloned").create().await?;
    scene.called("pull").await?;
    scene.called("clone").await?;
    scene.mac.lose_power()?;
    for fault in [Fault::Pull, Fault::Hang] {
        scene.mac.clear_fault(fault)?;
    }
    let _agent = scene.agent.start()?;
    let pulled = scene.phase("pulled", "Succeeded").await?;
    assert_eq!(pulled.main().restart_count(), Some(0), "no VM of it was ever begun");
    let cloned = scene.phase("cloned", "Succeeded").await?;
    assert_eq!((cloned.main().restart_count(), cloned.main().last_exit_code()), (Some(1), Some(137)));
    assert_eq!(scene.boots()?, 3);
    scene.kubectl.run(["delete", "pod", "--all"]).await?;
    scene.nothing_left().await
}

#[tokio::test]
async fn power_loss_during_an_init_container_and_a_deletion() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("reboot-busy").await?;
    let mounts = json!([{"name": "kept", "mountPath": "/private/tmp/kept"}]);
    let script = "cd /private/tmp/kept; echo x >>tries; until [ -e go ]; do sleep 0.05; done";
    scene
        .pod("init")
        .sh("cat /private/tmp/kept/tries")
        .empty_dir("kept", "/private/tmp/kept")
        .restart_policy("OnFailure")
        .init_container("init", json!({"command": ["/bin/sh", "-c", script], "volumeMounts": mounts}))
        .create()
        .await?;
    scene
        .pod("stops")
        .sh("trap '' TERM; while :; do sleep 0.1; done")
        .grace(3600)
        .create_until("Running")
        .await?;
    scene.begin_delete("stops").await?;
    scene.described("stops", "stopping VM").await?;
    let uid = scene.uid("init").await?;
    let kept = scene.volumes_dir(&uid).join("kept");
    wait::eventually("an init container that runs", DEADLINE, async || {
        let tries = std::fs::read_to_string(kept.join("tries"))?;
        ensure!(tries == "x\n", "{tries:?}");
        Ok(())
    })
    .await?;
    scene.mac.lose_power()?;
    std::fs::write(kept.join("go"), "")?;
    let _agent = scene.agent.start()?;
    scene.until_gone("stops").await?;
    let pod = scene.phase("init", "Succeeded").await?;
    assert_eq!(pod.main().restart_count(), Some(1));
    assert_eq!(scene.log(&pod, "main", 1)?, ["x", "x"], "once in each VM");
    scene.delete("init").await?;
    scene.nothing_left().await
}

#[tokio::test]
async fn power_loss_with_a_planned_and_an_ended_vm() -> Result<()> {
    let scene = Scene::new("reboot-late").await?;
    for (index, (name, point)) in [
        ("planned", "agent.plan.after"),
        ("launched", "agent.launch.before"),
        ("over", "agent.delete-vm.before"),
    ]
    .into_iter()
    .enumerate()
    {
        scene.pod(name).sh("exit 7").create().await?;
        CrashingAgent::start(&scene, &[point])?.crash().await?;
        scene.mac.lose_power()?;
        let agent = scene.agent.start()?;
        let pod = scene.phase(name, "Failed").await.with_context(|| format!("after {point}"))?;
        assert_eq!(
            (name, pod.main().exit_code(), pod.main().restart_count(), scene.boots()?),
            (name, Some(7), Some(0), index + 1)
        );
        scene.delete_all_of(name).await?;
        agent.kill9()?;
    }
    Ok(())
}

#[tokio::test]
async fn power_loss_at_each_step_of_the_shim() -> Result<()> {
    let (scene, agent) = Scene::with_agent("reboot-shim").await?;
    // From here on, the only clones are those of shims.
    scene.pod("first").command(["/usr/bin/true"]).create_until("Succeeded").await?;
    scene.delete_all_of("first").await?;
    agent.kill9()?;
    let steps = [
        // Shim and guest are gone, and with them what the exit code was.
        ("shim.cloned", 137),
        ("shim.configured", 137),
        ("shim.run", 137),
        ("shim.up", 137),
        ("shim.set-up", 137),
        ("write.last-command.json", 137),
        ("shim.running", 137),
        ("shim.exit", 137),
        ("write.result.json", 137),
        // The exit code is on disk.
        ("shim.exited", 7),
        ("shim.result", 7),
        ("shim.stopped", 7),
        ("write.outcome.json", 7),
        ("shim.ended", 7),
    ];
    for (index, (point, code)) in steps.into_iter().enumerate() {
        let name = format!("pod-{index}");
        let step = async {
            let before = scene.boots()?;
            scene.mac.set_fault(Fault::Hang, "clone")?;
            let crashing = CrashingAgent::start(&scene, &["agent.launch.after", point])?;
            scene.pod(&name).sh("exit 7").create().await?;
            // The shim goes on when no agent is left that would notice its crash.
            crashing.stay_dead(|| scene.mac.clear_fault(Fault::Hang)).await?;
            scene.mac.lose_power()?;
            let agent = scene.agent.start()?;
            let pod = scene.phase(&name, "Failed").await?;
            ensure!(pod.main().exit_code() == Some(code), "{:?}", pod.main());
            ensure!(pod.main().restart_count() == Some(0) && scene.boots()? <= before + 1, "it ran again");
            scene.delete_all_of(&name).await?;
            agent.kill9().map(drop)
        };
        step.await.with_context(|| format!("at {point}"))?;
    }
    Ok(())
}

#[tokio::test]
async fn power_loss_that_spoils_records() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("reboot-spoils").await?;
    scene.pod("never").command(SLEEP).init_sh("init", "true").create_until("Running").await?;
    scene.mac.lose_power()?;
    ensure!(spoil(&scene.agent.state_dir().join("pods"))? >= 4, "there are hardly any records");
    let _agent = scene.agent.start()?;
    let pod = scene.phase("never", "Failed").await?;
    assert_eq!(pod.main().reason(), Some("ContainerStatusUnknown"));
    assert_eq!((pod.main().restart_count(), scene.boots()?), (Some(0), 1));
    assert_eq!(pod.init().exit_code(), Some(0), "an end that the API has shown stays");
    scene.delete("never").await?;
    scene.nothing_left().await
}
