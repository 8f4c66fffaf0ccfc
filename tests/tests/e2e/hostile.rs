//! Guests that mean harm, or do it without meaning to: they cost bounded memory and disk, and their Pods can be deleted.

use anyhow::{Context, Result, ensure};
use serde_json::json;
use sysinfo::{ProcessRefreshKind, ProcessesToUpdate, System, UpdateKind};
use tart_kubelet_tests::agent::RunningAgent;
use tart_kubelet_tests::wait;

use crate::scene::{DEADLINE, Scene, phase_of};

/// What the agent and its shims hold of memory together, in MB.
fn memory(scene: &Scene, agent: &RunningAgent) -> Result<u64> {
    let state = scene.agent.state_dir();
    let agent = agent.process().pid().as_raw().unsigned_abs();
    let mut system = System::new().context("cannot look at processes")?;
    let what = ProcessRefreshKind::nothing().without_tasks().with_memory().with_cmd(UpdateKind::Always);
    system.refresh_processes_specifics(ProcessesToUpdate::All, true, what);
    let ours = system.processes().values().filter(|process| {
        let shim = process.cmd().get(1).is_some_and(|word| word == "shim")
            && process.cmd().get(2).is_some_and(|dir| std::path::Path::new(dir).starts_with(&state));
        shim || process.pid().as_u32() == agent
    });
    Ok(ours.map(sysinfo::Process::memory).sum::<u64>() / 1_000_000)
}

/// The sizes of the files of a Pod's log, the newest first.
fn log_files(scene: &Scene, uid: &str) -> Result<Vec<(String, u64)>> {
    let entries = std::fs::read_dir(scene.agent.state_dir().join("logs").join(uid).join("main"))?;
    let mut files = entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            // It may be renamed while we look.
            Some((entry.file_name().to_string_lossy().into_owned(), entry.metadata().ok()?.len()))
        })
        .collect::<Vec<_>>();
    files.sort();
    Ok(files)
}

#[tokio::test]
async fn endless_output_fills_neither_memory_nor_disk() -> Result<()> {
    let (scene, agent) = Scene::with_agent("endless").await?;
    let quiet = json!({"command": ["/bin/sleep", "1000"]});
    scene.create(&scene.pod("quiet", &quiet, &json!({}))).await?;
    scene.phase("quiet", "Running").await?;
    let before = memory(&scene, &agent)?;

    // Not even a line has an end, and somebody who counts on the log to be rotated in time is wrong.
    let endless = json!({"command": ["/bin/sh", "-c", "tr '\\0' x < /dev/zero"]});
    scene.create(&scene.pod("endless", &endless, &json!({"terminationGracePeriodSeconds": 1}))).await?;
    let uid = scene.phase("endless", "Running").await?.metadata.uid.context("no UID")?;
    let directory = scene.agent.state_dir().join("logs").join(&uid).join("main");
    let mut oldest = None;
    wait::eventually("a log that has forgotten its beginning", DEADLINE, async || {
        // The oldest file is the one that goes when there is a new one.
        let last = std::fs::metadata(directory.join("0.log.4")).context("not so many files yet")?;
        let identity = std::os::unix::fs::MetadataExt::ino(&last);
        let first_seen = *oldest.get_or_insert(identity);
        ensure!(first_seen != identity, "it still has all");
        Ok(())
    })
    .await
    .with_context(|| format!("{:?}", log_files(&scene, &uid)))?;
    let files = log_files(&scene, &uid)?;
    let total = files.iter().map(|(_, size)| size).sum::<u64>();
    ensure!(total < 60 << 20, "the log takes {total} bytes: {files:?}");
    let after = memory(&scene, &agent)?;
    // One shim more, and what is on its way through it.
    ensure!(after < 3 * before + 50, "{before} MB have become {after} MB");

    scene.kubectl.run(["delete", "pod", "endless", "quiet"]).await?;
    scene.nothing_left().await
}

#[tokio::test]
async fn a_guest_agent_that_talks_nonsense_is_waited_for() -> Result<()> {
    let (scene, agent) = Scene::with_agent("nonsense").await?;
    scene.mac.set_fault("agent-garbage", "")?;
    scene.create(&scene.pod("patient", &json!({"command": ["/usr/bin/true"]}), &json!({}))).await?;
    scene.create(&scene.pod("deleted", &json!({"command": ["/usr/bin/true"]}), &json!({}))).await?;
    wait::eventually("two VMs", DEADLINE, async || {
        ensure!(scene.running_vms().await?.len() == 2, "there are not");
        Ok(())
    })
    .await?;
    scene.kubectl.run(["delete", "pod", "deleted", "--grace-period=1"]).await?;
    assert_eq!(phase_of(&scene.pods.get("patient").await?), "Pending", "nobody took its command");
    ensure!(memory(&scene, &agent)? < 500, "{} MB", memory(&scene, &agent)?);
    scene.mac.clear_fault("agent-garbage")?;
    scene.phase("patient", "Succeeded").await.map(drop)
}

#[tokio::test]
async fn a_guest_agent_that_falls_silent_holds_nobody_up() -> Result<()> {
    let (scene, agent) = Scene::with_agent("silent").await?;
    let endless = json!({"command": ["/bin/sh", "-c", "while :; do echo still here; done"]});
    scene.create(&scene.pod("silent", &endless, &json!({}))).await?;
    scene.phase("silent", "Running").await?;
    scene.mac.set_fault("agent-stall", "")?;
    // Another Pod finds the same silence, and a restarted agent finds both.
    scene.create(&scene.pod("mute", &json!({"command": ["/usr/bin/true"]}), &json!({}))).await?;
    wait::eventually("two VMs", DEADLINE, async || {
        ensure!(scene.running_vms().await?.len() == 2, "there are not");
        Ok(())
    })
    .await?;
    let agent = agent.restart()?;
    scene.node_ready(&agent).await?;
    assert_eq!(phase_of(&scene.pods.get("silent").await?), "Running", "silence is not an end");
    scene.kubectl.run(["delete", "pod", "silent", "mute", "--grace-period=1"]).await?;
    scene.nothing_left().await
}
