//! A wall clock that jumps, and a Mac that slept: nothing freezes, nothing ends early.

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use tart_kubelet_tests::agent::{Agent, RunningAgent};
use tart_kubelet_tests::clock::Clock;
use tart_kubelet_tests::mac::{Fault, Mac};

use super::startup::exit_line;
use crate::scene::{PodView as _, Scene, UNTIL_FINISHED, UP, renew_time};

const HOUR: i64 = 3600;

/// A scene whose agent runs by a clock that the test moves.
async fn scene_with_clock(name: &str) -> Result<(Scene, Clock, RunningAgent)> {
    let mut scene = Scene::new(name).await?;
    let clock = Clock::new(scene.control_plane.sandbox())?;
    scene.agent = scene.agent.clock(&clock);
    let running = scene.start(&scene.agent).await?;
    Ok((scene, clock, running))
}

/// Waits until the agent's tasks have seen the clock as it is: a worker looks at least every ten seconds, as the heartbeat does.
async fn looked(scene: &Scene) -> Result<()> {
    for _ in 0..2 {
        scene.next_lease_renewal().await?;
    }
    Ok(())
}

#[tokio::test]
async fn crash_loop_goes_on_when_the_clock_is_set_back() -> Result<()> {
    let (scene, clock, _agent) = scene_with_clock("clock-back").await?;
    scene.pod("loop").sh("exit 7").restart_policy("Always").create().await?;
    scene.waiting("loop", "CrashLoopBackOff", "back-off 10s").await?;
    clock.set(-HOUR)?;
    scene.until("loop", "started again", |pod| pod.main().restart_count() >= Some(2)).await.map(drop)
}

#[tokio::test]
async fn failed_pull_is_tried_again_when_the_clock_is_set_back() -> Result<()> {
    let (scene, clock, _agent) = scene_with_clock("clock-pull").await?;
    let absent = "registry.test/macos/later:1";
    scene.pod("pull").image(absent).create().await?;
    scene.until("pull", "backing off", |pod| pod.main().waiting_reason() == Some("ImagePullBackOff")).await?;
    clock.set(-HOUR)?;
    scene.mac.add_image(absent, &serde_json::json!({}))?;
    scene.phase("pull", "Running").await.map(drop)
}

#[tokio::test]
async fn vm_whose_lease_the_clock_has_left_behind_has_its_address() -> Result<()> {
    let (scene, _agent) = Scene::with_agent("clock-lease").await?;
    // As after a jump of the clock: the lease has expired before the shim looks for it.
    scene.mac.set_fault(Fault::DhcpLeaseTime, "0s")?;
    scene.pod("boots").sh("exit 0").create_until("Succeeded").await.map(drop)
}

#[tokio::test]
async fn grace_period_is_kept_when_the_clock_jumps_ahead() -> Result<()> {
    let (scene, clock, _agent) = scene_with_clock("clock-grace").await?;
    let script = format!(
        "trap 'touch /private/tmp/term; {UNTIL_FINISHED}; exit 3' TERM; touch {UP}; while :; do sleep 0.05; done"
    );
    let pod = scene.pod("slow").sh(&script).create_until("Running").await?;
    let vm = pod.vm()?;
    scene.command_up(&vm).await?;
    scene.pods.patch_metadata("slow", &kube::api::PatchParams::default(), &finalizer()).await?;
    scene.begin_delete_within("slow", 1000).await?;
    scene.guest_file(&vm, "/private/tmp/term").await?;
    clock.set(2 * HOUR)?;
    looked(&scene).await?;
    scene.finish_command(&vm).await;
    let ended = scene.until("slow", "over", |pod| pod.main().has_ended()).await?;
    scene.remove_finalizers("slow").await?;
    assert_eq!(
        ended.main().exit_code(),
        Some(3),
        "the command had its grace period: {:?}",
        ended.main().end()?
    );
    Ok(())
}

/// Keeps the Pod's last status in the API.
fn finalizer() -> kube::api::Patch<serde_json::Value> {
    kube::api::Patch::Merge(serde_json::json!({"metadata": {"finalizers": ["example.com/look"]}}))
}

#[tokio::test]
async fn pod_with_a_deadline_outlives_a_jump_of_the_clock() -> Result<()> {
    let (scene, clock, _agent) = scene_with_clock("clock-deadline").await?;
    let fields = serde_json::json!({"activeDeadlineSeconds": 1000});
    let pod = scene.pod("long").sh(UNTIL_FINISHED).spec(fields).create_until("Running").await?;
    clock.set(2 * HOUR)?;
    looked(&scene).await?;
    scene.finish_command(&pod.vm()?).await;
    scene.phase("long", "Succeeded").await.map(drop)
}

#[tokio::test]
async fn lease_is_renewed_forwards_when_the_clock_is_set_back() -> Result<()> {
    let (scene, clock, _agent) = scene_with_clock("clock-lease").await?;
    let before = renew_time(&scene.lease_renewed_after(None).await?);
    clock.set(-HOUR)?;
    // The node controller counts a renewal only if its time is later than the last one's.
    let first = renew_time(&scene.lease_renewed_after(before).await?);
    scene.lease_renewed_after(first).await.map(drop)
}

#[tokio::test]
async fn agent_whose_clock_is_ahead_does_not_take_a_live_node() -> Result<()> {
    let (scene, first) = Scene::with_agent("clock-rival").await?;
    let clock = Clock::new(scene.control_plane.sandbox())?;
    clock.set(HOUR)?;
    let mac = Mac::new(scene.control_plane.sandbox())?;
    let kubeconfig = scene.control_plane.node_kubeconfig(&scene.node)?;
    let second = Agent::new(&mac, &scene.node, &kubeconfig)?.flag("--node-ip", "127.0.0.1").clock(&clock);
    let line = exit_line(&second.start()?).await?;
    ensure!(line.contains("another agent"), "{line}");
    first.process().ensure_running()
}

#[tokio::test]
async fn pods_run_on_after_the_mac_has_slept() -> Result<()> {
    let (scene, clock, agent) = scene_with_clock("clock-sleep").await?;
    let pod = scene.pod("sleeper").sh(UNTIL_FINISHED).create_until("Running").await?;
    agent.kill(Signal::SIGSTOP)?;
    scene.signal_shims(Signal::SIGSTOP)?;
    clock.set(8 * HOUR)?;
    scene.signal_shims(Signal::SIGCONT)?;
    agent.kill(Signal::SIGCONT)?;
    looked(&scene).await?;
    scene.node_ready(&agent).await?;
    let same = scene.pods.get("sleeper").await?;
    ensure!(same.main().is_running() && same.main().restart_count() == Some(0), "{:?}", same.status);
    scene.finish_command(&pod.vm()?).await;
    let ended = scene.phase("sleeper", "Succeeded").await?;
    ended.main().end().map(drop).context("no end")
}
