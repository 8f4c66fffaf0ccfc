//! A Pod goes while the agent is away, wherever that has died: nothing secret stays.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use tart_kubelet_tests::wait;

use super::agent::{add_secret, secretive};
use super::{Mortal, container, end_of, forget};
use crate::scene::{DEADLINE, Scene};

const SECRET: &str = "staple-horse-battery";

/// Where it dies, with the secret on the disk in this form or that.
const POINTS: [&str; 10] = [
    "agent.volume.written",
    "agent.volume.published",
    "agent.plan.gathered",
    "agent.plan.environment",
    "agent.plan.shares",
    "write.spec.json",
    "agent.plan.after",
    "agent.launch.after",
    "agent.clean.deleted",
    "agent.wipe.before",
];

#[tokio::test]
async fn of_a_pod_that_is_deleted_while_the_agent_is_dead() -> Result<()> {
    let scene = Scene::new("secret-gone").await?;
    add_secret(&scene, SECRET).await?;
    for (index, point) in POINTS.into_iter().enumerate() {
        let name = format!("pod-{index}");
        let step = async {
            let only_boots = matches!(point, "agent.plan.environment" | "agent.plan.shares");
            let container = if only_boots { json!({}) } else { json!({"command": ["/usr/bin/true"]}) };
            scene.create(&secretive(&scene, &name, &container)).await?;
            Mortal::start(&scene, &[point])?.die().await?;
            scene.kubectl.run(["delete", "pod", &name, "--grace-period=0", "--force"]).await?;
            wait::until_gone(&scene.pods, &name, DEADLINE).await?;
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
async fn of_a_pod_whose_time_is_over_while_the_agent_is_dead() -> Result<()> {
    let scene = Scene::new("secret-over").await?;
    for (name, point) in [("planned", "write.spec.json"), ("laid", "agent.plan.shares")] {
        let mut pod = secretive(&scene, name, &json!({"command": ["/bin/sleep", "1000"]}));
        pod["spec"]["activeDeadlineSeconds"] = json!(3600);
        scene.create(&pod).await?;
        // It waits for its Secret, so that its time is known to have begun before anything is planned.
        let mortal = Mortal::start(&scene, &[point])?;
        let start = |pod: &Pod| pod.status.as_ref()?.start_time.as_ref().map(|time| time.0);
        let pod = wait::until(&scene.pods, name, "begun", DEADLINE, |pod| start(pod).is_some()).await?;
        add_secret(&scene, SECRET).await?;
        mortal.die().await?;
        let over = r#"{"spec":{"activeDeadlineSeconds":1}}"#;
        scene.kubectl.run(["patch", "pod", name, "--patch", over]).await?;
        let end = start(&pod).context("it has not begun")? + Duration::from_secs(1);
        wait::eventually("the end of its time", DEADLINE, async || {
            ensure!(jiff::Timestamp::now() > end);
            Ok(())
        })
        .await?;
        let agent = scene.agent.start()?;
        scene.phase(name, "Failed").await?;
        // The Pod is still there for people to read; its secrets are not.
        scene.nowhere_on_disk(SECRET).await.with_context(|| format!("after a crash at {point}"))?;
        scene.kubectl.run(["delete", "secret", "keys"]).await?;
        agent.kill9()?;
    }
    Ok(())
}

/// A Pod that only boots, whose environment is written anew once its address is known.
fn rewritten(scene: &Scene, name: &str, policy: &str) -> Value {
    let mut pod = secretive(scene, name, &json!({}));
    let ip = json!({"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}});
    let secret = pod["spec"]["containers"][0]["env"][0].take();
    pod["spec"]["containers"][0]["env"] = json!([secret, ip]);
    pod["spec"]["restartPolicy"] = json!(policy);
    pod
}

#[tokio::test]
async fn of_a_guest_whose_shim_dies_while_it_writes_the_environment_anew() -> Result<()> {
    let scene = Scene::new("secret-anew").await?;
    add_secret(&scene, SECRET).await?;
    let mortal = Mortal::start(&scene, &["shim.environment"])?;
    scene.create(&rewritten(&scene, "never", "Never")).await?;
    let agent = mortal.outlive().await?;
    let end = end_of(&scene.phase("never", "Failed").await?)?;
    assert_eq!(end.reason.as_deref(), Some("ContainerStatusUnknown"));
    ensure!(end.message.is_some_and(|words| !words.is_empty()), "nobody says why");
    // The Pod is still there for people to read.
    scene.nowhere_on_disk(SECRET).await?;
    forget(&scene, "never").await?;
    agent.kill9()?;

    let mortal = Mortal::start(&scene, &["shim.environment"])?;
    scene.create(&rewritten(&scene, "always", "Always")).await?;
    let _agent = mortal.outlive().await?;
    let pod = wait::until(&scene.pods, "always", "started again", DEADLINE, |pod| {
        container(pod).is_ok_and(|status| status.restart_count == 1 && status.ready)
    });
    let pod = pod.await.with_context(|| scene.agent_log())?;
    let file = "/Volumes/My Shared Files/pod_environment/environment";
    let read = scene.mac.tart(["exec", &Scene::vm_of(&pod)?, "cat", file]).await?;
    let ip = pod.status.and_then(|status| status.pod_ip).context("no address")?;
    for line in [format!("TOKEN='{SECRET}'"), format!("IP='{ip}'")] {
        ensure!(read.lines().any(|read| read == line), "no {line} in {read}");
    }
    forget(&scene, "always").await?;
    scene.nowhere_on_disk(SECRET).await
}

#[tokio::test]
async fn of_a_pod_whose_shim_dies_so_too_and_which_is_deleted_meanwhile() -> Result<()> {
    let scene = Scene::new("secret-aside").await?;
    add_secret(&scene, SECRET).await?;
    scene.create(&rewritten(&scene, "gone", "Never")).await?;
    Mortal::start(&scene, &["agent.launch.after", "shim.environment"])?.leave_dead(|| Ok(())).await?;
    let uid = scene.pods.get("gone").await?.metadata.uid.context("no UID")?;
    let boot = scene.agent.state_dir().join("volumes").join(uid).join(".boot-0/pod_environment");
    ensure!(std::fs::read_to_string(boot.join("environment.tmp"))?.contains(SECRET));
    scene.kubectl.run(["delete", "pod", "gone", "--grace-period=0", "--force"]).await?;
    wait::until_gone(&scene.pods, "gone", DEADLINE).await?;
    let _agent = scene.agent.start()?;
    scene.nothing_left().await?;
    scene.nowhere_on_disk(SECRET).await
}
