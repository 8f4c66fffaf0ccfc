//! A Pod goes while the agent is away, wherever that has died: nothing secret stays.

use anyhow::{Context, Result};
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
async fn of_a_pod_that_is_over_while_the_agent_is_dead() -> Result<()> {
    let scene = Scene::new("secret-over").await?;
    add_secret(&scene, SECRET).await?;
    for (name, point) in [("planned", "write.spec.json"), ("laid", "agent.plan.shares")] {
        let container = json!({"command": ["/bin/sleep", "1000"]});
        let mut pod = secretive(&scene, name, &container);
        pod["spec"]["activeDeadlineSeconds"] = json!(3600);
        scene.create(&pod).await?;
        Mortal::start(&scene, &[point])?.die().await?;
        let over = r#"{"spec":{"activeDeadlineSeconds":1}}"#;
        scene.kubectl.run(["patch", "pod", name, "--patch", over]).await?;
        let agent = scene.agent.start()?;
        scene.phase(name, "Failed").await?;
        scene.no_vms().await?;
        // The Pod is still there for people to read; its secrets are not.
        scene.nowhere_on_disk(SECRET).await.with_context(|| format!("after a crash at {point}"))?;
        agent.kill9()?;
    }
    Ok(())
}
