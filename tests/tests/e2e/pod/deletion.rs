//! Deleting a Pod at any time of its life.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::ContainerStateTerminated;
use serde_json::json;
use tart_kubelet_tests::mac::Fault;

use crate::scene::{PodView as _, SLEEP, Scene, UP, until_exists};

#[tokio::test]
async fn deletion_shuts_the_guest_down_before_the_pod_is_gone() -> Result<()> {
    let (scene, agent) = Scene::with_agent("delete").await?;
    scene.pod("delete").create_until("Running").await?;
    scene.begin_delete("delete").await?;
    scene.until_gone("delete").await?;
    assert!(scene.vms().await?.is_empty(), "the Pod goes only after its VM: {}", agent.log()?);
    scene.nothing_left().await
}

#[tokio::test]
async fn guest_that_does_not_shut_down_is_killed_after_the_grace_period() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("stubborn").await?;
    let deaf = "registry.test/macos/deaf:1";
    scene.mac.add_image(deaf, &json!({"agent": false}))?;
    scene.pod("stubborn").image(deaf).grace(1).finalizer().create_until("Running").await?;
    assert_eq!(end_after_deletion(&scene, "stubborn", "Failed").await?.exit_code, 137);
    Ok(())
}

#[tokio::test]
async fn booting_guest_of_a_deleted_pod_shuts_down_when_it_listens() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("booting").await?;
    let slow = "registry.test/macos/slow-boot:1";
    scene.mac.add_image(slow, &json!({"bootDelay": 2}))?;
    scene.pod("booting").image(slow).grace(3600).create().await?;
    scene.run_vms(1).await?;
    scene.begin_delete("booting").await?;
    // Far less than the grace period: the shim asks the guest again until it listens.
    scene.until_gone("booting").await?;
    scene.nothing_left().await
}

/// Deletes a Pod with a finalizer, reads how it ended, and lets it go.
async fn end_after_deletion(scene: &Scene, name: &str, phase: &str) -> Result<ContainerStateTerminated> {
    scene.begin_delete(name).await?;
    let ended = scene.phase(name, phase).await?;
    scene.remove_finalizers(name).await?;
    scene.until_gone(name).await?;
    scene.nothing_left().await?;
    ended.main().end()
}

#[tokio::test]
async fn deleted_pod_whose_command_never_started_has_failed() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("never-began").await?;
    for (name, image) in [("boots", json!({"bootDelay": 30})), ("waits", json!({"agentDelay": 30}))] {
        let slow = format!("registry.test/macos/slow-{name}:1");
        scene.mac.add_image(&slow, &image)?;
        scene.pod(name).image(slow).command(SLEEP).grace(3600).finalizer().create().await?;
        scene.run_vms(1).await?;
        let end = end_after_deletion(&scene, name, "Failed").await.context(name)?;
        ensure!(end.exit_code == 128 && end.reason.as_deref() == Some("Stopped"), "{name}: {end:?}");
    }
    Ok(())
}

#[tokio::test]
async fn child_that_outlives_the_command_does_not_change_its_exit_code() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("leftover").await?;
    // The command ends in time, but its child writes to its output for longer than the grace period.
    let script = format!(
        "(trap '' TERM; while :; do echo still here; sleep 0.1; done) & \
         trap 'exit 0' TERM; touch {UP}; while :; do sleep 0.1; done"
    );
    let vm = scene.pod("leaves").sh(script).grace(15).finalizer().create_until("Running").await?.vm()?;
    scene.command_up(&vm).await?;
    let end = end_after_deletion(&scene, "leaves", "Succeeded").await?;
    assert_eq!((end.exit_code, end.reason.as_deref()), (0, Some("Completed")));
    Ok(())
}

/// Creates two Pods that ignore their deletion, one with a command and one without, and deletes them with a grace period of an hour.
async fn delete_slowly(scene: &Scene) -> Result<()> {
    let deaf = "registry.test/macos/deaf:1";
    scene.mac.add_image(deaf, &json!({"agent": false}))?;
    let hook = json!({"exec": {"command": ["/bin/sleep", "3600"]}});
    scene.pod("command").sh("trap '' TERM; while :; do sleep 0.1; done").pre_stop(hook).create().await?;
    scene.pod("boot").image(deaf).create().await?;
    for name in ["command", "boot"] {
        scene.phase(name, "Running").await?;
    }
    scene.kubectl.run(["delete", "pod", "command", "boot", "--grace-period=3600", "--wait=false"]).await?;
    for name in ["command", "boot"] {
        scene.described(name, "within 3600 s").await?;
        let request = scene.first_run_dir(&scene.uid(name).await?).join("stop.json");
        until_exists("a stop request to the shim", &request).await?;
    }
    assert_eq!(scene.running_vms().await?.len(), 2, "they have an hour");
    Ok(())
}

#[tokio::test]
async fn second_deletion_shortens_the_grace_period() -> Result<()> {
    let (scene, agent) = Scene::with_agent("shorter").await?;
    delete_slowly(&scene).await?;
    // Another agent than the one that asked for an hour.
    let _agent = agent.restart()?;
    scene.kubectl.run(["delete", "pod", "command", "boot", "--grace-period=1", "--wait=false"]).await?;
    for name in ["command", "boot"] {
        scene.until_gone(name).await?;
    }
    assert!(scene.vms().await?.is_empty(), "the Pods go only after their VMs: {}", scene.agent_log());
    scene.nothing_left().await
}

#[tokio::test]
async fn forced_deletion_ends_a_running_grace_period() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("at-once").await?;
    delete_slowly(&scene).await?;
    scene.kubectl.run(["delete", "pod", "command", "boot", "--grace-period=0", "--force"]).await?;
    scene.nothing_left().await.with_context(|| scene.agent_log())
}

#[tokio::test]
async fn forced_deletion_leaves_no_vm() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("force").await?;
    scene.pod("force").create_until("Running").await?;
    scene.force_delete("force").await?;
    scene.nothing_left().await
}

#[tokio::test]
async fn deleted_pod_does_not_wait_for_its_image_pull() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("early").await?;
    let slow = "registry.test/macos/slow:1";
    scene.mac.add_image(slow, &json!({"pullSeconds": 600}))?;
    scene.pod("early").image(slow).create().await?;
    scene.until("early", "waiting", |pod| pod.main().is_waiting()).await?;
    scene.begin_delete("early").await?;
    scene.until_gone("early").await?;
    scene.nothing_left().await
}

#[tokio::test]
async fn deleted_pod_does_not_wait_for_a_tart_that_hangs() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("making").await?;
    // Its base is there, so that the next clone is that of a Pod's VM.
    scene.pod("first").command(["true"]).create_until("Succeeded").await?;
    scene.delete("first").await?;
    for command in ["clone", "set", "run"] {
        scene.mac.set_fault(Fault::Hang, command)?;
        scene.mac.set_fault(Fault::Calls, "")?;
        scene.pod(command).create().await?;
        scene.called(command).await?;
        scene.begin_delete_within(command, 2).await?;
        scene.until_gone(command).await.context(command)?;
        scene.mac.clear_fault(Fault::Hang)?;
        scene.nothing_left().await.context(command)?;
        scene.forget_calls()?;
    }
    Ok(())
}

#[tokio::test]
async fn pod_of_the_same_name_gets_another_vm() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("twin").await?;
    let first = scene.pod("twin").create_until("Running").await?.vm()?;
    scene.force_delete("twin").await?;
    let second = scene.pod("twin").create_until("Running").await?.vm()?;
    assert_ne!(first, second);
    scene.only_vm(&second).await
}

#[tokio::test]
async fn secrets_are_deleted_while_tart_cannot_delete_the_vm() -> Result<()> {
    const SECRET: &str = "horse-staple-correct";
    let (scene, _agent) = Scene::with_agent("undeletable").await?;
    scene.secret("keys", "token", SECRET).await?;
    let pod = scene.pod("keeps").command(SLEEP).secret_token().create_until("Running").await?;
    scene.mac.set_fault(Fault::Hang, "delete")?;
    scene.force_delete("keeps").await?;
    scene.nowhere_on_disk(SECRET).await?;
    assert_eq!(scene.vms().await?, [pod.vm()?], "the VM is still there");
    scene.mac.clear_fault(Fault::Hang)?;
    scene.nothing_left().await
}

#[tokio::test]
async fn agent_takes_any_grace_period() -> Result<()> {
    let (scene, agent) = Scene::with_agent("patient").await?;
    scene.pod("patient").grace(1_000_000_000_000).create_until("Running").await?;
    scene.delete_all_of("patient").await?;
    ensure!(agent.log()?.contains("within 315360000 s"), "ten years are enough: {}", agent.log()?);
    scene.node_ready(&agent).await
}
