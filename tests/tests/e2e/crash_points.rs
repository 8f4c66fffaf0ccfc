//! The agent and the shim die between any two effects; whoever comes next finishes what was begun, and does nothing twice.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use serde_json::{Value, json};
use tart_kubelet_tests::wait;

use crate::scene::{DEADLINE, Scene};

const EXIT_CODE: i32 = 7;

/// Points that a Pod which runs a command to its end passes.
const AGENT_RUNS: [&str; 11] = [
    "agent.accept.before",
    "agent.accept.after",
    "agent.plan.before",
    "agent.plan.after",
    "agent.launch.before",
    "agent.launch.after",
    "agent.clean.before",
    "agent.clean.deleted",
    "agent.clean.after",
    "agent.wipe.before",
    "agent.wipe.after",
];
/// Points that a Pod which is deleted while its VM runs passes.
const AGENT_STOPS: [&str; 11] = [
    "agent.ask-to-stop.before",
    "agent.ask-to-stop.after",
    "agent.clean.before",
    "agent.clean.deleted",
    "agent.clean.after",
    "agent.wipe.before",
    "agent.wipe.after",
    "agent.delete-pod.before",
    "agent.delete-pod.after",
    "agent.forget.before",
    "agent.forget.after",
];
/// Points at which a shim's death costs the exit code, since there is none yet.
const SHIM_LOSES: [&str; 5] = ["shim.begun", "shim.cloned", "shim.configured", "shim.run", "shim.running"];
/// Points at which it costs nothing.
const SHIM_KEEPS: [&str; 5] = ["shim.started", "shim.exited", "shim.result", "shim.stopped", "shim.ended"];

fn container(pod: &Pod) -> Result<ContainerStatus> {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
    statuses.and_then(|all| all.first()).cloned().context("no container status")
}

fn exit_code(pod: &Pod) -> Result<i32> {
    let state = container(pod)?.state.and_then(|state| state.terminated);
    Ok(state.context("not terminated")?.exit_code)
}

/// How often a VM has booted on this Mac: each clone has a MAC address, and so a lease, of its own.
fn boots(scene: &Scene) -> Result<usize> {
    let leases = match std::fs::read_to_string(scene.mac.host().join("dhcpd_leases")) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        other => other?,
    };
    let owners = leases.lines().filter(|line| line.trim_start().starts_with("hw_address="));
    Ok(owners.collect::<BTreeSet<_>>().len())
}

fn command() -> Value {
    json!({"command": ["/bin/sh", "-c", format!("echo done; exit {EXIT_CODE}")]})
}

/// Deletes a finished Pod, and sees to it that nothing is left of it.
async fn forget(scene: &Scene, name: &str) -> Result<()> {
    scene.kubectl.run(["delete", "pod", name, "--wait=false"]).await?;
    wait::until_gone(&scene.pods, name, DEADLINE).await?;
    scene.nothing_left().await
}

#[tokio::test]
async fn the_agent_dies_while_a_pod_runs_to_its_end() -> Result<()> {
    let scene = Scene::new("dies-run").await?;
    for (index, point) in AGENT_RUNS.into_iter().enumerate() {
        let name = format!("pod-{index}");
        let step = async {
            let dying = scene.agent.clone().env("TART_KUBELET_CRASH", point).start()?;
            scene.create(&scene.pod(&name, &command(), &json!({}))).await?;
            dying.wait_for_exit(DEADLINE).await?;
            let agent = scene.agent.start()?;
            let pod = scene.phase(&name, "Failed").await?;
            ensure!(exit_code(&pod)? == EXIT_CODE, "exit code {}", exit_code(&pod)?);
            ensure!(container(&pod)?.restart_count == 0, "restarted");
            ensure!(boots(&scene)? == index + 1, "{} boots", boots(&scene)?);
            forget(&scene, &name).await?;
            agent.kill9().map(drop)
        };
        step.await.with_context(|| format!("after a crash at {point}"))?;
    }
    Ok(())
}

#[tokio::test]
async fn the_agent_dies_while_a_pod_is_deleted() -> Result<()> {
    let scene = Scene::new("dies-stop").await?;
    for (index, point) in AGENT_STOPS.into_iter().enumerate() {
        let name = format!("pod-{index}");
        let step = async {
            let dying = scene.agent.clone().env("TART_KUBELET_CRASH", point).start()?;
            scene.create(&scene.pod(&name, &json!({}), &json!({}))).await?;
            scene.phase(&name, "Running").await?;
            scene.kubectl.run(["delete", "pod", &name, "--wait=false"]).await?;
            dying.wait_for_exit(DEADLINE).await?;
            let agent = scene.agent.start()?;
            wait::until_gone(&scene.pods, &name, DEADLINE).await?;
            scene.nothing_left().await?;
            ensure!(boots(&scene)? == index + 1, "{} boots", boots(&scene)?);
            agent.kill9().map(drop)
        };
        step.await.with_context(|| format!("after a crash at {point}"))?;
    }
    Ok(())
}

#[tokio::test]
async fn the_shim_dies() -> Result<()> {
    let scene = Scene::new("shim-dies").await?;
    for (index, point) in SHIM_LOSES.into_iter().chain(SHIM_KEEPS).enumerate() {
        let name = format!("pod-{index}");
        let step = async {
            let dying = scene.agent.clone().env("TART_KUBELET_CRASH", point).start()?;
            scene.create(&scene.pod(&name, &command(), &json!({}))).await?;
            if point == "shim.started" {
                // It would die again and again; the next agent's shims do not.
                wait::eventually("a shim that has died", DEADLINE, async || {
                    ensure!(scene.shim_log(&name).await?.contains("crash point"));
                    Ok(())
                })
                .await?;
                dying.kill9()?;
            }
            let agent = if point == "shim.started" { scene.agent.start()? } else { dying };
            let pod = scene.phase(&name, "Failed").await?;
            let expected = if SHIM_LOSES.contains(&point) { 137 } else { EXIT_CODE };
            ensure!(exit_code(&pod)? == expected, "exit code {}", exit_code(&pod)?);
            ensure!(container(&pod)?.restart_count == 0, "restarted");
            forget(&scene, &name).await?;
            agent.kill9().map(drop)
        };
        step.await.with_context(|| format!("after a crash at {point}"))?;
    }
    Ok(())
}
