//! A Pod goes while the agent is away, wherever that has died: nothing secret stays.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use tart_kubelet_tests::wait;

use super::Mortal;
use super::agent::{add_secret, secretive};
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
