//! Containers that the agent starts again: after their end, after a failed probe, and with another image.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use crate::scene::{DEADLINE, IMAGE, PodView as _, Scene, UP, exec};

/// Another image.
const NEWER: &str = "registry.test/macos/sequoia:16";

/// Waits until the container runs after its first restart.
async fn runs_again(scene: &Scene, pod: &str) -> Result<Pod> {
    let again = |pod: &Pod| pod.main().restart_count() == Some(1) && pod.main().is_running();
    scene.until(pod, "running again", again).await
}

#[tokio::test]
async fn policy_always_restarts_the_container_in_a_new_vm() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("again").await?;
    let first = scene.pod("again").restart_policy("Always").create_until("Running").await?.vm()?;
    scene.shut_down(&first).await;
    let second = runs_again(&scene, "again").await?.vm()?;
    ensure!(second.ends_with("-1"), "{second}");
    assert_eq!(scene.vms().await?, [second], "the first VM is gone");
    Ok(())
}

#[tokio::test]
async fn failing_container_backs_off_across_an_agent_restart() -> Result<()> {
    let (scene, agent) = Scene::with_agent("loop").await?;
    scene.pod("loop").sh("echo no luck; exit 7").restart_policy("Always").create().await?;
    let backs_off = async |restarts: i32, delay: &str| {
        let words = format!("back-off {delay} restarting failed container=main pod=loop_");
        let waits = |pod: &Pod| {
            pod.main().waiting_reason() == Some("CrashLoopBackOff")
                && pod.main().waiting_message().is_some_and(|message| message.starts_with(&words))
                && pod.main().restart_count() == Some(restarts)
        };
        scene.until("loop", &words, waits).await
    };
    // As with the kubelet, the first restart does not wait.
    let pod = backs_off(1, "10s").await?;
    let shown = scene.kubectl.run(["get", "pod", "loop", "--no-headers"]).await?;
    ensure!(shown.contains("CrashLoopBackOff") && shown.contains("0/1"), "{shown}");
    assert_eq!(pod.phase(), "Running", "it is to run again");
    let before = pod.main().last_end()?;
    let vm = before.container_id.as_deref().unwrap_or_default();
    ensure!(before.exit_code == 7 && vm.ends_with("-1"), "{before:?}");
    scene.no_vms().await?;
    scene.described("loop", "Back-off restarting failed container main in pod loop_").await?;

    // The next agent knows how many restarts there were.
    let _agent = agent.restart()?;
    let pod = backs_off(2, "20s").await?;
    let end = pod.main().last_end()?;
    let (started, finished) =
        (end.started_at.context("no start")?.0, before.finished_at.context("no end")?.0);
    ensure!(started.duration_since(finished).as_secs() >= 10, "{finished} {started}");
    assert_eq!(scene.log(&pod, "main", 2)?, ["no luck"]);
    let shown = scene.kubectl.run(["get", "pod", "loop", "--no-headers"]).await?;
    ensure!(shown.split_whitespace().nth(3) == Some("2"), "{shown}");
    scene.delete("loop").await?;
    scene.nothing_left().await
}

#[tokio::test]
async fn container_with_a_failed_probe_restarts_after_exit_code_zero() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("unwell").await?;
    let script = format!("trap 'exit 0' TERM; touch {UP}; while :; do sleep 0.1; done");
    // The probe fails when the command has set its signal handler.
    let probe = json!({
        "exec": {"command": ["/bin/sh", "-c", format!("[ ! -e {UP} ]")]},
        "periodSeconds": 1, "failureThreshold": 1, "timeoutSeconds": 20,
    });
    let probed = |name: &str| scene.pod(name).sh(&script).liveness(probe.clone());
    probed("unwell").restart_policy("OnFailure").create().await?;
    // The container may be stopped again before the test has seen it run.
    let again = scene.until("unwell", "started again", |pod| {
        pod.main().restart_count() >= Some(1) && pod.main().last_exit_code().is_some()
    });
    let again = again.await?;
    assert_eq!(again.main().last_exit_code(), Some(0));
    assert_eq!(again.phase(), "Running");
    // With the policy Never, the exit code decides.
    let once = probed("once").create_until("Succeeded").await?;
    assert_eq!(once.main().restart_count(), Some(0));
    scene.event("once", "Killing", "Container main failed liveness probe").await
}

#[tokio::test]
async fn changed_image_restarts_the_container() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("set-image").await?;
    scene.mac.add_image(NEWER, &json!({"cpu": 5}))?;
    let trace = "/private/tmp/trace";
    let script = format!("trap 'echo term >>{trace}; exit 3' TERM; touch {UP}; while :; do sleep 0.1; done");
    // Both Pods have the restart policy Never.
    let hook = exec(format!("echo stopping >>{trace}"));
    scene.pod("command").sh(script).pre_stop(hook).message_path(trace).create().await?;
    scene.pod("boot").create().await?;
    for name in ["command", "boot"] {
        let first = scene.phase(name, "Running").await?;
        assert_eq!(first.main().image(), Some(IMAGE));
        if name == "command" {
            scene.command_up(&first.vm()?).await?;
        }
        scene.set_image(name, NEWER).await?;
        let again = runs_again(&scene, name).await?;
        assert_eq!(again.main().image(), Some(NEWER));
        assert_ne!(again.main().image_id(), first.main().image_id());
        assert_ne!(again.vm()?, first.vm()?);
        scene.described(name, "Container main definition changed, will be restarted").await?;
        let end = again.main().last_end()?;
        let expected = if name == "command" { (3, Some("stopping\nterm\n")) } else { (0, None) };
        assert_eq!((end.exit_code, end.message.as_deref()), expected, "{name}");
        assert_eq!(again.phase(), "Running");
    }
    let mut vms = scene.vms().await?;
    vms.retain(|vm| !vm.ends_with("-1"));
    ensure!(vms.is_empty(), "{vms:?} of the first VMs are left");
    Ok(())
}

#[tokio::test]
async fn agent_crash_while_it_changes_the_image_restarts_the_container_once() -> Result<()> {
    let scene = Scene::new("dies-image").await?;
    scene.mac.add_image(NEWER, &json!({}))?;
    for (index, point) in ["before", "after"].into_iter().enumerate() {
        let name = format!("pod-{index}");
        let point = format!("agent.stop-for.{point}");
        let step = async {
            let dying = scene.agent.clone().env("TART_KUBELET_CRASH", &point).start()?;
            scene.pod(&name).create_until("Running").await?;
            scene.set_image(&name, NEWER).await?;
            dying.wait_for_exit(DEADLINE).await?;
            let agent = scene.agent.start()?;
            let again = runs_again(&scene, &name).await?;
            assert_eq!(again.main().image(), Some(NEWER));
            scene.delete(&name).await?;
            agent.kill9().map(drop)
        };
        step.await.with_context(|| format!("after a crash at {point}"))?;
    }
    Ok(())
}

#[tokio::test]
async fn changed_image_ends_the_pull_before_it() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("mend").await?;
    let (endless, missing) = ("registry.test/macos/endless:1", "registry.test/macos/sequioa:15");
    scene.mac.add_image(endless, &json!({"pullSeconds": 3600}))?;
    // As with the kubelet, the running container is stopped before the other image is pulled.
    scene.pod("typo").create_until("Running").await?;
    scene.set_image("typo", missing).await?;
    let stuck = scene.until("typo", "without its image", |pod| {
        matches!(pod.main().waiting_reason(), Some("ErrImagePull" | "ImagePullBackOff"))
    });
    assert_eq!(stuck.await?.main().last_exit_code(), Some(0));
    scene.set_image("typo", IMAGE).await?;
    runs_again(&scene, "typo").await?;

    scene.pod("endless").image(endless).create().await?;
    scene.described("endless", "pulling image").await?;
    scene.set_image("endless", IMAGE).await?;
    scene.phase("endless", "Running").await.map(drop)
}
