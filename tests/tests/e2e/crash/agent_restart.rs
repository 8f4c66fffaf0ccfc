//! The agent dies and starts again; Pods do not notice.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use nix::sys::signal::Signal;
use serde_json::json;
use tart_kubelet_tests::wait;

use crate::scene::{DEADLINE, PodView as _, Scene, UNTIL_FINISHED, until_exists};

/// The process of the one VM that runs on the scene's Mac: another boot would be another process.
fn vm_process(scene: &Scene) -> Result<String> {
    let names = std::fs::read_dir(scene.mac.host().join("running"))?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<Result<Vec<_>>>()?;
    let [name] = names.as_slice() else { anyhow::bail!("not one VM, but {names:?}") };
    Ok(name.clone())
}

#[tokio::test]
async fn agent_restart_adopts_a_running_vm() -> Result<()> {
    let (scene, agent) = Scene::with_agent("adopt").await?;
    scene.pod("adopt").create().await?;
    let pod = scene.ready("adopt").await?;
    let vm = pod.vm()?;
    let before = vm_process(&scene)?;

    agent.kill9()?;
    assert_eq!(vm_process(&scene)?, before, "the VM runs on");
    let restart = jiff::Timestamp::now();
    let _agent = scene.agent.start()?;
    scene.lease_renewed_after(Some(restart)).await?;
    // The same process shows that the agent did not start the VM again. That it knows the VM, the Pod's end shows.
    assert_eq!(vm_process(&scene)?, before);
    assert_eq!(scene.vms().await?, std::slice::from_ref(&vm));
    // An agent that has started another Pod has looked at this one, too.
    scene.pod("next").create_until("Running").await?;
    let after = scene.pods.get("adopt").await?;
    assert_eq!(after.phase(), "Running");
    assert_eq!(after.metadata.resource_version, pod.metadata.resource_version, "{:?}", after.status);

    scene.shut_down(&vm).await;
    scene.phase("adopt", "Succeeded").await?;
    scene.delete("next").await?;
    scene.no_vms().await
}

#[tokio::test]
async fn agent_restart_keeps_an_exit_code_that_it_missed() -> Result<()> {
    let (scene, agent) = Scene::with_agent("unseen").await?;
    let vm =
        scene.pod("unseen").sh(format!("{UNTIL_FINISHED}; exit 7")).create_until("Running").await?.vm()?;

    agent.kill9()?;
    scene.finish_command(&vm).await;
    scene.run_vms(0).await?;
    let _agent = scene.agent.start()?;
    let pod = scene.phase("unseen", "Failed").await?;
    assert_eq!((pod.main().exit_code(), pod.main().restart_count()), (Some(7), Some(0)));
    scene.no_vms().await
}

#[tokio::test]
async fn agent_restart_cleans_up_pods_deleted_meanwhile() -> Result<()> {
    let (scene, agent) = Scene::with_agent("away").await?;
    scene.run_pods(&["graceful", "forced"]).await?;
    agent.kill9()?;
    scene.begin_delete("graceful").await?;
    scene.force_delete("forced").await?;
    assert_eq!(scene.running_vms().await?.len(), 2, "no agent is there to stop them");
    let _agent = scene.agent.start()?;
    scene.until_gone("graceful").await?;
    scene.no_vms().await
}

#[tokio::test]
async fn container_that_ended_before_its_stop_request_is_not_restarted() -> Result<()> {
    let (scene, agent) = Scene::with_agent("too-late").await?;
    let other = "registry.test/macos/other:1";
    scene.mac.add_image(other, &json!({}))?;
    let pod = scene.pod("ends").sh(UNTIL_FINISHED).create_until("Running").await?;
    agent.kill9()?;
    scene.set_image("ends", other).await?;
    scene.finish_command(&pod.vm()?).await;
    let run = scene.first_run_dir(pod.uid_of()?);
    until_exists("an end", &run.join("result.json")).await?;
    // An agent that looked a moment before the end has written this.
    let stop =
        json!({"deadline": jiff::Timestamp::now(), "grace": {"secs": 0, "nanos": 0}, "cause": "changed"});
    std::fs::write(run.join("stop.json"), stop.to_string())?;
    let _agent = scene.agent.start()?;
    let pod = scene
        .until("ends", "over, or started again", |pod| {
            pod.phase() == "Succeeded" || pod.main().restart_count() > Some(0)
        })
        .await?;
    assert_eq!((pod.phase(), scene.boots()?), ("Succeeded", 1));
    scene.no_vms().await
}

#[tokio::test]
async fn vm_without_a_shim_is_stopped_and_its_pod_fails() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("shimless").await?;
    scene.pod("shimless").create_until("Running").await?;
    scene.kill_shims()?;
    scene.phase("shimless", "Failed").await?;
    scene.described("shimless", "ContainerStatusUnknown").await?;
    scene.no_vms().await
}

#[tokio::test]
async fn shim_that_dies_at_its_start_is_reported_and_started_with_back_off() -> Result<()> {
    let scene = Scene::new("stillborn").await?;
    // Each shim dies before it has taken its VM up.
    let agent = scene.start(&scene.agent.clone().env("TART_KUBELET_CRASH", "shim.started")).await?;
    let begun = Instant::now();
    scene.pod("born").command(["true"]).create().await?;
    let words = "cannot start the VM: its shim has ended (signal: 9 (SIGKILL)) before it had taken the VM up; \
                 what it has said is in ";
    scene.event("born", "FailedSync", words).await?;
    // The agent waits longer before each further start.
    let deaths = async || anyhow::Ok(scene.shim_log("born").await?.matches("crash point").count());
    wait::eventually("another start", DEADLINE, async || {
        ensure!(deaths().await? >= 4, "there was none");
        Ok(())
    })
    .await?;
    let (deaths, taken) = (deaths().await?, begun.elapsed());
    // The last pause alone takes as long. Changes of the Pod in the API cut the first pauses short.
    ensure!(taken >= Duration::from_secs(4), "{deaths} starts within {taken:?}");
    agent.kill9()?;
    let _agent = scene.agent.start()?;
    let pod = scene.phase("born", "Succeeded").await?;
    assert_eq!((pod.main().restart_count(), scene.boots()?), (Some(0), 1));
    Ok(())
}

#[tokio::test]
async fn pod_of_a_vm_that_a_user_deleted_can_be_deleted_and_restarted() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("deleted").await?;
    scene.pod("running").create().await?;
    scene.pod("restarting").restart_policy("Always").create().await?;
    let running = scene.phase("running", "Running").await?.vm()?;
    let restarting = scene.phase("restarting", "Running").await?.vm()?;
    // The files of one VM are deleted while it runs. The other VM is deleted between its end and the agent's next look.
    std::fs::remove_dir_all(scene.vm_dir(&running))?;
    scene.mac.tart(["stop", &restarting]).await?;
    let _ = scene.mac.tart(["delete", &restarting]).await;
    scene
        .until("restarting", "running again", |pod| {
            pod.vm().is_ok_and(|vm| vm != restarting) && pod.phase() == "Running"
        })
        .await?;
    scene.kubectl.run(["delete", "pod", "running", "restarting", "--wait=false"]).await?;
    for name in ["running", "restarting"] {
        scene.until_gone(name).await?;
    }
    scene.nothing_left().await
}

#[tokio::test]
async fn agents_restarted_at_once_adopt_their_vms() -> Result<()> {
    let mut macs = Vec::new();
    for name in ["fleet-a", "fleet-b", "fleet-c"] {
        let (scene, agent) = Scene::with_agent(name).await?;
        let vm = scene.pod("web").create_until("Running").await?.vm()?;
        macs.push((scene, agent, vm));
    }
    for (_, agent, _) in &macs {
        agent.kill9()?;
    }
    let since = jiff::Timestamp::now();
    let mut agents = Vec::new();
    for (scene, ..) in &macs {
        agents.push(scene.agent.start()?);
    }
    for (scene, _, vm) in &macs {
        scene.lease_renewed_after(Some(since)).await?;
        // An agent that has started another Pod has looked at this one, too.
        let next = scene.pod("next").create_until("Running").await?.vm()?;
        let mut running = scene.running_vms().await?;
        running.retain(|one| *one != next);
        assert_eq!(running, std::slice::from_ref(vm));
        assert_eq!(scene.boots()?, 2, "nothing was started again");
        let pod = scene.pods.get("web").await?;
        assert_eq!((pod.phase(), &pod.vm()?), ("Running", vm));
    }
    Ok(())
}

#[tokio::test]
async fn shim_exits_when_its_directory_was_deleted() -> Result<()> {
    let (scene, agent) = Scene::with_agent("erased").await?;
    let vm = scene.pod("erased").create_until("Running").await?.vm()?;
    agent.kill9()?;
    std::fs::remove_dir_all(scene.agent.state_dir().join("pods"))?;
    scene.shut_down(&vm).await;
    wait::eventually("a shim that gives up", DEADLINE, async || {
        let log = scene.shim_log("erased").await?;
        ensure!(log.contains("the VM's directory is gone; cannot write how the VM ended"), "{log}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn sigterm_ends_the_agent_and_its_vm_runs_on() -> Result<()> {
    let (scene, agent) = Scene::with_agent("term").await?;
    let vm = scene.pod("term").create_until("Running").await?.vm()?;
    agent.kill(Signal::SIGTERM)?;
    let status = agent.wait_for_exit(DEADLINE).await?;
    ensure!(status.success(), "{status}: {}", agent.log()?);
    assert_eq!(scene.running_vms().await?, [vm]);
    Ok(())
}
