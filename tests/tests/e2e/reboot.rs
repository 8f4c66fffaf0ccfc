//! The Mac loses its power, and comes back.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use serde_json::json;
use tart_kubelet_tests::wait;

use crate::scene::{DEADLINE, Scene, phase_of};

fn container(pod: &Pod) -> Result<ContainerStatus> {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.clone());
    statuses.and_then(|all| all.into_iter().next()).context("no container status")
}

#[tokio::test]
async fn pods_after_a_reboot_are_what_their_policy_says() -> Result<()> {
    let (scene, agent) = Scene::with_agent("reboot").await?;
    scene.create(&scene.pod("done", &json!({"command": ["/usr/bin/true"]}), &json!({}))).await?;
    let done = scene.phase("done", "Succeeded").await?;
    let always = json!({"restartPolicy": "Always"});
    scene.create(&scene.pod("always", &json!({"command": ["/bin/sleep", "1000"]}), &always)).await?;
    scene.create(&scene.pod("never", &json!({}), &json!({}))).await?;
    let before = Scene::vm_of(&scene.phase("always", "Running").await?)?;
    scene.phase("never", "Running").await?;

    scene.mac.lose_power()?;
    ensure!(agent.process().exit_status()?.is_some(), "the agent survived");
    ensure!(scene.running_vms().await?.is_empty(), "a VM survived");
    let _agent = scene.agent.start()?;

    let restarted = wait::until(&scene.pods, "always", "restarted", DEADLINE, |pod| {
        container(pod).is_ok_and(|status| status.restart_count == 1 && status.ready)
    })
    .await
    .with_context(|| scene.agent_log())?;
    let last =
        container(&restarted)?.last_state.and_then(|state| state.terminated).context("no last state")?;
    assert_eq!((last.exit_code, last.reason.as_deref()), (137, Some("ContainerStatusUnknown")));
    let after = Scene::vm_of(&restarted)?;
    assert_ne!(after, before);

    let never = scene.phase("never", "Failed").await?;
    let end = container(&never)?.state.and_then(|state| state.terminated).context("not terminated")?;
    assert_eq!(end.reason.as_deref(), Some("ContainerStatusUnknown"));
    assert_eq!(container(&never)?.restart_count, 0);
    let still = scene.pods.get("done").await?;
    assert_eq!(phase_of(&still), "Succeeded");
    assert_eq!(container(&still)?, container(&done)?, "a finished Pod is not run again");
    assert_eq!(scene.vms().await?, [after], "the disks of the others are gone");

    scene.kubectl.run(["delete", "pod", "--all"]).await?;
    scene.nothing_left().await
}
