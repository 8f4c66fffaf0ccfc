//! Records that are lost: deleted, or spoilt by a power cut or a bad disk.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tart_kubelet_tests::wait;

use super::{Mortal, boots, container, dies_at, end_of, forget, init_end_of, last_end_of};
use crate::scene::{DEADLINE, IMAGE, Scene};

/// Leaves nothing but the beginning of every record in a directory, and below it. Returns how many there were.
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

#[tokio::test]
async fn of_a_vm_that_runs() -> Result<()> {
    let (scene, agent) = Scene::with_agent("lost-running").await?;
    let script = "until [ -e /private/tmp/go ]; do sleep 0.05; done; exit 7";
    scene.create(&scene.pod("lost", &json!({"command": ["/bin/sh", "-c", script]}), &json!({}))).await?;
    let pod = scene.phase("lost", "Running").await?;
    let vm = Scene::vm_of(&pod)?;
    agent.kill9()?;
    let dir = scene.agent.state_dir().join("pods").join(pod.metadata.uid.context("no UID")?);
    ensure!(spoil(&dir)? >= 4, "there are hardly any records");
    let _agent = scene.agent.start()?;
    // It takes the Pod for its own again.
    wait::eventually("a record of the Pod", DEADLINE, async || {
        ensure!(std::fs::read_to_string(dir.join("pod.json"))? != "{");
        Ok(())
    })
    .await?;
    scene.let_go(&vm).await;
    let pod = scene.phase("lost", "Failed").await?;
    assert_eq!((end_of(&pod)?.exit_code, container(&pod)?.restart_count, boots(&scene)?), (7, 0, 1));
    forget(&scene, "lost").await
}

#[tokio::test]
async fn all_of_a_vm_that_runs() -> Result<()> {
    let (scene, agent) = Scene::with_agent("lost-all").await?;
    let always = json!({"restartPolicy": "Always"});
    for (name, spec) in [("always", &always), ("never", &json!({}))] {
        scene.create(&scene.pod(name, &json!({"command": ["/bin/sleep", "1000"]}), spec)).await?;
    }
    for name in ["always", "never"] {
        scene.phase(name, "Running").await?;
    }
    agent.kill9()?;
    std::fs::remove_dir_all(scene.agent.state_dir().join("pods"))?;
    let _agent = scene.agent.start()?;
    let pod = wait::until(&scene.pods, "always", "started again", DEADLINE, |pod| {
        container(pod).is_ok_and(|status| status.restart_count == 1 && status.ready)
    })
    .await
    .with_context(|| scene.agent_log())?;
    assert_eq!(last_end_of(&pod)?.reason.as_deref(), Some("ContainerStatusUnknown"));
    let never = scene.phase("never", "Failed").await?;
    assert_eq!(end_of(&never)?.reason.as_deref(), Some("ContainerStatusUnknown"));
    scene.only_vm(&Scene::vm_of(&pod)?).await?;
    assert_eq!(boots(&scene)?, 3);
    scene.kubectl.run(["delete", "pod", "--all", "--grace-period=1"]).await?;
    scene.nothing_left().await
}

#[tokio::test]
async fn all_of_a_vm_and_the_vm_itself() -> Result<()> {
    let (scene, agent) = Scene::with_agent("lost-mac").await?;
    let always = json!({"restartPolicy": "Always"});
    let init = json!([{"name": "init", "image": IMAGE, "command": ["/usr/bin/true"]}]);
    let mut vms = Vec::new();
    for (name, spec) in [("always", &always), ("never", &json!({"initContainers": init}))] {
        scene.create(&scene.pod(name, &json!({"command": ["/bin/sleep", "1000"]}), spec)).await?;
        vms.push(Scene::vm_of(&scene.phase(name, "Running").await?)?);
    }
    scene.mac.lose_power()?;
    agent.wait_for_exit(DEADLINE).await?;
    // The Mac was set up anew, under its old name.
    for part in ["pods", "logs", "volumes"] {
        std::fs::remove_dir_all(scene.agent.state_dir().join(part))?;
    }
    for vm in &vms {
        std::fs::remove_dir_all(scene.mac.tart_home().join("vms").join(vm))?;
    }
    let _agent = dies_at(&scene, &["agent.recall.before", "agent.recall.after"]).await?;
    let never = scene.phase("never", "Failed").await?;
    assert_eq!(end_of(&never)?.reason.as_deref(), Some("ContainerStatusUnknown"));
    assert_eq!((end_of(&never)?.exit_code, container(&never)?.restart_count), (137, 0));
    assert_eq!(init_end_of(&never)?.exit_code, 0, "what the API has once shown to be over stays so");
    let pod = wait::until(&scene.pods, "always", "started again", DEADLINE, |pod| {
        container(pod).is_ok_and(|status| status.restart_count > 0 && status.ready)
    })
    .await
    .with_context(|| scene.agent_log())?;
    assert_eq!(container(&pod)?.restart_count, 1);
    assert_eq!(last_end_of(&pod)?.reason.as_deref(), Some("ContainerStatusUnknown"));
    scene.only_vm(&Scene::vm_of(&pod)?).await?;
    assert_eq!(boots(&scene)?, 3);
    scene.kubectl.run(["delete", "pod", "--all", "--grace-period=1"]).await?;
    scene.nothing_left().await
}

#[tokio::test]
async fn all_of_a_vm_that_is_not_the_first() -> Result<()> {
    let (scene, agent) = Scene::with_agent("lost-later").await?;
    let script = "until [ -e /private/tmp/go ]; do sleep 0.05; done; exit 7";
    let again = json!({"restartPolicy": "OnFailure"});
    scene.create(&scene.pod("again", &json!({"command": ["/bin/sh", "-c", script]}), &again)).await?;
    let first = Scene::vm_of(&scene.phase("again", "Running").await?)?;
    scene.let_go(&first).await;
    let restarted = async |count| {
        let ready = wait::until(&scene.pods, "again", "started again", DEADLINE, |pod| {
            container(pod).is_ok_and(|status| status.restart_count == count && status.ready)
        });
        ready.await.with_context(|| scene.agent_log())
    };
    restarted(1).await?;
    agent.kill9()?;
    std::fs::remove_dir_all(scene.agent.state_dir().join("pods"))?;
    let _agent = scene.agent.start()?;
    // The one that ran is ended and counted, and never is there another beside it.
    let pod = restarted(2).await?;
    assert_eq!(last_end_of(&pod)?.reason.as_deref(), Some("ContainerStatusUnknown"));
    scene.only_vm(&Scene::vm_of(&pod)?).await?;
    assert_eq!(boots(&scene)?, 3);
    scene.kubectl.run(["delete", "pod", "again", "--grace-period=1"]).await?;
    scene.nothing_left().await
}

#[tokio::test]
async fn all_but_a_rest_that_is_no_vm_to_tart() -> Result<()> {
    let (scene, agent) = Scene::with_agent("lost-rest").await?;
    let again = json!({"restartPolicy": "OnFailure"});
    let script = "until [ -e /private/tmp/go ]; do sleep 0.05; done; exit 7";
    scene.create(&scene.pod("rest", &json!({"command": ["/bin/sh", "-c", script]}), &again)).await?;
    let pod = scene.phase("rest", "Running").await?;
    // As a deletion leaves it that was cut short.
    let uid = pod.metadata.uid.clone().context("no UID")?;
    let rest = scene.mac.tart_home().join("vms").join(format!("tk-{uid}-3"));
    std::fs::create_dir(&rest)?;
    std::fs::write(rest.join("disk.img"), "what is left")?;
    scene.let_go(&Scene::vm_of(&pod)?).await;
    let ready = wait::until(&scene.pods, "rest", "started again", DEADLINE, |pod| {
        container(pod).is_ok_and(|status| status.restart_count > 0 && status.ready)
    });
    ready.await.with_context(|| agent.log().unwrap_or_default())?;
    ensure!(!rest.exists(), "it is still there");
    scene.kubectl.run(["delete", "pod", "rest", "--grace-period=1"]).await?;
    scene.nothing_left().await
}

#[tokio::test]
async fn of_a_vm_that_is_planned_and_of_one_that_is_over() -> Result<()> {
    let scene = Scene::new("lost-others").await?;
    let dir = async |pod: &str| {
        let uid = scene.pods.get(pod).await?.metadata.uid.context("no UID")?;
        anyhow::Ok(scene.agent.state_dir().join("pods").join(uid))
    };
    let script = json!({"command": ["/bin/sh", "-c", "exit 7"]});
    scene.create(&scene.pod("planned", &script, &json!({}))).await?;
    Mortal::start(&scene, &["agent.plan.after"])?.die().await?;
    std::fs::remove_file(dir("planned").await?.join("0/spec.json"))?;
    let agent = scene.agent.start()?;
    let pod = scene.phase("planned", "Failed").await?;
    assert_eq!((end_of(&pod)?.exit_code, container(&pod)?.restart_count, boots(&scene)?), (7, 0, 1));
    forget(&scene, "planned").await?;
    agent.kill9()?;

    // How it ended is lost, but not that it has.
    scene.create(&scene.pod("over", &script, &json!({}))).await?;
    // Before anybody is told of it.
    Mortal::start(&scene, &["agent.publish-final.before"])?.die().await?;
    ensure!(spoil(&dir("over").await?)? >= 4, "there are hardly any records");
    let _agent = scene.agent.start()?;
    let pod = scene.phase("over", "Failed").await?;
    assert_eq!(end_of(&pod)?.reason.as_deref(), Some("ContainerStatusUnknown"));
    assert_eq!((container(&pod)?.restart_count, boots(&scene)?), (0, 2));
    forget(&scene, "over").await
}
