//! Records in the state directory that are lost: deleted, or truncated by a power cut or a bad disk.

use std::path::Path;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use tart_kubelet_tests::wait;

use super::{CrashingAgent, crash_at};
use crate::scene::{DEADLINE, PodView as _, SLEEP, Scene, UNTIL_FINISHED, until_exists};

/// Truncates every record in a directory and below it to its first byte. Returns how many there were.
pub(crate) fn spoil(dir: &Path) -> Result<usize> {
    let mut spoilt = 0;
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            spoilt += spoil(&path)?;
        } else if path.extension().is_some_and(|extension| extension == "json" || extension == "pid") {
            std::fs::write(&path, "{")?;
            spoilt += 1;
        }
    }
    Ok(spoilt)
}

/// Waits until a Pod's container was restarted, once or more, and is ready.
async fn restarted(scene: &Scene, pod: &str) -> Result<Pod> {
    let again = |pod: &Pod| pod.main().restart_count() > Some(0) && pod.main().is_ready();
    scene.until(pod, "started again", again).await
}

#[tokio::test]
async fn spoilt_records_of_a_running_vm_are_rewritten() -> Result<()> {
    let (scene, agent) = Scene::with_agent("lost-running").await?;
    let pod = scene.pod("lost").sh(format!("{UNTIL_FINISHED}; exit 7")).create_until("Running").await?;
    let vm = pod.vm()?;
    agent.kill9()?;
    let dir = scene.pod_dir(pod.uid_of()?);
    ensure!(spoil(&dir)? >= 4, "there are hardly any records");
    let _agent = scene.agent.start()?;
    // The agent writes a new record of the Pod.
    wait::eventually("a record of the Pod", DEADLINE, async || {
        ensure!(std::fs::read_to_string(dir.join("pod.json"))? != "{");
        Ok(())
    })
    .await?;
    scene.finish_command(&vm).await;
    let pod = scene.phase("lost", "Failed").await?;
    assert_eq!((pod.main().exit_code(), pod.main().restart_count(), scene.boots()?), (Some(7), Some(0), 1));
    scene.delete_all_of("lost").await
}

#[tokio::test]
async fn running_vms_without_records_are_replaced_or_fail() -> Result<()> {
    let (scene, agent) = Scene::with_agent("lost-all").await?;
    for (name, policy) in [("always", "Always"), ("never", "Never")] {
        scene.pod(name).command(SLEEP).restart_policy(policy).create().await?;
    }
    for name in ["always", "never"] {
        scene.phase(name, "Running").await?;
    }
    agent.kill9()?;
    std::fs::remove_dir_all(scene.agent.state_dir().join("pods"))?;
    let _agent = scene.agent.start()?;
    let pod = scene.ready_after_restarts("always", 1).await?;
    assert_eq!(pod.main().last_reason(), Some("ContainerStatusUnknown"));
    let never = scene.phase("never", "Failed").await?;
    assert_eq!(never.main().reason(), Some("ContainerStatusUnknown"));
    scene.only_vm(&pod.vm()?).await?;
    assert_eq!(scene.boots()?, 3);
    scene.kubectl.run(["delete", "pod", "--all", "--grace-period=1"]).await?;
    scene.nothing_left().await
}

#[tokio::test]
async fn pods_without_records_and_vm_are_restarted_or_fail() -> Result<()> {
    let (scene, agent) = Scene::with_agent("lost-mac").await?;
    let always = scene.pod("always").command(SLEEP).restart_policy("Always");
    let never = scene.pod("never").command(SLEEP).init_sh("init", "true");
    let vms = [always.create_until("Running").await?.vm()?, never.create_until("Running").await?.vm()?];
    scene.mac.lose_power()?;
    agent.wait_for_exit(DEADLINE).await?;
    // The Mac is installed again, with the same Node name.
    for part in ["pods", "logs", "volumes"] {
        std::fs::remove_dir_all(scene.agent.state_dir().join(part))?;
    }
    for vm in &vms {
        std::fs::remove_dir_all(scene.vm_dir(vm))?;
    }
    let _agent =
        crash_at(&scene, &["agent.record-missing-run.before", "agent.record-missing-run.after"]).await?;
    let never = scene.phase("never", "Failed").await?;
    assert_eq!(never.main().reason(), Some("ContainerStatusUnknown"));
    assert_eq!((never.main().exit_code(), never.main().restart_count()), (Some(137), Some(0)));
    assert_eq!(never.init().exit_code(), Some(0), "an end that the API has shown stays");
    let pod = restarted(&scene, "always").await?;
    assert_eq!(pod.main().restart_count(), Some(1));
    assert_eq!(pod.main().last_reason(), Some("ContainerStatusUnknown"));
    scene.only_vm(&pod.vm()?).await?;
    assert_eq!(scene.boots()?, 3);
    scene.kubectl.run(["delete", "pod", "--all", "--grace-period=1"]).await?;
    scene.nothing_left().await
}

#[tokio::test]
async fn restarted_vm_without_records_is_counted_and_replaced() -> Result<()> {
    let (scene, agent) = Scene::with_agent("lost-later").await?;
    let pod = scene.pod("again").sh(format!("{UNTIL_FINISHED}; exit 7")).restart_policy("OnFailure");
    let first = pod.create_until("Running").await?.vm()?;
    scene.finish_command(&first).await;
    scene.ready_after_restarts("again", 1).await?;
    agent.kill9()?;
    std::fs::remove_dir_all(scene.agent.state_dir().join("pods"))?;
    let _agent = scene.agent.start()?;
    // The agent ends the VM that ran, counts it, and starts no other one beside it.
    let pod = scene.ready_after_restarts("again", 2).await?;
    assert_eq!(pod.main().last_reason(), Some("ContainerStatusUnknown"));
    scene.only_vm(&pod.vm()?).await?;
    assert_eq!(scene.boots()?, 3);
    scene.kubectl.run(["delete", "pod", "again", "--grace-period=1"]).await?;
    scene.nothing_left().await
}

#[tokio::test]
async fn rest_of_a_deleted_vm_does_not_stop_a_restart() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("lost-rest").await?;
    let pod = scene.pod("rest").sh(format!("{UNTIL_FINISHED}; exit 7")).restart_policy("OnFailure");
    let pod = pod.create_until("Running").await?;
    // An interrupted deletion leaves such a directory.
    let rest = scene.vm_dir(&format!("tk-{}-3", pod.uid_of()?));
    std::fs::create_dir(&rest)?;
    std::fs::write(rest.join("disk.img"), "what is left")?;
    scene.finish_command(&pod.vm()?).await;
    restarted(&scene, "rest").await?;
    ensure!(!rest.exists(), "it is still there");
    scene.kubectl.run(["delete", "pod", "rest", "--grace-period=1"]).await?;
    scene.nothing_left().await
}

#[tokio::test]
async fn lost_records_of_a_planned_and_of_an_ended_vm() -> Result<()> {
    let scene = Scene::new("lost-others").await?;
    scene.pod("planned").sh("exit 7").create().await?;
    CrashingAgent::start(&scene, &["agent.plan.after"])?.crash().await?;
    std::fs::remove_file(scene.first_run_dir(&scene.uid("planned").await?).join("spec.json"))?;
    let agent = scene.agent.start()?;
    let pod = scene.phase("planned", "Failed").await?;
    assert_eq!((pod.main().exit_code(), pod.main().restart_count(), scene.boots()?), (Some(7), Some(0), 1));
    scene.delete_all_of("planned").await?;
    agent.kill9()?;

    // The exit code is lost, but the agent knows that the container has ended.
    scene.pod("over").sh("exit 7").create().await?;
    // The agent crashes before it has published the end.
    CrashingAgent::start(&scene, &["agent.publish-final.before"])?.crash().await?;
    ensure!(spoil(&scene.pod_dir(&scene.uid("over").await?))? >= 4, "there are hardly any records");
    let _agent = scene.agent.start()?;
    let pod = scene.phase("over", "Failed").await?;
    assert_eq!(pod.main().reason(), Some("ContainerStatusUnknown"));
    assert_eq!((pod.main().restart_count(), scene.boots()?), (Some(0), 2));
    scene.delete_all_of("over").await
}

#[tokio::test]
async fn ended_vm_with_spoilt_records_does_not_run_again() -> Result<()> {
    let (scene, agent) = Scene::with_agent("spoilt").await?;
    let pod = scene.pod("spoilt").create_until("Running").await?;
    agent.kill9()?;
    scene.shut_down(&pod.vm()?).await;
    let vm = scene.first_run_dir(pod.uid_of()?);
    until_exists("a VM that is over", &vm.join("outcome.json")).await?;
    for name in ["spec.json", "result.json", "outcome.json"] {
        std::fs::write(vm.join(name), "{")?;
    }
    let _agent = scene.agent.start()?;
    let failed = scene.phase("spoilt", "Failed").await?;
    assert_eq!(failed.main().reason(), Some("ContainerStatusUnknown"));
    assert!(!vm.with_file_name("1").exists(), "it was not to run again");
    scene.no_vms().await
}
