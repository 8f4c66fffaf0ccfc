//! Deleting a Pod at any time of its life.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::ContainerStateTerminated;
use serde_json::json;
use tart_kubelet_tests::mac::Fault;
use tart_kubelet_tests::wait;

use crate::crash::end_of;
use crate::scene::{DEADLINE, Scene, UP};

#[tokio::test]
async fn a_running_pod_shuts_its_guest_down_and_is_gone() -> Result<()> {
    let (scene, agent) = Scene::with_agent("delete").await?;
    scene.create(&scene.pod("delete", &json!({}), &json!({}))).await?;
    scene.phase("delete", "Running").await?;
    scene.kubectl.run(["delete", "pod", "delete", "--wait=false"]).await?;
    wait::until_gone(&scene.pods, "delete", DEADLINE).await?;
    assert!(scene.vms().await?.is_empty(), "the Pod goes only after its VM: {}", agent.log()?);
    scene.nothing_left().await
}

#[tokio::test]
async fn a_guest_that_does_not_shut_down_is_killed_after_its_grace_period() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("stubborn").await?;
    let deaf = "registry.test/macos/deaf:1";
    scene.mac.add_image(deaf, &json!({"agent": false}))?;
    let mut pod =
        scene.pod("stubborn", &json!({"image": deaf}), &json!({"terminationGracePeriodSeconds": 1}));
    // It stays in the API for somebody to read how it ended.
    pod["metadata"]["finalizers"] = json!(["example.com/linger"]);
    scene.create(&pod).await?;
    scene.phase("stubborn", "Running").await?;
    assert_eq!(end_after_deletion(&scene, "stubborn", "Failed").await?.exit_code, 137);
    Ok(())
}

#[tokio::test]
async fn a_guest_that_is_still_booting_shuts_down_when_it_can() -> Result<()> {
    let (scene, agent) = Scene::with_agent("booting").await?;
    let slow = "registry.test/macos/slow-boot:1";
    scene.mac.add_image(slow, &json!({"bootDelay": 2}))?;
    let patient = json!({"terminationGracePeriodSeconds": 3600});
    scene.create(&scene.pod("booting", &json!({"image": slow}), &patient)).await?;
    wait::eventually("a VM that boots", DEADLINE, async || {
        ensure!(!scene.running_vms().await?.is_empty(), "no VM runs");
        Ok(())
    })
    .await?;
    scene.kubectl.run(["delete", "pod", "booting", "--wait=false"]).await?;
    // Far less than the grace period: the guest was asked again once it listened.
    wait::until_gone(&scene.pods, "booting", DEADLINE)
        .await
        .with_context(|| agent.log().unwrap_or_default())?;
    scene.nothing_left().await
}

/// Deletes a Pod that lingers in the API for somebody to read how it ended, reads that, and lets it go.
async fn end_after_deletion(scene: &Scene, name: &str, phase: &str) -> Result<ContainerStateTerminated> {
    scene.kubectl.run(["delete", "pod", name, "--wait=false"]).await?;
    let ended = scene.phase(name, phase).await?;
    let free = r#"{"metadata":{"finalizers":null}}"#;
    scene.kubectl.run(["patch", "pod", name, "--type=merge", "--patch", free]).await?;
    wait::until_gone(&scene.pods, name, DEADLINE).await?;
    scene.nothing_left().await?;
    end_of(&ended)
}

#[tokio::test]
async fn a_command_that_was_never_started_has_not_succeeded() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("never-began").await?;
    for (name, image) in [("boots", json!({"bootDelay": 30})), ("waits", json!({"agentDelay": 30}))] {
        let slow = format!("registry.test/macos/slow-{name}:1");
        scene.mac.add_image(&slow, &image)?;
        let patient = json!({"terminationGracePeriodSeconds": 3600});
        let command = json!({"image": slow, "command": ["/bin/sleep", "1000"]});
        let mut pod = scene.pod(name, &command, &patient);
        pod["metadata"]["finalizers"] = json!(["example.com/linger"]);
        scene.create(&pod).await?;
        wait::eventually("a VM that boots", DEADLINE, async || {
            ensure!(!scene.running_vms().await?.is_empty(), "no VM runs");
            Ok(())
        })
        .await?;
        let end = end_after_deletion(&scene, name, "Failed").await.context(name)?;
        ensure!(end.exit_code == 128 && end.reason.as_deref() == Some("Stopped"), "{name}: {end:?}");
    }
    Ok(())
}

#[tokio::test]
async fn what_a_command_leaves_behind_does_not_change_how_it_ended() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("leftover").await?;
    // It ends in time, but something goes on writing to its output for longer than the grace period.
    let script = format!(
        "(trap '' TERM; while :; do echo still here; sleep 0.1; done) & \
         trap 'exit 0' TERM; touch {UP}; while :; do sleep 0.1; done"
    );
    let spec = json!({"terminationGracePeriodSeconds": 15});
    let mut pod = scene.pod("leaves", &json!({"command": ["/bin/sh", "-c", script]}), &spec);
    pod["metadata"]["finalizers"] = json!(["example.com/linger"]);
    scene.create(&pod).await?;
    let vm = Scene::vm_of(&scene.phase("leaves", "Running").await?)?;
    scene.is_up(&vm).await?;
    let end = end_after_deletion(&scene, "leaves", "Succeeded").await?;
    assert_eq!((end.exit_code, end.reason.as_deref()), (0, Some("Completed")));
    Ok(())
}

/// Creates two Pods that do not go by themselves, one with a command and one without, and deletes them for an hour.
async fn delete_slowly(scene: &Scene) -> Result<()> {
    let deaf = "registry.test/macos/deaf:1";
    scene.mac.add_image(deaf, &json!({"agent": false}))?;
    let hook = json!({"preStop": {"exec": {"command": ["/bin/sleep", "3600"]}}});
    let command = json!(["/bin/sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"]);
    scene.create(&scene.pod("command", &json!({"command": command, "lifecycle": hook}), &json!({}))).await?;
    scene.create(&scene.pod("boot", &json!({"image": deaf}), &json!({}))).await?;
    for name in ["command", "boot"] {
        scene.phase(name, "Running").await?;
    }
    scene.kubectl.run(["delete", "pod", "command", "boot", "--grace-period=3600", "--wait=false"]).await?;
    for name in ["command", "boot"] {
        scene.told("pod", name, "within 3600 s").await?;
        let uid = scene.pods.get(name).await?.metadata.uid.context("no UID")?;
        let asked = scene.agent.state_dir().join("pods").join(uid).join("0/stop.json");
        wait::eventually("a shim that was asked", DEADLINE, async || {
            ensure!(asked.exists(), "it was not");
            Ok(())
        })
        .await?;
    }
    assert_eq!(scene.running_vms().await?.len(), 2, "they have an hour");
    Ok(())
}

#[tokio::test]
async fn a_grace_period_can_be_shortened_while_it_runs() -> Result<()> {
    let (scene, agent) = Scene::with_agent("shorter").await?;
    delete_slowly(&scene).await?;
    // Whoever hears of it need not be the one who has asked for an hour.
    let _agent = agent.restart()?;
    scene.kubectl.run(["delete", "pod", "command", "boot", "--grace-period=1", "--wait=false"]).await?;
    for name in ["command", "boot"] {
        let gone = wait::until_gone(&scene.pods, name, DEADLINE).await;
        gone.with_context(|| scene.agent_log())?;
    }
    assert!(scene.vms().await?.is_empty(), "the Pods go only after their VMs: {}", scene.agent_log());
    scene.nothing_left().await
}

#[tokio::test]
async fn a_forced_deletion_does_not_wait_for_a_grace_period_that_runs() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("at-once").await?;
    delete_slowly(&scene).await?;
    scene.kubectl.run(["delete", "pod", "command", "boot", "--grace-period=0", "--force"]).await?;
    scene.nothing_left().await.with_context(|| scene.agent_log())
}

#[tokio::test]
async fn a_forced_deletion_leaves_no_vm_behind() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("force").await?;
    scene.create(&scene.pod("force", &json!({}), &json!({}))).await?;
    scene.phase("force", "Running").await?;
    scene.kubectl.run(["delete", "pod", "force", "--grace-period=0", "--force"]).await?;
    scene.nothing_left().await
}

#[tokio::test]
async fn a_pod_whose_image_is_on_its_way_does_not_wait_for_it() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("early").await?;
    let slow = "registry.test/macos/slow:1";
    scene.mac.add_image(slow, &json!({"pullSeconds": 600}))?;
    scene.create(&scene.pod("early", &json!({"image": slow}), &json!({}))).await?;
    wait::until(&scene.pods, "early", "waiting", DEADLINE, |pod| {
        let statuses = pod.status.as_ref().and_then(|s| s.container_statuses.as_ref());
        statuses.is_some_and(|all| all[0].state.as_ref().is_some_and(|state| state.waiting.is_some()))
    })
    .await?;
    scene.kubectl.run(["delete", "pod", "early", "--wait=false"]).await?;
    wait::until_gone(&scene.pods, "early", DEADLINE).await?;
    scene.nothing_left().await
}

#[tokio::test]
async fn a_pod_whose_vm_is_being_made_does_not_wait_for_it() -> Result<()> {
    let (scene, agent) = Scene::with_agent("making").await?;
    // Its base is there, so that the next clone is that of a Pod's VM.
    scene.create(&scene.pod("first", &json!({"command": ["true"]}), &json!({}))).await?;
    scene.phase("first", "Succeeded").await?;
    scene.kubectl.run(["delete", "pod", "first"]).await?;
    for command in ["clone", "set", "run"] {
        scene.mac.set_fault(Fault::Hang, command)?;
        scene.mac.set_fault(Fault::Calls, "")?;
        scene.create(&scene.pod(command, &json!({}), &json!({}))).await?;
        let calls = scene.mac.host().join("calls");
        wait::eventually(&format!("a call of `tart {command}`"), DEADLINE, async || {
            let calls = std::fs::read_to_string(&calls).unwrap_or_default();
            ensure!(calls.lines().any(|line| line == command), "{calls}");
            Ok(())
        })
        .await?;
        let patience = ["delete", "pod", command, "--grace-period=2", "--wait=false"];
        scene.kubectl.run(patience).await?;
        let gone = wait::until_gone(&scene.pods, command, DEADLINE).await;
        gone.with_context(|| format!("{command}: {}", agent.log().unwrap_or_default()))?;
        scene.mac.clear_fault(Fault::Hang)?;
        scene.nothing_left().await.context(command)?;
        std::fs::remove_file(&calls)?;
    }
    Ok(())
}

#[tokio::test]
async fn a_pod_of_the_same_name_gets_a_vm_of_its_own() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("twin").await?;
    let pod = scene.pod("twin", &json!({}), &json!({}));
    scene.create(&pod).await?;
    let first = Scene::vm_of(&scene.phase("twin", "Running").await?)?;
    scene.kubectl.run(["delete", "pod", "twin", "--grace-period=0", "--force"]).await?;
    scene.create(&pod).await?;
    let second = Scene::vm_of(&scene.phase("twin", "Running").await?)?;
    assert_ne!(first, second);
    scene.only_vm(&second).await
}

#[tokio::test]
async fn no_secret_waits_for_a_vm_that_cannot_be_deleted() -> Result<()> {
    const SECRET: &str = "horse-staple-correct";
    let (scene, _agent) = Scene::with_agent("undeletable").await?;
    let literal = format!("--from-literal=token={SECRET}");
    scene.kubectl.run(["create", "secret", "generic", "keys", &literal]).await?;
    let from = json!({"secretKeyRef": {"name": "keys", "key": "token"}});
    let container = json!({
        "command": ["/bin/sleep", "1000"],
        "env": [{"name": "TOKEN", "valueFrom": from}],
        "volumeMounts": [{"name": "keys", "mountPath": "/private/tmp/keys"}],
    });
    let spec = json!({"volumes": [{"name": "keys", "secret": {"secretName": "keys"}}]});
    scene.create(&scene.pod("keeps", &container, &spec)).await?;
    let pod = scene.phase("keeps", "Running").await?;
    scene.mac.set_fault(Fault::Hang, "delete")?;
    scene.kubectl.run(["delete", "pod", "keeps", "--grace-period=0", "--force"]).await?;
    scene.nowhere_on_disk(SECRET).await?;
    assert_eq!(scene.vms().await?, [Scene::vm_of(&pod)?], "the VM is still there");
    scene.mac.clear_fault(Fault::Hang)?;
    scene.nothing_left().await
}
