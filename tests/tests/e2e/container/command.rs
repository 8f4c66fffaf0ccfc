//! A container's command: it runs in the guest, and its end is the Pod's end.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use tart_kubelet_tests::mac::Fault;

use crate::scene::{PodView as _, SLEEP, Scene, until_exists};

fn end_of(pod: &Pod) -> (Option<i32>, Option<&str>) {
    (pod.main().exit_code(), pod.main().reason())
}

/// The lines of the container's log without their times.
fn log_of(scene: &Scene, pod: &Pod) -> Result<Vec<String>> {
    let log = std::fs::read_to_string(scene.logs_dir(pod.uid_of()?).join("main/0.log"))?;
    let without_time = |line: &str| line.split_once(' ').map_or(line, |(_, rest)| rest).to_owned();
    Ok(log.lines().map(without_time).collect())
}

#[tokio::test]
async fn exit_code_of_the_command_is_the_containers() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("exit").await?;
    let pod = scene.pod("good").sh("exit 0").create_until("Succeeded").await?;
    assert_eq!(end_of(&pod), (Some(0), Some("Completed")));
    let pod = scene.pod("bad").sh("exit 42").create_until("Failed").await?;
    assert_eq!(end_of(&pod), (Some(42), Some("Error")));
    scene.no_vms().await
}

#[tokio::test]
async fn command_has_the_pods_arguments_environment_and_directory() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("output").await?;
    let script = "echo \"$1 $GREETING from $PWD\"; echo oops >&2";
    let pod = scene
        .pod("output")
        .command(["/bin/sh", "-c"])
        .args([script, "sh", "well,"])
        .env("GREETING", "hello, world")
        .container(json!({"workingDir": "/private/tmp"}))
        .create_until("Succeeded")
        .await?;
    let mut log = log_of(&scene, &pod)?;
    log.sort();
    assert_eq!(log, ["stderr F oops", "stdout F well, hello, world from /private/tmp"]);
    Ok(())
}

#[tokio::test]
async fn variable_references_in_the_command_are_expanded() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("expand").await?;
    let pod = scene
        .pod("expand")
        .command(["/bin/echo", "$(GREETING)", "$$(WHO)"])
        .args(["to $(WHO)", "$(NOBODY)"])
        .env("WHO", "world")
        .env("GREETING", "hello, $(WHO)")
        .create_until("Succeeded")
        .await?;
    assert_eq!(log_of(&scene, &pod)?, ["stdout F hello, world $(WHO) to world $(NOBODY)"]);
    Ok(())
}

#[tokio::test]
async fn guest_crash_under_a_command_is_reported_in_tarts_words() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("crash").await?;
    scene.pod("crash").command(SLEEP).create_until("Running").await?;
    scene.mac.set_fault(Fault::GuestPanic, "")?;
    scene.phase("crash", "Failed").await?;
    scene.described("crash", "guest has stopped the virtual machine due to error").await
}

#[tokio::test]
async fn guest_shutdown_before_the_command_ends_fails_the_pod() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("off").await?;
    let script = "sudo shutdown -h now; while :; do sleep 0.1; done";
    let pod = scene.pod("under").sh(script).create_until("Failed").await?;
    // 143 is the shutdown's SIGTERM, if the guest agent had time to report it.
    ensure!(matches!(pod.main().exit_code(), Some(143 | 255)), "{:?}", end_of(&pod));
    let image = "registry.test/macos/weary:1";
    scene
        .mac
        .add_image(image, &json!({"agentDelay": 3600, "boot": ["/bin/sh", "-c", "sudo shutdown -h now"]}))?;
    let pod = scene.pod("before").image(image).command(["/usr/bin/true"]).create_until("Failed").await?;
    assert_eq!(end_of(&pod), (Some(255), Some("Error")));
    scene.described("before", "the guest shut down before its command had ended").await
}

#[tokio::test]
async fn known_exit_code_survives_the_death_of_the_vm() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("outlived").await?;
    // The shim waits for a writer of the termination message, while the VM dies.
    let script = "rm -f /private/tmp/words; mkfifo /private/tmp/words; exit 0";
    scene.pod("ends").sh(script).message_path("/private/tmp/words").create().await?;
    let uid = scene.uid("ends").await?;
    until_exists("the container's result", &scene.first_run_dir(&uid).join("result.json")).await?;
    scene.mac.set_fault(Fault::RunDies.of_vm(&format!("tk-{uid}-0")), "signal KILL")?;
    let pod = scene.phase("ends", "Succeeded").await?;
    assert_eq!(end_of(&pod), (Some(0), Some("Completed")));
    scene.no_vms().await
}

#[tokio::test]
async fn vm_is_never_larger_than_the_limits_of_its_pod() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("small").await?;
    let small = |kind: &str, amounts: Value| json!({kind: amounts});
    let requests = small("requests", json!({"cpu": "100m", "memory": "64Mi"}));
    scene.pod("request").command(["/usr/bin/true"]).resources(requests).create_until("Succeeded").await?;
    for (name, limits, words) in [
        (
            "cpu",
            json!({"cpu": "2"}),
            "the image needs a VM with 4 cores of cpu at least, and the container's limit is 2 cores",
        ),
        (
            "memory",
            json!({"memory": "2Gi"}),
            "the image needs a VM with 4096 MiB of memory at least, and the container's limit is 2048 MiB",
        ),
    ] {
        scene.pod(name).command(["/usr/bin/true"]).resources(small("limits", limits)).create().await?;
        scene.event(name, "Failed", words).await?;
        scene.waiting(name, "CreateContainerConfigError", words).await?;
        scene.delete(name).await?;
    }
    scene.no_vms().await
}

#[tokio::test]
async fn vms_of_pods_without_resources_share_what_the_node_has() -> Result<()> {
    let scene = Scene::new("greedy-image").await?;
    // The image has 8 GiB, and needs 4.
    let agent = scene.agent.clone().flag("--host-memory-mb", "13000").flag("--max-pods", "3");
    let running = scene.start(&agent).await?;
    let memory = |vm: &str| -> Result<Option<u64>> {
        let config = std::fs::read_to_string(scene.vm_dir(vm).join("config.json"))?;
        let config: Value = serde_json::from_str(&config)?;
        Ok(config["memorySize"].as_u64().map(|bytes| bytes >> 20))
    };
    let first = scene.pod("first").create_until("Running").await?;
    assert_eq!(memory(&first.vm()?)?, Some(8192));
    // The next agent knows what the VMs of this one have.
    running.kill9()?;
    let _running = scene.start(&agent).await?;
    let second = scene.pod("second").create_until("Running").await?;
    assert_eq!(memory(&second.vm()?)?, Some(13_000 - 8192));
    scene.event("second", "SmallerVM", "the VM has 4808 MiB of memory").await?;
    scene.pod("third").create().await?;
    let words =
        "the image needs a VM with 4096 MiB of memory at least, and the Pods of this Node leave 0 MiB";
    scene.event("third", "Failed", words).await?;
    scene.delete("first").await?;
    let third = scene.phase("third", "Running").await?;
    assert_eq!(memory(&third.vm()?)?, Some(8192), "what the first one had");
    Ok(())
}

#[tokio::test]
async fn missing_program_fails_the_pod_with_start_error() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("nothing").await?;
    let pod = scene.pod("nothing").args(["/no/such/program"]).create_until("Failed").await?;
    assert_eq!(end_of(&pod), (Some(128), Some("StartError")));
    scene.described("nothing", "cannot start `/no/such/program` in the guest").await?;
    scene.no_vms().await
}
