//! What Pods and Nodes go through in the long run, and what users' numbers can be.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use tart_kubelet_tests::wait;

use crate::scene::{DEADLINE, Scene, phase_of, state_of};

#[tokio::test]
async fn no_grace_period_is_too_long() -> Result<()> {
    let (scene, agent) = Scene::with_agent("patient").await?;
    let patient = json!({"terminationGracePeriodSeconds": 1_000_000_000_000_u64});
    scene.create(&scene.pod("patient", &json!({}), &patient)).await?;
    scene.phase("patient", "Running").await?;
    scene.kubectl.run(["delete", "pod", "patient", "--wait=false"]).await?;
    wait::until_gone(&scene.pods, "patient", DEADLINE).await.with_context(|| scene.agent_log())?;
    scene.nothing_left().await?;
    ensure!(agent.log()?.contains("within 315360000 s"), "ten years are enough: {}", agent.log()?);
    scene.node_ready(&agent).await
}

#[tokio::test]
async fn the_status_follows_a_node_that_moves() -> Result<()> {
    let (mut scene, agent) = Scene::with_agent("moves").await?;
    scene.create(&scene.pod("stays", &json!({}), &json!({}))).await?;
    let before = scene.phase("stays", "Running").await?;
    agent.kill9()?;
    scene.agent = scene.agent.without("--node-ip").flag("--node-ip", "127.0.0.2");
    let _agent = scene.agent.start()?;
    let host_ips = |pod: &Pod| -> Vec<String> {
        let all = pod.status.iter().flat_map(|status| status.host_ips.iter().flatten());
        all.map(|address| address.ip.clone()).collect()
    };
    let moved = wait::until(&scene.pods, "stays", "at the new address", DEADLINE, |pod| {
        host_ips(pod) == ["127.0.0.2"]
    });
    let moved = moved.await.with_context(|| scene.agent_log())?;
    assert_eq!(Scene::vm_of(&moved)?, Scene::vm_of(&before)?, "its VM runs on");
    scene.kubectl.run(["delete", "pod", "stays", "--wait=false"]).await?;
    wait::until_gone(&scene.pods, "stays", DEADLINE).await.with_context(|| scene.agent_log())?;
    scene.nothing_left().await
}

#[tokio::test]
async fn a_pull_without_end_hides_nothing() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("endless").await?;
    let endless = "registry.test/macos/endless:1";
    scene.mac.add_image(endless, &json!({"pullSeconds": 3600}))?;
    let env = json!([{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "absent", "key": "a"}}}]);
    let lacking = json!({"image": endless, "command": ["true"], "env": env});
    scene.create(&scene.pod("lacking", &lacking, &json!({}))).await?;
    let waits_for = |pod: &Pod| state_of(pod).and_then(|state| state.waiting?.reason);
    let told = wait::until(&scene.pods, "lacking", "waiting for its ConfigMap", DEADLINE, |pod| {
        waits_for(pod).as_deref() == Some("CreateContainerConfigError")
    });
    told.await.with_context(|| scene.agent_log())?;
    scene
        .create(&scene.pod("late", &json!({"image": endless}), &json!({"activeDeadlineSeconds": 2})))
        .await?;
    let late = scene.phase("late", "Failed").await?;
    let reason = late.status.and_then(|status| status.reason);
    assert_eq!(reason.as_deref(), Some("DeadlineExceeded"));
    // Nor does it hold up a Pod with an image of another registry, of which tart pulls one image at a time.
    let other = "other.test/macos/sequoia:15";
    scene.mac.add_image(other, &json!({}))?;
    scene.create(&scene.pod("other", &json!({"image": other, "command": ["true"]}), &json!({}))).await?;
    scene.phase("other", "Succeeded").await?;
    assert_eq!(phase_of(&scene.pods.get("lacking").await?), "Pending");
    Ok(())
}

#[tokio::test]
async fn a_vm_whose_files_are_spoilt_is_over_and_does_not_run_again() -> Result<()> {
    let (scene, agent) = Scene::with_agent("spoilt").await?;
    scene.create(&scene.pod("spoilt", &json!({}), &json!({}))).await?;
    let pod = scene.phase("spoilt", "Running").await?;
    agent.kill9()?;
    scene.shut_down(&Scene::vm_of(&pod)?).await;
    let uid = pod.metadata.uid.context("no UID")?;
    let vm = scene.agent.state_dir().join("pods").join(uid).join("0");
    wait::eventually("a VM that is over", DEADLINE, async || {
        ensure!(vm.join("outcome.json").exists(), "it runs");
        Ok(())
    })
    .await?;
    for name in ["spec.json", "result.json", "outcome.json"] {
        std::fs::write(vm.join(name), "{")?;
    }
    let _agent = scene.agent.start()?;
    let failed = scene.phase("spoilt", "Failed").await?;
    let end = state_of(&failed).and_then(|state| state.terminated).context("it has not ended")?;
    assert_eq!(end.reason.as_deref(), Some("ContainerStatusUnknown"));
    assert!(!vm.with_file_name("1").exists(), "it was not to run again");
    scene.no_vms().await
}
