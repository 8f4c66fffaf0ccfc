//! The open files of the agent and its shims.

use std::fs;

use anyhow::{Context, Result, ensure};
use nix::unistd::Pid;
use tart_kubelet_tests::agent::RunningAgent;
use tart_kubelet_tests::{programs, wait};

use crate::scene::{DEADLINE, PodView as _, Scene, UNTIL_FINISHED};

/// The most open files that macOS allows.
const MOST: u64 = 10_240;

/// How many directories and files an agent watches.
fn watches(agent: &RunningAgent) -> Result<usize> {
    let mut found = 0;
    for file in fs::read_dir(format!("/proc/{}/fdinfo", agent.process().pid()))? {
        // The agent may have closed the file by now.
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

#[tokio::test]
async fn ended_pods_have_no_file_watches() -> Result<()> {
    let (scene, mut agent) = Scene::with_agent("watches").await?;
    for name in ["one", "two", "three"] {
        let vm = scene.pod(name).sh(UNTIL_FINISHED).create_until("Running").await?.vm()?;
        // The running VM and its Pod, and no earlier ones.
        watches_only(&agent, 2).await?;
        if name == "two" {
            agent = agent.restart()?;
            watches_only(&agent, 2).await?;
        }
        scene.finish_command(&vm).await;
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

#[tokio::test]
async fn agent_and_shim_raise_their_open_file_limit() -> Result<()> {
    let scene = Scene::new("few-files").await?;
    let starter = scene.mac.host().join("starter");
    // launchd sets such a limit.
    programs::write(&starter, "#!/bin/sh\nulimit -S -n 256\nexec \"$@\"\n")?;
    let agent = scene.start(&scene.agent.clone().started_by(&starter)).await?;
    scene.pod("any").create().await?;
    let pod = scene.phase("any", "Running").await?;
    let shim = scene.shim_pid(pod.uid_of()?)?;
    for pid in [agent.process().pid(), shim] {
        let (soft, hard) = limits(pid)?;
        ensure!(soft == hard.min(MOST) && soft > 256, "{soft} of {hard}");
    }
    Ok(())
}
