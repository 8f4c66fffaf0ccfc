//! What an agent and its shims have open: little, and nothing for Pods that are over.

use std::fs;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use nix::unistd::Pid;
use serde_json::{Value, json};
use tart_kubelet_tests::agent::RunningAgent;
use tart_kubelet_tests::{programs, wait};

use crate::scene::{DEADLINE, Scene};

/// What macOS lets a process ask for.
const MOST: u64 = 10_240;

/// How many directories and files an agent watches.
fn watches(agent: &RunningAgent) -> Result<usize> {
    let mut found = 0;
    for file in fs::read_dir(format!("/proc/{}/fdinfo", agent.process().pid()))? {
        // Another one may be closed by now.
        let info = fs::read_to_string(file?.path()).unwrap_or_default();
        found += info.lines().filter(|line| line.starts_with("inotify wd:")).count();
    }
    Ok(found)
}

async fn watches_only(agent: &RunningAgent, expected: usize) -> Result<()> {
    wait::eventually(&format!("an agent that watches {expected}"), DEADLINE, async || {
        let found = watches(agent)?;
        ensure!(found == expected, "it watches {found}");
        Ok(())
    })
    .await
}

fn until_told() -> Value {
    json!({"command": ["/bin/sh", "-c", "until [ -e /private/tmp/go ]; do sleep 0.05; done"]})
}

#[tokio::test]
async fn pods_that_are_over_cost_nothing_to_watch() -> Result<()> {
    let (scene, mut agent) = Scene::with_agent("watches").await?;
    for name in ["one", "two", "three"] {
        scene.create(&scene.pod(name, &until_told(), &json!({}))).await?;
        let vm = Scene::vm_of(&scene.phase(name, "Running").await?)?;
        // The one that runs and its Pod, and none that did.
        watches_only(&agent, 2).await?;
        if name == "two" {
            agent = agent.restart()?;
            watches_only(&agent, 2).await?;
        }
        scene.let_go(&vm).await;
        scene.phase(name, "Succeeded").await?;
        watches_only(&agent, 0).await?;
    }
    Ok(())
}

/// How many files a process may have open: now, and at most.
fn limits(pid: Pid) -> Result<(u64, u64)> {
    let limits = fs::read_to_string(format!("/proc/{pid}/limits"))?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let mut words = line.context("no limit of open files")?.split_whitespace();
    let mut next = || Ok::<u64, anyhow::Error>(words.next().context("no figure")?.parse()?);
    Ok((next()?, next()?))
}

fn shim_of(scene: &Scene, pod: &Pod) -> Result<Pid> {
    let uid = pod.metadata.uid.as_deref().context("no UID")?;
    let path = scene.agent.state_dir().join("pods").join(uid).join("0/shim.pid");
    Ok(Pid::from_raw(serde_json::from_str(&fs::read_to_string(path)?)?))
}

#[tokio::test]
async fn whoever_starts_the_agent_with_few_open_files_does_not_limit_it() -> Result<()> {
    let scene = Scene::new("few-files").await?;
    let starter = scene.mac.host().join("starter");
    // As launchd does it.
    programs::write(&starter, "#!/bin/sh\nulimit -S -n 256\nexec \"$@\"\n")?;
    let agent = scene.agent.clone().started_by(&starter).start()?;
    scene.node_ready(&agent).await?;
    scene.create(&scene.pod("any", &json!({}), &json!({}))).await?;
    let shim = shim_of(&scene, &scene.phase("any", "Running").await?)?;
    for pid in [agent.process().pid(), shim] {
        let (soft, hard) = limits(pid)?;
        ensure!(soft == hard.min(MOST) && soft > 256, "{soft} of {hard}");
    }
    Ok(())
}
