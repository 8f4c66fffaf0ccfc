//! The shim dies when the container has ended and nobody has written down how. The guest still knows, and is asked: once, for a short
//! time, and as somebody who may lie.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use tart_kubelet_tests::mac::Fault;
use tart_kubelet_tests::wait;

use super::{Mortal, boots, container, dies_at, end_of, forget, init_end_of};
use crate::scene::{DEADLINE, IMAGE, Scene, state_of};

fn shell(script: &str) -> Value {
    json!(["/bin/sh", "-c", script])
}

#[tokio::test]
async fn an_exit_code_and_last_words_survive_the_shim() -> Result<()> {
    let scene = Scene::new("last-words").await?;
    let leaves = json!({
        "command": shell("echo said; printf 'in the end' >/private/tmp/words; exit 7"),
        "terminationMessagePath": "/private/tmp/words",
    });
    let says = json!({
        "command": shell("echo said; exit 7"), "terminationMessagePolicy": "FallbackToLogsOnError",
    });
    let points: [&[&str]; 4] = [
        &["shim.exit"],
        &["write.result.json"],
        &["shim.exited"],
        // The agent dies, too, when it asks and when it was told.
        &["shim.exit", "agent.ask-guest.before", "write.result.json", "agent.ask-guest.after"],
    ];
    for (index, points) in points.into_iter().enumerate() {
        for (name, container_spec, words) in [("leaves", &leaves, "in the end"), ("says", &says, "said\n")] {
            let name = format!("{name}-{index}");
            let step = async {
                let before = boots(&scene)?;
                let mortal = Mortal::start(&scene, points)?;
                scene.create(&scene.pod(&name, container_spec, &json!({}))).await?;
                let agent = mortal.outlive().await?;
                let pod = scene.phase(&name, "Failed").await?;
                let end = end_of(&pod)?;
                ensure!(end.exit_code == 7 && end.reason.as_deref() == Some("Error"), "{end:?}");
                ensure!(end.message.as_deref() == Some(words), "{end:?}");
                ensure!(end.started_at.is_some() && end.started_at <= end.finished_at, "{end:?}");
                ensure!(container(&pod)?.restart_count == 0 && boots(&scene)? == before + 1, "it ran again");
                ensure!(scene.log(&pod, "main", 0)? == ["said"]);
                forget(&scene, &name).await?;
                agent.kill9().map(drop)
            };
            step.await.with_context(|| format!("{name} after a crash at {points:?}"))?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn an_init_container_that_has_failed_is_told_of() -> Result<()> {
    let scene = Scene::new("last-init").await?;
    let fails = shell("printf 'no licence' >/private/tmp/words; exit 3");
    let init = |command: Value| {
        let words = "/private/tmp/words";
        json!({"name": "init", "image": IMAGE, "command": command, "terminationMessagePath": words})
    };
    // The second one has written down that the init container is over, but not what follows.
    for (name, point) in [("asked", "shim.init.exit"), ("known", "write.result.json")] {
        let spec = json!({"initContainers": [init(fails.clone())]});
        let mortal = Mortal::start(&scene, &[point])?;
        scene.create(&scene.pod(name, &json!({"command": ["/usr/bin/true"]}), &spec)).await?;
        let agent = mortal.outlive().await?;
        let pod = scene.phase(name, "Failed").await?;
        let end = init_end_of(&pod)?;
        assert_eq!((name, end.exit_code, end.message.as_deref()), (name, 3, Some("no licence")));
        let main = state_of(&pod).and_then(|state| state.waiting).and_then(|waiting| waiting.reason);
        assert_eq!((name, main.as_deref()), (name, Some("PodInitializing")));
        forget(&scene, name).await?;
        agent.kill9()?;
    }
    // Nobody knows how one ends that still runs, but it does not run for ever.
    let mortal = Mortal::start(&scene, &["shim.init.started"])?;
    let spec = json!({"initContainers": [init(json!(["/bin/sleep", "1000"]))]});
    scene.create(&scene.pod("runs", &json!({"command": ["/usr/bin/true"]}), &spec)).await?;
    let _agent = mortal.outlive().await?;
    let end = init_end_of(&scene.phase("runs", "Failed").await?)?;
    assert_eq!((end.exit_code, end.reason.as_deref()), (137, Some("ContainerStatusUnknown")));
    forget(&scene, "runs").await
}

/// An image whose guest leaves word of its end, and does what `then` says.
fn appliance(scene: &Scene, name: &str, word: &str, then: &str) -> Result<String> {
    let image = format!("registry.test/macos/{name}:1");
    let status = "/Volumes/My Shared Files/pod_status/status";
    let script = format!("{word} '{status}'; {then}");
    scene.mac.add_image(&image, &json!({"boot": shell(&script), "shutdownDelay": 2}))?;
    Ok(image)
}

/// Waits until a guest has left word of its end, to the last word.
async fn has_said(scene: &Scene, pod: &Pod, words: &str) -> Result<()> {
    let uid = pod.metadata.uid.as_deref().context("no UID")?;
    let status = scene.agent.state_dir().join("volumes").join(uid).join(".boot-0/pod_status/status");
    wait::eventually("the guest's word", DEADLINE, async || {
        let said = std::fs::read_to_string(&status)?;
        ensure!(said.ends_with(words), "{said}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_guest_that_only_boots_is_believed_once_it_has_ended() -> Result<()> {
    let scene = Scene::new("last-boot").await?;
    let ends = appliance(&scene, "ends", "printf '7\\nit is over' >", "sudo shutdown -h now")?;
    scene.create(&scene.pod("ends", &json!({"image": ends}), &json!({}))).await?;
    let agent = dies_at(&scene, &["write.outcome.json"]).await?;
    let end = end_of(&scene.phase("ends", "Failed").await?)?;
    assert_eq!((end.exit_code, end.message.as_deref()), (7, Some("it is over")));
    assert_eq!(boots(&scene)?, 1);
    forget(&scene, "ends").await?;
    agent.kill9()?;

    // It still runs, but is about to end.
    let go = "until [ -e /private/tmp/go ]; do sleep 0.05; done; sudo shutdown -h now";
    let leaves = appliance(&scene, "leaves", "printf '3\\nnot well' >", go)?;
    let agent = scene.agent.start()?;
    scene.create(&scene.pod("leaves", &json!({"image": leaves}), &json!({}))).await?;
    let pod = scene.phase("leaves", "Running").await?;
    has_said(&scene, &pod, "not well").await?;
    agent.kill9()?;
    scene.kill_shims()?;
    scene.let_go(&Scene::vm_of(&pod)?).await;
    let agent = scene.agent.start()?;
    let end = end_of(&scene.phase("leaves", "Failed").await?)?;
    assert_eq!((end.exit_code, end.message.as_deref()), (3, Some("not well")));
    forget(&scene, "leaves").await?;
    agent.kill9()?;

    // What says so and stays has not ended so.
    let stays = appliance(&scene, "stays", "printf '0\\nwell' >", "sleep 1000")?;
    let agent = scene.agent.start()?;
    scene.create(&scene.pod("stays", &json!({"image": stays}), &json!({}))).await?;
    has_said(&scene, &scene.phase("stays", "Running").await?, "well").await?;
    scene.kill_shims()?;
    let end = end_of(&scene.phase("stays", "Failed").await?)?;
    assert_eq!(end.reason.as_deref(), Some("ContainerStatusUnknown"));
    forget(&scene, "stays").await?;
    agent.kill9()?;

    // And what tells of it by a link has said nothing.
    let links = appliance(&scene, "links", "ln -s /etc/passwd", "sudo shutdown -h now")?;
    scene.create(&scene.pod("links", &json!({"image": links}), &json!({}))).await?;
    let _agent = dies_at(&scene, &["write.outcome.json"]).await?;
    let end = end_of(&scene.phase("links", "Failed").await?)?;
    assert_eq!(end.reason.as_deref(), Some("ContainerStatusUnknown"));
    Ok(())
}

#[tokio::test]
async fn a_guest_that_was_cut_off_has_not_done_its_work() -> Result<()> {
    let (scene, mut agent) = Scene::with_agent("last-cut").await?;
    let lost = (137, Some("ContainerStatusUnknown"));
    for (name, word, expected) in [("well", "0\\nwell", lost), ("ill", "3\\nill", (3, Some("Error")))] {
        let image = appliance(&scene, name, &format!("printf '{word}' >"), "sleep 1000")?;
        scene.create(&scene.pod(name, &json!({"image": image}), &json!({}))).await?;
        has_said(&scene, &scene.phase(name, "Running").await?, name).await?;
        scene.mac.lose_power()?;
        agent.wait_for_exit(DEADLINE).await?;
        agent = scene.agent.start()?;
        let end = end_of(&scene.phase(name, "Failed").await?)?;
        assert_eq!((name, (end.exit_code, end.reason.as_deref())), (name, expected));
        forget(&scene, name).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_vm_is_stopped_though_nothing_can_be_written_down() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("last-unwritten").await?;
    scene.create(&scene.pod("orphan", &json!({"command": ["/bin/sleep", "1000"]}), &json!({}))).await?;
    let pod = scene.phase("orphan", "Running").await?;
    let dir = scene.agent.state_dir().join("pods").join(pod.metadata.uid.context("no UID")?).join("0");
    // Whoever creates it through the link fails.
    std::os::unix::fs::symlink("nowhere/asked", dir.join("asked"))?;
    scene.kill_shims()?;
    scene.told_as("orphan", "FailedSync", "cannot write down how the VM ended").await?;
    let end = end_of(&scene.phase("orphan", "Failed").await?)?;
    assert_eq!(end.reason.as_deref(), Some("ContainerStatusUnknown"));
    forget(&scene, "orphan").await
}

#[tokio::test]
async fn a_guest_that_lies_or_stalls_holds_nothing_up() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("last-lies").await?;
    // The command's own files are the command's to spoil.
    for (name, trick) in [
        ("pipe", "mkfifo $d/code"),
        ("endless", "ln -s /dev/zero $d/code"),
        ("long", "head -c 100000000 /dev/zero | tr '\\0' 7 >$d/code"),
        ("word", "echo 256 >$d/code"),
    ] {
        let script =
            format!("d=$(ls -d /var/tmp/tart-kubelet.*); {trick}; touch /private/tmp/done; sleep 1000");
        scene.create(&scene.pod(name, &json!({"command": shell(&script)}), &json!({}))).await?;
        let vm = Scene::vm_of(&scene.phase(name, "Running").await?)?;
        wait::eventually("a spoilt file", DEADLINE, async || {
            scene.mac.tart(["exec", &vm, "test", "-e", "/private/tmp/done"]).await
        })
        .await?;
        scene.kill_shims()?;
        let end = end_of(&scene.phase(name, "Failed").await?)?;
        assert_eq!((name, end.exit_code, end.reason.as_deref()), (name, 137, Some("ContainerStatusUnknown")));
        forget(&scene, name).await?;
    }
    // Nobody answers at all.
    for (name, fault) in
        [("stalls", Fault::AgentStall), ("garbles", Fault::AgentGarbage), ("away", Fault::AgentDown)]
    {
        scene.create(&scene.pod(name, &json!({"command": ["/bin/sleep", "1000"]}), &json!({}))).await?;
        scene.phase(name, "Running").await?;
        scene.mac.set_fault(fault, "")?;
        scene.kill_shims()?;
        let end = end_of(&scene.phase(name, "Failed").await?)?;
        assert_eq!((name, end.reason.as_deref()), (name, Some("ContainerStatusUnknown")));
        scene.mac.clear_fault(fault)?;
        forget(&scene, name).await?;
    }
    Ok(())
}
