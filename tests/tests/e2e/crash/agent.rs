//! The agent dies at each of its points while Pods run, restart, are evicted and are deleted.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use tart_kubelet_tests::mac::Fault;
use tart_kubelet_tests::wait;

use super::{Mortal, boots, container, dies_at, end_of, forget, last_end_of};
use crate::scene::{DEADLINE, IMAGE, Scene};

const SECRET: &str = "correct-horse-battery";

/// A Pod with a secret in its environment and one in a volume.
pub(super) fn secretive(scene: &Scene, name: &str, container: &Value) -> Value {
    let mut container = container.clone();
    let from = json!({"secretKeyRef": {"name": "keys", "key": "token"}});
    container["env"] = json!([{"name": "TOKEN", "valueFrom": from}]);
    container["volumeMounts"] = json!([{"name": "keys", "mountPath": "/private/tmp/keys"}]);
    let spec = json!({"volumes": [{"name": "keys", "secret": {"secretName": "keys"}}]});
    scene.pod(name, &container, &spec)
}

/// Has the Secret that such a Pod asks for.
pub(super) async fn add_secret(scene: &Scene, secret: &str) -> Result<()> {
    scene
        .kubectl
        .run(["create", "secret", "generic", "keys", &format!("--from-literal=token={secret}")])
        .await?;
    Ok(())
}

#[tokio::test]
async fn a_pod_runs_to_its_end_and_is_deleted() -> Result<()> {
    let scene = Scene::new("dies-run").await?;
    add_secret(&scene, SECRET).await?;
    let script = "echo $TOKEN; cat /private/tmp/keys/token; exit 7";
    scene.create(&secretive(&scene, "run", &json!({"command": ["/bin/sh", "-c", script]}))).await?;
    let points = [
        "write.instance.json",
        "agent.accept.before",
        "write.pod.json",
        "agent.accept.after",
        "agent.plan.before",
        "agent.volume.written",
        "agent.volume.published",
        "agent.plan.gathered",
        "agent.plan.logs",
        "agent.plan.shares",
        "write.spec.json",
        "agent.plan.after",
        "agent.launch.before",
        "agent.launch.after",
        "agent.wipe.before",
        "agent.wipe.after",
        "agent.clean.before",
        "write.spec.json",
        "agent.clean.scrubbed",
        "agent.clean.deleted",
        "agent.clean.after",
    ];
    let agent = dies_at(&scene, &points).await?;
    let pod = scene.phase("run", "Failed").await?;
    assert_eq!((end_of(&pod)?.exit_code, container(&pod)?.restart_count, boots(&scene)?), (7, 0, 1));
    assert_eq!(scene.log(&pod, "main", 0)?, [SECRET, SECRET]);
    scene.nowhere_on_disk(SECRET).await?;

    agent.kill9()?;
    scene.kubectl.run(["delete", "pod", "run", "--wait=false"]).await?;
    wait::until_gone(&scene.pods, "run", DEADLINE).await?;
    let points = ["agent.forget.before", "agent.forget.volumes", "agent.forget.logs", "agent.forget.after"];
    let _agent = dies_at(&scene, &points).await?;
    scene.nothing_left().await
}

#[tokio::test]
async fn a_pod_that_boots_is_deleted() -> Result<()> {
    let scene = Scene::new("dies-stop").await?;
    add_secret(&scene, SECRET).await?;
    scene.create(&secretive(&scene, "stop", &json!({}))).await?;
    let points = ["agent.plan.environment", "agent.plan.shares", "agent.plan.after", "agent.launch.after"];
    let agent = dies_at(&scene, &points).await?;
    let vm = Scene::vm_of(&scene.phase("stop", "Running").await?)?;
    agent.kill9()?;
    assert_eq!(scene.running_vms().await?, [vm]);

    scene.kubectl.run(["delete", "pod", "stop", "--wait=false"]).await?;
    let points = [
        "agent.ask-to-stop.before",
        "write.stop.json",
        "agent.ask-to-stop.after",
        "agent.wipe.before",
        "agent.wipe.after",
        "agent.clean.before",
        "agent.clean.scrubbed",
        "agent.clean.deleted",
        "agent.clean.after",
        "agent.delete-pod.before",
        "agent.delete-pod.after",
        "agent.forget.before",
        "agent.forget.after",
    ];
    let _agent = dies_at(&scene, &points).await?;
    wait::until_gone(&scene.pods, "stop", DEADLINE).await?;
    scene.nothing_left().await?;
    scene.nowhere_on_disk(SECRET).await?;
    assert_eq!(boots(&scene)?, 1);
    Ok(())
}

#[tokio::test]
async fn a_pod_is_pulled_for_and_told_of() -> Result<()> {
    let scene = Scene::new("dies-tell").await?;
    let go = "until [ -e /private/tmp/go ]; do sleep 0.05; done; exit 7";
    scene.create(&scene.pod("tell", &json!({"command": ["/bin/sh", "-c", go]}), &json!({}))).await?;
    let points = [
        "write.images.json",
        "agent.pull.begun",
        "agent.pull.ended",
        "agent.base.made",
        "agent.publish.before",
        "agent.publish.after",
    ];
    let agent = dies_at(&scene, &points).await?;
    let vm = Scene::vm_of(&scene.phase("tell", "Running").await?)?;

    agent.kill9()?;
    let mortal = Mortal::start(&scene, &["agent.publish-final.before", "agent.publish-final.after"])?;
    scene.let_go(&vm).await;
    let _agent = mortal.outlive().await?;
    let pod = scene.phase("tell", "Failed").await?;
    assert_eq!((end_of(&pod)?.exit_code, container(&pod)?.restart_count, boots(&scene)?), (7, 0, 1));
    forget(&scene, "tell").await
}

#[tokio::test]
async fn a_container_restarts_again_and_again() -> Result<()> {
    let scene = Scene::new("dies-again").await?;
    // Fails with the number of the try, but for the third.
    let script = "cd /private/tmp/kept; echo x >>tries; n=$(grep -c x tries); [ $n -eq 3 ] || exit $n";
    let mounts = json!([{"name": "kept", "mountPath": "/private/tmp/kept"}]);
    let spec = json!({"restartPolicy": "OnFailure", "volumes": [{"name": "kept", "emptyDir": {}}]});
    let container_spec = json!({"command": ["/bin/sh", "-c", script], "volumeMounts": mounts});
    scene.create(&scene.pod("again", &container_spec, &spec)).await?;
    let points = [
        // The first VM is over, and the second is planned.
        "agent.clean.before",
        "agent.clean.deleted",
        "agent.clean.after",
        "agent.plan.before",
        "agent.plan.logs",
        "write.spec.json",
        "agent.plan.after",
        "agent.launch.before",
        "agent.launch.after",
        // The second is over, and with the beginning of a third the first one is history.
        "agent.clean.before",
        "agent.clean.after",
        "agent.plan.before",
        "write.spec.json",
        "agent.drop.before",
        "agent.drop.volumes",
        "agent.drop.logs",
        "agent.drop.after",
        "agent.plan.after",
        "agent.launch.before",
        "agent.launch.after",
        "agent.clean.after",
    ];
    let _agent = dies_at(&scene, &points).await?;
    let pod = scene.phase("again", "Succeeded").await?;
    assert_eq!((end_of(&pod)?.exit_code, container(&pod)?.restart_count, boots(&scene)?), (0, 2, 3));
    assert_eq!(last_end_of(&pod)?.exit_code, 2);
    ensure!(scene.log(&pod, "main", 0).is_err(), "the first VM is not forgotten");
    forget(&scene, "again").await
}

#[tokio::test]
async fn a_container_is_due() -> Result<()> {
    let scene = Scene::new("dies-due").await?;
    add_secret(&scene, SECRET).await?;
    let mut pod = secretive(&scene, "due", &json!({"command": ["/bin/sh", "-c", "echo $TOKEN; exit 7"]}));
    let init = json!({"name": "init", "image": IMAGE, "command": ["/usr/bin/true"]});
    pod["spec"]["initContainers"] = json!([init]);
    scene.create(&pod).await?;
    let points =
        ["agent.deliver.before", "agent.deliver.resolved", "write.delivery.json", "agent.deliver.after"];
    let _agent = dies_at(&scene, &points).await?;
    let pod = scene.phase("due", "Failed").await?;
    assert_eq!((end_of(&pod)?.exit_code, container(&pod)?.restart_count, boots(&scene)?), (7, 0, 1));
    assert_eq!(scene.log(&pod, "main", 0)?, [SECRET]);
    scene.nowhere_on_disk(SECRET).await?;
    forget(&scene, "due").await
}

#[tokio::test]
async fn a_pod_is_evicted() -> Result<()> {
    let (scene, agent) = Scene::with_agent("dies-evict").await?;
    let script = "until [ -e /private/tmp/go ]; do sleep 0.05; done; \
                  dd if=/dev/zero of=/private/tmp/cache/file bs=1024 count=4096; touch /private/tmp/full; sleep 1000";
    let mounts = json!([{"name": "cache", "mountPath": "/private/tmp/cache"}]);
    let spec = json!({
        "restartPolicy": "Always", "volumes": [{"name": "cache", "emptyDir": {"sizeLimit": "1Mi"}}],
    });
    let container_spec = json!({"command": ["/bin/sh", "-c", script], "volumeMounts": mounts});
    scene.create(&scene.pod("evict", &container_spec, &spec)).await?;
    let vm = Scene::vm_of(&scene.phase("evict", "Running").await?)?;
    agent.kill9()?;
    scene.let_go(&vm).await;
    wait::eventually("a full volume", DEADLINE, async || {
        scene.mac.tart(["exec", &vm, "test", "-e", "/private/tmp/full"]).await
    })
    .await?;
    let points = [
        "agent.evict.before",
        "write.evicted.json",
        "agent.evict.after",
        "agent.ask-to-stop.before",
        "agent.ask-to-stop.after",
        "agent.wipe.after",
        "agent.clean.before",
    ];
    let _agent = dies_at(&scene, &points).await?;
    let pod = scene.phase("evict", "Failed").await?;
    assert_eq!(pod.status.as_ref().and_then(|status| status.reason.as_deref()), Some("Evicted"));
    assert_eq!((container(&pod)?.restart_count, boots(&scene)?), (0, 1));
    forget(&scene, "evict").await
}

#[tokio::test]
async fn there_is_no_room_for_a_vm() -> Result<()> {
    let (scene, agent) = Scene::with_agent("dies-room").await?;
    let command = json!({"command": ["/usr/bin/true"]});
    scene.create(&scene.pod("first", &command, &json!({}))).await?;
    scene.phase("first", "Succeeded").await?;
    agent.kill9()?;
    scene.mac.set_fault(Fault::NoSpace, "clone")?;
    scene.create(&scene.pod("second", &command, &json!({}))).await?;
    Mortal::start(&scene, &["agent.make-room.before"])?.die().await?;
    scene.mac.clear_fault(Fault::NoSpace)?;
    // Its shim waits for an agent to come back.
    let _agent = dies_at(&scene, &["agent.make-room.after"]).await?;
    let pod = scene.phase("second", "Succeeded").await?;
    assert_eq!((container(&pod)?.restart_count, boots(&scene)?), (0, 2));
    Ok(())
}

#[tokio::test]
async fn a_config_map_changes_under_a_running_pod() -> Result<()> {
    let (scene, agent) = Scene::with_agent("dies-update").await?;
    scene.kubectl.run(["create", "configmap", "settings", "--from-literal=mode=old"]).await?;
    let mounts = json!([{"name": "settings", "mountPath": "/private/tmp/settings"}]);
    let container_spec = json!({"command": ["/bin/sleep", "1000"], "volumeMounts": mounts});
    // A token would be written first, and change each time.
    let spec = json!({
        "automountServiceAccountToken": false,
        "volumes": [{"name": "settings", "configMap": {"name": "settings"}}],
    });
    scene.create(&scene.pod("update", &container_spec, &spec)).await?;
    let pod = scene.phase("update", "Running").await?;
    let (vm, uid) = (Scene::vm_of(&pod)?, pod.metadata.uid.unwrap_or_default());
    agent.kill9()?;
    let mortal = Mortal::start(&scene, &["agent.volume.written", "agent.volume.published"])?;
    let newer = r#"{"data":{"mode":"new"}}"#;
    scene.kubectl.run(["patch", "configmap", "settings", "--type=merge", "--patch", newer]).await?;
    let _agent = mortal.outlive().await?;
    let volume = scene.agent.state_dir().join("volumes").join(uid).join("settings");
    wait::eventually("the new version, and no other", DEADLINE, async || {
        let mode = scene.mac.tart(["exec", &vm, "cat", "/private/tmp/settings/mode"]).await?;
        ensure!(mode == "new", "{mode}");
        let names =
            std::fs::read_dir(&volume)?.map(|entry| Ok(entry?.file_name())).collect::<Result<Vec<_>>>()?;
        ensure!(names.len() == 3, "there should be a version, the link to it, and a name: {names:?}");
        Ok(())
    })
    .await?;
    assert_eq!((container(&scene.pods.get("update").await?)?.restart_count, boots(&scene)?), (0, 1));
    Ok(())
}
