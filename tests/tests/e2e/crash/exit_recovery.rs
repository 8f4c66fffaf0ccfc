//! The shim dies when the container has ended and before its result is on disk. The agent asks the guest how the container ended:
//! once, for a short time, and without trusting the answer.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use tart_kubelet_tests::mac::Fault;
use tart_kubelet_tests::wait;

use super::{CrashingAgent, crash_at};
use crate::scene::{DEADLINE, PodView as _, SLEEP, Scene, UNTIL_FINISHED};

#[tokio::test]
async fn exit_code_and_message_survive_a_shim_crash() -> Result<()> {
    let scene = Scene::new("last-words").await?;
    let file = scene
        .pod("")
        .sh("echo said; printf 'in the end' >/private/tmp/words; exit 7")
        .container(json!({"terminationMessagePath": "/private/tmp/words"}));
    let log = scene
        .pod("")
        .sh("echo said; exit 7")
        .container(json!({"terminationMessagePolicy": "FallbackToLogsOnError"}));
    let points: [&[&str]; 4] = [
        &["shim.exit"],
        &["write.result.json"],
        &["shim.exited"],
        // The agent dies, too: when it asks the guest, and when it has the answer.
        &["shim.exit", "agent.ask-guest.before", "write.result.json", "agent.ask-guest.after"],
    ];
    for (index, points) in points.into_iter().enumerate() {
        for (name, pod, words) in [("file", &file, "in the end"), ("log", &log, "said\n")] {
            let name = format!("{name}-{index}");
            let step = async {
                let before = scene.boots()?;
                let crashing = CrashingAgent::start(&scene, points)?;
                pod.clone().named(&name).create().await?;
                let agent = crashing.survive().await?;
                let pod = scene.phase(&name, "Failed").await?;
                let end = pod.main().end()?;
                ensure!(end.exit_code == 7 && end.reason.as_deref() == Some("Error"), "{end:?}");
                ensure!(end.message.as_deref() == Some(words), "{end:?}");
                ensure!(end.started_at.is_some() && end.started_at <= end.finished_at, "{end:?}");
                ensure!(
                    pod.main().restart_count() == Some(0) && scene.boots()? == before + 1,
                    "it ran again"
                );
                ensure!(scene.log(&pod, "main", 0)? == ["said"]);
                scene.delete_all_of(&name).await?;
                agent.kill9().map(drop)
            };
            step.await.with_context(|| format!("{name} after a crash at {points:?}"))?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn failed_init_container_is_known_after_a_shim_crash() -> Result<()> {
    let scene = Scene::new("last-init").await?;
    let fails = "printf 'no licence' >/private/tmp/words; exit 3";
    let pod = |name: &str, script: &str| {
        let init =
            json!({"command": ["/bin/sh", "-c", script], "terminationMessagePath": "/private/tmp/words"});
        scene.pod(name).command(["/usr/bin/true"]).init_container("init", init)
    };
    // The second shim has written that the init container is over, but not what follows.
    for (name, point) in [("asked", "shim.init.exit"), ("known", "write.result.json")] {
        let crashing = CrashingAgent::start(&scene, &[point])?;
        pod(name, fails).create().await?;
        let agent = crashing.survive().await?;
        let pod = scene.phase(name, "Failed").await?;
        let end = pod.init().end()?;
        assert_eq!((name, end.exit_code, end.message.as_deref()), (name, 3, Some("no licence")));
        assert_eq!((name, pod.main().waiting_reason()), (name, Some("PodInitializing")));
        scene.delete_all_of(name).await?;
        agent.kill9()?;
    }
    // An init container that still runs is stopped, and its exit code is unknown.
    let crashing = CrashingAgent::start(&scene, &["shim.init.started"])?;
    pod("runs", "sleep 1000").create().await?;
    let _agent = crashing.survive().await?;
    let end = scene.phase("runs", "Failed").await?.init().end()?;
    assert_eq!((end.exit_code, end.reason.as_deref()), (137, Some("ContainerStatusUnknown")));
    scene.delete_all_of("runs").await
}

/// An image whose guest writes its status file with `write`, and then does what `then` says.
fn appliance(scene: &Scene, name: &str, write: &str, then: &str) -> Result<String> {
    let image = format!("registry.test/macos/{name}:1");
    let status = "/Volumes/My Shared Files/pod_status/status";
    let script = format!("{write} '{status}'; {then}");
    scene.mac.add_image(&image, &json!({"boot": ["/bin/sh", "-c", script], "shutdownDelay": 2}))?;
    Ok(image)
}

/// Waits until a guest's status file ends with `words`.
async fn status_ends_with(scene: &Scene, pod: &Pod, words: &str) -> Result<()> {
    let status = scene.volumes_dir(pod.uid_of()?).join(".boot-0/pod_status/status");
    wait::eventually("the guest's status file", DEADLINE, async || {
        let said = std::fs::read_to_string(&status)?;
        ensure!(said.ends_with(words), "{said}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn status_of_a_boot_only_guest_counts_after_it_has_ended() -> Result<()> {
    let scene = Scene::new("last-boot").await?;
    let ends = appliance(&scene, "ends", "printf '7\\nit is over' >", "sudo shutdown -h now")?;
    scene.pod("ends").image(ends).create().await?;
    let agent = crash_at(&scene, &["write.outcome.json"]).await?;
    let end = scene.phase("ends", "Failed").await?.main().end()?;
    assert_eq!((end.exit_code, end.message.as_deref()), (7, Some("it is over")));
    assert_eq!(scene.boots()?, 1);
    scene.delete_all_of("ends").await?;
    agent.kill9()?;

    // The guest still runs, but is about to end.
    let then = format!("{UNTIL_FINISHED}; sudo shutdown -h now");
    let leaves = appliance(&scene, "leaves", "printf '3\\nnot well' >", &then)?;
    let agent = scene.agent.start()?;
    let pod = scene.pod("leaves").image(leaves).create_until("Running").await?;
    status_ends_with(&scene, &pod, "not well").await?;
    agent.kill9()?;
    scene.kill_shims()?;
    scene.finish_command(&pod.vm()?).await;
    let agent = scene.agent.start()?;
    let end = scene.phase("leaves", "Failed").await?.main().end()?;
    assert_eq!((end.exit_code, end.message.as_deref()), (3, Some("not well")));
    scene.delete_all_of("leaves").await?;
    agent.kill9()?;

    // A guest that writes its status and runs on has not ended.
    let stays = appliance(&scene, "stays", "printf '0\\nwell' >", "sleep 1000")?;
    let agent = scene.agent.start()?;
    scene.pod("stays").image(stays).create().await?;
    status_ends_with(&scene, &scene.phase("stays", "Running").await?, "well").await?;
    scene.kill_shims()?;
    let end = scene.phase("stays", "Failed").await?.main().end()?;
    assert_eq!(end.reason.as_deref(), Some("ContainerStatusUnknown"));
    scene.delete_all_of("stays").await?;
    agent.kill9()?;

    // A status file that is a link says nothing.
    let links = appliance(&scene, "links", "ln -s /etc/passwd", "sudo shutdown -h now")?;
    scene.pod("links").image(links).create().await?;
    let _agent = crash_at(&scene, &["write.outcome.json"]).await?;
    let end = scene.phase("links", "Failed").await?.main().end()?;
    assert_eq!(end.reason.as_deref(), Some("ContainerStatusUnknown"));
    Ok(())
}

#[tokio::test]
async fn boot_only_guest_has_not_succeeded_after_a_power_loss() -> Result<()> {
    let (scene, mut agent) = Scene::with_agent("last-cut").await?;
    let lost = (137, Some("ContainerStatusUnknown"));
    for (name, word, expected) in [("well", "0\\nwell", lost), ("ill", "3\\nill", (3, Some("Error")))] {
        let image = appliance(&scene, name, &format!("printf '{word}' >"), "sleep 1000")?;
        scene.pod(name).image(image).create().await?;
        status_ends_with(&scene, &scene.phase(name, "Running").await?, name).await?;
        scene.mac.lose_power()?;
        agent.wait_for_exit(DEADLINE).await?;
        agent = scene.agent.start()?;
        let end = scene.phase(name, "Failed").await?.main().end()?;
        assert_eq!((name, (end.exit_code, end.reason.as_deref())), (name, expected));
        scene.delete_all_of(name).await?;
    }
    Ok(())
}

#[tokio::test]
async fn vm_without_a_shim_is_stopped_when_records_cannot_be_written() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("last-unwritten").await?;
    let pod = scene.pod("unwritten").command(SLEEP).create_until("Running").await?;
    let dir = scene.first_run_dir(pod.uid_of()?);
    // The agent cannot create the file through this link.
    std::os::unix::fs::symlink("nowhere/guest-asked", dir.join("guest-asked"))?;
    scene.kill_shims()?;
    scene.event("unwritten", "FailedSync", "cannot write down how the VM ended").await?;
    let end = scene.phase("unwritten", "Failed").await?.main().end()?;
    assert_eq!(end.reason.as_deref(), Some("ContainerStatusUnknown"));
    scene.delete_all_of("unwritten").await
}

#[tokio::test]
async fn lying_or_silent_guest_does_not_delay_exit_recovery() -> Result<()> {
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
        let vm = scene.pod(name).sh(script).create_until("Running").await?.vm()?;
        scene.guest_file(&vm, "/private/tmp/done").await?;
        scene.kill_shims()?;
        let end = scene.phase(name, "Failed").await?.main().end()?;
        assert_eq!((name, end.exit_code, end.reason.as_deref()), (name, 137, Some("ContainerStatusUnknown")));
        scene.delete_all_of(name).await?;
    }
    // The guest agent does not answer.
    for (name, fault) in
        [("stalls", Fault::AgentStall), ("garbles", Fault::AgentGarbage), ("away", Fault::AgentDown)]
    {
        scene.pod(name).command(SLEEP).create_until("Running").await?;
        scene.mac.set_fault(fault, "")?;
        scene.kill_shims()?;
        let end = scene.phase(name, "Failed").await?.main().end()?;
        assert_eq!((name, end.reason.as_deref()), (name, Some("ContainerStatusUnknown")));
        scene.mac.clear_fault(fault)?;
        scene.delete_all_of(name).await?;
    }
    Ok(())
}
