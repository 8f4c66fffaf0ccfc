//! The agent dies at each of its crash points while Pods run, restart, are evicted and are deleted.

use anyhow::{Result, ensure};
use serde_json::json;
use tart_kubelet_tests::mac::Fault;
use tart_kubelet_tests::wait;

use super::{CrashingAgent, crash_at};
use crate::scene::{DEADLINE, PodView as _, SLEEP, Scene, UNTIL_FINISHED};

const SECRET: &str = "correct-horse-battery";

#[tokio::test]
async fn agent_crashes_while_a_pod_runs_to_its_end_and_is_deleted() -> Result<()> {
    let scene = Scene::new("dies-run").await?;
    scene.secret("keys", "token", SECRET).await?;
    let script = "echo $TOKEN; cat /private/tmp/keys/token; exit 7";
    scene.pod("run").sh(script).secret_token().create().await?;
    let points = [
        "write.node.json",
        "write.tart-home.json",
        "write.instance.json",
        "write.lease.json",
        "agent.accept.before",
        "write.pod.json",
        "agent.accept.after",
        "agent.plan.before",
        "write.manifest.json",
        "agent.volume.written",
        "agent.volume.published",
        "agent.plan.gathered",
        "agent.plan.logs",
        "agent.plan.shares",
        "write.spec.json",
        "agent.plan.after",
        "agent.launch.before",
        "agent.launch.after",
        "agent.remove-volumes.before",
        "agent.remove-volumes.after",
        "agent.delete-vm.before",
        "write.spec.json",
        "agent.delete-vm.scrubbed",
        "agent.delete-vm.deleted",
        "agent.delete-vm.after",
    ];
    let agent = crash_at(&scene, &points).await?;
    let pod = scene.phase("run", "Failed").await?;
    assert_eq!((pod.main().exit_code(), pod.main().restart_count(), scene.boots()?), (Some(7), Some(0), 1));
    assert_eq!(scene.log(&pod, "main", 0)?, [SECRET, SECRET]);
    scene.nowhere_on_disk(SECRET).await?;

    agent.kill9()?;
    scene.begin_delete("run").await?;
    scene.until_gone("run").await?;
    let points = [
        "agent.forget-pod.before",
        "agent.forget-pod.volumes",
        "agent.forget-pod.logs",
        "agent.forget-pod.after",
    ];
    let _agent = crash_at(&scene, &points).await?;
    scene.nothing_left().await
}

#[tokio::test]
async fn agent_crashes_while_a_boot_only_pod_is_deleted() -> Result<()> {
    let scene = Scene::new("dies-stop").await?;
    scene.secret("keys", "token", SECRET).await?;
    scene.pod("stop").secret_token().create().await?;
    let points = ["agent.plan.environment", "agent.plan.shares", "agent.plan.after", "agent.launch.after"];
    let agent = crash_at(&scene, &points).await?;
    let vm = scene.phase("stop", "Running").await?.vm()?;
    agent.kill9()?;
    assert_eq!(scene.running_vms().await?, [vm]);

    scene.begin_delete("stop").await?;
    let points = [
        "agent.ask-to-stop.before",
        "write.stop.json",
        "agent.ask-to-stop.after",
        "agent.remove-volumes.before",
        "agent.remove-volumes.after",
        "agent.delete-vm.before",
        "agent.delete-vm.scrubbed",
        "agent.delete-vm.deleted",
        "agent.delete-vm.after",
        "agent.delete-pod.before",
        "agent.delete-pod.after",
        "agent.forget-pod.before",
        "agent.forget-pod.after",
    ];
    let _agent = crash_at(&scene, &points).await?;
    scene.until_gone("stop").await?;
    scene.nothing_left().await?;
    scene.nowhere_on_disk(SECRET).await?;
    assert_eq!(scene.boots()?, 1);
    Ok(())
}

#[tokio::test]
async fn agent_crashes_while_it_pulls_and_publishes() -> Result<()> {
    let scene = Scene::new("dies-tell").await?;
    scene.pod("tell").sh(format!("{UNTIL_FINISHED}; exit 7")).create().await?;
    let points = [
        "write.images.json",
        "agent.pull.begun",
        "agent.pull.ended",
        "agent.base.made",
        "agent.publish.before",
        "agent.publish.after",
    ];
    let agent = crash_at(&scene, &points).await?;
    let vm = scene.phase("tell", "Running").await?.vm()?;

    agent.kill9()?;
    let crashing =
        CrashingAgent::start(&scene, &["agent.publish-final.before", "agent.publish-final.after"])?;
    scene.finish_command(&vm).await;
    let _agent = crashing.survive().await?;
    let pod = scene.phase("tell", "Failed").await?;
    assert_eq!((pod.main().exit_code(), pod.main().restart_count(), scene.boots()?), (Some(7), Some(0), 1));
    scene.delete_all_of("tell").await
}

#[tokio::test]
async fn agent_crashes_while_a_container_restarts() -> Result<()> {
    let scene = Scene::new("dies-again").await?;
    // Fails with the number of the try, but for the third.
    let script = "cd /private/tmp/kept; echo x >>tries; n=$(grep -c x tries); [ $n -eq 3 ] || exit $n";
    scene
        .pod("again")
        .sh(script)
        .empty_dir("kept", "/private/tmp/kept")
        .restart_policy("OnFailure")
        .create()
        .await?;
    let points = [
        // The first VM is over, and the second is planned.
        "agent.delete-vm.before",
        "agent.delete-vm.deleted",
        "agent.delete-vm.after",
        "agent.plan.before",
        "agent.plan.logs",
        "write.spec.json",
        "agent.plan.after",
        "agent.launch.before",
        "agent.launch.after",
        // The second VM is over. When the third is planned, the records of the first are dropped.
        "agent.delete-vm.before",
        "agent.delete-vm.after",
        "agent.plan.before",
        "write.spec.json",
        "agent.forget-run.before",
        "agent.forget-run.volumes",
        "agent.forget-run.logs",
        "agent.forget-run.after",
        "agent.plan.after",
        "agent.launch.before",
        "agent.launch.after",
        "agent.delete-vm.after",
    ];
    let _agent = crash_at(&scene, &points).await?;
    let pod = scene.phase("again", "Succeeded").await?;
    assert_eq!((pod.main().exit_code(), pod.main().restart_count(), scene.boots()?), (Some(0), Some(2), 3));
    assert_eq!(pod.main().last_exit_code(), Some(2));
    ensure!(scene.log(&pod, "main", 0).is_err(), "the log of the first VM is still there");
    scene.delete_all_of("again").await
}

#[tokio::test]
async fn agent_crashes_while_it_answers_a_command_request() -> Result<()> {
    let scene = Scene::new("dies-due").await?;
    scene.secret("keys", "token", SECRET).await?;
    scene.pod("due").sh("echo $TOKEN; exit 7").secret_token().init_sh("init", "true").create().await?;
    let points = [
        "agent.send-command.before",
        "agent.send-command.resolved",
        "write.command-response.json",
        "agent.send-command.after",
    ];
    let _agent = crash_at(&scene, &points).await?;
    let pod = scene.phase("due", "Failed").await?;
    assert_eq!((pod.main().exit_code(), pod.main().restart_count(), scene.boots()?), (Some(7), Some(0), 1));
    assert_eq!(scene.log(&pod, "main", 0)?, [SECRET]);
    scene.nowhere_on_disk(SECRET).await?;
    scene.delete_all_of("due").await
}

#[tokio::test]
async fn agent_crashes_while_it_evicts_a_pod() -> Result<()> {
    let (scene, agent) = Scene::with_agent("dies-evict").await?;
    let script = format!(
        "{UNTIL_FINISHED}; \
         dd if=/dev/zero of=/private/tmp/cache/file bs=1024 count=4096; touch /private/tmp/full; sleep 1000"
    );
    let vm = scene
        .pod("evict")
        .sh(script)
        .mount("cache", "/private/tmp/cache")
        .restart_policy("Always")
        .volume("cache", json!({"emptyDir": {"sizeLimit": "1Mi"}}))
        .create_until("Running")
        .await?
        .vm()?;
    agent.kill9()?;
    scene.finish_command(&vm).await;
    scene.guest_file(&vm, "/private/tmp/full").await?;
    let points = [
        "agent.evict.before",
        "write.evicted.json",
        "agent.evict.after",
        "agent.ask-to-stop.before",
        "agent.ask-to-stop.after",
        "agent.remove-volumes.after",
        "agent.delete-vm.before",
    ];
    let _agent = crash_at(&scene, &points).await?;
    let pod = scene.phase("evict", "Failed").await?;
    assert_eq!(pod.reason(), Some("Evicted"));
    assert_eq!((pod.main().restart_count(), scene.boots()?), (Some(0), 1));
    scene.delete_all_of("evict").await
}

#[tokio::test]
async fn agent_crashes_while_it_frees_space_for_a_vm() -> Result<()> {
    let (scene, agent) = Scene::with_agent("dies-room").await?;
    scene.pod("first").command(["/usr/bin/true"]).create_until("Succeeded").await?;
    agent.kill9()?;
    scene.mac.set_fault(Fault::NoSpace, "clone")?;
    scene.pod("second").command(["/usr/bin/true"]).create().await?;
    CrashingAgent::start(&scene, &["agent.free-space.before"])?.crash().await?;
    scene.mac.clear_fault(Fault::NoSpace)?;
    // The shim waits until an agent runs again.
    let _agent = crash_at(&scene, &["agent.free-space.after"]).await?;
    let pod = scene.phase("second", "Succeeded").await?;
    assert_eq!((pod.main().restart_count(), scene.boots()?), (Some(0), 2));
    Ok(())
}

#[tokio::test]
async fn agent_crashes_while_it_updates_a_volume() -> Result<()> {
    let (scene, agent) = Scene::with_agent("dies-update").await?;
    scene.config_map("settings", "mode", "old").await?;
    // A token would be written before the ConfigMap, and change each time.
    let pod = scene
        .pod("update")
        .command(SLEEP)
        .mount("settings", "/private/tmp/settings")
        .volume("settings", json!({"configMap": {"name": "settings"}}))
        .spec(json!({"automountServiceAccountToken": false}))
        .create_until("Running")
        .await?;
    let (vm, uid) = (pod.vm()?, pod.metadata.uid.unwrap_or_default());
    agent.kill9()?;
    let crashing = CrashingAgent::start(&scene, &["agent.volume.written", "agent.volume.published"])?;
    scene.config_map("settings", "mode", "new").await?;
    let _agent = crashing.survive().await?;
    let volume = scene.volumes_dir(&uid).join("settings");
    wait::eventually("the new version, and no other", DEADLINE, async || {
        let mode = scene.mac.tart(["exec", &vm, "cat", "/private/tmp/settings/mode"]).await?;
        ensure!(mode == "new", "{mode}");
        let names =
            std::fs::read_dir(&volume)?.map(|entry| Ok(entry?.file_name())).collect::<Result<Vec<_>>>()?;
        ensure!(names.len() == 3, "there should be a version, the link to it, and a name: {names:?}");
        Ok(())
    })
    .await?;
    assert_eq!((scene.pods.get("update").await?.main().restart_count(), scene.boots()?), (Some(0), 1));
    Ok(())
}
