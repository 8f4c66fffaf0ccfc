//! The Mac loses its power, and comes back.

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tart_kubelet_tests::mac::Fault;
use tart_kubelet_tests::wait;

use crate::crash::records::spoil;
use crate::crash::{Mortal, boots, container, end_of, forget, init_end_of, last_end_of};
use crate::scene::{DEADLINE, IMAGE, Scene, phase_of};

#[tokio::test]
async fn pods_after_a_reboot_are_what_their_policy_says() -> Result<()> {
    let (scene, agent) = Scene::with_agent("reboot").await?;
    scene.create(&scene.pod("done", &json!({"command": ["/usr/bin/true"]}), &json!({}))).await?;
    let done = scene.phase("done", "Succeeded").await?;
    let always = json!({"restartPolicy": "Always"});
    scene.create(&scene.pod("always", &json!({"command": ["/bin/sleep", "1000"]}), &always)).await?;
    scene.create(&scene.pod("never", &json!({}), &json!({}))).await?;
    let before = Scene::vm_of(&scene.phase("always", "Running").await?)?;
    scene.phase("never", "Running").await?;

    scene.mac.lose_power()?;
    agent.wait_for_exit(DEADLINE).await.context("the agent survived")?;
    ensure!(scene.running_vms().await?.is_empty(), "a VM survived");
    let _agent = scene.agent.start()?;

    let restarted = wait::until(&scene.pods, "always", "restarted", DEADLINE, |pod| {
        container(pod).is_ok_and(|status| status.restart_count == 1 && status.ready)
    })
    .await
    .with_context(|| scene.agent_log())?;
    let last =
        container(&restarted)?.last_state.and_then(|state| state.terminated).context("no last state")?;
    assert_eq!((last.exit_code, last.reason.as_deref()), (137, Some("ContainerStatusUnknown")));
    let after = Scene::vm_of(&restarted)?;
    assert_ne!(after, before);

    let never = scene.phase("never", "Failed").await?;
    let end = container(&never)?.state.and_then(|state| state.terminated).context("not terminated")?;
    assert_eq!(end.reason.as_deref(), Some("ContainerStatusUnknown"));
    assert_eq!(container(&never)?.restart_count, 0);
    let still = scene.pods.get("done").await?;
    assert_eq!(phase_of(&still), "Succeeded");
    assert_eq!(container(&still)?, container(&done)?, "a finished Pod is not run again");
    scene.only_vm(&after).await.context("the disks of the others are still there")?;

    scene.kubectl.run(["delete", "pod", "--all"]).await?;
    scene.nothing_left().await
}

#[tokio::test]
async fn while_an_image_is_pulled_and_a_vm_is_cloned() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("reboot-early").await?;
    let other = "registry.test/other/sequoia:15";
    scene.mac.add_image(other, &json!({}))?;
    let command = json!({"command": ["/usr/bin/true"]});
    let spec = json!({"restartPolicy": "OnFailure"});
    scene.create(&scene.pod("first", &command, &json!({}))).await?;
    scene.phase("first", "Succeeded").await?;
    scene.mac.set_fault(Fault::Pull, "stall at=layers only=registry.test/other")?;
    scene.mac.set_fault(Fault::Hang, "clone")?;
    scene.mac.set_fault(Fault::Calls, "")?;
    scene.create(&scene.pod("pulled", &json!({"command": ["/usr/bin/true"], "image": other}), &spec)).await?;
    scene.create(&scene.pod("cloned", &command, &spec)).await?;
    wait::eventually("a pull and a clone", DEADLINE, async || {
        let calls = std::fs::read_to_string(scene.mac.host().join("calls"))?;
        ensure!(["pull", "clone"].iter().all(|one| calls.lines().any(|line| line == *one)), "{calls}");
        Ok(())
    })
    .await?;
    scene.mac.lose_power()?;
    for fault in [Fault::Pull, Fault::Hang] {
        scene.mac.clear_fault(fault)?;
    }
    let _agent = scene.agent.start()?;
    let pulled = scene.phase("pulled", "Succeeded").await?;
    assert_eq!(container(&pulled)?.restart_count, 0, "no VM of it was ever begun");
    let cloned = scene.phase("cloned", "Succeeded").await?;
    assert_eq!((container(&cloned)?.restart_count, last_end_of(&cloned)?.exit_code), (1, 137));
    assert_eq!(boots(&scene)?, 3);
    scene.kubectl.run(["delete", "pod", "--all"]).await?;
    scene.nothing_left().await
}

#[tokio::test]
async fn while_a_pod_is_initialised_and_another_is_deleted() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("reboot-busy").await?;
    let mounts = json!([{"name": "kept", "mountPath": "/private/tmp/kept"}]);
    let script = "cd /private/tmp/kept; echo x >>tries; until [ -e go ]; do sleep 0.05; done";
    let spec = json!({
        "restartPolicy": "OnFailure",
        "volumes": [{"name": "kept", "emptyDir": {}}],
        "initContainers": [
            {"name": "init", "image": IMAGE, "command": ["/bin/sh", "-c", script], "volumeMounts": mounts},
        ],
    });
    let main = json!({"command": ["/bin/sh", "-c", "cat /private/tmp/kept/tries"], "volumeMounts": mounts});
    scene.create(&scene.pod("init", &main, &spec)).await?;
    let stubborn = json!({"command": ["/bin/sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"]});
    scene.create(&scene.pod("stops", &stubborn, &json!({"terminationGracePeriodSeconds": 3600}))).await?;
    scene.phase("stops", "Running").await?;
    scene.kubectl.run(["delete", "pod", "stops", "--wait=false"]).await?;
    scene.told("pod", "stops", "stopping VM").await?;
    let uid = scene.pods.get("init").await?.metadata.uid.context("no UID")?;
    let kept = scene.agent.state_dir().join("volumes").join(uid).join("kept");
    wait::eventually("an init container that runs", DEADLINE, async || {
        let tries = std::fs::read_to_string(kept.join("tries"))?;
        ensure!(tries == "x\n", "{tries:?}");
        Ok(())
    })
    .await?;
    scene.mac.lose_power()?;
    std::fs::write(kept.join("go"), "")?;
    let _agent = scene.agent.start()?;
    wait::until_gone(&scene.pods, "stops", DEADLINE).await?;
    let pod = scene.phase("init", "Succeeded").await?;
    assert_eq!(container(&pod)?.restart_count, 1);
    assert_eq!(scene.log(&pod, "main", 1)?, ["x", "x"], "once in each VM");
    scene.kubectl.run(["delete", "pod", "init"]).await?;
    scene.nothing_left().await
}

#[tokio::test]
async fn while_a_vm_is_planned_and_while_one_is_over_but_not_deleted() -> Result<()> {
    let scene = Scene::new("reboot-late").await?;
    let script = json!({"command": ["/bin/sh", "-c", "exit 7"]});
    for (index, (name, point)) in
        [("planned", "agent.plan.after"), ("launched", "agent.launch.before"), ("over", "agent.clean.before")]
            .into_iter()
            .enumerate()
    {
        scene.create(&scene.pod(name, &script, &json!({}))).await?;
        Mortal::start(&scene, &[point])?.die().await?;
        scene.mac.lose_power()?;
        let agent = scene.agent.start()?;
        let pod = scene.phase(name, "Failed").await.with_context(|| format!("after {point}"))?;
        assert_eq!(
            (name, end_of(&pod)?.exit_code, container(&pod)?.restart_count, boots(&scene)?),
            (name, 7, 0, index + 1)
        );
        forget(&scene, name).await?;
        agent.kill9()?;
    }
    Ok(())
}

#[tokio::test]
async fn at_each_step_of_a_shim() -> Result<()> {
    let (scene, agent) = Scene::with_agent("reboot-shim").await?;
    // From here on, the only clones are those of shims.
    scene.create(&scene.pod("first", &json!({"command": ["/usr/bin/true"]}), &json!({}))).await?;
    scene.phase("first", "Succeeded").await?;
    forget(&scene, "first").await?;
    agent.kill9()?;
    let steps = [
        // Nobody who knows how it ended is left.
        ("shim.cloned", 137),
        ("shim.configured", 137),
        ("shim.run", 137),
        ("shim.up", 137),
        ("shim.set-up", 137),
        ("write.command.json", 137),
        ("shim.running", 137),
        ("shim.exit", 137),
        ("write.result.json", 137),
        // It is written down.
        ("shim.exited", 7),
        ("shim.result", 7),
        ("shim.stopped", 7),
        ("write.outcome.json", 7),
        ("shim.ended", 7),
    ];
    for (index, (point, code)) in steps.into_iter().enumerate() {
        let name = format!("pod-{index}");
        let step = async {
            let before = boots(&scene)?;
            scene.mac.set_fault(Fault::Hang, "clone")?;
            let mortal = Mortal::start(&scene, &["agent.launch.after", point])?;
            scene
                .create(&scene.pod(&name, &json!({"command": ["/bin/sh", "-c", "exit 7"]}), &json!({})))
                .await?;
            // The shim waits until there is no agent that would notice.
            mortal.leave_dead(|| scene.mac.clear_fault(Fault::Hang)).await?;
            scene.mac.lose_power()?;
            let agent = scene.agent.start()?;
            let pod = scene.phase(&name, "Failed").await?;
            ensure!(end_of(&pod)?.exit_code == code, "{:?}", end_of(&pod)?);
            ensure!(container(&pod)?.restart_count == 0 && boots(&scene)? <= before + 1, "it ran again");
            forget(&scene, &name).await?;
            agent.kill9().map(drop)
        };
        step.await.with_context(|| format!("at {point}"))?;
    }
    Ok(())
}

#[tokio::test]
async fn that_spoils_what_was_not_yet_on_the_disk() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("reboot-spoils").await?;
    let init = json!([{"name": "init", "image": IMAGE, "command": ["/usr/bin/true"]}]);
    let spec = json!({"initContainers": init});
    scene.create(&scene.pod("never", &json!({"command": ["/bin/sleep", "1000"]}), &spec)).await?;
    scene.phase("never", "Running").await?;
    scene.mac.lose_power()?;
    ensure!(spoil(&scene.agent.state_dir().join("pods"))? >= 4, "there are hardly any records");
    let _agent = scene.agent.start()?;
    let pod = scene.phase("never", "Failed").await?;
    assert_eq!(end_of(&pod)?.reason.as_deref(), Some("ContainerStatusUnknown"));
    assert_eq!((container(&pod)?.restart_count, boots(&scene)?), (0, 1));
    assert_eq!(init_end_of(&pod)?.exit_code, 0, "what the API has once shown to be over stays so");
    scene.kubectl.run(["delete", "pod", "never"]).await?;
    scene.nothing_left().await
}
