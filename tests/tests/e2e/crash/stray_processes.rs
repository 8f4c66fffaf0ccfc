//! A shim is dead or stopped, and what it has started lives on: a VM, a `tart` that hangs, or a child of a `tart`.

use std::path::Path;

use anyhow::Result;
use nix::sys::signal::Signal;
use tart_kubelet_tests::agent::RunningAgent;
use tart_kubelet_tests::mac::Fault;
use tart_kubelet_tests::process::Process;

use super::{CrashingAgent, crash_at};
use crate::scene::{DEADLINE, PodView as _, SLEEP, Scene};

/// A scene that has the base VM, so that the next clone is that of a Pod's VM.
async fn with_base(name: &str) -> Result<(Scene, RunningAgent)> {
    let (scene, agent) = Scene::with_agent(name).await?;
    scene.pod("first").command(["/usr/bin/true"]).create_until("Succeeded").await?;
    scene.delete_all_of("first").await?;
    scene.mac.set_fault(Fault::Calls, "")?;
    Ok((scene, agent))
}

#[tokio::test]
async fn hanging_clone_is_killed_and_the_container_restarts() -> Result<()> {
    let (scene, agent) = with_base("hung-clone").await?;
    let bystander = scene.pod("bystander").create_until("Running").await?.vm()?;
    scene.forget_calls()?;
    scene.mac.set_fault(Fault::Hang, "clone")?;
    scene.pod("hung").command(SLEEP).restart_policy("Always").create().await?;
    scene.called("clone").await?;
    agent.kill9()?;
    scene.signal_shim(&scene.uid("hung").await?, Signal::SIGKILL)?;

    let points = [
        "agent.stop-without-shim.before",
        "agent.stop-without-shim.after",
        "agent.kill-stray-processes.before",
        "agent.kill-stray-processes.after",
        "agent.record-loss.before",
        "write.outcome.json",
        "agent.record-loss.after",
    ];
    let _agent = crash_at(&scene, &points).await?;
    scene.mac.clear_fault(Fault::Hang)?;
    let pod = scene.ready_after_restarts("hung", 1).await?;
    assert_eq!(pod.main().last_exit_code(), Some(137));
    let mut running = scene.running_vms().await?;
    running.sort();
    let mut expected = vec![bystander.clone(), pod.vm()?];
    expected.sort();
    assert_eq!(running, expected);
    let still = scene.pods.get("bystander").await?;
    assert_eq!((still.phase(), still.vm()?), ("Running", bystander));
    assert_eq!(scene.boots()?, 3, "the first Pod, the bystander, and the second try");
    scene.kubectl.run(["delete", "pod", "--all", "--grace-period=1"]).await?;
    scene.nothing_left().await
}

#[tokio::test]
async fn hanging_tart_set_does_not_keep_a_deleted_pod() -> Result<()> {
    let (scene, _agent) = with_base("hung-set").await?;
    for (name, deleted) in [("fails", false), ("deleted", true)] {
        scene.forget_calls()?;
        scene.mac.set_fault(Fault::Hang, "set")?;
        scene.pod(name).command(["/usr/bin/true"]).create().await?;
        scene.called("set").await?;
        scene.kill_shims()?;
        if !deleted {
            let pod = scene.phase(name, "Failed").await?;
            assert_eq!(pod.main().reason(), Some("ContainerStatusUnknown"));
            scene.no_vms().await?;
        }
        // The fault is still on: nothing but a kill ends that `tart`.
        scene.delete_all_of(name).await?;
        scene.mac.clear_fault(Fault::Hang)?;
    }
    Ok(())
}

#[tokio::test]
async fn child_of_tart_does_not_delay_the_end_of_a_pod() -> Result<()> {
    let (scene, _agent) = with_base("left-running").await?;
    scene.mac.set_fault(Fault::HoldPipe, "set")?;
    let pod = scene.pod("left").sh("exit 7").create_until("Failed").await?;
    assert_eq!(pod.main().exit_code(), Some(7));
    scene.delete_all_of("left").await
}

#[tokio::test]
async fn stopped_shim_is_killed_without_its_pid_file() -> Result<()> {
    let (scene, agent) = Scene::with_agent("stuck-shim").await?;
    scene.run_pods(&["known", "unknown"]).await?;
    agent.kill9()?;
    let uid = scene.uid("unknown").await?;
    std::fs::write(scene.first_run_dir(&uid).join("shim.pid"), "")?;
    scene.signal_shims(Signal::SIGSTOP)?;
    for name in ["known", "unknown"] {
        scene.begin_delete_within(name, 1).await?;
    }
    let crashing = CrashingAgent::start(&scene, &["agent.kill-shim.before", "agent.kill-shim.after"])?;
    let _agent = crashing.survive().await?;
    for name in ["known", "unknown"] {
        scene.until_gone(name).await?;
    }
    scene.nothing_left().await
}

#[tokio::test]
async fn overdue_tart_call_of_a_dead_agent_is_killed() -> Result<()> {
    let scene = Scene::new("overdue").await?;
    // Calls of tart that a killed agent leaves: one that is overdue, one that has time, and one for another home of tart's.
    let call = |name: &str, deadline: &str, home: &Path| {
        let mut command = scene.mac.command("/bin/sleep");
        command.arg("1000").env("TART_KUBELET_DEADLINE", deadline).env("TART_KUBELET_TART_HOME", home);
        Process::start(name, &mut command, &scene.mac.host().join(name))
    };
    let home = scene.mac.tart_home();
    let elsewhere = call("elsewhere", "1000000000", Path::new("/elsewhere"))?;
    let (hangs, pulls) = (call("hangs", "1000000000", home)?, call("pulls", "10000000000", home)?);
    let agent = scene.agent.start()?;
    hangs.wait_for_exit(DEADLINE).await?;
    scene.node_ready(&agent).await?;
    pulls.ensure_running()?;
    elsewhere.ensure_running()
}
