//! A Pod ends or is deleted while the agent is dead: no secret stays on the disk, wherever the agent died.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use tart_kubelet_tests::wait;

use super::CrashingAgent;
use crate::scene::{DEADLINE, PodBuilder, PodView as _, SLEEP, Scene};

const SECRET: &str = "staple-horse-battery";

/// Where the agent dies. At each of these points the secret is on the disk in some form.
const POINTS: [&str; 10] = [
    "agent.volume.written",
    "agent.volume.published",
    "agent.plan.gathered",
    "agent.plan.environment",
    "agent.plan.shares",
    "write.spec.json",
    "agent.plan.after",
    "agent.launch.after",
    "agent.delete-vm.deleted",
    "agent.remove-volumes.before",
];

#[tokio::test]
async fn secrets_of_a_pod_deleted_while_the_agent_is_dead_are_deleted() -> Result<()> {
    let scene = Scene::new("secret-gone").await?;
    scene.secret("keys", "token", SECRET).await?;
    for (index, point) in POINTS.into_iter().enumerate() {
        let name = format!("pod-{index}");
        let step = async {
            let only_boots = matches!(point, "agent.plan.environment" | "agent.plan.shares");
            let pod = scene.pod(&name).secret_token();
            let pod = if only_boots { pod } else { pod.command(["/usr/bin/true"]) };
            pod.create().await?;
            CrashingAgent::start(&scene, &[point])?.crash().await?;
            scene.force_delete(&name).await?;
            scene.until_gone(&name).await?;
            let agent = scene.agent.start()?;
            scene.nothing_left().await?;
            scene.nowhere_on_disk(SECRET).await?;
            agent.kill9().map(drop)
        };
        step.await.with_context(|| format!("after a crash at {point}"))?;
    }
    Ok(())
}

#[tokio::test]
async fn secrets_of_a_pod_past_its_deadline_are_deleted() -> Result<()> {
    let scene = Scene::new("secret-over").await?;
    for (name, point) in [("planned", "write.spec.json"), ("laid", "agent.plan.shares")] {
        scene.pod(name).command(SLEEP).secret_token().active_deadline(3600).create().await?;
        // The Pod waits for its Secret, so its start time is known before the agent plans anything.
        let crashing = CrashingAgent::start(&scene, &[point])?;
        let start = |pod: &Pod| pod.status.as_ref()?.start_time.as_ref().map(|time| time.0);
        let pod = scene.until(name, "begun", |pod| start(pod).is_some()).await?;
        scene.secret("keys", "token", SECRET).await?;
        crashing.crash().await?;
        scene.patch(name, &json!({"spec": {"activeDeadlineSeconds": 1}})).await?;
        let end = start(&pod).context("it has not begun")? + Duration::from_secs(1);
        wait::eventually("the end of its time", DEADLINE, async || {
            ensure!(jiff::Timestamp::now() > end);
            Ok(())
        })
        .await?;
        let agent = scene.agent.start()?;
        scene.phase(name, "Failed").await?;
        // The Pod is still in the API; its secrets are not on the disk.
        scene.nowhere_on_disk(SECRET).await.with_context(|| format!("after a crash at {point}"))?;
        scene.kubectl.run(["delete", "secret", "keys"]).await?;
        agent.kill9()?;
    }
    Ok(())
}

/// A Pod that only boots. Its shim writes the environment again when it knows the Pod's address.
fn rewritten<'a>(scene: &'a Scene, name: &str) -> PodBuilder<'a> {
    scene.pod(name).secret_token().env_field("IP", "status.podIP")
}

#[tokio::test]
async fn secrets_are_deleted_after_a_shim_crash_in_the_environment() -> Result<()> {
    let scene = Scene::new("secret-anew").await?;
    scene.secret("keys", "token", SECRET).await?;
    let crashing = CrashingAgent::start(&scene, &["shim.environment"])?;
    rewritten(&scene, "never").create().await?;
    let agent = crashing.survive().await?;
    let end = scene.phase("never", "Failed").await?.main().end()?;
    assert_eq!(end.reason.as_deref(), Some("ContainerStatusUnknown"));
    ensure!(end.message.is_some_and(|words| !words.is_empty()), "there is no message");
    // The Pod is still in the API.
    scene.nowhere_on_disk(SECRET).await?;
    scene.delete_all_of("never").await?;
    agent.kill9()?;

    let crashing = CrashingAgent::start(&scene, &["shim.environment"])?;
    rewritten(&scene, "always").restart_policy("Always").create().await?;
    let _agent = crashing.survive().await?;
    let pod = scene.ready_after_restarts("always", 1).await?;
    let file = "/Volumes/My Shared Files/pod_environment/environment";
    let read = scene.mac.tart(["exec", &pod.vm()?, "cat", file]).await?;
    let ip = pod.ip().context("no address")?;
    for line in [format!("TOKEN='{SECRET}'"), format!("IP='{ip}'")] {
        ensure!(read.lines().any(|read| read == line), "no {line} in {read}");
    }
    scene.delete_all_of("always").await?;
    scene.nowhere_on_disk(SECRET).await
}

#[tokio::test]
async fn secrets_of_a_deleted_pod_are_deleted_after_a_shim_crash() -> Result<()> {
    let scene = Scene::new("secret-aside").await?;
    scene.secret("keys", "token", SECRET).await?;
    rewritten(&scene, "gone").create().await?;
    CrashingAgent::start(&scene, &["agent.launch.after", "shim.environment"])?.stay_dead(|| Ok(())).await?;
    let uid = scene.uid("gone").await?;
    let boot = scene.volumes_dir(&uid).join(".boot-0/pod_environment");
    ensure!(std::fs::read_to_string(boot.join("environment.tmp"))?.contains(SECRET));
    scene.force_delete("gone").await?;
    scene.until_gone("gone").await?;
    let _agent = scene.agent.start()?;
    scene.nothing_left().await?;
    scene.nowhere_on_disk(SECRET).await
}
