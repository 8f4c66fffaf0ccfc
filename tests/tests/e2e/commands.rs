//! Pods with a command: it runs in the guest, and its end is the Pod's.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use tart_kubelet_tests::mac::Fault;
use tart_kubelet_tests::wait;

use crate::scene::{DEADLINE, Scene};

fn end_of(pod: &Pod) -> Result<(i32, String)> {
    let statuses =
        pod.status.as_ref().and_then(|s| s.container_statuses.as_ref()).context("no container status")?;
    let end = statuses[0].state.as_ref().and_then(|s| s.terminated.as_ref()).context("not terminated")?;
    Ok((end.exit_code, end.reason.clone().unwrap_or_default()))
}

fn log_of(scene: &Scene, pod: &Pod) -> Result<Vec<String>> {
    let uid = pod.metadata.uid.as_deref().context("no UID")?;
    let log = std::fs::read_to_string(scene.agent.state_dir().join("logs").join(uid).join("main/0.log"))?;
    let without_time = |line: &str| line.split_once(' ').map_or(line, |(_, rest)| rest).to_owned();
    Ok(log.lines().map(without_time).collect())
}

async fn run(scene: &Scene, name: &str, container: &Value, phase: &str) -> Result<Pod> {
    scene.create(&scene.pod(name, container, &json!({}))).await?;
    scene.phase(name, phase).await
}

#[tokio::test]
async fn the_exit_code_is_the_containers() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("exit").await?;
    let pod = run(&scene, "good", &json!({"command": ["/bin/sh", "-c", "exit 0"]}), "Succeeded").await?;
    assert_eq!(end_of(&pod)?, (0, "Completed".to_owned()));
    let pod = run(&scene, "bad", &json!({"command": ["/bin/sh", "-c", "exit 42"]}), "Failed").await?;
    assert_eq!(end_of(&pod)?, (42, "Error".to_owned()));
    scene.no_vms().await
}

#[tokio::test]
async fn output_arguments_environment_and_directory_are_the_pods() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("output").await?;
    let script = "echo \"$1 $GREETING from $PWD\"; echo oops >&2";
    let container = json!({
        "command": ["/bin/sh", "-c"],
        "args": [script, "sh", "well,"],
        "env": [{"name": "GREETING", "value": "hello, world"}],
        "workingDir": "/private/tmp",
    });
    let pod = run(&scene, "output", &container, "Succeeded").await?;
    let mut log = log_of(&scene, &pod)?;
    log.sort();
    assert_eq!(log, ["stderr F oops", "stdout F well, hello, world from /private/tmp"]);
    Ok(())
}

#[tokio::test]
async fn references_to_variables_are_expanded() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("expand").await?;
    let env = json!([{"name": "WHO", "value": "world"}, {"name": "GREETING", "value": "hello, $(WHO)"}]);
    let command = json!(["/bin/echo", "$(GREETING)", "$$(WHO)"]);
    let container = json!({"command": command, "args": ["to $(WHO)", "$(NOBODY)"], "env": env});
    let pod = run(&scene, "expand", &container, "Succeeded").await?;
    assert_eq!(log_of(&scene, &pod)?, ["stdout F hello, world $(WHO) to world $(NOBODY)"]);
    Ok(())
}

#[tokio::test]
async fn a_guest_that_crashes_under_a_command_is_told_in_its_own_words() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("crash").await?;
    scene.create(&scene.pod("crash", &json!({"command": ["/bin/sleep", "1000"]}), &json!({}))).await?;
    scene.phase("crash", "Running").await?;
    scene.mac.set_fault(Fault::GuestPanic, "")?;
    scene.phase("crash", "Failed").await?;
    scene.told("pod", "crash", "guest has stopped the virtual machine due to error").await
}

#[tokio::test]
async fn a_guest_that_shuts_down_under_its_command_is_no_success() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("off").await?;
    let script = "sudo shutdown -h now; while :; do sleep 0.1; done";
    let pod = run(&scene, "under", &json!({"command": ["/bin/sh", "-c", script]}), "Failed").await?;
    // The shutdown's own SIGTERM, if there was time to tell of it.
    ensure!(matches!(end_of(&pod)?.0, 143 | 255), "{:?}", end_of(&pod)?);
    let image = "registry.test/macos/weary:1";
    scene
        .mac
        .add_image(image, &json!({"agentDelay": 3600, "boot": ["/bin/sh", "-c", "sudo shutdown -h now"]}))?;
    let container = json!({"image": image, "command": ["/usr/bin/true"]});
    let pod = run(&scene, "before", &container, "Failed").await?;
    assert_eq!(end_of(&pod)?, (255, "Error".to_owned()));
    scene.told("pod", "before", "the guest shut down before its command had ended").await
}

#[tokio::test]
async fn an_exit_code_that_is_known_survives_the_vm() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("outlived").await?;
    // Whoever reads its last words waits for a writer, while the VM dies.
    let script = "rm -f /private/tmp/words; mkfifo /private/tmp/words; exit 0";
    let container =
        json!({"command": ["/bin/sh", "-c", script], "terminationMessagePath": "/private/tmp/words"});
    scene.create(&scene.pod("ends", &container, &json!({}))).await?;
    let uid = scene.pods.get("ends").await?.metadata.uid.context("no UID")?;
    let result = scene.agent.state_dir().join("pods").join(&uid).join("0/result.json");
    wait::eventually("a result that is written down", DEADLINE, async || {
        ensure!(result.exists());
        Ok(())
    })
    .await?;
    scene.mac.set_fault(Fault::RunDies.of_vm(&format!("tk-{uid}-0")), "signal KILL")?;
    let pod = scene.phase("ends", "Succeeded").await?;
    assert_eq!(end_of(&pod)?, (0, "Completed".to_owned()));
    scene.no_vms().await
}

#[tokio::test]
async fn an_image_that_needs_more_than_the_pod_says_has_it() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("small").await?;
    let small =
        json!({"command": ["/usr/bin/true"], "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}}});
    run(&scene, "request", &small, "Succeeded").await?;
    let small =
        json!({"command": ["/usr/bin/true"], "resources": {"limits": {"cpu": "100m", "memory": "64Mi"}}});
    run(&scene, "limit", &small, "Succeeded").await?;
    let words = "the image needs a larger VM than the container's limits allow: cpu (1), memory (64 MiB)";
    scene.told("pod", "limit", words).await
}

#[tokio::test]
async fn a_command_that_does_not_exist_is_told() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("nothing").await?;
    let pod = run(&scene, "nothing", &json!({"args": ["/no/such/program"]}), "Failed").await?;
    let (code, reason) = end_of(&pod)?;
    ensure!(code == 128 && reason == "StartError", "{code} {reason}");
    scene.told("pod", "nothing", "cannot start `/no/such/program` in the guest").await?;
    scene.no_vms().await
}
