//! Interrupted pulls: the agent keeps the part that has arrived for the next pull, until the disk is full.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::json;
use tart_kubelet_tests::agent::RunningAgent;
use tart_kubelet_tests::mac::Fault;
use tart_kubelet_tests::wait;

use super::pull::listed;
use crate::disk_space::{MIB, evicting, image_gc_passes, small_disk};
use crate::scene::{DEADLINE, PodView as _, Scene};

const LARGE: &str = "registry.test/macos/large:1";
/// The seconds that a pull takes: longer than a test takes to interrupt it, and a part of the image arrives soon.
const SLOW: u32 = 200;
const REACHES: &str = "check that the host reaches the registry";

/// The partial images in tart's temporary directory.
fn partials(scene: &Scene) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(scene.mac.tart_home().join("tmp"))?;
    Ok(entries.collect::<Result<Vec<_>, _>>()?.into_iter().map(|entry| entry.path()).collect())
}

/// Waits until a part of the image has arrived, and returns its directory.
async fn partial_pull(scene: &Scene) -> Result<PathBuf> {
    wait::eventually("a part of the image", DEADLINE, async || {
        let found = partials(scene)?;
        let [part] = found.as_slice() else { anyhow::bail!("{found:?}") };
        ensure!(std::fs::metadata(part.join("disk.img"))?.len() > 0);
        Ok(part.clone())
    })
    .await
}

/// The inode of an image's directory. tart renames the directory when the image is whole.
fn inode(path: &Path) -> Result<u64> {
    Ok(std::fs::metadata(path)?.ino())
}

/// The directory of the whole image.
fn whole(scene: &Scene) -> PathBuf {
    scene.mac.tart_home().join("cache/OCIs/registry.test/macos/large/1")
}

/// Waits until no tart has a directory locked.
async fn unlocked(part: &Path) -> Result<()> {
    wait::eventually("the end of the pull", DEADLINE, async || {
        File::open(part)?.try_lock_shared().context("a tart has it locked")
    })
    .await
}

/// Fills the disk with a partial image while the agent is stopped: a deletion frees nothing while the test still writes.
fn make_heavy(running: &RunningAgent, part: &Path) -> Result<()> {
    running.kill(Signal::SIGSTOP)?;
    std::fs::write(part.join("weight"), vec![1; usize::try_from(180 * MIB)?])?;
    running.kill(Signal::SIGCONT)
}

#[tokio::test]
async fn interrupted_pull_is_resumed() -> Result<()> {
    for interruption in ["network", "agent", "both"] {
        let (scene, running) = Scene::with_agent("resume").await?;
        scene.mac.add_image(LARGE, &json!({"pullSeconds": SLOW}))?;
        scene.pod("large").image(LARGE).create().await?;
        let part = partial_pull(&scene).await?;
        // While the directory is open, no other one gets its inode.
        let _open = File::open(&part)?;
        let before = inode(&part)?;
        if interruption != "agent" {
            scene.mac.set_fault(Fault::Pull, "connection-lost at=layers")?;
            scene.waiting("large", "ErrImagePull", REACHES).await?;
            // Every tart command but pull and clone deletes unlocked partial images.
            scene.mac.tart(["list"]).await?;
            assert_eq!(inode(&part)?, before);
            scene.mac.clear_fault(Fault::Pull)?;
        }
        match interruption {
            "agent" => {
                running.kill(Signal::SIGTERM)?;
                running.wait_for_exit(DEADLINE).await?;
            }
            "both" => drop(running.kill9()?),
            _ => {}
        }
        scene.mac.set_fault(Fault::InstantPull, "")?;
        // The next agent pulls the image again.
        let _running = if interruption == "network" { running } else { scene.agent.start()? };
        scene.phase("large", "Running").await?;
        let now = inode(&whole(&scene))?;
        ensure!(now == before, "it came anew after the {interruption}:\n{}", scene.agent_log());
    }
    Ok(())
}

#[tokio::test]
async fn partial_image_is_resumed_by_tart_pull() -> Result<()> {
    let (scene, running) = Scene::with_agent("kept-others").await?;
    scene.mac.add_image(LARGE, &json!({"pullSeconds": SLOW}))?;
    scene.pod("large").image(LARGE).create().await?;
    let before = inode(&partial_pull(&scene).await?)?;
    scene.mac.set_fault(Fault::Pull, "connection-lost at=layers")?;
    scene.waiting("large", "ErrImagePull", REACHES).await?;
    // The agent will not pull it again.
    scene.delete("large").await?;
    scene.mac.clear_fault(Fault::Pull)?;
    scene.mac.set_fault(Fault::InstantPull, "")?;
    scene.mac.tart(["pull", LARGE]).await?;
    assert_eq!(inode(&whole(&scene))?, before, "it came anew");
    // The image belongs to the user who has completed it.
    let line = listed(running.agent(), LARGE).await?;
    ensure!(line.last().is_some_and(|by| by == "others"), "{line:?}");
    Ok(())
}

#[tokio::test]
async fn disk_pressure_costs_a_partial_image_before_a_pod() -> Result<()> {
    let Some((scene, _disk)) = small_disk("kept-goes", 200 * MIB).await? else { return Ok(()) };
    let running = scene.start(&evicting(scene.agent.clone())).await?;
    scene.pod("stays").create_until("Running").await?;
    scene.mac.add_image(LARGE, &json!({"pullSeconds": SLOW}))?;
    scene.pod("large").image(LARGE).create().await?;
    let part = partial_pull(&scene).await?;
    scene.mac.set_fault(Fault::Pull, "connection-lost at=layers")?;
    scene.waiting("large", "ErrImagePull", REACHES).await?;
    // The agent will not pull it again, and no tart command deletes it.
    scene.delete("large").await?;
    make_heavy(&running, &part)?;
    wait::eventually("room", DEADLINE, async || {
        ensure!(!part.exists(), "{}", running.log()?);
        Ok(())
    })
    .await?;
    scene.node_condition("DiskPressure", "False").await?;
    scene.phase("stays", "Running").await?;
    scene.is_not_evicted("stays").await
}

#[tokio::test]
async fn pull_with_other_credentials_resumes_a_partial_image() -> Result<()> {
    let (scene, _running) = Scene::with_agent("kept-credentials").await?;
    scene.mac.add_image(LARGE, &json!({"pullSeconds": SLOW}))?;
    scene.pull_secret("pull", "registry.test", "robot", "s3cr3t").await?;
    scene.mac.set_fault(Fault::Calls, "")?;
    scene.pod("first").image(LARGE).create().await?;
    let before = inode(&partial_pull(&scene).await?)?;
    scene.pod("second").image(LARGE).pull_secrets(&["pull"]).create().await?;
    wait::eventually("a second pull", DEADLINE, async || {
        ensure!(scene.count_calls("pull")? >= 2, "{:?}", scene.tart_calls()?);
        Ok(())
    })
    .await?;
    // The first pull fails, and the agent does not try it again.
    scene.mac.set_fault(Fault::Pull, "connection-lost at=layers")?;
    scene.waiting("first", "ErrImagePull", REACHES).await?;
    scene.delete("first").await?;
    scene.mac.clear_fault(Fault::Pull)?;
    scene.mac.set_fault(Fault::InstantPull, "")?;
    scene.phase("second", "Running").await?;
    assert_eq!(inode(&whole(&scene))?, before, "it came anew");
    Ok(())
}

#[tokio::test]
async fn agent_resumes_a_pull_of_the_images_pull_command() -> Result<()> {
    let scene = Scene::new("kept-by-hand").await?;
    scene.mac.add_image(LARGE, &json!({"pullSeconds": SLOW}))?;
    let words = ["images", "pull", LARGE];
    let (failed, before) = tokio::join!(scene.agent.run(&words), async {
        let before = inode(&partial_pull(&scene).await?)?;
        scene.mac.set_fault(Fault::Pull, "connection-lost at=layers")?;
        anyhow::Ok(before)
    });
    let failed = format!("{:#}", failed.err().context("the network is gone")?);
    ensure!(failed.contains(REACHES), "{failed}");
    scene.mac.clear_fault(Fault::Pull)?;
    scene.mac.set_fault(Fault::InstantPull, "")?;
    let running = scene.agent.start()?;
    scene.pod("large").image(LARGE).create_until("Running").await?;
    assert_eq!(inode(&whole(&scene))?, before?, "it came anew");
    let line = listed(running.agent(), LARGE).await?;
    ensure!(line.last().is_some_and(|by| by == "agent"), "{line:?}");
    Ok(())
}

#[tokio::test]
async fn images_pull_command_kills_its_tart_at_a_signal() -> Result<()> {
    let scene = Scene::new("hand-ends").await?;
    scene.mac.add_image(LARGE, &json!({"pullSeconds": 600}))?;
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        let pull = scene.agent.begin(&["images", "pull", LARGE])?;
        let part = partial_pull(&scene).await?;
        pull.signal(signal)?;
        let status = pull.wait_for_exit(DEADLINE).await?;
        ensure!(status.code() == Some(2), "{signal}: {status}");
        let log = pull.log()?;
        ensure!(log.contains(&format!("ended by {signal}")), "{log}");
        unlocked(&part).await?;
        // No partial image is left for the next pull.
        scene.mac.tart(["list"]).await?;
        ensure!(partials(&scene)?.is_empty(), "{:?}", partials(&scene)?);
    }
    Ok(())
}

#[tokio::test]
async fn agent_start_does_not_wait_for_the_images_pull_command() -> Result<()> {
    let scene = Scene::new("hand-agent").await?;
    scene.mac.add_image(LARGE, &json!({}))?;
    // The command has pulled the image, and asks tart for its digest.
    scene.mac.set_fault(Fault::Calls, "")?;
    scene.mac.set_fault(Fault::Hang, "fqn")?;
    let pull = scene.agent.begin(&["images", "pull", LARGE])?;
    scene.called("fqn").await?;
    let running = scene.start(&scene.agent).await?;
    scene.mac.clear_fault(Fault::Hang)?;
    let status = pull.wait_for_exit(DEADLINE).await?;
    ensure!(status.success(), "{status}: {}", pull.log()?);
    let line = listed(running.agent(), LARGE).await?;
    ensure!(line.last().is_some_and(|by| by == "agent"), "{line:?}");
    Ok(())
}

#[tokio::test]
async fn evicted_pod_ends_its_pull() -> Result<()> {
    let Some((scene, _disk)) = small_disk("evicted-pull", 200 * MIB).await? else { return Ok(()) };
    let running = scene.start(&evicting(scene.agent.clone())).await?;
    // The Pod stays within its request, so the agent does not evict it first.
    scene
        .pod("stays")
        .resources(json!({"requests": {"ephemeral-storage": "50Mi"}}))
        .create_until("Running")
        .await?;
    scene.mac.add_image(LARGE, &json!({"pullSeconds": 600}))?;
    scene.pod("large").image(LARGE).create().await?;
    let part = partial_pull(&scene).await?;
    make_heavy(&running, &part)?;
    assert_eq!(scene.phase("large", "Failed").await?.reason(), Some("Evicted"));
    // The agent has killed the Pod's tart, and deletes the partial image.
    wait::eventually("room", DEADLINE, async || {
        ensure!(!part.exists(), "{}", running.log()?);
        Ok(())
    })
    .await?;
    scene.node_condition("DiskPressure", "False").await?;
    scene.phase("stays", "Running").await?;
    scene.is_not_evicted("stays").await
}

#[tokio::test]
async fn image_that_a_user_pulls_after_a_power_cut_belongs_to_the_user() -> Result<()> {
    let (scene, _running) = Scene::with_agent("power-cut").await?;
    scene.mac.add_image(LARGE, &json!({"pullSeconds": 600}))?;
    scene.pod("large").image(LARGE).create().await?;
    partial_pull(&scene).await?;
    // The record says that the agent's tart fetches the image, which it never completes.
    wait::eventually("a record of the pull", DEADLINE, async || {
        let record = std::fs::read_to_string(scene.agent.state_dir().join("images.json"))?;
        ensure!(record.contains("\"is_fetched\":true"), "{record}");
        Ok(())
    })
    .await?;
    scene.mac.lose_power()?;
    scene.force_delete("large").await?;
    let running = scene.start(&scene.agent).await?;
    // Wait until the new agent has looked: an image that is there before may be its own.
    wait::eventually("an agent that has looked", DEADLINE, async || {
        let record = std::fs::read_to_string(scene.agent.state_dir().join("images.json"))?;
        ensure!(!record.contains("\"is_fetched\":true"), "{record}");
        Ok(())
    })
    .await?;
    scene.mac.set_fault(Fault::InstantPull, "")?;
    scene.mac.tart(["pull", LARGE]).await?;
    // By then the agent has looked at the image.
    image_gc_passes(&running, 2.0).await?;
    let line = listed(running.agent(), LARGE).await?;
    ensure!(line.last().is_some_and(|by| by == "others"), "{line:?}: {}", running.log()?);
    Ok(())
}
