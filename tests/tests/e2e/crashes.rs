//! The agent dies and comes back; Pods do not notice.

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::json;
use tart_kubelet_tests::wait;

use crate::scene::{DEADLINE, Scene, phase_of};

/// What a guest knows of its own age: a second boot would tell another.
async fn boot_id(scene: &Scene, vm: &str) -> Result<String> {
    scene
        .mac
        .tart([
            "exec",
            vm,
            "/bin/sh",
            "-c",
            "cat /private/tmp/boot-id 2>/dev/null || date +%s%N | tee /private/tmp/boot-id",
        ])
        .await
}

#[tokio::test]
async fn a_vm_outlives_its_agent_and_is_adopted_again() -> Result<()> {
    let (scene, agent) = Scene::with_agent("adopt").await?;
    scene.create(&scene.pod("adopt", &json!({}), &json!({}))).await?;
    let vm = Scene::vm_of(&scene.phase("adopt", "Running").await?)?;
    let before = boot_id(&scene, &vm).await?;

    agent.kill9()?;
    assert_eq!(boot_id(&scene, &vm).await?, before, "the VM runs on");
    let agent = scene.agent.start()?;
    scene.node_ready(&agent).await?;
    assert_eq!(boot_id(&scene, &vm).await?, before, "the VM was not started again");
    assert_eq!(scene.vms().await?, std::slice::from_ref(&vm));
    assert_eq!(phase_of(&scene.pods.get("adopt").await?), "Running");

    scene.shut_down(&vm).await;
    scene.phase("adopt", "Succeeded").await?;
    scene.no_vms().await
}

#[tokio::test]
async fn an_exit_code_that_nobody_saw_is_not_lost() -> Result<()> {
    let (scene, agent) = Scene::with_agent("unseen").await?;
    let script = "touch /private/tmp/up; while [ ! -e /private/tmp/go ]; do sleep 0.05; done; exit 7";
    scene.create(&scene.pod("unseen", &json!({"command": ["/bin/sh", "-c", script]}), &json!({}))).await?;
    let vm = Scene::vm_of(&scene.phase("unseen", "Running").await?)?;

    agent.kill9()?;
    scene.mac.tart(["exec", &vm, "touch", "/private/tmp/go"]).await?;
    wait::eventually("a VM that has ended", DEADLINE, async || {
        let running = scene.running_vms().await?;
        ensure!(running.is_empty(), "{running:?} still run");
        Ok(())
    })
    .await?;
    let _agent = scene.agent.start()?;
    let pod = scene.phase("unseen", "Failed").await?;
    let statuses = pod.status.and_then(|status| status.container_statuses).context("no container status")?;
    let end =
        statuses[0].state.as_ref().and_then(|state| state.terminated.as_ref()).context("not terminated")?;
    assert_eq!(end.exit_code, 7);
    assert_eq!(statuses[0].restart_count, 0);
    scene.no_vms().await
}

#[tokio::test]
async fn a_pod_that_is_deleted_while_the_agent_is_away_is_cleaned_up() -> Result<()> {
    let (scene, agent) = Scene::with_agent("away").await?;
    for name in ["graceful", "forced"] {
        scene.create(&scene.pod(name, &json!({}), &json!({}))).await?;
    }
    for name in ["graceful", "forced"] {
        scene.phase(name, "Running").await?;
    }
    agent.kill9()?;
    scene.kubectl.run(["delete", "pod", "graceful", "--wait=false"]).await?;
    scene.kubectl.run(["delete", "pod", "forced", "--grace-period=0", "--force"]).await?;
    assert_eq!(scene.running_vms().await?.len(), 2, "nobody is there to stop them");
    let _agent = scene.agent.start()?;
    wait::until_gone(&scene.pods, "graceful", DEADLINE).await?;
    scene.no_vms().await
}

#[tokio::test]
async fn a_vm_that_loses_its_shim_is_stopped_and_its_pod_fails() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("orphan").await?;
    scene.create(&scene.pod("orphan", &json!({}), &json!({}))).await?;
    scene.phase("orphan", "Running").await?;
    scene.kill_shims()?;
    scene.phase("orphan", "Failed").await?;
    scene.told("pod", "orphan", "ContainerStatusUnknown").await?;
    scene.no_vms().await
}

#[tokio::test]
async fn sigterm_ends_the_agent_and_leaves_the_vm_alone() -> Result<()> {
    let (scene, agent) = Scene::with_agent("term").await?;
    scene.create(&scene.pod("term", &json!({}), &json!({}))).await?;
    let vm = Scene::vm_of(&scene.phase("term", "Running").await?)?;
    agent.kill(Signal::SIGTERM)?;
    let status = agent.wait_for_exit(DEADLINE).await?;
    ensure!(status.success(), "{status}: {}", agent.log()?);
    assert_eq!(scene.running_vms().await?, [vm]);
    Ok(())
}
