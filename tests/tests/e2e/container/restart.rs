//! Containers that start again: after their end, after one failure too many, and with another image.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod};
use serde_json::json;
use tart_kubelet_tests::wait;

use crate::scene::{DEADLINE, IMAGE, Scene, UP};

/// Another image.
const NEWER: &str = "registry.test/macos/sequoia:16";

fn container(pod: &Pod) -> Option<&ContainerStatus> {
    pod.status.as_ref()?.container_statuses.as_ref()?.first()
}

/// How the container ended the time before.
fn last_end(pod: &Pod) -> Option<&ContainerStateTerminated> {
    container(pod)?.last_state.as_ref()?.terminated.as_ref()
}

/// What a container waits for, in the status's words.
fn waits_for(pod: &Pod) -> Option<(String, String)> {
    let waiting = container(pod)?.state.as_ref()?.waiting.as_ref()?;
    Some((waiting.reason.clone()?, waiting.message.clone().unwrap_or_default()))
}

/// Waits until the VM after so many restarts runs.
async fn runs_in(scene: &Scene, pod: &str, restarts: i32) -> Result<Pod> {
    let running = wait::until(&scene.pods, pod, "running again", DEADLINE, |pod| {
        container(pod).is_some_and(|one| {
            one.restart_count == restarts && one.state.as_ref().is_some_and(|state| state.running.is_some())
        })
    });
    running.await.with_context(|| scene.agent_log())
}

/// Has a Pod's container have another image, as people do.
async fn set_image(scene: &Scene, pod: &str, image: &str) -> Result<()> {
    let change = format!("main={image}");
    scene.kubectl.run(["set", "image", &format!("pod/{pod}"), &change]).await.map(drop)
}

#[tokio::test]
async fn a_container_is_restarted_when_its_policy_says_so() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("again").await?;
    scene.create(&scene.pod("again", &json!({}), &json!({"restartPolicy": "Always"}))).await?;
    let first = Scene::vm_of(&scene.phase("again", "Running").await?)?;
    scene.shut_down(&first).await;
    let second = Scene::vm_of(&runs_in(&scene, "again", 1).await?)?;
    ensure!(second.ends_with("-1"), "{second}");
    assert_eq!(scene.vms().await?, [second], "the first VM is gone");
    Ok(())
}

#[tokio::test]
async fn a_container_that_keeps_failing_waits_longer_each_time() -> Result<()> {
    let (scene, agent) = Scene::with_agent("loop").await?;
    let failing = json!({"command": ["/bin/sh", "-c", "echo no luck; exit 7"]});
    scene.create(&scene.pod("loop", &failing, &json!({"restartPolicy": "Always"}))).await?;
    let backs_off = async |restarts: i32, delay: &str| {
        let words = format!("back-off {delay} restarting failed container=main pod=loop_");
        let found = wait::until(&scene.pods, "loop", &words, DEADLINE, |pod| {
            let waits = waits_for(pod)
                .is_some_and(|(reason, message)| reason == "CrashLoopBackOff" && message.starts_with(&words));
            waits && container(pod).is_some_and(|one| one.restart_count == restarts)
        });
        found.await.with_context(|| scene.agent_log())
    };
    // The first restart waits for nobody, as elsewhere.
    let pod = backs_off(1, "10s").await?;
    let shown = scene.kubectl.run(["get", "pod", "loop", "--no-headers"]).await?;
    ensure!(shown.contains("CrashLoopBackOff") && shown.contains("0/1"), "{shown}");
    assert_eq!(crate::scene::phase_of(&pod), "Running", "it is to run again");
    let before = last_end(&pod).context("no last state")?.clone();
    let vm = before.container_id.as_deref().unwrap_or_default();
    ensure!(before.exit_code == 7 && vm.ends_with("-1"), "{before:?}");
    scene.no_vms().await?;
    scene.told("pod", "loop", "Back-off restarting failed container main in pod loop_").await?;

    // An agent that comes back remembers how often it was.
    let _agent = agent.restart()?;
    let pod = backs_off(2, "20s").await?;
    let end = last_end(&pod).context("no last state")?.clone();
    let (started, finished) =
        (end.started_at.context("no start")?.0, before.finished_at.context("no end")?.0);
    ensure!(started.duration_since(finished).as_secs() >= 10, "{finished} {started}");
    assert_eq!(scene.log(&pod, "main", 2)?, ["no luck"]);
    let shown = scene.kubectl.run(["get", "pod", "loop", "--no-headers"]).await?;
    ensure!(shown.split_whitespace().nth(3) == Some("2"), "{shown}");
    scene.kubectl.run(["delete", "pod", "loop"]).await?;
    scene.nothing_left().await
}

#[tokio::test]
async fn a_container_that_fails_its_probe_and_then_ends_well_starts_again() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("unwell").await?;
    // It does not fail before it can end well.
    let script = "trap 'exit 0' TERM; touch /private/tmp/up; while :; do sleep 0.1; done";
    let check = ["/bin/sh", "-c", "[ ! -e /private/tmp/up ]"];
    let probe = json!({
        "exec": {"command": check}, "periodSeconds": 1, "failureThreshold": 1, "timeoutSeconds": 20,
    });
    let probed = json!({"command": ["/bin/sh", "-c", script], "livenessProbe": probe});
    scene.create(&scene.pod("unwell", &probed, &json!({"restartPolicy": "OnFailure"}))).await?;
    // It may be stopped again before anybody has seen it run.
    let again = wait::until(&scene.pods, "unwell", "started again", DEADLINE, |pod| {
        container(pod).is_some_and(|one| one.restart_count >= 1) && last_end(pod).is_some()
    });
    let again = again.await.with_context(|| scene.agent_log())?;
    assert_eq!(last_end(&again).map(|end| end.exit_code), Some(0));
    assert_eq!(crate::scene::phase_of(&again), "Running");
    // Where it does not start again, its exit code is all that counts.
    scene.create(&scene.pod("once", &probed, &json!({}))).await?;
    let once = scene.phase("once", "Succeeded").await?;
    assert_eq!(container(&once).map(|one| one.restart_count), Some(0));
    scene.told_as("once", "Killing", "Container main failed liveness probe").await
}

#[tokio::test]
async fn a_running_container_gets_the_image_that_its_pod_names() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("set-image").await?;
    scene.mac.add_image(NEWER, &json!({"cpu": 5}))?;
    let trace = "/private/tmp/trace";
    let script = format!("trap 'echo term >>{trace}; exit 3' TERM; touch {UP}; while :; do sleep 0.1; done");
    let hook = json!({"exec": {"command": ["/bin/sh", "-c", format!("echo stopping >>{trace}")]}});
    let command = json!({
        "command": ["/bin/sh", "-c", script],
        "lifecycle": {"preStop": hook},
        "terminationMessagePath": trace,
    });
    // Neither of them would start again by itself.
    scene.create(&scene.pod("command", &command, &json!({}))).await?;
    scene.create(&scene.pod("boot", &json!({}), &json!({}))).await?;
    for name in ["command", "boot"] {
        let first = scene.phase(name, "Running").await?;
        assert_eq!(container(&first).map(|one| one.image.as_str()), Some(IMAGE));
        if name == "command" {
            scene.is_up(&Scene::vm_of(&first)?).await?;
        }
        set_image(&scene, name, NEWER).await?;
        let again = runs_in(&scene, name, 1).await?;
        let status = container(&again).context("no status")?;
        let before = container(&first).context("no status")?;
        assert_eq!(status.image, NEWER);
        assert_ne!(status.image_id, before.image_id);
        assert_ne!(status.container_id, before.container_id);
        scene.told("pod", name, "Container main definition changed, will be restarted").await?;
        let end = last_end(&again).context("no last state")?;
        let expected = if name == "command" { (3, Some("stopping\nterm\n")) } else { (0, None) };
        assert_eq!((end.exit_code, end.message.as_deref()), expected, "{name}");
        assert_eq!(crate::scene::phase_of(&again), "Running");
    }
    let mut vms = scene.vms().await?;
    vms.retain(|vm| !vm.ends_with("-1"));
    ensure!(vms.is_empty(), "the first VMs are gone, but for {vms:?}");
    Ok(())
}

#[tokio::test]
async fn the_agent_dies_while_it_gives_a_container_another_image() -> Result<()> {
    let scene = Scene::new("dies-image").await?;
    scene.mac.add_image(NEWER, &json!({}))?;
    for (index, point) in ["before", "after"].into_iter().enumerate() {
        let name = format!("pod-{index}");
        let point = format!("agent.stop-for.{point}");
        let step = async {
            let dying = scene.agent.clone().env("TART_KUBELET_CRASH", &point).start()?;
            scene.create(&scene.pod(&name, &json!({}), &json!({}))).await?;
            scene.phase(&name, "Running").await?;
            set_image(&scene, &name, NEWER).await?;
            dying.wait_for_exit(DEADLINE).await?;
            let agent = scene.agent.start()?;
            let again = runs_in(&scene, &name, 1).await?;
            assert_eq!(container(&again).map(|one| one.image.as_str()), Some(NEWER));
            scene.kubectl.run(["delete", "pod", &name]).await?;
            agent.kill9().map(drop)
        };
        step.await.with_context(|| format!("after a crash at {point}"))?;
    }
    Ok(())
}

#[tokio::test]
async fn an_image_that_does_not_come_is_given_up_for_another() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("mend").await?;
    let (endless, missing) = ("registry.test/macos/endless:1", "registry.test/macos/sequioa:15");
    scene.mac.add_image(endless, &json!({"pullSeconds": 3600}))?;
    // One that runs is stopped before anybody knows whether the other image can be had, as elsewhere.
    scene.create(&scene.pod("typo", &json!({}), &json!({}))).await?;
    scene.phase("typo", "Running").await?;
    set_image(&scene, "typo", missing).await?;
    let stuck = wait::until(&scene.pods, "typo", "without its image", DEADLINE, |pod| {
        waits_for(pod).is_some_and(|(reason, _)| reason == "ErrImagePull" || reason == "ImagePullBackOff")
    });
    let stuck = stuck.await.with_context(|| scene.agent_log())?;
    assert_eq!(last_end(&stuck).map(|end| end.exit_code), Some(0));
    set_image(&scene, "typo", IMAGE).await?;
    runs_in(&scene, "typo", 1).await?;

    scene.create(&scene.pod("endless", &json!({"image": endless}), &json!({}))).await?;
    scene.told("pod", "endless", "pulling image").await?;
    set_image(&scene, "endless", IMAGE).await?;
    scene.phase("endless", "Running").await.map(drop)
}
